"""Helpers that do not depend on orders: time, tasks, callables, the log.

This package imports no other layer.
"""
