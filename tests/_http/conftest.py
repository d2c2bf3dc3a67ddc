"""Fixtures for the tests of single exchanges, also used by the tests of failures."""

from tests.faults.conftest import bank, certificates

__all__ = ["bank", "certificates"]
