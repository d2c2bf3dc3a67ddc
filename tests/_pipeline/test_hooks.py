import asyncio
from typing import Any

import pytest

from tests.support.bank import Bank, World, new_order, refused_order
from tests.support.cases import each
from transfer_async import (
    FundsHold,
    HoldFailed,
    HookPassed,
    KeyState,
    Outcome,
    PreflightFailed,
    PreflightHook,
    Refused,
    TransferClient,
)
from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.hooks import PlainHook, checked_hooks, checked_receipt, is_hold

# --- what may be a hook -------------------------------------------------------------------------


async def a_check(intent: Any) -> None:
    """Let everything pass."""


async def another_check(intent: Any) -> None:
    """Let everything pass."""


def test_a_plain_async_function_is_a_hook_with_its_own_name():
    (hook,) = checked_hooks([a_check])

    assert isinstance(hook, PlainHook)
    assert isinstance(hook, PreflightHook)
    assert hook.name == "a_check"
    assert not is_hold(hook)


def test_a_callable_object_is_a_hook_named_after_its_class():
    class Check:
        async def __call__(self, intent: Any) -> None:
            """Let everything pass."""

    assert [hook.name for hook in checked_hooks([Check()])] == ["Check"]


BANK = Bank()
NUMBER: Any = 7


@each(
    ("hooks", "why"),
    [
        ([BANK.step("same"), BANK.step("same"), BANK.hold], "same comes twice"),
        ([a_check, a_check], "a_check comes twice"),
        ([BANK.step("held")], "'held' is reserved"),
        ([BANK.step("")], "needs a name"),
        ([BANK.step(NUMBER)], "needs a name"),
        ([BANK.hold, BANK.step("check")], "give it last"),
        (
            [BANK.hold, FundsHold(BANK.place, BANK.release, name="two")],
            "give one hold at most, and give it last",
        ),
        (["check"], "a str is neither a hook nor an async function"),
        ([None], "a NoneType is neither"),
    ],
)
def test_invalid_hooks_are_refused_when_the_client_is_created(hooks: Any, why: str):
    with pytest.raises(ValueError, match=why):
        TransferClient("https://bank.example", "token", hooks=hooks)


def test_a_hook_with_bind_is_bound_to_the_client_it_is_given_to():
    hook: Any = Bank().step("check")
    hook.bind = lambda client: setattr(hook, "client", client)
    client = TransferClient("https://bank.example", "token", hooks=[hook])

    assert hook.client is client


def test_a_receipt_that_is_too_long_is_refused():
    assert checked_receipt(Bank().step("check"), "r" * 10_000)
    with pytest.raises(ValueError, match="longer than 10,000 characters"):
        checked_receipt(Bank().step("check"), "r" * 10_001)


def test_a_receipt_that_is_not_text_is_refused():
    with pytest.raises(TypeError, match="not a int"):
        checked_receipt(Bank().step("check"), 7)


# --- how they run -------------------------------------------------------------------------------


async def test_hooks_run_in_the_order_given_and_are_undone_in_reverse(world: World):
    hooks = [world.bank.step("one"), a_check, world.bank.step("two"), world.bank.hold]
    await world.fails(Refused, refused_order(), hooks=hooks)

    assert world.bank.log == ["one", "two", "place", "release", "undo two", "undo one"]


async def test_each_receipt_is_recorded_with_the_next_transition(world: World):
    hooks = [world.bank.step("one"), world.bank.step("two"), world.bank.hold]
    await world.create(hooks=hooks)

    assert world.journal.kinds == ["Claim", "RenewLease", "RenewLease", "MarkSending", "Create"]
    assert [[*move.receipts] for move in world.journal.moves if hasattr(move, "receipts")] == [
        ["one"],
        ["one", "two"],
        ["one", "two", "funds_hold"],
    ]


async def test_a_receipt_of_none_is_a_receipt(world: World):
    await world.create(hooks=[a_check, another_check, world.bank.hold])

    assert (await world.entry()).receipts.keys() == {"a_check", "another_check", "funds_hold"}
    assert (await world.entry()).receipts["a_check"] is None


async def test_every_passed_hook_is_published_with_its_duration(world: World):
    world.bank.on_place = world.passing(3.0)
    await world.create(hooks=[a_check, world.bank.hold])

    assert [(event.hook, event.took) for event in world.events_of(HookPassed)] == [
        ("a_check", 0.0),
        ("funds_hold", 3.0),
    ]


# --- how they fail ------------------------------------------------------------------------------


async def test_a_hook_that_raises_preflight_failed_is_not_undone(world: World):
    no = PreflightFailed("not today")
    first, second = world.bank.step("one"), world.bank.step("two", error=no)
    failed = await world.fails(PreflightFailed, hooks=[first, second, world.bank.hold])

    assert str(failed) == str(no)
    assert (failed.refused, failed.hook) == (True, "two")
    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, False)
    assert world.bank.log == ["one", "two", "undo one"]
    assert set(failed.receipts) == {"one"}


async def test_a_hook_that_fails_unexpectedly_is_undone_without_a_receipt(world: World):
    broken = world.bank.step("check", error=RuntimeError("secret details"))
    failed = await world.fails(PreflightFailed, hooks=[broken, world.bank.hold])

    assert not failed.refused
    assert failed.hook == "check"
    assert isinstance(failed.__cause__, RuntimeError)
    assert "secret" not in str(failed)
    assert broken.undone == [((await world.entry()).intent_id, None)]
    assert not world.bank.placed


async def test_a_plain_function_that_raises_stops_the_order(world: World):
    async def check(intent: Any) -> None:
        raise LookupError

    failed = await world.fails(PreflightFailed, hooks=[check, world.bank.hold])

    assert not failed.refused
    assert "MarkUndone" not in world.journal.kinds  # there was nothing to undo


@pytest.mark.parametrize("returned", [False, True, 0, "", "not within the limits"])
async def test_a_plain_function_that_returns_a_value_stops_the_order(world: World, returned: object):
    """Otherwise an order that a check meant to stop with ``return False`` is paid."""

    async def within_limits(intent: Any) -> Any:
        return returned

    failed = await world.fails(
        PreflightFailed,
        match=rf"returned a {type(returned).__name__}: .* None",
        hooks=[within_limits, world.bank.hold],
    )

    assert (failed.refused, failed.hook) == (False, "within_limits")
    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, False)
    assert "not within the limits" not in str(failed)
    assert not world.bank.placed
    assert not world.sandbox.requests


async def test_a_hold_that_fails_unexpectedly_is_released_by_its_intent(world: World):
    async def break_late(_: object) -> None:
        raise ConnectionError

    world.bank.on_placed = break_late
    failed = await world.fails(HoldFailed)

    assert (failed.refused, failed.order_may_exist) == (False, False)
    assert isinstance(failed.__cause__, ConnectionError)
    assert world.bank.released == [(world.bank.placed[0], None)]
    assert not world.bank.open


async def test_a_hold_that_reports_nothing_placed_is_not_released(world: World):
    world.bank.place_error = HoldFailed("not enough funds")
    failed = await world.fails(HoldFailed)

    assert failed.refused
    assert world.bank.log == ["place"]
    assert (await world.entry()).state is KeyState.FREE


@pytest.mark.parametrize("reference", ["", "  ", 7, b"hold"])
async def test_an_invalid_hold_reference_fails_and_is_undone_without_a_receipt(
    world: World, reference: object
):
    world.bank.reference = reference
    failed = await world.fails(HoldFailed)

    assert (failed.refused, failed.hook) == (False, "funds_hold")
    assert failed.receipts == {}
    assert world.bank.released == [(world.bank.placed[0], None)]
    assert not world.sandbox.requests


async def test_a_hook_that_cancels_itself_fails_without_cancelling_the_caller(world: World):
    world.bank.place_error = asyncio.CancelledError()
    failed = await world.fails(HoldFailed)

    assert isinstance(failed.__cause__, asyncio.CancelledError)
    assert world.bank.log == ["place", "release"]


async def test_another_library_error_from_a_hook_is_not_taken_as_the_orders_outcome(world: World):
    world.bank.place_error = Refused(status=422)
    failed = await world.fails(HoldFailed)

    assert failed.outcome is Outcome.NOT_SENT


async def test_one_refusal_raised_for_many_calls_is_copied_for_each(world: World):
    no = PreflightFailed("over the limit")

    async def limit(intent: OrderIntent) -> None:
        raise no

    async with world.client(hooks=[limit, world.bank.hold]) as client:
        calls = [client.create_order(new_order(), key=f"k{number}") for number in range(3)]
        errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [error.key for error in errors] == ["k0", "k1", "k2"]
    assert no.key is None


@pytest.mark.parametrize("refused", [True, False])
async def test_a_hold_that_raises_preflight_failed_is_a_failed_hold(world: World, refused: bool):
    world.bank.place_error = PreflightFailed("the ledger says no", refused=refused)
    failed = await world.fails(HoldFailed, match="the ledger says no")

    assert (failed.refused, failed.hook) == (refused, "funds_hold")
    assert world.bank.log == ["place"]
