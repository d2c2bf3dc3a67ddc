"""Each planted fault is caught by some test: see `tests.planted`."""

from collections.abc import Iterator

import pytest

from tests.planted.asking import FAULTS, ask, recorded
from tests.planted.checkout import PATIENCE, Checkout
from tests.planted.fault import Fault

EACH, FEW = pytest.mark.trial(ci=1, long=1), pytest.mark.trial(long=1)
ONE_IN = 10
"""One fault in so many is planted where time is short."""


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("planted"))


def _cases() -> Iterator[object]:
    for number, fault in enumerate(FAULTS):
        yield pytest.param(fault, id=fault.name, marks=EACH if number % ONE_IN == 0 else FEW)


@pytest.mark.timeout(5 * PATIENCE)
@pytest.mark.parametrize("fault", _cases())
def test_a_planted_fault_is_caught(fault: Fault, checkout: Checkout):
    found = ask(fault, checkout, last=recorded().get(fault.name))

    assert found.by is not None, f"{found.verdict}: {fault.loses}"
