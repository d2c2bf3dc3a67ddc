"""General helpers for time, tasks, callables and logging.

Under the layering rules, this package may import no other layer.
"""
