"""Integrations of the client and the worker with other libraries. Most of them need an extra."""
