"""A minimal program that creates the orders in a file: it reads them all and calls ``create_orders``.

It validates only what the models validate, writes no outcomes and has no clean shutdown. The difference from
``transfer-async create FILE`` is the cost of the features that the command adds.

    python -m benchmarks.contenders.bare_file FILE --journal ... --base-url ... --concurrency 16
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from decimal import Decimal
from pathlib import Path

from benchmarks.contenders.ours import place, release
from transfer_async import FundsHold, NewExternalOrder, NewOrder, OrderRequest, SQLiteJournal, TransferClient
from transfer_async._cli.process import loop_factory


def request_of(line: str) -> OrderRequest:
    """Parse one line."""
    command = json.loads(line, parse_float=Decimal)
    fields = command["order"]
    external = NewExternalOrder(**fields.pop("external_order"))
    return OrderRequest(NewOrder(**fields, external_order=external), command["key"])


async def create(options: argparse.Namespace) -> float:
    """Create the orders and return the orders per second, without the time to read the file."""
    with options.file.open(encoding="utf-8") as file:
        requests = [request_of(line) for line in file]
    hooks = [FundsHold(place, release)]
    async with (
        SQLiteJournal(options.journal) as journal,
        TransferClient(
            options.base_url, os.environ["TRANSFER_API_TOKEN"], hooks=hooks, journal=journal
        ) as client,
    ):
        began = time.perf_counter()
        async for result in client.create_orders(requests, concurrency=options.concurrency):
            assert result.order is not None  # noqa: S101 - the rate counts created orders only
        return len(requests) / (time.perf_counter() - began)


def main() -> None:
    """Create the orders and print the rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    # The command also tunes the garbage collector; a typical program does not.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(f"{runner.run(create(parser.parse_args())):,.0f} a second")


if __name__ == "__main__":
    main()
