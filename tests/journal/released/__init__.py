"""A journal of each version, as that version wrote it; made by `python -m tests.journal.released`.

``N.sqlite.sql`` makes the file, ``N.postgres.sql`` the tables in a schema of any name. They are never made
anew once their version is released: whoever raises `VERSION` adds those of the new one. With them stand the
statements of programs of version 1, as ``1.sqlite.statements.sql`` and ``1.postgres.statements.sql``.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
SCOPE = "https://orders.example"
SEAL_KEYS = {"sample": bytes(range(32))}
"""With which the key "sealed" was written, since version 2."""

BACK_ENDS = ("sqlite", "postgres")


def versions_of(back_end: str) -> set[int]:
    """Of which there is one."""
    return {int(found.name.partition(".")[0]) for found in HERE.glob(f"[0-9]*.{back_end}.sql")}


def sample(version: int, back_end: str, *, schema: str = "transfer_async") -> str:
    """The SQL that makes it."""
    text = (HERE / f"{version}.{back_end}.sql").read_text(encoding="utf-8")
    return text.replace("{schema}", schema)


def make_file(path: Path, version: int = 1) -> Path:
    """Make the file that version wrote."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(sample(version, "sqlite"))
    path.chmod(0o600)
    return path
