"""One exchange with the service: the address, the token, the request, and the meaning of the response.

This package imports the converters, but no journal.
"""
