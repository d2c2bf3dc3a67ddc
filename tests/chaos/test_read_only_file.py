"""A worker whose user can only read the journal's file."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.storm import stormy_world
from transfer_async import JournalFailed, Outcome, SQLiteJournal

NOBODY = "nobody"


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a path in a directory that every user can enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory / "journal.db"
    directory.chmod(0o700)
    shutil.rmtree(directory)


def make_read_only(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run the block as an unprivileged user, because ``root`` could write the file."""
    user = os.geteuid()
    if not user:
        os.seteuid(pwd.getpwnam(NOBODY).pw_uid)
    try:
        yield
    finally:
        os.seteuid(user)


async def test_a_worker_with_a_read_only_journal_sends_and_holds_nothing(path: Path):
    async with SQLiteJournal(path):
        pass
    make_read_only(path)
    async with stormy_world(lambda world: SQLiteJournal(path, clock=world.time.clock)) as world:
        with unprivileged():
            failed = await world.fails(JournalFailed)

    assert str(failed.__cause__) == "attempt to write a readonly database"
    assert failed.outcome is Outcome.NOT_SENT
    assert (len(world.sandbox.requests), world.bank.open) == (0, {})
