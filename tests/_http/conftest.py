"""What the tests of single exchanges share with the tests of failures."""

from tests.faults.conftest import bank, certificates

__all__ = ["bank", "certificates"]
