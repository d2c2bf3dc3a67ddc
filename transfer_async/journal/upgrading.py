"""From one version of a durable journal to the next: forward, in place, all scopes in one transaction.

The version is stored, and it is part of the name of the table with the entries. A program that opens a
journal of another version refuses by what is stored. One that was running when the journal was upgraded
finds no table of the old name, so that every move of it fails, and no key of it is freed.

To raise `VERSION`: add the statements that lead there to `STEPS`, the new one's test data to
``tests/journal/released``, and let no statement rewrite rows, for that takes long in a large journal. What
an older version wrote is read as it is, for ever: a field that it lacks has a default (`rows`).
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import frozen

from transfer_async._models.base import ByValue
from transfer_async._models.errors import JournalFailed
from transfer_async.journal.rows import VERSION, EntryRow, entry_of

STEPS: Mapping[int, tuple[str, ...]] = {
    # Entries gained what older programs would drop at their next write: causes, proposals, the rule of
    # four eyes, the count of moves; and orders may be sealed, which they could not read.
    1: ('ALTER TABLE "{schema}".keys RENAME TO keys_2',),
}
"""From each version to the next, in the SQL of both SQLite and PostgreSQL."""

PAGE = 1000
"""How many entries are read at once, however many there are."""

STOP = "stop every program that uses the journal, then run the upgrade again"


@frozen(kw_only=True, eq=False, repr=False)
class Upgrade(ByValue):
    """What an upgrade of a journal's format is about.

    Args:
        found: the version that the journal had.
        version: the one that it has then, which is this program's. If both are the same, nothing was to do.
        states: how many keys are in each state, in all scopes; empty if nothing was to do.
        unreadable: how many of them cannot be read: neither before nor after, and nothing of them is lost.
    """

    found: int
    version: int = VERSION
    states: Mapping[str, int]
    unreadable: int

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return sum(self.states.values())


class Upgradable(abc.ABC):
    """A store with a journal of whatever version, opened to be upgraded."""

    @abc.abstractmethod
    async def version(self) -> int | None:
        """Of the journal."""

    @abc.abstractmethod
    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """Up to `PAGE` entries with their numbers, by these, of those beyond ``after``; replies left out."""

    @abc.abstractmethod
    async def carry_out(self, upgrade: Upgrade) -> bool:
        """Take the steps, in one transaction; false if the journal has another version meanwhile.

        Raises:
            JournalFailed: somebody uses the journal, or has written to it since `Upgrade.states` was counted.
        """


NOTHING = Upgrade(found=VERSION, states={}, unreadable=0)
"""Nothing is to do, or was."""


async def planned(store: Upgradable, what: str) -> Upgrade:
    """What is to be done to the journal in ``store``, which is called ``what``."""
    found = await store.version()
    if found is None or found not in STEPS:
        refuse_another_version(what, found)
        return NOTHING
    try:
        return await _looked_at(store, found)
    except Exception:
        if await store.version() == VERSION:  # somebody else has taken the table away under the look
            return NOTHING
        raise


async def upgraded(store: Upgradable, what: str, plan: Upgrade | None) -> Upgrade:
    """Do what is planned, or what is to be; what was done."""
    plan = plan or await planned(store, what)
    if plan.found != VERSION and await store.carry_out(plan):
        return plan
    refuse_another_version(what, await store.version())  # nobody has done it, or somebody has done more
    return NOTHING


async def _looked_at(store: Upgradable, found: int) -> Upgrade:
    """Read every entry, so that what this program cannot read shows before anything is changed."""
    states: Counter[str] = Counter()
    unreadable, last = 0, 0
    while page := await store.page(table_of(found), last):
        last = page[-1][0]
        states.update(row.state for _, row in page)
        unreadable += sum(map(_is_unreadable, (row for _, row in page)))
    return Upgrade(found=found, states=dict(states), unreadable=unreadable)


def _is_unreadable(row: EntryRow) -> bool:
    unread = entry_of(row).unread
    return unread is not None and not unread.is_sealed  # what is sealed stays so, whoever has the key


def table_of(version: int) -> str:
    """The table of the entries, in a journal of that version."""
    return "keys" if version == 1 else f"keys_{version}"


def statements_from(version: int, schema: str) -> list[str]:
    """All that lead from that version to this program's."""
    return [one.format(schema=schema) for step in range(version, VERSION) for one in STEPS[step]]


def checked_counts(upgrade: Upgrade, counted: Iterable[tuple[str, int]]) -> None:
    """Compare with the states that are there once all steps are taken, before they are committed.

    Raises:
        JournalFailed: they are not those that were there before the first.
    """
    if dict(counted) != dict(upgrade.states):
        raise JournalFailed(f"somebody wrote to the journal meanwhile, and nothing was changed: {STOP}")


def refuse_another_version(what: str, found: int | None) -> None:
    """Refuse a journal that is not of this program's version.

    Raises:
        JournalFailed: says of which it is, and what to do.
    """
    if found == VERSION:
        return
    formats = f"(its format is {found}, this program's is {VERSION})"
    if found in STEPS:
        raise JournalFailed(
            f"{what} was written by an older version of transfer_async {formats}: "
            "stop every program that uses it, then run: transfer-async journal upgrade"
        )
    if found is not None and found > VERSION:
        raise JournalFailed(
            f"{what} was written by a newer version of transfer_async {formats}: "
            "use that version, or one that is newer still"
        )
    raise JournalFailed(f"{what} has a format that no version of transfer_async is known to write {formats}")
