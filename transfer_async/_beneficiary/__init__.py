"""The hook that verifies an order's beneficiary, and the code that compares names.

Under the layering rules, this package may import the client.
"""
