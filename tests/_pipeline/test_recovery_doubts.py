"""How `recover` checks doubts: several at once, less often as they age, and while undos run."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bank import Gate, World, owed_hooks, turns
from tests.support.journalling import acquire_lease, claim, doubt, intent
from tests.support.loop_time import LoopTime
from transfer_async import (
    NO_ORDER,
    KeyState,
    OutcomeUnknown,
    RecoveryReport,
    SQLiteJournal,
    TransferClient,
)
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline import recovery
from transfer_async.journal import transitions

Resolve = Callable[[OrderIntent, OutcomeUnknown], Awaitable[Any]]


async def in_doubt(world: World, count: int, *, prefix: str = "doubt") -> list[str]:
    """Put ``count`` keys in doubt, with their holds placed."""

    async def record(number: int, key: str) -> None:
        wish = intent(number, id=f"intent-{key}", key=key)
        for move in (claim(intent=wish, hooks=("funds_hold",)), marked(wish), doubt()):
            await world.move(move, key)
        world.bank.open[wish.id] = "hold"

    keys = [f"{prefix}-{number:04}" for number in range(count)]
    await asyncio.gather(*(record(number, key) for number, key in enumerate(keys, 1)))
    return keys


def marked(wish: OrderIntent) -> transitions.MarkSending:
    return transitions.MarkSending(
        intent_id=wish.id, epoch=1, attempt="a", receipts={"funds_hold": "hold"}, lease=60.0, window=30.0
    )


class Asked:
    """A ``resolve`` that records the keys it is called with, and the number of concurrent calls.

    Args:
        answer: awaited for the result of each call.
    """

    def __init__(self, answer: Callable[[str], Awaitable[Any]]) -> None:
        self._answer = answer
        self.keys: list[str] = []
        self.now = self.most = 0

    async def __call__(self, about: OrderIntent, _: object) -> Any:
        self.keys.append(about.key)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self._answer(about.key)
        finally:
            self.now -= 1


async def not_known(_: str) -> None:
    await asyncio.sleep(0)


async def no_order(_: str) -> Any:
    await asyncio.sleep(0)
    return NO_ORDER


async def fails(_: str) -> None:
    raise OSError


async def hangs(_: str) -> None:
    await asyncio.Event().wait()


# --- several at once ----------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "most"), [({}, 8), ({"recover_concurrency": 3}, 3)])
async def test_several_doubts_are_asked_about_at_once(world: World, settings: Any, most: int):
    keys = await in_doubt(world, 30)
    asked = Asked(not_known)

    assert await world.recover(resolve=asked, **settings) == RecoveryReport(in_doubt=30)
    assert sorted(asked.keys) == keys
    assert asked.most == most


async def test_a_pending_undo_does_not_wait_for_any_look_up(world: World):
    await in_doubt(world, 40, prefix="a")
    await world.owing("z")
    gate = Gate()
    async with world.client(resolve=gate) as client:
        run = await gate.catches(client.recover())
        await turns(50)
        owed = owed_hooks(await world.entry("z"))
        gate.open()
        report = await run

    assert owed == []
    assert report == RecoveryReport(in_doubt=40, released=1)


async def test_pending_undos_run_before_other_keys_are_read(world: World, monkeypatch: pytest.MonkeyPatch):
    await in_doubt(world, 3, prefix="a")
    await world.owing("z")
    read_before: list[int] = []
    work = world.journal.work

    async def noted(*args: Any, **named: Any) -> Any:
        read_before.append(len(world.bank.released))
        return await work(*args, **named)

    monkeypatch.setattr(world.journal, "work", noted)

    assert await world.recover() == RecoveryReport(in_doubt=3, released=1)
    assert read_before
    assert set(read_before) == {1}


async def test_a_hanging_undo_does_not_keep_doubts_from_being_asked_about(world: World):
    await world.owing("a")
    keys = await in_doubt(world, 20, prefix="b")
    asked, release = Asked(not_known), Gate()
    world.bank.on_release = release
    async with world.client(resolve=asked) as client:
        run = await release.catches(client.recover())
        while len(asked.keys) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0)
        release.open()
        report = await run

    assert sorted(asked.keys) == keys
    assert report == RecoveryReport(in_doubt=20, released=1)


async def test_an_undo_that_fails_after_a_refutation_is_not_repeated_in_the_same_run(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    # With this batch size, the run reads the second key after the refutation.
    monkeypatch.setattr(recovery, "BATCH", 1)
    await world.owing("a")
    await in_doubt(world, 1, prefix="b")
    world.time.pass_(330.0)
    release = Gate()
    world.bank.on_release = lambda about: release() if about.key == "a" else failing()
    async with world.client(resolve=Asked(no_order), abandoned_settle_after=300.0) as client:
        run = await release.catches(client.recover())
        while (await world.entry("b-0000")).state is KeyState.IN_DOUBT:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await turns(20)
        release.open()
        report = await run

    assert report == RecoveryReport(refuted=1, released=1, undos_pending=1)
    assert world.bank.log.count("release") == 3, "once by the refused call"
    assert owed_hooks(await world.entry("b-0000")) == ["funds_hold"]


async def failing() -> None:
    raise RuntimeError


async def test_a_resolve_may_fetch_while_the_client_closes(world: World):
    await in_doubt(world, 1)
    gate = Gate()
    looked_up: list[Any] = []

    async def look_up(*_: object) -> None:
        await gate()
        looked_up.append(await client.who_am_i())

    client = world.made(resolve=look_up)
    run = await gate.catches(client.recover())
    closing = asyncio.create_task(client.close())
    await turns(5)
    gate.open()
    await closing

    assert len(looked_up) == 1
    assert await run == RecoveryReport(in_doubt=1)


# --- several recoveries, and cancelled ones -----------------------------------------------------


async def test_recoveries_beside_each_other_end_each_doubt_once(world: World):
    await in_doubt(world, 40)
    world.time.pass_(330.0)
    asked = Asked(no_order)
    settings: dict[str, Any] = {"resolve": asked, "abandoned_settle_after": 300.0}
    async with world.client(**settings) as one, world.client(**settings) as other:
        reports = await asyncio.gather(one.recover(), other.recover(), one.recover())

    assert sorted(asked.keys) == sorted(set(asked.keys))
    assert sum(report.refuted for report in reports) == sum(report.released for report in reports) == 40
    assert len(world.bank.released) == 40
    assert not world.bank.open


async def test_a_late_answer_does_not_release_the_lease_of_another_worker(world: World):
    (key,) = await in_doubt(world, 1)
    gate = Gate()
    async with world.client(resolve=gate) as client:
        run = await gate.catches(client.recover())
        world.time.pass_(61.0)
        await world.move(acquire_lease(60.0), key)
        before = await world.entry(key)
        gate.open()
        await run

    assert (await world.entry(key)).lease_until == before.lease_until


async def test_recovery_skips_a_doubt_that_ended_while_it_was_queued(world: World):
    first, ended, used, last = await in_doubt(world, 4)
    gate = Gate()
    asked = Asked(lambda key: gate() if key == first else not_known(key))
    async with world.client(resolve=asked, recover_concurrency=1) as client:
        run = await gate.catches(client.recover())
        await world.refute(ended)
        await world.refute(used)
        await world.move(claim(intent=intent(9, id="next", key=used)), used)
        gate.open()
        report = await run

    assert asked.keys == [first, last]
    assert report == RecoveryReport(in_doubt=2)
    assert await world.recover() == RecoveryReport(in_doubt=2, released=2)


async def test_a_cancelled_recovery_leaves_every_key_in_doubt_for_the_next_one(world: World):
    keys = await in_doubt(world, 20)
    world.time.pass_(330.0)
    gate = Gate()
    async with world.client(resolve=gate) as client:
        run = await gate.catches(client.recover())
        await turns(20)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    states = {(await world.entry(key)).state for key in keys}
    world.time.pass_(60.0)
    report = await world.recover(resolve=Asked(no_order), abandoned_settle_after=300.0)

    assert states == {KeyState.IN_DOUBT}
    assert report == RecoveryReport(refuted=20, released=20)


# --- a look-up that does not work ---------------------------------------------------------------


async def test_a_failing_resolve_is_not_called_for_every_doubt(world: World):
    await in_doubt(world, 40)
    asked = Asked(fails)

    assert await world.recover(resolve=asked) == RecoveryReport(in_doubt=40)
    assert len(asked.keys) <= 8


@pytest.mark.parametrize("limit", [1, 2, 8])
async def test_a_hanging_resolve_costs_a_run_one_timeout(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int, caplog: pytest.LogCaptureFixture
):
    loop_time = LoopTime(monkeypatch)
    await in_doubt(world, 40)
    asked = Asked(hangs)
    async with world.client(resolve=asked, recover_concurrency=limit) as client:
        run = asyncio.create_task(client.recover())
        while len(asked.keys) < limit:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with caplog.at_level(logging.WARNING):
            await loop_time.pass_(120.0)
            report = await run

    assert len(asked.keys) == limit
    assert report == RecoveryReport(in_doubt=40)
    assert (
        f"resolve failed {limit} times in a row: this recovery does not call resolve again" in caplog.messages
    )


async def test_after_a_timeout_no_look_up_starts_until_the_others_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    loop_time = LoopTime(monkeypatch)
    keys = await in_doubt(world, 10)
    gate = Gate()
    asked = Asked(lambda key: gate() if key == keys[1] else hangs(key))
    async with world.client(resolve=asked, recover_concurrency=2) as client:
        run = await gate.catches(client.recover())
        await loop_time.pass_(60.0)
        gate.open()
        while len(asked.keys) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(2):
            await loop_time.pass_(60.0)
            await turns(20)
        await run

    assert asked.keys == keys[:3]


async def test_doubts_that_resolve_cannot_answer_do_not_keep_the_others_waiting(world: World):
    keys = await in_doubt(world, 40)
    broken = {*keys[::5], *keys[20:22]}
    asked = Asked(lambda key: fails(key) if key in broken else not_known(key))
    await world.recover(resolve=asked)

    assert sorted(asked.keys) == keys


async def test_the_next_run_begins_to_ask_where_the_last_one_gave_up(world: World):
    keys = await in_doubt(world, 20)
    asked = Asked(lambda key: fails(key) if key < keys[4] else not_known(key))
    async with world.client(resolve=asked, recover_concurrency=2) as client:
        for _ in range(2):
            await client.recover()
        gave_up = list(asked.keys)
        await client.recover()

    assert gave_up == keys[:4]
    assert asked.keys == keys


# --- less and less often ------------------------------------------------------------------------


async def ages_asked(world: World, client: TransferClient, asked: Asked, *, hours: int) -> list[float]:
    """Run ``recover`` once a minute. Return the ages in seconds of the doubt when ``resolve`` was called."""
    ages = []
    sent_until = (await world.entry("doubt-0000")).sent_until
    while (age := world.time.seconds - sent_until) < hours * 3600:
        before = len(asked.keys)
        await client.recover()
        ages += [age] * (len(asked.keys) - before)
        world.time.pass_(60.0)
    return ages


async def test_an_old_doubt_is_asked_about_less_often_but_at_least_once_an_hour(world: World):
    await in_doubt(world, 1)
    asked = Asked(not_known)
    async with world.client(resolve=asked) as client:
        ages = await ages_asked(world, client, asked, hours=5)

    assert ages == [0, 60, 120, 180, 240, 600, 1200, 2400, 4800, 8400, 12_000, 15_600]


async def test_a_doubt_is_asked_about_once_no_order_is_accepted(world: World):
    await in_doubt(world, 1)
    asked = Asked(no_order)
    async with world.client(resolve=asked, settle_after=1000.0, abandoned_settle_after=3000.0) as client:
        ages = await ages_asked(world, client, asked, hours=1)

    assert ages[-3:] == [1200, 2400, 3000]
    assert not world.bank.open


async def test_the_first_run_of_a_client_asks_about_every_doubt(world: World):
    keys = await in_doubt(world, 3)
    world.time.pass_(5000.0)
    asked = Asked(not_known)
    async with world.client(resolve=asked) as client:
        await client.recover()
        await client.recover()
    once = list(asked.keys)
    await world.recover(resolve=asked)

    assert once == keys
    assert asked.keys == 2 * keys


async def test_a_recovery_run_that_gave_up_does_not_count_as_a_query(world: World):
    keys = await in_doubt(world, 20)
    world.time.pass_(5000.0)
    is_down = True
    asked = Asked(lambda key: fails(key) if is_down else not_known(key))
    async with world.client(resolve=asked) as client:
        await client.recover()
        is_down = False
        await client.recover()
        await client.recover()

    assert {*asked.keys} == {*keys}


async def test_a_pending_undo_does_not_make_recovery_query_a_doubt_more_often(world: World):
    await world.owing("doubt-0000")
    world.bank.release_error = RuntimeError()
    await world.in_doubt("doubt-0000")
    asked = Asked(not_known)
    async with world.client(resolve=asked) as client:
        ages = await ages_asked(world, client, asked, hours=2)

    assert [age for age in ages if age > 330] == pytest.approx([600, 1200, 2400, 4800], abs=60)


# --- how long it takes --------------------------------------------------------------------------


LOOK_UP = 0.1
"""The duration in seconds of one call of ``resolve``."""


@pytest.mark.trial(short=100, ci=1000, long=5000)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_many_doubts_are_asked_about_in_time(world: World, kind: str, size: int, tmp_path: Path):
    """Eight doubts are checked at once, and a release does not wait for them.

    The key to release is the last one in the journal. The time limit is half of what sequential checks would
    take.
    """
    if kind == "sqlite":
        world.journal.journal = SQLiteJournal(tmp_path / "journal.db", clock=world.time.clock)
    asked = Asked(lambda _: asyncio.sleep(LOOK_UP))
    ended_before: list[int] = []

    async def released(_: object) -> None:
        ended_before.append(len(asked.keys) - asked.now)

    async with world.journal.journal:
        await in_doubt(world, size)
        await world.owing("z")
        world.bank.on_release = released
        began = time.perf_counter()
        report = await world.recover(resolve=asked)
        took = time.perf_counter() - began

    assert report == RecoveryReport(in_doubt=size, released=1)
    assert ended_before == [0]
    assert asked.most == 8
    assert took < LOOK_UP * size / 2
