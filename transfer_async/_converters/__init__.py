"""Exact conversion between JSON bytes and models.

By the layering rules, this package may import `_models`.
"""
