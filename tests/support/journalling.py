"""Transitions and entries for tests of journals."""

from transfer_async.testing.journal_contract.journal_moves import *  # noqa: F403 - a contract has nothing else
