"""The command that brings a journal to this version's format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from transfer_async._cli.console import options
from transfer_async._cli.console.output import complain, shown, tell
from transfer_async._cli.journal import tables, terminal
from transfer_async._cli.journal.asking import AsJson, Yes, confirmed, done, usage
from transfer_async.journal.group_commit import DurableJournal
from transfer_async.journal.upgrading import Upgrade


def upgrade(*, journal: options.JournalNeeded, yes: Yes = False, as_json: AsJson = False) -> None:
    """Bring the journal to this version's format.

    In place, all its scopes at once, and in one transaction: if it is stopped in the middle, run it again.
    Stop every program that uses the journal first. One of an earlier version can never use it again. Shows
    what is there, and asks before anything is changed; does nothing if the format is the right one already.
    """
    plan = done(_with(_named(journal), lambda store: store.planned_upgrade()))
    if _is_needed(plan):
        complain(_found_told(plan))
        confirmed(
            "Programs of an earlier version, running ones too, can never use the journal again, and there is "
            "no way back. Are all of them stopped? Go on?",
            yes=yes,
        )
        plan = done(_with(_named(journal), lambda store: store.upgrade(plan)))
    tell(tables.as_json(_as_json(plan)) if as_json else _told(plan))


def _named(address: str) -> DurableJournal:
    with usage():
        return terminal.journal_named(address)


async def _with(store: DurableJournal, do: Callable[[DurableJournal], Awaitable[Upgrade]]) -> Upgrade:
    try:
        return await do(store)
    finally:
        await store.close()


def _found_told(found: Upgrade) -> str:
    states = ", ".join(f"{count} {shown(_words(state))}" for state, count in sorted(found.states.items()))
    told = f"journal: its format is {found.found}, and will be {found.version}; {_counted(found)}"
    told += f": {states}" if states else ""
    if found.unreadable:
        told += f"; of {tables.counted(found.unreadable, 'key')} the record cannot be read, then as now"
    return told


def _told(made: Upgrade) -> str:
    if not _is_needed(made):
        return f"the journal's format is {made.version} already: there is nothing to do"
    return f"the journal's format is {made.version} now; all is as it was of {_counted(made)}"


def _counted(found: Upgrade) -> str:
    return tables.counted(found.keys, "key")


def _words(state: str) -> str:
    return state.replace("_", " ")


def _is_needed(made: Upgrade) -> bool:
    """Whether there is, or was, anything to do."""
    return made.found != made.version


def _as_json(made: Upgrade) -> dict[str, Any]:
    told: dict[str, Any] = {"upgraded": _is_needed(made), "found": made.found, "version": made.version}
    if _is_needed(made):
        told |= {"keys": made.keys, "states": dict(made.states), "unreadable": made.unreadable}
    return told
