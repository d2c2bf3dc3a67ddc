"""Responses that could not be recorded: the client reports their ids at once and records them later."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import bank as banks
from tests.support.bank import Gate, World, failure, new_order, other_order
from transfer_async import (
    NO_ORDER,
    KeyState,
    OrderCommand,
    RecoveryReport,
    UnreadableOrder,
)
from transfer_async._models.errors import JournalFailed, KeyConflict, Outcome
from transfer_async._models.events import DuplicateSuspected, OrderUnrecorded
from transfer_async._pipeline import outcomes
from transfer_async.journal import transitions
from transfer_async.sandbox import CloseAfterProcessing, WrongTypes
from transfer_async.worker.handler import Action, Handler

COMMAND = OrderCommand(key="k", order=new_order()).to_json()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with banks.world() as world:
        world.journal.durable = True
        yield world


async def fails(client: Any) -> None:
    """Make a call whose outcome the journal cannot record."""
    await failure(client.create_order(new_order(), key="k"), JournalFailed)


async def test_a_workers_unrecorded_order_is_reported_and_found_later(
    world: World, caplog: pytest.LogCaptureFixture
):
    """Without this, no log, event, outcome or record contains the id of an existing order."""
    caplog.set_level(logging.ERROR, "transfer_async")
    world.journal.fail_on = transitions.Create
    async with world.client() as client:
        handler = Handler(client)
        lost = await handler.handle(COMMAND)
        still = await handler.handle(COMMAND, deliveries=2)
        world.journal.fail_on = None
        found = await handler.handle(COMMAND, deliveries=3)

    (order_id,) = world.sandbox.orders
    assert (lost.disposition.action, lost.outcome) == (Action.LEAVE, None)
    assert (still.disposition.action, still.outcome) == (Action.RETRY, None)
    assert [(event.order_id, event.outcome) for event in world.events_of(OrderUnrecorded)] == [
        (order_id, Outcome.CREATED)
    ]
    assert caplog.messages == [
        f"order {order_id} of the key 'k' was created; the journal could not record it: write down the id"
    ]
    assert found.outcome is not None
    assert (found.outcome.outcome, found.outcome.order_id) == (Outcome.CREATED, order_id)
    assert len(world.sandbox.requests) == 1


async def test_an_unrecorded_answer_is_recorded_before_the_key_is_claimed_again(world: World):
    """An operator has refuted the doubt, so the key is free. Without this, it could send another order."""
    world.journal.fail_on = transitions.Create
    async with world.client(settle_after=0.0) as client:
        await fails(client)
        world.journal.fail_on = None
        world.time.pass_(100.0)
        await client.refute("k", by="ada", reason="not on the statement")
        again = await client.create_order(new_order(), key="k")

    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == [again.id]
    assert len(world.sandbox.orders) == 1


async def test_another_order_under_the_key_is_still_a_conflict(world: World):
    world.journal.fail_on = transitions.Create
    async with world.client() as client:
        await fails(client)
        world.journal.fail_on = None
        await failure(client.create_order(other_order(), key="k"), KeyConflict)

    assert (await world.entry()).state is KeyState.CREATED


async def test_recover_records_answers_that_only_this_process_has(world: World):
    """A recovery that fails or is cancelled while it records an order keeps the order's id."""
    world.journal.fail_on = transitions.Create
    async with world.client() as client:
        await fails(client)
        await failure(client.recover(), JournalFailed)
        world.journal.fail_on = None
        world.journal.before[transitions.Create] = gate = Gate()
        task = await gate.catches(client.recover())
        task.cancel()
        await asyncio.wait([task])
        kept = list(client._context.unrecorded)
        world.journal.before.clear()
        report = await client.recover()
        is_recorded_again = await outcomes.flush_unjournaled(client._context, "k")

    assert (kept, is_recorded_again) == (["k"], False)
    creates = [move for move in world.journal.moves if isinstance(move, transitions.Create)]
    assert [create.retried for create in creates] == [False, True, True, True]
    assert report == RecoveryReport(resolved=1)
    assert (await world.entry()).order_id in world.sandbox.orders


async def test_the_id_in_an_unreadable_answer_is_recorded(world: World, caplog: pytest.LogCaptureFixture):
    """Without this, `resolve` and operators search by amount for an order whose id was received."""
    asked: list[str | None] = []

    async def resolve(_: object, doubt: Any) -> object:
        asked.append(doubt.order_id)
        return NO_ORDER if len(asked) < 3 else doubt.order_id

    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    async with world.client(resolve=resolve) as client:
        world.journal.fail_on = transitions.GoInDoubt
        await fails(client)
        await failure(client.recover(), JournalFailed)
        world.journal.fail_on = None
        world.time.pass_(100.0)
        await failure(client.create_order(new_order(), key="k"), UnreadableOrder)
        (doubt,) = await client.in_doubt()
        report = await client.recover()

    (order_id,) = world.sandbox.orders
    assert [event.outcome for event in world.events_of(OrderUnrecorded)] == [Outcome.UNKNOWN]
    assert f"order {order_id} of the key 'k' may exist: the response cannot be read" in caplog.text
    assert (doubt.candidates, doubt.sender_reported) == ((order_id,), True)
    assert asked == [order_id] * len(asked)
    assert report == RecoveryReport(resolved=1)
    assert (await world.entry()).order_id == order_id


async def test_at_the_limit_an_order_replaces_the_oldest_response_and_a_doubt_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Without this, a lost response without an id would displace the id of an existing order."""
    monkeypatch.setattr(outcomes, "MAX_UNRECORDED", 1)
    world.journal.fail_on = transitions.OfAttempt
    kept = []
    async with world.client() as client:
        for key in ("order", "doubt", "next order"):
            if key == "doubt":
                world.sandbox.faults.add(CloseAfterProcessing())
            await failure(client.create_order(new_order(), key=key), JournalFailed)
            kept.append(list(client._context.unrecorded))

    assert kept == [["order"], ["order"], ["next order"]]
