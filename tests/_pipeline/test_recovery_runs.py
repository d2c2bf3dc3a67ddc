"""The recovery runs that a client starts by itself, and what closing the client does to them."""

import asyncio
import logging
from typing import Any

import pytest

from tests.support.bank import Gate, World, failure, new_order, owed_hooks, turns
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async import ClientClosed, RecoveryReport, TransferClient


class Pauses:
    """Pauses the client's own recovery between two runs until the test lets it continue."""

    def __init__(self, world: World) -> None:
        self._come: asyncio.Queue[Gate] = asyncio.Queue()
        world.time.on_sleep = self._wait

    async def _wait(self) -> None:
        gate = Gate()
        self._come.put_nowait(gate)
        await gate()

    async def next(self) -> Gate:
        """Wait for the next pause and return it."""
        async with asyncio.timeout(60):
            return await self._come.get()


# --- by itself ----------------------------------------------------------------------------------


async def test_a_client_recovers_by_itself_at_intervals(world: World):
    pauses = Pauses(world)
    async with world.client(recover_every=60):
        (await pauses.next()).open()
        second = await pauses.next()
        await world.owing()
        second.open()
        await pauses.next()

    assert world.time.slept == [30.0, 60.0, 60.0]
    # The call released the hold once, and recovery once.
    assert world.bank.log == ["place", "release", "release"]
    assert not world.bank.open


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.known("k"),
        lambda client: client.create_order(new_order()),
        lambda client: client.who_am_i(),
        lambda client: client.recover(),
    ],
    ids=["known", "create_order", "who_am_i", "recover"],
)
async def test_without_async_with_recovery_starts_at_the_first_use(world: World, use: Any):
    pauses = Pauses(world)
    client = world.made(recover_every=60)
    await turns(5)
    before = list(world.time.slept)
    await use(client)
    await use(client)
    await pauses.next()
    await client.close()

    assert before == []
    assert world.time.slept == [30.0]


async def test_a_failed_run_is_logged_by_its_class_and_recovery_continues(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(*_: object, **__: object) -> None:
        raise OSError("/secret/path")

    pauses = Pauses(world)
    await world.owing()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(world.journal, "work", broken)
        async with world.client(recover_every=60):
            (await pauses.next()).open()
            second = await pauses.next()
            patch.undo()
            second.open()
            await pauses.next()

    assert [record.getMessage() for record in caplog.records] == [
        "a periodic recovery failed (JournalFailed)"
    ]
    assert "secret" not in caplog.text
    assert not world.bank.open


# --- closing ------------------------------------------------------------------------------------


async def test_closing_between_two_runs_does_not_wait(world: World):
    pauses = Pauses(world)
    async with world.client(recover_every=60) as client:
        await pauses.next()
    await turns(5)

    assert world.time.slept == [30.0]
    assert not client._recoveries.begun


async def undoing(world: World, *keys: str, is_periodic: bool) -> tuple[TransferClient, Any, Gate]:
    """Leave an undo of each key pending, and start a client that runs the first.

    Return the client, the task of its recovery if that is not a periodic one, and the undo.
    """
    for key in keys:
        await world.owing(key)
    undo = world.bank.on_release = Gate()
    if not is_periodic:
        client = world.made()
        return client, await undo.catches(client.recover()), undo
    pauses = Pauses(world)
    client = world.made(recover_every=60)
    await client.known(keys[0])
    (await pauses.next()).open()
    await undo.reached.wait()
    return client, None, undo


@pytest.mark.parametrize(
    ("is_periodic", "pending"), [(True, ["funds_hold"]), (False, [])], ids=["periodic", "explicit"]
)
async def test_closing_waits_for_a_run_and_a_periodic_run_starts_no_other_undo(
    world: World, is_periodic: bool, pending: list[str]
):
    client, recovery, undo = await undoing(world, "a", "b", is_periodic=is_periodic)
    closing = asyncio.create_task(client.close())
    await turns(10)
    waited = not closing.done()
    undo.open()
    await closing

    assert waited
    assert owed_hooks(await world.entry("a")) == []
    assert owed_hooks(await world.entry("b")) == pending
    # Each call released its hold once, and recovery released one or both of them again.
    assert world.bank.log == [*2 * ["place", "release"], *["release"] * (1 if is_periodic else 2)]
    assert recovery is None or await recovery == RecoveryReport(released=2)


@pytest.mark.parametrize("is_periodic", [True, False], ids=["periodic", "explicit"])
async def test_an_undo_that_outlasts_the_grace_period_is_cancelled_and_stays_pending(
    world: World, is_periodic: bool
):
    client, recovery, undo = await undoing(world, "k", is_periodic=is_periodic)
    await client.close(timeout=MUST_RUN_OUT)
    if recovery is not None:
        await failure(recovery, ClientClosed)

    assert not undo.passed
    assert not client._recoveries.begun
    assert owed_hooks(await world.entry()) == ["funds_hold"]


async def test_a_cancelled_close_leaves_no_recovery_running(world: World):
    client, recovery, undo = await undoing(world, "k", is_periodic=False)
    closing = asyncio.create_task(client.close())
    await turns(5)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await failure(recovery, ClientClosed)

    assert not undo.passed


async def test_an_undo_may_fetch_while_the_client_closes(world: World):
    await world.owing()
    looked_up: list[Any] = []
    gate = Gate()

    async def look_up(_: object) -> None:
        await gate()
        looked_up.append(await client.who_am_i())

    world.bank.on_release = look_up
    client = world.made()
    recovery = await gate.catches(client.recover())
    closing = asyncio.create_task(client.close())
    await turns(5)
    gate.open()
    await closing

    assert len(looked_up) == 1
    assert await recovery == RecoveryReport(released=1)
