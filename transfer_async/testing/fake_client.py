"""Stand-ins for the service in a bank's tests.

`FakeClient` is the real client, which calls a sandbox in the same process without sockets. `RunningSandbox`
is a sandbox that listens on loopback, in its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar, Unpack, cast, runtime_checkable
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from transfer_async._client import TransferClient
from transfer_async._http.request import Token
from transfer_async._http.transport import BoundedBody, ExchangeResult, Timeouts, Transport, TransportClosed
from transfer_async._http.write_guard import ConnectionState, GuardedBody
from transfer_async._models.requests import NewOrder, PersonName
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.batch import OrderResult, Requests
from transfer_async._pipeline.call import ClientSettings, Limits, Times
from transfer_async._pipeline.key_views import Doubt
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._support.clock import Duration
from transfer_async._support.util import must_propagate
from transfer_async.journal.model import HistoryEvent
from transfer_async.journal.protocol import KeyRecord
from transfer_async.sandbox import (
    FAULTS,
    Account,
    AnotherOrder,
    CloseAfterProcessing,
    CloseBeforeReading,
    CompressedHugeBody,
    Fault,
    GarbageBody,
    HugeBody,
    Redirect,
    RequestRecord,
    ResetAfterProcessing,
    Sandbox,
    SlowBytes,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    TruncatedHead,
    UnsolicitedReply,
    WrongTypes,
)
from transfer_async.sandbox.service import Exchange, Reply

TOKEN = "token-of-the-fake"  # noqa: S105 - not a real secret


class FakeClient(TransferClient):
    """A `TransferClient` without sockets, for unit tests: ``async with FakeClient(hooks=[...]) as client:``.

    A `FakeClient` is the real client with a different transport: keys, holds, doubts, the journal, errors and
    retries work as usual. The transport calls ``client.sandbox``, a sandbox in the same process, whose faults
    and accounts a test can change. Use a real `Sandbox` to test TLS, proxies and shared connections.

    Args:
        base_url: the service's name in the journal; the client never connects to this URL.
        token: the API token, or a callable that returns it, as for `TransferClient`. If ``token`` is a
            string, the sandbox accepts it. A callable must return ``TOKEN``.
        accounts: the registered users; by default those of a `Sandbox`.
        seed: determines the ids of orders and the random faults.
        settings: additional arguments passed to `TransferClient`, except ``session``, ``ssl`` and ``proxy``.

    Attributes:
        sandbox: the service, with its orders and faults.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1",
        token: Token = TOKEN,
        *,
        accounts: Iterable[Account] | None = None,
        seed: int = 0,
        **settings: Unpack[ClientSettings],
    ) -> None:
        for name in ("session", "ssl", "proxy"):
            if cast("dict[str, Any]", settings).get(name) is not None:
                raise ValueError(f"{name}: a FakeClient has no connections; test this with a Sandbox")
        known = token if isinstance(token, str) else TOKEN
        self._service = _SocketlessSandbox(accounts=accounts, token=known, seed=seed)
        super().__init__(base_url, token, **settings)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox that the client calls."""
        return self._service

    def out_of_reach(self, *, is_so: bool = True) -> None:
        """Refuse further connections to the service; if ``is_so`` is false, accept connections again."""
        self._transport.out_of_reach = is_so

    def _transport_to(self, base_url: str, times: Times, limits: Limits, **options: Any) -> Transport:
        self._transport = _Transport(
            base_url,
            self._service,
            timeouts=times.timeouts,
            max_response_bytes=limits.max_response_bytes,
            response_id_header=options["response_id_header"],
        )
        return self._transport


# --- in process --------------------------------------------------------------------------------------
# The client receives the responses and faults of a sandbox without sockets.


class _Exchange(Exchange):
    """An exchange that has no connection, and collects the bytes that the sandbox writes.

    Attributes:
        ended: a future that is done when the response has ended. The future is cancelled if the caller stops
            waiting.
        status, headers, content: the received parts of the response. ``status`` is None until the head is
            complete.
        whole: whether the response is complete.
    """

    def __init__(
        self, record: RequestRecord, body: bytes, *, max_bytes: int, sock_read: float, **parts: Any
    ) -> None:
        super().__init__(request=None, record=record, **parts)  # type: ignore[arg-type] # there is no aiohttp request
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.content: bytearray = bytearray()
        self.whole: bool = False
        self._reading: asyncio.Timeout | None = None
        self._sent, self._max_bytes, self._sock_read = body, max_bytes, sock_read
        self._raw = b""

    async def wait_for_end(self, *, within: float) -> None:
        """Wait for the end of the response, at most ``within`` seconds in total and ``sock_read`` per part.

        Raises:
            TimeoutError: one of the timeouts expired; the parts received so far are kept.
        """
        async with asyncio.timeout(within), asyncio.timeout(self._sock_read) as self._reading:
            await self.ended

    async def read_body(self) -> None:
        """Read the request's body. The client's orders are small enough to need no size check."""
        self._body = self.record.body = self._sent

    async def send(self, reply: Reply) -> None:
        self._begin(reply)
        self._take(reply.body)
        self._end(whole=True)

    async def begin(self, reply: Reply, *, length: int | None) -> web.StreamResponse:  # noqa: ARG002 - required by the base class
        self._begin(reply)
        return _Body(self)

    def write(self, data: bytes) -> None:
        """Collect raw bytes, and parse them as soon as the head is complete."""
        if self.ended.done():
            return  # A connection would keep bytes that follow the response. Here they are dropped.
        self._restart_timeout()
        self._raw += data
        head, ended, body = self._raw.partition(b"\r\n\r\n")
        if b"Transfer-Encoding: chunked" in head:  # Only faults write raw chunks, and never valid ones.
            self._end(whole=False)
        if not ended or self.ended.done():
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers.update(line.split(": ", 1) for line in lines)  # type: ignore[misc] # pairs
        self.content[:] = body
        if len(body) == int(self.headers["Content-Length"]):
            self._end(whole=True)

    def close(self) -> None:
        self._end(whole=False)

    def reset(self) -> None:
        self._end(whole=False)

    def _begin(self, reply: Reply) -> None:
        self.status = self.record.status = reply.status
        self.headers.update(reply.headers)

    def _take(self, data: bytes) -> None:
        if self.ended.done():
            raise ConnectionResetError("the client has closed the connection")
        self._restart_timeout()
        self.content += data
        if len(self.content) > self._max_bytes:
            self._end(whole=False)

    def _restart_timeout(self) -> None:
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time() + self._sock_read)

    def _end(self, *, whole: bool) -> None:
        if not self.ended.done():
            self.whole = whole
            self.ended.set_result(None)


class _Body(web.StreamResponse):
    """A response with only the methods of aiohttp's response that the sandbox's faults use."""

    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self._exchange._take(bytes(data))

    async def write_eof(self, data: bytes | bytearray | memoryview = b"") -> None:  # noqa: ARG002 - as in aiohttp
        self._exchange._end(whole=True)


class _SocketlessSandbox(Sandbox):
    """A sandbox without sockets. The service, accounts and faults also work outside ``async with``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._playing: set[asyncio.Task[None]] = set()

    def answer_to(self, record: RequestRecord, body: bytes, **bounds: Any) -> _Exchange:
        """Pass a request to the service, which finishes it even if the caller stops waiting."""
        exchange = _Exchange(
            record,
            body,
            **bounds,
            process=self._process,
            new_id=self._service.new_id,
            stall=self.faults.hold,
            sleep=self._sleep,
        )
        self.requests.append(record)
        task = asyncio.create_task(self._played(exchange), name="sandbox-exchange")
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)
        return exchange

    async def _played(self, exchange: _Exchange) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                await self._play(exchange)
        finally:
            exchange.close()
            self._finish(exchange.record)

    async def close(self) -> None:
        """Cancel every request in progress. A cancelled request is not processed later."""
        self._waiting.close()
        for task in (playing := [*self._playing]):
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


class _Transport(Transport):
    """A transport to a sandbox in the same process, which behaves like a transport with sockets."""

    def __init__(
        self,
        base_url: str,
        sandbox: _SocketlessSandbox,
        *,
        timeouts: Timeouts,
        max_response_bytes: int,
        response_id_header: str,
    ) -> None:
        super().__init__(
            base_url,
            session=None,
            ssl=None,
            proxy=None,
            timeouts=timeouts,
            max_response_bytes=max_response_bytes,
            max_connections=1,
            response_id_header=response_id_header,
        )
        self._sandbox = sandbox
        self.out_of_reach = False

    def open(self) -> None:
        """Mark the transport as open. A transport without sockets has no connection to prepare.

        Raises:
            TransportClosed: the transport was closed.
        """
        if self._closed:
            raise TransportClosed
        self._opened = True

    async def close(self) -> None:
        self._closed = True
        await self._sandbox.close()

    def stays_quiet(self, carrier: ConnectionState) -> bool:  # noqa: ARG002 - as in the base class
        """Return true, because without a connection no bytes can follow a response."""
        return True

    async def post_order(
        self, body: GuardedBody, *, headers: CIMultiDict[str], left: float
    ) -> ExchangeResult:
        try:
            self._check_reachable()
            await body.take(_Wire(), None)
            path = self._create_order.path
            return await self._exchange("POST", path, body.content or b"", headers, left=left)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as with sockets, any error may occur
            return ExchangeResult(sent=body.handed_over, error=error)
        finally:
            body.spent = True

    async def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None,
        headers: CIMultiDict[str],
        left: float,
        in_time: Callable[[], bool],  # noqa: ARG002 - no time passes before the exchange
    ) -> ExchangeResult:
        try:
            self._check_reachable()
        except Exception as error:  # noqa: BLE001 - any error may occur
            return ExchangeResult(sent=False, error=error)
        plain = unquote(path.partition("?")[0])
        evidence = await self._exchange(method, plain, content or b"", headers, left=left)
        if evidence.error is not None and must_propagate(evidence.error):
            raise evidence.error
        return evidence

    def _check_reachable(self) -> None:
        self.open()
        if self.out_of_reach:
            raise ConnectionRefusedError

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: CIMultiDict[str], *, left: float
    ) -> ExchangeResult:
        """Send one request. The result includes the bytes received before a timeout or cancellation."""
        record = RequestRecord(
            method=method, path=path, headers=headers.copy(), received_at=datetime.now(UTC)
        )
        times, max_bytes = self._timeouts, self._max_response_bytes
        got = self._sandbox.answer_to(record, body, max_bytes=max_bytes, sock_read=times.sock_read)
        cut: BaseException | None = None
        try:
            await got.wait_for_end(within=min(times.total, max(left, 0.001)))
        except (TimeoutError, asyncio.CancelledError) as stopped:
            cut = stopped
        if got.status is None:
            return ExchangeResult(sent=True, error=cut or aiohttp.ServerDisconnectedError())
        read, error = self._received_body(got, cut, of_head=method == "HEAD")
        return ExchangeResult(
            sent=True,
            status=got.status,
            headers=got.headers,
            body=read,
            intact=error is None,
            error=error,
            id_header=self._response_id_header,
        )

    def _received_body(
        self, got: _Exchange, cut: BaseException | None, *, of_head: bool
    ) -> tuple[bytes, BaseException | None]:
        body = BoundedBody(self._max_response_bytes, encoding=got.headers.get("Content-Encoding"))
        try:
            if not of_head:
                body.take(bytes(got.content))
            if not got.whole:
                raise cut or aiohttp.ClientPayloadError("the response was cut off")  # noqa: TRY301 - handled like any error
            body.end()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - returned with the content
            return body.content, error
        return body.content, None


class _Wire:
    """A connection that is always open, as `GuardedBody` requires."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _: str) -> None:
        return None


# --- running sandbox --------------------------------------------------------------------------------
# A sandbox with its own thread and event loop, for sync tests and for async tests on any event loop.


T = TypeVar("T")


class RunningSandbox(Sandbox):
    """A `Sandbox` that runs in its own thread: ``with RunningSandbox() as sandbox:``.

    Use a `RunningSandbox` in sync tests, or in async tests on any event loop. An async test awaits the
    methods, as in ``await sandbox.received(1)``. A sync test passes the coroutines to `wait`:
    ``sandbox.wait(sandbox.received(1))``.

    Read ``requests`` and ``orders`` only while no request is in progress, because the sandbox's thread
    changes them.

    Args:
        settings: the arguments of `Sandbox`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: Future[None] = Future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)

    def __enter__(self) -> Self:
        """Start the sandbox and wait until it is listening.

        Raises:
            OSError: the sandbox cannot listen on the address.
        """
        self._thread.start()
        self._listening.result()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None  # noqa: S101 - `__enter__` set it
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._listening.set_exception(error)  # `__enter__` raises the error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self:
            self._listening.set_result(None)
            await self._ended.wait()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's event loop and return its result. Use `wait` in sync code.

        Args:
            work: the coroutine of an async method, such as ``sandbox.received(1)``.

        Raises:
            RuntimeError: the sandbox is not running.
        """
        return asyncio.run_coroutine_threadsafe(work, self._own_loop(work)).result()

    async def match_now(self) -> list[str]:
        """See `Sandbox.match_now`."""
        return await self._there(super().match_now())

    async def received(self, count: int = 1) -> None:
        """See `Sandbox.received`."""
        await self._there(super().received(count))

    async def finished(self, count: int = 1) -> None:
        """See `Sandbox.finished`."""
        await self._there(super().finished(count))

    async def stalled(self, count: int = 1) -> None:
        """See `Sandbox.stalled`."""
        await self._there(super().stalled(count))

    async def created(self, count: int = 1) -> None:
        """See `Sandbox.created`."""
        await self._there(super().created(count))

    async def matched(self, order_id: str) -> None:
        """See `Sandbox.matched`."""
        await self._there(super().matched(order_id))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._own_loop(work)
        if loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _own_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError("the sandbox is not running: use it as `with RunningSandbox() as sandbox:`")
        return self._loop


# --- each fault --------------------------------------------------------------------------------------
# The faults that the marker ``transfer_faults`` uses by default.


_TOO_MUCH = 3 << 20  # bytes, more than a client reads by default

EACH_FAULT: Mapping[str, Fault] = MappingProxyType(
    {
        "close-before-reading": CloseBeforeReading(),
        "close-after-processing": CloseAfterProcessing(),
        "reset-after-processing": ResetAfterProcessing(),
        "status-401": Status(401),
        "status-422": Status(422),
        "status-429": Status(429),
        "status-500": Status(500),
        "status-503": Status(503),
        "status-503-after-processing": StatusAfterProcessing(503),
        "redirect": Redirect(),
        "truncated-head": TruncatedHead(),
        "truncated-body": TruncatedBody(),
        "garbage-body": GarbageBody(),
        "wrong-types": WrongTypes(),
        "another-order": AnotherOrder(),
        "slow-bytes": SlowBytes(delay=0.0, size=1024),
        "huge-body": HugeBody(_TOO_MUCH),
        "compressed-huge-body": CompressedHugeBody(_TOO_MUCH),
        "unsolicited-reply": UnsolicitedReply(),
    }
)
"""The sandbox's faults by name, without those that last until the client times out.

These are the stalls and ``broken-chunk``. To use one, pass its name to the marker, as in
``transfer_faults("stall-after-processing")``, and set short timeouts on the client.
"""


def named_faults(wanted: Iterable[str | Fault]) -> dict[str, Fault]:
    """Return the faults that a marker's arguments select, in order; without arguments, all of `EACH_FAULT`.

    Args:
        wanted: the marker's arguments, which are faults or names from `EACH_FAULT` or the sandbox's
            ``FAULTS``.

    Raises:
        ValueError: a name is not the name of a fault.
    """
    found = dict(map(_with_name, wanted))
    return found or dict(EACH_FAULT)


def _with_name(wanted: str | Fault) -> tuple[str, Fault]:
    if isinstance(wanted, Fault):
        return repr(wanted), wanted
    if wanted in EACH_FAULT:
        return wanted, EACH_FAULT[wanted]
    if wanted in FAULTS and wanted not in (Status.name, StatusAfterProcessing.name):
        return wanted, FAULTS[wanted]()
    raise ValueError(f"unknown fault {wanted!r}: use one of {', '.join((*EACH_FAULT, *FAULTS))}")


# --- client protocol ---------------------------------------------------------------------------------
# A type for code that accepts a client, a fake or a stub.


@runtime_checkable
class AnyClient(Protocol):
    """The protocol that every client implements. `TransferClient` documents the methods.

    Annotate your own code with `AnyClient`, so that it also accepts a `FakeClient` or a stub::

        if TYPE_CHECKING:
            from transfer_async.testing import AnyClient
    """

    async def create_order(
        self,
        order: NewOrder,
        *,
        key: str | None = None,
        beneficiary: PersonName | None = None,
        held: str | None = None,
        send_before: datetime | None = None,
        deadline: datetime | None = None,
        once: bool = False,
    ) -> Order:
        """See `TransferClient.create_order`."""

    def create_orders(
        self, requests: Requests, *, concurrency: int = 16, once: bool = False
    ) -> AsyncGenerator[OrderResult, None]:
        """See `TransferClient.create_orders`."""

    async def known(self, key: str) -> KeyRecord | None:
        """See `TransferClient.known`."""

    async def recover(self) -> RecoveryReport:
        """See `TransferClient.recover`."""

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """See `TransferClient.in_doubt`."""

    async def resolve(
        self, key: str, *, order_id: str, by: str, reason: str, undone: bool = False
    ) -> KeyRecord:
        """See `TransferClient.resolve`."""

    async def refute(self, key: str, *, by: str, reason: str, undone: bool = False) -> KeyRecord:
        """See `TransferClient.refute`."""

    async def history(self, key: str) -> tuple[HistoryEvent, ...]:
        """See `TransferClient.history`."""

    async def prune(self, *, before: datetime) -> int:
        """See `TransferClient.prune`."""

    async def who_am_i(self, *, deadline: datetime | None = None) -> User:
        """See `TransferClient.who_am_i`."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        into: Any = None,
        safe: bool = False,
        deadline: datetime | None = None,
    ) -> Any:
        """See `TransferClient.request`."""

    async def close(self, timeout: Duration = 35.0) -> None:  # noqa: ASYNC109 - as in `TransferClient`
        """See `TransferClient.close`."""

    async def __aenter__(self) -> Self:
        """Open the client."""

    async def __aexit__(self, *exc: object) -> None:
        """Close the client."""
