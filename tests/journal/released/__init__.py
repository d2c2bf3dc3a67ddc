"""Sample journals of each version, written by that version with `python -m tests.journal.released`. /
``N.sqlite.sql`` creates the file, ``N.postgres.sql`` the tables, in a schema of any name. The samples of a
released version never change. When you raise `VERSION`, add the samples of the new version. The statements
that programs of version 1 run are in ``1.sqlite.statements.sql`` and ``1.postgres.statements.sql``.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
SCOPE = "https://orders.example"
SEAL_KEYS = {"sample": bytes(range(32))}
"""The encryption keys for the record of the key "sealed", which the samples contain since version 2."""

BACK_ENDS = ("sqlite", "postgres")


def versions_of(back_end: str) -> set[int]:
    """Return the versions that have a sample."""
    return {int(found.name.partition(".")[0]) for found in HERE.glob(f"[0-9]*.{back_end}.sql")}


def sample(version: int, back_end: str, *, schema: str = "transfer_async") -> str:
    """Return the SQL that creates the sample."""
    text = (HERE / f"{version}.{back_end}.sql").read_text(encoding="utf-8")
    return text.replace("{schema}", schema)


def make_file(path: Path, version: int = 1) -> Path:
    """Create a file with the sample of a version."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(sample(version, "sqlite"))
    path.chmod(0o600)
    return path
