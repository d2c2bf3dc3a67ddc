"""Short names for the plug-in's fixtures: a sandbox in its own thread, a ledger and a clock."""

from collections.abc import Iterator

import pytest

from transfer_async.testing import Holds, ManualClock, RunningSandbox


@pytest.fixture
def beside() -> Iterator[RunningSandbox]:
    """Return a sandbox in its own thread."""
    with RunningSandbox() as sandbox:
        yield sandbox


@pytest.fixture
def holds() -> Holds:
    return Holds()


@pytest.fixture
def hands() -> ManualClock:
    return ManualClock()
