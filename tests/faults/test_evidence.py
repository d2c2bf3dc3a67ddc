"""Whenever the evidence says "never sent", the service never got the request: by trial, and by mutants."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from attrs import define, evolve, frozen
from multidict import CIMultiDict

from tests.support import samples
from tests.support.bank import turns
from tests.support.loop_time import LoopTime
from transfer_async import Order, Timeouts
from transfer_async._http import write_guard
from transfer_async._http.classify import RETRYABLE, Classification
from transfer_async._http.transport import ExchangeResult, Transport
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import OutcomeUnknown
from transfer_async._pipeline import attempt

from .parties import Bank, Certificates
from .servers import (
    Connection,
    Server,
    answers,
    foreign_reply,
    http,
    long_header,
    order_reply,
    replies,
    serving,
    serving_beside,
    then_closes,
    until,
)

LARGE = b" " * 600_000  # more than two sockets' buffers of the size set below


def small_buffers(address: Any) -> socket.socket:
    """A client's socket that takes little at once, so that a large body is written in many pieces."""
    made = socket.socket(address[0], address[1])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    made.setblocking(False)
    return made


@asynccontextmanager
async def transport_to(
    server: Server, *, limits: Timeouts, pool: int = 100, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Transport]:
    """A transport of small buffers."""
    connector = aiohttp.TCPConnector(limit=pool, keepalive_timeout=4, socket_factory=small_buffers)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Transport(
            server.url,
            session=session,
            ssl=tls,
            proxy=None,
            timeouts=limits,
            max_response_bytes=1 << 20,
            max_connections=pool,
        )


# --- the trial ----------------------------------------------------------------------------------


class Erratic:
    """A service of every mood: slow to read, slow to answer, closing, breaking, answering unasked."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    async def __call__(self, connection: Connection) -> None:
        while await self._one(connection):
            pass

    async def _one(self, connection: Connection) -> bool:
        mood = self._draw.random()
        if mood < 0.15:
            await asyncio.sleep(self._draw.uniform(0, 0.004))
        if mood > 0.97 or await connection.request() is None:
            connection.reset()
            return False
        if 0.1 < mood < 0.3:
            await asyncio.sleep(self._draw.uniform(0, 0.006))
        if 0.3 < mood < 0.4:
            return False
        if 0.4 < mood < 0.45:
            connection.reset()
            return False
        connection.send(http(200, b"{}"))
        if 0.6 < mood < 0.7:
            connection.send(foreign_reply())
        return not 0.45 < mood < 0.6


@frozen
class Posted:
    """One request of the trial, and what was concluded of it."""

    number: int
    evidence: ExchangeResult
    cancelled: bool


async def post(transport: Transport, number: int, draw: random.Random) -> Posted:
    """One POST under a random time limit, often cancelled at a random moment."""
    content = LARGE if draw.random() < 0.1 else b'{"n": 1}'
    body = GuardedBody(content, in_time=lambda: True)
    headers = CIMultiDict({"X-Number": str(number)})
    left = draw.choice([0.0, 25.0, draw.uniform(0, 0.003), draw.uniform(0, 0.01)])
    task = asyncio.create_task(transport.post_order(body, headers=headers, left=left))
    cancel = draw.random() < 0.4
    if cancel:
        if draw.random() < 0.5:
            for _ in range(draw.randrange(12)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(draw.uniform(0, 0.005))
        if task.cancel() and not draw.randrange(3):
            task.cancel()
    try:
        evidence = await task
    except asyncio.CancelledError:  # before its first step
        evidence = ExchangeResult(sent=False)
    return Posted(number, evidence, cancel)


@define(kw_only=True)
class Trial:
    """Where a trial is made: plain or over TLS; beside us on a thread of its own, or on our loop."""

    tls: Certificates | None = None
    beside: bool = False

    async def run(self, count: int, *, seed: int) -> tuple[list[Posted], Server]:
        """Post ``count`` requests, twenty at a time; back when the server has read all that will come.

        Where the machine is so busy that every request met its time limit, it is asked once more with
        twice the time: both sides of the question must come up.
        """
        draw = random.Random(seed)
        posted: list[Posted] = []
        serve = serving_beside if self.beside else serving
        mine, its = (self.tls.client, self.tls.server) if self.tls else (None, None)
        async with serve(Erratic(random.Random(seed + 1)), tls=its) as server:
            for patience in (1, 2, 4, 8, 16, 32):
                limits = Timeouts(total=0.05 * patience, connect=0.02 * patience)
                first = len(posted)
                async with transport_to(server, limits=limits, pool=8, tls=mine) as transport:
                    for start in range(first, first + count, 20):
                        numbers = range(start, min(start + 20, first + count))
                        posted += await asyncio.gather(*(post(transport, number, draw) for number in numbers))
                await server.idle()
                if any(one.evidence.sent and one.evidence.status is None for one in posted):
                    break
        return posted, server


def mismatches(posted: list[Posted], server: Server) -> list[Posted]:
    """What was said never to be sent, and of which anything at all arrived."""
    arrived = {int(head.headers["x-number"]) for head in server.heads}
    return [one for one in posted if not one.evidence.sent and one.number in arrived]


@pytest.mark.trial(short=150, ci=600, long=40_000)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("beside", [False, True], ids=["one loop", "beside"])
@pytest.mark.parametrize("over", ["plain", "TLS"])
async def test_requests_reported_as_never_sent_never_arrived(
    certificates: Certificates,
    over: str,
    beside: bool,
    size: int,
    record_property: Callable[[str, object], None],
):
    trial = Trial(tls=certificates if over == "TLS" else None, beside=beside)
    posted, server = await trial.run(size, seed=20)

    whole = Counter(int(request.headers["x-number"]) for request in server.requests)
    sent = [one for one in posted if one.evidence.sent]
    told = {
        "posts": len(posted),
        "never sent": len(posted) - len(sent),
        "sent": len(sent),
        "arrived whole": len(whole),
        "cancelled": sum(one.cancelled for one in posted),
        "answered": sum(one.evidence.status is not None for one in posted),
        "mismatches": len(mismatches(posted, server)),
    }
    for name, figure in told.items():
        record_property(name, figure)
    print(told)  # noqa: T201 - the figures are part of the result
    assert len(posted) >= size
    assert mismatches(posted, server) == []
    assert max(whole.values()) == 1
    assert set(whole) <= {one.number for one in sent}
    assert len(sent) < len(posted)  # both sides of the question came up
    assert any(one.evidence.status is None for one in sent)


# --- a body that is large, and cancelled while it is written ------------------------------------


async def cancel_while_writing() -> tuple[ExchangeResult, Server]:
    """Cancel a large order while it is written; the rest of it arrives all the same."""
    read_on = asyncio.Event()

    async def read_late(connection: Connection) -> None:
        connection.writer.transport.pause_reading()
        await connection.bytes_waiting()
        await read_on.wait()
        connection.writer.transport.resume_reading()
        await connection.request()

    async with (
        serving(read_late, reading=False) as server,
        transport_to(server, limits=Timeouts()) as transport,
    ):
        body = GuardedBody(LARGE, in_time=lambda: True)
        task = asyncio.create_task(transport.post_order(body, headers=CIMultiDict(), left=25.0))
        await until(lambda: server.open)
        await server.open[0].bytes_waiting()
        task.cancel()
        evidence = await task
        read_on.set()
        await server.idle()
    return evidence, server


# --- what must hold, and what somebody might write instead --------------------------------------


async def what_is_cancelled_while_it_is_written_was_sent(bank: Bank, loop_time: LoopTime) -> None:
    """It still arrives."""
    evidence, server = await cancel_while_writing()

    assert evidence.sent
    assert evidence.status is None
    assert isinstance(evidence.error, asyncio.CancelledError)
    assert len(server.requests) == 1


async def what_came_on_a_busy_loop_is_nobodys_order(bank: Bank, loop_time: LoopTime) -> None:
    """Before the second of two orders somebody else's answer came."""
    async with serving(answers) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="first")
        write = GuardedBody.write_with_length

        async def answered(body: GuardedBody, writer: Any, content_length: int | None) -> None:
            if server.accepted == 1:
                server.open[0].send(foreign_reply())
            await write(body, writer, content_length)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(GuardedBody, "write_with_length", answered)
            second = client.create_order(samples.new_order(), key="second")
            (result,) = await asyncio.gather(second, return_exceptions=True)

    assert isinstance(result, Order)
    assert result.id.startswith("tx-0")


async def what_came_before_the_question_is_no_answer(bank: Bank, loop_time: LoopTime) -> None:
    async with serving(answers) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="first")
        server.open[0].send(foreign_reply())
        await turns(20)
        second = client.create_order(samples.new_order(), key="second")
        (result,) = await asyncio.gather(second, return_exceptions=True)

    assert isinstance(result, Order)
    assert len(server.requests) == 2


async def a_page_behind_a_303_is_no_order(bank: Bank, loop_time: LoopTime) -> None:
    """It shows one that is like it."""

    async def show_an_order(connection: Connection) -> None:
        await connection.request()
        connection.send(order_reply(server.requests[0]))

    async with serving(show_an_order) as elsewhere:
        answer = http(303, headers={"Location": f"{elsewhere.url}/orders/latest"})
        async with serving(replies(answer)) as server, bank.client(server.url) as client:
            order = client.create_order(samples.new_order())
            (result,) = await asyncio.gather(order, return_exceptions=True)

    assert isinstance(result, OutcomeUnknown)
    assert elsewhere.accepted == 0


async def a_body_goes_once_even_where_redirects_are_followed(bank: Bank, loop_time: LoopTime) -> None:
    """An order is answered with 307 to the same place, always."""
    answer = http(307, headers={"Location": "/api/api/v1/order/create"})
    with pytest.MonkeyPatch.context() as patched:
        follow_redirects(patched)
        async with serving(replies(answer)) as server:
            await bank.try_order(server.url)

    assert len(server.requests) == 1
    assert bank.funds.state == "kept"


async def an_order_without_an_answer_is_sent_once(bank: Bank, loop_time: LoopTime) -> None:
    async def takes_too_long(connection: Connection) -> None:
        await connection.request()
        await loop_time.pass_(Timeouts().total + 1.0)
        await connection.gone()

    async with serving(takes_too_long) as server:
        await bank.try_order(server.url)

    assert len(server.requests) == 1


async def an_exceptions_status_is_no_answer(bank: Bank, loop_time: LoopTime) -> None:
    """For over-long headers aiohttp raises an error with status 400."""
    async with serving(then_closes(long_header(1 << 20))) as server:
        error = await bank.try_order(server.url)

    assert isinstance(error, OutcomeUnknown)
    assert bank.funds.state == "kept"


def tell_once_it_is_written(patch: pytest.MonkeyPatch) -> None:
    async def write(body: GuardedBody, writer: Any, content_length: int | None) -> None:
        await aiohttp.BytesPayload.write_with_length(body, writer, content_length)
        body.spent = body.handed_over = True

    patch.setattr(GuardedBody, "write_with_length", write)


def do_not_look(patch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> bool:
        return await asyncio.sleep(0, result=False)

    patch.setattr(write_guard, "_is_stale", never)


def believe_an_answer_before_it_was_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuardedBody, "adopted", property(lambda _: False, lambda *_: None), raising=False)
    do_not_look(patch)


def follow_redirects(patch: pytest.MonkeyPatch) -> None:
    """As aiohttp does by default."""
    request = aiohttp.ClientSession.request

    def follow(session: aiohttp.ClientSession, *args: Any, **options: Any) -> Any:
        return request(session, *args, **{**options, "allow_redirects": True})

    patch.setattr(aiohttp.ClientSession, "request", follow)


def hand_a_body_over_again(patch: pytest.MonkeyPatch) -> None:
    async def write(body: GuardedBody, writer: Any, content_length: int | None) -> None:
        body.handed_over = True
        await aiohttp.BytesPayload.write_with_length(body, writer, content_length)

    patch.setattr(GuardedBody, "write_with_length", write)


def try_again_after_a_time_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempt, "_may_retry", lambda *_: True)


def go_by_the_exceptions_type(patch: pytest.MonkeyPatch) -> None:
    """A bare TimeoutError before anything was sent, and one after: the type cannot tell."""
    _evidence_as(patch, lambda found: {"sent": not isinstance(found.error, TimeoutError)})


def take_a_status_from_an_exception(patch: pytest.MonkeyPatch) -> None:
    _evidence_as(patch, lambda found: {"status": getattr(found.error, "status", found.status)})


def _evidence_as(patch: pytest.MonkeyPatch, seen: Callable[[ExchangeResult], dict[str, Any]]) -> None:
    post_order = Transport.post_order

    async def post(*args: Any, **named: Any) -> ExchangeResult:
        found = await post_order(*args, **named)
        return evolve(found, **seen(found))

    patch.setattr(Transport, "post_order", post)


Check = Callable[[Bank, LoopTime], Awaitable[None]]
FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Check]] = [
    (tell_once_it_is_written, what_is_cancelled_while_it_is_written_was_sent),
    (do_not_look, what_came_on_a_busy_loop_is_nobodys_order),
    (believe_an_answer_before_it_was_asked, what_came_before_the_question_is_no_answer),
    (follow_redirects, a_page_behind_a_303_is_no_order),
    (hand_a_body_over_again, a_body_goes_once_even_where_redirects_are_followed),
    (try_again_after_a_time_out, an_order_without_an_answer_is_sent_once),
    (go_by_the_exceptions_type, an_order_without_an_answer_is_sent_once),
    (take_a_status_from_an_exception, an_exceptions_status_is_no_answer),
]


@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in FAULTS), ids=lambda one: one.__name__)
async def test_each_rule_holds_for_the_real_code(check: Check, bank: Bank, loop_time: LoopTime):
    await check(bank, loop_time)


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=lambda one: one.__name__)
async def test_a_deliberate_fault_is_found(
    fault: Any, check: Check, bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        await check(bank, loop_time)


async def test_the_trial_finds_a_body_that_reports_too_late(monkeypatch: pytest.MonkeyPatch):
    tell_once_it_is_written(monkeypatch)
    for seed in range(20, 120):  # how many cancellations meet a body half written is the machine's doing
        if mismatches(*await Trial().run(200, seed=seed)):
            return
    pytest.fail("the trial does not notice")


async def test_an_unknown_outcome_in_the_retry_table_does_not_cause_a_second_send(
    bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transfer_async._http.classify.RETRYABLE", RETRYABLE | {Classification.UNKNOWN})
    await an_order_without_an_answer_is_sent_once(bank, loop_time)
