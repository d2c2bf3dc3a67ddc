"""Corrupt records keep their key bound, and operators can list them and end them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.pretty import pretty_repr

from tests.support import journalling as j
from tests.support.bank import World, new_order, refused_order
from tests.support.cases import each
from transfer_async import (
    AlreadyCreated,
    Decision,
    KeyState,
    Operators,
    OrderCommand,
    PersonName,
    PostgresJournal,
    Refused,
    SQLiteJournal,
    TransferClient,
)
from transfer_async._cli import journal_output
from transfer_async._models.errors import JournalFailed, Outcome
from transfer_async.worker.handler import Handler

SAID = {"by": "ada", "reason": "seen on the statement"}
NAME = PersonName("Ben", "Okri")


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Open the same journal again, as a new process does."""
    if request.param == "postgres":
        return partial(PostgresJournal, request.getfixturevalue("database"))
    return partial(SQLiteJournal, request.getfixturevalue("path"))


async def in_file(journal: SQLiteJournal, sql: str, *values: str) -> None:
    assert await journal._ask(lambda file: file._db.execute(sql, values).rowcount)


async def damage(journal: Any, column: str, old: str, new: str) -> None:
    """Create records that a damaged disk or an older version may leave."""
    if isinstance(journal, SQLiteJournal):
        await in_file(journal, f"UPDATE keys_2 SET {column} = replace({column}, ?, ?)", old, new)
    else:
        sql = (
            f"UPDATE transfer_async.keys_2 SET {column} = replace({column}::text, '{old}', '{new}')::json "
            f"WHERE {column} IS NOT NULL"
        )
        await journal._ask(lambda session: session.fetch(sql))


async def in_doubt(world: World, journal: Any, *keys: str) -> None:
    for key in keys:
        await world.in_doubt(key, journal=journal, beneficiary=NAME)


async def bound(client: TransferClient, key: str) -> None:
    with pytest.raises(JournalFailed, match="cannot be read") as failed:
        await client.create_order(new_order(), key=key, beneficiary=NAME)
    assert (failed.value.outcome, failed.value.order_may_exist) == (Outcome.NOT_SENT, True)


@pytest.mark.parametrize(
    "damaged",
    [("intent", '["Ben","Okri",null]', "[1,2,null]"), ("body", '"fingerprint"', '"was"')],
    ids=["the wish", "the rest"],
)
async def test_a_corrupt_record_is_shown_as_bound_and_only_operators_can_end_it(
    world: World, opened: Callable[[], Any], damaged: tuple[str, str, str]
):
    """Without this, nobody can see or end the doubt, and its hold is never released."""
    async with opened() as journal:
        await in_doubt(world, journal, "a", "b")
        await damage(journal, *damaged)
    async with opened() as journal, world.client(journal=journal, settle_after=0.0) as client:
        doubts = {doubt.key: doubt.readable for doubt in await client.in_doubt()}
        async with journal_output.opened(opened(), world.scope) as operators:
            listed = {view.key: view.entry.is_readable for view in await operators.waiting()}
            shown, steps = await operators.view("a"), await operators.history("a")
        known = await client.known("a")
        report = await client.recover()
        await bound(client, "a")
        with pytest.raises(ValueError, match=r"undone: must be set, because .* \(funds_hold\)"):
            await client.refute("a", **SAID)
        await bound(client, "a")
        freed = await client.refute("a", **SAID, undone=True)
        made = await client.resolve("b", order_id="tx-b", **SAID)
    async with opened() as journal, world.client(journal=journal) as client:
        reasons = [step.reason for step in await client.history("a") if step.move == "layaside"]
        with pytest.raises(AlreadyCreated) as again:
            await client.create_order(new_order(), key="b", beneficiary=NAME)
        await client.create_order(new_order(), key="a", beneficiary=NAME)
        (kept,) = (await journal.read(world.scope, "a")).quarantined

    assert doubts == listed == {"a": False, "b": False}
    assert known is not None
    assert (known.state, known.readable) == (KeyState.IN_DOUBT, False)
    assert known.receipts == shown.entry.all_receipts
    assert [step.move for step in steps] == ["claim", "mark", "doubt"]
    assert (report.in_doubt, report.unreadable, report.resolved, report.released) == (2, 2, 0, 0)
    assert (freed.state, made.state, again.value.order_id) == (KeyState.FREE, KeyState.CREATED, "tx-b")
    assert reasons == ["seen on the statement; the unreadable part is kept; undone manually: funds_hold"]
    assert damaged[2].replace('"', '\\"') in kept


async def test_no_repr_shows_a_corrupt_record(world: World, opened: Callable[[], Any]):
    """The record names both parties, and error trackers store every local variable."""
    async with opened() as journal:
        await in_doubt(world, journal, "k")
        await damage(journal, "intent", '["Ben","Okri",null]', "[1,2,null]")
    async with opened() as journal:
        operators = Operators(journal, world.scope, settle_after=0.0)
        entry = await journal.read(world.scope, "k")
        held = [entry, await operators.view("k"), *await operators.in_doubt()]
        await operators.refute("k", **SAID, undone=True)
        aside = await journal.read(world.scope, "k")
        held += [aside, await operators.view("k")]

    assert "ben.okri" in entry.unread.kept
    assert "ben.okri" in aside.quarantined[0]
    for one in held:
        assert [text for text in (repr(one), pretty_repr(one)) if "ben.okri" in text] == []


async def test_a_corrupt_undo_is_dropped_only_by_an_explicit_decision(
    world: World, opened: Callable[[], Any]
):
    """A proposal that comes too early must not put the record into quarantine, which would free the key."""
    world.bank.release_error = RuntimeError()
    async with opened() as journal:
        await world.fails(Refused, refused_order(), beneficiary=NAME, journal=journal)
        await damage(journal, "body", '["Ben","Okri",null]', "[1,2,null]")
    async with opened() as journal, world.client(journal=journal) as client:
        report = await client.recover()
        before = await client.history("k")
        with pytest.raises(ValueError, match="it is too early"):
            await client.operators.propose("k", Decision.REFUTE, **SAID, undone=True)
        after = await client.history("k")
        await bound(client, "k")
        with pytest.raises(ValueError, match=r"undone: must be set, because .* \(funds_hold\)"):
            await client.refute("k", **SAID)
        freed = await client.refute("k", **SAID, undone=True)
        assert await client.recover() == type(report)()

    assert (report.unreadable, report.undos_pending) == (1, 0)
    assert after == before
    assert (freed.state, freed.readable) == (KeyState.FREE, True)


async def test_a_corrupt_record_does_not_block_notifications_of_other_keys(world: World, path: Path):
    """Without this, one corrupt record stops every sweep at its key."""
    async with SQLiteJournal(path) as journal, world.client(journal=journal) as client:
        for key in ("a", "b"):
            await in_doubt(world, journal, key)
            command = OrderCommand(key=key, order=new_order(), beneficiary=NAME)
            await Handler(client).handle(command)
            await client.resolve(key, order_id=f"tx-{key}", **SAID)
        sql = "UPDATE keys_2 SET body = replace(body, '\"fingerprint\"', '\"was\"') WHERE key = 'a'"
        await in_file(journal, sql)
    async with SQLiteJournal(path) as new, world.client(journal=new) as client:
        assert [outcome.key async for outcome in Handler(client).untold()] == ["b"]


@pytest.mark.parametrize("column", ["body", "intent"])
async def test_invalid_text_hides_no_other_key_and_an_operator_can_end_it(
    world: World, path: Path, column: str
):
    """Without this, one damaged byte hides every doubt and every hold."""
    async with SQLiteJournal(path) as journal:
        await in_doubt(world, journal, "a", "b")
        invalid = f"CAST(x'ff' || {column} AS TEXT)"
        await in_file(journal, f"UPDATE keys_2 SET {column} = {invalid} WHERE key = 'a'")
    async with SQLiteJournal(path) as journal, world.client(journal=journal, settle_after=0.0) as client:
        doubts = {doubt.key: doubt.readable for doubt in await client.in_doubt()}
        report = await client.recover()
        await bound(client, "a")
        freed = await client.refute("a", **SAID, undone=True)
        after = await journal.read(world.scope, "a")

    assert doubts == {"a": False, "b": True}
    assert (report.unreadable, freed.state) == (1, KeyState.FREE)
    assert after is not None
    assert "\\udcff" in after.quarantined[0]


@each("text", ["body", "'{'"])
async def test_a_record_whose_text_became_a_blob_still_needs_attention(path: Path, text: str):
    """One flipped bit in a file can change a value's type to BLOB, which no SQL pattern matches."""
    async with SQLiteJournal(path) as journal:
        await journal.move(j.SCOPE, "k", j.claim(lease=-1.0))
        await in_file(journal, f"UPDATE keys_2 SET body = CAST({text} AS BLOB)")
        assert [key for key, _ in await journal.work(j.SCOPE, limit=10)] == ["k"]


@each("damage", ["state = 'odd'", "ending = '{'", "reason = CAST(x'ff' AS TEXT)"])
async def test_a_corrupt_history_line_hides_no_other(path: Path, damage: str):
    async with SQLiteJournal(path) as journal:
        await j.made(journal, j.claim(), j.mark(), j.doubt(), key=damage)
        await in_file(journal, f"UPDATE history SET {damage} WHERE move = 'mark'")
        steps = await journal.history(j.SCOPE, damage)

    assert [step.move for step in steps] == ["claim", "mark", "doubt"]


async def test_a_corrupt_record_of_a_live_worker_is_not_put_into_quarantine(path: Path):
    async with SQLiteJournal(path) as journal:
        await j.made(journal, j.claim())
        await damage(journal, "body", "lease_until", "lease")
    async with SQLiteJournal(path) as again:
        with pytest.raises(ValueError, match="a worker may be"):
            await Operators(again, j.SCOPE).refute("k", by="ada", reason="no", undone=True)
