"""An async client for creating cross-border transfer orders: one key, at most one order."""
