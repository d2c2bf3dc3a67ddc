"""Ports without a listener. A port that was merely freed may be given to another server at once."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of loopback that refuses every connection, and that the system gives to nobody else.

    A server that asks for this very port may listen there meanwhile, if it shares addresses (`SO_REUSEADDR`),
    as those of asyncio do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
