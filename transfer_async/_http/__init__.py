"""HTTP requests to the service: URLs, tokens, sending, retries, and the interpretation of responses.

By the layering rules, this package may import the converters, but not the journal.
"""
