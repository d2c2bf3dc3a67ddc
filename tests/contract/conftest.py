"""The back ends that keep the journal's contract: a further one is one more entry of `BACK_ENDS`."""

import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from tests.contract.own_journal import OwnJournal
from tests.support.bank import Time
from transfer_async import MemoryJournal, PostgresJournal, SQLiteJournal
from transfer_async.journal import Journal


class TimedPostgresJournal(PostgresJournal):
    """PostgreSQL, with a schema for each test, on the test's time."""

    def __init__(self, dsn: str, time: Time) -> None:
        super().__init__(dsn, schema=f"test_{uuid.uuid4().hex}")
        self._test_time = time

    def _time(self, _database: float) -> float:
        return self._test_time.utc().timestamp()


BACK_ENDS: dict[str, Callable[[pytest.FixtureRequest, Time], Journal]] = {
    "memory": lambda _request, time: MemoryJournal(clock=time.clock),
    "sqlite": lambda request, time: SQLiteJournal(
        request.getfixturevalue("tmp_path") / "journal.db", clock=time.clock
    ),
    "own": lambda _request, time: OwnJournal(time.utc),
    "postgres": lambda request, time: TimedPostgresJournal(request.getfixturevalue("postgres").dsn, time),
}


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(params=BACK_ENDS)
def closed_journal(request: pytest.FixtureRequest, time: Time) -> Journal:
    """A journal that has not been opened."""
    return BACK_ENDS[request.param](request, time)


@pytest.fixture
async def journal(closed_journal: Journal) -> AsyncIterator[Journal]:
    async with closed_journal as journal:
        yield journal


@pytest.fixture
def pass_time(time: Time) -> Callable[[float], None]:
    """Let so many seconds pass on the journal's clock."""
    return time.pass_
