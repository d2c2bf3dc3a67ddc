"""The journal's contract, as tests to subclass: whoever writes a `Journal` runs what our own run."""

from transfer_async.testing.journal_contract.journal_time import JournalTime
from transfer_async.testing.journal_contract.suite import JournalContract

__all__ = ["JournalContract", "JournalTime"]
