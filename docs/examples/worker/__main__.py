"""The worker, its broker and a sandbox, in one process: ``python docs/examples/worker``."""

import asyncio
import tempfile
from pathlib import Path

from bank import Bank
from broker import Broker
from transfer_async import Delays, OrderCommand
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, Status
from worker import Worker, client_of

SHORT_DELAYS = Delays(first=0.05, longest=0.05)
"""Short delays for this demonstration; use the defaults in production."""


def command(bank: Bank, key: str, *, beneficiary: str = "ben.okri@example.com") -> bytes:
    """Return a command as the bank's other systems would send it."""
    order = bank.order(customer="ada.eze@example.com", beneficiary=beneficiary, amount="100.00", rate="1500")
    return OrderCommand(key=key, order=order).to_json()


async def play(directory: Path) -> tuple[Broker, Sandbox]:
    """Send commands that succeed, are refused, arrive twice, or whose responses are lost."""
    bank, broker = Bank(), Broker()
    async with (
        Sandbox() as sandbox,
        client_of(
            bank, base_url=sandbox.base_url, token=sandbox.token, journal=directory / "payments.journal"
        ) as client,
    ):
        worker = Worker(client, broker, delays=SHORT_DELAYS)
        running = asyncio.create_task(worker.run())
        try:
            await story(broker, sandbox, bank, worker)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    print(f"orders at the service: {len(sandbox.orders)}; holds at the bank: {len(bank.holds)}")
    return broker, sandbox


async def story(broker: Broker, sandbox: Sandbox, bank: Bank, worker: Worker) -> None:
    """Send the commands one after the other."""
    await sent(broker, command(bank, "payment-1"))
    await sent(broker, command(bank, "payment-1"))  # redelivered: the same order
    await sent(broker, command(bank, "payment-2", beneficiary="nobody@example.com"))
    await sent(broker, b"what is this?")

    sandbox.faults.add(Status(401))
    await sent(broker, command(bank, "payment-3"))  # the token is refused once: the command is redelivered

    sandbox.faults.add(CloseAfterProcessing())
    await sent(broker, command(bank, "payment-4"))  # the order is created, but its response is lost
    bank.statement["payment-4"] = list(sandbox.orders)[-1]  # the back office finds the order
    await worker.sweep()  # publishes the final outcome


async def sent(broker: Broker, body: bytes) -> None:
    """Send a command, and wait until it is acknowledged."""
    broker.send(body)
    await broker.nothing_open()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory)))
