"""A journal whose log is truncated or has a wrong byte is read as it was after some commit."""

import asyncio
import random
import sqlite3
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.support.bank import Time
from tests.support.journalling import (
    LEASE,
    SCOPE,
    claim,
    create,
    doubt,
    made,
    mark,
    mark_undone,
    release,
    renew,
    undos,
)
from transfer_async import JournalFailed, SQLiteJournal
from transfer_async.journal import sqlite, transitions
from transfer_async.journal.sqlite import _File

IN_MEMORY = Path("/dev/shm")

STORY: list[tuple[str, transitions.Move]] = [
    *((f"created-{n}", move) for n in range(4) for move in (claim(), mark(), create(order_id=f"tx-{n}"))),
    *((f"doubt-{n}", move) for n in range(4) for move in (claim(), renew(check="r"), mark(), doubt())),
    *(
        (f"free-{n}", move)
        for n in range(2)
        for move in (claim(), mark(), release(pending_undos=undos("hold", "check")))
    ),
    *((f"free-{n}", move) for n in range(2) for move in (mark_undone("hold", "check"), claim(2))),
    *((f"sending-{n}", move) for n in range(2) for move in (claim(), mark())),
]


@frozen
class Written:
    """The content of a journal after each commit, and its files after the last one."""

    main: bytes
    log: bytes
    contents: list[Any]
    ends: list[int]

    def expected(self, whole: int) -> Any:
        """Return the content that must be read if only this many bytes of the log are intact."""
        return self.contents[bisect_right(self.ends, whole)]


def content(file: _File) -> Any:
    """Return all entries with their histories."""
    entries = file.query(f"SELECT k.key, {sqlite._ROW} FROM {sqlite._KEYS} ORDER BY k.key")
    return [(key, row, file.query(sqlite._Queries.history, SCOPE, key)) for key, *row in entries]


async def _written(path: Path) -> Written:
    time = Time()
    contents: list[Any] = [[]]
    ends: list[int] = []
    log = path.with_name(f"{path.name}-wal")
    async with SQLiteJournal(path, clock=time.clock) as journal:
        for key, move in STORY:
            await made(journal, move, key=key)
            time.pass_(LEASE / 1000)
            contents.append(await journal._ask(content))
            ends.append(await asyncio.to_thread(lambda: log.stat().st_size))
        main, last = await asyncio.to_thread(lambda: (path.read_bytes(), log.read_bytes()))
    return Written(main, last, contents, ends)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Return a directory in memory if possible, because the test opens a thousand files."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def written(directory: Path) -> Written:
    return asyncio.run(_written(directory / "journal.db"))


def reread(directory: Path, main: bytes, log: bytes) -> Any:
    """Return what the journal reads from damaged files; None if it raises an error."""
    path = directory / "trial.db"
    path.write_bytes(main)
    path.with_name("trial.db-wal").write_bytes(log)
    try:
        file = _File(path, timeout=1.0)
        try:
            return content(file)
        finally:
            file.close()
    except (JournalFailed, sqlite3.Error):
        return None
    finally:
        for one in directory.glob("trial.db*"):
            one.unlink()


def test_every_commit_makes_the_log_longer_and_is_read_from_it(directory: Path, written: Written):
    assert len(STORY) > 40
    assert written.ends == sorted(set(written.ends))
    assert written.ends[-1] == len(written.log)
    assert reread(directory, written.main, written.log) == written.contents[-1]


def cut(log: bytes, at: int, chance: random.Random) -> bytes:
    return log[:at]


def with_a_wrong_byte(log: bytes, at: int, chance: random.Random) -> bytes:
    return log[:at] + bytes([log[at] ^ chance.randrange(1, 256)]) + log[at + 1 :]


@pytest.mark.parametrize("harm", [cut, with_a_wrong_byte])
@pytest.mark.trial(short=20, ci=200, long=20_000)
def test_a_damaged_log_keeps_exactly_the_commits_before_the_damage(
    directory: Path, written: Written, harm: Callable[..., bytes], size: int
):
    chance = random.Random(7)
    for _ in range(size):
        at = chance.randrange(len(written.log))
        log = harm(written.log, at, chance)
        assert reread(directory, written.main, log) == written.expected(at), at
