"""Two versions of the package that use one journal at once: what they share, and what is refused."""

import asyncio
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from tests.journal.released.stores import TableStore
from tests.journal.test_upgrading import Maker, maker, set_version
from tests.support import journalling as j
from tests.support.journalling import SCOPE, judged, made
from transfer_async import JournalFailed, KeyState, PostgresJournal
from transfer_async._support.util import VERSION as RELEASE
from transfer_async.journal import Entry, Journal, Move, rows
from transfer_async.journal.rows import ENTRY_TABLE, VERSION

__all__ = ["maker"]  # a fixture

ENTRY = Entry(state=KeyState.CLAIMED, fingerprint="f", intent_id="i", intent=None, claimed_at=0.0)


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
            "write": lambda: judged(journal, j.claim()),
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


WAYS: dict[str, tuple[Move, ...]] = {
    "created": (j.renew(), j.mark(), j.create(order_id="tx-1")),
    "resolved": (j.mark(), j.doubt(), j.request_notification(), j.resolve(order_id="tx-2")),
    "corrected": (j.mark(), j.doubt(), j.resolve(order_id="tx-3"), j.amend(wrong="tx-3", order_id="tx-4")),
    "proposed": (j.mark(), j.doubt(), j.propose(order_id="tx-5"), j.withdraw()),
    "refused": (j.mark(), j.release(pending_undos=j.undos("hold"), lease=-1.0), j.mark_undone("hold")),
    "claimed again": (j.mark(), j.release(), j.claim(2), j.mark("b", number=2), j.doubt("b")),
    "suspected": (j.mark(), j.release(), j.suspect()),
}
"""Transitions that this version makes after a newer version has claimed the key."""


async def claim_by_a_newer_version(journal: Journal, key: str) -> None:
    """Claim the key, and store a member that the current version does not know."""
    body = rows._body

    def newer_body(entry: Entry, *rest: Any) -> dict[str, Any]:
        return body(entry, *rest) | {"region": {"written_at": entry.version}}

    with mock.patch.object(rows, "_body", newer_body):
        await made(journal, j.claim(), key=key)


async def test_a_newer_versions_member_survives_transitions_by_this_version(maker: Maker) -> None:
    store = await asyncio.to_thread(maker, VERSION)
    async with store.journal() as journal, store.journal() as newer:
        for key, moves in WAYS.items():
            await claim_by_a_newer_version(newer, key)
            await made(journal, *moves, key=key)
        found = {key: await journal.read(SCOPE, key) for key in WAYS}
        await claim_by_a_newer_version(newer, "refused")
        again = await journal.read(SCOPE, "refused")

    written = [entry.unknown_members if entry else None for entry in (*found.values(), again)]
    # Shows a reader that the member is outdated.
    assert written[:-1] == [{"region": b'{"written_at":1}'}] * len(WAYS)
    assert again is not None
    assert written[-1] == {"region": b'{"written_at":%d}' % again.version}


def test_a_corrupt_record_keeps_the_members_of_a_newer_version() -> None:
    row = rows.row_of(replace(ENTRY, unknown_members={"region": b"1"}), token="t", now=0.0)
    entry = rows.entry_of(replace(row, body=row.body.replace('"epoch":1', '"epoch":"?"')))

    assert entry.unread is not None
    assert entry.unknown_members == {"region": b"1"}
