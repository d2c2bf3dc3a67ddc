"""Create orders, from the claim of a key to the outcome, and recover interrupted orders.

By the layering rules, this package may import `journal` and `_http`.
"""
