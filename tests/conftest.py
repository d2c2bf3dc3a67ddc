"""What all tests share: nothing may block the loop, and a mocked service for those who need no sockets."""

import contextlib
import gc
import inspect
from collections.abc import AsyncIterator, Generator, Iterator
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
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: looking it through for garbage takes seconds of each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """What is still in use need not be taken apart, object by object, by a process that ends."""
    gc.collect()
    gc.freeze()


_not_started: set[str] = set()
"""The servers that did not start, by their names: one test says why."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A server that cannot start is one error in each process of tests; what needs it is left out then."""
    try:
        return (yield)
    except ServerNotStarted as error:
        if error.name in _not_started:
            pytest.skip(f"{error.name} did not start: the error of an earlier test says why")
        _not_started.add(error.name)
        raise


@pytest.fixture(scope="session", autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """A blocking call within async code fails its test.

    Looked for from the first test to the last: to begin anew for each of thousands takes seconds.
    """
    with blockbuster_ctx() as blockbuster:
        # A log line with a traceback reads the source that it shows.
        blockbuster.functions["io.BufferedReader.read"].can_block_in("linecache.py", {"updatecache"})
        blockbuster.functions["io.TextIOWrapper.read"].can_block_in("linecache.py", {"updatecache"})
        # asyncpg looks for a password file whenever it connects.
        for call in ("os.stat", "os.path.abspath", "io.BufferedReader.read"):
            blockbuster.functions[call].can_block_in("asyncpg/connect_utils.py", _ASYNCPG)
        # redis looks for its own version whenever it connects.
        for call in ("os.stat", "os.listdir", "io.TextIOWrapper.read"):
            blockbuster.functions[call].can_block_in("redis/utils.py", {"get_lib_version"})
        # Where coverage is measured, its collector takes turns with that of another thread.
        blockbuster.functions["threading.Lock.acquire"].can_block_in("coverage/collector.py", {"lock_data"})
        yield blockbuster


@pytest.fixture
def blocking_bank(blockbuster: BlockBuster) -> Iterator[None]:
    """A bank's own code may call a blocking driver, such as ``sqlite3``, within its hooks."""
    blockbuster.deactivate()
    yield
    blockbuster.activate()


@pytest.fixture
async def loop_time(monkeypatch: pytest.MonkeyPatch) -> LoopTime:
    """The time of the test's loop."""
    return LoopTime(monkeypatch)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback at which nobody listens as long as the test lasts."""
    with held_port() as port:
        yield port


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A bank at work, and a sandbox in the service's place."""
    async with banks.world() as made:
        yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL."""
    if not is_installed():
        pytest.skip("there is no PostgreSQL to be had for this platform")
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The address of an empty database."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServer]:
    """A real NATS with JetStream: names of streams and subjects are each test's own."""
    yield from _running(NatsServer)


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A real Redis: names of streams are each test's own."""
    yield from _running(RedisServer)


def _running(kind: type[_Kind]) -> Iterator[_Kind]:
    if not kind.is_installed():
        pytest.skip(f"there is no {kind.NAME} to be had for this platform")
    with kind() as server:
        yield server


class _Answer(aiohttp.ClientResponse):
    """What aioresponses makes its answers of: it does not know of the writer that aiohttp now asks for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "stream_writer" in inspect.signature(aiohttp.ClientResponse).parameters:
            kwargs.setdefault("stream_writer", SimpleNamespace(output_size=0))
        super().__init__(*args, **kwargs)


@pytest.fixture
def mocked_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[aioresponses]:
    """Answers in aiohttp's place: good for headers, paths and small bodies, never for a failure."""
    monkeypatch.setattr(aioresponses_core, "ClientResponse", _Answer)
    with aioresponses() as mocked:
        yield mocked


@pytest.fixture(params=["exchange", "session"])
def http_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Send requests through `_http.exchange`, or through aiohttp's session as with a version not tried."""
    if request.param == "session":
        monkeypatch.setattr("transfer_async._http.exchange.is_possible", lambda _: False)
    return request.param
