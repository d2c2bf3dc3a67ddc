"""The pool of PostgreSQL connections, and the estimate of the server's time."""

import asyncio
from typing import Any

import pytest

from tests.support.bank import turns
from tests.support.cases import each
from tests.support.loop_time import LoopTime
from transfer_async.journal.postgres_sql import IDLE, EstimatedServerClock, Session, Sessions


class Connection:
    """A connection that records how it was closed. Closing it may raise an error."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self.error: BaseException | None = None

    def is_closed(self) -> bool:
        return self.ended is not None

    def terminate(self) -> None:
        self.ended = "at once"

    async def close(self) -> None:
        if self.error is not None:
            raise self.error
        self.ended = "in order"


class Lender(Sessions):
    """A pool of at most two of these connections."""

    def __init__(self) -> None:
        super().__init__(self._connected, limit=2)
        self.made: list[Any] = []

    async def _connected(self) -> Session:
        self.made.append(Connection())
        return Session(self.made[-1], prepares=True, has_safe_defaults=True)


async def leave(lender: Lender, *, by: BaseException | None = None) -> None:
    async with lender.one(unharmed_by=(LookupError,)):
        if by is not None:
            raise by


async def test_a_connection_is_used_again():
    lender = Lender()
    await leave(lender)
    await leave(lender)

    assert [one.ended for one in lender.made] == [None]


async def test_no_more_connections_are_open_than_the_limit():
    lender = Lender()

    async def use() -> None:
        async with lender.one():
            await turns(1)

    await asyncio.gather(*(use() for _ in range(10)))

    assert len(lender.made) == 2


@each(
    ("error", "ended"),
    [(LookupError(), None), (ValueError(), "at once"), (asyncio.CancelledError(), "at once")],
)
async def test_a_connection_is_used_again_only_after_a_harmless_error(
    error: BaseException, ended: str | None
):
    lender = Lender()
    with pytest.raises(type(error)):
        await leave(lender, by=error)

    assert lender.made[0].ended == ended


async def test_a_closed_connection_is_not_lent():
    lender = Lender()
    await leave(lender)
    lender.made[0].ended = "by the server"
    await leave(lender)

    assert len(lender.made) == 2


async def test_a_connection_that_was_idle_too_long_is_not_lent(loop_time: LoopTime):
    lender = Lender()
    await leave(lender)
    await loop_time.pass_(IDLE + 1)
    await leave(lender)

    assert [one.ended for one in lender.made] == ["at once", None]


@each(("error", "ended"), [(None, "in order"), (OSError(), "at once"), (asyncio.CancelledError(), "at once")])
async def test_a_connection_that_cannot_close_gracefully_is_terminated(
    error: BaseException | None, ended: str
):
    lender = Lender()
    await leave(lender)
    lender.made[0].error = error
    cancelled = isinstance(error, asyncio.CancelledError)
    closed = (await asyncio.gather(lender.close(), return_exceptions=True))[0]

    assert lender.made[0].ended == ended
    assert isinstance(closed, asyncio.CancelledError) is cancelled


# --- the time -----------------------------------------------------------------------------------


async def test_the_estimated_time_advances_with_the_loops_clock(loop_time: LoopTime):
    reckoned = EstimatedServerClock()
    reckoned.update(1000.0, asked=asyncio.get_running_loop().time())
    await loop_time.pass_(5.0)

    assert reckoned.now == pytest.approx(1005.0, abs=1.0)


@each(
    ("server_time", "took", "reckons"),
    {
        "may be right": (1000.5, 1.0, 1001.0),
        "was ahead": (990.0, 1.0, 991.0),
        "was behind": (1010.0, 1.0, 1010.0),
    },
)
async def test_an_answer_corrects_the_estimate_only_as_far_as_needed(
    loop_time: LoopTime, server_time: float, took: float, reckons: float
):
    reckoned, loop = EstimatedServerClock(), asyncio.get_running_loop()
    reckoned.update(1000.0, asked=loop.time())
    asked = loop.time()
    await loop_time.pass_(took)
    reckoned.update(server_time, asked=asked)

    assert reckoned.now == pytest.approx(reckons, abs=0.3)


async def test_there_is_no_valid_estimate_before_the_first_answer():
    assert EstimatedServerClock().now < 0
