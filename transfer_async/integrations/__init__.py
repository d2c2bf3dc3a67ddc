"""Integrations with other libraries, for the client and the worker. Most of them need an extra."""
