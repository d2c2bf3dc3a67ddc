"""The keys of a file, and where each stood first."""

from __future__ import annotations

from transfer_async._cli.console.temporary_database import TemporaryDatabase

_TABLE = "CREATE TABLE keys (key TEXT PRIMARY KEY, line INTEGER NOT NULL) WITHOUT ROWID;"
# Keys in the order of the file are mostly near each other, so digests would be slower.


class Keys(TemporaryDatabase):
    """Every key so far; a context manager."""

    def __init__(self) -> None:
        super().__init__(_TABLE)

    def seen(self, key: str, line: int) -> int | None:
        """The line on which ``key`` stood before; None if this is the first."""
        if self.database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key, line)).rowcount:
            return None
        found: tuple[int] = self.database.execute("SELECT line FROM keys WHERE key = ?", (key,)).fetchone()
        return found[0]
