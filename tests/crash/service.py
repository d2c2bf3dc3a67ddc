"""The service: a sandbox with faults in its own process, which at its end writes its orders and requests."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.crash.processes import Channel, beside
from tests.crash.setting import FAULTS, Place, key_of
from tests.crash.verdict import Report
from transfer_async.sandbox import Fault, RequestRecord, Sandbox
from transfer_async.sandbox.service import CREATE_ORDER_PATH

UNREAD = "unread"
"""The key that counts requests whose body was not read."""


@contextmanager
def service(
    directory: Path,
    options: argparse.Namespace,
    report: Report,
    *,
    journal: str,
    broker: str = "",
    faults: Mapping[Fault, float] = FAULTS,
) -> Iterator[Place]:
    """Run the service, and enter its place. At the end of the block, the service writes its orders."""
    serve = partial(_serve, seed=options.seed, faults=faults, results=directory / "service")
    with beside(serve, "the service", report.trouble) as serving:
        place = Place(directory=str(directory), journal=journal, broker=broker, **(serving.hear() or {}))
        place.enter()
        yield place


def _serve(end: socket.socket, *, seed: int, faults: Mapping[Fault, float], results: Path) -> None:
    results.write_text(json.dumps(asyncio.run(_served(Channel(end), seed, faults))), encoding="utf-8")


async def _served(channel: Channel, seed: int, faults: Mapping[Fault, float]) -> dict[str, Any]:
    async with Sandbox(seed=seed, faults=faults, keep_requests=10_000_000) as sandbox:
        channel.tell(base_url=sandbox.base_url, token=sandbox.token)
        await channel.next()
        await sandbox._waiting.until(lambda: _is_done(sandbox))
        received = Counter(_whose(one) for one in sandbox.requests if one.path == CREATE_ORDER_PATH)
        orders = [(key_of(order.poster_username), order.id) for order in sandbox.orders.values()]
    return {"orders": orders, "received": received}


def _whose(request: RequestRecord) -> str:
    # The connection of a killed client may end before the service has read its request.
    return key_of(str(request.field_of_body("poster_username"))) if request.body else UNREAD


def _is_done(sandbox: Sandbox) -> bool:
    sandbox.faults.release()  # a stalled request may still create an order
    return all(request.finished for request in sandbox.requests)
