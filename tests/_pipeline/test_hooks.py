import asyncio
from typing import Any

import pytest
from attrs import frozen

from tests.support.bank import Bank, World, new_order
from tests.support.bank import world as world_of_a_bank
from tests.support.cases import each
from transfer_async import (
    BeneficiaryNotVerified,
    FundsHold,
    HoldFailed,
    HookPassed,
    KeyState,
    MatchResult,
    NotVerifiedReason,
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


def test_an_async_function_or_callable_object_is_a_hook_with_its_own_name():
    class Check:
        async def __call__(self, intent: Any) -> None:
            """Let everything pass."""

    hooks = checked_hooks([a_check, Check()])

    assert [hook.name for hook in hooks] == ["a_check", "Check"]
    for hook in hooks:
        assert isinstance(hook, PlainHook)
        assert isinstance(hook, PreflightHook)
        assert not is_hold(hook)


BANK = Bank()
NUMBER: Any = 7


@each(
    ("hooks", "why"),
    [
        ([BANK.step("same"), BANK.step("same"), BANK.hold], "used more than once: same"),
        ([a_check, a_check], "used more than once: a_check"),
        ([BANK.step("held")], "'held' is reserved"),
        ([BANK.step("")], "needs a name"),
        ([BANK.step(NUMBER)], "needs a name"),
        ([BANK.hold, BANK.step("check")], "pass it last"),
        (
            [BANK.hold, FundsHold(BANK.place, BANK.release, name="two")],
            "pass at most one hold hook, and pass it last",
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


# --- how they run -------------------------------------------------------------------------------


async def test_each_receipt_is_recorded_with_the_next_transition_and_published(world: World):
    """A plain hook's receipt of None is recorded with the next transition: a plain hook costs no commit."""
    world.bank.on_place = world.passing(3.0)
    await world.create(hooks=[world.bank.step("one"), a_check, world.bank.step("two"), world.bank.hold])

    assert world.journal.kinds == ["Claim", "RenewLease", "RenewLease", "MarkSending", "Create"]
    assert [[*move.receipts] for move in world.journal.moves if hasattr(move, "receipts")] == [
        ["one"],
        ["one", "a_check", "two"],
        ["one", "a_check", "two", "funds_hold"],
    ]
    assert (await world.entry()).receipts["a_check"] is None
    assert [(event.hook, event.took) for event in world.events_of(HookPassed)] == [
        ("one", 0.0),
        ("a_check", 0.0),
        ("two", 0.0),
        ("funds_hold", 3.0),
    ]


# --- how they fail ------------------------------------------------------------------------------


@frozen
class Failing:
    """A hook that raises, and the resulting error of the call.

    Args:
        hook: the hook that raises: the check "two", the hold before it places anything, or the hold after it.
        error: the error that the hook raises.
        undone: whether the hook may have had an effect, so that it is undone although it has no receipt.
        kind: the class of the call's error.
        refused: whether the call's error is a refusal by the bank.
    """

    hook: str
    error: BaseException
    undone: bool
    kind: type[PreflightFailed]
    refused: bool = False


FAILING = {
    "a check that did nothing": Failing("two", PreflightFailed("not today"), False, PreflightFailed, True),
    "a check that breaks": Failing("two", RuntimeError("secret details"), True, PreflightFailed),
    "a hold that placed nothing": Failing("place", HoldFailed("not enough funds"), False, HoldFailed, True),
    "a hold with a check's refusal": Failing("place", PreflightFailed("not today"), False, HoldFailed, True),
    "a hold with a check's failure": Failing(
        "place", PreflightFailed("not today", refused=False), False, HoldFailed
    ),
    "a hold that breaks late": Failing("placed", ConnectionError("secret details"), True, HoldFailed),
    "a hold that cancels itself": Failing("place", asyncio.CancelledError(), True, HoldFailed),
    "a hold that waits and cancels itself": Failing("placed", asyncio.CancelledError(), True, HoldFailed),
    "a hold with another call's refusal": Failing("place", Refused(status=422), True, HoldFailed),
}


@pytest.mark.parametrize("row", FAILING.values(), ids=FAILING)
async def test_a_hook_that_raises_stops_the_order_and_is_undone_unless_it_did_nothing(
    world: World, row: Failing
):
    async def break_late(_: object) -> None:
        await asyncio.sleep(0)
        raise row.error

    first, second = world.bank.step("one"), world.bank.step("two", error=row.error)
    hooks = [first, *([second] if row.hook == "two" else []), world.bank.hold]
    world.bank.place_error = row.error if row.hook == "place" else None
    world.bank.on_placed = break_late if row.hook == "placed" else None
    failed = await world.fails(PreflightFailed, hooks=hooks)
    intent_id = (await world.entry()).intent_id

    assert (type(failed), failed.refused) == (row.kind, row.refused)
    assert failed.hook == ("two" if row.hook == "two" else "funds_hold")
    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, False)
    assert set(failed.receipts) == {"one"}
    assert second.undone + world.bank.released == [(intent_id, None)] * row.undone
    assert first.undone == [(intent_id, f"one-{intent_id}")]
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open
    if isinstance(row.error, PreflightFailed):
        assert str(failed) == str(row.error)
    else:
        assert type(failed.__cause__) is type(row.error)
        assert str(failed) == f"the hook {failed.hook!r} failed ({type(row.error).__name__})"


@each("returned", [False, True, 0, "", "not within the limits"])
async def test_a_plain_function_that_returns_a_value_stops_the_order(world: World, returned: object):
    """Without this, an order that a check tries to stop with ``return False`` is paid."""

    async def within_limits(intent: Any) -> Any:
        return returned

    match = rf"returned a {type(returned).__name__}: .* None"
    failed = await world.fails(PreflightFailed, match=match, hooks=[within_limits, world.bank.hold])

    assert (failed.refused, failed.hook) == (False, "within_limits")
    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, False)
    assert "not within the limits" not in str(failed)
    assert not world.bank.placed
    assert not world.sandbox.requests
    assert "MarkUndone" not in world.journal.kinds  # there was nothing to undo


@pytest.mark.parametrize("reference", ["", "  ", 7, b"hold"])
async def test_an_invalid_hold_reference_fails_and_is_undone_without_a_receipt(
    world: World, reference: object
):
    world.bank.reference = reference
    failed = await world.fails(HoldFailed)

    why = "the hold hook returned no reference: return a string"
    if not isinstance(reference, str):
        why = f"a hook's receipt must be a string or None, not a {type(reference).__name__}"
    assert (str(failed), failed.refused, failed.hook) == (why, False, "funds_hold")
    assert failed.receipts == {}
    assert world.bank.released == [(world.bank.placed[0], None)]
    assert not world.sandbox.requests


async def test_one_refusal_raised_for_many_calls_is_copied_for_each(world: World):
    no = PreflightFailed("over the limit")

    async def limit(intent: OrderIntent) -> None:
        raise no

    async with world.client(hooks=[limit, world.bank.hold]) as client:
        calls = [client.create_order(new_order(), key=f"k{number}") for number in range(3)]
        errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [error.key for error in errors] == ["k0", "k1", "k2"]
    assert no.key is None


class Bare(BeneficiaryNotVerified):
    """A bank's error class whose constructor does not call that of its base class."""

    def __init__(self) -> None:
        Exception.__init__(self, "not on the list")


class NotCopied(BeneficiaryNotVerified):
    def __copy__(self) -> Any:
        raise RuntimeError


def unverified(
    kind: type[BeneficiaryNotVerified] = BeneficiaryNotVerified, **changes: Any
) -> PreflightFailed:
    error = kind("not on the list", result=MatchResult.NO_MATCH, reason=NotVerifiedReason.OTHER_NAME)
    for name, value in changes.items():
        setattr(error, name, value)
    return error


@each(
    ("error", "kind", "result", "refused"),
    [
        (unverified(), BeneficiaryNotVerified, MatchResult.NO_MATCH, True),
        (Bare(), Bare, MatchResult.NOT_POSSIBLE, False),
        (unverified(NotCopied), BeneficiaryNotVerified, MatchResult.NOT_POSSIBLE, False),
        (unverified(refused="yes"), BeneficiaryNotVerified, MatchResult.NOT_POSSIBLE, False),
        (unverified(result="no match"), BeneficiaryNotVerified, MatchResult.NOT_POSSIBLE, False),
        (unverified(reason="a list"), BeneficiaryNotVerified, MatchResult.NOT_POSSIBLE, False),
    ],
)
async def test_a_banks_own_error_has_every_attribute_or_is_replaced(
    error: PreflightFailed, kind: type, result: MatchResult, refused: bool
):
    """A worker decides by these attributes. Without them, it would retry or acknowledge by mistake."""

    async def check(intent: Any) -> None:
        raise error

    async with world_of_a_bank() as world:
        failed = await world.fails(BeneficiaryNotVerified, hooks=[check, world.bank.hold])

    assert type(failed) is kind
    assert (failed.result, failed.refused, failed.hook) == (result, refused, "check")
    assert (str(failed), failed.outcome, failed.key) == ("not on the list", Outcome.NOT_SENT, "k")
