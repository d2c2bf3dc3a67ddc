import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from attrs import frozen
from msgspec.structs import replace

from tests.support import bank as banks
from tests.support import journalling
from tests.support.bank import NOON, Gate, World, new_order, other_order, refused_order
from tests.support.ids import stable_repr
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async import (
    NO_ORDER,
    AlreadyCreated,
    BeneficiaryNotVerified,
    CauseKind,
    ConnectionFailed,
    Expired,
    HoldFailed,
    HoldRequired,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    KeyState,
    MatchResult,
    NewOrder,
    NotSent,
    Order,
    OrderCreated,
    OrderInDoubt,
    OrderIntent,
    OrderRefused,
    Outcome,
    OutcomeUnknown,
    PersonName,
    PreflightFailed,
    RateLimited,
    RecoveryReport,
    Refused,
    RetryBudget,
    RetryPolicy,
    RetryScheduled,
    TokenUnavailable,
    TransferError,
    Unauthorized,
    UnreadableOrder,
)
from transfer_async._models.events import (
    AttemptFailed,
    AttemptStarted,
    Claimed,
    DuplicateSuspected,
    OrderUnrecorded,
)
from transfer_async._pipeline import create_order, outcomes
from transfer_async.journal import model, transitions
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import (
    AnotherOrder,
    CloseAfterProcessing,
    Fault,
    StallAfterProcessing,
    Status,
    StatusAfterProcessing,
    WrongTypes,
)

BUSY = Status(429, headers={"Retry-After": "2"})


# --- the happy way ------------------------------------------------------------------------------


async def test_an_order_is_claimed_held_marked_sent_and_settled_in_this_order(world: World):
    order = await world.create()

    assert [*world.sandbox.orders] == [order.id]
    assert world.journal.kinds == ["Claim", "MarkSending", "Create"]
    assert await world.history() == ["claim: claimed", "mark: sending", "create: created"]
    assert len(world.bank.open) == 1
    (event,) = world.events_of(OrderCreated)
    assert (event.order_id, event.status) == (order.id, 200)


async def test_the_sending_mark_is_recorded_before_the_request_arrives(world: World):
    async with world.client() as client:
        call = await world.stalled(client.create_order(new_order(), key="k"))
        at_arrival = await world.entry()
        world.sandbox.faults.release()
        await call

    assert at_arrival.state is KeyState.SENDING
    assert at_arrival.receipts == {"funds_hold": f"hold-{at_arrival.intent_id}"}


# --- claim --------------------------------------------------------------------------------------


async def test_a_created_key_returns_its_order_without_a_request_past_every_limit(world: World):
    """A redelivery may have another balance, another spelling or an outdated time limit."""
    same = new_order(
        poster_username="ADA.Eze@example.com",
        poster_amount="155025.0",
        matcher_amount=100,
        external_order=banks.external_order(current_account_balance="1.00"),
    )
    past = NOON - timedelta(days=1)
    first, again = await world.create(), await world.create(same)
    late = await world.create(send_before=past, deadline=past, hooks=())

    assert again == late == first
    assert len(world.sandbox.requests) == len(world.bank.placed) == 1


async def test_a_key_bound_to_a_different_order_is_a_conflict(world: World):
    await world.create()
    conflict = await world.fails(KeyConflict, other_order())

    assert (conflict.outcome, conflict.order_may_exist, conflict.key) == (Outcome.NOT_SENT, True, "k")
    assert len(world.sandbox.orders) == 1


@pytest.mark.parametrize(("order", "kind"), [(new_order(), KeyBusy), (other_order(), KeyConflict)])
async def test_a_call_that_never_held_the_key_says_that_its_order_may_exist(
    world: World, order: NewOrder, kind: type[TransferError]
):
    """The call cannot know what other calls sent, even if the key is free again."""
    await world.crash(transitions.MarkSending)

    async def others_end(_: object) -> None:
        del world.journal.after[transitions.Claim]
        ending = model.Ending(outcome=Outcome.NOT_SENT, error="Cancelled")
        intent_id = (await world.entry()).intent_id
        await world.move(
            transitions.Release(
                intent_id=intent_id, epoch=1, attempt=None, ending=ending, pending_undos=(), lease=0.0
            )
        )

    world.journal.after[transitions.Claim] = others_end
    error = await world.fails(kind, order)

    assert (await world.entry()).state is KeyState.FREE
    assert error.order_may_exist


async def test_fifty_concurrent_calls_with_one_key_create_one_order(world: World):
    async with world.client() as client:
        calls = (client.create_order(new_order(), key="k") for _ in range(50))
        results = await asyncio.gather(*calls, return_exceptions=True)
    busy = [result for result in results if isinstance(result, KeyBusy)]

    assert len(world.sandbox.orders) == len(world.bank.placed) == 1
    assert sum(isinstance(result, Order) for result in results) == 1
    assert [(error.retry_after, error.order_may_exist) for error in busy] == [(60.0, True)] * 49


async def test_a_key_in_doubt_is_neither_sent_nor_held_again(world: World, caplog: pytest.LogCaptureFixture):
    world.sandbox.faults.add(CloseAfterProcessing())
    first = await world.fails(OutcomeUnknown)
    again = await world.fails(OutcomeUnknown)

    assert (await world.entry()).state is KeyState.IN_DOUBT
    for doubt in (first, again):
        assert (doubt.outcome, doubt.order_may_exist, doubt.key) == (Outcome.UNKNOWN, True, "k")
        assert doubt.receipts == {"funds_hold": world.bank.open[world.bank.placed[0]]}
    assert str(again).startswith("an earlier call with this key is in doubt; this call sent nothing")
    assert "resolve did not return" not in caplog.text
    assert again.attempts == ()
    assert [(event.error, event.status) for event in world.events_of(OrderInDoubt)] == [
        ("OutcomeUnknown", None)
    ]
    assert len(world.sandbox.requests) == len(world.bank.placed) == 1


async def seen(*_: object) -> str:
    return "tx-seen"


async def test_a_key_with_only_a_known_order_id_is_already_created(world: World):
    await world.in_doubt()
    first = await world.fails(AlreadyCreated, resolve=seen)
    again = await world.fails(AlreadyCreated)

    for created in (first, again):
        assert (created.order_id, created.outcome, created.order_may_exist) == (
            "tx-seen",
            Outcome.CREATED,
            True,
        )
        assert created.receipts == {"funds_hold": f"hold-{world.bank.placed[0]}"}
    assert len(world.sandbox.requests) == 1


async def test_a_key_is_free_for_another_order_after_a_definite_failure(world: World):
    world.sandbox.faults.add(Status(422))
    await world.fails(Refused)
    order = await world.create(other_order())

    first, second = world.bank.placed
    assert first != second
    assert [*world.bank.open] == [second]
    assert (await world.entry()).order_id == order.id


async def test_known_returns_a_copy_of_a_keys_state(world: World):
    async with world.client() as client:
        before = await client.known("k")
        order = await client.create_order(new_order(), key="k", held="H1")
        after = await client.known("k")
        assert after is not None
        shown = (after.state, after.order, after.order_id, after.held, dict(after.receipts), after.intent_id)
        after.receipts.clear()
        again = await client.known("k")

    assert before is None
    intent_id = (await world.entry()).intent_id
    assert shown == (KeyState.CREATED, order, order.id, "H1", {"held": "H1"}, intent_id)
    assert again is not None
    assert again.receipts == {"held": "H1"}


async def test_the_client_generates_a_missing_key_and_the_error_has_it(world: World):
    world.sandbox.faults.add(CloseAfterProcessing())
    doubt = await world.fails(OutcomeUnknown, key=None)

    assert doubt.key
    assert (await world.entry(doubt.key)).state is KeyState.IN_DOUBT


# --- the hold -----------------------------------------------------------------------------------


async def test_a_call_without_a_hold_hook_and_without_held_is_refused_and_the_key_is_free(world: World):
    required = await world.fails(HoldRequired, hooks=[world.bank.step("check")])

    assert (required.outcome, required.order_may_exist) == (Outcome.NOT_SENT, False)
    assert (await world.entry()).state is KeyState.FREE
    assert (world.bank.log, [*world.sandbox.requests]) == ([], [])


async def test_with_held_the_hold_hook_is_not_run_and_the_reference_is_recorded(world: World):
    hooks = [world.bank.step("check"), world.bank.hold]
    refused = await world.fails(Refused, refused_order(), held="H1", hooks=hooks)
    entry = await world.entry()

    assert world.bank.log == ["check", "undo check"]
    assert refused.receipts == {"check": f"check-{entry.intent_id}", "held": "H1"}
    assert entry.held == "H1"


# --- order_may_exist, key, attempts and receipts of every error ----------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "outcome", "may_exist"),
    [
        (Status(422), Refused, Outcome.REFUSED, False),
        (Status(401), Unauthorized, Outcome.REFUSED, False),
        (BUSY, RateLimited, Outcome.REFUSED, False),
        (StatusAfterProcessing(503), OutcomeUnknown, Outcome.UNKNOWN, True),
        (CloseAfterProcessing(), OutcomeUnknown, Outcome.UNKNOWN, True),
        (WrongTypes(), UnreadableOrder, Outcome.UNKNOWN, True),
        (AnotherOrder(), UnreadableOrder, Outcome.UNKNOWN, True),
    ],
    ids=stable_repr,
)
async def test_the_error_of_an_answer_has_its_key_attempts_and_receipts(
    world: World, fault: Fault, error: type, outcome: Outcome, may_exist: bool
):
    """tests/faults/test_failure_table.py covers all responses and their errors."""
    world.sandbox.faults.add(fault, times=None)
    failure = await world.fails(error, retry=RetryPolicy(attempts=2))

    assert type(failure) is error
    assert (failure.outcome, failure.order_may_exist) == (outcome, may_exist)
    assert bool(world.bank.open) is may_exist
    assert failure.receipts == {"funds_hold": f"hold-{world.bank.placed[0]}"}
    assert failure.key == "k"
    assert len(failure.attempts) == (2 if error is RateLimited else 1)
    assert failure.attempts[-1].outcome is outcome


async def test_an_order_whose_connection_is_refused_was_not_sent_and_is_undone(closed_port: int):
    async with banks.world(port=closed_port) as world, world.client() as client:
        await world.sandbox.__aexit__(None, None, None)
        failed = await banks.failure(client.create_order(new_order(), key="k"))

    assert isinstance(failed, ConnectionFailed)
    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, False)
    assert [attempt.number for attempt in failed.attempts] == [1, 2, 3, 4]
    assert {attempt.outcome for attempt in failed.attempts} == {Outcome.NOT_SENT}
    assert not world.bank.open
    assert world.events_of(NotSent)[0].error == "ConnectionFailed"
    assert (await world.entry()).state is KeyState.FREE


async def test_a_refusal_is_published_once_it_is_recorded(world: World):
    await world.fails(Refused, refused_order())

    (event,) = world.events_of(OrderRefused)
    assert (event.status, event.error) == (422, "Refused")
    assert world.journal.kinds == ["Claim", "MarkSending", "Release", "MarkUndone"]
    assert (await world.entry()).ending == model.Ending(
        outcome=Outcome.REFUSED, error="Refused", status=422, fields=("poster_recipient_username",)
    )


# --- the answer must be to our question ----------------------------------------------------------


async def test_an_answer_with_a_lower_amount_is_refused_for_whole_units_too(world: World):
    """100 has no decimal places, so a tolerance of one unit would accept 99: an underpayment."""
    whole = new_order(matcher_amount=100, poster_amount="155025")
    for key, less in (("a", {"matcher_amount": 99}), ("b", {"poster_amount": Decimal("155024.985")})):
        world.sandbox.faults.add(WrongTypes(less))
        doubt = await world.fails(UnreadableOrder, whole, match="a different order", key=key)

        assert (doubt.status, doubt.kind) == (200, CauseKind.UNREADABLE_ANSWER)
        assert b'"poster_amount"' in (doubt.raw or b"")


async def test_an_order_id_bound_to_another_key_is_a_doubt(world: World):
    first = await world.create(key="first")
    world.sandbox.faults.add(WrongTypes({"id": first.id}))
    doubt = await world.fails(OutcomeUnknown)

    assert str(doubt).startswith("the response contains the order of another key")
    assert doubt.kind is CauseKind.UNREADABLE_ANSWER
    assert json.loads(doubt.raw or b"")["id"] == first.id
    assert doubt.attempts[-1].outcome is Outcome.UNKNOWN
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert (await world.entry("first")).order_id == first.id
    assert len(world.bank.open) == 2


async def test_an_unreadable_order_carries_its_id_if_one_can_be_found(world: World):
    world.sandbox.faults.add(Status(200, body='{"id": "tx-7"}', headers={"X-Request-Id": "r-1"}))
    doubt = await world.fails(UnreadableOrder)

    assert (doubt.order_id, doubt.status, doubt.request_id) == ("tx-7", 200, "r-1")


# --- the send limit, and attempts -------------------------------------------------------------------


async def test_the_send_limit_starts_before_the_mark_and_excludes_hooks(world: World):
    world.bank.on_place = world.passing(25.0)
    await world.create()

    assert (await world.entry()).sent_until == 1025.0 + 30.0


async def test_an_order_is_not_sent_if_writing_the_mark_exceeds_the_send_limit(world: World):
    world.journal.after[transitions.MarkSending] = world.passing(31.0)
    failed = await world.fails(ConnectionFailed)

    assert not failed.order_may_exist
    assert not world.sandbox.requests
    assert not world.bank.open


async def test_an_order_that_was_not_processed_is_retried_under_the_same_mark(world: World):
    world.sandbox.faults.add(BUSY)
    world.sandbox.faults.add(Status(429, headers={"Retry-After": "Mon, 06 May 2024 12:00:12 GMT"}))
    async with world.client() as client:
        banks.connects_slowly(client, world.time, 1.5)
        order = await client.create_order(new_order(), key="k")

    assert world.journal.kinds == ["Claim", "MarkSending", "Create"]
    assert world.time.slept == [2.0, 12.0 - 1.5 - 2.0 - 1.5]
    assert [event.pause for event in world.events_of(RetryScheduled)] == world.time.slept
    assert [event.attempt for event in world.events_of(AttemptStarted)] == [1, 2, 3]
    assert [event.status for event in world.events_of(AttemptFailed)] == [429, 429]
    assert [(event.order_id, event.took) for event in world.events_of(OrderCreated)] == [(order.id, 1.5)]
    assert [*world.sandbox.orders] == [order.id]


async def test_the_history_of_attempts_has_number_status_time_and_request_id(world: World):
    world.sandbox.faults.add(Status(429, headers={"X-Request-Id": "r-1", "Retry-After": "2"}))
    world.sandbox.faults.add(Status(422, headers={"X-Request-Id": "r-2"}))
    async with world.client() as client:
        banks.connects_slowly(client, world.time, 1.5)
        refused = await banks.failure(client.create_order(new_order(), key="k"), Refused)

    assert [(one.number, one.status, one.request_id, one.error) for one in refused.attempts] == [
        (1, 429, "r-1", "RateLimited"),
        (2, 422, "r-2", "Refused"),
    ]
    assert [(one.began, one.seconds) for one in refused.attempts] == [
        (NOON, 1.5),
        (NOON + timedelta(seconds=3.5), 1.5),
    ]
    assert [event.request_id for event in world.events_of(AttemptFailed)] == ["r-1", "r-2"]


async def test_a_created_order_refills_the_retry_budget(world: World):
    world.sandbox.faults.add(BUSY)
    policy = RetryPolicy(budget=RetryBudget(capacity=5, throttle_cost=5, refund=5))
    async with world.client(retry=policy) as client:
        await client.create_order(new_order(), key="a")
        world.sandbox.faults.add(BUSY)
        await client.create_order(new_order(), key="b")

    assert len(world.sandbox.orders) == 2


# --- the token ----------------------------------------------------------------------------------


class Tokens:
    """A token callable that first returns an outdated token."""

    def __init__(self, world: World, *answers: Any) -> None:
        self.world = world
        self.answers = list(answers) or ["old", world.sandbox.token]
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_after_a_401_the_order_is_sent_once_more_with_a_new_token(world: World):
    tokens = Tokens(world)
    order = await world.create(token=tokens)

    assert tokens.asked == 2
    assert order.id in world.sandbox.orders
    assert [event.attempt for event in world.events_of(AttemptStarted)] == [1, 2]
    assert world.journal.kinds == ["Claim", "MarkSending", "Create"]


@pytest.mark.parametrize(
    ("tokens", "limit", "sent", "cause"),
    [
        pytest.param(["old", "older", "oldest"], 4, 2, type(None), id="a second 401"),
        pytest.param(["old", "older"], 1, 1, type(None), id="at the attempt limit"),
        pytest.param(["old", OSError("no vault")], 4, 1, TokenUnavailable, id="no new token"),
    ],
)
async def test_a_401_without_another_resend_is_a_refusal(
    world: World, tokens: list[Any], limit: int, sent: int, cause: type
):
    retry = RetryPolicy(attempts=limit)
    unauthorized = await world.fails(Unauthorized, token=Tokens(world, *tokens), retry=retry)

    assert len(unauthorized.attempts) == sent
    assert (unauthorized.outcome, unauthorized.order_may_exist) == (Outcome.REFUSED, False)
    assert type(unauthorized.__cause__) is cause
    assert not world.bank.open


async def test_after_a_401_without_a_retry_the_next_call_gets_a_token_before_its_hooks(world: World):
    asked: list[int] = []

    async def token() -> str:
        asked.append(len(world.bank.placed))
        return world.sandbox.token if len(asked) > 1 else "expired"

    async with world.client(token=token, retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(Unauthorized):
            await client.create_order(new_order(), key="k")
        await client.create_order(new_order(), key="k")

    assert asked == [0, 1]


async def test_a_failing_token_callable_raises_before_the_mark(world: World):
    unavailable = await world.fails(TokenUnavailable, token=Tokens(world, OSError("no vault")))

    assert (unavailable.outcome, unavailable.order_may_exist) == (Outcome.NOT_SENT, False)
    assert "MarkSending" not in world.journal.kinds
    assert not world.bank.open
    assert "no vault" not in str(unavailable)


async def test_a_new_token_is_not_awaited_beyond_the_limit_of_all_attempts(world: World):
    """Without this limit, the lease expires, and a concurrent call finds a doubt."""
    tokens = ["old"]

    async def token() -> str:
        if not tokens:
            await asyncio.Event().wait()
        return tokens.pop()

    def late(event: object) -> None:
        if isinstance(event, RetryScheduled):
            world.time.pass_(RetryPolicy().deadline - event.pause - MUST_RUN_OUT)

    async with asyncio.timeout(10.0):  # fail instead of hanging
        unauthorized = await world.fails(Unauthorized, token=token, observers=[late])

    assert (tokens, unauthorized.outcome) == ([], Outcome.REFUSED)
    assert not world.bank.open


# --- crashes, take-overs, leases --------------------------------------------------------------------


async def test_a_live_claim_is_not_taken_over(world: World):
    await world.crash(transitions.MarkSending)
    world.time.pass_(59.9)

    assert (await world.fails(KeyBusy)).retry_after == pytest.approx(0.1)


async def test_an_expired_claim_is_taken_over_with_its_intent(world: World):
    intent_id = await world.abandoned(transitions.MarkSending)
    order = await world.create(hooks=[world.bank.step("added check"), world.bank.hold])

    entry = await world.entry()
    assert (entry.intent_id, entry.epoch, entry.order_id) == (intent_id, 2, order.id)
    # Both calls use the same intent id, so the bank places one hold.
    assert world.bank.log == ["place", "added check", "place"]
    assert world.bank.placed == [intent_id, intent_id]
    assert [*world.bank.open] == [intent_id]
    assert [event.taken_over for event in world.events_of(Claimed)] == [False, True]


async def test_a_hook_with_a_recorded_receipt_is_not_run_again(world: World):
    hooks = [world.bank.step("check"), world.bank.hold]
    await world.abandoned(transitions.MarkSending, hooks=hooks)
    await world.create(hooks=hooks)

    # The last receipt was to be stored with the mark, so it was lost.
    assert world.bank.log == ["check", "place", "place"]
    assert set((await world.entry()).receipts) == {"check", "funds_hold"}


async def test_everything_a_dead_worker_may_have_done_is_undone_after_a_definite_failure(world: World):
    hooks = [world.bank.step("check"), world.bank.hold]
    intent_id = await world.abandoned(transitions.MarkSending, hooks=hooks)
    world.bank.place_error = TimeoutError()
    await world.fails(HoldFailed, hooks=hooks)

    assert world.bank.log[-2:] == ["release", "undo check"]
    assert not world.bank.open
    assert (await world.entry()).intent_id == intent_id


@pytest.mark.parametrize(
    ("held", "log"),
    [
        (None, ["check", "place", "release", "undo check", "check", "place"]),
        ("H1", ["check", "undo check", "check"]),
    ],
)
async def test_a_stale_claim_is_undone_in_reverse_and_a_new_intent_begins(
    world: World, held: str | None, log: list[str]
):
    hooks = [world.bank.step("check"), world.bank.hold]
    old = await world.crash(transitions.MarkSending, hooks=hooks, held=held)
    world.time.pass_(900.1)
    await world.create(hooks=hooks, held=held)

    entry = await world.entry()
    assert world.bank.log == log
    assert [intent_id for intent_id, _ in world.bank.released] == [old] * (held is None)
    assert [*world.bank.open] == [entry.intent_id] * (held is None)
    assert entry.intent_id != old
    assert entry.pending_undos == ()


async def test_a_takeover_with_held_still_undoes_the_dead_workers_hold_hook(world: World):
    intent_id = await world.abandoned(transitions.MarkSending)
    expired = await world.fails(Expired, held="H1", send_before=NOON)

    assert expired.receipts == {"held": "H1"}
    assert world.bank.released == [(intent_id, None)]
    assert (await world.entry()).held == "H1"


BEN, MALLORY = PersonName("Ben", "Okri"), PersonName("Mallory", "Eze")


@pytest.mark.parametrize(("first", "then"), [(BEN, MALLORY), (BEN, None), (None, MALLORY)])
async def test_a_verification_of_one_beneficiary_is_not_used_for_another(
    world: World, first: PersonName | None, then: PersonName | None
):
    """Without this, a redelivery with another name is paid although only the first name was checked."""
    asked: list[PersonName | None] = []

    async def verify(intent: OrderIntent) -> str:
        asked.append(intent.beneficiary)
        if intent.beneficiary == MALLORY:
            raise BeneficiaryNotVerified(result=MatchResult.NO_MATCH)
        return "match"

    check: Any = world.bank.step("verification")
    check.before, check.nothing_to_undo = verify, True
    hooks = [check, world.bank.hold]
    old = await world.abandoned(transitions.MarkSending, hooks=hooks, beneficiary=first)
    async with world.client(hooks=hooks) as client:
        call = client.create_order(new_order(), key="k", beneficiary=then)
        (result,) = await asyncio.gather(call, return_exceptions=True)

    assert asked == [first, then]
    assert isinstance(result, BeneficiaryNotVerified if then is MALLORY else Order)
    assert len(world.sandbox.requests) == (then is not MALLORY)
    assert old not in world.bank.open
    assert (await world.entry()).pending_undos == ()


async def test_an_earlier_hold_is_recorded_as_pending_undo_before_sending_with_held(world: World):
    """Without this, the funds are held twice, and the hook's hold is never released."""
    old = await world.abandoned(transitions.MarkSending)
    world.bank.release_error = OSError()
    owed: list[list[str]] = []

    async def look(_: object) -> None:
        owed.append(banks.owed_hooks(await world.entry()))

    world.journal.before[transitions.MarkSending] = look
    order = await world.create(held="H1")
    world.bank.release_error = None
    report = await world.recover()

    assert (owed, report.released, world.bank.open) == ([["funds_hold"]], 1, {})
    entry = await world.entry()
    assert (entry.order_id, entry.held, entry.receipts) == (order.id, "H1", {})
    assert entry.intent_id != old


async def test_the_undo_of_a_hook_that_this_client_lacks_is_recorded_before_sending(world: World):
    """Without this, a reservation made by an older release of the bank's software is never released."""
    check = world.bank.step("check")
    old = await world.abandoned(transitions.MarkSending, hooks=[check, world.bank.hold])
    await world.create()
    owed = banks.owed_hooks(await world.entry())
    report = await world.recover()
    await world.recover(hooks=[check, world.bank.hold])

    assert (owed, report.undos_pending) == (["check"], 1)
    assert check.undone == [(old, f"check-{old}")]
    assert [*world.bank.open] == [(await world.entry()).intent_id]


async def test_a_worker_whose_lease_expired_cannot_send(world: World):
    world.bank.on_placed = world.passing(60.0)
    busy = await world.fails(KeyBusy)

    assert (str(busy), busy.retry_after) == ("the claim's lease expired before the order was sent", 0.0)
    assert not world.sandbox.requests
    # No other worker took the key over.
    assert (busy.outcome, busy.order_may_exist) == (Outcome.NOT_SENT, False)
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


async def quarantined(world: World) -> None:
    entries = world.journal.journal._entries  # type: ignore[attr-defined] # of a journal in memory
    lost: Any = {"state": KeyState.IN_DOUBT, "attempt": "", "intent": None, "lease_until": 0.0}
    entries[world.scope, "k"] = replace(await world.entry(), **lost)


async def test_a_worker_whose_mark_is_denied_frees_no_key_whose_record_was_corrupt(world: World):
    """The key's attempt could not be read, so another worker may have sent the order."""
    world.meanwhile(transitions.MarkSending, partial(quarantined, world))
    busy = await world.fails(KeyBusy)

    assert busy.order_may_exist
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open


async def overtaken(world: World, at: str, seconds: float) -> Order:
    """Pause a worker in its hold while another takes over the key. Return the other worker's order."""
    gate = Gate()

    async def sleep(_: object) -> None:
        setattr(world.bank, at, None)
        world.time.pass_(seconds)
        await gate()

    setattr(world.bank, at, sleep)
    async with world.client() as client, world.client() as other:
        first = await gate.catches(client.create_order(new_order(), key="k"))
        order = await other.create_order(new_order(), key="k")
        gate.open()
        busy = await banks.failure(first, KeyBusy)

    assert busy.order_may_exist
    return order


async def test_a_worker_whose_claim_was_taken_over_changes_nothing(world: World):
    order = await overtaken(world, "on_placed", 60.0)

    assert [*world.sandbox.orders] == [order.id]
    assert world.bank.released == []


async def test_a_late_hold_of_an_intent_ended_by_others_is_undone(world: World):
    reports = []

    async def another_worker_recovers(_: object) -> None:
        if world.bank.released:  # The other worker's first release was called before the hold was placed.
            world.bank.on_release = None
            reports.append(await world.recover())

    world.bank.on_release = another_worker_recovers
    await overtaken(world, "on_place", 900.1)

    assert [*world.bank.open] == [(await world.entry()).intent_id]
    assert reports == [RecoveryReport()]  # The late worker has leased the undo, so recovery skips it.


@pytest.mark.parametrize("error", [RuntimeError(), asyncio.CancelledError()], ids=repr)
async def test_a_late_hold_whose_release_fails_is_released_by_a_recovery(world: World, error: BaseException):
    """Without this, the customer's funds stay held for ever, because the key now has another intent."""

    async def breaks(_: object) -> None:
        world.bank.release_error = error

    world.journal.before[transitions.AddPendingUndos] = breaks
    await overtaken(world, "on_place", 900.1)
    intent_id = (await world.entry()).intent_id
    both = {*world.bank.open}
    world.bank.release_error = None
    report = await world.recover()

    assert len(both) == 2
    assert report.released == 1
    assert [*world.bank.open] == [intent_id]


async def test_a_late_hold_is_released_once_although_its_undo_cannot_be_recorded(world: World):
    world.journal.fail_on = transitions.AddPendingUndos
    await overtaken(world, "on_place", 900.1)

    assert [*world.bank.open] == [(await world.entry()).intent_id]


async def test_a_late_hold_that_a_recovery_has_released_is_not_released_again(world: World):
    async def recovers(_: object) -> None:
        world.time.pass_(60.0)
        assert (await world.recover()).released == 1
        released.extend(world.bank.released)

    released: list[object] = []
    world.journal.after[transitions.AddPendingUndos] = recovers
    await overtaken(world, "on_place", 900.1)

    assert world.bank.released == released != []


async def test_a_worker_whose_lease_expired_between_two_hooks_skips_the_second(world: World):
    check = world.bank.step("check")
    check.act = world.passing(60.0)
    busy = await world.fails(KeyBusy, hooks=[check, world.bank.hold])

    assert busy.retry_after == 0.0
    assert world.bank.log == ["check", "undo check"]


async def answered_late(world: World, *meanwhile: Callable[[], Awaitable[object]]) -> Any:
    """Return the error of a call whose order was created, but whose response arrived after ``steps``."""
    async with world.client() as client:
        call = await world.stalled(client.create_order(new_order(), key="k"))
        for step in meanwhile:
            await step()
        world.sandbox.faults.release()
        failed = await banks.failure(call)
    assert isinstance(failed, JournalFailed)
    return failed


async def test_an_order_answered_after_its_refutation_is_a_suspected_duplicate(
    world: World, caplog: pytest.LogCaptureFixture
):
    failed = await answered_late(world, world.refute)

    assert (failed.outcome, failed.order_may_exist, failed.key) == (Outcome.CREATED, True, "k")
    assert failed.order is not None
    assert [failed.order.id] == [*world.sandbox.orders]
    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == [failed.order.id]
    step = (await world.journal.history(world.scope, "k"))[-1]
    assert (step.move, step.state, step.order_id) == ("create", KeyState.CREATED, failed.order.id)
    assert step.reason == "the order was created after its doubt had been refuted: a duplicate is suspected"
    assert f"the record of the key 'k' contradicts the sender's report: {step.reason}" in caplog.text
    assert (await world.create()).id == failed.order.id
    assert len(world.sandbox.orders) == 1


@pytest.mark.parametrize(
    ("step", "is_done", "kind", "then", "state", "cause"),
    [
        ("preflight", True, PreflightFailed, "", KeyState.FREE, None),
        ("attempt", True, OutcomeUnknown, "", KeyState.IN_DOUBT, (CauseKind.NO_ANSWER, "RuntimeError", 200)),
        ("settle", False, JournalFailed, ": look up the key in the journal", KeyState.SENDING, None),
        ("settle", True, JournalFailed, ": look up the key in the journal", KeyState.CREATED, None),
    ],
    ids=[
        "before the order is sent",
        "after the order was sent",
        "before the order is recorded",
        "after the order was recorded",
    ],
)
async def test_an_unexpected_error_hides_no_order(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_done: bool,
    kind: type,
    then: str,
    state: KeyState,
    cause: Any,
):
    as_it_is = getattr(create_order, step)

    async def breaks(*given: Any) -> object:
        if is_done:
            await as_it_is(*given)
        raise RuntimeError("a slip of our own")

    monkeypatch.setattr(create_order, step, breaks)
    failed = await world.fails(kind)
    entry, is_free = await world.entry(), state is KeyState.FREE

    assert str(failed) == f"the call failed unexpectedly (RuntimeError){then}"
    assert type(failed.__cause__) is RuntimeError
    assert (failed.outcome, failed.key) == (Outcome.NOT_SENT if is_free else Outcome.UNKNOWN, "k")
    assert failed.order_may_exist is not is_free
    assert bool(world.bank.open) is not is_free
    assert entry.state is state
    assert (entry.cause and (entry.cause.kind, entry.cause.error, entry.cause.status)) == cause
    assert getattr(failed, "kind", None) is (cause and cause[0])
    assert not getattr(failed, "refused", False)


def test_keyboard_interrupt_is_passed_on_unchanged():
    end: BaseException = KeyboardInterrupt()
    work: Any = None  # The attribute ``work`` is set only on the package's own errors.

    assert create_order._deliverable(end, work) is end


# --- a sender that wakes up, and does not know its own outcome ------------------------------------


async def refuted_and_taken_again(world: World) -> None:
    await world.refute()
    world.sandbox.faults.clear()
    await world.create()


@pytest.mark.parametrize("superseded", [World.refute, refuted_and_taken_again], ids=["free", "taken again"])
@pytest.mark.parametrize("ended_by", ["its answer is lost", "its caller", "its client"])
async def test_a_superseded_sender_records_its_unknown_outcome(
    world: World, superseded: Callable[[World], Awaitable[None]], ended_by: str
):
    """Without this, two orders may exist for one request, and no record shows it."""
    is_closed = ended_by == "its client"
    world.sandbox.faults.add(StallAfterProcessing() if is_closed else CloseAfterProcessing())
    client = world.made()
    call = asyncio.create_task(client.create_order(new_order(), key="k"))

    async def meanwhile() -> None:
        if ended_by == "its caller":
            call.cancel()
        await superseded(world)

    world.meanwhile(transitions.GoInDoubt, meanwhile)
    if is_closed:
        await world.sandbox.stalled()
        await client.close(timeout=0)
    (result,) = await asyncio.gather(call, return_exceptions=True)
    await client.close()
    intent_id = world.bank.intents[0].id

    (suspected,) = world.events_of(DuplicateSuspected)
    (step,) = [one for one in await world.journal.history(world.scope, "k") if one.move == "suspect"]
    assert (suspected.intent_id, suspected.order_id) == (intent_id, None)
    assert (step.order_id, step.by) == (None, "sender")
    assert "a duplicate is suspected" in (step.reason or "")
    assert not [debt for debt in (await world.entry()).pending_undos if debt.intent.id == intent_id]
    if ended_by == "its answer is lost":
        assert isinstance(result, OutcomeUnknown)
        assert result.order_may_exist


async def refuted_and_refused_since(world: World) -> None:
    await world.refute()
    world.sandbox.faults.clear()
    world.sandbox.faults.add(Status(422))
    await world.fails(Refused)


@pytest.mark.parametrize(
    "superseded", [World.refute, refuted_and_refused_since], ids=lambda way: way.__name__
)
async def test_a_key_is_not_paid_again_if_its_superseded_sender_may_have_sent(
    world: World, superseded: Callable[[World], Awaitable[None]]
):
    """Without this, the key is free although an order of its first intent exists."""
    world.sandbox.faults.add(CloseAfterProcessing())
    world.meanwhile(transitions.GoInDoubt, partial(superseded, world))
    await world.fails(OutcomeUnknown)
    intent, entry = world.bank.intents[0], await world.entry()
    again = await world.fails(OutcomeUnknown)

    assert again.order_may_exist
    assert len(world.sandbox.orders) == 1
    assert (entry.state, entry.intent) == (KeyState.IN_DOUBT, intent)
    assert entry.hooks == ("funds_hold",), "another refutation must release the hold"
    assert entry.receipts == {"funds_hold": f"hold-{intent.id}"} or set(entry.receipts) == {"funds_hold"}
    assert entry.sender_reported


async def test_a_late_answer_binds_a_key_that_was_reused_and_freed(world: World):
    failed = await answered_late(world, partial(refuted_and_refused_since, world))
    again = await world.fails(UnreadableOrder)

    (order_id,) = world.sandbox.orders
    assert (failed.outcome, failed.order_may_exist, again.order_may_exist) == (Outcome.CREATED, True, True)
    assert (await world.entry()).candidates == (order_id,)


async def test_the_newest_of_several_order_ids_is_reported(world: World):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    await world.fails(UnreadableOrder)
    attempt = (await world.entry()).attempt or ""
    await world.move(transitions.GoInDoubt(attempt=attempt, candidate="tx-newest"))

    doubt = await world.fails(UnreadableOrder)
    assert doubt.order_id == "tx-newest"
    assert str(doubt).startswith("an earlier call with this key is in doubt; this call sent nothing")


async def reported_late(world: World, at: type) -> KeyBusy:
    """Let a second call place its hold just before the first call's order or doubt is recorded.

    Return the second call's error.
    """
    placing = Gate()
    second: list[asyncio.Future[Order]] = []
    async with world.client() as client:

        async def others() -> None:
            await world.refute()
            await client.recover()
            world.bank.on_place = placing
            second.append(await placing.catches(client.create_order(new_order(), key="k")))

        world.meanwhile(at, others)
        kind = JournalFailed if at is transitions.Create else OutcomeUnknown
        await banks.failure(client.create_order(new_order(), key="k"), kind)
        placing.open()
        busy: KeyBusy = await banks.failure(second[0], KeyBusy)
    return busy


@pytest.mark.parametrize("reported", [transitions.Create, transitions.GoInDoubt])
async def test_a_reused_key_sends_no_second_order_once_the_first_is_known(world: World, reported: type):
    """Without this, the second call pays again: it has placed its hold and is about to send."""
    if reported is transitions.GoInDoubt:
        world.sandbox.faults.add(CloseAfterProcessing())
    busy = await reported_late(world, reported)
    again = await world.fails(OutcomeUnknown)

    assert (len(world.sandbox.orders), busy.order_may_exist, again.outcome) == (1, True, Outcome.UNKNOWN)
    assert str(busy) == "an earlier call with this key may have created an order; this call sent nothing"
    entry = await world.entry()
    assert (entry.state, entry.is_suspected) == (KeyState.IN_DOUBT, True)
    # The second call's hold covers the order until an operator says that it does not exist.
    assert world.bank.open


async def test_a_person_may_free_a_key_with_a_suspected_order(world: World):
    """Without this, the hold can never be released, because each undo puts the key back in doubt."""
    await reported_late(world, transitions.Create)
    assert world.bank.open
    await world.refute()
    await world.recover()

    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


@pytest.mark.parametrize("resolved", ["before", "after"])
async def test_taking_back_an_id_keeps_the_suspicion_of_another_order(world: World, resolved: str):
    """Without this, a program resolves the doubt without checking the suspected order: a second payment."""

    async def nothing_known(*_: object) -> object:
        return NO_ORDER

    if resolved == "after":
        await reported_late(world, transitions.Create)
        await world.resolve("tx-wrong")
    else:
        await answered_late(world, partial(world.resolve, "tx-wrong"))
    async with world.client(resolve=nothing_known) as client:
        await client.operators.amend("k", order_id=None, by="ada", reason="it was another's")
        world.time.pass_(100_000.0)
        report = await client.recover()

    entry = await world.entry()
    assert (report.refuted, entry.state) == (0, KeyState.IN_DOUBT)
    assert set(world.sandbox.orders) <= set(entry.candidates)


async def test_a_hold_is_kept_if_its_order_is_reported_while_other_undos_run(world: World):
    """Without this, recovery continues with an outdated list of undos and releases the hold of the order."""
    check = world.bank.step("check")
    async with world.client(hooks=[check, world.bank.hold]) as client:
        call = await world.stalled(client.create_order(new_order(), key="k"))
        await world.refute()
        releasing = Gate()
        world.bank.on_release = releasing
        recovery = await releasing.catches(client.recover())
        world.sandbox.faults.release()
        await banks.failure(call, JournalFailed)
        releasing.open()
        await recovery

    assert (await world.entry()).state is KeyState.CREATED
    assert check.undone == []


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_late_response_for_a_pruned_key_binds_it_again(world: World, is_readable: bool):
    async def forget() -> None:
        world.journal.journal._forget((world.scope, "k"))

    if is_readable:
        failed = await answered_late(world, world.refute, world.recover, forget)
    else:
        world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
        world.meanwhile(transitions.GoInDoubt, forget)
        failed = await world.fails(UnreadableOrder, held="H1")
    again = await world.fails(UnreadableOrder)

    assert failed.outcome is (Outcome.CREATED if is_readable else Outcome.UNKNOWN)
    assert (failed.order_may_exist, again.order_may_exist) == (True, True)
    entry, (order_id,) = await world.entry(), world.sandbox.orders
    assert entry.candidates == (order_id,)
    assert entry.cause is not None
    assert (entry.cause.kind, entry.cause.candidate) == (CauseKind.SUPERSEDED, order_id)
    assert (entry.attempt, entry.hooks) == (failed.attempt_id, ("funds_hold",) if is_readable else ())
    assert "had lost the key" in ((await world.journal.history(world.scope, "k"))[-1].reason or "")
    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == [order_id]


@pytest.mark.parametrize("at", [transitions.GoInDoubt, transitions.Suspect])
async def test_a_suspicion_that_could_not_be_recorded_is_recorded_later(
    world: World, at: type, caplog: pytest.LogCaptureFixture
):
    world.sandbox.faults.add(CloseAfterProcessing())
    async with world.client() as client:
        world.meanwhile(transitions.GoInDoubt, world.refute)
        world.journal.fail_on = at
        failed = await banks.failure(client.create_order(new_order(), key="k"), JournalFailed)
        world.journal.fail_on = None
        report = await client.recover()

    assert (failed.outcome, failed.order_may_exist) == (Outcome.UNKNOWN, True)
    assert report.resolved == 0
    assert len(world.events_of(DuplicateSuspected)) == 1
    assert "contradicts the sender's report: the doubt had ended before the sender's report" in caplog.text
    assert (await world.history())[-1] == "suspect: in_doubt"


@pytest.mark.parametrize("is_taken_again", [False, True])
async def test_a_late_answer_after_a_refutation_cancels_the_pending_undo_of_its_hold(
    world: World, is_taken_again: bool
):
    held: list[str] = []

    async def look() -> None:
        held.extend(world.bank.open)
        assert [debt.intent.id for debt in (await world.entry()).pending_undos] == held

    taken_again = [partial(world.move, journalling.claim(2))] if is_taken_again else []
    await answered_late(world, world.refute, look, *taken_again)
    world.time.pass_(3600.0)
    await world.recover()

    assert ([*world.bank.open], world.bank.released) == (held, [])
    assert not [debt for debt in (await world.entry()).pending_undos if debt.intent.id in held]


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_a_suspected_duplicate_that_cannot_be_recorded_is_raised_with_its_order(
    world: World, monkeypatch: pytest.MonkeyPatch, is_pruned: bool
):
    monkeypatch.setattr(outcomes, "MAX_UNRECORDED", 1)
    world.journal.fail_on = transitions.Suspect
    async with world.client() as client:
        call = await world.stalled(client.create_order(new_order(), key="k"))
        client._context.unrecorded["older"] = client.recover
        await world.refute()
        if is_pruned:
            world.journal.journal._forget((world.scope, "k"))
        else:
            await world.move(journalling.claim(2))
        world.sandbox.faults.release()
        errors = [await banks.failure(call, JournalFailed)]
        kept = [*client._context.unrecorded]
        errors.append(await banks.failure(client.recover(), JournalFailed))

    (order_id,) = world.sandbox.orders
    for failed in errors:
        assert (failed.key, failed.outcome, failed.order.id) == ("k", Outcome.CREATED, order_id)
    assert kept == ["k"]
    assert (len(world.events_of(DuplicateSuspected)), world.events_of(OrderUnrecorded)) == (1, [])


async def doubted(world: World) -> None:
    """Simulate another worker that finds the lease expired and puts the key in doubt."""
    world.time.pass_(60.0)
    await world.move(transitions.Expire(attempt=(await world.entry()).attempt or ""))
    world.time.pass_(-60.0)


async def resolved(world: World) -> None:
    await world.resolve("tx-seen")


async def resolved_rightly(world: World) -> None:
    await world.resolve(next(iter(world.sandbox.orders)))


SENT = "the id of the sender's order"


@frozen
class Meanwhile:
    """What other workers do just before a sender records the end of its attempt, and what follows.

    Args:
        others: what the other workers do.
        fault: the fault in the service's response.
        error: the error that the sender's call raises; None if it returns its order.
        state: the key's state at the end.
        may_exist: whether the error says that an order may exist; if so, the hold is kept.
        is_suspected: whether a suspected duplicate is published.
        error_id: the order id that the error contains, or SENT for that of the sender's order.
    """

    others: Callable[[World], Awaitable[None]]
    fault: Fault | None
    error: type[TransferError] | None
    state: KeyState = KeyState.CREATED
    may_exist: bool = True
    is_suspected: bool = False
    error_id: str | None = None


MEANWHILE = {
    "an order, of a doubt": Meanwhile(doubted, None, None),
    "an order that a person saw": Meanwhile(resolved_rightly, None, None),
    "an order of another id than a person saw": Meanwhile(
        resolved, None, JournalFailed, is_suspected=True, error_id="tx-seen"
    ),
    "a doubt that is on record": Meanwhile(
        doubted, CloseAfterProcessing(), OutcomeUnknown, KeyState.IN_DOUBT
    ),
    "a doubt of a record that was corrupt": Meanwhile(
        quarantined, CloseAfterProcessing(), OutcomeUnknown, KeyState.IN_DOUBT
    ),
    "a doubt that a person resolved": Meanwhile(
        resolved, CloseAfterProcessing(), AlreadyCreated, error_id="tx-seen"
    ),
    "an unreadable order of another id": Meanwhile(
        resolved,
        WrongTypes({"poster_amount": "a lot"}),
        AlreadyCreated,
        is_suspected=True,
        error_id="tx-seen",
    ),
    "an unreadable order of a key that is taken again": Meanwhile(
        refuted_and_taken_again,
        WrongTypes({"poster_amount": "a lot"}),
        UnreadableOrder,
        is_suspected=True,
        error_id=SENT,
    ),
    "a refusal, of a doubt": Meanwhile(doubted, Status(422), Refused, KeyState.FREE, may_exist=False),
    "a refusal of a key that a person resolved": Meanwhile(resolved, Status(422), Refused),
    "a refusal of a key that is taken again": Meanwhile(refuted_and_taken_again, Status(422), Refused),
}


@pytest.mark.parametrize("row", MEANWHILE.values(), ids=MEANWHILE)
async def test_a_senders_end_is_recorded_over_a_doubt_and_never_over_an_order(world: World, row: Meanwhile):
    async def others_once(_: object) -> None:
        world.journal.before.clear()
        await row.others(world)

    for at in (transitions.Create, transitions.GoInDoubt, transitions.Release):
        world.journal.before[at] = others_once
    if row.fault is not None:
        world.sandbox.faults.add(row.fault)
    result: Any
    (result,) = await asyncio.gather(world.create(), return_exceptions=True)
    entry, orders = await world.entry(), [*world.sandbox.orders]

    assert entry.state is row.state
    assert bool(world.bank.open) is row.may_exist
    assert [event.order_id for event in world.events_of(DuplicateSuspected)] == orders[: row.is_suspected]
    if row.is_suspected:
        step = (await world.journal.history(world.scope, "k"))[-1]
        assert step.order_id == orders[0]
        assert step.reason
    if row.error_id is not None:
        order_id = orders[0] if row.error_id is SENT else row.error_id
        assert order_id in f"{result} {getattr(result, 'order_id', '')}"
    if row.error is None:
        assert [result.id] == orders == [entry.order_id]
    else:
        assert (type(result), result.order_may_exist) == (row.error, row.may_exist)


async def test_a_refusal_of_a_key_that_others_freed_says_that_an_order_may_exist(world: World):
    """The call does not know what other workers sent with the key."""
    world.sandbox.faults.add(Status(422))
    world.meanwhile(transitions.Release, world.refute)
    refused = await world.fails(Refused)

    assert refused.order_may_exist
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


# --- trouble with the journal -------------------------------------------------------------------


@pytest.mark.parametrize(("key", "may_exist"), [("k", True), (None, False)])
async def test_nothing_is_held_or_sent_if_the_journal_fails_at_the_claim(
    world: World, key: str | None, may_exist: bool
):
    world.journal.fail_on = Claim
    failed = await world.fails(JournalFailed, key=key)

    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, may_exist)
    assert isinstance(failed.__cause__, OSError)
    assert failed.key
    assert (world.bank.log, [*world.sandbox.requests]) == ([], [])


@pytest.mark.parametrize("when", ["fail_on", "fail_after"])
async def test_nothing_is_sent_without_a_recorded_mark(world: World, when: str):
    setattr(world.journal, when, transitions.MarkSending)
    failed = await world.fails(JournalFailed)

    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, True)
    assert failed.receipts == {"funds_hold": f"hold-{world.bank.placed[0]}"}
    assert not world.sandbox.requests
    assert world.bank.open  # the mark may be stored: only the journal knows


async def test_a_journal_failure_between_hooks_stops_the_call_without_undos(world: World):
    world.journal.fail_on = transitions.RenewLease
    failed = await world.fails(JournalFailed, hooks=[world.bank.step("check"), world.bank.hold])

    assert (failed.outcome, failed.order_may_exist) == (Outcome.NOT_SENT, True)
    assert world.bank.log == ["check"]


@pytest.mark.parametrize(
    ("fault", "move", "error", "outcome", "cause"),
    [
        (None, transitions.Create, OSError("disk full"), Outcome.CREATED, OSError),
        (None, transitions.Create, JournalFailed("a back end's own"), Outcome.CREATED, type(None)),
        (CloseAfterProcessing(), transitions.GoInDoubt, OSError(), Outcome.UNKNOWN, OutcomeUnknown),
        (Status(422), transitions.Release, OSError(), Outcome.REFUSED, OSError),
    ],
    ids=["created", "created, with the journal's own error", "in doubt", "refused"],
)
async def test_a_journal_failure_at_the_end_of_a_call_binds_the_key_and_undoes_nothing(
    world: World, fault: Fault | None, move: type, error: Exception, outcome: Outcome, cause: type
):
    if fault is not None:
        world.sandbox.faults.add(fault)
    world.journal.fail_on, world.journal.error = move, error
    failed = await world.fails(JournalFailed)

    assert (failed.outcome, failed.order_may_exist) == (outcome, True)
    assert isinstance(failed.__cause__, cause)
    assert [attempt.outcome for attempt in failed.attempts] == [outcome]
    assert (failed.order and [failed.order.id]) == ([*world.sandbox.orders] if fault is None else None)
    assert (await world.entry()).state is KeyState.SENDING
    assert world.bank.log == ["place"]


@pytest.mark.parametrize("move", [transitions.MarkSending, transitions.Release])
async def test_a_journal_that_lost_the_key_raises_journal_failed_and_logs_the_hold(
    world: World, move: type, caplog: pytest.LogCaptureFixture
):
    """For example, PostgreSQL failed over to a standby that lacked the claim. No recovery finds the hold."""

    async def forget(_: object) -> None:
        world.journal.journal._entries.clear()

    world.sandbox.faults.add(Status(422))
    world.journal.before[move] = forget
    await world.fails(JournalFailed, match="no longer has a record of the key")

    assert len(world.sandbox.requests) == (move is transitions.Release)
    (message,) = caplog.messages
    assert message == (
        "the journal lost the record of the key 'k', so no recovery will undo ['funds_hold'] of the intent "
        f"{world.bank.intents[0].id}, for which this call created no order: undo them yourself once you know "
        "that no order exists"
    )


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize(
    "fault", [None, Status(422), CloseAfterProcessing(), BUSY], ids=["created", "no", "doubt", "busy"]
)
async def test_no_journal_failure_causes_a_second_order_or_loses_a_hold(
    world: World, nth: int, fault: Fault | None
):
    world.journal.fail_at = nth
    if fault is not None:
        world.sandbox.faults.add(fault)
    async with world.client() as client:
        for _ in range(3):  # each call comes from a caller with a short timeout
            await asyncio.gather(client.create_order(new_order(), key="k"), return_exceptions=True)
            world.time.pass_(61.0)
        await client.recover()

    entry = await world.known()
    assert len(world.sandbox.orders) <= 1
    assert not world.sandbox.orders or (entry is not None and entry.state in BOUND)
    assert bool(world.bank.open) is (entry is not None and entry.state in BOUND)


BOUND = (KeyState.IN_DOUBT, KeyState.CREATED)


@pytest.mark.parametrize("fault", [None, Status(422)], ids=["created", "no"])
async def test_an_order_leaves_no_reference_cycles(world: World, fault: Fault | None):
    async with world.client() as client:
        await client.create_order(new_order())  # create the objects that are created only once
        if fault is not None:
            world.sandbox.faults.add(fault)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            with suppress(Refused):
                await client.create_order(new_order())
            gc.collect()
            found = [type(one) for one in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert found == []
