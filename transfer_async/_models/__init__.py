"""The data types: requests, responses, errors and events.

This package may import `_support`, but no other package of the project.
"""
