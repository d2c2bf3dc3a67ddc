"""One exchange with the service: where to, with which token, and what the answer proves.

It may know the converters, and no journal.
"""
