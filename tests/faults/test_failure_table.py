"""What each kind of failed request proves, row by row, over real connections and with what the server really
got.

Each row says how the exchange fails and which error the call raises. The error's class determines its
outcome, whether an order may exist, and whether the hold is released.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import ANY

import aiohttp
import pytest
from attrs import field, frozen

from tests.support import samples
from tests.support.bank import turns
from tests.support.cases import each
from tests.support.loop_time import MUST_RUN_OUT, LoopTime
from transfer_async import Clock, RetryPolicy, Timeouts
from transfer_async._models.errors import (
    ConnectionFailed,
    Expired,
    Outcome,
    OutcomeUnknown,
    RateLimited,
    Refused,
    TransferError,
    Unauthorized,
    UnreadableOrder,
)

from .parties import Bank, Certificates
from .servers import (
    Connection,
    Script,
    answers,
    chunked,
    foreign_reply,
    head,
    http,
    order_body,
    order_reply,
    replies,
    serving,
    then_closes,
)

JSON_NO = b'{"message": "No."}'
UNAUTHORIZED = b'{"message": "Unauthorized"}'
PAGE = b"<html>Blocked</html>"
AS_PAGE = {"Content-Type": "text/html"}
CHUNKED = {"Transfer-Encoding": "chunked"}
ONCE = RetryPolicy(attempts=1)
REFUSED = [400, 402, 404, 405, 410, 413, 417, 421, 422, 451]
UNKNOWN = [300, 305, 308, 408, 409, 418, 499, 500, 502, 503, 504, 505, 522, 599]
"""Some statuses that prove nothing; tests/_http/test_classify.py has all."""

IN_TIME = Timeouts(total=19.0)
"""Timeouts that expire before a service that waits 20 seconds responds."""


def expect(error: TransferError, bank: Bank, kind: type[TransferError]) -> None:
    """Check what follows from an error's class: its outcome, the hold, and one attempt for a doubt."""
    if issubclass(kind, OutcomeUnknown):
        expected = (Outcome.UNKNOWN, True, "kept")
        assert (len(error.attempts), bank.pauses) == (1, [])
    elif issubclass(kind, Refused):
        expected = (Outcome.REFUSED, False, "released")
    else:
        expected = (Outcome.NOT_SENT, False, "released")
    assert type(error) is kind
    assert (error.outcome, error.order_may_exist, bank.funds.state) == expected


# --- no connection is had: nothing was sent -----------------------------------------------------


async def test_a_refused_connection_means_not_sent_and_is_retried(bank: Bank, closed_port: int):
    error = await bank.try_order(f"http://127.0.0.1:{closed_port}")

    expect(error, bank, ConnectionFailed)
    assert [attempt.outcome for attempt in error.attempts] == [Outcome.NOT_SENT] * 4
    assert isinstance(error.__cause__, aiohttp.ClientConnectorError)
    assert len(bank.pauses) == 3


async def test_an_order_is_not_sent_if_the_host_is_unknown(bank: Bank, monkeypatch: pytest.MonkeyPatch):
    def unknown_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    error = await bank.try_order("https://service.invalid", retry=ONCE)

    expect(error, bank, ConnectionFailed)
    assert isinstance(error.__cause__, aiohttp.ClientConnectorDNSError)


@pytest.mark.parametrize("limit", ["connect", "total"])
async def test_an_order_is_not_sent_if_name_resolution_times_out(bank: Bank, limit: str):
    # `total` raises a bare TimeoutError, whether or not the request was sent.
    class Silent(aiohttp.abc.AbstractResolver):
        async def resolve(self, *_: object, **__: object) -> Any:
            await asyncio.Event().wait()

        async def close(self) -> None:
            pass

    connector = aiohttp.TCPConnector(resolver=Silent())
    async with aiohttp.ClientSession(connector=connector) as session:
        error = await bank.try_order(
            "https://service.invalid", session=session, retry=ONCE, timeouts=Timeouts(**{limit: MUST_RUN_OUT})
        )

    expect(error, bank, ConnectionFailed)
    assert isinstance(error.__cause__, TimeoutError)


def breaks_off_with(data: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.reader.read(100)
        connection.send(data)

    return script


HANDSHAKES = {
    "an unknown authority": (answers, "server", None),
    "the certificate of another host": (answers, "other_server", "client"),
    "an expired certificate": (answers, "old_server", "client"),
    "a plain response": (breaks_off_with(b"HTTP/1.1 400 Speak plainly\r\n\r\n"), None, "client"),
    "an alert": (breaks_off_with(b"\x15\x03\x03\x00\x02\x02\x28"), None, "client"),
    "nothing": (breaks_off_with(b""), None, "client"),
}


@pytest.mark.parametrize(("script", "shown", "trusted"), HANDSHAKES.values(), ids=HANDSHAKES)
async def test_a_failed_tls_handshake_sends_no_order(
    bank: Bank, certificates: Certificates, script: Script, shown: str | None, trusted: str | None
):
    own, trust = (getattr(certificates, name) if name else None for name in (shown, trusted))
    async with serving(script, tls=own) as server:
        error = await bank.try_order(server.url.replace("http:", "https:"), ssl=trust, retry=ONCE)

    expect(error, bank, ConnectionFailed)
    assert isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError) is (shown is not None)
    assert server.heads == []


def says_nothing_for(seconds: float, loop_time: LoopTime) -> Script:
    """Return a script that never answers the handshake."""

    async def script(connection: Connection) -> None:
        await connection.reader.read(1)
        await loop_time.pass_(seconds)
        await connection.gone()

    return script


async def test_an_order_is_not_sent_if_the_tls_handshake_hangs(
    bank: Bank, certificates: Certificates, loop_time: LoopTime
):
    async with serving(says_nothing_for(6.0, loop_time)) as server:
        error = await bank.try_order(
            server.url.replace("http:", "https:"),
            ssl=certificates.client,
            retry=ONCE,
            timeouts=Timeouts(sock_connect=5.0),
        )

    expect(error, bank, ConnectionFailed)
    assert isinstance(error.__cause__, aiohttp.ConnectionTimeoutError)


@contextmanager
def full_backlog() -> Iterator[int]:
    """Yield a port with a full accept queue: further connections are neither established nor refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_an_order_is_not_sent_if_connecting_times_out(bank: Bank):
    with full_backlog() as port:
        error = await bank.try_order(
            f"http://127.0.0.1:{port}", retry=ONCE, timeouts=Timeouts(sock_connect=MUST_RUN_OUT)
        )

    expect(error, bank, ConnectionFailed)
    assert isinstance(error.__cause__, aiohttp.ConnectionTimeoutError)


@pytest.mark.parametrize("limit", ["connect", "total"])
async def test_an_order_is_not_sent_if_waiting_for_the_pool_times_out(bank: Bank, limit: str):
    may_answer = asyncio.Event()

    async def answer_late(connection: Connection) -> None:
        request = await connection.request()
        await may_answer.wait()
        connection.send(order_reply(request))

    async with serving(answer_late) as server:
        connector = aiohttp.TCPConnector(limit=1)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            Bank().client(server.url, session=session) as other,
        ):
            first = asyncio.create_task(other.create_order(samples.new_order(), key="first"))
            await server.got_request.wait()
            error = await bank.try_order(
                server.url, session=session, retry=ONCE, timeouts=Timeouts(**{limit: MUST_RUN_OUT})
            )
            may_answer.set()
            await first

    expect(error, bank, ConnectionFailed)
    assert len(server.requests) == 1


# --- the whole request arrived ------------------------------------------------------------------


def then_waits(loop_time: LoopTime, *pieces: bytes) -> Script:
    """Return a script that reads one request, sends the pieces one by one, and lets 20 seconds pass."""

    async def script(connection: Connection) -> None:
        await connection.request()
        for piece in pieces:
            connection.send(piece)
            await turns(20)  # by now the client has read the piece
        await loop_time.pass_(20.0)
        await connection.gone()

    return script


def then_resets(*pieces: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.request()
        for piece in pieces:
            connection.send(piece)
            await connection.drain()
        connection.reset()

    return script


async def half_closes(connection: Connection) -> None:
    await connection.request()
    connection.writer.write_eof()
    await connection.gone()


def order_as(form: Callable[[bytes], bytes]) -> Script:
    """Return a script that responds with the order's bytes, changed by ``form``, and closes."""

    async def script(connection: Connection) -> None:
        request = await connection.request()
        connection.send(form(order_body(request)))

    return script


def squeezed(encoding: str, body: bytes, *, cut: int | None = None, status: int = 200) -> bytes:
    """Return a compressed response, truncated if ``cut`` is given."""
    small = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](body)
    return http(status, small[:cut], headers={"Content-Encoding": encoding})


def cut_refusals(status: int) -> dict[str, bytes]:
    """Return refusals whose bodies are truncated."""
    return {
        "length": head(status, {"Content-Length": "100"}) + JSON_NO[:-4],
        "chunks": head(status, CHUNKED) + chunked(JSON_NO[:-4], end=False),
        "gzip": squeezed("gzip", JSON_NO, cut=-10, status=status),
        "close": head(status, {"Connection": "close"}) + JSON_NO[:-4],
    }


@frozen
class Row:
    """The behaviour of a service after it has read one complete request, and the resulting error.

    Args:
        does: bytes to send before closing; or several pieces, after which 20 seconds pass; or a script.
        kind: the class of the error.
        status: the status in the error.
        cause: the class of the error's cause.
        message: the service's message in the error.
        settings: the settings of the client.
    """

    does: bytes | tuple[bytes, ...] | Script
    kind: type[TransferError] = OutcomeUnknown
    status: int | None = None
    cause: type[object] = object
    message: Any = ANY
    settings: dict[str, Any] = field(factory=dict)

    def script(self, loop_time: LoopTime) -> Script:
        if isinstance(self.does, bytes):
            return then_closes(self.does)
        return then_waits(loop_time, *self.does) if isinstance(self.does, tuple) else self.does


CHUNK = head(200, CHUNKED) + chunked(b'{"id":', end=False)
BROKEN_CHUNK = b"not-a-length\r\n"
UPGRADE = head(101, {"Upgrade": "websocket", "Connection": "Upgrade"})
SLOW_READ = {"timeouts": Timeouts(sock_read=5.0)}
NO_ANSWER = {
    "FIN": Row(b""),
    "FIN, and it goes on reading": Row(half_closes),
    "RST": Row(then_resets()),
    "one byte": Row(b"H"),
    "half a status line": Row(b"HTTP/1.1 20"),
    "a status line and no headers": Row(b"HTTP/1.1 200 OK\r\n"),
    "half the headers": Row(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "half a refusal": Row(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2"),
    "a status line, then RST": Row(then_resets(b"HTTP/1.1 200 OK\r\n")),
    "100 and no more": Row(head(100)),
    "103 and no more": Row(head(103)),
    "garbage": Row(b"\x16\x03\x01\x02\x00\x01garbage\r\n\r\n"),
    "another protocol": Row(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "a status that is none": Row(b"HTTP/1.1 400x Bad\r\n\r\n"),
    "a status of five digits": Row(b"HTTP/1.1 99999 Bad\r\n\r\n"),
    "a header that is none": Row(b"HTTP/1.1 400 Bad\r\nno colon here\r\n\r\n"),
    "over-long headers, 400 to aiohttp": Row(
        http(200, b"{}", headers={"X-Long": "x" * (1 << 20)}), cause=aiohttp.ClientResponseError
    ),
    "a length and chunks at once": Row(http(422, JSON_NO, headers=CHUNKED)),
    "a length below zero": Row(http(422, JSON_NO, headers={"Content-Length": "-1"})),
    "a broken chunk with the headers": Row((CHUNK + BROKEN_CHUNK,), settings={"timeouts": IN_TIME}),
    "nothing within sock_read": Row((), cause=aiohttp.SocketTimeoutError, settings=SLOW_READ),
    "nothing within total": Row((), cause=TimeoutError, settings={"timeouts": IN_TIME}),
    "nothing within the deadline": Row(
        (), cause=TimeoutError, settings={"retry": RetryPolicy(deadline=19.0)}
    ),
}
NO_ORDER = {
    "200 and nothing": http(200),
    "201 and nothing": http(201),
    "204": http(204),
    "205": http(205),
    "null": http(200, b"null"),
    "a list": http(200, b"[]"),
    "an empty object": http(200, b"{}"),
    "another object": http(200, b'{"status": "ok"}'),
    "a login page": http(200, PAGE, headers=AS_PAGE),
    "no text at all": http(200, b"\xff\xfe\x00"),
    "a no with a 200": http(200, b'{"message": "No"}'),
    "somebody else's order": foreign_reply(),
    "compressed, but is not": http(200, b"not gzip at all", headers={"Content-Encoding": "gzip"}),
}
UNREADABLE = {
    **{name: Row(answer, UnreadableOrder, int(answer[9:12])) for name, answer in NO_ORDER.items()},
    "cut deflate": Row(order_as(lambda body: squeezed("deflate", body, cut=-200)), UnreadableOrder, 200),
    "a compression that was not offered": Row(
        http(200, b"\x0b\x02\x80squeezed", headers={"Content-Encoding": "br"}), UnreadableOrder, 200
    ),
    "a body that stops coming": Row(
        (head(200, {"Content-Length": "8000"}) + b" " * 4000,),
        UnreadableOrder,
        200,
        cause=aiohttp.SocketTimeoutError,
        settings=SLOW_READ,
    ),
    "a chunk, then a broken one": Row(
        (CHUNK, BROKEN_CHUNK), UnreadableOrder, 200, settings={"timeouts": IN_TIME}
    ),
}
REFUSING = {
    **{f"{status}": Row(http(status, JSON_NO), Refused, status, message="No.") for status in REFUSED},
    **{
        f"{status} cut, {form}": Row(answer, Refused, status)
        for status in (400, 422)
        for form, answer in cut_refusals(status).items()
    },
    **{
        f"{status} with a page": Row(http(status, PAGE, headers=AS_PAGE), Refused, status, message=None)
        for status in (400, 422)
    },
    **{
        f"{status} with another order": Row(
            http(status, samples.encode(samples.order_json(seed=99))), Refused, status
        )
        for status in (400, 403, 422)
    },
    "422 whose body never comes": Row(
        (head(422, {"Content-Length": "100"}),), Refused, 422, settings=SLOW_READ
    ),
    **{
        f"{status} {body!r}": Row(replies(http(status, body)), Unauthorized, status)
        for status, body in (
            *((401, body) for body in (UNAUTHORIZED, PAGE, b"")),
            *((200, UNAUTHORIZED), (201, b'{"message":"Unauthorized"}')),
            *((403, UNAUTHORIZED), (409, UNAUTHORIZED)),
        )
    },
}
PROVING_NOTHING = {
    **{
        f"{status} with {body!r}": Row(http(status, body, headers={"Retry-After": "1"}), status=status)
        for status in UNKNOWN
        for body in (JSON_NO, PAGE, b"")
    },
    **{f"{status} cut": Row(cut_refusals(status)["length"], status=status) for status in (500, 503)},
    "304": Row(http(304), status=304),
    "101": Row((UPGRADE,), status=101, settings={"timeouts": IN_TIME}),
    "403 with a firewall's page": Row(http(403, PAGE, headers=AS_PAGE), status=403),
    **{f"403 cut, {form}": Row(answer, status=403) for form, answer in cut_refusals(403).items()},
}
ROWS = {**NO_ANSWER, **UNREADABLE, **REFUSING, **PROVING_NOTHING}


@each("row", ROWS)
async def test_an_answer_proves_no_more_than_its_row_says(loop_time: LoopTime, row: Row):
    bank = Bank()
    async with serving(row.script(loop_time)) as server:
        error: Any = await bank.try_order(server.url, **row.settings)

    expect(error, bank, row.kind)
    assert (error.status, error.attempts[-1].status) == (row.status, row.status)
    assert isinstance(error.__cause__, row.cause)
    assert getattr(error, "message", row.message) == row.message
    assert len(server.requests) == 1


CUT: dict[str, Callable[[bytes], bytes]] = {
    "with its length": lambda body: head(200, {"Content-Length": str(len(body))}) + body[:-1000],
    "without": lambda body: head(200, {"Connection": "close"}) + body[:-1000],
    "in chunks": lambda body: head(200, CHUNKED) + chunked(body[:2000], body[2000:4000], end=False),
    "gzip": lambda body: squeezed("gzip", body, cut=-200),
}


@pytest.mark.parametrize("form", CUT.values(), ids=CUT)
async def test_a_2xx_with_a_cut_body_is_unreadable_and_names_its_order(
    bank: Bank, form: Callable[[bytes], bytes]
):
    async with serving(order_as(form)) as server:
        error: Any = await bank.try_order(server.url)

    expect(error, bank, UnreadableOrder)
    assert error.raw.startswith(b'{"id":')
    assert error.order_id.encode() in error.raw
    assert len(server.requests) == 1


async def test_a_server_that_closes_without_reading_leaves_a_doubt(bank: Bank):
    async def never_reads(connection: Connection) -> None:
        await connection.bytes_waiting()
        connection.reset()

    async with serving(never_reads, reading=False) as server:
        error = await bank.try_order(server.url)

    expect(error, bank, OutcomeUnknown)
    assert (server.requests, server.accepted) == ([], 1)


# --- the caller's deadline passes ---------------------------------------------------------------


def on_the_loops_time(bank: Bank) -> tuple[Clock, datetime]:
    """Return a clock that follows the loop's time, and the time 19 seconds from now."""
    loop = asyncio.get_running_loop()
    noon, began = datetime(2024, 5, 6, 12, tzinfo=UTC), loop.time()

    def utc() -> datetime:
        return noon + timedelta(seconds=loop.time() - began)

    def now() -> float:
        return loop.time()  # looked up on each call, because `LoopTime` patches it

    return Clock(now=now, utc=utc, sleep=bank.sleep), noon + timedelta(seconds=19.0)


async def test_an_order_whose_deadline_passes_during_the_handshake_is_never_sent(
    bank: Bank, certificates: Certificates, loop_time: LoopTime
):
    clock, deadline = on_the_loops_time(bank)
    timeouts = Timeouts(connect=60.0, sock_connect=60.0, total=60.0)
    async with serving(says_nothing_for(20.0, loop_time)) as server:
        url = server.url.replace("http:", "https:")
        trust = certificates.client
        error = await bank.try_order(url, ssl=trust, clock=clock, deadline=deadline, timeouts=timeouts)

    expect(error, bank, Expired)
    assert server.requests == []
    assert bank.pauses == []


async def test_a_deadline_that_passes_once_the_body_was_handed_over_leaves_a_doubt(
    bank: Bank, loop_time: LoopTime
):
    clock, deadline = on_the_loops_time(bank)
    async with serving(then_waits(loop_time)) as server:
        error = await bank.try_order(server.url, clock=clock, deadline=deadline)

    expect(error, bank, OutcomeUnknown)
    assert len(server.requests) == 1
    assert isinstance(error.__cause__, TimeoutError)


# --- certificates and sessions ------------------------------------------------------------------


async def test_a_missing_client_certificate_is_never_taken_for_an_answer(
    bank: Bank, certificates: Certificates
):
    # With TLS 1.3, the client's handshake ends before the server's check, so the body may already be sent.
    async with serving(answers, tls=certificates.strict_server) as server:
        error = await bank.try_order(server.url, ssl=certificates.client, retry=ONCE)

    assert server.requests == []
    assert (error.outcome, bank.funds.state) in [(Outcome.UNKNOWN, "kept"), (Outcome.NOT_SENT, "released")]


async def test_a_session_that_closes_in_flight_leaves_a_doubt(bank: Bank):
    async with serving(Connection.gone_after_request) as server:
        session = aiohttp.ClientSession()
        ending = asyncio.create_task(bank.try_order(server.url, session=session))
        await server.got_request.wait()
        await session.close()
        error = await ending

    expect(error, bank, OutcomeUnknown)
    assert len(server.requests) == 1


async def test_an_order_is_not_sent_on_a_closed_session(bank: Bank):
    session = aiohttp.ClientSession()
    await session.close()
    async with serving(answers) as server:
        error = await bank.try_order(server.url, session=session, retry=ONCE)

    expect(error, bank, ConnectionFailed)
    assert server.accepted == 0


# --- more than one attempt ----------------------------------------------------------------------


def without(body: bytes, *names: str) -> bytes:
    """Return the order without the values of the named fields."""
    return samples.encode({**json.loads(body, parse_float=Decimal), **dict.fromkeys(names)})


AS_WRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "whole": lambda body: body,
    "cut off": lambda body: body[:-200],
    "cut off before the usernames": lambda body: body[:250],
    "cut off after the id": lambda body: body[:40],
    "without its parties": lambda body: without(body, "user", "postersBeneficiary"),
    "inside another object, without the poster": lambda body: b'{"order": %b}' % without(body, "user"),
    "unreadable": lambda body: body.replace(b'"poster_amount"', b'"amount_of_poster"'),
    "inside another object": lambda body: b'{"message": "limit reached", "order": %b}' % body,
    "as text": lambda body: json.dumps({"message": "limit reached", "response": body.decode()}).encode(),
    "beside another order": lambda body: b'[%b, {"id": "tx-other"}]' % body,
    "the id alone": lambda _: b'{"id": "tx-exists"}',  # A final refusal may contain the id of another order.
}
"""What a proxy may make of an order."""


@pytest.mark.parametrize(
    ("status", "form"),
    [
        *((status, "whole") for status in (400, 401, 403, 425)),
        *((status, "the id alone") for status in (401, 425)),
        *((422, form) for form in AS_WRITTEN if form != "the id alone"),
        *((429, form) for form in AS_WRITTEN),
    ],
)
async def test_a_refusal_that_contains_the_order_is_a_doubt(bank: Bank, status: int, form: str):
    """A proxy may replace the status of a response, but not invent the order in its body."""

    async def refuse_what_exists(connection: Connection) -> None:
        while request := await connection.request():
            connection.send(http(status, AS_WRITTEN[form](order_body(request, id="tx-exists"))))

    async def token() -> str:
        return f"token-{len(bank.events)}"  # Each call returns a new token.

    async with serving(refuse_what_exists) as server:
        error = await bank.try_order(server.url, token=token)

    expect(error, bank, UnreadableOrder)
    assert error.order_id == (None if form in ("as text", "beside another order") else "tx-exists")
    assert len(server.requests) == 1


async def test_a_final_refusal_may_contain_the_id_of_another_order(bank: Bank):
    async with serving(replies(http(422, b'{"message": "No.", "duplicate": {"id": "tx-other"}}'))) as server:
        error = await bank.try_order(server.url)

    expect(error, bank, Refused)


@pytest.mark.parametrize(("status", "kind", "attempts"), [(425, Refused, 4), (429, RateLimited, 3)])
async def test_an_order_that_is_never_processed_ends_in_a_definite_failure(
    bank: Bank, status: int, kind: type[Refused], attempts: int
):
    async with serving(replies(http(status, JSON_NO, headers={"Retry-After": "3"}))) as server:
        error = await bank.try_order(server.url)

    expect(error, bank, kind)
    assert error.retry_after == 3.0
    assert len(server.requests) == len(error.attempts) == attempts
    assert bank.pauses == [3.0] * (attempts - 1)


async def test_a_lost_answer_after_a_429_is_a_doubt(bank: Bank):
    async def first_no_then_nothing(connection: Connection) -> None:
        await connection.request()
        connection.send(http(429, JSON_NO))
        await connection.request()

    async with serving(first_no_then_nothing) as server:
        error = await bank.try_order(server.url)

    assert type(error) is OutcomeUnknown
    assert error.order_may_exist
    assert [attempt.outcome for attempt in error.attempts] == [Outcome.REFUSED, Outcome.UNKNOWN]
    assert bank.funds.state == "kept"
    assert len(server.requests) == 2


# --- what is well is well -----------------------------------------------------------------------


WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "200": lambda body: http(200, body),
    "201": lambda body: http(201, body),
    "closing": lambda body: head(200, {"Connection": "close"}) + body,
    "chunks": lambda body: head(200, CHUNKED) + chunked(body[:3000], body[3000:]),
    "gzip": lambda body: squeezed("gzip", body),
    "deflate": lambda body: squeezed("deflate", body),
    "HTTP/1.0": lambda body: b"HTTP/1.0 200 OK\r\n\r\n" + body,
    "labelled a page": lambda body: http(200, body, headers=AS_PAGE),
}


@pytest.mark.parametrize("form", WHOLE.values(), ids=WHOLE)
async def test_an_order_is_read_in_every_encoding(bank: Bank, form: Callable[[bytes], bytes]):
    async with serving(order_as(form)) as server:
        order = await bank.send_order(server.url)

    assert order.user.username == samples.new_order().poster_username
    assert bank.funds.state == "kept"
    assert await bank.state(server.url) == "created"
    assert len(server.requests) == 1
