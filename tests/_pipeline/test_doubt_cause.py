"""The cause of a doubt is recorded for operators without personal data."""

import pytest

from tests.support.bank import NOON, World, failure, new_order
from transfer_async import (
    AttemptFailed,
    Cause,
    CauseKind,
    KeyState,
    Operators,
    OrderInDoubt,
    Outcome,
    OutcomeUnknown,
    PersonName,
    RecoveryReport,
    RetryPolicy,
)
from transfer_async.journal import Create, Expire, GoInDoubt
from transfer_async.sandbox import (
    AnotherOrder,
    CloseAfterProcessing,
    Fault,
    Status,
    TruncatedBody,
    TruncatedHead,
    WrongTypes,
)

K = CauseKind


async def cause(world: World) -> Cause:
    """Return the cause that operators see."""
    (doubt,) = await Operators(world.journal, world.scope, clock=world.time.clock).in_doubt()
    assert doubt.cause is not None
    return doubt.cause


@pytest.mark.parametrize(
    ("fault", "kind", "status", "error", "of_attempt"),
    [
        (CloseAfterProcessing(), K.NO_ANSWER, None, "ServerDisconnectedError", "ServerDisconnectedError"),
        (TruncatedHead(), K.NO_ANSWER, None, "ServerDisconnectedError", "ServerDisconnectedError"),
        (TruncatedBody(keep=5), K.CUT_ANSWER, 200, "ClientPayloadError", "ClientPayloadError"),
        (Status(503), K.STATUS, 503, None, "OutcomeUnknown"),
        (WrongTypes({"poster_amount": "a lot"}), K.UNREADABLE_ANSWER, 200, None, "UnreadableOrder"),
        (AnotherOrder(), K.UNREADABLE_ANSWER, 200, None, "UnreadableOrder"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fault) else None,
)
async def test_each_kind_of_failure_has_its_own_cause(
    world: World, fault: Fault, kind: CauseKind, status: int | None, error: str | None, of_attempt: str
):
    world.sandbox.faults.add(fault)
    doubt = await world.fails(OutcomeUnknown)

    found = await cause(world)
    assert (found.kind, found.status, found.error) == (kind, status, error)
    tried = [(one.number, one.began, one.status, one.error) for one in found.attempts]
    assert tried == [(1, NOON, status, of_attempt)]
    (event,) = world.events_of(AttemptFailed)
    assert (event.error, event.outcome) == (type(doubt).__name__, Outcome.UNKNOWN)
    (in_doubt,) = world.events_of(OrderInDoubt)
    assert (in_doubt.error, in_doubt.status) == (type(doubt).__name__, doubt.status)


async def test_the_cause_has_the_attempts_with_times_and_request_ids(world: World):
    world.sandbox.faults.add(Status(429, headers={"X-Request-Id": "r-1"}))
    world.sandbox.faults.add(Status(503, headers={"X-Request-Id": "r-2"}))
    await world.fails(OutcomeUnknown, retry=RetryPolicy(first_delay=2.0))

    found = await cause(world)
    assert [(one.number, one.status, one.request_id) for one in found.attempts] == [
        (1, 429, "r-1"),
        (2, 503, "r-2"),
    ]
    assert (
        found.told == "the response's status does not show whether the order exists (status 503, request r-2)"
    )


async def test_the_cause_has_the_order_id_of_the_answer_and_no_personal_data(world: World):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    await world.fails(OutcomeUnknown, beneficiary=PersonName("Ben", "Okri"), held="H1")
    steps = await world.journal.history(world.scope, "k")

    found = await cause(world)
    description = "the response cannot be read as this order (status 200); the response contains the id "
    assert found.candidate in world.sandbox.orders
    assert found.told == f"{description}{found.candidate}"
    texts = repr(found) + str(steps[-1].reason)
    assert not any(word in texts for word in ("Okri", "ben.okri", "ada.eze", "H1", "155025", "a lot"))


async def test_a_crash_after_the_mark_is_the_same_doubt_for_every_finder(world: World):
    await world.abandoned(Create)
    report = await world.recover()
    found = await cause(world)
    await world.abandoned(Create, key="claimed again")
    await world.fails(OutcomeUnknown, key="claimed again")
    entries = [await world.entry(key) for key in ("k", "claimed again")]
    steps = await world.journal.history(world.scope, "claimed again")

    assert report == RecoveryReport(in_doubt=1)
    assert found == Cause(kind=K.ABANDONED)
    assert [(entry.state, entry.cause) for entry in entries] == [(KeyState.IN_DOUBT, found)] * 2
    assert [(event.error, event.attempt_id) for event in world.events_of(OrderInDoubt)] == [
        ("Abandoned", entry.attempt) for entry in entries
    ]
    assert len(world.sandbox.orders) == len(world.bank.open) == 2
    assert (steps[-1].move, steps[-1].reason) == ("claim", found.told)
    assert (
        found.told
        == "abandoned: the sender never reported a result; if its process is only suspended, it may still "
        "send the order"
    )


async def test_the_senders_own_cause_replaces_that_of_others(world: World):
    world.sandbox.faults.add(CloseAfterProcessing())

    async def too_slow() -> None:
        world.time.pass_(100.0)
        await world.move(Expire(attempt=(await world.entry()).attempt or ""))

    world.meanwhile(GoInDoubt, too_slow)
    await world.fails(OutcomeUnknown)

    assert (await cause(world)).kind is K.NO_ANSWER


async def test_a_call_cut_off_by_close_has_that_cause(world: World):
    client = world.made()
    call = await world.stalled(client.create_order(new_order(), key="k"))
    await client.close(timeout=0)
    await failure(call, OutcomeUnknown)

    assert (await cause(world)).kind is K.CLOSED
