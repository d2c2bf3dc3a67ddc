"""The test servers keep their data over a restart, and leave no files when they are closed."""

import gc
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.brokers import Broker, NatsServer, RedisServer
from tests.support.postgres import PostgresServer, is_installed
from tests.support.server_process import ServerNotStarted, ServerProcess

ROOT = Path(__file__).parents[2]

OWNER = """
from tests.{module} import {name}

server = {name}().start()
print(server.port, server.directory, flush=True)
input()
"""

pytestmark = pytest.mark.trial(ci=1, long=1)  # this module tests only the test servers


@pytest.fixture(params=[PostgresServer, NatsServer, RedisServer], ids=lambda kind: kind.NAME)
def kind(request: pytest.FixtureRequest) -> Iterator[type[ServerProcess]]:
    found = request.param.is_installed() if issubclass(request.param, Broker) else is_installed()
    if not found:
        pytest.skip(f"{request.param.NAME} is not available for this platform")
    return request.param


@pytest.fixture
def server(kind: type[ServerProcess]) -> Iterator[ServerProcess]:
    with kind() as server:
        yield server


def connected(server: ServerProcess) -> None:
    socket.create_connection(("127.0.0.1", server.port), timeout=5).close()


def test_a_server_that_does_not_start_reports_why(kind: type[ServerProcess]):
    server = kind()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", server.port))

        with pytest.raises(RuntimeError, match=f"{kind.NAME} did not start:\n(.|\n)*already in use"), server:
            pass
    assert not server.directory.exists()


def test_a_server_is_gone_with_its_files_when_its_process_was_killed(kind: type[ServerProcess]):
    program = OWNER.format(module=kind.__module__.removeprefix("tests."), name=kind.__name__)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        port, directory = owner.stdout.readline().decode().split()
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
            connection.sendall(kind.HELLO)
            # The server responds; a connection that it has not greeted yet can delay its end.
            assert connection.recv(1)
            owner.kill()
            with suppress(ConnectionResetError):
                while connection.recv(4096):  # until the server has ended
                    pass
            owner.stdout.read()  # until the watchdog, which also writes there, has ended

    assert not Path(directory).exists()


def test_collecting_an_abandoned_server_leaves_the_others_intact(server: ServerProcess):
    """Without this, the watchdog of a garbage-collected server removes the files of other servers."""
    lost = type(server)()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", lost.port))
        with pytest.raises(ServerNotStarted, match="already in use"):
            lost.start()
    lost_directory = lost.directory
    del lost
    gc.collect()
    with type(server)() as another:
        connected(another)

    connected(server)
    shutil.rmtree(lost_directory)


def test_a_server_that_never_answers_is_stopped_when_this_is_reported(
    kind: type[ServerProcess], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kind, "_answers", lambda _: False)
    server = kind(patience=0.0)
    with pytest.raises(ServerNotStarted), server:
        pass

    assert server._process is None
    assert not server.directory.exists()
