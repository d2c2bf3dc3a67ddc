"""A caller is cancelled, or its client closed, at every loop turn; the record stays correct."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from attrs import frozen

from tests.support import bank as banks
from tests.support.bank import Gate, World, new_order, refused_order, turns
from tests.support.cases import row_in_failures
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import (
    NO_ORDER,
    AlreadyCreated,
    JournalFailed,
    KeyBusy,
    KeyState,
    NewOrder,
    Order,
    Outcome,
    OutcomeUnknown,
    RetryPolicy,
    TransferClient,
    TransferError,
)
from transfer_async.journal import transitions
from transfer_async.journal.model import Ending
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import (
    CloseAfterProcessing,
    CloseBeforeReading,
    Fault,
    StallAfterProcessing,
    Status,
)

BOUND = (KeyState.IN_DOUBT, KeyState.CREATED)


# --- at every turn ------------------------------------------------------------------------------


@frozen(kw_only=True)
class Scenario:
    """A call, and the faults and concurrent events that it meets."""

    faults: tuple[Fault, ...] = ()
    order: Callable[[], NewOrder] = new_order
    held: str | None = None
    crashed: float | None = None  # seconds since another worker died while it processed the key
    resolve: Callable[[World], Any] | None = None
    place_error: type[Exception] | None = None
    release_error: type[Exception] | None = None
    renewing: bool = False


def _answering(answer: Any) -> Callable[[World], Any]:
    """Return a maker of a ``resolve`` that waits, and returns NO_ORDER or the id of the created order."""

    def made(world: World) -> Any:
        async def resolve(*_: object) -> Any:
            await turns(2)
            return answer or next(iter(world.sandbox.orders), None)

        return resolve

    return made


SCENARIOS = {
    "created": Scenario(),
    "created with the bank's own hold": Scenario(held="H1"),
    "refused": Scenario(order=refused_order),
    "busy, then created": Scenario(faults=(Status(429), Status(425))),
    "busy, then in doubt": Scenario(faults=(Status(429), CloseAfterProcessing())),
    "in doubt, processed": Scenario(faults=(CloseAfterProcessing(),)),
    "in doubt, not processed": Scenario(faults=(CloseBeforeReading(),)),
    "in doubt, found": Scenario(faults=(CloseAfterProcessing(),), resolve=_answering(None)),
    "in doubt, refuted": Scenario(faults=(Status(503),), resolve=_answering(NO_ORDER)),
    "a hold that breaks": Scenario(place_error=OSError),
    "an undo that breaks": Scenario(order=refused_order, release_error=OSError),
    "a claim taken over": Scenario(crashed=60.0),
    "a claim too old": Scenario(crashed=901.0),
    "a token renewed": Scenario(renewing=True),
}
OFTEN = ("created", "busy, then in doubt", "an undo that breaks", "a claim taken over")
"""The scenarios that run by default."""


class Tokens:
    def __init__(self, *tokens: str) -> None:
        self._tokens = [*tokens]

    async def __call__(self) -> str:
        await turns(2)
        return self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]


def _slow(world: World) -> None:
    """Make every step of the pipeline yield to the loop, so that a call can be interrupted at more points."""

    async def turn(*_: object) -> None:
        await turns(2)

    steps = ("RenewLease", "MarkSending", "Create", "Release", "GoInDoubt", "MarkUndone", "Resolve", "Refute")
    for kind in (Claim, *(getattr(transitions, step) for step in steps)):
        world.journal.before[kind] = world.journal.after[kind] = turn
    world.bank.on_place = world.bank.on_placed = world.bank.on_release = turn


def _client(world: World, scenario: Scenario, check: Any) -> TransferClient:
    settings: dict[str, Any] = {"hooks": [check, world.bank.hold], "settle_after": 0}
    if scenario.resolve is not None:
        settings["resolve"] = scenario.resolve(world)
    if scenario.renewing:
        settings["token"] = Tokens("old", world.sandbox.token)
    return world.made(**settings)


async def _cancelled(caller: asyncio.Task[Order], client: TransferClient) -> None:
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await client.close()


async def _cancelled_twice(caller: asyncio.Task[Order], client: TransferClient) -> None:
    caller.cancel()
    await turns(2)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await client.close()


async def _closed(caller: asyncio.Task[Order], client: TransferClient) -> None:
    await client.close(timeout=0)
    await asyncio.gather(caller, return_exceptions=True)
    assert not caller.cancelled()


async def _cancelled_and_closed(caller: asyncio.Task[Order], client: TransferClient) -> None:
    caller.cancel()
    await turns(1)
    await client.close(timeout=0)
    await asyncio.gather(caller, return_exceptions=True)


async def _cut(scenario: Scenario, turn: int, cut: Any) -> bool:
    """Run ``scenario`` and interrupt it at loop turn ``turn``. Return whether the call had already ended."""
    async with banks.world() as world:
        if scenario.crashed is not None:
            await world.crash(transitions.MarkSending, hooks=[world.bank.step("check"), world.bank.hold])
            world.bank.log.clear()
            world.time.pass_(scenario.crashed)
        for fault in scenario.faults:
            world.sandbox.faults.add(fault)
        world.bank.place_error = scenario.place_error and scenario.place_error()
        world.bank.release_error = scenario.release_error and scenario.release_error()
        _slow(world)
        client = _client(world, scenario, world.bank.step("check"))
        call = client.create_order(scenario.order(), key="k", held=scenario.held)
        caller = asyncio.create_task(call)
        for _ in range(turn):
            await asyncio.sleep(0)
        ended = caller.done()
        await cut(caller, client)
        await turns(10)  # wait for data that is still in a socket
        await _check(world, scenario, caller)
        return ended


async def _check(world: World, scenario: Scenario, caller: asyncio.Task[Order]) -> None:
    entry = await world.known()
    state = KeyState.FREE if entry is None else entry.state
    orders = [*world.sandbox.orders]

    assert len(orders) <= 1
    assert state in (KeyState.FREE, *BOUND)
    assert not orders or state in BOUND
    assert state is not KeyState.CREATED or (entry is not None and entry.order_id in orders)
    owed = () if entry is None else entry.pending_undos
    assert bool(owed) is (scenario.release_error is not None and "release" in world.bank.log)
    if scenario.held is None:
        assert {*world.bank.open} <= {entry.intent_id if entry else None}
        assert bool(world.bank.open) is (state in BOUND or bool(world.bank.open and owed))
    else:
        assert not {"place", "release"} & {*world.bank.log}
    if scenario.crashed is None:
        _check_the_log(world, state)
    _check_the_caller(caller, state, orders)
    await _check_a_redelivery(world, scenario, state, orders)


def _check_the_log(world: World, state: KeyState) -> None:
    done = [line for line in world.bank.log if line in ("check", "place")]
    undone = [line for line in world.bank.log if line not in done]
    inverse = {"check": "undo check", "place": "release"}
    expected = [inverse[line] for line in reversed(done)] if state is KeyState.FREE else []

    assert undone == expected


def _check_the_caller(caller: asyncio.Task[Order], state: KeyState, orders: list[str]) -> None:
    if caller.cancelled():
        return
    error = caller.exception()
    if error is None or isinstance(error, AlreadyCreated):
        assert state is KeyState.CREATED
        assert [error.order_id if error else caller.result().id] == orders
        return
    assert isinstance(error, TransferError)
    assert error.key == "k"
    assert error.order_may_exist is (state in BOUND)
    assert (error.outcome is Outcome.UNKNOWN) is (state is KeyState.IN_DOUBT)


async def _check_a_redelivery(world: World, scenario: Scenario, state: KeyState, orders: list[str]) -> None:
    world.bank.place_error = None
    world.sandbox.faults.clear()
    async with world.client() as client:
        again = client.create_order(scenario.order(), key="k", held=scenario.held)
        result: Any
        (result,) = await asyncio.gather(again, return_exceptions=True)

    assert len(world.sandbox.orders) <= 1
    if state is KeyState.CREATED:
        assert [result.order_id if isinstance(result, AlreadyCreated) else result.id] == orders
    if state is KeyState.IN_DOUBT:
        assert isinstance(result, OutcomeUnknown)


WAYS = (_cancelled, _closed, _cancelled_twice, _cancelled_and_closed)


@pytest.mark.trial(short=1, ci=4, long=4)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=name, marks=[] if name in OFTEN else ONLY_IN_TRIALS)
        for name, scenario in SCENARIOS.items()
    ],
)
async def test_a_call_cut_at_any_turn_leaves_a_correct_record(scenario: Scenario, size: int):
    """At each turn, try `size` of the four ways to interrupt the call; rotate through the ways."""
    ended, turn = False, 0  # turn 0 is before the call starts
    while not ended:
        turn += 1
        for way in [WAYS[(turn * size + n) % len(WAYS)] for n in range(size)]:
            with row_in_failures(f"turn {turn}, {way.__name__}"):
                ended = await _cut(scenario, turn, way)

    assert turn > 10  # the test has tried enough turns


# --- before anything is sent --------------------------------------------------------------------


def begin(client: TransferClient, key: str = "k") -> asyncio.Task[Order]:
    """Start one order and return its task."""
    return asyncio.create_task(client.create_order(new_order(), key=key))


async def cancelled(caller: asyncio.Task[Order]) -> None:
    """Cancel a caller, and wait until it raises the cancellation."""
    caller.cancel()
    await over(caller)


async def over(caller: asyncio.Task[Order]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await caller


NEVER_SENT = Ending(outcome=Outcome.NOT_SENT, error="Cancelled")
ENDINGS = {
    "a hook": NEVER_SENT,
    "the token": NEVER_SENT,
    "a pause": Ending(outcome=Outcome.REFUSED, error="RateLimited", status=429),
    "another token": Ending(outcome=Outcome.REFUSED, error="Unauthorized", status=401),
    "resolve": None,
    "resolve, of an old doubt": None,
}
"""For each point, the recorded end of a call that is interrupted there. Doubts have no recorded end."""


async def waiting_at(world: World, gate: Gate, where: str) -> TransferClient:
    """Return a client whose next call waits at the gate."""

    async def another_token() -> str:
        if world.bank.open:
            await gate()
        return "old"

    settings: dict[str, Any] = {}
    if where == "a hook":
        world.bank.on_placed = gate
    elif where == "the token":
        settings["token"] = gate
    elif where == "a pause":
        world.time.on_sleep = gate
        world.sandbox.faults.add(Status(429))
    elif where == "another token":
        settings["token"] = another_token
    elif where == "resolve":
        world.sandbox.faults.add(CloseAfterProcessing())
        settings["resolve"] = gate
    elif where == "resolve, of an old doubt":
        await world.in_doubt()
        settings["resolve"] = gate
    else:
        raise LookupError(where)
    return world.made(**settings)


@pytest.mark.parametrize("is_closed", [False, True], ids=["cancelled", "closed"])
@pytest.mark.parametrize(("where", "ending"), ENDINGS.items(), ids=ENDINGS)
async def test_a_waiting_call_is_cut_off_once_the_outcome_is_recorded(
    world: World, where: str, ending: Ending | None, is_closed: bool
):
    gate = Gate()
    async with await waiting_at(world, gate, where) as client:
        caller = await gate.catches(begin(client))
        if is_closed:
            await client.close(timeout=0)
            error = await banks.failure(caller)
            expected = (
                "OutcomeUnknown" if ending is None else ending.error.replace("Cancelled", "ClientClosed")
            )
            assert (type(error).__name__, error.key, error.order_may_exist) == (expected, "k", ending is None)
            assert expected != "ClientClosed" or error.__cause__ is None
        else:
            await cancelled(caller)
        log = [*world.bank.log]
        gate.open()
        await turns(3)

    entry = await world.entry()
    assert (entry.state, entry.ending) == (KeyState.FREE if ending else KeyState.IN_DOUBT, ending)
    assert log == (["place"] if ending is None else [] if where == "the token" else ["place", "release"])
    assert bool(world.bank.open) is (ending is None)
    assert len(world.sandbox.requests) == (ending is None or ending.status is not None)


async def test_a_hook_that_swallows_cancellation_is_undone_with_its_receipt(world: World):
    gate = Gate()

    async def stubborn(_: object) -> None:
        with suppress(asyncio.CancelledError):
            await gate()
        await turns(2)

    world.bank.on_placed = stubborn
    async with world.client() as client:
        await cancelled(await gate.catches(begin(client)))

    intent_id = world.bank.placed[0]
    assert world.bank.released == [(intent_id, f"hold-{intent_id}")]
    assert not world.sandbox.requests


async def test_an_undo_is_not_interrupted_and_the_cancelled_caller_waits_for_it(world: World):
    world.bank.place_error = OSError()
    gate = world.bank.on_release = Gate()
    async with world.client() as client:
        caller = await gate.catches(begin(client))
        caller.cancel()
        await turns(5)
        waiting = not caller.done()
        gate.open()
        await over(caller)

    assert waiting
    assert gate.passed
    assert (await world.entry()).pending_undos == ()


async def test_a_caller_cancelled_twice_stops_waiting_and_the_undo_still_finishes(world: World):
    hold, undo = Gate(), Gate()
    world.bank.on_placed, world.bank.on_release = hold, undo
    async with world.client() as client:
        caller = await hold.catches(begin(client))
        caller.cancel()
        await undo.reached.wait()
        await cancelled(caller)
        undo.open()

    assert undo.passed
    assert not world.bank.open
    assert (await world.entry()).pending_undos == ()


# --- once something is sent ---------------------------------------------------------------------


async def test_a_caller_cancelled_in_flight_stops_at_once_and_the_exchange_finishes(world: World):
    async with world.client() as client:
        await cancelled(await world.stalled(begin(client)))
        at_once = (await world.entry()).state
        await banks.failure(begin(client), KeyBusy)
        world.sandbox.faults.release()
        await world.ended()
        order = await begin(client)

    assert at_once is KeyState.SENDING
    assert [*world.sandbox.orders] == [order.id]
    assert (await world.entry()).state is KeyState.CREATED
    assert world.bank.open


@pytest.mark.parametrize("sent", [0, 1])
async def test_a_call_cancelled_before_or_after_an_attempt_makes_no_further_attempt(world: World, sent: int):
    """The call is cancelled while it waits for a connection, or for a response that permits a retry."""
    gate = Gate()
    world.sandbox.faults.add(Status(429), times=None)
    async with world.client() as client:
        post_order = client._context.transport.post_order

        async def held_up(*args: Any, **options: Any) -> Any:
            if not sent:
                with suppress(asyncio.CancelledError):
                    await gate()
            evidence = await post_order(*args, **options)
            if sent:
                await gate()
            return evidence

        client._context.transport.post_order = held_up
        await cancelled(await gate.catches(begin(client)))
        gate.open()

    assert len(world.sandbox.requests) == sent
    ending = (Outcome.REFUSED, "RateLimited") if sent else (Outcome.NOT_SENT, "Cancelled")
    await assert_freed(world, *ending)


async def test_a_call_cancelled_while_its_mark_is_written_sends_nothing(world: World):
    world.journal.before[transitions.MarkSending] = gate = Gate()
    async with world.client() as client:
        caller = await gate.catches(begin(client))
        caller.cancel()
        gate.open()
        await over(caller)

    assert not world.sandbox.requests
    await assert_freed(world, Outcome.NOT_SENT, "Cancelled")


async def assert_freed(world: World, outcome: Outcome, error: str) -> None:
    entry = await world.entry()
    assert (entry.state, world.bank.open) == (KeyState.FREE, {})
    assert entry.ending is not None
    assert (entry.ending.outcome, entry.ending.error) == (outcome, error)


async def test_a_doubt_of_a_cancelled_caller_stays_and_resolve_is_not_called(world: World):
    resolve = Gate()
    async with world.client(resolve=resolve) as client:
        await cancelled(await world.stalled(begin(client)))
        await client.close(timeout=0)

    assert not resolve.reached.is_set()
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open


async def test_a_task_group_that_fails_cancels_its_orders_and_each_is_settled(world: World):
    async def fail() -> None:
        await world.sandbox.stalled(2)
        raise LookupError

    world.sandbox.faults.add(StallAfterProcessing(), times=2)
    async with world.client() as client:
        with pytest.raises(ExceptionGroup) as failed:
            async with asyncio.TaskGroup() as group:
                for key in "ab":
                    group.create_task(client.create_order(new_order(), key=key))
                group.create_task(fail())
        world.sandbox.faults.release()

    assert failed.group_contains(LookupError)
    assert {(await world.entry(key)).state for key in "ab"} == {KeyState.CREATED}
    assert len(world.sandbox.orders) == len(world.bank.open) == 2


async def test_errors_without_a_waiting_caller_leave_no_warning(world: World):
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: heard.append(about))
    async with world.client(retry=RetryPolicy(attempts=1)) as client:
        for fault in (Status(422), CloseAfterProcessing()):
            world.sandbox.faults.add(fault)
            caller = begin(client, type(fault).__name__)
            await world.sandbox.received(len(world.sandbox.requests) + 1)
            caller.cancel()
            await asyncio.wait([caller])

    assert heard == []


# --- whom nobody meant --------------------------------------------------------------------------


async def cut_short(*_: object) -> None:
    """Cancel the task after its hook has ended, as a late timer of the hook would."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("at", "fault", "state"),
    [
        (transitions.Create, None, KeyState.CREATED),
        (transitions.GoInDoubt, CloseAfterProcessing(), KeyState.IN_DOUBT),
        (transitions.Release, Status(422), KeyState.FREE),
    ],
)
async def test_a_stray_cancellation_after_sending_is_not_raised_as_cancelled_error(
    world: World, at: type, fault: Fault | None, state: KeyState
):
    if fault is not None:
        world.sandbox.faults.add(fault)
    world.journal.after[at] = cut_short
    failed = await world.fails(JournalFailed, match="the call was cancelled, but not by its caller")

    assert (failed.outcome, failed.order_may_exist, failed.key) == (Outcome.UNKNOWN, True, "k")
    assert len(failed.attempts) == 1
    assert (await world.entry()).state is state
    assert world.bank.released == []


async def test_a_stray_cancellation_before_sending_is_raised_and_releases_the_hold(world: World):
    world.journal.after[transitions.MarkSending] = cut_short
    with pytest.raises(asyncio.CancelledError):
        await world.create()

    assert (await world.entry()).state is KeyState.FREE
    assert not world.sandbox.requests
    assert not world.bank.open
