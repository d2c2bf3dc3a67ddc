"""The sandbox's life: a listening socket on loopback, the matcher bot, and everything that runs between."""

import asyncio
import logging
import secrets
import ssl as ssl_module
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Self
from weakref import WeakSet

from aiohttp import StreamReader, web

from transfer_async.sandbox import service
from transfer_async.sandbox.accounts import DEFAULT_ACCOUNTS, Account, Accounts
from transfer_async.sandbox.control import USER_PATH, Control
from transfer_async.sandbox.faults import Faults, Waiting
from transfer_async.sandbox.profile import ImitatingService, ServiceProfile, keep_alive_of
from transfer_async.sandbox.rendering import Order
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

Sleep = Callable[[float], Awaitable[object]]


def match_all(service: Service) -> list[str]:
    """Match every order that is processing; return their ids in the order of creation."""
    waiting = [order.id for order in service.orders.values() if not order.is_matched]
    for order_id in waiting:
        service.match(order_id)
    return waiting


async def run_matcher(match: Callable[[], object], *, every: float, sleep: Sleep) -> None:
    """Call `match` every so many seconds until cancelled."""
    while True:
        await sleep(every)
        match()


logger: logging.Logger = logging.getLogger("transfer_async.sandbox")


def _now() -> datetime:
    return datetime.now(UTC)


class Sandbox:
    """The transfer order service, small and faithful, on a real socket of this machine.

    `async with Sandbox() as sandbox:` listens until the block ends; it cannot be entered twice.

    Args:
        match_every: seconds between two runs of the matcher bot.
        seed: order ids and chances of faults are drawn from it.
        faults: how likely each fault is for an order, `{CloseAfterProcessing(): 0.05, Status(429): 0.1}`;
            the same orders get the same faults for the same seed. See `Faults.mix`.
        accounts: who is registered; by default `DEFAULT_ACCOUNTS`.
        token: the API token; by default a new random one.
        host: the address to listen on; anything but a loopback address is for those who know why.
        port: the port to listen on; 0 picks a free one.
        ssl: serve https with this context.
        sleep: how to wait, `asyncio.sleep` by default; it must give the event loop a turn.
        now: the time, aware; by default the machine's.
        keep_alive: seconds for which an idle connection is kept open.
        keep_requests: how many requests `requests` remembers.
        profile: what a service was seen to do, which is imitated: see `load_profile`. How long it keeps an
            idle connection counts more than `keep_alive`.

    Attributes:
        token: the API token.
        accounts: who is registered.
        requests: what it received, oldest first.
        faults: what is to go wrong.
        user_path: the path of its user-info look-up, with `{username}` for the username, percent-encoded.
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
            logger=logger,
        )
        self._bot: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        """Scheme, host and port, without a trailing slash.

        Raises:
            RuntimeError: the sandbox is not listening.
        """
        return self._connections.base_url

    @property
    def orders(self) -> Mapping[str, Order]:
        """The orders that exist, by id, in the order of creation."""
        return MappingProxyType(self._service.orders)

    async def __aenter__(self) -> Self:
        await self._connections.open()
        run = run_matcher(self._match, every=self._match_every, sleep=self._sleep)
        self._bot = asyncio.create_task(run, name="sandbox-matcher")
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
        """Run the matcher bot once, now; return the ids of the orders that it matched."""
        return self._match()

    async def received(self, count: int = 1) -> None:
        """Return once so many create-order requests have been read, in all.

        Raises:
            RuntimeError: the sandbox closed first. So do the other methods that wait.
        """
        await self._waiting.until(lambda: self._received >= count)

    async def finished(self, count: int = 1) -> None:
        """Return once the sandbox is done with so many create-order requests: answered, or given up."""
        await self._waiting.until(lambda: self._finished >= count)

    async def stalled(self, count: int = 1) -> None:
        """Return once so many requests stall at the same time."""
        await self._waiting.until(lambda: len(self.faults.stalled) >= count)

    async def created(self, count: int = 1) -> None:
        """Return once so many orders exist."""
        await self._waiting.until(lambda: len(self.orders) >= count)

    async def matched(self, order_id: str) -> None:
        """Return once this order exists and is matched."""
        await self._waiting.until(lambda: order_id in self.orders and self.orders[order_id].is_matched)

    def _match(self) -> list[str]:
        matched = match_all(self._service)
        self._waiting.changed()
        return matched

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        record = RequestRecord(
            method=request.method, path=request.path, headers=request.headers, received_at=self._now()
        )
        self.requests.append(record)
        exchange = Exchange(
            request,
            record,
            process=self._process,
            new_id=self._service.new_id,
            stall=self.faults.hold,
            sleep=self._sleep,
            is_last=self._last_on_connection is not None and served_on(request) >= self._last_on_connection,
            announces=self._announces_last,
        )
        try:
            await self._answer(exchange)
            exchange.end()
        except ConnectionError:
            exchange.close()
        finally:
            self._finish(record)
        return exchange.answer

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._play(exchange)
        except web.RequestPayloadError:
            await exchange.send(message(400, "The body breaks the rules of HTTP."))
            exchange.close()

    async def _play(self, exchange: Exchange) -> None:
        record = exchange.record
        record.fault = self._take_fault(record, before_body=True)
        if record.fault is None:
            await exchange.read_body()
            self._count_received(record)
            record.fault = self._take_fault(record, before_body=False)
        if record.fault is None:
            await exchange.send(exchange.process())
        else:
            await record.fault(exchange)

    def _process(self, call: Call) -> Reply:
        reply = self._control.answer(call)
        self._waiting.changed()
        return reply

    def _take_fault(self, record: RequestRecord, *, before_body: bool) -> Fault | None:
        if self._control.is_control_path(record.path):
            return None
        return self.faults.take(record, before_body=before_body)

    def _count_received(self, record: RequestRecord) -> None:
        self._received += record.path == CREATE_ORDER_PATH
        self._waiting.changed()

    def _finish(self, record: RequestRecord) -> None:
        record.finished = True
        self._finished += record.path == CREATE_ORDER_PATH
        self._waiting.changed()
        fault = record.fault.name if record.fault else "-"
        logger.info("%s %r -> %s, fault %s", record.method, record.path, record.status or "no answer", fault)


# --- connections -------------------------------------------------------------------------------------
# The listening socket and its connections: opened in a moment, and gone without a trace when closed.


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

# What aiohttp may take to end a connection that has already been cut; it needs a few turns of the loop.
_GRACE = 1.0


class _Connection(web.RequestHandler):
    """aiohttp's own connection, but what is not HTTP is answered in JSON and without a log of its bytes.

    `body` is the body of the request that is being handled, `served` counts the requests so far.
    """

    body: StreamReader | None = None
    served: int = 0

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; a broken chunk ends the body that it stands in.

        aiohttp files it as the next request, and lets the reader of this body wait for ever.
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
        reply = service.message(status, "This is not a request that HTTP allows.")
        response = web.Response(status=status, body=reply.body, content_type="application/json")
        response.force_close()
        return response


class _Server(web.Server):
    """aiohttp's low-level server, with connections of our kind."""

    def __init__(self, handler: Handler, **options: Any) -> None:
        super().__init__(handler)
        self._options = options
        self.accepting: WeakSet[asyncio.Task[Any]] = WeakSet()

    def __call__(self) -> web.RequestHandler:
        # asyncio's own task that accepts a connection: it lives until the TLS handshake is done.
        if (task := asyncio.current_task()) is not None:
            self.accepting.add(task)
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)


def served_on(request: web.BaseRequest) -> int:
    """Tell how many requests came on a request's connection, this one included."""
    return request.protocol.served if isinstance(request.protocol, _Connection) else 1


class Connections:
    """Every connection of a sandbox, and every request in progress on them."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        ssl: ssl_module.SSLContext | None,
        keep_alive: float,
        logger: logging.Logger,
    ) -> None:
        self._handler = handler
        self._host, self._port, self._ssl = host, port, ssl
        self._options = {"keepalive_timeout": keep_alive, "logger": logger, "access_log": None}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: _Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """Scheme, host and port.

        Raises:
            RuntimeError: not open.
        """
        if self._listener is None or not self._listener.sockets:
            raise RuntimeError("the sandbox is not listening: use it as `async with Sandbox() as sandbox:`")
        port = self._listener.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{port}"

    async def open(self) -> None:
        """Listen.

        Raises:
            RuntimeError: opened before.
            OSError: the address is not to be had.
        """
        if self._listener is not None:
            raise RuntimeError("a sandbox is entered once")
        self._server = _Server(self._run, **self._options)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, self._host, self._port, ssl=self._ssl)

    async def close(self) -> None:
        """Stop listening, give up every request in progress, and cut every connection."""
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
        # Both tasks of a request: aiohttp forgets its own once the client has left.
        tasks = {task for task in (asyncio.current_task(), request.task) if task is not None}
        self._tasks |= tasks
        if isinstance(request.protocol, _Connection):
            request.protocol.body = request.content
            request.protocol.served += 1
        try:
            return await self._handler(request)
        finally:
            self._tasks -= tasks
