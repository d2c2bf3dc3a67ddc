"""The data types of the service and of a call: orders, errors, events.

This package imports only `_support`.
"""
