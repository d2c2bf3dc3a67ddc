"""A worker in a process of its own, whose hook never ends; to be killed."""

import asyncio
import sys

from transfer_async import FundsHold, RetryPolicy, SQLiteJournal, TransferClient
from transfer_async.integrations.faststream import OrderWorker, line_at
from transfer_async.integrations.faststream.line import WorkerSettings


async def place(intent):
    sys.stdout.write("has it in hand\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def release(intent, receipt):
    pass


async def main(broker, path, base_url, token, commands):
    names = {name: commands.replace("commands", name) for name in ("commands", "outcomes", "parked")}
    line = line_at(broker, WorkerSettings(**names, ack_wait=0.5, poll=0.05, concurrency=1))
    async with SQLiteJournal(path) as journal:
        client = TransferClient(
            base_url,
            token,
            hooks=[FundsHold(place, release)],
            journal=journal,
            retry=RetryPolicy(attempts=1, deadline=0.4),
            lease=0.6,
        )
        async with client:
            await OrderWorker(client, line).run(asyncio.Event())


asyncio.run(main(*sys.argv[1:]))
