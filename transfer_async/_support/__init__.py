"""Helpers that do not depend on orders: time, tasks, callables, the log. It imports no other layer."""
