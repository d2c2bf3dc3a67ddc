"""The hook that verifies an order's beneficiary and compares names. This package may import the client."""
