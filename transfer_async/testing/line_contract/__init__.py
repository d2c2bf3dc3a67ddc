"""The line's contract, as tests to subclass: whoever writes a broker's `Line` runs what our own run."""

from transfer_async.testing.line_contract.line_suite import LineContract

__all__ = ["LineContract"]
