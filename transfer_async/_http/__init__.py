"""One exchange with the service: its address, its token, the request, and what the response proves.

It imports the converters, but no journal.
"""
