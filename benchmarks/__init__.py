"""Benchmarks: `programs` run `contenders` in interleaved rounds, with the tools of `measuring`."""
