"""What a failed request proves, row by row: over real connections, with what the server really got.

Each row says how the exchange goes wrong, and then: the error, its outcome, whether an order may
exist, how many whole requests arrived, and what became of the hold.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib
from collections.abc import Callable, Iterator
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
PAGE = b"<html>Blocked</html>"
AS_PAGE = {"Content-Type": "text/html"}
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


async def sent_to(bank: Bank, service: Script | bytes, **settings: Any) -> TransferError:
    """Send one order to a service, or to one that says these bytes; it arrived whole once, and failed so."""
    script = then_closes(service) if isinstance(service, bytes) else service
    async with serving(script) as server:
        error = await bank.try_order(server.url, **settings)
    assert len(server.requests) == 1
    return error


# --- no connection is had: nothing was sent -----------------------------------------------------


async def test_a_refused_connection_is_not_sent_and_is_retried(bank: Bank, closed_port: int):
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


def says_nothing_for(seconds: float, loop_time: LoopTime) -> Script:
    """Never answers the handshake."""

    async def script(connection: Connection) -> None:
        await connection.reader.read(1)
        await loop_time.pass_(seconds)
        await connection.gone()

    return script


async def test_a_handshake_that_hangs_is_not_sent(
    bank: Bank, certificates: Certificates, loop_time: LoopTime
):
    async with serving(says_nothing_for(6.0, loop_time)) as server:
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


def then_waits(loop_time: LoopTime, *pieces: bytes) -> Script:
    """Reads one whole request, sends the pieces, each when the last is read, and then 20 seconds pass."""

    async def script(connection: Connection) -> None:
        await connection.request()
        for piece in pieces:
            connection.send(piece)
            await turns(20)  # after which the client has read it
        await loop_time.pass_(20.0)
        await connection.gone()

    return script


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


LOST = {
    "FIN": then_closes(),
    "FIN, and it goes on reading": half_closes,
    "RST": reset_after_reading,
    "one byte": then_closes(b"H"),
    "half a status line": then_closes(b"HTTP/1.1 20"),
    "a status line and no headers": then_closes(b"HTTP/1.1 200 OK\r\n"),
    "half the headers": then_closes(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "half a refusal": then_closes(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2"),
    "a status line, then RST": sends_then_resets(b"HTTP/1.1 200 OK\r\n"),
    "100 and no more": then_closes(head(100)),
    "103 and no more": then_closes(head(103)),
    "garbage": then_closes(b"\x16\x03\x01\x02\x00\x01garbage\r\n\r\n"),
    "another protocol": then_closes(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
    "a status that is none": then_closes(b"HTTP/1.1 400x Bad\r\n\r\n"),
    "a status of five digits": then_closes(b"HTTP/1.1 99999 Bad\r\n\r\n"),
    "a header that is none": then_closes(b"HTTP/1.1 400 Bad\r\nno colon here\r\n\r\n"),
    "over-long headers": then_closes(long_header(1 << 20)),
    "a length and chunks at once": then_closes(http(422, JSON_NO, headers={"Transfer-Encoding": "chunked"})),
    "a length below zero": then_closes(http(422, JSON_NO, headers={"Content-Length": "-1"})),
}


@pytest.mark.parametrize("script", LOST.values(), ids=LOST)
async def test_a_request_that_was_read_and_not_answered_leaves_a_doubt(bank: Bank, script: Script):
    error = await sent_to(bank, script)

    expect_unknown(error, bank)


async def test_too_long_headers_are_no_refusal_although_aiohttp_reports_400(bank: Bank):
    error = await sent_to(bank, long_header(1 << 20))

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
    error = await sent_to(bank, then_waits(loop_time), **settings)

    expect_unknown(error, bank)
    assert isinstance(error.__cause__, cause)


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
    clock, deadline = on_the_loops_time(bank)
    timeouts = Timeouts(connect=60.0, sock_connect=60.0, total=60.0)
    async with serving(says_nothing_for(20.0, loop_time)) as server:
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
    clock, deadline = on_the_loops_time(bank)
    error = await sent_to(bank, then_waits(loop_time), clock=clock, deadline=deadline)

    expect_unknown(error, bank)
    assert isinstance(error.__cause__, TimeoutError)


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


def order_as(form: Callable[[bytes], bytes]) -> Script:
    """Answers with what ``form`` makes of the order's bytes, and closes."""

    async def script(connection: Connection) -> None:
        request = await connection.request()
        connection.send(form(order_body(request)))

    return script


def squeezed(encoding: str, body: bytes, *, cut: int | None = None) -> bytes:
    """An answer that is compressed, and may be cut."""
    small = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](body)
    return http(200, small[:cut], headers={"Content-Encoding": encoding})


CHUNKED = {"Transfer-Encoding": "chunked"}
CUT: dict[str, Callable[[bytes], bytes]] = {
    "with its length": lambda body: head(200, {"Content-Length": str(len(body))}) + body[:-1000],
    "without": lambda body: head(200, {"Connection": "close"}) + body[:-1000],
    "in chunks": lambda body: head(200, CHUNKED) + chunked(body[:2000], body[2000:4000], end=False),
    "gzip": lambda body: squeezed("gzip", body, cut=-200),
}


@pytest.mark.parametrize("form", CUT.values(), ids=CUT)
async def test_a_2xx_with_a_cut_body_is_unreadable_and_not_sent_again(
    bank: Bank, form: Callable[[bytes], bytes]
):
    error: Any = await sent_to(bank, order_as(form))

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)
    assert error.raw.startswith(b'{"id":')
    assert error.order_id.encode() in error.raw


async def test_a_compressed_answer_that_is_cut_leaves_a_doubt_with_its_status(bank: Bank):
    error = await sent_to(bank, order_as(lambda body: squeezed("deflate", body, cut=-200)))

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)


CHUNK = head(200, CHUNKED) + chunked(b'{"id":', end=False)
BROKEN_CHUNK = b"not-a-length\r\n"


async def test_a_broken_chunk_after_the_headers_ends_at_the_total_time_at_the_latest(
    bank: Bank, loop_time: LoopTime
):
    error = await sent_to(bank, then_waits(loop_time, CHUNK, BROKEN_CHUNK), timeouts=Timeouts(total=19.0))

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)


async def test_a_broken_chunk_that_comes_with_the_headers_leaves_a_doubt(bank: Bank, loop_time: LoopTime):
    error = await sent_to(bank, then_waits(loop_time, CHUNK + BROKEN_CHUNK), timeouts=Timeouts(total=19.0))

    expect_unknown(error, bank)


async def test_a_body_that_stops_coming_ends_at_the_reading_time(bank: Bank, loop_time: LoopTime):
    half = head(200, {"Content-Length": "8000"}) + b" " * 4000
    error: Any = await sent_to(bank, then_waits(loop_time, half), timeouts=Timeouts(sock_read=5.0))

    expect_unknown(error, bank, kind=UnreadableOrder, status=200)
    assert len(error.raw) == 4000


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


@pytest.mark.parametrize("answer", NO_ORDER.values(), ids=NO_ORDER)
async def test_a_2xx_that_is_not_our_order_is_unreadable(bank: Bank, answer: bytes):
    error = await sent_to(bank, answer)

    expect_unknown(error, bank, kind=UnreadableOrder, status=int(answer[9:12]))


async def test_a_compression_that_was_not_offered_leaves_a_doubt(bank: Bank):
    error = await sent_to(bank, http(200, b"\x0b\x02\x80squeezed", headers={"Content-Encoding": "br"}))

    assert error.outcome is Outcome.UNKNOWN
    assert bank.funds.state == "kept"


# --- a status refuses, and its body may be cut or a page ------------------------------------------


@pytest.mark.parametrize("status", REFUSED)
async def test_a_refusing_status_is_a_definite_failure(bank: Bank, status: int):
    error: Any = await sent_to(bank, http(status, JSON_NO))

    expect_refused(error, bank, status=status)
    assert error.message == "No."
    assert error.body == JSON_NO


def cut_refusals(status: int) -> dict[str, bytes]:
    """Refusals whose bodies end early."""
    return {
        "length": head(status, {"Content-Length": "100"}) + JSON_NO[:-4],
        "chunks": head(status, CHUNKED) + chunked(JSON_NO[:-4], end=False),
        "compressed": http(status, gzip.compress(JSON_NO)[:-10], headers={"Content-Encoding": "gzip"}),
        "close": head(status, {"Connection": "close"}) + JSON_NO[:-4],
    }


@pytest.mark.parametrize("status", [400, 404, 410, 422])
@each("form", ["length", "chunks", "compressed", "close"])
async def test_a_refusal_stands_even_if_its_body_is_cut(status: int, form: str):
    bank = Bank()
    error = await sent_to(bank, cut_refusals(status)[form])

    expect_refused(error, bank, status=status)


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_refusal_stands_even_if_its_body_is_a_page(bank: Bank, status: int):
    error: Any = await sent_to(bank, http(status, PAGE, headers=AS_PAGE))

    expect_refused(error, bank, status=status)
    assert error.message is None


async def test_a_refusal_whose_body_never_comes_stands(bank: Bank, loop_time: LoopTime):
    script = then_waits(loop_time, head(422, {"Content-Length": "100"}))
    error = await sent_to(bank, script, timeouts=Timeouts(sock_read=5.0))

    expect_refused(error, bank, status=422)


@each("answer", {"a firewall's page": http(403, PAGE, headers=AS_PAGE), **cut_refusals(403)})
async def test_a_403_with_a_page_or_a_cut_body_is_a_doubt(answer: bytes):
    bank = Bank()
    error = await sent_to(bank, answer)

    expect_unknown(error, bank, status=403)


# --- every other status -------------------------------------------------------------------------


@pytest.mark.parametrize("status", UNKNOWN)
@each("body", {"json": JSON_NO, "page": PAGE, "empty": b""})
async def test_a_status_that_proves_nothing_is_a_doubt_and_never_sent_again(status: int, body: bytes):
    bank = Bank()
    error = await sent_to(bank, http(status, body, headers={"Retry-After": "1"}))

    expect_unknown(error, bank, status=status)


@each("status", [500, 502, 503, 504])
async def test_a_server_error_with_a_cut_body_is_a_doubt(status: int):
    bank = Bank()
    error = await sent_to(bank, cut_refusals(status)["length"])

    expect_unknown(error, bank, status=status)


async def test_a_304_is_a_doubt(bank: Bank):
    error = await sent_to(bank, http(304))

    expect_unknown(error, bank, status=304)


async def test_a_101_is_a_doubt(bank: Bank, loop_time: LoopTime):
    answer = head(101, {"Upgrade": "websocket", "Connection": "Upgrade"})
    error = await sent_to(bank, then_waits(loop_time, answer), timeouts=Timeouts(total=19.0))

    expect_unknown(error, bank, status=101)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("away", [True, False], ids=["elsewhere", "in a loop"])
async def test_a_redirect_is_not_followed_and_the_body_goes_nowhere_else(bank: Bank, status: int, away: bool):
    async with serving(answers) as elsewhere:
        where = f"{elsewhere.url if away else ''}/api/api/v1/order/create"
        error = await sent_to(bank, replies(http(status, headers={"Location": where})))

    expect_unknown(error, bank, status=status)
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


@pytest.mark.parametrize("status", [425, 429])
async def test_an_unprocessed_order_is_retried_when_retry_after_says(bank: Bank, status: int):
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
async def test_an_order_that_is_never_processed_ends_in_a_definite_failure(
    bank: Bank, status: int, kind: type[Refused], attempts: int
):
    async with serving(replies(http(status, JSON_NO, headers={"Retry-After": "3"}))) as server:
        error = await bank.try_order(server.url)

    expect_refused(error, bank, kind=kind, status=status)
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

    expect(error, OutcomeUnknown, Outcome.UNKNOWN, may_exist=True)
    assert [attempt.outcome for attempt in error.attempts] == [Outcome.REFUSED, Outcome.UNKNOWN]
    assert bank.funds.state == "kept"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, b'{"message": "Unauthorized"}'),
        (401, PAGE),
        (401, b""),
        (200, b'{"message": "Unauthorized"}'),
        (201, b'{"message":"Unauthorized"}'),
        (403, b'{"message": "Unauthorized"}'),
        (409, b'{"message": "Unauthorized"}'),
    ],
)
async def test_a_wrong_token_is_a_definite_failure(bank: Bank, status: int, body: bytes):
    error = await sent_to(bank, replies(http(status, body)))

    expect_refused(error, bank, kind=Unauthorized, status=status)


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
