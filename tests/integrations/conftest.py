"""Fixtures for the tests of traces and metrics."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integrations.tracing import Traced
from tests.support.bank import World, world


@pytest.fixture
def traced() -> Iterator[Traced]:
    """Yield telemetry that keeps its spans and metrics in memory."""
    made = Traced()
    yield made
    made.shutdown()


@pytest.fixture
async def at_work(traced: Traced) -> AsyncIterator[World]:
    """Yield a sandbox and a bank, which are closed before the telemetry."""
    async with world() as made:
        yield made
