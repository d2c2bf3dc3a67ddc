"""A real PgBouncer in transaction mode for tests. The operating system's package provides it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.support.postgres import USER, PostgresServer
from tests.support.server_process import ServerProcess

_CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_round_robin = 1
"""
"""Use the least recently used connection, so that consecutive transactions rarely share one."""


class PgBouncer(ServerProcess):
    """PgBouncer in front of a PostgreSQL server, with a server connection for each transaction.

    Args:
        server: the running PostgreSQL server.
        options: the arguments of `ServerProcess`.
    """

    NAME = "PgBouncer"
    HELLO, READY = PostgresServer.HELLO, PostgresServer.READY

    def __init__(self, server: PostgresServer, **options: Any) -> None:
        super().__init__(user=USER, **options)
        self._server = server

    @classmethod
    def program(cls) -> str | None:
        """Return the path of PgBouncer, or None if it is not installed."""
        return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

    def through(self, dsn: str) -> str:
        """Return the address through PgBouncer of the database at ``dsn``."""
        return urlsplit(dsn)._replace(netloc=f"postgres@127.0.0.1:{self.port}").geturl()

    def _command(self) -> Sequence[str]:
        return [str(self.program()), str(self._data)]

    def _make_data(self) -> None:
        self._data.write_text(
            _CONFIGURATION.format(server=self._server.port, port=self.port), encoding="utf-8"
        )
        self._data.chmod(0o644)  # PgBouncer may run as another user, so don't depend on the umask
