"""Connections to PostgreSQL, as they are lent, and the time that is reckoned in between."""

import asyncio
from typing import Any

import pytest

from tests.support.loop_time import LoopTime
from transfer_async.journal.postgres_sql import IDLE, EstimatedServerClock, Session, Sessions


class Connection:
    """It is open until it is told to end, or has an error to raise."""

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
    """Sessions over such connections, two at most."""

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


async def test_no_more_are_open_than_the_limit():
    lender = Lender()
    await asyncio.gather(*(leave(lender) for _ in range(10)))

    assert len(lender.made) <= 2


@pytest.mark.parametrize(
    ("error", "ended"),
    [(LookupError(), None), (ValueError(), "at once"), (asyncio.CancelledError(), "at once")],
)
async def test_a_connection_is_used_again_only_after_what_does_it_no_harm(
    error: BaseException, ended: str | None
):
    lender = Lender()
    with pytest.raises(type(error)):
        await leave(lender, by=error)

    assert lender.made[0].ended == ended


async def test_one_that_has_ended_is_not_lent():
    lender = Lender()
    await leave(lender)
    lender.made[0].ended = "by the server"
    await leave(lender)

    assert len(lender.made) == 2


async def test_one_that_lay_idle_for_long_is_not_lent(loop_time: LoopTime):
    lender = Lender()
    await leave(lender)
    await loop_time.pass_(IDLE + 1)
    await leave(lender)

    assert [one.ended for one in lender.made] == ["at once", None]


@pytest.mark.parametrize(
    ("error", "ended"), [(None, "in order"), (OSError(), "at once"), (asyncio.CancelledError(), "at once")]
)
async def test_what_is_open_is_closed_somehow(error: BaseException | None, ended: str):
    lender = Lender()
    await leave(lender)
    lender.made[0].error = error
    cancelled = isinstance(error, asyncio.CancelledError)
    closed = (await asyncio.gather(lender.close(), return_exceptions=True))[0]

    assert lender.made[0].ended == ended
    assert isinstance(closed, asyncio.CancelledError) is cancelled


# --- the time -----------------------------------------------------------------------------------


async def test_the_servers_time_goes_on_as_the_loops_does(loop_time: LoopTime):
    reckoned = EstimatedServerClock()
    reckoned.update(1000.0, asked=asyncio.get_running_loop().time())
    await loop_time.pass_(5.0)

    assert reckoned.now == pytest.approx(1005.0, abs=1.0)


@pytest.mark.parametrize(
    ("said", "took", "reckons"),
    [(1000.5, 1.0, 1001.0), (990.0, 1.0, 991.0), (1010.0, 1.0, 1010.0)],
    ids=["may be right", "was ahead", "was behind"],
)
async def test_an_answer_puts_it_right_as_far_as_it_proves_it_wrong(
    loop_time: LoopTime, said: float, took: float, reckons: float
):
    reckoned, loop = EstimatedServerClock(), asyncio.get_running_loop()
    reckoned.update(1000.0, asked=loop.time())
    asked = loop.time()
    await loop_time.pass_(took)
    reckoned.update(said, asked=asked)

    assert reckoned.now == pytest.approx(reckons, abs=0.3)


async def test_before_the_server_said_anything_no_time_is_its():
    assert EstimatedServerClock().now < 0
