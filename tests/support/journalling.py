"""Moves and entries for tests of the journal: those of the contract that others may try theirs by."""

from transfer_async.testing.journal_contract.journal_moves import *  # noqa: F403 - a contract has nothing else
