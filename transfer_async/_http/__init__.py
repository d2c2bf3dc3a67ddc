"""The HTTP layer: URLs, tokens, sending, retries, and the classification of responses.

This package may import the converters, but not the journal.
"""
