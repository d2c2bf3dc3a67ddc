"""What a failed request proves, row by row: over real connections, with what the server really got.

Each row says how the exchange goes wrong, and then: the error, its outcome, whether an order may
exist, how many whole requests arrived, and what became of the hold.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from tests.support import samples
from tests.support.bank import turns
from tests.support.cases import each
from tests.support.ids import told
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
    long_header,
    order_body,
    order_reply,
    replies,
    serving,
    then_closes,
)

JSON_NO = b'{"message": "No."}'
HTML = b"<html>Blocked</html>"
ONCE = RetryPolicy(attempts=1)
REFUSED = [400, *range(402, 408), *range(410, 418), 421, 422, 426, 428, 431, 451]
UNKNOWN = [
    *(300, 301, 302, 303, 305, 307, 308),
    *(408, 409, 418, 419, 420, 423, 424, 430, 440, 449, 450, 460, 494, 499),
    *(500, 501, 502, 503, 504, 505, 507, 511, 520, 521, 522, 524, 525, 530, 599),
]


def expect(error: TransferError, kind: type[TransferError], outcome: Outcome, *, may_exist: bool) -> None:
    """What every row says of its error."""
    assert type(error) is kind
    assert error.outcome is outcome
    assert error.order_may_exist is may_exist


def expect_not_sent(error: TransferError, bank: Bank) -> None:
    """Certainly never sent: the hold is released, once."""
    expect(error, ConnectionFailed, Outcome.NOT_SENT, may_exist=False)
    assert bank.funds.state == "released"


def expect_unknown(
    error: TransferError, bank: Bank, *, kind: type[TransferError] = OutcomeUnknown, status: int | None = None
) -> None:
    """In doubt: one attempt, no pause before another, and the hold is kept."""
    expect(error, kind, Outcome.UNKNOWN, may_exist=True)
    assert error.status == status
    assert bank.funds.state == "kept"
    assert len(error.attempts) == 1
    assert bank.pauses == []


def expect_refused(
    error: TransferError, bank: Bank, *, kind: type[TransferError] = Refused, status: int
) -> None:
    """A certain no: the hold is released, once."""
    expect(error, kind, Outcome.REFUSED, may_exist=False)
    assert error.status == status
    assert bank.funds.state == "released"


# --- no connection is had: nothing was sent -----------------------------------------------------


async def test_a_refused_connection_is_not_sent_and_tried_again(bank: Bank, closed_port: int):
    error = await bank.try_order(f"http://127.0.0.1:{closed_port}")

    expect_not_sent(error, bank)
    assert [attempt.outcome for attempt in error.attempts] == [Outcome.NOT_SENT] * 4
    assert isinstance(error.__cause__, aiohttp.ClientConnectorError)
    assert len(bank.pauses) == 3


async def test_a_name_that_does_not_resolve_is_not_sent(bank: Bank, monkeypatch: pytest.MonkeyPatch):
    def unknown_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown_name)
    error = await bank.try_order("https://service.invalid", retry=ONCE)

    expect_not_sent(error, bank)
    assert isinstance(error.__cause__, aiohttp.ClientConnectorDNSError)


@pytest.mark.parametrize("limit", ["connect", "total"])
async def test_a_time_out_while_a_name_resolves_is_not_sent_whichever_limit_ends_it(bank: Bank, limit: str):
    # A bare TimeoutError from `total` looks the same before and after the request was sent.
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

    expect_not_sent(error, bank)
    assert isinstance(error.__cause__, TimeoutError)


@pytest.mark.parametrize(
    ("shown", "trusted"),
    [
        pytest.param("server", None, id="an unknown authority"),
        pytest.param("other_server", "client", id="another host"),
        pytest.param("old_server", "client", id="expired"),
    ],
)
async def test_a_certificate_that_proves_nothing_is_not_sent_to(
    bank: Bank, certificates: Certificates, shown: str, trusted: str | None
):
    trust = getattr(certificates, trusted) if trusted else None
    async with serving(answers, tls=getattr(certificates, shown)) as server:
        error = await bank.try_order(server.url, ssl=trust, retry=ONCE)

    expect_not_sent(error, bank)
    assert isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError)
    assert server.heads == []


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Speak plainly\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b""], ids=told
)
async def test_a_broken_handshake_is_not_sent(bank: Bank, certificates: Certificates, said: bytes):
    async def break_off(connection: Connection) -> None:
        await connection.reader.read(100)
        connection.send(said)

    async with serving(break_off) as server:
        url = server.url.replace("http:", "https:")
        error = await bank.try_order(url, ssl=certificates.client, retry=ONCE)

    expect_not_sent(error, bank)


async def test_a_handshake_that_hangs_is_not_sent(
    bank: Bank, certificates: Certificates, loop_time: LoopTime
):
    async def say_nothing(connection: Connection) -> None:
        await connection.reader.read(1)
        await loop_time.pass_(6.0)
        await connection.gone()

    async with serving(say_nothing) as server:
        error = await bank.try_order(
            server.url.replace("http:", "https:"),
            ssl=certificates.client,
            retry=ONCE,
            timeouts=Timeouts(sock_connect=5.0),
        )

    expect_not_sent(error, bank)
    assert isinstance(error.__cause__, aiohttp.ConnectionTimeoutError)


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose queue is full: further connections neither come about nor are refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_a_connection_that_does_not_come_about_is_not_sent(bank: Bank):
    with full_backlog() as port:
        error = await bank.try_order(
            f"http://127.0.0.1:{port}", retry=ONCE, timeouts=Timeouts(sock_connect=MUST_RUN_OUT)
        )

    expect_not_sent(error, bank)
    assert isinstance(error.__cause__, aiohttp.ConnectionTimeoutError)


@pytest.mark.parametrize("limit", ["connect", "total"])
async def test_waiting_for_the_pool_in_vain_is_not_sent(bank: Bank, limit: str):
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

    expect_not_sent(error, bank)
    assert len(server.requests) == 1


# --- the body left, and no answer came: unknown -------------------------------------------------


async def never_reads(connection: Connection) -> None:
    """Closes over a request that it never read, so that the client hears of a broken connection."""
    await connection.bytes_waiting()
    connection.reset()


async def test_a_server_that_closes_without_reading_leaves_a_doubt(bank: Bank):
    async with serving(never_reads, reading=False) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank)
    assert server.requests == []
    assert server.accepted == 1


async def reset_after_reading(connection: Connection) -> None:
    await connection.request()
    connection.reset()


def sends_then_resets(data: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.request()
        connection.send(data)
        await connection.drain()
        connection.reset()

    return script


async def half_closes(connection: Connection) -> None:
    await connection.request()
    connection.writer.write_eof()
    await connection.gone()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(then_closes(), id="FIN"),
        pytest.param(half_closes, id="FIN, and it goes on reading"),
        pytest.param(reset_after_reading, id="RST"),
        pytest.param(then_closes(b"H"), id="one byte"),
        pytest.param(then_closes(b"HTTP/1.1 20"), id="half a status line"),
        pytest.param(then_closes(b"HTTP/1.1 200 OK\r\n"), id="a status line and no headers"),
        pytest.param(then_closes(b"HTTP/1.1 200 OK\r\nContent-Le"), id="half the headers"),
        pytest.param(then_closes(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2"), id="half a refusal"),
        pytest.param(sends_then_resets(b"HTTP/1.1 200 OK\r\n"), id="a status line, then RST"),
        pytest.param(then_closes(head(100)), id="100 and no more"),
        pytest.param(then_closes(head(103)), id="103 and no more"),
        pytest.param(then_closes(b"\x16\x03\x01\x02\x00\x01garbage\r\n\r\n"), id="garbage"),
        pytest.param(then_closes(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), id="another protocol"),
        pytest.param(then_closes(b"HTTP/1.1 400x Bad\r\n\r\n"), id="a status that is none"),
        pytest.param(then_closes(b"HTTP/1.1 99999 Bad\r\n\r\n"), id="a status of five digits"),
        pytest.param(then_closes(b"HTTP/1.1 400 Bad\r\nno colon here\r\n\r\n"), id="a header that is none"),
        pytest.param(then_closes(long_header(1 << 20)), id="over-long headers"),
        pytest.param(
            then_closes(http(422, JSON_NO, headers={"Transfer-Encoding": "chunked"})),
            id="a length and chunks at once",
        ),
        pytest.param(
            then_closes(http(422, JSON_NO, headers={"Content-Length": "-1"})), id="a length below zero"
        ),
    ],
)
async def test_a_request_that_was_read_and_not_answered_leaves_a_doubt(bank: Bank, script: Script):
    async with serving(script) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank)
    assert len(server.requests) == 1


async def test_over_long_headers_are_no_refusal_although_aiohttp_says_400(bank: Bank):
    async with serving(then_closes(long_header(1 << 20))) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank)
    assert isinstance(error.__cause__, aiohttp.ClientResponseError)
    assert error.__cause__.status == 400
    assert error.attempts[0].status is None


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        pytest.param({"timeouts": Timeouts(sock_read=5.0)}, aiohttp.SocketTimeoutError, id="sock_read"),
        pytest.param({"timeouts": Timeouts(total=19.0)}, TimeoutError, id="total"),
        pytest.param({"retry": RetryPolicy(deadline=19.0)}, TimeoutError, id="deadline"),
    ],
)
async def test_a_server_that_never_answers_leaves_a_doubt(
    bank: Bank, loop_time: LoopTime, settings: dict[str, Any], cause: type[Exception]
):
    async def let_time_pass(connection: Connection) -> None:
        await connection.request()
        await loop_time.pass_(20.0)
        await connection.gone()

    async with serving(let_time_pass) as server:
        error = await bank.try_order(server.url, **settings)

    expect_unknown(error, bank)
    assert isinstance(error.__cause__, cause)
    assert len(server.requests) == 1


# --- the caller's deadline passes ---------------------------------------------------------------


def on_the_loops_time(bank: Bank) -> tuple[Clock, datetime]:
    """A clock that the test moves, and the moment in 19 seconds."""
    loop = asyncio.get_running_loop()
    noon, began = datetime(2024, 5, 6, 12, tzinfo=UTC), loop.time()

    def utc() -> datetime:
        return noon + timedelta(seconds=loop.time() - began)

    return Clock(now=lambda: loop.time(), utc=utc, sleep=bank.sleep), noon + timedelta(seconds=19.0)  # noqa: PLW0108 - it is patched


async def test_a_deadline_that_passes_in_the_handshake_is_never_sent(
    bank: Bank, certificates: Certificates, loop_time: LoopTime
):
    async def say_nothing(connection: Connection) -> None:
        await connection.reader.read(1)
        await loop_time.pass_(20.0)
        await connection.gone()

    clock, deadline = on_the_loops_time(bank)
    timeouts = Timeouts(connect=60.0, sock_connect=60.0, total=60.0)
    async with serving(say_nothing) as server:
        url = server.url.replace("http:", "https:")
        trust = certificates.client
        error = await bank.try_order(url, ssl=trust, clock=clock, deadline=deadline, timeouts=timeouts)

    expect(error, Expired, Outcome.NOT_SENT, may_exist=False)
    assert bank.funds.state == "released"
    assert server.requests == []
    assert bank.pauses == []


async def test_a_deadline_that_passes_once_the_body_was_handed_over_leaves_a_doubt(
    bank: Bank, loop_time: LoopTime
):
    async def let_time_pass(connection: Connection) -> None:
        await connection.request()
        await loop_time.pass_(20.0)
        await connection.gone()

    clock, deadline = on_the_loops_time(bank)
    async with serving(let_time_pass) as server:
        error = await bank.try_order(server.url, clock=clock, deadline=deadline)

    expect_unknown(error, bank)
    assert isinstance(error.__cause__, TimeoutError)
    assert len(server.requests) == 1


# --- certificates and sessions ------------------------------------------------------------------


async def test_a_missing_client_certificate_is_never_taken_for_an_answer(
    bank: Bank, certificates: Certificates
):
    # With TLS 1.3 the client is done before the server has looked: the body may be on its way already.
    async with serving(answers, tls=certificates.strict_server) as server:
        error = await bank.try_order(server.url, ssl=certificates.client, retry=ONCE)

    assert server.requests == []
    assert (error.outcome, bank.funds.state) in [(Outcome.UNKNOWN, "kept"), (Outcome.NOT_SENT, "released")]


async def test_a_client_certificate_is_shown_where_one_is_asked_for(bank: Bank, certificates: Certificates):
    async with serving(answers, tls=certificates.strict_server) as server:
        order = await bank.send_order(server.url, ssl=certificates.known_client)

    assert order.id.startswith("tx-")
    assert len(server.requests) == 1


async def test_a_session_that_closes_in_flight_leaves_a_doubt(bank: Bank):
    async with serving(Connection.gone_after_request) as server:
        session = aiohttp.ClientSession()
        ending = asyncio.create_task(bank.try_order(server.url, session=session))
        await server.got_request.wait()
        await session.close()
        error = await ending

    expect_unknown(error, bank)
    assert len(server.requests) == 1


async def test_a_session_that_was_closed_before_is_not_sent(bank: Bank):
    session = aiohttp.ClientSession()
    await session.close()
    async with serving(answers) as server:
        error = await bank.try_order(server.url, session=session, retry=ONCE)

    expect_not_sent(error, bank)
    assert server.accepted == 0


# --- a status came, and its body is cut or unreadable -------------------------------------------


def cut_by(cut: Any) -> Script:
    """Answers 200 with what ``cut`` makes of the order's bytes, and closes."""

    async def script(connection: Connection) -> None:
        request = await connection.request()
        connection.send(cut(order_body(request)))

    return script


def with_length(body: bytes) -> bytes:
    return head(200, {"Content-Length": str(len(body))}) + body[:-1000]


def without_length(body: bytes) -> bytes:
    return head(200, {"Connection": "close"}) + body[:-1000]


def in_chunks(body: bytes) -> bytes:
    return head(200, {"Transfer-Encoding": "chunked"}) + chunked(body[:2000], body[2000:4000], end=False)


def compressed(body: bytes) -> bytes:
    return http(200, gzip.compress(body)[:-200], headers={"Content-Encoding": "gzip"})


def deflated(body: bytes) -> bytes:
    return http(200, zlib.compress(body)[:-200], headers={"Content-Encoding": "deflate"})


@pytest.mark.parametrize("cut", [with_length, without_length, in_chunks, compressed])
async def test_a_2xx_with_a_cut_body_is_unreadable_and_not_sent_again(bank: Bank, cut: Any):
    async with serving(cut_by(cut)) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)
    assert len(server.requests) == 1
    assert error.raw.startswith(b'{"id":')
    assert error.order_id.encode() in error.raw


async def test_a_compressed_answer_that_is_cut_leaves_a_doubt_with_its_status(bank: Bank):
    async with serving(cut_by(deflated)) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)
    assert len(server.requests) == 1


READ = 20
"""Turns of the loop after which the client has read what was sent."""


def stops_after(loop_time: LoopTime, *pieces: bytes) -> Script:
    """Reads one whole request, sends the pieces, each when the last is read, and then 20 seconds pass."""

    async def script(connection: Connection) -> None:
        await connection.request()
        for piece in pieces:
            connection.send(piece)
            await turns(READ)
        await loop_time.pass_(20.0)
        await connection.gone()

    return script


CHUNKED = head(200, {"Transfer-Encoding": "chunked"}) + chunked(b'{"id":', end=False)
BROKEN_CHUNK = b"not-a-length\r\n"


async def test_a_broken_chunk_after_the_headers_ends_at_the_total_time_at_the_latest(
    bank: Bank, loop_time: LoopTime
):
    async with serving(stops_after(loop_time, CHUNKED, BROKEN_CHUNK)) as server:
        error = await bank.try_order(server.url, timeouts=Timeouts(total=19.0))

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)
    assert len(server.requests) == 1


async def test_a_broken_chunk_that_comes_with_the_headers_leaves_a_doubt(bank: Bank, loop_time: LoopTime):
    async with serving(stops_after(loop_time, CHUNKED + BROKEN_CHUNK)) as server:
        error = await bank.try_order(server.url, timeouts=Timeouts(total=19.0))

    expect_unknown(error, bank)
    assert len(server.requests) == 1


async def test_a_body_that_stops_coming_ends_at_the_reading_time(bank: Bank, loop_time: LoopTime):
    half = head(200, {"Content-Length": "8000"}) + b" " * 4000
    async with serving(stops_after(loop_time, half)) as server:
        error = await bank.try_order(server.url, timeouts=Timeouts(sock_read=5.0))

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)
    assert len(error.raw) == 4000


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(http(200), id="200 and nothing"),
        pytest.param(http(201), id="201 and nothing"),
        pytest.param(http(204), id="204"),
        pytest.param(http(205), id="205"),
        pytest.param(http(200, b"null"), id="null"),
        pytest.param(http(200, b"[]"), id="a list"),
        pytest.param(http(200, b"{}"), id="an empty object"),
        pytest.param(http(200, b'{"status": "ok"}'), id="another object"),
        pytest.param(http(200, HTML, headers={"Content-Type": "text/html"}), id="a login page"),
        pytest.param(http(200, b"\xff\xfe\x00"), id="no text at all"),
        pytest.param(http(200, b'{"message": "No"}'), id="a no with a 200"),
        pytest.param(foreign_reply(), id="somebody else's order"),
        pytest.param(
            http(200, b"not gzip at all", headers={"Content-Encoding": "gzip"}), id="compressed, but is not"
        ),
    ],
)
async def test_a_2xx_that_is_not_our_order_is_unreadable(bank: Bank, answer: bytes):
    async with serving(then_closes(answer)) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, kind=UnreadableOrder, status=int(answer[9:12]))
    assert len(server.requests) == 1


async def test_a_compression_that_was_not_offered_leaves_a_doubt(bank: Bank):
    answer = http(200, b"\x0b\x02\x80squeezed", headers={"Content-Encoding": "br"})
    async with serving(then_closes(answer)) as server:
        error = await bank.try_order(server.url)

    assert error.outcome is Outcome.UNKNOWN
    assert bank.funds.state == "kept"
    assert len(server.requests) == 1
    assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("status", REFUSED)
async def test_a_status_that_refuses_is_a_certain_no(bank: Bank, status: int):
    async with serving(then_closes(http(status, JSON_NO))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, status=status)
    assert error.message == "No."
    assert error.body == JSON_NO
    assert len(server.requests) == 1


def cut_refusal(status: int, form: str) -> bytes:
    """A refusal whose body ends early."""
    if form == "length":
        return head(status, {"Content-Length": "100"}) + JSON_NO[:-4]
    if form == "chunks":
        return head(status, {"Transfer-Encoding": "chunked"}) + chunked(JSON_NO[:-4], end=False)
    if form == "compressed":
        return http(status, gzip.compress(JSON_NO)[:-10], headers={"Content-Encoding": "gzip"})
    return head(status, {"Connection": "close"}) + JSON_NO[:-4]


@pytest.mark.parametrize("form", ["length", "chunks", "compressed", "close"])
@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_a_refusal_stands_even_if_its_body_is_cut(bank: Bank, status: int, form: str):
    async with serving(then_closes(cut_refusal(status, form))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, status=status)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_refusal_stands_even_if_its_body_is_a_page(bank: Bank, status: int):
    async with serving(then_closes(http(status, HTML, headers={"Content-Type": "text/html"}))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, status=status)
    assert error.message is None


async def test_a_refusal_whose_body_never_comes_stands(bank: Bank, loop_time: LoopTime):
    async with serving(stops_after(loop_time, head(422, {"Content-Length": "100"}))) as server:
        error = await bank.try_order(server.url, timeouts=Timeouts(sock_read=5.0))

    expect_refused(error, bank, status=422)
    assert len(server.requests) == 1


async def test_a_403_with_a_page_may_be_a_firewalls(bank: Bank):
    async with serving(then_closes(http(403, HTML, headers={"Content-Type": "text/html"}))) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, status=403)
    assert len(server.requests) == 1


@pytest.mark.parametrize("form", ["length", "chunks", "compressed", "close"])
async def test_a_403_whose_body_is_cut_is_a_doubt(bank: Bank, form: str):
    async with serving(then_closes(cut_refusal(403, form))) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, status=403)
    assert len(server.requests) == 1


# --- every other status -------------------------------------------------------------------------


@pytest.mark.parametrize("status", UNKNOWN)
@each("body", {"json": JSON_NO, "page": HTML, "empty": b""})
async def test_a_status_that_proves_nothing_is_a_doubt_and_never_sent_again(status: int, body: bytes):
    bank, answer = Bank(), http(status, body, headers={"Retry-After": "1"})
    async with serving(then_closes(answer)) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, status=status)
    assert len(server.requests) == 1


async def test_a_304_is_a_doubt(bank: Bank):
    async with serving(then_closes(http(304))) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, status=304)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_server_error_with_a_cut_body_is_a_doubt(bank: Bank, status: int):
    async with serving(then_closes(cut_refusal(status, "length"))) as server:
        error = await bank.try_order(server.url)

    expect_unknown(error, bank, status=status)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("away", [True, False], ids=["elsewhere", "in a loop"])
async def test_a_redirect_is_not_followed_and_the_body_goes_nowhere_else(bank: Bank, status: int, away: bool):
    async with serving(answers) as elsewhere:
        where = f"{elsewhere.url if away else ''}/api/api/v1/order/create"
        async with serving(replies(http(status, headers={"Location": where}))) as server:
            error = await bank.try_order(server.url)

    expect_unknown(error, bank, status=status)
    assert len(server.requests) == 1
    assert elsewhere.accepted == 0


@pytest.mark.parametrize("status", [100, 102, 103])
async def test_a_1xx_is_waited_past(bank: Bank, status: int):
    async def say_wait(connection: Connection) -> None:
        request = await connection.request()
        connection.send(f"HTTP/1.1 {status} Wait\r\n\r\n".encode())
        connection.send(order_reply(request))

    async with serving(say_wait) as server:
        order = await bank.send_order(server.url)

    assert order.id.startswith("tx-")
    assert bank.funds.state == "kept"
    assert len(server.requests) == 1


async def test_a_101_is_a_doubt(bank: Bank, loop_time: LoopTime):
    answer = head(101, {"Upgrade": "websocket", "Connection": "Upgrade"})
    async with serving(stops_after(loop_time, answer)) as server:
        error = await bank.try_order(server.url, timeouts=Timeouts(total=19.0))

    expect_unknown(error, bank, status=101)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [425, 429])
async def test_what_was_not_processed_is_sent_again_when_the_service_says(bank: Bank, status: int):
    async def first_no_then_yes(connection: Connection) -> None:
        while request := await connection.request():
            again = len(connection.server.requests) > 1
            connection.send(
                order_reply(request) if again else http(status, JSON_NO, headers={"Retry-After": "2"})
            )

    async with serving(first_no_then_yes) as server:
        order = await bank.send_order(server.url)

    assert order.id.startswith("tx-")
    assert bank.pauses == [2.0]
    assert len(server.requests) == 2
    assert bank.funds.state == "kept"


@pytest.mark.parametrize(("status", "kind", "attempts"), [(425, Refused, 4), (429, RateLimited, 3)])
async def test_what_was_never_processed_ends_in_a_no(
    bank: Bank, status: int, kind: type[Refused], attempts: int
):
    async with serving(replies(http(status, JSON_NO, headers={"Retry-After": "3"}))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, kind=kind, status=status)
    assert error.retry_after == 3.0
    assert len(server.requests) == len(error.attempts) == attempts
    assert bank.pauses == [3.0] * (attempts - 1)


async def test_a_429_that_asks_to_wait_past_the_deadline_is_not_sent_again(bank: Bank):
    async with serving(replies(http(429, JSON_NO, headers={"Retry-After": "3600"}))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, kind=RateLimited, status=429)
    assert error.retry_after == 3600.0
    assert len(server.requests) == 1
    assert bank.pauses == []


async def test_a_lost_answer_after_a_429_is_a_doubt(bank: Bank):
    async def first_no_then_nothing(connection: Connection) -> None:
        await connection.request()
        connection.send(http(429, JSON_NO))
        await connection.request()

    async with serving(first_no_then_nothing) as server:
        error = await bank.try_order(server.url)

    expect(error, OutcomeUnknown, Outcome.UNKNOWN, may_exist=True)
    assert [attempt.outcome for attempt in error.attempts] == [Outcome.REFUSED, Outcome.UNKNOWN]
    assert bank.funds.state == "kept"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, b'{"message": "Unauthorized"}'),
        (401, HTML),
        (401, b""),
        (200, b'{"message": "Unauthorized"}'),
        (201, b'{"message":"Unauthorized"}'),
        (403, b'{"message": "Unauthorized"}'),
        (409, b'{"message": "Unauthorized"}'),
    ],
)
async def test_a_wrong_token_is_a_certain_no(bank: Bank, status: int, body: bytes):
    async with serving(replies(http(status, body))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, kind=Unauthorized, status=status)
    assert len(server.requests) == 1


async def test_a_token_that_can_be_renewed_is_renewed_once(bank: Bank):
    tokens = iter(["old", "new", "newer"])

    async def token() -> str:
        return next(tokens)

    async with serving(replies(http(401, b'{"message": "Unauthorized"}'))) as server:
        error = await bank.try_order(server.url, token=token)

    expect_refused(error, bank, kind=Unauthorized, status=401)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]


# --- what is well is well -----------------------------------------------------------------------


def whole(body: bytes) -> bytes:
    return http(200, body)


def created(body: bytes) -> bytes:
    return http(201, body)


def closing(body: bytes) -> bytes:
    return head(200, {"Connection": "close"}) + body


def whole_chunks(body: bytes) -> bytes:
    return head(200, {"Transfer-Encoding": "chunked"}) + chunked(body[:3000], body[3000:])


def whole_gzip(body: bytes) -> bytes:
    return http(200, gzip.compress(body), headers={"Content-Encoding": "gzip"})


def whole_deflate(body: bytes) -> bytes:
    return http(200, zlib.compress(body), headers={"Content-Encoding": "deflate"})


def old_http(body: bytes) -> bytes:
    return b"HTTP/1.0 200 OK\r\n\r\n" + body


def wrongly_labelled(body: bytes) -> bytes:
    return http(200, body, headers={"Content-Type": "text/html"})


@pytest.mark.parametrize(
    "form",
    [whole, created, closing, whole_chunks, whole_gzip, whole_deflate, old_http, wrongly_labelled],
)
async def test_an_order_is_read_in_whatever_form_it_comes(bank: Bank, form: Any):
    async with serving(cut_by(form)) as server:
        order = await bank.send_order(server.url)

    assert order.user.username == samples.new_order().poster_username
    assert bank.funds.state == "kept"
    assert await bank.state(server.url) == "created"
    assert len(server.requests) == 1


async def test_an_order_is_read_over_tls(bank: Bank, certificates: Certificates):
    async with serving(answers, tls=certificates.server) as server:
        order = await bank.send_order(server.url, ssl=certificates.client)

    assert order.id.startswith("tx-")
    assert len(server.requests) == server.accepted == 1
