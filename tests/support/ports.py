"""Ports that refuse connections. A port that was merely freed may be given to another server at once."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a loopback port that refuses connections and that the system gives to no other program.

    A server that requests this port and sets `SO_REUSEADDR`, as asyncio's servers do, can still listen on it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
