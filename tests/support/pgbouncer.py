"""A real PgBouncer that pools transactions, for tests; a package of the system's, where it is installed."""

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
"""Each transaction gets the connection that lay idle longest: hardly ever the one that it had before."""


class PgBouncer(ServerProcess):
    """PgBouncer before a PostgreSQL server, one of whose connections a client has for one transaction.

    Args:
        server: running.
        options: what every `ServerProcess` takes.
    """

    NAME = "PgBouncer"
    HELLO, READY = PostgresServer.HELLO, PostgresServer.READY

    def __init__(self, server: PostgresServer, **options: Any) -> None:
        super().__init__(user=USER, **options)
        self._server = server

    @classmethod
    def program(cls) -> str | None:
        """Where its program is, if it is installed."""
        return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

    def through(self, dsn: str) -> str:
        """The address of the server's database at ``dsn``, through here."""
        return urlsplit(dsn)._replace(netloc=f"postgres@127.0.0.1:{self.port}").geturl()

    def _command(self) -> Sequence[str]:
        return [str(self.program()), str(self._data)]

    def _make_data(self) -> None:
        self._data.write_text(
            _CONFIGURATION.format(server=self._server.port, port=self.port), encoding="utf-8"
        )
        self._data.chmod(0o644)  # PgBouncer may run as another user, whatever the umask.
