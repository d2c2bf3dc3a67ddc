"""Whenever the evidence says "never sent", the service never got the request: by trial, and by mutants."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from attrs import define, evolve, frozen
from multidict import CIMultiDict

from tests.support import samples
from tests.support.bank import turns
from tests.support.loop_time import LoopTime
from transfer_async import Timeouts
from transfer_async._http import write_guard
from transfer_async._http.classify import MAY_GO_AGAIN, Judgement
from transfer_async._http.transport import Evidence, Transport
from transfer_async._http.write_guard import GuardedBody
from transfer_async._models.errors import Outcome, OutcomeUnknown, Refused, UnreadableOrder
from transfer_async._pipeline import send

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
    evidence: Evidence
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
        evidence = Evidence(sent=False)
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
async def test_what_is_said_never_to_be_sent_never_arrived(
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


async def cancel_while_writing() -> tuple[Evidence, Server]:
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


async def test_an_order_cancelled_while_it_is_written_was_sent_for_it_still_arrives():
    evidence, server = await cancel_while_writing()

    assert evidence.sent
    assert evidence.status is None
    assert isinstance(evidence.error, asyncio.CancelledError)
    assert len(server.requests) == 1


# --- deliberate faults: each breaks a property that a test above or beside this one holds --------


async def write_then_tell(body: GuardedBody, writer: Any, content_length: int | None) -> None:
    await aiohttp.BytesPayload.write_with_length(body, writer, content_length)
    body.spent = body.handed_over = True


async def test_a_body_that_tells_too_late_would_be_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GuardedBody, "write_with_length", write_then_tell)
    evidence, server = await cancel_while_writing()

    assert not evidence.sent
    assert len(server.requests) == 1


async def test_a_body_that_tells_too_late_would_be_caught_by_the_trial(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GuardedBody, "write_with_length", write_then_tell)
    for seed in range(20, 120):  # how many cancellations meet a body half written is the machine's doing
        if mismatches(*await Trial().run(200, seed=seed)):
            return
    pytest.fail("the trial does not notice")


async def foreign_answer_on_a_busy_loop(bank: Bank) -> tuple[Server, Any]:
    """The second of two orders, before which somebody else's answer came."""
    async with serving(answers) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="first")
        write = GuardedBody.write_with_length

        async def answered(body: GuardedBody, writer: Any, content_length: int | None) -> None:
            if server.accepted == 1:
                server.open[0].send(foreign_reply())
            await write(body, writer, content_length)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(GuardedBody, "write_with_length", answered)
            try:
                return server, await client.create_order(samples.new_order(), key="second")
            except UnreadableOrder as error:
                return server, error


async def test_the_look_leads_to_an_order(bank: Bank):
    _, result = await foreign_answer_on_a_busy_loop(bank)

    assert result.id.startswith("tx-0")


async def test_a_client_that_does_not_look_would_be_caught(bank: Bank, monkeypatch: pytest.MonkeyPatch):
    async def never(*_: object) -> bool:
        return False

    monkeypatch.setattr(write_guard, "_is_stale", never)
    _, result = await foreign_answer_on_a_busy_loop(bank)

    assert isinstance(result, UnreadableOrder)
    assert b"tx-FOREIGN" in result.raw


async def see_other(bank: Bank) -> tuple[Any, Server]:
    """An order that is answered with 303 to a page which shows a like order."""

    async def show_an_order(connection: Connection) -> None:
        await connection.request()
        connection.send(order_reply(server.requests[0]))

    async with serving(show_an_order) as elsewhere:
        answer = http(303, headers={"Location": f"{elsewhere.url}/orders/latest"})
        async with serving(replies(answer)) as server, bank.client(server.url) as client:
            try:
                return await client.create_order(samples.new_order()), elsewhere
            except OutcomeUnknown as error:
                return error, elsewhere


async def test_a_page_behind_a_303_is_no_order(bank: Bank):
    result, elsewhere = await see_other(bank)

    assert isinstance(result, OutcomeUnknown)
    assert elsewhere.accepted == 0


def follow_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: redirects are followed, as aiohttp does by default."""
    request = aiohttp.ClientSession.request

    def follow(session: aiohttp.ClientSession, *args: Any, **options: Any) -> Any:
        return request(session, *args, **{**options, "allow_redirects": True})

    monkeypatch.setattr(aiohttp.ClientSession, "request", follow)


async def test_a_client_that_follows_redirects_would_be_caught(bank: Bank, monkeypatch: pytest.MonkeyPatch):
    follow_redirects(monkeypatch)
    result, elsewhere = await see_other(bank)

    assert result.id.startswith("tx-")
    assert [request.method for request in elsewhere.requests] == ["GET"]


async def redirected_in_a_loop(bank: Bank) -> Server:
    """An order that is answered with 307 to the same place, always."""
    answer = http(307, headers={"Location": "/api/api/v1/order/create"})
    async with serving(replies(answer)) as server:
        await bank.try_order(server.url)
    return server


async def test_a_body_is_not_handed_over_twice_even_by_a_client_that_follows_redirects(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    follow_redirects(monkeypatch)
    server = await redirected_in_a_loop(bank)

    assert len(server.requests) == 1
    assert bank.funds.state == "kept"


async def test_a_body_that_lets_itself_be_sent_twice_would_be_caught(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    async def write(body: GuardedBody, writer: Any, content_length: int | None) -> None:
        body.handed_over = True
        await aiohttp.BytesPayload.write_with_length(body, writer, content_length)

    monkeypatch.setattr(GuardedBody, "write_with_length", write)
    follow_redirects(monkeypatch)
    server = await redirected_in_a_loop(bank)

    assert len(server.requests) == 10


async def lost_answer(bank: Bank, loop_time: LoopTime) -> Server:
    """An order that is never answered."""

    async def takes_too_long(connection: Connection) -> None:
        await connection.request()
        await loop_time.pass_(Timeouts().total + 1.0)
        await connection.gone()

    async with serving(takes_too_long) as server:
        await bank.try_order(server.url)
    return server


async def test_a_time_out_is_not_tried_again(bank: Bank, loop_time: LoopTime):
    server = await lost_answer(bank, loop_time)

    assert len(server.requests) == 1


async def test_a_client_that_tries_again_after_a_time_out_would_be_caught(
    bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(send, "_may_go_again", lambda *_: True)
    server = await lost_answer(bank, loop_time)

    assert len(server.requests) == 4


async def test_an_unknown_outcome_in_the_table_of_what_may_go_again_is_not_enough_to_send_twice(
    bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transfer_async._http.classify.MAY_GO_AGAIN", MAY_GO_AGAIN | {Judgement.UNKNOWN})
    server = await lost_answer(bank, loop_time)

    assert len(server.requests) == 1


async def over_long(bank: Bank) -> Any:
    """An answer with over-long headers, for which aiohttp raises an error with status 400."""
    async with serving(then_closes(long_header(1 << 20))) as server:
        return await bank.try_order(server.url)


async def test_a_client_that_takes_a_status_from_an_exception_would_be_caught(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    post_order = Transport.post_order

    async def believe(*args: Any, **named: Any) -> Evidence:
        evidence = await post_order(*args, **named)
        return evolve(evidence, status=getattr(evidence.error, "status", evidence.status))

    monkeypatch.setattr(Transport, "post_order", believe)
    error = await over_long(bank)

    assert isinstance(error, Refused)
    assert bank.funds.state == "released"


async def test_a_client_that_goes_by_the_exceptions_type_would_be_caught(
    bank: Bank, loop_time: LoopTime, monkeypatch: pytest.MonkeyPatch
):
    # A bare TimeoutError before anything was sent, and one after: the type cannot tell.
    post_order = Transport.post_order

    async def guess(*args: Any, **named: Any) -> Evidence:
        evidence = await post_order(*args, **named)
        return evolve(evidence, sent=not isinstance(evidence.error, TimeoutError))

    monkeypatch.setattr(Transport, "post_order", guess)
    server = await lost_answer(bank, loop_time)

    assert len(server.requests) == 4


async def test_a_client_that_believes_an_answer_before_it_asked_would_be_caught(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    def adopted(*_: object) -> bool:
        return False

    async def never(*_: object) -> bool:
        return await asyncio.sleep(0, result=False)

    monkeypatch.setattr(GuardedBody, "adopted", property(adopted, lambda *_: None), raising=False)
    monkeypatch.setattr(write_guard, "_is_stale", never)
    async with serving(answers) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="first")
        server.open[0].send(foreign_reply())
        await turns(20)
        with pytest.raises(UnreadableOrder) as caught:
            await client.create_order(samples.new_order(), key="second")

    assert caught.value.outcome is Outcome.UNKNOWN
    assert len(server.requests) == 1
