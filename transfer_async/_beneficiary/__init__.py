"""The hook that verifies an order's beneficiary, and the comparison of names. It may import the client."""
