"""One connection by hand: what it makes of servers that do not answer as they should."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from tests.faults.servers import Connection, serving
from tests.support.cases import each
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async._cli import probe_http
from transfer_async._cli.probe_http import OneConnection, Question, RawAnswer
from transfer_async.sandbox import Sandbox

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
QUESTION = Question(method="GET", path="/path")


@asynccontextmanager
async def connected(
    serve: Serve, *, patience: float = 30.0, kind: type[OneConnection] = OneConnection
) -> AsyncIterator[OneConnection]:
    async def script(connection: Connection) -> None:
        with suppress(asyncio.IncompleteReadError):
            await serve(connection.reader, connection.writer)

    async with serving(script) as server:
        connection = kind(f"{server.url}/base", patience=patience)
        yield connection
        connection.close()


def saying(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return serve


async def asked(serve: Serve) -> RawAnswer:
    async with connected(serve) as connection:
        return await connection.ask(QUESTION)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\n\r\n",
    ],
)
async def test_what_is_no_whole_answer_is_none(said):
    assert await asked(saying(said)) == RawAnswer()


async def test_a_connection_that_was_reset_is_not_open():
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(b"HTTP/1.1 204 No\r\n\r\n")(reader, writer)
        await asked_again.wait()
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.transport.abort()
        await asyncio.sleep(0)  # a turn, in which it is closed
        gone.set()

    asked_again, gone = asyncio.Event(), asyncio.Event()
    async with connected(resets) as connection:
        assert (await connection.ask(QUESTION)).status == 204
        asked_again.set()
        await gone.wait()
        assert not connection.is_open


def test_a_connection_that_was_never_opened_has_nothing_to_interrupt():
    OneConnection("http://127.0.0.1:1", patience=30.0)._interrupt()


async def test_nobody_there_is_no_answer():
    connection = OneConnection("http://127.0.0.1:1", patience=30.0)

    assert await connection.ask(QUESTION) == RawAnswer(is_sent=False)
    assert await connection.send_and_cut(QUESTION) == RawAnswer(is_sent=False)
    assert not connection.is_open


@each(
    ("said", "body"),
    [
        (b"Content-Length: 5\r\n\r\nab", b"ab"),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n5\r\n", b"ab"),
        (b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00", b""),
        (b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nab", b""),
    ],
)
async def test_of_an_answer_that_is_cut_the_status_stands(said, body):
    """As with the client: a refusal that was cut is one."""
    raw = await asked(saying(b"HTTP/1.1 422 No\r\n" + said))

    assert (raw.status, raw.body, raw.is_intact) == (422, body, False)


async def test_no_more_is_read_than_anybody_needs(monkeypatch):
    monkeypatch.setattr(probe_http, "LARGEST", 4)

    raw = await asked(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"))

    assert raw.body == b"0123"


async def test_a_server_that_never_ends_its_answer_is_left():
    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await reader.read()

    async with connected(drips, patience=MUST_RUN_OUT) as connection:
        assert await connection.ask(QUESTION) == RawAnswer()


async def test_whoever_drips_for_ever_is_left_after_twice_the_patience(monkeypatch):
    begun = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()

    class Shorter(OneConnection):
        """Whose socket is more patient than it is, as with a server that drips."""

        def _send(self, question: Question) -> None:
            super()._send(question)
            self._http.sock.settimeout(30.0)

    async with connected(silent, patience=MUST_RUN_OUT, kind=Shorter) as connection:
        assert await connection.ask(QUESTION) == RawAnswer()
    assert begun.is_set()


async def test_who_is_cancelled_lets_go_of_the_connection():
    begun, left = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await reader.read()
        left.set()

    async with connected(silent) as connection:
        asking = asyncio.ensure_future(connection.ask(QUESTION))
        await begun.wait()
        asking.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_what_comes_without_a_question_makes_a_connection_useless():
    async with connected(saying(b"HTTP/1.1 204 No\r\n\r\nHTTP/1.1 408 Late\r\n\r\n")) as connection:
        assert (await connection.ask(QUESTION)).status == 204
        assert not connection.is_open


async def test_a_closed_connection_is_not_opened_again():
    counted = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted.append(1)
        await saying(b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n")(reader, writer)

    async with connected(once) as connection:
        assert (await connection.ask(QUESTION)).status == 204
        assert await connection.ask(QUESTION) == RawAnswer()
    assert counted == [1]


@pytest.fixture
def certified(tmp_path, monkeypatch) -> Iterator[tuple[ssl.SSLContext, Path]]:
    """What serves https, and a file with the authority behind it; made outside of any loop."""
    authority = trustme.CA()
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    probe_http._verifying.cache_clear()
    yield serving, tmp_path / "authority.pem"
    probe_http._verifying.cache_clear()


@pytest.mark.parametrize("known", [True, False])
async def test_over_tls_only_who_has_a_good_certificate_is_heard(known, certified, monkeypatch):
    context, authority = certified
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    async with Sandbox(ssl=context) as sandbox:
        connection = OneConnection(sandbox.base_url, patience=30.0)
        answer = await connection.ask(QUESTION)
        is_open = connection.is_open
        connection.close()

    assert answer.status == (404 if known else None)
    assert is_open is known
