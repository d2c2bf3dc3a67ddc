"""General helpers for time, tasks, callables and logging.

By the layering rules, this package imports no other layer.
"""
