"""Fixtures and hooks for all tests, for example the check that async code does not block the event loop."""

import contextlib
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
import pytest
from aioresponses import aioresponses
from aioresponses import core as aioresponses_core
from blockbuster import BlockBuster, blockbuster_ctx

from tests.support import bank as banks
from tests.support import loops, sharing, trials
from tests.support.bank import World
from tests.support.brokers import Broker, NatsServer, RedisServer
from tests.support.loop_time import LoopTime
from tests.support.ports import held_port
from tests.support.postgres import PostgresServer, is_installed
from tests.support.server_process import ServerNotStarted

with contextlib.suppress(ImportError):
    import opentelemetry.propagate  # noqa: F401 - an older one looks for files then: not within async code

_Kind = TypeVar("_Kind", bound=Broker)

pytest_generate_tests = trials.give_size
pytest_collection_modifyitems = trials.leave_out

_ASYNCPG = {"_parse_connect_dsn_and_args", "_read_password_file", "_dot_postgresql_path"}


def pytest_addoption(parser: pytest.Parser) -> None:
    trials.add_option(parser)
    loops.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    trials.set_level(config)
    loops.choose(config)
    sharing.watch(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exempt the collected tests from garbage collection, which takes seconds in each process."""
    gc.disable()
    try:
        sharing.import_tests(session.config, Path(__file__).parents[1])
        return (yield)
    finally:
        gc.collect()  # otherwise `__subclasses__` lists the classes that attrs replaced
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Exempt all objects from garbage collection, because the process is about to end."""
    gc.collect()
    gc.freeze()


_not_started: set[str] = set()
"""The names of servers that failed to start."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Report a server that cannot start as one error in each process. Skip later tests that need it."""
    try:
        return (yield)
    except ServerNotStarted as error:
        if error.name in _not_started:
            pytest.skip(f"{error.name} did not start: see the error of an earlier test")
        _not_started.add(error.name)
        raise


@pytest.fixture(scope="session", autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """Fail a test whose async code makes a blocking call.

    The check is installed once, because installing it for each test would take seconds.
    """
    with blockbuster_ctx() as blockbuster:
        # A log line with a traceback reads source files.
        blockbuster.functions["io.BufferedReader.read"].can_block_in("linecache.py", {"updatecache"})
        blockbuster.functions["io.TextIOWrapper.read"].can_block_in("linecache.py", {"updatecache"})
        # asyncpg looks for a password file each time it connects.
        for call in ("os.stat", "os.path.abspath", "io.BufferedReader.read"):
            blockbuster.functions[call].can_block_in("asyncpg/connect_utils.py", _ASYNCPG)
        # redis reads its own version each time it connects.
        for call in ("os.stat", "os.listdir", "io.TextIOWrapper.read"):
            blockbuster.functions[call].can_block_in("redis/utils.py", {"get_lib_version"})
        # uvloop joins its executor's threads when it closes, and its functions have no Python frame.
        acquire = blockbuster.functions["threading.Lock.acquire"]
        acquire.can_block_in("asyncio/runners.py", {"close"})
        # coverage's tracers in several threads share a lock, and acquire it without a Python frame.
        if (shared := _lock_of_coverage()) is not None:
            acquire.deactivate()
            can_block = acquire.can_block_predicate
            acquire.can_block_predicate = lambda lock, *args, **kwargs: (
                lock is shared or can_block(lock, *args, **kwargs)
            )
            acquire.activate()
        yield blockbuster


def _lock_of_coverage() -> object:
    """Return the lock that the tracers of all threads share; None if no coverage is measured."""
    coverage = sys.modules.get("coverage")
    running = None if coverage is None else coverage.Coverage.current()
    return getattr(getattr(running, "_collector", None), "data_lock", None)


@pytest.fixture
def blocking_bank(blockbuster: BlockBuster) -> Iterator[None]:
    """Allow blocking calls, such as those of ``sqlite3``, because a bank's hooks may make them."""
    blockbuster.deactivate()
    yield
    blockbuster.activate()


@pytest.fixture
async def loop_time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    """Control the clock of the test's loop."""
    return LoopTime(monkeypatch)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a loopback port on which nothing listens during the test."""
    with held_port() as port:
        yield port


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Yield a bank with a client, and a sandbox."""
    async with banks.world() as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return a real PostgreSQL server."""
    if not is_installed():
        pytest.skip("PostgreSQL is not available for this platform")
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """Return the address of an empty database."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """Return a real NATS server with JetStream. Each test uses its own names of streams and subjects."""
    yield from _running(NatsServer)


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """Return a real Redis server. Each test uses its own names of streams."""
    yield from _running(RedisServer)


def _running(kind: type[_Kind]) -> Iterator[_Kind]:
    if not kind.is_installed():
        pytest.skip(f"{kind.NAME} is not available for this platform")
    with kind() as server:
        yield server


class _Answer(aiohttp.ClientResponse):
    """A response of aioresponses, with the argument ``stream_writer`` that newer aiohttp versions require."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "stream_writer" in inspect.signature(aiohttp.ClientResponse).parameters:
            kwargs.setdefault("stream_writer", SimpleNamespace(output_size=0))
        super().__init__(*args, **kwargs)


@pytest.fixture
def mocked_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[aioresponses]:
    """Mock responses without sockets, for headers, paths and small bodies, but not for failures."""
    monkeypatch.setattr(aioresponses_core, "ClientResponse", _Answer)
    with aioresponses() as mocked:
        yield mocked


@pytest.fixture(params=["exchange", "session"])
def http_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Send requests through `_http.exchange`, or through aiohttp's session as with an untested aiohttp."""
    if request.param == "session":
        monkeypatch.setattr("transfer_async._http.exchange.is_possible", lambda _: False)
    return request.param
