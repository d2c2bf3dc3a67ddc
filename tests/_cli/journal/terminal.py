"""Helpers that run journal commands and create keys for them."""

import json
from typing import Any

from tests.support import commands
from tests.support.bank import World
from transfer_async.journal import transitions

ADA = ["--by", "ada", "--reason", "seen on the statement"]
BEN = ["--by", "ben", "--reason", "looked, too"]
PERSONAL = ("ada.eze", "ben.okri", "nobody@", "example.com", "Okri")


async def asked(*arguments: Any, answers: str | None = None, code: int = 0) -> Any:
    """Run a command. Check its exit code, and that its output contains no personal data."""
    result = await commands.asked("journal", *arguments, answers=answers, code=code)
    assert not any(name in result.output for name in PERSONAL)
    return result


async def json_of(*arguments: Any) -> Any:
    """Run a command with ``--json``. Return the parsed document."""
    return json.loads((await asked(*arguments, "--json")).stdout)


async def corrupt_intents(world: World) -> None:
    """Corrupt the intent of every key in the journal's file."""
    sql = "UPDATE keys_2 SET intent = '{}'"
    await world.journal.journal._ask(lambda file: file._db.execute(sql).rowcount)  # type: ignore[attr-defined] # SQLite
    await world.journal.journal.close()


async def everything(world: World) -> None:
    """Create a key in every state that an operator can meet, ten seconds apart."""
    await world.create(key="created")
    world.time.pass_(10.0)
    await world.in_doubt("doubt")
    world.time.pass_(10.0)
    await world.owing("owing")
    for key, at in (("claimed", transitions.MarkSending), ("sending", transitions.Create)):
        world.time.pass_(10.0)
        await world.crash(at, key=key)
