"""Exact conversion between bytes and models. This package may import the models."""
