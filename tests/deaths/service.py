"""The service, in a process of its own: a sandbox with faults, and at the end a list of what it has."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from tests.deaths.processes import Channel
from tests.deaths.trial import FAULTS
from transfer_async.sandbox import Sandbox


def serve(end: socket.socket, *, seed: int, results: Path) -> None:
    """Serve until told to stop, then write down every order and every request."""
    results.write_text(json.dumps(asyncio.run(_serve(Channel(end), seed))))


async def _serve(channel: Channel, seed: int) -> dict[str, Any]:
    async with Sandbox(seed=seed, faults=FAULTS, keep_requests=10_000_000) as sandbox:
        channel.tell(base_url=sandbox.base_url, token=sandbox.token)
        await channel.next()
        await sandbox._waiting.until(lambda: _is_done(sandbox))
        posters = Counter(str(request.field_of_body("poster_username")) for request in sandbox.requests)
        orders = [(order.poster_username, order.id) for order in sandbox.orders.values()]
        faults = Counter(request.fault.name for request in sandbox.requests if request.fault is not None)
    return {"orders": orders, "received": posters, "faults": faults}


def _is_done(sandbox: Sandbox) -> bool:
    sandbox.faults.release()  # a stall may yet make an order
    return all(request.finished for request in sandbox.requests)
