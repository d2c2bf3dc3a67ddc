"""Exact conversion between JSON bytes and models. This package may import `_models`."""
