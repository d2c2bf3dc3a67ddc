"""Deadlines: they only shorten a call, which then ends as never sent or as unknown, whichever is true."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from tests.support.bank import NOON, Gate, World, connects_slowly, failure, new_order
from tests.support.loop_time import LoopTime
from transfer_async import (
    Clock,
    ConnectionFailed,
    Expired,
    HoldFailed,
    KeyState,
    Outcome,
    OutcomeUnknown,
    Rate,
    RateLimited,
    RetryPolicy,
    Timeouts,
    TransferClient,
    TransferError,
    Unauthorized,
)
from transfer_async._http.transport import ExchangeResult
from transfer_async._support.clock import NEVER, is_over, on_clock, seconds_left, within
from transfer_async.journal import transitions
from transfer_async.journal.transitions import Claim
from transfer_async.sandbox import CloseAfterProcessing, Status

BUSY = Status(429, headers={"Retry-After": "2"})
FIVE = NOON + timedelta(seconds=5)


both_limits = pytest.mark.parametrize("limit", ["deadline", "send_before"])


def assert_never_sent(world: World, error: TransferError, *, limit: str = "deadline") -> None:
    assert (error.outcome, error.order_may_exist) == (Outcome.NOT_SENT, False)
    assert getattr(error, "limit", limit) == limit
    assert not world.sandbox.requests
    assert not world.bank.open


class Hanging(Gate):
    """A callable that never returns, and records how many seconds passed until it was cancelled."""

    def __init__(self, loop_time: LoopTime) -> None:
        super().__init__()
        self.ended: float | None = None
        self._time = loop_time

    async def __call__(self, *_: Any) -> None:
        try:
            await super().__call__()
        finally:
            self.ended = self._time.passed

    async def outlasted(self) -> None:
        """Let all time limits expire, the deadline first."""
        await self._time.pass_(5.0)
        await self._time.pass_(200.0)


# --- the moment, on a clock ---------------------------------------------------------------------


def test_setting_the_wall_clock_does_not_move_a_deadline():
    wall_clock = [NOON]
    clock = Clock(now=lambda: 1000.0, utc=lambda: wall_clock[0])
    deadline = on_clock(clock, NOON + timedelta(seconds=7))
    wall_clock[0] = NOON - timedelta(days=1)

    assert deadline == 1007.0
    assert seconds_left(clock, deadline) == 7.0
    assert not is_over(clock, deadline)
    assert is_over(clock, deadline, 7.0)


def test_without_a_deadline_the_clock_is_not_read():
    def asked() -> Any:
        raise AssertionError("the time was asked for")

    clock = Clock(now=asked, utc=asked)

    assert on_clock(clock, None) == NEVER
    assert not is_over(clock, NEVER)
    assert seconds_left(clock, NEVER) is None
    assert within(5.0, clock, NEVER) == 5.0


@pytest.mark.parametrize(("ahead", "left"), [(60.0, 5.0), (3.0, 3.0), (-1.0, 0.0)])
def test_a_deadline_only_shortens_a_limit(ahead: float, left: float):
    assert within(5.0, Clock(now=lambda: 1000.0), 1000.0 + ahead) == left


# --- before anything was sent -------------------------------------------------------------------


@both_limits
async def test_a_call_after_its_limit_holds_nothing_and_frees_the_key(world: World, limit: str):
    expired = await world.fails(Expired, **{limit: NOON})

    assert_never_sent(world, expired, limit=limit)
    assert world.bank.log == []
    assert (await world.entry()).state is KeyState.FREE


@pytest.mark.parametrize(("at", "log"), [(Claim, []), (transitions.MarkSending, ["place", "release"])])
async def test_an_order_is_not_sent_if_a_transition_outlasts_the_deadline(
    world: World, at: type, log: list[str]
):
    world.journal.after[at] = world.passing(5.0)
    assert_never_sent(world, await world.fails(Expired, deadline=FIVE))
    assert world.bank.log == log


@both_limits
@pytest.mark.parametrize(
    ("slow", "log"),
    [("check", ["check", "undo check"]), ("hold", ["check", "place", "release", "undo check"])],
    ids=["check", "hold"],
)
async def test_a_hook_that_passes_at_the_limit_is_undone_and_nothing_follows_it(
    world: World, limit: str, slow: str, log: list[str]
):
    check = world.bank.step("check")
    if slow == "check":
        check.act = world.passing(5.0)
    else:
        world.bank.on_place = world.passing(5.0)
    expired = await world.fails(Expired, **{"hooks": [check, world.bank.hold], limit: FIVE})

    assert_never_sent(world, expired, limit=limit)
    assert world.bank.log == log


# --- traces of a borrowed session ---------------------------------------------------------------

BEFORE_THE_FIRST_BYTE = (
    "on_request_start",
    "on_dns_cache_miss",
    "on_dns_resolvehost_start",
    "on_dns_resolvehost_end",
    "on_connection_create_start",
    "on_connection_create_end",
    "on_connection_reuseconn",
    "on_request_headers_sent",
    "on_request_chunk_sent",
)
"""The aiohttp trace signals that can occur before a request's first byte, if no connection is queued for."""


@asynccontextmanager
async def traced(world: World, signal: str) -> AsyncIterator[tuple[TransferClient, list[str]]]:
    """Yield a client on a borrowed session with one slow trace, and the events of the trace.

    For the signal of a reused connection, the client sends one request first.
    """
    seen: list[str] = []

    async def slow(*_: Any) -> None:
        if not is_warming_up:
            seen.append(signal)
            world.time.pass_(6.0)

    config = aiohttp.TraceConfig()
    getattr(config, signal).append(slow)
    is_warming_up = signal == "on_connection_reuseconn"
    address = world.sandbox.base_url.replace("127.0.0.1", "localhost")
    async with aiohttp.ClientSession(
        trace_configs=[config], connector=aiohttp.TCPConnector(family=socket.AF_INET)
    ) as session:
        client = TransferClient(
            address,
            world.sandbox.token,
            hooks=[world.bank.hold],
            journal=world.journal,
            scope=world.scope,
            clock=world.time.clock,
            session=session,
        )
        async with client:
            if is_warming_up:
                await client.who_am_i()
                world.sandbox.requests.clear()
                is_warming_up = False
            yield client, seen


@pytest.mark.parametrize("signal", BEFORE_THE_FIRST_BYTE)
async def test_a_slow_trace_callback_never_lets_an_order_leave_late(world: World, signal: str):
    """Without this, an expired quote is paid, or an order exists without its hold."""
    async with traced(world, signal) as (client, seen):
        call = client.create_order(new_order(), key="k", send_before=FIVE)
        expired = await failure(call, Expired)

    assert seen
    assert_never_sent(world, expired, limit="send_before")


@pytest.mark.parametrize(
    ("method", "signal"),
    [("GET", "on_request_headers_sent"), *(("POST", signal) for signal in BEFORE_THE_FIRST_BYTE)],
)
async def test_a_slow_trace_callback_never_lets_other_requests_leave_late(
    world: World, signal: str, method: str
):
    json = {"a": 1} if method == "POST" else None
    async with traced(world, signal) as (client, seen):
        await failure(client.request(method, "/api/api/v1/other", json=json, deadline=FIVE), Expired)

    assert seen
    assert not world.sandbox.requests


async def test_each_trace_gets_the_same_events_as_from_aiohttp(world: World):
    """Without this, the request log of a bank omits orders or contains them twice."""
    sent: list[tuple[str, Any]] = []
    config = aiohttp.TraceConfig()

    async def headers(_: Any, __: Any, params: aiohttp.TraceRequestHeadersSentParams) -> None:
        sent.append((params.method, params.headers.get("Content-Type")))

    async def chunk(_: Any, __: Any, params: aiohttp.TraceRequestChunkSentParams) -> None:
        sent.append((params.method, params.chunk))

    config.on_request_headers_sent.append(headers)
    config.on_request_chunk_sent.append(chunk)
    async with aiohttp.ClientSession(trace_configs=[config]) as session:
        await world.create(session=session)
        async with world.client(session=session) as client:
            await client.who_am_i()
            with suppress(TransferError):
                await client.request("POST", "/other", json={"a": 1})

    order = sent[1][1]
    assert b'"poster_amount"' in order
    assert sent == [
        ("POST", "application/json"),
        ("POST", order),
        ("GET", None),
        ("POST", "application/json"),
        ("POST", b'{"a":1}'),
    ]


async def test_an_order_whose_trace_fails_was_never_sent(world: World):
    config = aiohttp.TraceConfig()

    async def broken(*_: Any) -> None:
        raise RuntimeError

    config.on_request_chunk_sent.append(broken)
    async with aiohttp.ClientSession(trace_configs=[config]) as session:
        await world.fails(ConnectionFailed, session=session)

    assert not world.sandbox.requests
    assert not world.bank.open


async def test_a_hook_that_outlasts_the_deadline_is_cancelled_and_undone(world: World, loop_time: LoopTime):
    hook = Hanging(loop_time)
    world.bank.on_place = hook
    call = await hook.catches(world.fails(Expired, deadline=FIVE))
    world.time.pass_(5.0)
    await hook.outlasted()

    expired = await call
    assert hook.ended == 5.0
    assert_never_sent(world, expired)
    assert "the call's deadline passed while the hook 'funds_hold' ran" in str(expired)
    assert world.bank.released == [(world.bank.placed[0], None)]


async def test_a_deadline_does_not_lengthen_a_hooks_own_limit(world: World, loop_time: LoopTime):
    gate = world.bank.on_place = Gate()
    call = await gate.catches(world.fails(HoldFailed, deadline=FIVE, timeouts=Timeouts(hook=4.0)))
    await loop_time.pass_(4.0)

    assert_never_sent(world, await call)


async def test_nothing_is_held_if_the_token_outlasts_the_deadline(world: World, loop_time: LoopTime):
    token = Gate()
    call = await token.catches(world.fails(Expired, deadline=FIVE, token=token))
    world.time.pass_(5.0)
    await loop_time.pass_(5.0)
    expired = await call

    assert_never_sent(world, expired)
    assert str(expired) == "the call's deadline passed before the token callable returned a token"
    assert world.bank.log == []


# --- on the way ---------------------------------------------------------------------------------


def delay_orders(
    world: World, client: TransferClient, seconds: float = 0.0, found: ExchangeResult | None = None
) -> list[float]:
    """Delay the exchange of each order, and end it with ``found``. Return a list of their time limits."""
    transport: Any = client._context.transport
    post_order, limits = transport.post_order, []

    async def delayed(*args: Any, left: float, **options: Any) -> ExchangeResult:
        limits.append(left)
        world.time.pass_(seconds)
        return found or await post_order(*args, left=left, **options)

    transport.post_order = delayed
    return limits


@pytest.mark.parametrize(("seconds", "left"), [(5.0, 5.0), (60.0, 30.0)])
async def test_an_exchange_gets_the_time_left_of_the_shorter_limit(world: World, seconds: float, left: float):
    async with world.client() as client:
        limits = delay_orders(world, client)
        await client.create_order(new_order(), deadline=NOON + timedelta(seconds=seconds))

    assert limits == [left]


@both_limits
async def test_the_limit_is_checked_before_the_first_byte(world: World, limit: str):
    async with world.client() as client:
        connects_slowly(client, world.time, 5.0)
        expired = await failure(client.create_order(new_order(), key="k", **{limit: FIVE}), Expired)

    assert_never_sent(world, expired, limit=limit)
    assert [attempt.outcome for attempt in expired.attempts] == [Outcome.NOT_SENT]


@both_limits
async def test_an_attempt_that_ran_out_of_time_is_recorded_as_not_sent(world: World, limit: str):
    world.sandbox.faults.add(BUSY)
    async with world.client() as client:
        connects_slowly(client, world.time, 2.0)
        limited = await failure(client.create_order(new_order(), key="k", **{limit: FIVE}), RateLimited)

    assert [attempt.outcome for attempt in limited.attempts] == [Outcome.REFUSED, Outcome.NOT_SENT]


@pytest.mark.parametrize(("seconds", "kind"), [(5.0, Expired), (1.0, ConnectionFailed)])
async def test_a_connection_that_fails_raises_expired_only_after_the_deadline(
    world: World, seconds: float, kind: type[TransferError]
):
    async with world.client(retry=RetryPolicy(first_delay=10.0, max_delay=10.0)) as client:
        limits = delay_orders(world, client, seconds, ExchangeResult(sent=False, error=TimeoutError()))
        error = await failure(client.create_order(new_order(), key="k", deadline=FIVE), kind)

    assert_never_sent(world, error)
    assert [attempt.outcome for attempt in error.attempts] == [Outcome.NOT_SENT]
    assert len(limits) == 1


@both_limits
async def test_a_retry_pause_that_would_outlast_the_limit_is_not_started(world: World, limit: str):
    world.sandbox.faults.add(BUSY, times=9)
    limited = await world.fails(RateLimited, **{limit: NOON + timedelta(seconds=3)})

    assert world.time.slept == [2.0]  # The retry budget of a new client allows two pauses.
    assert len(limited.attempts) == 2
    assert not world.bank.open


@both_limits
async def test_no_attempt_follows_a_pause_that_outlasted_the_limit(world: World, limit: str):
    world.time.on_sleep = world.passing(5.0)
    world.sandbox.faults.add(BUSY)
    limited = await world.fails(RateLimited, **{limit: FIVE})

    assert len(world.sandbox.requests) == len(limited.attempts) == 1
    assert not limited.order_may_exist


async def test_a_new_token_is_not_awaited_beyond_the_deadline(world: World, loop_time: LoopTime):
    gate, tokens = Gate(), ["stale"]

    async def token() -> str:
        if not tokens:
            await gate()
        return tokens.pop()

    call = await gate.catches(world.fails(Unauthorized, deadline=FIVE, token=token))
    world.time.pass_(5.0)
    await loop_time.pass_(5.0)
    refused = await call

    assert (refused.outcome, refused.order_may_exist) == (Outcome.REFUSED, False)
    assert len(world.sandbox.requests) == 1
    assert not world.bank.open


# --- once it may have been sent -----------------------------------------------------------------


async def test_an_order_cut_off_after_its_body_is_unknown_and_keeps_its_hold(
    world: World, loop_time: LoopTime
):
    call = await world.stalled(world.fails(OutcomeUnknown, deadline=FIVE))
    world.time.pass_(5.0)
    await loop_time.pass_(5.0)

    assert (await call).order_may_exist
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert len(world.bank.open) == 1
    assert world.bank.log == ["place"]


async def test_resolve_is_not_called_past_the_deadline(world: World):
    asked = []

    async def resolve(intent: Any, _: Any) -> None:
        asked.append(intent.key)

    world.sandbox.faults.add(CloseAfterProcessing())
    world.journal.before[transitions.GoInDoubt] = world.passing(5.0)
    for deadline in (FIVE, NOON):
        await world.fails(OutcomeUnknown, deadline=deadline, resolve=resolve)
        assert asked == []

    assert (await world.recover(resolve=resolve)).in_doubt == 1
    assert asked == ["k"]


async def test_resolve_gets_only_the_time_left(world: World, loop_time: LoopTime):
    resolve = Hanging(loop_time)
    world.sandbox.faults.add(CloseAfterProcessing())
    call = await resolve.catches(world.fails(OutcomeUnknown, deadline=FIVE, resolve=resolve))
    await resolve.outlasted()

    assert (await call).order_may_exist
    assert resolve.ended == 5.0


async def test_an_answer_in_time_is_recorded_even_if_recording_outlasts_the_deadline(world: World):
    world.journal.before[transitions.Create] = world.passing(60.0)
    order = await world.create(deadline=FIVE)

    assert order.id in world.sandbox.orders
    assert (await world.entry()).state is KeyState.CREATED


# --- what is no deadline ------------------------------------------------------------------------


async def test_a_queue_beyond_the_deadline_is_refused_at_once_despite_a_late_send_before(world: World):
    async with world.client(rate=Rate(0.1)) as client:
        await client.create_order(new_order(), key="a")
        late = {"deadline": NOON + timedelta(seconds=5), "send_before": NOON + timedelta(seconds=60)}
        error = await failure(client.create_order(new_order(), key="b", **late), Expired)

    assert error.limit == "deadline"
    assert world.time.slept == []
