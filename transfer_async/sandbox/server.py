"""The sandbox: its public class, the matcher bot, and the server with its connections."""

import asyncio
import logging
import secrets
import ssl as ssl_module
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

from aiohttp import StreamReader, web

from transfer_async.sandbox import service
from transfer_async.sandbox.accounts import DEFAULT_ACCOUNTS, Account, Accounts
from transfer_async.sandbox.control import USER_PATH, Control
from transfer_async.sandbox.faults import Faults, Waiting
from transfer_async.sandbox.profile import ImitatingService, ServiceProfile, keep_alive_of
from transfer_async.sandbox.service import (
    CREATE_ORDER_PATH,
    Call,
    Exchange,
    Fault,
    Reply,
    RequestRecord,
    Service,
    message,
)
from transfer_async.sandbox.wire import Order

Sleep = Callable[[float], Awaitable[object]]

logger: logging.Logger = logging.getLogger("transfer_async.sandbox")


def _now() -> datetime:
    return datetime.now(UTC)


class Sandbox:
    """A small implementation of the transfer order service that listens on a real socket.

    `async with Sandbox() as sandbox:` listens until the block ends. A sandbox can be used only once.

    Args:
        match_every: how many seconds to wait between runs of the matcher bot.
        seed: determines the order ids and the random faults.
        faults: each fault with the share of orders that it affects, as in `{CloseAfterProcessing(): 0.05,
            Status(429): 0.1}`. With the same seed, the same requests get the same faults. See `Faults.mix`.
        accounts: the registered accounts, `DEFAULT_ACCOUNTS` by default.
        token: the API token; by default a new random one.
        host: the address to listen on. If the address is not loopback, other machines can reach the sandbox.
        port: the port to listen on; 0 selects a free port.
        ssl: the TLS context of an https sandbox; by default the sandbox uses http.
        sleep: an async function that waits, `asyncio.sleep` by default. The function must yield to the event
            loop.
        now: a function that returns the time as an aware datetime, by default the machine's clock.
        keep_alive: how many seconds a connection may be idle before it is closed.
        keep_requests: the maximum length of `requests`; the oldest requests are dropped first.
        profile: the recorded behaviour of a service to imitate (see `load_profile`). The profile's recorded
            idle limit takes precedence over `keep_alive`.

    Attributes:
        token: the API token.
        accounts: the registered accounts.
        requests: the received requests, oldest first.
        faults: the faults for the next requests.
        user_path: the path that returns a user, with `{username}` in place of the percent-encoded username.
    """

    user_path: str = USER_PATH

    def __init__(
        self,
        *,
        match_every: float = 300.0,
        seed: int = 0,
        faults: Mapping[Fault, float] | None = None,
        accounts: Iterable[Account] | None = None,
        token: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        ssl: ssl_module.SSLContext | None = None,
        sleep: Sleep = asyncio.sleep,
        now: Callable[[], datetime] = _now,
        keep_alive: float = 75.0,
        keep_requests: int = 1000,
        profile: ServiceProfile | None = None,
    ) -> None:
        if not match_every > 0:
            raise ValueError(f"match_every must be greater than 0 seconds, not {match_every}")
        self.token: str = token or secrets.token_hex(16)
        self.accounts: Accounts = Accounts(DEFAULT_ACCOUNTS if accounts is None else accounts)
        self.requests: deque[RequestRecord] = deque(maxlen=keep_requests)
        self._waiting = Waiting()
        self.faults: Faults = Faults(seed=seed, waiting=self._waiting)
        self.faults.mix(faults or {})
        settings: dict[str, Any] = {"accounts": self.accounts, "token": self.token, "seed": seed, "now": now}
        self._service = ImitatingService(profile, **settings) if profile else Service(**settings)
        habits = profile.connection if profile else None
        self._last_on_connection = habits.requests if habits else None
        self._announces_last = habits is None or habits.announced
        self._control = Control(
            self._service, self.faults, self.requests, token=self.token, match=self._match
        )
        self._match_every, self._sleep, self._now = match_every, sleep, now
        self._received = self._finished = 0
        self._connections = Connections(
            self._handle,
            host=host,
            port=port,
            ssl=ssl,
            keep_alive=keep_alive_of(habits, keep_alive),
        )
        self._bot: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        """The sandbox's URL: scheme, host and port, without a trailing slash.

        Raises:
            RuntimeError: the sandbox is not listening.
        """
        return self._connections.base_url

    @property
    def orders(self) -> Mapping[str, Order]:
        """The existing orders by id, in the order of creation."""
        return MappingProxyType(self._service.orders)

    async def __aenter__(self) -> Self:
        await self._connections.open()
        self._bot = asyncio.create_task(self._run_matcher(), name="sandbox-matcher")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waiting.close()
        if self._bot is not None:
            self._bot.cancel()
            await asyncio.gather(self._bot, return_exceptions=True)
        await self._connections.close()

    async def match_now(self) -> list[str]:
        """Run the matcher bot once, and return the ids of the orders that it matched."""
        return self._match()

    async def received(self, count: int = 1) -> None:
        """Wait until the sandbox has read `count` create-order requests in total.

        Raises:
            RuntimeError: the sandbox was closed before it had read the requests. `finished`, `stalled`,
                `created` and `matched` raise the same error.
        """
        await self._waiting.until(lambda: self._received >= count)

    async def finished(self, count: int = 1) -> None:
        """Wait until `count` create-order requests are finished, either answered or abandoned."""
        await self._waiting.until(lambda: self._finished >= count)

    async def stalled(self, count: int = 1) -> None:
        """Wait until `count` requests are stalled at the same time."""
        await self._waiting.until(lambda: len(self.faults.stalled) >= count)

    async def created(self, count: int = 1) -> None:
        """Wait until `count` orders exist."""
        await self._waiting.until(lambda: len(self.orders) >= count)

    async def matched(self, order_id: str) -> None:
        """Wait until the order exists and is matched."""
        await self._waiting.until(lambda: order_id in self.orders and self.orders[order_id].is_matched)

    async def _run_matcher(self) -> None:
        while True:
            await self._sleep(self._match_every)
            self._match()

    def _match(self) -> list[str]:
        processing = [order.id for order in self.orders.values() if not order.is_matched]
        for order_id in processing:
            self._service.match(order_id)
        self._waiting.changed()
        return processing

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        record = RequestRecord(
            method=request.method, path=request.path, headers=request.headers, received_at=self._now()
        )
        self.requests.append(record)
        served = cast("_Connection", request.protocol).served
        exchange = Exchange(
            request,
            record,
            process=self._process,
            new_id=self._service.new_id,
            stall=self.faults.hold,
            sleep=self._sleep,
            is_last=self._last_on_connection is not None and served >= self._last_on_connection,
            announces=self._announces_last,
        )
        try:
            try:
                await self._play(exchange)
            except web.RequestPayloadError:
                await exchange.send(message(400, "The body is not valid HTTP."))
                exchange.close()
            exchange.end()
        except ConnectionError:
            exchange.close()
        finally:
            self._finish(record)
        return exchange.answer

    async def _play(self, exchange: Exchange) -> None:
        record = exchange.record
        may_fail = not self._control.is_control_path(record.path)
        if may_fail:
            record.fault = self.faults.take(record, before_body=True)
        if record.fault is None:
            await exchange.read_body()
            self._received += record.path == CREATE_ORDER_PATH
            self._waiting.changed()
            if may_fail:
                record.fault = self.faults.take(record, before_body=False)
        if record.fault is None:
            await exchange.send(exchange.process())
        else:
            await record.fault(exchange)

    def _process(self, call: Call) -> Reply:
        reply = self._control.answer(call)
        self._waiting.changed()
        return reply

    def _finish(self, record: RequestRecord) -> None:
        record.finished = True
        self._finished += record.path == CREATE_ORDER_PATH
        self._waiting.changed()
        fault = record.fault.name if record.fault else "-"
        logger.info("%s %r -> %s, fault %s", record.method, record.path, record.status or "no answer", fault)


# --- connections -------------------------------------------------------------------------------------
# The listening socket and its connections. Closing ends all tasks and connections.

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

# Seconds that aiohttp gets to end aborted connections. It needs a few iterations of the event loop.
_GRACE = 1.0


class _Connection(web.RequestHandler):
    """aiohttp's connection. The response to invalid HTTP is JSON, and the invalid bytes are not logged.

    `body` is the body of the current request. `served` counts the connection's requests so far.
    """

    body: StreamReader | None = None
    served: int = 0

    def data_received(self, data: bytes) -> None:
        """Receive bytes. If a chunk is broken, end the current body with an error.

        Without this check, aiohttp would parse a broken chunk as the next request, and the body would never
        end.
        """
        super().data_received(data)
        if self._messages and self.body is not None and not self.body.is_eof():
            self.body.set_exception(web.RequestPayloadError("broken chunk"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        reply = service.message(status, "The request is not valid HTTP.")
        response = web.Response(status=status, body=reply.body, content_type="application/json")
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(self, handler: Handler, **options: Any) -> None:
        super().__init__(handler)
        self._options = options
        self.accepting: WeakSet[asyncio.Task[Any]] = WeakSet()

    def __call__(self) -> web.RequestHandler:
        # The asyncio task that accepts a connection runs until the TLS handshake is complete.
        if (task := asyncio.current_task()) is not None:
            self.accepting.add(task)
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)


class Connections:
    """The connections of a sandbox and the requests in progress on them."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        ssl: ssl_module.SSLContext | None,
        keep_alive: float,
    ) -> None:
        self._handler = handler
        self._host, self._port, self._ssl = host, port, ssl
        self._options = {"keepalive_timeout": keep_alive, "logger": logger, "access_log": None}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: _Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """The URL: scheme, host and port.

        Raises:
            RuntimeError: the sandbox is not listening.
        """
        if self._listener is None or not self._listener.sockets:
            raise RuntimeError("the sandbox is not listening: use it as `async with Sandbox() as sandbox:`")
        port = self._listener.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{port}"

    async def open(self) -> None:
        """Start to listen.

        Raises:
            RuntimeError: the sandbox has been opened before.
            OSError: the sandbox cannot listen on the address.
        """
        if self._listener is not None:
            raise RuntimeError("a sandbox can be used only once: create another one")
        self._server = _Server(self._run, **self._options)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, self._host, self._port, ssl=self._ssl)

    async def close(self) -> None:
        """Stop listening, cancel every request in progress, and abort every connection."""
        if self._listener is None or self._server is None:
            return
        self._listener.close()
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        tasks = [*self._tasks, *self._server.accepting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server.pre_shutdown()
        await self._server.shutdown(_GRACE)
        await self._listener.wait_closed()

    async def _run(self, request: web.BaseRequest) -> web.StreamResponse:
        # Keep both tasks of a request: aiohttp drops its own when the client closes the connection.
        tasks = {task for task in (asyncio.current_task(), request.task) if task is not None}
        self._tasks |= tasks
        connection = cast("_Connection", request.protocol)
        connection.body = request.content
        connection.served += 1
        try:
            return await self._handler(request)
        finally:
            self._tasks -= tasks
