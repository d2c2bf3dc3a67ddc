"""Each planted fault is caught by a test: see `tests.mutation`."""

import pytest

from tests.mutation.checkout import PATIENCE, Checkout, ask
from tests.mutation.faults import FAULTS, Fault

ALWAYS, LONG = pytest.mark.trial(ci=1, long=1), pytest.mark.trial(long=1)
ONE_IN = 30
"""At the level ``ci``, one in this number of faults is planted."""


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("mutation"))


@pytest.fixture(scope="session")
def sound(checkout: Checkout, request: pytest.FixtureRequest) -> frozenset[str]:
    """Return the named tests if they all pass without a fault, which is checked only once."""
    rows = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    faults = [row["fault"] for row in rows if isinstance(row.get("fault"), Fault)]
    asked = {fault.caught_by for fault in faults if "::" in fault.caught_by}
    return frozenset(asked) if checkout.passes(sorted(asked)) else frozenset()


@pytest.mark.timeout(5 * PATIENCE)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=LONG if number % ONE_IN else ALWAYS)
        for number, fault in enumerate(FAULTS)
    ],
)
def test_a_planted_fault_is_caught(fault: Fault, checkout: Checkout, sound: frozenset[str]):
    found = ask(fault, checkout, sound=sound)

    assert found.by is not None, f"{found.verdict}: {fault.loses}"
