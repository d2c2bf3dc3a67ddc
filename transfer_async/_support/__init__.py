"""Helpers that do not depend on orders: time, tasks, callables, the log. Imports no other package of ours."""
