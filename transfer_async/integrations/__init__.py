"""Integrations of the client with other libraries. Each one needs its own extra."""
