"""Take an order from the claim of its key to its outcome, and recover interrupted orders.

This package may import `journal` and `_http`.
"""
