"""A bank that records all calls, with a clock and a journal that the test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from tests.support.journalling import of_key
from tests.support.order_fields import EXTERNAL, ORDER
from transfer_async import (
    FundsHold,
    JournalFailed,
    MemoryJournal,
    NewExternalOrder,
    NewOrder,
    Order,
    OutcomeUnknown,
    RecoveryReport,
    Refused,
    SQLiteJournal,
    TransferClient,
    TransferError,
)
from transfer_async._models.events import Event
from transfer_async._models.requests import OrderIntent
from transfer_async._support.clock import Clock
from transfer_async.journal.model import Entry, KeyState, TransitionResult, undos_on_failure
from transfer_async.journal.protocol import Journal
from transfer_async.journal.transitions import Expire, Move, Refute, Resolve
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, StallAfterProcessing

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
CALL = ("beneficiary", "held", "send_before", "deadline")
"""The arguments of a call, except its order and key."""


def new_order(**changes: Any) -> NewOrder:
    """Return an order that the sandbox accepts."""
    return NewOrder(**{**ORDER, "external_order": external_order(), **changes})


def external_order(**changes: Any) -> NewExternalOrder:
    """Return the bank's part of an order."""
    return NewExternalOrder(**{**EXTERNAL, **changes})


def other_order() -> NewOrder:
    """Return an order for twice the amount."""
    return new_order(poster_amount="310050.00", matcher_amount=Decimal(200))


def refused_order() -> NewOrder:
    """Return an order that the sandbox refuses, because its username is not registered."""
    return new_order(poster_recipient_username="nobody@example.com")


class Time:
    """A clock that advances only when a test moves it or code sleeps."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.chances: list[float] = []
        self.slept: list[float] = []
        self.on_sleep: Callable[[], Awaitable[None]] | None = None
        self.clock = Clock(now=self.now, utc=self.utc, sleep=self.sleep, chance=self._chance)

    def now(self) -> float:
        return self.seconds

    def utc(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 1000.0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.on_sleep is not None:
            await self.on_sleep()
        self.seconds += seconds
        await asyncio.sleep(0)

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds

    def _chance(self) -> float:
        return self.chances.pop(0) if self.chances else 0.5


class Bank:
    """The bank's holds by intent, and a log of all calls. Repeated calls place or release it only once."""

    def __init__(self) -> None:
        self.open: dict[str, str] = {}
        self.log: list[str] = []
        self.placed: list[str] = []
        self.released: list[tuple[str, str | None]] = []
        self.intents: list[OrderIntent] = []
        self.place_error: BaseException | None = None
        self.release_error: BaseException | None = None
        self.on_place: Callable[[OrderIntent], Awaitable[Any]] | None = None
        self.on_placed: Callable[[OrderIntent], Awaitable[Any]] | None = None
        self.on_release: Callable[[OrderIntent], Awaitable[Any]] | None = None
        self.reference: Any = None

    async def place(self, intent: OrderIntent) -> str:
        self.log.append("place")
        self.placed.append(intent.id)
        self.intents.append(intent)
        if self.on_place is not None:
            await self.on_place(intent)
        if self.place_error is not None:
            raise self.place_error
        self.open.setdefault(intent.id, f"hold-{intent.id}")
        if self.on_placed is not None:
            await self.on_placed(intent)
        return self.open[intent.id] if self.reference is None else self.reference

    async def release(self, intent: OrderIntent, receipt: str | None) -> None:
        self.log.append("release")
        if self.on_release is not None:
            await self.on_release(intent)
        if self.release_error is not None:
            raise self.release_error
        self.released.append((intent.id, receipt))
        self.open.pop(intent.id, None)

    @property
    def hold(self) -> FundsHold:
        return FundsHold(self.place, self.release)

    def step(self, name: str, *, error: BaseException | None = None) -> "StepHook":
        """A hook that only adds its name to the bank's log."""
        return StepHook(self, name, error)


class StepHook:
    def __init__(self, bank: Bank, name: str, error: BaseException | None) -> None:
        self.bank, self.name, self.error = bank, name, error
        self.undo_error: BaseException | None = None
        self.undone: list[tuple[str, str | None]] = []
        self.act: Callable[[OrderIntent], Awaitable[Any]] | None = None

    async def before(self, intent: OrderIntent) -> str | None:
        self.bank.log.append(self.name)
        if self.act is not None:
            await self.act(intent)
        if self.error is not None:
            raise self.error
        return f"{self.name}-{intent.id}"

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        self.bank.log.append(f"undo {self.name}")
        self.undone.append((intent.id, receipt))
        if self.undo_error is not None:
            raise self.undo_error


class Gate:
    """Blocks every caller until it is opened. A test can wait until a caller arrives."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()
        self.passed = False

    async def __call__(self, *_: Any) -> None:
        self.reached.set()
        await self._open.wait()
        self.passed = True

    def open(self) -> None:
        self._open.set()

    async def catches(self, call: Awaitable[T]) -> asyncio.Future[T]:
        """Start a call. Return its task when it has arrived at the gate."""
        task = asyncio.ensure_future(call)
        await self.reached.wait()
        return task


class SpiedJournal:
    """A journal that wraps another, records its transitions, and fails or waits when a test asks for it."""

    durable = False

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.moves: list[Move] = []
        self.fail_on: type | None = None
        self.fail_after: type | None = None
        self.fail_at: int | None = None
        self.error: BaseException = OSError("disk full")
        self.before: dict[type, Callable[[Move], Awaitable[Any]]] = {}
        self.after: dict[type, Callable[[Move], Awaitable[Any]]] = {}
        self.closed = 0

    @property
    def kinds(self) -> list[str]:
        return [type(move).__name__ for move in self.moves]

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        self.moves.append(move)
        if self.fail_at == len(self.moves) or (self.fail_on and isinstance(move, self.fail_on)):
            raise self.error
        if (wait := self.before.get(type(move))) is not None:
            await wait(move)
        verdict = await self.journal.move(scope, key, move)
        if (wait := self.after.get(type(move))) is not None:
            await wait(move)
        if self.fail_after and isinstance(move, self.fail_after):
            raise self.error
        return verdict

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.closed += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)


class Gone(BaseException):
    """The journal error that simulates a worker's death: after it, the call writes nothing more."""


class World:
    """A sandbox, a bank, a clock and a journal, and the clients that use them."""

    def __init__(self, sandbox: Sandbox, journal: Journal | None = None) -> None:
        self.sandbox = sandbox
        self.scope = sandbox.base_url
        self.bank = Bank()
        self.time = Time()
        self.journal = SpiedJournal(journal or MemoryJournal(clock=self.time.clock))
        self.events: list[Event] = []

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[TransferClient]:
        async with self.made(**settings) as client:
            yield client

    def made(self, **settings: Any) -> TransferClient:
        """Return a client that the test must close."""
        options: dict[str, Any] = {
            "token": self.sandbox.token,
            "hooks": [self.bank.hold],
            "journal": self.journal,
            "clock": self.time.clock,
            "observers": [self.events.append],
            **settings,
        }
        return TransferClient(self.sandbox.base_url, options.pop("token"), **options)

    async def create(
        self, order: NewOrder | None = None, *, key: str | None = "k", **arguments: Any
    ) -> Order:
        """Make one call with a new client. `arguments` are those of the call, or settings of the client."""
        call = {name: arguments.pop(name) for name in CALL if name in arguments}
        async with self.client(**arguments) as client:
            wish = new_order() if order is None else order
            return await client.create_order(wish, key=key, **call)

    async def fails(
        self, kind: type[E], order: NewOrder | None = None, *, match: str | None = None, **arguments: Any
    ) -> E:
        """Make one call that must fail. Return its error."""
        with pytest.raises(kind, match=match) as caught:
            await self.create(order, **arguments)
        return caught.value

    async def recover(self, **settings: Any) -> RecoveryReport:
        """Run `recover` with a new client."""
        async with self.client(**settings) as client:
            return await client.recover()

    async def entry(self, key: str = "k") -> Entry:
        entry = await self.known(key)
        assert entry is not None
        return entry

    async def known(self, key: str = "k") -> Entry | None:
        return await self.journal.journal.read(self.scope, key)

    async def move(self, move: Move, key: str = "k") -> TransitionResult | None:
        """Make a transition as another worker."""
        return await self.journal.journal.move(self.scope, key, of_key(move, key))

    async def ended(self, key: str = "k") -> None:
        """Wait until the call that uses a key has ended."""
        while (await self.entry(key)).state in (KeyState.CLAIMED, KeyState.SENDING):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def history(self, key: str = "k") -> list[str]:
        """Return a summary of the key's history."""
        steps = await self.journal.history(self.scope, key)
        return [f"{step.move}: {step.state.value}" for step in steps]

    async def crash(self, at: type, *, key: str = "k", **settings: Any) -> str:
        """Simulate a worker that dies just before a transition. Return the id of its intent."""

        async def die(_: object) -> None:
            raise Gone

        self.journal.before[at] = die
        with suppress(JournalFailed):
            await self.create(key=key, **settings)
        self.journal.before.pop(at, None)
        return (await self.entry(key)).intent_id

    async def abandoned(self, at: type, **settings: Any) -> str:
        """Let a worker die as in `crash`, and let its lease expire. Return the id of its intent."""
        intent_id = await self.crash(at, **settings)
        self.time.pass_(60.0)
        return intent_id

    async def in_doubt(self, key: str = "k", **settings: Any) -> None:
        """Put a key in doubt: the order is sent, and its response is lost."""
        self.sandbox.faults.add(CloseAfterProcessing())
        await self.fails(OutcomeUnknown, key=key, **settings)

    async def owing(self, key: str = "k") -> None:
        """Leave an undo pending: the order is refused, and its hold cannot be released."""
        self.bank.release_error = RuntimeError()
        await self.fails(Refused, refused_order(), key=key)
        self.bank.release_error = None

    async def stalled(self, call: Awaitable[T]) -> asyncio.Future[T]:
        """Start a call. Return its task when its order exists and its response is held back."""
        self.sandbox.faults.add(StallAfterProcessing())
        task = asyncio.ensure_future(call)
        await self.sandbox.stalled()
        return task

    def meanwhile(self, at: type, work: Callable[[], Awaitable[object]]) -> None:
        """Call ``work`` as another worker just before the next transition of the given kind."""

        async def work_once(_: object) -> None:
            del self.journal.before[at]
            await work()

        self.journal.before[at] = work_once

    def passing(self, seconds: float) -> Callable[..., Awaitable[None]]:
        """Return a function that advances the time by ``seconds``."""

        async def pass_(*_: object) -> None:
            self.time.pass_(seconds)

        return pass_

    async def resolve(self, order_id: str, key: str = "k") -> None:
        """Resolve the doubt as an operator who has seen the order."""
        attempt = await self._doubted(key)
        await self._made(
            Resolve(attempt=attempt, order_id=order_id, reply=None, by="operator", reason="seen"), key
        )

    async def refute(self, key: str = "k") -> None:
        """Refute the order as an operator, so that its undos become pending."""
        attempt = await self._doubted(key)
        owed = undos_on_failure(await self.entry(key))
        settings: dict[str, Any] = {"settle_after": -60.0, "pending_undos": owed, "lease": 0.0}
        await self._made(Refute(attempt=attempt, by="operator", reason="sure", **settings), key)

    async def _doubted(self, key: str) -> str:
        entry = await self.entry(key)
        attempt = entry.attempt or ""
        if entry.state is KeyState.SENDING:
            self.time.pass_(60.0)
            await self._made(Expire(attempt=attempt), key)
            self.time.pass_(-60.0)
        return attempt

    async def _made(self, move: Move, key: str) -> None:
        verdict = await self.move(move, key)
        assert verdict is not None
        assert verdict.denial is None

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def world(*, port: int = 0) -> AsyncIterator[World]:
    async with Sandbox(port=port) as sandbox:
        yield World(sandbox)


@asynccontextmanager
async def world_in_a_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, clock: Clock | None = None
) -> AsyncIterator[World]:
    """Create a `World` with a journal in a file, and set the environment of the command line."""
    async with Sandbox(token="s3cr3t") as sandbox:
        world = World(sandbox)
        async with SQLiteJournal(path, clock=clock or world.time.clock) as world.journal.journal:
            monkeypatch.setenv("TRANSFER_BASE_URL", sandbox.base_url)
            monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox.token)
            monkeypatch.setenv("TRANSFER_JOURNAL", str(path))
            yield world


async def failure(
    call: Awaitable[object], kind: type[BaseException] = TransferError, *, match: str | None = None
) -> Any:
    """Return the error of a call: any library error or, with ``kind``, one of exactly this class."""
    with pytest.raises(kind, match=match) as caught:
        await call
    assert kind in (TransferError, type(caught.value))
    return caught.value


def connects_slowly(client: TransferClient, time: Time, seconds: float) -> None:
    """Make every request of this client wait ``seconds`` for its connection."""
    transport: Any = client._context.transport

    def slowly(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def asked(*args: Any, **options: Any) -> Any:
            time.pass_(seconds)
            return await ask(*args, **options)

        return asked

    transport.post_order, transport.send = slowly(transport.post_order), slowly(transport.send)


async def turns(count: int) -> None:
    """Run the event loop for this number of iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


def owed_hooks(entry: Entry) -> list[str]:
    """Return the names of the hooks with pending undos, in order."""
    return [undo.hook for undo in entry.pending_undos]
