"""A real server in another process, for tests. It listens on loopback and can be stopped and killed.

The methods block, so async code calls them through ``asyncio.to_thread``. A watchdog ends the server when the
process that started it ends, even if that process is killed.
"""

from __future__ import annotations

import atexit
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Self

PORTS = range(15_000, 32_000)
"""Ports below the range for outgoing connections, which could occupy the port of a stopped server."""

BETWEEN_LOOKS = 0.005
"""The seconds between two checks for a response."""

_IN_MEMORY = Path("/dev/shm")
_ENOUGH = 1 << 30
"""The bytes that must be free in memory; a PostgreSQL cluster takes 50 MB."""

_WATCHDOG = 'read _; kill -s "$1" "$2"; shift 2; rm -rf "$@" || { sleep 1; rm -rf "$@"; }'
"""A script that waits until its owner ends, then kills the server and removes its files.

The first removal may fail because the dying server still writes.
"""


_REMOVER = 'read _; rm -rf "$1"'
_removers: list[subprocess.Popen[bytes]] = []


class ServerNotStarted(RuntimeError):
    """A server could not be started.

    Args:
        name: the name of the server.
        why: the output of the server.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} did not start:\n{why}")
        self.name = name


class ServerProcess(ABC):
    """A server with its own data. It keeps its address and its data over restarts.

    Args:
        patience: the timeout in seconds of a start or a stop.
        user: the user that runs the server; None for the user that runs the tests.
    """

    NAME: ClassVar[str]
    """The name of the server."""

    IN_ORDER: ClassVar[signal.Signals] = signal.SIGTERM
    """The signal for an orderly stop, after which all data are stored."""

    AT_ONCE: ClassVar[signal.Signals] = signal.SIGKILL
    """The signal that stops the server like a power cut."""

    HELLO: ClassVar[bytes] = b""
    """The bytes to send to check whether the server is ready."""

    READY: ClassVar[bytes]
    """The first bytes of the response of a server that is ready."""

    def __init__(self, *, patience: float = 30.0, user: str | None = None) -> None:
        self.patience = patience
        self.port = _free_port()
        self.directory = directory_of(user, prefix=f"{self.NAME.lower()}-", within=data_place(user))
        self._user = user
        self._data = self.directory / "data"
        self._log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the command that runs the server."""

    def _make_data(self) -> None:
        """Create the data before the first start."""
        self._data.mkdir()

    @property
    def log(self) -> str:
        """The output of the server so far."""
        return self._log.read_text(errors="replace", encoding="utf-8") if self._log.exists() else ""

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server, and wait until it accepts connections.

        Raises:
            ServerNotStarted: the server did not start; its process has ended.
        """
        try:
            self._begin()
        except BaseException as error:
            self._stop(self.AT_ONCE)
            if isinstance(error, (OSError, RuntimeError)):
                raise ServerNotStarted(self.NAME, str(error)) from error
            raise
        return self

    def _begin(self) -> None:
        if not self._data.exists():
            self._make_data()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user(self._user),
            )
        end = self.AT_ONCE.name.removeprefix("SIG")
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, "watchdog", end, str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._await_ready(self._process)

    def stop(self) -> None:
        """Stop the server in an orderly way, so that all data are stored."""
        self._stop(self.IN_ORDER)

    def stop_at_once(self) -> None:
        """Stop the server as a power cut would. Data that were already written survive."""
        self._stop(self.AT_ONCE)

    def restart(self, *, at_once: bool = False) -> Self:
        """Stop and start the server."""
        self._stop(self.AT_ONCE if at_once else self.IN_ORDER)
        return self.start()

    def close(self) -> None:
        """Stop the server and remove its files."""
        self.stop_at_once()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stop(self, by: signal.Signals) -> None:
        process, watchdog = self._process, self._watchdog
        self._process = self._watchdog = None
        if process is not None:
            process.send_signal(by)
            try:
                process.wait(self.patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if watchdog is not None:
            watchdog.kill()
            watchdog.wait()
            assert watchdog.stdin is not None
            watchdog.stdin.close()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.patience
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log[-2000:] or f"no output for {self.patience:g} s")
            time.sleep(BETWEEN_LOOKS)

    def _answers(self) -> bool:
        """Return whether the server is ready."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(self.HELLO)
                return connection.recv(len(self.READY)) == self.READY
        except OSError:
            return False


def directory_of(user: str | None, *, prefix: str, within: Path | None = None) -> Path:
    """Create a directory that ``user`` owns and that is removed when the process ends."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=within or _disk_place(user)))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    if user is not None:
        shutil.chown(made, user)
    return made


def shared_directory_of(user: str | None, *, prefix: str, within: Path | None = None) -> Path:
    """Create a directory that is removed even if this process is killed."""
    made = directory_of(user, prefix=prefix, within=within)
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVER, "remover", str(made)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _removers.append(remover)  # if garbage-collected, it would close the pipe that the remover waits for
    atexit.register(remover.communicate)
    return made


def data_place(user: str | None = None) -> Path:
    """Return the directory for the servers' data: in memory if there is room, because servers write a lot.

    The data survive the end of a server.
    """
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ENOUGH
    return _IN_MEMORY if has_room and _reaches(user, _IN_MEMORY) else _disk_place(user)


def _disk_place(user: str | None) -> Path:
    """Return a directory for temporary files that the server's user can access."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    for place in places:
        if _reaches(user, place):
            return place
    raise RuntimeError(f"the user {user} reaches none of {', '.join(map(str, places))}: set TMPDIR")


def _reaches(user: str | None, place: Path) -> bool:
    return user is None or subprocess.run(["test", "-x", place], check=False, **as_user(user)).returncode == 0


def as_user(user: str | None) -> dict[str, Any]:
    """Return the arguments of `subprocess` that run a command as ``user``."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _free_port() -> int:
    for port in secrets.SystemRandom().sample(PORTS, k=100):
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
