"""Exact conversion between JSON bytes and models.

Under the layering rules, this package may import `_models`.
"""
