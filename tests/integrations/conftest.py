"""Fixtures for the tests of traces and metrics."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integrations.tracing import Traced
from tests.support.bank import World, world


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Telemetry whose spans and metrics are kept in memory."""
    made = Traced()
    yield made
    made.shutdown()


@pytest.fixture
async def at_work(traced: Traced) -> AsyncIterator[World]:
    """A sandbox and a bank, closed before the telemetry."""
    async with world() as made:
        yield made
