"""Points at which a call can wait, so that a test can interrupt it there."""

from typing import Any

from tests.support.bank import Gate, World
from transfer_async import Outcome, TransferClient
from transfer_async.journal.model import Ending
from transfer_async.sandbox import CloseAfterProcessing, Status

NEVER_SENT = Ending(outcome=Outcome.NOT_SENT, error="Cancelled")
ENDINGS = {
    "a hook": NEVER_SENT,
    "the token": NEVER_SENT,
    "a pause": Ending(outcome=Outcome.REFUSED, error="RateLimited", status=429),
    "another token": Ending(outcome=Outcome.REFUSED, error="Unauthorized", status=401),
    "resolve": None,
    "resolve, of an old doubt": None,
}
"""For each point, the recorded end of a call that is interrupted there. Doubts have no recorded end."""


async def waiting_at(world: World, gate: Gate, where: str) -> TransferClient:
    """Return a client whose next call waits at the gate."""

    async def another_token() -> str:
        if world.bank.open:
            await gate()
        return "old"

    settings: dict[str, Any] = {}
    if where == "a hook":
        world.bank.on_placed = gate
    elif where == "the token":
        settings["token"] = gate
    elif where == "a pause":
        world.time.on_sleep = gate
        world.sandbox.faults.add(Status(429))
    elif where == "another token":
        settings["token"] = another_token
    elif where == "resolve":
        world.sandbox.faults.add(CloseAfterProcessing())
        settings["resolve"] = gate
    elif where == "resolve, of an old doubt":
        await world.in_doubt()
        settings["resolve"] = gate
    else:
        raise LookupError(where)
    return world.made(**settings)
