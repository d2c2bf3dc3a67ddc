"""Two versions of the package beside each other on one journal: what they share, and what is refused."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.journal.released.stores import Store, TableStore
from tests.journal.test_upgrading import Maker, maker, set_version, upgrade
from tests.support.journalling import (
    SCOPE,
    amend,
    claim,
    create,
    doubt,
    judged,
    mark,
    mark_undone,
    propose,
    release,
    renew,
    request_notification,
    resolve,
    suspect,
    undos,
    withdraw,
)
from transfer_async import JournalFailed, KeyState, PostgresJournal
from transfer_async._support.util import VERSION as RELEASE
from transfer_async.journal import Entry, Move, rows
from transfer_async.journal.rows import ENTRY_TABLE, VERSION

__all__ = ["maker"]  # a fixture

ENTRY = Entry(state=KeyState.CLAIMED, fingerprint="f", intent_id="i", intent=None, claimed_at=0.0)

# --- the program of the other version, in a process of its own -----------------------------------


async def claim_by_version_1(store: Store, key: str, journals: dict[str, Any]) -> Any:
    """Claim the key as a program of 0.1.0 does; it has the journal open all the time."""
    old = journals.setdefault("old", store.old_journal())
    return (await judged(old, claim(), key=key)).denial


async def claim_by_a_newer_version(store: Store, key: str, journals: dict[str, Any]) -> Any:
    """Claim the key, and store a member that this version does not know."""
    newer = journals.setdefault("newer", store.journal())
    write = rows._body

    def body(entry: Entry, *rest: Any) -> dict[str, Any]:
        return write(entry, *rest) | {"region": {"written_at": entry.version}}

    rows._body = body
    try:
        return (await judged(newer, claim(), key=key)).denial
    finally:
        rows._body = write


async def run(store: Store, do: Callable[..., Any]) -> None:
    """Do it for each key that standard input names, and say what came of it."""
    journals: dict[str, Any] = {}
    while key := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            said = await do(store, key, journals)
        except JournalFailed as error:
            said = str(error)
        print(said, flush=True)  # noqa: T201 - for the test
    for journal in journals.values():
        await journal.close()


class OtherProgram:
    """The process with the other version."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def claim(self, key: str) -> str:
        """Return "None" if it has the key, or why it has not."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{key}\n".encode())
        return (await self._process.stdout.readline()).decode().strip()


@asynccontextmanager
async def beside(store: Store, do: Callable[..., Any]) -> AsyncIterator[OtherProgram]:
    arguments = (pickle.dumps(store).hex(), do.__name__)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(50):
            yield OtherProgram(process)
            process.stdin.close()  # type: ignore[union-attr] # it is a pipe
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# --- formats 1 and 2: one of them at a time -------------------------------------------------------


async def test_format_1_is_refused_until_its_programs_are_stopped_and_then_they_are(maker: Maker) -> None:
    store = await asyncio.to_thread(maker, 1)
    async with beside(store, claim_by_version_1) as old:
        assert await old.claim("before") == "None"
        with pytest.raises(JournalFailed, match="stop every program that uses it, then run: transfer-async"):
            async with store.journal():
                pass
        assert await old.claim("meanwhile") == "None"  # The refusal has not disturbed it.
        await upgrade(store)
        async with store.journal() as new:
            assert (await judged(new, claim(), key="new")).denial is None
            refusals = [await old.claim(key) for key in ("after", "new", "before")]
            found = {key: await new.read(SCOPE, key) for key in ("before", "meanwhile", "new", "after")}

    assert {key for key, entry in found.items() if entry and entry.state is KeyState.CLAIMED} == {
        "before",
        "meanwhile",
        "new",
    }
    assert all("written by a newer version" in why and "stop this program" in why for why in refusals)


@pytest.mark.parametrize("ask", ["write", "read", "list"])
async def test_a_running_program_says_that_a_newer_version_has_upgraded_the_journal(
    maker: Maker, ask: str
) -> None:
    store = await asyncio.to_thread(maker, VERSION)
    rename = f"ALTER TABLE {ENTRY_TABLE} RENAME TO keys_{VERSION + 1}"
    async with store.journal() as journal:
        await journal.read(SCOPE, "k")
        await asyncio.to_thread(store.say, rename, set_version(store, VERSION + 1))
        questions = {
            "write": lambda: judged(journal, claim()),
            "read": lambda: journal.read(SCOPE, "k"),
            "list": lambda: journal.work(SCOPE, limit=10),
        }
        formats = rf"its format is {VERSION + 1}, this program's is {VERSION}"
        with pytest.raises(JournalFailed, match=f"newer version.*{formats}.*: stop this program"):
            await questions[ask]()


async def test_an_upgrade_names_the_programs_that_are_connected(database: str) -> None:
    store = await asyncio.to_thread(TableStore, database)
    other = PostgresJournal(database, schema="other")
    named = PostgresJournal(f"{database}?application_name=payroll", schema="other")
    async with other, named:
        await asyncio.gather(*(one.read(SCOPE, "k") for one in (other, named)))
        journal = store.journal()
        plan = await journal.planned_upgrade()
        await journal.close()

    assert any(user.startswith(f"1 x transfer_async {RELEASE} format {VERSION}") for user in plan.users)
    assert any(user.startswith("1 x payroll") for user in plan.users)


# --- one format: a newer version beside this one --------------------------------------------------

WAYS: dict[str, tuple[Move, ...]] = {
    "created": (renew(), mark(), create(order_id="tx-1")),
    "resolved": (mark(), doubt(), request_notification(), resolve(order_id="tx-2")),
    "corrected": (mark(), doubt(), resolve(order_id="tx-3"), amend(wrong="tx-3", order_id="tx-4")),
    "proposed": (mark(), doubt(), propose(order_id="tx-5"), withdraw()),
    "refused": (mark(), release(pending_undos=undos("hold"), lease=-1.0), mark_undone("hold")),
    "claimed again": (mark(), release(), claim(2), mark("b", number=2), doubt("b")),
    "suspected": (mark(), release(), suspect()),
}
"""The transitions of this version after the newer one has claimed the key."""


async def test_a_member_of_a_newer_version_outlives_the_transitions_of_this_one(maker: Maker) -> None:
    store = await asyncio.to_thread(maker, VERSION)
    async with store.journal() as journal, beside(store, claim_by_a_newer_version) as newer:

        async def go(key: str, moves: tuple[Move, ...]) -> None:
            assert await newer.claim(key) == "None"
            for move in moves:
                assert (await judged(journal, move, key=key)).denial is None, (key, move)

        for key, moves in WAYS.items():
            await go(key, moves)
        found = {key: await journal.read(SCOPE, key) for key in WAYS}
        assert [await newer.claim(key) for key in ("new", "refused")] == ["None", "None"]
        again = await journal.read(SCOPE, "refused")

    written = [entry.unknown_members if entry else None for entry in (*found.values(), again)]
    assert written[:-1] == [{"region": b'{"written_at":1}'}] * len(WAYS)  # so a reader sees that it is old
    assert again is not None
    assert written[-1] == {"region": b'{"written_at":%d}' % again.version}


def test_a_corrupt_record_keeps_the_members_of_a_newer_version() -> None:
    row = rows.row_of(replace(ENTRY, unknown_members={"region": b"1"}), token="t", now=0.0)
    entry = rows.entry_of(replace(row, body=row.body.replace('"epoch":1', '"epoch":"?"')))

    assert entry.unread is not None
    assert entry.unknown_members == {"region": b"1"}


if __name__ == "__main__":
    asyncio.run(run(pickle.loads(bytes.fromhex(sys.argv[1])), globals()[sys.argv[2]]))
