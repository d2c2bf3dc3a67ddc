"""If a bank's code raises any exception, the call raises a library error and the journal keeps working."""

import asyncio
import copy
import dataclasses
import gc
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import aiohttp
import asyncpg
import attrs
import pytest

from tests.support import bank as banks
from tests.support.bank import World, new_order
from tests.support.cases import each, told_of
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


def _broken(name: str, base: type[BaseException] = Exception, value: Any = None) -> type[BaseException]:
    return type("Broken", (base,), {name: _raise if value is None else value})


@dataclasses.dataclass(frozen=True)
class FrozenDataclass(Exception):
    code: int = 7


@attrs.frozen
class FrozenAttrs(Exception):
    code: int = 7


class Slotted(Exception):
    __slots__ = ("code",)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class ReadOnlyStatus(aiohttp.ClientError):
    @property
    def status(self) -> int:
        return 503


class RaisingStatus(aiohttp.ClientError):
    status = property(_raise)


class FrozenCarrier(aiohttp.ClientError):
    status = 503
    __setattr__ = _raise


class MadeOfAnArgument(aiohttp.ClientError):
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
    def derive(self, excs: Any) -> NoReturn:
        raise RuntimeError


class OfTheBank(BaseException):
    pass


@dataclasses.dataclass(frozen=True)
class FrozenNo(PreflightFailed):
    code: int = 7


class ReservedNo(PreflightFailed):
    """Says that nothing was done, but cannot be copied, read or shown."""

    def __init__(self) -> None:
        pass

    status = refused = fields = hook = property(_raise)
    __str__ = __reduce__ = __copy__ = _raise


class OddNo(BeneficiaryNotVerified):
    def __init__(self) -> None:
        super().__init__(result="no idea", reason=object())  # type: ignore[arg-type]
        self.status = object()
        self.refused = object()  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class FrozenJournalFailed(JournalFailed):
    code: int = 7


def _chain(link: str, first: BaseException) -> BaseException:
    error = first
    for _ in range(DEEP):
        outer = ValueError()
        setattr(outer, link, error)
        error = outer
    return error


def _circle(link: str) -> BaseException:
    one, other = ValueError(), aiohttp.ClientConnectionError("secret")
    setattr(one, link, other)
    setattr(other, link, one)
    return one


def _groups() -> BaseException:
    error: Exception = aiohttp.ClientConnectionError("secret")
    for _ in range(DEEP):
        error = ExceptionGroup("of many", [error])
    return error


def _liar() -> BaseException:
    return _broken("__class__", value=property(lambda _: TransferError))()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "a frozen dataclass": FrozenDataclass,
    "a frozen class of attrs": FrozenAttrs,
    "one that takes no attribute": Slotted,
    "one of aiohttp with a status that is read-only": ReadOnlyStatus,
    "one of aiohttp with a status that raises": RaisingStatus,
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
    "a long chain of causes": lambda: _chain("__cause__", aiohttp.ClientConnectionError("secret")),
    "a long chain of contexts": lambda: _chain("__context__", aiohttp.ClientConnectionError("secret")),
    "causes in a circle": lambda: _circle("__cause__"),
    "contexts in a circle": lambda: _circle("__context__"),
    "many groups in each other": _groups,
    "a group that cannot be derived": lambda: StrictGroup("g", [aiohttp.ClientError("secret"), ValueError()]),
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
    "a frozen no of a hook's": FrozenNo,
    "a no that cannot be read": ReservedNo,
    "a no with odd values": OddNo,
    "a frozen error of a journal's": FrozenJournalFailed,
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
            with told_of(name):
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


class Breaking:
    """A hook that raises where the test requests it."""

    name = "breaking"

    def __init__(self, error: BaseException, *, waits: bool = False) -> None:
        self.error, self.waits = error, waits

    async def before(self, intent: object) -> str:
        if self.waits:
            await asyncio.sleep(0)
        raise self.error

    async def undo(self, intent: object, receipt: str | None) -> None:
        if self.waits:
            await asyncio.sleep(0)
        raise self.error


class _NotAwaited:
    """An awaitable that raises when it is requested or awaited."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __await__(self) -> Iterator[Any]:
        raise self.error


def _reraise(error: BaseException) -> NoReturn:
    raise error


def _marked_async(call: Callable[..., Any]) -> Any:
    call._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined] # as Cython's are
    return call


def _with_before(make: Make, before: Callable[..., Any]) -> Breaking:
    hook = Breaking(make())
    hook.before = _marked_async(before)  # type: ignore[method-assign]
    return hook


def _raising(make: Make) -> Callable[..., Awaitable[Any]]:
    async def call(*_: object) -> NoReturn:
        raise make()

    return call


async def _somebody(username: str) -> User:
    return User(username=username, firstname="B.", lastname="Okri", is_active=True)


BEFORE_THE_REQUEST: dict[str, tuple[type[TransferError], Callable[[Make], dict[str, Any]]]] = {
    "a hook": (PreflightFailed, lambda make: {"hook": Breaking(make())}),
    "a hook that waits first": (PreflightFailed, lambda make: {"hook": Breaking(make(), waits=True)}),
    "a hook that is no coroutine": (
        PreflightFailed,
        lambda make: {"hook": _with_before(make, lambda *_: _reraise(make()))},
    ),
    "an awaitable of a hook": (
        PreflightFailed,
        lambda make: {"hook": _with_before(make, lambda *_: _NotAwaited(make()))},
    ),
    "a look-up of a beneficiary": (
        BeneficiaryNotVerified,
        lambda make: {"hook": BeneficiaryVerification(_raising(make), _raising(make))},
    ),
    "a question about a beneficiary": (
        BeneficiaryNotVerified,
        lambda make: {"hook": BeneficiaryVerification(_somebody, _raising(make))},
    ),
    "the token": (TokenUnavailable, lambda make: {"token": _raising(make)}),
}
"""The callables of a bank that raise, by name, with the resulting error of the call."""
FOUND = {
    "a look-up of a beneficiary": MatchResult.NOT_POSSIBLE,
    "a question about a beneficiary": MatchResult.CLOSE_MATCH,
}


@each_error
async def test_any_error_before_the_request_frees_the_key_and_undoes_the_hooks(world: World, make: Make):
    for name, (kind, settings_of) in BEFORE_THE_REQUEST.items():
        settings, steps = settings_of(make), Steps()
        hooks = [steps, *filter(None, [settings.pop("hook", None)]), world.bank.hold]
        beneficiary = PersonName("Ben", "Okri")
        with told_of(name):
            error = await ends(world.create(key=name, hooks=hooks, beneficiary=beneficiary, **settings))
            _check_never_sent(error, world, steps)
            assert isinstance(error, kind)
            assert error.key == name
            assert (await world.entry(name)).state is KeyState.FREE
            assert name not in FOUND or error.result is FOUND[name]


def _check_never_sent(error: TransferError, world: World, steps: Steps) -> None:
    assert error.outcome is Outcome.NOT_SENT
    assert error.order_may_exist is False
    assert not world.sandbox.orders
    assert not world.bank.open
    assert steps.undone == steps.began


@each_error
async def test_a_hold_that_raises_any_error_is_released(world: World, make: Make):
    async def place(intent: object) -> str:
        raise make()

    released: list[object] = []

    async def release(intent: object, receipt: str | None) -> None:
        released.append(receipt)

    steps = Steps()
    error = await ends(world.create(hooks=[steps, FundsHold(place, release)]))

    _check_never_sent(error, world, steps)
    assert (await world.entry()).state is KeyState.FREE
    assert isinstance(error, HoldFailed | BeneficiaryNotVerified | PreflightFailed)
    vouched = isinstance(make(), PreflightFailed) if "PreflightFailed" in _kinds(make()) else False
    assert released == ([] if vouched else [None])


def _kinds(error: BaseException) -> list[str]:
    return [vars(type)["__name__"].__get__(kind) for kind in type.mro(type(error))]


@each_error
async def test_an_undo_that_raises_any_error_stays_pending_and_hides_nothing(world: World, make: Make):
    world.sandbox.faults.add(Status(422))

    class Undoing(Breaking):
        async def before(self, intent: object) -> str:
            return "done"

    steps = Steps()
    error = await ends(world.create(hooks=[steps, Undoing(make(), waits=True), world.bank.hold]))

    assert error.outcome is Outcome.REFUSED
    entry = await world.entry()
    assert entry.state is KeyState.FREE
    assert [one.hook for one in entry.pending_undos] == ["breaking"]
    assert steps.undone == 1
    assert not world.bank.open
    assert (await in_time(world.recover(hooks=[Undoing(make()), world.bank.hold]))).undos_pending == 1


# --- the token --------------------------------------------------------------------------------------


@each_error
async def test_a_refusal_is_kept_if_no_new_token_is_available(world: World, make: Make):
    given = [world.sandbox.token]

    async def token() -> str:
        if given:
            return given.pop()
        raise make()

    world.sandbox.faults.add(Status(401))
    error = await ends(world.create(token=token))

    assert isinstance(error, Unauthorized)
    assert error.order_may_exist is False
    assert (await world.entry()).state is KeyState.FREE
    assert not world.bank.open


# --- a doubt ----------------------------------------------------------------------------------------


@each_error
async def test_a_resolve_that_raises_any_error_leaves_the_doubt(world: World, make: Make):
    async def resolve(*_: object) -> None:
        raise make()

    world.sandbox.faults.add(CloseAfterProcessing())
    error = await ends(world.create(resolve=resolve))

    assert error.outcome is Outcome.UNKNOWN
    assert error.order_may_exist is True
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert world.bank.open
    assert (await in_time(world.recover(resolve=resolve))).in_doubt == 1


@each_error
async def test_an_observer_that_raises_any_error_does_not_affect_the_call(world: World, make: Make):
    def observe(event: object) -> None:
        raise make()

    assert isinstance(await in_time(world.create(observers=[observe])), Order)


# --- journals ---------------------------------------------------------------------------------------


@each_error
async def test_any_error_of_a_journal_raises_journal_failed(world: World, make: Make):
    for move in (Claim, MarkSending, Create):
        world.journal.fail_on, world.journal.error = move, make()
        error = await ends(world.create(key=move.__name__))
        world.journal.fail_on = None

        assert isinstance(error, JournalFailed)
        assert error.outcome is (Outcome.CREATED if move is Create else Outcome.NOT_SENT)
        assert error.order_may_exist is True
        assert (error.order is not None) is (move is Create)
    world.time.pass_(1000.0)
    assert (await world.recover()).in_doubt == 1


@each_error
async def test_a_definite_failure_that_cannot_be_recorded_is_reported(world: World, make: Make):
    world.journal.fail_on, world.journal.error = Release, make()
    world.sandbox.faults.add(Status(422))
    error = await ends(world.create())

    assert isinstance(error, JournalFailed)
    assert error.outcome is Outcome.REFUSED
    assert error.order_may_exist is True
    assert world.bank.open


@each_error
async def test_a_journal_that_cannot_be_read_raises_journal_failed(world: World, make: Make):
    def read(*_: object) -> NoReturn:
        raise make()

    world.journal.read = world.journal.work = read  # type: ignore[method-assign, assignment]
    async with world.client() as client:
        error = await ends(client.known("k"))
        assert isinstance(error, JournalFailed)
        assert error.key == "k"
        assert isinstance(await ends(client.recover()), JournalFailed)


class OddSeal:
    """Stores values unencrypted, and raises where the test requests it."""

    def __init__(self) -> None:
        self.on_sealed: Callable[[], BaseException] | None = None
        self.on_opened: Callable[[], BaseException] | None = None

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


# --- everything else --------------------------------------------------------------------------------


@each_error
async def test_json_that_raises_any_error_on_reading_is_an_invalid_value(world: World, make: Make):
    class Odd(dict[str, Any]):
        def values(self) -> NoReturn:  # type: ignore[override]
            raise make()

    async with world.client() as client:
        with pytest.raises(ValueError, match="json"):
            await in_time(client.request("POST", "/other", json=Odd(a=1)))


@each_error
async def test_a_request_that_raises_any_error_on_reading_stops_no_other(world: World, make: Make):
    class Odd(OrderRequest):
        def __getattribute__(self, name: str) -> Any:
            raise make()

    requests = [Odd(new_order()), OrderRequest(new_order(), "fine")]
    async with world.client() as client:
        results = [result async for result in client.create_orders(requests)]

    errors = [result.error for result in results if result.order is None]
    assert [issubclass(type(error), TransferError) for error in errors] == [True]


@each_error
async def test_an_input_that_raises_any_error_ends_the_run(world: World, make: Make):
    async def requests() -> AsyncIterator[OrderRequest]:
        yield OrderRequest(new_order(), "fine")
        raise make()

    made = 0
    async with world.client() as client:
        results = client.create_orders(requests())
        with pytest.raises(BaseException) as caught:
            async for result in results:
                made += result.order is not None
    assert made == 1
    assert caught.value is not None


@each_error
async def test_a_worker_reports_an_outcome_for_every_message(world: World, make: Make):
    world.journal.durable = True  # type: ignore[misc]
    async with world.client(hooks=[Breaking(make()), world.bank.hold]) as client:
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
def test_an_exception_that_ends_the_program_passes_through(kind: type[BaseException]):
    async def main() -> None:
        from transfer_async.sandbox import Sandbox

        async with Sandbox() as sandbox:
            world = World(sandbox)
            await world.create(hooks=[Breaking(kind()), world.bank.hold])

    with pytest.raises(kind):
        asyncio.run(main())
    # Python logs the call's task when it is collected, and parses source code for the traceback. If that
    # happens while a later test parses a file, the parser fails: "AST constructor recursion depth mismatch".
    gc.collect()
