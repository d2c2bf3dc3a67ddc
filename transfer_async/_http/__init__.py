"""HTTP requests to the service: URLs, tokens, sending, retries, and the meaning of each response.

This package may import the converters, but not the journal.
"""
