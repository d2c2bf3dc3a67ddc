"""How a server of a test's own stops to listen."""

from __future__ import annotations

import asyncio

from tests.support.bank import turns

_ACCEPTING = 5
"""Turns of the loop after which a connection that was accepted has its task."""


async def stop_listening(server: asyncio.Server) -> None:
    """Close ``server`` once every accepted connection has its transport and its task.

    asyncio leaves open the socket that was accepted in the very turn in which the server is closed.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await turns(_ACCEPTING)
    server.close()
