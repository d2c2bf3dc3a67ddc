"""A minimal worker: it pulls commands with nats-py, calls ``create_order``, publishes and acknowledges.

It has no redelivery delays, dead letters, heartbeats, health check or clean shutdown. The difference from
``transfer-async worker`` is the cost of these features: client, journal, hooks and event loop are the same.

    python -m benchmarks.contenders.bare_worker --broker ... --journal ... --base-url ... --concurrency 16
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
from decimal import Decimal

import nats
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout

from benchmarks.contenders.ours import place, release
from transfer_async import FundsHold, NewExternalOrder, NewOrder, TransferClient
from transfer_async._cli.process import loop_factory
from transfer_async.journal import PostgresJournal

STREAM, CONSUMER, OUTCOMES = "TRANSFER_COMMANDS", "transfer-workers", "transfer.outcomes"
"""The names that ``transfer-async worker`` uses."""


async def run(options: argparse.Namespace) -> None:
    """Process commands until the process is terminated."""
    connection = await nats.connect(options.broker)
    broker = connection.jetstream()
    commands = await broker.pull_subscribe_bind(CONSUMER, stream=STREAM)
    hooks = [FundsHold(place, release)]
    async with (
        PostgresJournal(options.journal) as journal,
        TransferClient(
            options.base_url, os.environ["TRANSFER_API_TOKEN"], hooks=hooks, journal=journal
        ) as client,
    ):

        async def handle(message: Msg) -> None:
            command = json.loads(message.data, parse_float=Decimal)
            fields = command["order"]
            external = NewExternalOrder(**fields.pop("external_order"))
            order = await client.create_order(NewOrder(**fields, external_order=external), key=command["key"])
            outcome = {"key": command["key"], "outcome": "created", "order_id": order.id}
            await broker.publish(OUTCOMES, json.dumps(outcome).encode())
            await message.ack()

        while True:
            with contextlib.suppress(NatsTimeout):
                messages = await commands.fetch(options.concurrency, timeout=1)
                await asyncio.gather(*map(handle, messages))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--broker", "--journal", "--base-url"):
        parser.add_argument(name, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
