"""Integrations with other libraries, for the client and the worker. Most integrations need an extra."""
