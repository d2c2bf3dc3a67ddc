"""What an operator types at a terminal, and of what."""

import json
from typing import Any

from tests.support import commands
from tests.support.bank import World
from transfer_async.journal import transitions

ADA = ["--by", "ada", "--reason", "seen on the statement"]
BEN = ["--by", "ben", "--reason", "looked, too"]
PERSONAL = ("ada.eze", "ben.okri", "nobody@", "example.com", "Okri")


async def asked(*arguments: str, answers: str | None = None, code: int = 0) -> Any:
    """Run a command, which tells nothing about people."""
    result = await commands.asked("journal", *arguments, answers=answers, code=code)
    assert not any(told in result.output for told in PERSONAL)
    return result


async def told(*arguments: str) -> Any:
    """The same as a document for machines."""
    return json.loads((await asked(*arguments, "--json")).stdout)


async def everything(world: World) -> None:
    await world.create(key="created")
    world.time.pass_(10.0)
    await world.in_doubt("doubt")
    world.time.pass_(10.0)
    await world.owing("owing")
    for key, at in (("claimed", transitions.MarkSending), ("sending", transitions.Create)):
        world.time.pass_(10.0)
        await world.crash(at, key=key)
