"""Create an order, from the claim of its key to its outcome, and recover interrupted orders.

By the layering rules, this package may import `journal` and `_http`.
"""
