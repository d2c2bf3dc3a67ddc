"""A journal of any version, in a file or a schema, and programs of version 1 that use it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
from attrs import frozen

from tests.journal.released import make_file, sample
from transfer_async import PostgresJournal, SQLiteJournal
from transfer_async.journal.rows import ENTRY_TABLE, VERSION, table_of
from transfer_async.journal.sqlite import _File

TIMEOUT = 30.0
"""The seconds that a program waits for a lock; no test waits that long."""


@frozen
class Content:
    """The complete content of a journal.

    Args:
        version: the stored version.
        entry_tables: the names of the tables that may contain entries.
        keys: all entries, in order.
        history: all history lines, in order.
    """

    version: int
    entry_tables: tuple[str, ...]
    keys: list[tuple[Any, ...]]
    history: list[tuple[Any, ...]]

    @property
    def is_whole(self) -> bool:
        """Whether the tables are those of the stored version."""
        return self.entry_tables == (table_of(self.version),)


class FileStore:
    """A journal in a SQLite file."""

    def __init__(self, path: Path, version: int = 1) -> None:
        self.path = make_file(path, version)

    def journal(self, **settings: Any) -> SQLiteJournal:
        """Return a journal of this version."""
        return SQLiteJournal(self.path, **{"timeout": TIMEOUT, **settings})

    def old_journal(self, **settings: Any) -> SQLiteJournal:
        """Return a journal of version 1."""
        return _OldSQLiteJournal(self.path, **{"timeout": TIMEOUT, **settings})

    def say(self, *statements: str) -> None:
        """Run statements on the file."""
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=TIMEOUT)) as db:
            for sql in statements:
                db.execute(sql)

    def content(self) -> Content:
        """Return the content of the file, after an integrity check."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            names = db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'keys%' ORDER BY name"
            )
            tables = tuple(name for (name,) in names)
            joined = "SELECT k.*, r.reply FROM {} k LEFT JOIN replies r ON r.key_id = k.id ORDER BY k.id"
            return Content(
                version=db.execute("PRAGMA user_version").fetchone()[0],
                entry_tables=tables,
                keys=[row for name in tables for row in db.execute(joined.format(name))],
                history=db.execute("SELECT * FROM history ORDER BY id").fetchall(),
            )


class TableStore:
    """A journal in PostgreSQL."""

    def __init__(self, dsn: str, version: int = 1, *, schema: str = "transfer_async") -> None:
        self.dsn, self.schema = dsn, schema
        self.say(sample(version, "postgres", schema=schema))

    def journal(self, **settings: Any) -> PostgresJournal:
        """Return a journal of this version."""
        return PostgresJournal(self.dsn, **{"schema": self.schema, "timeout": TIMEOUT, **settings})

    def old_journal(self, **settings: Any) -> PostgresJournal:
        """Return a journal of version 1."""
        return _OldPostgresJournal(self.dsn, **{"schema": self.schema, "timeout": TIMEOUT, **settings})

    def say(self, *statements: str) -> None:
        """Run statements on the database."""

        async def execute() -> None:
            connection = await asyncpg.connect(self.dsn)
            try:
                await connection.execute(f'SET search_path TO "{self.schema}"')
                for sql in statements:
                    await connection.execute(sql)
            finally:
                await connection.close()

        asyncio.run(execute())

    def content(self) -> Content:
        """Return the content of the tables."""
        return asyncio.run(self._content())

    async def _content(self) -> Content:
        connection = await asyncpg.connect(self.dsn)
        try:
            names = await connection.fetch(
                "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename LIKE 'keys%' ORDER BY 1",
                self.schema,
            )
            tables = tuple(name for (name,) in names)
            keys = [
                tuple(row)
                for name in tables
                for row in await connection.fetch(f'SELECT * FROM "{self.schema}".{name} ORDER BY id')
            ]
            history = await connection.fetch(f'SELECT * FROM "{self.schema}".history ORDER BY id')
            version = await connection.fetchval(f'SELECT version FROM "{self.schema}".meta')
            return Content(version, tables, keys, [tuple(row) for row in history])
        finally:
            await connection.close()


Store = FileStore | TableStore


# --- programs of version 1: they do what this version does, but with the table of version 1 -------------


def _as_then(sql: str) -> str:
    return sql.replace(ENTRY_TABLE, "keys")


class _OldConnection:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self._db.execute(_as_then(sql), *values)

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
        return self._db.executemany(_as_then(sql), values)


class _OldFile(_File):
    @property
    def _db(self) -> Any:
        return self._connection

    @_db.setter
    def _db(self, db: sqlite3.Connection) -> None:
        self._connection = _OldConnection(db)

    @property
    def version(self) -> int:
        return super().version + VERSION - 1  # so that the version is 1 here, and 2 is a newer one


class _OldSQLiteJournal(SQLiteJournal):
    def _opened(self) -> _File:
        if self._file is None:
            self._file = _OldFile(self._path, timeout=self._timeout, make=False)
        return self._file


class _OldPostgresJournal(PostgresJournal):
    def __init__(self, dsn: str, **settings: Any) -> None:
        super().__init__(dsn, **settings)
        for name, text in vars(self._sql).items():
            setattr(self._sql, name, _as_then(text))
        self._sql.version = self._sql.version.replace("version", f"version + {VERSION - 1}", 1)
