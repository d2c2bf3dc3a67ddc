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

from aiohttp import web

from transfer_async.sandbox.accounts import DEFAULT_ACCOUNTS, Account, Accounts
from transfer_async.sandbox.connections import Connections, served_on
from transfer_async.sandbox.control import USER_PATH, Control
from transfer_async.sandbox.exchange import Exchange, Fault, RequestRecord
from transfer_async.sandbox.fault_script import Faults, Waiting
from transfer_async.sandbox.imitation import ImitatingService, keep_alive_of
from transfer_async.sandbox.profile import ServiceProfile
from transfer_async.sandbox.rendering import Order
from transfer_async.sandbox.service import CREATE_ORDER_PATH, Call, Reply, Service, message

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
        )
        try:
            await self._answer(exchange)
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
        if self._control.steers(record.path):
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
