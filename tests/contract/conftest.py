"""The back ends that keep the journal's contract: a further one is one more entry of `BACK_ENDS`."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.bank import Time
from transfer_async import MemoryJournal
from transfer_async.journal.base import Journal

BACK_ENDS: dict[str, Callable[[Time], Journal]] = {
    "memory": lambda time: MemoryJournal(clock=time.clock),
}


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=BACK_ENDS.values(), ids=BACK_ENDS)
async def journal(request: pytest.FixtureRequest, time: Time) -> AsyncIterator[Journal]:
    async with request.param(time) as journal:
        yield journal


@pytest.fixture
def pass_time(time: Time) -> Callable[[float], None]:
    """Let so many seconds pass on the journal's clock."""
    return time.pass_
