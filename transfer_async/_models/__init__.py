"""The data types of the service and of a call: orders, errors, events.

By the layering rules, this package imports only `_support`.
"""
