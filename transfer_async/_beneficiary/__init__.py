"""The hook that asks whom an order would pay, and how two names are compared. It may know the client."""
