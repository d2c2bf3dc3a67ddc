"""The journal in a SQLite file."""

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.bank import Time, turns
from tests.support.journalling import SCOPE, claim, create, judged, made, mark, release
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import JournalFailed, SQLiteJournal
from transfer_async.journal import journal_at
from transfer_async.journal.model import Rejection
from transfer_async.journal.protocol import KEPT


async def in_file(path: Path, *statements: str) -> None:
    """Run statements on the file, as another program would."""

    def say() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for sql in statements:
                db.execute(sql)

    await asyncio.to_thread(say)


async def refusal(path: Path) -> str:
    """Return the error message of a claim."""
    journal = SQLiteJournal(path)
    with pytest.raises(JournalFailed) as failed:
        await judged(journal, claim())
    await journal.close()
    return str(failed.value)


# --- the file -----------------------------------------------------------------------------------


async def test_a_scope_that_was_not_stored_shares_no_number_with_another(path: Path):
    """Without this, two services share their keys, and one returns the other's orders."""
    async with SQLiteJournal(path) as journal:
        # A denied transition stores nothing, not even the scope.
        assert await journal.move("a", "k", release(None)) is None
        for number, scope in ((1, "b"), (2, "a")):
            claimed = await journal.move(scope, "k", claim(number))
            assert claimed is not None
            assert claimed.entry.intent_id == f"intent-{number}"


async def test_the_first_transition_creates_the_file(path: Path):
    journal = journal_at(str(path))
    before = await asyncio.to_thread(path.exists)
    await judged(journal, claim())
    await journal.close()

    assert (before, await asyncio.to_thread(path.exists)) == (False, True)


async def test_the_file_is_private_from_its_creation(path: Path, monkeypatch: pytest.MonkeyPatch):
    modes = []
    connect = sqlite3.connect

    def look(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        modes.append((stat.S_IMODE(path.stat().st_mode), path.stat().st_size))
        return connect(*args, **kwargs)

    monkeypatch.setattr(sqlite3, "connect", look)
    async with SQLiteJournal(path):
        pass

    assert modes == [(0o600, 0)]


def make_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE keys (id); PRAGMA application_id=7")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_bytes(b"#!/bin/sh\nexit\n" * 100), "not a database"),
        (make_database, "not a journal"),
        (Path.mkdir, "not a regular file"),
    ],
    ids=["a program", "another database", "a directory"],
)
async def test_a_path_of_something_else_is_refused_and_stays_unchanged(
    path: Path, make: Callable[[Path], None], why: str
):
    def state() -> tuple[int, bytes]:
        return stat.S_IMODE(path.stat().st_mode), b"" if path.is_dir() else path.read_bytes()

    await asyncio.to_thread(make, path)
    await asyncio.to_thread(path.chmod, 0o755)
    before = await asyncio.to_thread(state)

    assert why in await refusal(path)
    assert await asyncio.to_thread(state) == before


async def test_a_missing_directory_is_reported(tmp_path: Path):
    assert "FileNotFoundError" in await refusal(tmp_path / "nowhere" / "journal.db")


# --- opening and closing ------------------------------------------------------------------------


async def test_a_scope_is_checked_even_while_the_journal_closes(path: Path):
    async with SQLiteJournal(path) as journal:
        await journal.move("live", "k", claim())
    journal = SQLiteJournal(path)
    caller = asyncio.create_task(journal.move("Live", "k", claim()))
    await asyncio.sleep(0)
    await journal.close()

    with pytest.raises(JournalFailed, match="looks the same"):
        await caller


def test_a_loop_that_shuts_down_does_not_hang_and_finishes_begun_writes(path: Path):
    journal = SQLiteJournal(path)

    async def work() -> None:
        await judged(journal, claim(), key="first")
        on_its_way, in_thread = asyncio.Event(), journal._in_thread

        def run_in_thread(work: Callable[[], Any]) -> Any:
            on_its_way.set()
            return in_thread(work)

        journal._in_thread = run_in_thread
        for number in range(50):
            asyncio.get_running_loop().create_task(judged(journal, claim(), key=f"k-{number}"))
        await on_its_way.wait()

    asyncio.run(work())
    journal._close_file()
    with closing(sqlite3.connect(path)) as db:
        (keys,) = db.execute("SELECT count(*) FROM keys_2").fetchone()
        (steps,) = db.execute("SELECT count(DISTINCT key_id) FROM history").fetchone()

    assert keys == steps == 51


async def test_a_cancelled_caller_waits_for_work_that_has_begun(path: Path):
    may_end = threading.Event()
    async with SQLiteJournal(path) as journal:
        begun = asyncio.create_task(journal._in_thread(lambda: may_end.wait(60)))
        await turns(2)
        begun.cancel()
        await turns(5)
        waits = not begun.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await begun

    assert waits


# --- shared commits -----------------------------------------------------------------------------


async def test_a_corrupt_record_rejects_only_its_own_key_in_a_commit(path: Path):
    async with SQLiteJournal(path) as journal:
        await asyncio.gather(*(made(journal, claim(), key=f"k-{number}") for number in range(5)))
        await in_file(path, "UPDATE keys_2 SET body = '{', token = 'by hand' WHERE key = 'k-2'")
        found = await asyncio.gather(*(judged(journal, mark(), key=f"k-{number}") for number in range(5)))

    assert [one.denial for one in found] == [None, None, Rejection.UNREAD, None, None]


async def test_a_row_that_the_file_refuses_fails_only_its_own_key(path: Path):
    async with SQLiteJournal(path) as journal:
        await in_file(
            path,
            "CREATE TRIGGER refuse BEFORE INSERT ON keys_2 WHEN NEW.key = 'k-1' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        keys = [f"k-{number}" for number in range(3)]
        found = await asyncio.gather(
            *(made(journal, claim(), key=key) for key in keys), return_exceptions=True
        )

    assert [isinstance(one, JournalFailed) for one in found] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ("UPDATE ON keys_2 WHEN NEW.key = 'k-1'", {"k-1": mark(), "k-2": mark()}),
        ("INSERT ON keys_2 WHEN NEW.key = 'k-3'", {"k-3": claim(), "k-4": claim()}),
        ("INSERT ON history WHEN NEW.key_id = 1", {"k-1": mark(), "k-2": mark()}),
    ],
    ids=["change", "new key", "history"],
)
async def test_a_change_that_the_file_ignores_is_not_reported_as_stored(
    path: Path, change: str, moves: dict[str, Any]
):
    """Without this, an order is sent although its key is still claimed, and the key is paid again later."""
    async with SQLiteJournal(path) as journal:
        for key in ("k-1", "k-2"):
            await made(journal, claim(), key=key)
        await in_file(path, f"CREATE TRIGGER ignore BEFORE {change} BEGIN SELECT RAISE(IGNORE); END")
        found = await asyncio.gather(
            *(made(journal, move, key=key) for key, move in moves.items()), return_exceptions=True
        )

    assert str(found[0]) == "a trigger in the journal's file ignored a change: remove the trigger"
    assert not isinstance(found[1], Exception)


# --- several of them on one file ----------------------------------------------------------------


def in_processes(work: str, *arguments: str) -> list[Any]:
    """Return the reports of four processes that do the work at the same time."""
    command = [sys.executable, "-m", "tests.journal.sqlite_workers", work, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=100)
    reports: list[Any] = json.loads(done.stdout)
    return reports


def test_many_processes_claim_each_key_only_once(path: Path):
    keys = [f"k-{number}" for number in range(200)]
    granted = in_processes("claim_all", str(path), *keys)

    assert not [one for one in granted if isinstance(one, str)]
    assert sorted(key for one in granted for key in one) == sorted(keys)


@ONLY_IN_TRIALS
def test_processes_that_open_a_new_file_wait_for_each_other(tmp_path: Path):
    paths = [str(tmp_path / f"{number}.db") for number in range(30)]

    assert in_processes("open_all", *paths) == [[], [], [], []]


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_moved_or_replaced_is_not_used(path: Path, replaced: bool):
    beside = path.with_name("other.db")
    async with SQLiteJournal(beside) as other:
        await made(other, claim(), key="k9")
    async with SQLiteJournal(path) as journal:
        await made(journal, claim())
        await asyncio.to_thread(path.rename, path.with_name("elsewhere.db"))
        if replaced:
            await asyncio.to_thread(beside.rename, path)
        for _ in range(2):
            with pytest.raises(JournalFailed, match=r"moved|FileNotFoundError|another file"):
                await judged(journal, claim(), key="k2")

        assert await asyncio.to_thread(path.exists) is replaced


def test_changing_the_directory_does_not_change_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    journal = SQLiteJournal("journal.db")
    monkeypatch.chdir("/")

    async def use() -> None:
        async with journal:
            await made(journal, claim())

    asyncio.run(use())
    assert (tmp_path / "journal.db").exists()


async def test_pruning_a_key_deletes_its_history_and_its_response_and_empties_the_log(path: Path):
    time = Time()
    async with SQLiteJournal(path, clock=time.clock) as journal:
        await made(journal, claim(), mark(), create())
        before = await rows_of(journal, "history", "replies")
        time.pass_(2 * KEPT)
        await journal.prune(SCOPE, before=time.utc())
        log = await asyncio.to_thread(path.with_name("journal.db-wal").read_bytes)

        assert (before, await rows_of(journal, "history", "replies")) == ([3, 1], [0, 0])
        assert log == b""


async def rows_of(journal: SQLiteJournal, *tables: str) -> list[int]:
    return [await value_of(journal, f"SELECT count(*) FROM {table}") for table in tables]


async def value_of(journal: SQLiteJournal, sql: str) -> Any:
    return await journal._ask(lambda file: file._value(sql))


async def test_a_commit_waits_for_the_disk(path: Path):
    full = 2
    async with SQLiteJournal(path) as journal:
        assert await value_of(journal, "PRAGMA synchronous") == full


async def test_only_a_new_file_has_large_pages(path: Path):
    async with SQLiteJournal(path) as journal:
        assert await value_of(journal, "PRAGMA page_size") == 8192
    await in_file(path, "PRAGMA journal_mode=DELETE", "PRAGMA page_size=4096", "VACUUM")

    async with SQLiteJournal(path) as journal:
        assert await value_of(journal, "PRAGMA page_size") == 4096


async def test_a_transition_without_its_history_line_is_not_committed(path: Path):
    async with SQLiteJournal(path) as journal:
        await in_file(
            path, "CREATE TRIGGER refuse BEFORE INSERT ON history BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(JournalFailed):
            await judged(journal, claim())

        assert await journal.read(SCOPE, "k") is None


async def test_the_same_order_id_may_stand_in_two_scopes(path: Path):
    async with SQLiteJournal(path) as journal:
        for scope in ("one", "two"):
            await journal.move(scope, "other", claim())
        for scope in ("two", "one"):
            for move in (claim(), mark()):
                await journal.move(scope, f"of {scope}", move)
            assert (await journal.move(scope, f"of {scope}", create())).denial is None
