"""A sandbox beside the test, as the plug-in gives one, and what else its fixtures are."""

from collections.abc import Iterator

import pytest

from transfer_async.testing import Holds, ManualClock, RunningSandbox


@pytest.fixture
def beside() -> Iterator[RunningSandbox]:
    """A sandbox on a thread of its own."""
    with RunningSandbox() as sandbox:
        yield sandbox


@pytest.fixture
def holds() -> Holds:
    return Holds()


@pytest.fixture
def hands() -> ManualClock:
    return ManualClock()
