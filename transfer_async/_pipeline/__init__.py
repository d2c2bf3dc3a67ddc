"""Create one order from the claim of its key to the outcome, and recover interrupted orders.

This package may import the packages of the journal and of the HTTP exchange.
"""
