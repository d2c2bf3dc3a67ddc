"""A worker as a process: from its options to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from attrs import field, frozen

from transfer_async._cli.hooks import BankSide, made_by
from transfer_async._cli.running import Say
from transfer_async.client import TransferClient
from transfer_async.context import log as logger
from transfer_async.events import Observer
from transfer_async.handling import Handler
from transfer_async.health import Health
from transfer_async.integrations.brokers import line_at
from transfer_async.integrations.brokers.line import WorkerSettings
from transfer_async.integrations.faststream import OrderWorker
from transfer_async.journal.base import Journal
from transfer_async.journal.choice import journal_at

_STOPPING = (signal.SIGINT, signal.SIGTERM)

Beside = Callable[[OrderWorker], Awaitable[object]]
"""What is done while a worker runs, once it could take a message."""


@frozen(kw_only=True)
class Plan:
    """All that a worker is made with; checked as it is made."""

    broker: str
    journal: str
    base_url: str
    token: str = field(repr=False)
    factory: Callable[[], object] | None = None
    settings: WorkerSettings = field(factory=WorkerSettings)
    max_deliveries: int = 50
    client: Mapping[str, Any] = field(factory=dict)
    health: tuple[str, int] = ("127.0.0.1", 0)
    telemetry: bool = False


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts.

    Raises:
        ValueError: it is not that.
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("--health: must be HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def public(address: str) -> str:
    """``address``, or several with commas between them, without a name, a password or other secrets."""
    return ",".join(_public(one.strip()) for one in address.split(","))


def _public(address: str) -> str:
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


async def work(plan: Plan, *, say: Say, log: Say, beside: Beside | None = None) -> None:
    """Run a worker until SIGINT or SIGTERM, and finish what is in flight; at the second one, stop at once.

    Args:
        plan: what to run.
        say: takes the lines at the start, and the one at the end.
        log: takes what the worker has to say in between.
        beside: see `Beside`; an error of it ends the worker, and is raised.

    Raises:
        ValueError: something of the plan is no good.
        OSError: the address for the health's answers is not to be had.
        asyncio.CancelledError: it was stopped for the second time.
    """
    stop = asyncio.Event()
    with stopped_by_signals(stop), _logged(log):
        side = BankSide(hooks=()) if plan.factory is None else await made_by(plan.factory)
        line = line_at(plan.broker, plan.settings)
        traced = _Traced.of(plan)
        async with _client(plan, side, traced) as client:
            health = Health()
            worker = OrderWorker(
                client,
                line,
                handler=Handler(client, max_deliveries=plan.max_deliveries),
                health=health,
                **traced.worker,
            )
            async with health.served(host=plan.health[0], port=plan.health[1]) as address:
                for each in announcement(plan, address):
                    say(each)
                await _until_stopped(worker, stop, beside)
    say("worker stopped")


def announcement(plan: Plan, health: str) -> list[str]:
    """What the worker is connected to."""
    settings = plan.settings
    return [
        f"worker of {public(plan.base_url)}, {settings.concurrency} commands at once, until Ctrl-C",
        f"commands from {settings.commands} at {public(plan.broker)}",
        f"outcomes to {settings.outcomes}, dead letters to {settings.parked}",
        f"journal {public(plan.journal)}",
        f"health {health}/ready and /live",
    ]


async def _until_stopped(worker: OrderWorker, stop: asyncio.Event, beside: Beside | None) -> None:
    running = asyncio.create_task(worker.run(stop))
    try:
        if beside is not None:
            await _unless(_beside(worker, beside), running, asyncio.create_task(stop.wait()))
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _beside(worker: OrderWorker, beside: Beside) -> None:
    await worker.started.wait()
    await beside(worker)


async def _unless(work: Coroutine[Any, Any, None], *ends: asyncio.Task[Any]) -> None:
    """Do ``work``, but for what is left of it when the first of ``ends`` comes."""
    doing = asyncio.create_task(work)
    await asyncio.wait([doing, *ends], return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        doing.result()
    doing.cancel()
    await asyncio.wait([doing])


@asynccontextmanager
async def _client(plan: Plan, side: BankSide, traced: _Traced) -> AsyncIterator[TransferClient]:
    # It opens when it is used: its database may be away now.
    journal = traced.journal(journal_at(plan.journal))
    settings = {"token": plan.token, **plan.client, **side.settings}
    settings["observers"] = [*traced.observers, *settings.get("observers", ())]
    client = TransferClient(
        plan.base_url, journal=journal, hooks=side.hooks, resolve=side.resolve, **settings
    )
    traced.watch(client)
    patience = 0.0  # whoever ends it otherwise does not wait
    try:
        yield client
        patience = plan.settings.patience
    finally:
        await client.close(timeout=patience)
        await journal.close()


@frozen(kw_only=True)
class _Traced:
    """What telemetry there is of a worker's parts; by default none."""

    journal: Callable[[Journal], Journal] = lambda journal: journal
    observers: Sequence[Observer] = ()
    watch: Callable[[TransferClient], None] = lambda _: None
    worker: Mapping[str, Any] = field(factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> _Traced:
        """That of ``plan``.

        Raises:
            ValueError: OpenTelemetry is not installed.
        """
        if not plan.telemetry:
            return cls()
        try:
            from transfer_async.integrations import opentelemetry  # needs an extra
        except ImportError as error:
            raise ValueError(f"--telemetry: {error}") from None
        telemetry = opentelemetry.Telemetry(base_url=plan.base_url)
        return cls(
            journal=telemetry.journal,
            observers=[telemetry],
            watch=telemetry.watch,
            worker={"around": opentelemetry.context_from, "inject": opentelemetry.headers_of_context},
        )


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set ``stop``; once it is set, they cancel whoever is within."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop_or_cancel() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    def handle(*_: object) -> None:
        loop.call_soon_threadsafe(stop_or_cancel)

    # Not loop.add_signal_handler, which Windows does not have.
    before = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Lines(logging.Handler):
    """Hands every record on as a line."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(self.format(record))
        except Exception:  # noqa: BLE001 - as logging's own handlers: a log line never hurts the work
            self.handleError(record)


@contextmanager
def _logged(say: Say) -> Iterator[None]:
    lines, level = _Lines(say), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
