import asyncio
import logging

import pytest

from tests.support.bank import NOON, Gate, World, new_order, owed_hooks, refused_order
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async import Expired, HookUndone, KeyState, Refused, Timeouts, UndoPending
from transfer_async.journal import model, transitions
from transfer_async.sandbox import Status


async def test_an_undo_gets_its_hooks_intent_and_receipt_and_is_published(world: World):
    check, seen = world.bank.step("check"), []

    async def look(intent: object) -> None:
        seen.append(intent)

    world.bank.on_release = look
    await world.fails(Refused, refused_order(), hooks=[check, world.bank.hold])

    intent_id = (await world.entry()).intent_id
    assert seen == world.bank.intents
    assert world.bank.released == [(intent_id, f"hold-{intent_id}")]
    assert check.undone == [(intent_id, f"check-{intent_id}")]
    assert [event.hook for event in world.events_of(HookUndone)] == ["funds_hold", "check"]
    assert (await world.entry()).pending_undos == ()


async def test_no_undo_runs_while_the_journal_cannot_be_read(world: World, monkeypatch: pytest.MonkeyPatch):
    """A late report may have cancelled the undo. Without this, its order is paid without a hold."""

    async def broken(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(world.journal, "read", broken)
        await world.fails(Refused, refused_order())

    assert world.bank.released == []
    assert owed_hooks(await world.entry()) == ["funds_hold"]


async def test_pending_undos_are_recorded_with_the_failure_before_any_undo_runs(world: World):
    seen: list[model.Entry] = []

    async def look(_: object) -> None:
        seen.append(await world.entry())

    world.bank.on_release = look
    await world.fails(Refused, refused_order(), hooks=[world.bank.step("check"), world.bank.hold])

    (at_release,) = seen
    assert at_release.state is KeyState.FREE
    assert owed_hooks(at_release) == ["funds_hold", "check"]
    assert {one.lease_until for one in at_release.pending_undos} == {world.time.now() + model.LEASE}


@pytest.mark.parametrize("error", [RuntimeError("bank down"), asyncio.CancelledError()])
async def test_a_failed_undo_is_pending_and_published_and_does_not_hide_the_error(
    world: World, error: BaseException
):
    world.bank.release_error = error
    refused = await world.fails(Refused, refused_order(), hooks=[world.bank.step("check"), world.bank.hold])
    (owed,) = (await world.entry()).pending_undos
    (event,) = world.events_of(UndoPending)
    (intent_id,) = world.bank.placed

    assert not refused.order_may_exist
    assert world.bank.log == ["check", "place", "release", "undo check"]  # the other undos still run
    assert (owed.hook, owed.receipt, owed.intent.id) == ("funds_hold", f"hold-{intent_id}", intent_id)
    assert (event.hook, event.error) == ("funds_hold", type(error).__name__)


async def test_an_undo_that_times_out_stays_pending(world: World):
    world.bank.on_release = Gate()
    await world.fails(Refused, refused_order(), timeouts=Timeouts(hook=MUST_RUN_OUT))

    assert owed_hooks(await world.entry()) == ["funds_hold"]
    assert world.events_of(UndoPending)[0].error == "TimeoutError"


async def test_the_next_call_with_the_key_runs_pending_undos_before_its_own_hold(world: World):
    await world.owing()
    await world.create()

    entry = await world.entry()
    assert world.bank.log == ["place", "release", "release", "place"]
    assert [*world.bank.open] == [entry.intent_id]
    assert entry.pending_undos == ()


@pytest.mark.parametrize("error", [RuntimeError(), asyncio.CancelledError()], ids=repr)
async def test_an_undo_that_fails_again_stays_pending_and_does_not_stop_the_next_call(
    world: World, error: BaseException
):
    await world.owing()
    world.bank.release_error = error
    await world.fails(Expired, send_before=NOON)
    world.time.pass_(60.0)
    order = await world.create()

    entry = await world.entry()
    assert entry.order_id == order.id
    assert [*(one.intent.id for one in entry.pending_undos), entry.intent_id] == world.bank.placed


async def test_recover_repeats_an_undo_that_could_not_be_recorded(
    world: World, caplog: pytest.LogCaptureFixture
):
    world.journal.fail_on = transitions.MarkUndone
    async with world.client() as client:
        with pytest.raises(Refused), caplog.at_level(logging.WARNING, "transfer_async"):
            await client.create_order(refused_order(), key="k")
        world.journal.fail_on = None
        world.time.pass_(60.0)
        report = await client.recover()

    assert "will be run again" in caplog.text
    assert report.released == 1
    assert len(world.bank.released) == 2
    assert (await world.entry()).pending_undos == ()


async def test_the_undo_of_a_removed_hook_stays_pending_and_is_published(world: World):
    await world.abandoned(transitions.MarkSending, hooks=[world.bank.step("old check"), world.bank.hold])
    world.sandbox.faults.add(Status(422))
    await world.fails(Refused)

    assert owed_hooks(await world.entry()) == ["old check"]
    assert [(event.hook, event.error) for event in world.events_of(UndoPending)] == [
        ("old check", "this client has no such hook")
    ]
    assert not world.bank.open


async def test_an_undo_that_another_call_is_running_is_left_to_it(world: World):
    world.bank.on_release = gate = Gate()
    async with world.client() as client:
        first = await gate.catches(client.create_order(refused_order(), key="k"))
        world.bank.on_release = None
        await client.create_order(new_order(), key="k")
        released_meanwhile = [*world.bank.released]
        gate.open()
        with pytest.raises(Refused):
            await first

    assert released_meanwhile == []
    assert len(world.bank.released) == 1


async def test_an_undo_of_an_earlier_intent_gets_the_receipt_of_that_intent(world: World):
    check = world.bank.step("check")
    check.undo_error = RuntimeError()
    await world.fails(Refused, refused_order(), hooks=[check, world.bank.hold])
    first = world.bank.placed[0]
    await world.abandoned(transitions.MarkSending, hooks=[check, world.bank.hold])
    check.undo_error = None
    check.undone.clear()
    await world.create(hooks=[check, world.bank.hold])

    assert check.undone == [(first, f"check-{first}")]
