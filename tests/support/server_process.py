"""A real server in a process of its own, for tests: started on loopback, stopped, or stopped at once.

Its methods block: code on a loop calls them through ``asyncio.to_thread``. The server is gone when the
process that started it is, however that ended.
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
"""Below those that outgoing connections get, which could take a stopped server's port from it."""

BETWEEN_LOOKS = 0.005
"""Seconds from one look at whether a server answers to the next."""

_IN_MEMORY = Path("/dev/shm")
_ENOUGH = 1 << 30
"""Bytes that must be free there: a cluster of PostgreSQL takes some 50 millions."""

_WATCHDOG = 'read _; kill -s "$1" "$2"; shift 2; rm -rf "$@" || { sleep 1; rm -rf "$@"; }'
"""Waits until its owner is gone; what a dying server still writes can be in the way of the first removal."""


_REMOVER = 'read _; rm -rf "$1"'
_removers: list[subprocess.Popen[bytes]] = []


class ServerNotStarted(RuntimeError):
    """A server did not start.

    Args:
        name: what the server is called.
        why: what it said.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} did not start:\n{why}")
        self.name = name


class ServerProcess(ABC):
    """One server with data of its own, that keeps its address and its data from start to start.

    Args:
        patience: seconds to wait for it to start or stop.
        user: whom it runs as; None: whoever runs the tests.
    """

    NAME: ClassVar[str]
    """What it is called."""

    IN_ORDER: ClassVar[signal.Signals] = signal.SIGTERM
    """What has it end its work and write everything."""

    AT_ONCE: ClassVar[signal.Signals] = signal.SIGKILL
    """What stops it as a power cut would."""

    HELLO: ClassVar[bytes] = b""
    """What is said to it to hear whether it is ready."""

    READY: ClassVar[bytes]
    """What its answer begins with where it is."""

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
        """The command that it is."""

    def _make_data(self) -> None:
        """Make what it keeps its data in, before its first start."""
        self._data.mkdir()

    @property
    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text(errors="replace", encoding="utf-8") if self._log.exists() else ""

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it, and return once it takes connections.

        Raises:
            ServerNotStarted: it did not; its process is gone.
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
        """Stop it in order: everything is written."""
        self._stop(self.IN_ORDER)

    def stop_at_once(self) -> None:
        """Stop it as a power cut would: the next start finds what had been written."""
        self._stop(self.AT_ONCE)

    def restart(self, *, at_once: bool = False) -> Self:
        """Stop and start it."""
        self._stop(self.AT_ONCE if at_once else self.IN_ORDER)
        return self.start()

    def close(self) -> None:
        """Stop it for good, and remove its files."""
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
                raise RuntimeError(self.log[-2000:] or f"it said nothing for {self.patience:g} s")
            time.sleep(BETWEEN_LOOKS)

    def _answers(self) -> bool:
        """Whether it would serve; one that is starting or stopping answers something else, if anything."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(self.HELLO)
                return connection.recv(len(self.READY)) == self.READY
        except OSError:
            return False


def directory_of(user: str | None, *, prefix: str, within: Path | None = None) -> Path:
    """Make a directory of a user's own (None: whoever runs the tests), removed when the process ends."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=within or _disk_place(user)))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    if user is not None:
        shutil.chown(made, user)
    return made


def shared_directory_of(user: str | None, *, prefix: str, within: Path | None = None) -> Path:
    """The same for what the servers of this process share: removed even where the process is killed."""
    made = directory_of(user, prefix=prefix, within=within)
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVER, "remover", str(made)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _removers.append(remover)  # what is collected closes the pipe, on which the remover waits
    atexit.register(remover.communicate)
    return made


def data_place(user: str | None = None) -> Path:
    """Where servers keep their data: in memory where there is room, for they write a lot, and recover often.

    What a server wrote survives its end there as it does on a disk.
    """
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _ENOUGH
    return _IN_MEMORY if has_room and _reaches(user, _IN_MEMORY) else _disk_place(user)


def _disk_place(user: str | None) -> Path:
    """The directory for temporary files, or another that the server's user can reach, too."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    for place in places:
        if _reaches(user, place):
            return place
    raise RuntimeError(f"the user {user} reaches none of {', '.join(map(str, places))}: set TMPDIR")


def _reaches(user: str | None, place: Path) -> bool:
    return user is None or subprocess.run(["test", "-x", place], check=False, **as_user(user)).returncode == 0


def as_user(user: str | None) -> dict[str, Any]:
    """What has a command run as a user (None: as whoever runs the tests)."""
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
