"""Benchmarks: `programs` run the clients in `contenders` and use the tools in `measuring`."""
