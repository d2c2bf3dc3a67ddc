"""Close an asyncio server without leaving a socket open."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tests.support.bank import turns

_ACCEPTING = 5
"""The loop iterations until an accepted connection has its task."""


async def stop_serving(server: asyncio.Server, connections: Collection[asyncio.Task[None]]) -> None:
    """Close ``server`` and end the tasks of its connections."""
    await stop_listening(server)
    for task in connections:
        task.cancel()
    if connections:
        await asyncio.wait(connections)


async def stop_listening(server: asyncio.Server) -> None:
    """Close ``server`` once every accepted connection has its transport and its task.

    asyncio leaks a socket that it accepts in the same iteration in which the server is closed.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await turns(_ACCEPTING)
    server.close()
