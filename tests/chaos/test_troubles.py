"""A journal that fails at any step of a call: nothing is sent without a mark, and nothing is lost."""

import os
import pwd
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.chaos.troubles import OF_A_DATABASE, OF_A_FILE, Trouble, WorldlyJournal
from tests.support.bank import SpiedJournal, World, failure, new_order, refused_order
from tests.support.trials import mostly_in_trials
from transfer_async import JournalFailed, KeyState, Outcome, OutcomeUnknown, SQLiteJournal
from transfer_async.journal.model import LEASE
from transfer_async.journal.protocol import Journal
from transfer_async.journal.sqlite import _File
from transfer_async.journal.transitions import Claim, Create, GoInDoubt, MarkSending, Release
from transfer_async.sandbox import CloseAfterProcessing, Sandbox


@asynccontextmanager
async def stormy_world(make: Callable[[World], Journal]) -> AsyncIterator[World]:
    """Yield a world with a real journal that uses the world's time."""
    async with Sandbox() as sandbox:
        world = World(sandbox)
        world.journal = SpiedJournal(journal := make(world))
        try:
            yield world
        finally:
            await journal.close()


@pytest.fixture(
    params=mostly_in_trials([*OF_A_FILE, *OF_A_DATABASE], often={*OF_A_FILE, *OF_A_DATABASE} - {"stopped"})
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Any:
    """Return the path of the file, or the address of the database."""
    return tmp_path / "journal.db" if kind in OF_A_FILE else request.getfixturevalue("database")


@pytest.fixture
async def world(kind: str, place: Any) -> AsyncIterator[World]:
    def make(world: World) -> Any:
        if kind in OF_A_DATABASE:
            return WorldlyJournal(place, world)
        # The lock is held for the whole time, so any timeout expires.
        return SQLiteJournal(place, timeout=0.1, clock=world.time.clock)

    async with stormy_world(make) as world:
        yield world


@pytest.fixture
def trouble(request: pytest.FixtureRequest, kind: str, place: Any, world: World) -> Trouble:
    journal: Any = world.journal.journal
    if kind in OF_A_DATABASE:
        return OF_A_DATABASE[kind](journal, place, request.getfixturevalue("restartable"))
    return OF_A_FILE[kind](journal, place)


@frozen
class Struck:
    """A call whose journal failed just before one of its transitions. The fault has ended."""

    world: World
    error: JournalFailed
    requests: int

    async def recover(self) -> None:
        """Run `recover` as the next worker does after the lease has ended."""
        self.world.time.pass_(LEASE)
        await self.world.recover()


async def struck(world: World, trouble: Trouble, at: type) -> Struck:
    """Start the fault just before a transition of the given kind. An earlier call is not affected."""
    async with world.client() as client:
        await client.create_order(new_order(), key="an earlier one")
        world.bank.open.clear()
        already = len(world.sandbox.requests)
        if at is GoInDoubt:
            world.sandbox.faults.add(CloseAfterProcessing())
        order = refused_order() if at is Release else new_order()
        async with AsyncExitStack() as stack:
            world.meanwhile(at, lambda: stack.enter_async_context(trouble))
            error = await failure(client.create_order(order, key="k"), JournalFailed)
    return Struck(world, error, len(world.sandbox.requests) - already)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("read-only", "SQLITE_READONLY"),
        ("full", "SQLITE_IOERR"),
        ("locked", "SQLITE_BUSY"),
        ("corrupt", "SQLITE_CORRUPT"),
    ],
    indirect=["kind"],
)
async def test_a_claim_that_a_real_error_of_sqlite_stops_leaves_nothing_behind(
    world: World, trouble: Trouble, error: str
):
    call = await struck(world, trouble, Claim)

    assert isinstance(call.error.__cause__, sqlite3.Error)
    assert call.error.__cause__.sqlite_errorname.startswith(error)
    assert await world.known() is None


@pytest.mark.parametrize("at", [Claim, MarkSending])
async def test_an_unmarked_order_is_not_sent_and_its_hold_is_released_after_the_lease(
    world: World, trouble: Trouble, at: type
):
    call = await struck(world, trouble, at)
    held = len(world.bank.open)
    await call.recover()
    entry = await world.known()

    assert (call.error.outcome, call.error.order_may_exist) == (Outcome.NOT_SENT, True)
    assert (call.requests, held) == (0, 1 if at is MarkSending else 0)
    assert entry is None or entry.state is KeyState.FREE
    assert world.bank.open == {}


@pytest.mark.parametrize(
    ("at", "certain"),
    [(Create, Outcome.CREATED), (GoInDoubt, Outcome.UNKNOWN), (Release, Outcome.REFUSED)],
)
async def test_a_sent_order_is_in_doubt_afterwards_and_is_not_sent_again(
    world: World, trouble: Trouble, at: type, certain: Outcome
):
    call = await struck(world, trouble, at)
    await call.recover()
    await world.fails(OutcomeUnknown, world.bank.intents[-1].order)
    earlier = await world.create(key="an earlier one")

    assert (call.error.outcome, call.error.order_may_exist) == (certain, True)
    order_id = call.error.order and call.error.order.id
    assert order_id in ([*world.sandbox.orders] if certain is Outcome.CREATED else [None])
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert earlier.id in world.sandbox.orders
    assert (call.requests, len(world.sandbox.requests), len(world.bank.open)) == (1, 2, 1)


# --- a worker whose user can only read the file -----------------------------------------------------


@pytest.fixture
def read_only_path() -> Iterator[Path]:
    """Return the path of an empty journal that every user can read, but only ``root`` can write."""
    directory = Path(tempfile.mkdtemp())
    path = directory / "journal.db"
    _File(path, timeout=1.0).close()
    path.chmod(0o444)
    directory.chmod(0o555)
    yield path
    directory.chmod(0o700)
    shutil.rmtree(directory)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block as an unprivileged user, because ``root`` could write the file."""
    user = os.geteuid()
    if not user:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(user)


async def test_a_worker_with_a_read_only_journal_sends_and_holds_nothing(read_only_path: Path):
    async with stormy_world(lambda world: SQLiteJournal(read_only_path, clock=world.time.clock)) as world:
        with unprivileged():
            failed = await world.fails(JournalFailed)

    assert str(failed.__cause__) == "attempt to write a readonly database"
    assert failed.outcome is Outcome.NOT_SENT
    assert (len(world.sandbox.requests), world.bank.open) == (0, {})
