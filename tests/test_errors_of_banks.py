"""If a bank's code raises any exception, the call raises a library error and the journal keeps working."""

import asyncio
import copy
import dataclasses
import gc
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar
from unittest.mock import AsyncMock

import asyncpg
import attrs
import pytest
from aiohttp import ClientConnectionError, ClientError

from tests.support import bank as banks
from tests.support.bank import World, new_order
from tests.support.cases import each, row_in_failures
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import (
    BeneficiaryNotVerified,
    BeneficiaryVerification,
    FundsHold,
    HoldFailed,
    JournalFailed,
    KeyState,
    MatchResult,
    Order,
    OrderRequest,
    Outcome,
    OutcomeUnknown,
    PersonName,
    PostgresJournal,
    PreflightFailed,
    SQLiteJournal,
    TokenUnavailable,
    TransferError,
    Unauthorized,
    User,
)
from transfer_async._converters.messages import OrderCommand
from transfer_async._models.errors import sanitize_exception
from transfer_async.journal import Claim, Create, MarkSending, Release
from transfer_async.sandbox import CloseAfterProcessing, Status
from transfer_async.worker import Action, Handler

T = TypeVar("T")
Make = Callable[[], BaseException]
DEEP = 1500
HANG = 60.0
"""A timeout in seconds that only a hanging call reaches."""


# --- the errors -------------------------------------------------------------------------------------


def _raise(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("the bank's own method raised")


def _broken(name: str, base: type[BaseException] = Exception, value: Any = _raise) -> type[BaseException]:
    return type("Broken", (base,), {name: value})


def _frozen(base: type[BaseException]) -> type[BaseException]:
    return dataclasses.dataclass(frozen=True)(type("Frozen", (base,), {}))


@attrs.frozen
class FrozenAttrs(Exception):
    code: int = 7


class Slotted(Exception):
    __slots__ = ("code",)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class FrozenCarrier(ClientError):
    status = 503
    __setattr__ = _raise


class MadeOfAnArgument(ClientError):
    def __new__(cls, needed: str) -> Self:
        return super().__new__(cls)

    def __init_subclass__(cls) -> None:
        raise TypeError


class NumericState(asyncpg.PostgresError):
    sqlstate = 23505
    args = property(_raise)


class NamelessKind(type):
    __name__ = property(_raise)  # type: ignore[assignment]
    __module__ = property(_raise)  # type: ignore[assignment]


class Nameless(Exception, metaclass=NamelessKind):
    pass


class StrictGroup(ExceptionGroup[Exception]):
    derive = _raise


class OfTheBank(BaseException):
    pass


class ReservedNo(PreflightFailed):
    """Says that nothing was done, but cannot be copied, read or shown."""

    def __init__(self) -> None: ...

    status = refused = fields = hook = property(_raise)
    __str__ = __reduce__ = __copy__ = _raise


class OddNo(BeneficiaryNotVerified):
    def __init__(self) -> None:
        super().__init__(result="no idea", reason=object())  # type: ignore[arg-type]
        self.status = object()
        self.refused = object()  # type: ignore[assignment]


def _chain(link: str, first: BaseException) -> BaseException:
    error = first
    for _ in range(DEEP):
        outer = ValueError()
        setattr(outer, link, error)
        error = outer
    return error


def _circle(link: str) -> BaseException:
    one, other = ValueError(), ClientConnectionError("secret")
    setattr(one, link, other)
    setattr(other, link, one)
    return one


def _groups() -> BaseException:
    error: Exception = ClientConnectionError("secret")
    for _ in range(DEEP):
        error = ExceptionGroup("of many", [error])
    return error


def _liar() -> BaseException:
    return _broken("__class__", value=property(lambda _: TransferError))()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "a frozen dataclass": _frozen(Exception),
    "a frozen class of attrs": FrozenAttrs,
    "one that takes no attribute": Slotted,
    "one of aiohttp with a status that is read-only": _broken("status", ClientError, property(lambda _: 503)),
    "one of aiohttp with a status that raises": _broken("status", ClientError, property(_raise)),
    "one of aiohttp that takes no attribute": FrozenCarrier,
    "one of aiohttp that cannot be made again": lambda: MadeOfAnArgument("secret"),
    "one of asyncpg with a number for its state": NumericState,
    "one whose class has no name": Nameless,
    "one whose text raises": _broken("__str__"),
    "one whose repr raises": _broken("__repr__"),
    "one that cannot be compared": _broken("__eq__"),
    "one that is neither true nor false": _broken("__bool__"),
    "one without a hash": _broken("__hash__"),
    "one whose class raises": _broken("__class__", value=property(_raise)),
    "one that claims to be ours": _liar,
    "one whose attributes raise": _broken("__getattribute__"),
    "one whose cause raises": _broken("__cause__", value=property(_raise)),
    "one whose context raises": _broken("__context__", value=property(_raise)),
    "one whose traceback raises": _broken("with_traceback"),
    "one that cannot be pickled": _broken("__reduce__"),
    "one of the system's whose number raises": _broken("errno", OSError, property(_raise)),
    "a long chain of causes": lambda: _chain("__cause__", ClientConnectionError("secret")),
    "a long chain of contexts": lambda: _chain("__context__", ClientConnectionError("secret")),
    "causes in a circle": lambda: _circle("__cause__"),
    "contexts in a circle": lambda: _circle("__context__"),
    "many groups in each other": _groups,
    "a group that cannot be derived": lambda: StrictGroup("g", [ClientError("secret"), ValueError()]),
    "a group of what ends programs": lambda: BaseExceptionGroup("g", [OfTheBank(), GeneratorExit()]),
    "StopIteration": StopIteration,
    "StopIteration with a value": lambda: StopIteration("hold-1"),
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "a BaseException of the bank's": OfTheBank,
    "a cancellation that nobody asked for": asyncio.CancelledError,
    "a time-out": TimeoutError,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "a frozen no of a hook's": _frozen(PreflightFailed),
    "a no that cannot be read": ReservedNo,
    "a no with odd values": OddNo,
    "a frozen error of a journal's": _frozen(JournalFailed),
    "an error of a journal's": lambda: JournalFailed("of another"),
    "a doubt of another call": lambda: OutcomeUnknown("of another"),
}


FEW_ERRORS = ("one whose text raises", "GeneratorExit", "a cancellation that nobody asked for")
"""The errors that run by default, and with PostgreSQL, because both journals share the encryption code."""


async def in_time(call: Awaitable[T]) -> T:
    async with asyncio.timeout(HANG):
        return await call


async def ends(call: Awaitable[object]) -> TransferError:
    """Return the library error of the call. Check that it can be shown, copied and pickled."""
    with pytest.raises(TransferError) as caught:
        await in_time(call)
    error = caught.value
    assert "secret" not in f"{error} {error!r}"
    assert copy.copy(error).outcome is error.outcome
    if type(error).__module__.startswith("transfer_async"):
        assert type(pickle.loads(pickle.dumps(error))) is type(error)
    return error


def each_error(test: Callable[..., Awaitable[None]]) -> Any:
    """Run the test for a few of `ERRORS` (in trials, for all), each in its own world."""

    @pytest.mark.parametrize(
        "names",
        [pytest.param(FEW_ERRORS, id="few"), pytest.param((*ERRORS,), id="all", marks=ONLY_IN_TRIALS)],
    )
    async def every(names: Iterable[str]) -> None:
        for name in names:
            with row_in_failures(name):
                async with banks.world() as world:
                    await test(world=world, make=ERRORS[name])

    every.__name__ = test.__name__
    return every


class Steps:
    """A hook before all others, which must be undone after any error of another hook."""

    name = "first"

    def __init__(self) -> None:
        self.began = self.undone = 0

    async def before(self, intent: object) -> str:
        self.began += 1
        return "done"

    async def undo(self, intent: object, receipt: str | None) -> None:
        self.undone += 1


# --- before the request -----------------------------------------------------------------------------


def _reraise(error: BaseException) -> NoReturn:
    raise error


def _raising(make: Make, *, waits: bool = False) -> Callable[..., Awaitable[Any]]:
    async def call(*_: object) -> NoReturn:
        if waits:
            await asyncio.sleep(0)
        raise make()

    return call


class Breaking:
    """A hook of the bank that raises where the test requests it."""

    name = "breaking"

    def __init__(self, before: Callable[..., Any], undo: Callable[..., Any] | None = None) -> None:
        self.before, self.undo = before, undo or before


def _returning(value: Any) -> Callable[..., Awaitable[Any]]:
    async def call(*_: object) -> Any:
        return value

    return call


class _NoCoroutine:
    """A function that is marked as async, as Cython's are. It raises when it is called."""

    _is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]

    def __init__(self, make: Make) -> None:
        self.make = make

    def __call__(self, *_: object) -> Any:
        raise self.make()


class _OddAwaitable(_NoCoroutine):
    """A function that returns an awaitable, which raises when it is awaited."""

    def __call__(self, *_: object) -> Any:
        return self

    def __await__(self) -> Iterator[Any]:
        raise self.make()


NEARLY_BEN = User(username="ben.okri@example.com", firstname="B.", lastname="Okri", is_active=True)
BEFORE_THE_REQUEST: dict[str, tuple[type[TransferError], Callable[[Make], dict[str, Any]]]] = {
    "a hook": (PreflightFailed, lambda make: {"hook": Breaking(_raising(make))}),
    "a hook that waits first": (PreflightFailed, lambda make: {"hook": Breaking(_raising(make, waits=True))}),
    "a hook that is no coroutine": (PreflightFailed, lambda make: {"hook": Breaking(_NoCoroutine(make))}),
    "an awaitable of a hook": (PreflightFailed, lambda make: {"hook": Breaking(_OddAwaitable(make))}),
    "a look-up of a beneficiary": (
        BeneficiaryNotVerified,
        lambda make: {"hook": BeneficiaryVerification(_raising(make), _raising(make))},
    ),
    "a question about a beneficiary": (
        BeneficiaryNotVerified,
        lambda make: {"hook": BeneficiaryVerification(_returning(NEARLY_BEN), _raising(make))},
    ),
    "the token": (TokenUnavailable, lambda make: {"token": _raising(make)}),
}
"""The callables of a bank that raise, by name, with the resulting error of the call."""
RESULTS = {
    "a look-up of a beneficiary": MatchResult.NOT_POSSIBLE,
    "a question about a beneficiary": MatchResult.CLOSE_MATCH,
}


async def never_sent(world: World, key: str, hooks: Sequence[Any], **settings: Any) -> TransferError:
    """Return the error of a call that sends nothing, and undoes all that its hooks did."""
    steps = Steps()
    error = await ends(world.create(key=key, hooks=[steps, *hooks], **settings))

    assert (error.outcome, error.order_may_exist, error.key) == (Outcome.NOT_SENT, False, key)
    assert not world.sandbox.orders
    assert not world.bank.open
    assert steps.undone == steps.began
    assert (await world.entry(key)).state is KeyState.FREE
    return error


@each_error
async def test_any_error_before_the_request_frees_the_key_and_undoes_the_hooks(world: World, make: Make):
    for name, (kind, settings_of) in BEFORE_THE_REQUEST.items():
        settings = settings_of(make)
        hooks = [*filter(None, [settings.pop("hook", None)]), world.bank.hold]
        with row_in_failures(name):
            error = await never_sent(world, name, hooks, beneficiary=PersonName("Ben", "Okri"), **settings)
            assert isinstance(error, kind)
            assert name not in RESULTS or error.result is RESULTS[name]


@each_error
async def test_a_hold_that_raises_any_error_is_released(world: World, make: Make):
    release = AsyncMock(return_value=None)
    error = await never_sent(world, "k", [FundsHold(_raising(make), release)])

    assert isinstance(error, HoldFailed | BeneficiaryNotVerified | PreflightFailed)
    is_definite = PreflightFailed in type.mro(type(make()))
    assert [call.args[1] for call in release.await_args_list] == ([] if is_definite else [None])


@each_error
async def test_an_undo_that_raises_any_error_stays_pending_and_hides_nothing(world: World, make: Make):
    world.sandbox.faults.add(Status(422))
    steps, breaking = Steps(), Breaking(_returning("done"), _raising(make, waits=True))
    error = await ends(world.create(hooks=[steps, breaking, world.bank.hold]))
    entry = await world.entry()

    assert (error.outcome, entry.state) == (Outcome.REFUSED, KeyState.FREE)
    assert [one.hook for one in entry.pending_undos] == ["breaking"]
    assert steps.undone == 1
    assert not world.bank.open
    again = Breaking(_returning("done"), _raising(make))
    assert (await in_time(world.recover(hooks=[again, world.bank.hold]))).undos_pending == 1


@each_error
async def test_a_refusal_is_kept_if_no_new_token_is_available(world: World, make: Make):
    async def token() -> str:
        if not world.sandbox.requests:
            return world.sandbox.token
        raise make()

    world.sandbox.faults.add(Status(401))
    error = await ends(world.create(token=token))

    assert isinstance(error, Unauthorized)
    assert error.order_may_exist is False
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


@each_error
async def test_a_resolve_that_raises_any_error_leaves_the_doubt(world: World, make: Make):
    world.sandbox.faults.add(CloseAfterProcessing())
    error = await ends(world.create(resolve=_raising(make)))

    assert (error.outcome, error.order_may_exist) == (Outcome.UNKNOWN, True)
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open
    assert (await in_time(world.recover(resolve=_raising(make)))).in_doubt == 1


@each_error
async def test_an_observer_that_raises_any_error_does_not_affect_the_call(world: World, make: Make):
    observers = [lambda _: _reraise(make())]

    assert isinstance(await in_time(world.create(observers=observers)), Order)
    for fault, outcome in ((Status(422), Outcome.REFUSED), (CloseAfterProcessing(), Outcome.UNKNOWN)):
        world.sandbox.faults.add(fault)
        assert (await ends(world.create(key=outcome.value, observers=observers))).outcome is outcome


# --- journals ---------------------------------------------------------------------------------------


@each_error
async def test_any_error_of_a_journal_raises_journal_failed(world: World, make: Make):
    for move, outcome in (
        (Claim, Outcome.NOT_SENT),
        (MarkSending, Outcome.NOT_SENT),
        (Create, Outcome.CREATED),
        (Release, Outcome.REFUSED),
    ):
        if move is Release:
            world.sandbox.faults.add(Status(422))
        world.journal.fail_on, world.journal.error = move, make()
        error = await ends(world.create(key=move.__name__))
        world.journal.fail_on = None

        assert isinstance(error, JournalFailed)
        assert (error.outcome, error.order_may_exist) == (outcome, True)
        assert (error.order is not None) is (move is Create)
    assert len(world.bank.open) == 3
    world.time.pass_(1000.0)
    assert (await world.recover()).in_doubt == 2


@each_error
async def test_a_journal_that_cannot_be_read_raises_journal_failed(world: World, make: Make):
    world.journal.read = world.journal.work = lambda *_: _reraise(make())  # type: ignore[method-assign]
    async with world.client() as client:
        for call, key in ((client.known("k"), "k"), (client.recover(), None)):
            error = await ends(call)
            assert (type(error), error.key) == (JournalFailed, key)


class OddSeal:
    """Stores values unencrypted, and raises where the test requests it."""

    on_sealed: Make | None = None
    on_opened: Make | None = None

    def sealed(self, data: bytes, **_: object) -> str:
        if self.on_sealed is not None:
            raise self.on_sealed()
        return f"sealed:1:{data.hex()}"

    def opened(self, text: str, **_: object) -> bytes:
        if self.on_opened is not None:
            raise self.on_opened()
        return bytes.fromhex(text.removeprefix("sealed:1:"))


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[OddSeal], Any]:
    """Return a function that creates a journal with a seal, always in the same place."""
    if request.param == "sqlite":
        return lambda seal: SQLiteJournal(tmp_path / "journal.db", seal=seal)
    database = request.getfixturevalue("database")
    return lambda seal: PostgresJournal(database, seal=seal)


@pytest.mark.parametrize(
    ("store", "names"),
    [
        pytest.param("sqlite", ERRORS, id="sqlite", marks=ONLY_IN_TRIALS),
        pytest.param("postgres", FEW_ERRORS, id="postgres"),
    ],
    indirect=["store"],
)
async def test_an_encryption_that_raises_any_error_does_not_stop_the_journal(
    world: World, store: Callable[[OddSeal], Any], names: Iterable[str]
):
    """Without this, every call of the same commit, and every later one, waits for ever."""
    for number, make in enumerate(ERRORS[name] for name in names):
        seal = OddSeal()
        async with store(seal) as journal:
            world.journal.journal = journal
            async with world.client() as client:
                seal.on_sealed = make
                calls = [client.create_order(new_order(), key=f"{number}-{one}") for one in range(3)]
                for error in await in_time(asyncio.gather(*map(ends, calls))):
                    assert isinstance(error, JournalFailed)
                    assert error.outcome is Outcome.NOT_SENT
                seal.on_sealed = None
                assert await in_time(client.create_order(new_order(), key=f"{number}-0"))

            seal.on_opened = make
        async with store(seal) as journal:
            world.journal.journal = journal
            async with world.client() as client:
                call = client.create_order(new_order(), key=f"{number}-0")
                assert isinstance(await ends(call), JournalFailed)
                assert isinstance(await ends(client.known(f"{number}-0")), JournalFailed)
                seal.on_opened = None
                assert await in_time(client.create_order(new_order(), key=f"{number}-0"))


@each_error
async def test_json_that_raises_any_error_on_reading_is_an_invalid_value(world: World, make: Make):
    odd = type("Odd", (dict,), {"values": lambda _: _reraise(make())})(a=1)
    async with world.client() as client:
        with pytest.raises(ValueError, match="json"):
            await in_time(client.request("POST", "/other", json=odd))


@each_error
async def test_a_request_that_raises_any_error_on_reading_stops_no_other(world: World, make: Make):
    odd = type("Odd", (OrderRequest,), {"__getattribute__": lambda *_: _reraise(make())})
    async with world.client() as client:
        requests = [odd(new_order()), OrderRequest(new_order(), "fine")]
        results = [result async for result in client.create_orders(requests)]

    (error,) = [result.error for result in results if result.order is None]
    assert issubclass(type(error), TransferError)


@each_error
async def test_an_input_that_raises_any_error_ends_the_run(world: World, make: Make):
    async def requests() -> AsyncIterator[OrderRequest]:
        yield OrderRequest(new_order(), "fine")
        raise make()

    made = 0
    async with world.client() as client:
        with pytest.raises(BaseException) as caught:
            async for result in client.create_orders(requests()):
                made += result.order is not None
    assert (made, caught.value is None) == (1, False)


@each_error
async def test_a_worker_reports_an_outcome_for_every_message(world: World, make: Make):
    world.journal.durable = True  # type: ignore[misc]
    async with world.client(hooks=[Breaking(_raising(make)), world.bank.hold]) as client:
        handled = await in_time(Handler(client).handle(OrderCommand(key="k", order=new_order())))

    assert handled.disposition.action in (Action.RETRY, Action.ACK)


@each("make", ERRORS)
def test_redacting_never_fails_and_hides_every_secret(make: Make):
    found, seen = [sanitize_exception(make())], set()
    while found:
        error = found.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        get = vars(BaseException)
        assert "secret" not in get["args"].__get__(error)
        found += [one for one in (get["__cause__"].__get__(error), get["__context__"].__get__(error)) if one]
        if issubclass(type(error), BaseExceptionGroup):
            found += vars(BaseExceptionGroup)["exceptions"].__get__(error)


@each("kind", [KeyboardInterrupt, SystemExit])
@each("where", ["a hook", "the token"])
def test_an_exception_that_ends_the_program_passes_through(kind: type[BaseException], where: str):
    async def main() -> None:
        async with banks.world() as world:
            settings = BEFORE_THE_REQUEST[where][1](kind)
            hooks = [*filter(None, [settings.pop("hook", None)]), world.bank.hold]
            await world.create(hooks=hooks, **settings)

    with pytest.raises(kind):
        asyncio.run(main())
    # Python logs the call's task when it is collected, and parses source code for the traceback. If that
    # happens while a later test parses a file, the parser fails: "AST constructor recursion depth mismatch".
    gc.collect()
