"""A journal's file, of whatever version, as an upgrade uses it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from transfer_async._models.errors import JournalFailed
from transfer_async.journal.rows import ENTRY_TABLE, VERSION, EntryRow
from transfer_async.journal.sqlite_opening import OpenFile, as_it_is
from transfer_async.journal.upgrading import (
    PAGE,
    STOP,
    Upgradable,
    Upgrade,
    checked_counts,
    statements_from,
)

_ROW = "state, token, order_id, due_at, ended_at, body, intent, NULL"


class FileOfAnyVersion(OpenFile):
    """The open file; all of it within one thread."""

    def _prepare(self, path: Path) -> None:
        self._db.text_factory = as_it_is
        if self._value("SELECT count(*) FROM sqlite_master") == 0:
            raise JournalFailed(f"there is no journal in {path.name} yet: there is nothing to upgrade")

    def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """See `Upgradable.page`."""
        sql = f"SELECT id, {_ROW} FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
        return [(number, EntryRow(*row)) for number, *row in self._db.execute(sql, (after, PAGE))]

    def carry_out(self, upgrade: Upgrade) -> bool:
        """See `Upgradable.carry_out`."""
        self.refuse_if_moved()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            why = f"somebody is writing to the journal, or nobody can ({error.sqlite_errorname}): {STOP}"
            raise JournalFailed(why) from error
        try:
            is_ours = self._take_the_steps(upgrade)
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.rollback()
        self.refuse_if_moved()
        return is_ours

    def _take_the_steps(self, upgrade: Upgrade) -> bool:
        if self.version != upgrade.found:
            return False
        for statement in statements_from(upgrade.found, "main"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version={VERSION}")
        checked_counts(upgrade, self._db.execute(f"SELECT state, count(*) FROM {ENTRY_TABLE} GROUP BY state"))
        return True


class UpgradableFile(Upgradable):
    """See `Upgradable`.

    Args:
        file: opened in the journal's thread.
        in_thread: does something there.
    """

    def __init__(
        self, file: FileOfAnyVersion, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._file = file
        self._in_thread = in_thread

    async def version(self) -> int | None:
        """See `Upgradable`."""
        found: int = await self._in_thread(lambda: self._file.version)
        return found

    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """See `Upgradable`."""
        found: list[tuple[int, EntryRow]] = await self._in_thread(lambda: self._file.page(table, after))
        return found

    async def carry_out(self, upgrade: Upgrade) -> bool:
        """See `Upgradable`."""
        is_ours: bool = await self._in_thread(lambda: self._file.carry_out(upgrade))
        return is_ours
