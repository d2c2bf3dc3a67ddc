"""The journal's file, log and index: even if they are deleted or linked, one key gets at most one order."""

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.journal.other_process import other_process
from tests.support.bank import Time, new_order
from tests.support.journalling import SCOPE, claim, judged, made
from transfer_async import JournalFailed, Outcome, SQLiteJournal, TransferClient
from transfer_async.journal import sqlite_file
from transfer_async.sandbox import Sandbox


async def refusal(path: Path) -> str:
    """Return the error message of opening the journal."""
    with pytest.raises(JournalFailed) as failed:
        async with SQLiteJournal(path):
            pass
    return str(failed.value)


def client_of(sandbox: Sandbox, journal: SQLiteJournal) -> TransferClient:
    return TransferClient(sandbox.base_url, sandbox.token, journal=journal)


# --- what must hold -----------------------------------------------------------------------------


async def test_opening_it_again_drops_no_lock(path: Path):
    """Without this, a second user deletes the log on closing, and an order could be sent twice."""
    status = SQLiteJournal(path)
    async with (
        Sandbox() as sandbox,
        # A short timeout: only a lock that is never released would exceed it.
        SQLiteJournal(path, timeout=0.05) as journal,
        client_of(sandbox, journal) as client,
        other_process(str(path), sandbox.base_url, sandbox.token) as other,
    ):
        await other.does("lock")
        with pytest.raises(JournalFailed):
            await client.create_order(new_order(), key="locked out", held="H")
        await other.does("unlock")
        await client.create_order(new_order(), key="earlier", held="H")
        for _ in range(2):
            async with status:
                pass
        visited = await other.does("visit")
        order = await client.create_order(new_order(), key="k", held="H")
        redelivered = await other.does("order k")
        orders = len(sandbox.orders)

    assert visited == "been there"
    assert redelivered == order.id
    assert orders == 2


@pytest.mark.parametrize("end", ["wal", "shm"])
async def test_a_log_or_index_that_is_deleted_is_noticed_before_anything_is_sent(path: Path, end: str):
    """Without this, the next process sends an order again, or other processes overwrite its commits."""
    async with Sandbox() as sandbox, SQLiteJournal(path) as journal, client_of(sandbox, journal) as client:
        first = await client.create_order(new_order(), key="earlier", held="H")
        await asyncio.to_thread(path.with_name(f"{path.name}-{end}").unlink)
        with pytest.raises(JournalFailed, match="stop every process") as failed:
            await client.create_order(new_order(), key="k", held="H")
        again = await client.create_order(new_order(), key="earlier", held="H")
        async with SQLiteJournal(path) as journal_of_another:
            found = await journal_of_another.read(sandbox.base_url, "earlier")

        assert (failed.value.outcome, len(sandbox.requests)) == (Outcome.NOT_SENT, 1)
    assert again.id == first.id  # no commit was lost
    assert found is not None


async def test_a_log_that_is_deleted_during_the_commit_is_noticed(path: Path):
    """The check before the commit is too early to notice it."""

    class Cleaner(Time):
        strikes = False

        def utc(self) -> Any:
            if self.strikes:
                path.with_name(f"{path.name}-wal").unlink()
            return super().utc()

    time = Cleaner()
    async with SQLiteJournal(path, clock=time.clock) as journal:
        await made(journal, claim())
        time.strikes = True
        with pytest.raises(JournalFailed, match="-wal was moved"):
            await judged(journal, claim(), key="k2")
        time.strikes = False


async def test_a_journal_file_with_a_second_hard_link_is_refused(path: Path):
    """Without this, each name has its own log, as if there were two journals."""
    async with SQLiteJournal(path) as journal:
        await made(journal, claim())
    other = path.with_name("other.db")
    await asyncio.to_thread(os.link, path, other)

    assert "symbolic link" in await refusal(path)
    assert "symbolic link" in await refusal(other)


# --- what may be opened -------------------------------------------------------------------------


async def test_a_log_that_others_replaced_is_not_written_into_the_file(path: Path):
    log = path.with_name("journal.db-wal")
    journal = SQLiteJournal(path)
    await made(journal, claim())
    await asyncio.to_thread(log.unlink)
    await asyncio.to_thread(log.touch)
    for one in (journal, journal, SQLiteJournal(path)):
        with pytest.raises(JournalFailed, match="stop every process"):
            await judged(one, claim(), key="k2")
    await journal.close()

    assert await asyncio.to_thread(log.exists)


async def test_a_symbolic_link_is_followed_and_leads_to_the_same_journal(path: Path):
    other = path.parent / "elsewhere" / "link.db"
    async with SQLiteJournal(path) as journal:
        entry = await made(journal, claim())
        await asyncio.to_thread(other.parent.mkdir)
        await asyncio.to_thread(other.symlink_to, path)
        async with SQLiteJournal(other) as linked:
            assert await linked.read(SCOPE, "k") == entry
            beside = await asyncio.to_thread(os.listdir, other.parent)

    assert beside == ["link.db"]


async def test_a_file_whose_creator_died_can_be_opened(path: Path):
    async with SQLiteJournal(path) as journal:
        await made(journal, claim())
    await asyncio.to_thread(os.link, path, path.parent / ".journal.db.0123456789abcdef.new")
    async with SQLiteJournal(path) as journal:
        assert await journal.read(SCOPE, "k") is not None

    assert await asyncio.to_thread(os.listdir, path.parent) == ["journal.db"]


async def test_without_hard_links_an_empty_file_must_exist(path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    assert "empty file" in await refusal(path)
    assert await asyncio.to_thread(os.listdir, path.parent) == []


async def test_a_bind_mounted_journal_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    path, mounts = path.with_name("a journal.db"), path.with_name("mounts")
    async with SQLiteJournal(path):
        pass
    name = str(path).replace(" ", "\\040")
    line = f"742 611 254:1 /there/journal.db {name} rw,relatime - ext4 /dev/vda1 rw\n"
    await asyncio.to_thread(mounts.write_text, line)
    monkeypatch.setattr(sqlite_file, "MOUNTS", mounts)

    assert "mount its directory" in await refusal(path)


async def test_a_file_on_another_device_than_its_directory_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    look = Path.stat

    def stat_(one: Path) -> os.stat_result:
        found = look(one)
        return found if one == path else os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))

    monkeypatch.setattr(Path, "stat", stat_)

    assert "mount its directory" in await refusal(path)


# --- who may read it ----------------------------------------------------------------------------


async def test_all_files_of_a_restored_journal_are_made_private(path: Path):
    copy = path.parent / "restored" / "journal.db"

    def restore() -> None:
        copy.parent.mkdir()
        for one in path.parent.glob("journal.db*"):
            copy.with_name(one.name).write_bytes(one.read_bytes())
            copy.with_name(one.name).chmod(0o644)

    async with SQLiteJournal(path) as journal:
        entry = await made(journal, claim())
        await asyncio.to_thread(restore)
    async with SQLiteJournal(copy) as journal:
        assert await journal.read(SCOPE, "k") == entry
        modes = await asyncio.to_thread(
            lambda: {one.name: stat.S_IMODE(one.stat().st_mode) for one in copy.parent.iterdir()}
        )

    assert modes == {"journal.db": 0o600, "journal.db-wal": 0o600, "journal.db-shm": 0o600}


async def test_a_journal_that_was_moved_away_while_in_use_is_not_created_again(path: Path):
    """In a new file every key would be free, and every payment could be repeated."""
    away = path.with_name("away.db")
    async with SQLiteJournal(path) as journal:
        entry = await made(journal, claim())
        await asyncio.to_thread(os.rename, path, away)

        assert "journal.db is missing, but journal.db-wal exists" in await refusal(path)
        await asyncio.to_thread(os.rename, away, path)

        assert await journal.read(SCOPE, "k") == entry


@pytest.mark.parametrize("left", [["-wal", "-shm"], ["-shm"]])
async def test_a_journal_that_was_removed_on_purpose_is_created_again_if_the_advice_is_followed(
    path: Path, left: list[str]
):
    others = [path.with_name(f"{path.name}{end}") for end in left]
    for other in others:
        await asyncio.to_thread(other.touch)
    why = await refusal(path)
    exists = await asyncio.to_thread(path.exists)
    for other in others:
        await asyncio.to_thread(other.unlink)
    async with SQLiteJournal(path) as journal:
        assert await journal.read(SCOPE, "k") is None

    assert not exists
    assert f"journal.db is missing, but journal.db{left[0]} exists" in why
    assert "put that same file back, not a copy or a backup of it" in why
    assert why.endswith("removed it on purpose, also remove journal.db-wal and journal.db-shm")


async def test_nothing_is_written_into_a_file_that_was_moved_away(path: Path):
    away = path.parent / "away"

    def move_away():
        away.mkdir()
        for one in list(path.parent.glob("journal.db*")):
            one.rename(away / one.name)

    async with SQLiteJournal(path) as journal:
        await made(journal, claim(), key="before")
        await asyncio.to_thread(move_away)
        for _ in range(2):  # The second attempt opens the file again, but does not create it.
            with pytest.raises(JournalFailed):
                await judged(journal, claim(), key="after")

    assert not await asyncio.to_thread(path.exists)
    async with SQLiteJournal(away / path.name) as moved:
        assert await moved.read(SCOPE, "before") is not None
        assert await moved.read(SCOPE, "after") is None
