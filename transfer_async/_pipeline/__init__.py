"""Creates orders, from the claim of a key to the outcome, and finishes interrupted orders.

This package may import `journal` and `_http`.
"""
