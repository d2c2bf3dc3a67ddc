"""`Connection`, with servers that do not respond as they should."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from tests.faults import servers
from tests.faults.servers import Script, serving, then_closes
from tests.support.cases import each
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async._cli import probe_http
from transfer_async._cli.probe_http import Connection, Request, Response
from transfer_async.sandbox import Sandbox

REQUEST = Request(method="GET", path="/path")
NO_CONTENT = b"HTTP/1.1 204 No\r\n\r\n"


@asynccontextmanager
async def connected(
    script: Script, *, seconds: float = 30.0, kind: type[Connection] = Connection
) -> AsyncIterator[Connection]:
    async with serving(script) as server:
        connection = kind(f"{server.url}/base", timeout=seconds)
        yield connection
        connection.close()


async def response_to(sent: bytes) -> Response:
    async with connected(then_closes(sent)) as connection:
        return await connection.send(REQUEST)


@each("sent", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 600 Odd\r\n\r\n"])
async def test_an_invalid_response_counts_as_none(sent):
    assert await response_to(sent) == Response()


async def test_a_reset_connection_is_not_open():
    async def reset(client: servers.Connection) -> None:
        await client.request()
        client.send(NO_CONTENT)
        await received.wait()
        client.reset()
        await asyncio.sleep(0)  # The loop closes the connection in its next turn.
        gone.set()

    received, gone = asyncio.Event(), asyncio.Event()
    async with connected(reset) as connection:
        assert (await connection.send(REQUEST)).status == 204
        received.set()
        await gone.wait()
        assert not connection.is_open


def test_interrupting_a_connection_that_was_never_opened_does_nothing():
    Connection("http://127.0.0.1:1", timeout=30.0)._interrupt()


@each("cut", [False, True])
async def test_without_a_server_nothing_is_sent(cut):
    connection = Connection("http://127.0.0.1:1", timeout=30.0)

    assert await connection.send(REQUEST, cut=cut) == Response(sent=False)
    assert not connection.is_open


@each(
    ("sent", "body"),
    [
        (b"Content-Length: 5\r\n\r\nab", b"ab"),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n5\r\n", b"ab"),
        (b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00", b""),
        (b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nab", b""),
    ],
)
async def test_a_response_with_a_cut_body_keeps_its_status(sent, body):
    """As in the client, a refusal with an incomplete body is still a refusal."""
    response = await response_to(b"HTTP/1.1 422 No\r\n" + sent)

    assert (response.status, response.body, response.intact) == (422, body, False)


async def test_a_body_is_read_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(probe_http, "MAX_BODY", 4)

    assert (await response_to(servers.http(200, b"0123456789"))).body == b"0123"


async def test_an_unfinished_response_ends_with_the_timeout():
    async def stall(client: servers.Connection) -> None:
        client.send(b"HTTP/1.1 200 OK\r\n")
        await client.gone()

    async with connected(stall, seconds=MUST_RUN_OUT) as connection:
        assert await connection.send(REQUEST) == Response()


async def test_a_response_in_small_parts_ends_after_twice_the_timeout():
    begun = asyncio.Event()

    async def stay_silent(client: servers.Connection) -> None:
        begun.set()
        await client.gone()

    class SlowSocket(Connection):
        """A connection whose socket never times out, as with a server that sends a byte from time to time."""

        def _read(self) -> Response:
            self._http.sock.settimeout(30.0)
            return super()._read()

    async with connected(stay_silent, seconds=MUST_RUN_OUT, kind=SlowSocket) as connection:
        assert await connection.send(REQUEST) == Response()
        await begun.wait()


async def test_a_cancelled_request_closes_the_connection():
    async with serving(servers.Connection.gone_after_request) as server:
        connection = Connection(server.url, timeout=30.0)
        sending = asyncio.ensure_future(connection.send(REQUEST))
        await server.got_request.wait()
        sending.cancel()
        await server.idle()
        with pytest.raises(asyncio.CancelledError):
            await sending


async def test_a_connection_with_unexpected_bytes_is_not_open():
    async with connected(then_closes(NO_CONTENT + b"HTTP/1.1 408 Late\r\n\r\n")) as connection:
        assert (await connection.send(REQUEST)).status == 204
        assert not connection.is_open


async def test_a_closed_connection_is_not_opened_again():
    async with serving(then_closes(servers.http(204, headers={"Connection": "close"}))) as server:
        connection = Connection(server.url, timeout=30.0)
        assert (await connection.send(REQUEST)).status == 204
        assert await connection.send(REQUEST) == Response()
    assert server.accepted == 1


@pytest.fixture
def certified(tmp_path) -> Iterator[tuple[ssl.SSLContext, Path]]:
    """Return a server's TLS context and its CA certificate, created outside of any event loop."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return context, tmp_path / "authority.pem"


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_certificate_must_be_trusted(is_trusted, certified, monkeypatch):
    context, authority = certified
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    async with Sandbox(ssl=context) as sandbox:
        connection = Connection(sandbox.base_url, timeout=30.0)
        response = await connection.send(REQUEST)
        is_open = connection.is_open
        connection.close()

    assert response.status == (404 if is_trusted else None)
    assert is_open is is_trusted
