"""Encryption of personal data: what is stored, who can decrypt it, and records that cannot be decrypted."""

import asyncio
import base64
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from msgspec.structs import replace

from tests.support import commands
from tests.support.bank import World, new_order
from tests.support.cases import each
from tests.support.journalling import SCOPE, claim, doubt, intent, made, mark, undos
from transfer_async import JournalFailed, Operators, PersonName, SQLiteJournal, TransferClient
from transfer_async.journal import (
    DoesNotOpen,
    Entry,
    KeySeal,
    KeyState,
    Quarantine,
    Rejection,
    decide,
    rows,
    seal_from_env,
)
from transfer_async.journal.encryption import MARK

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PERSONS = (b"ada.eze", b"ben.okri", b"Okonkwo", b"Ngozi", b"22212345678")


def seal(**keys: bytes) -> KeySeal:
    """Return a `KeySeal` whose last key is the current one."""
    return KeySeal(keys, current=list(keys)[-1])


# --- the seal itself ----------------------------------------------------------------------------


def test_encrypted_data_needs_its_owner_and_its_key():
    sealed = seal(a=OLD).sealed(b"data", owner="intent-1")

    assert sealed.startswith(f"{MARK}a:")
    assert sealed != seal(a=OLD).sealed(b"data", owner="intent-1")
    assert seal(a=OLD, b=NEW).opened(sealed, owner="intent-1") == b"data"
    for other, owner in ((seal(a=NEW), "intent-1"), (seal(a=OLD), "intent-2")):
        with pytest.raises(DoesNotOpen, match="the record cannot be decrypted with the key 'a'"):
            other.opened(sealed, owner=owner)
    with pytest.raises(DoesNotOpen, match="encrypted with the key 'a', which is not among the given keys"):
        seal(b=OLD).opened(sealed, owner="intent-1")


@pytest.mark.parametrize(
    "change", [lambda text: text[:-4], lambda text: text[:-8] + "AAAA" + text[-4:], lambda _: f"{MARK}a:?"]
)
def test_a_changed_text_cannot_be_decrypted(change: Any):
    with pytest.raises(DoesNotOpen):
        seal(a=OLD).opened(change(seal(a=OLD).sealed(b"some data", owner="o")), owner="o")


@pytest.mark.parametrize(
    ("keys", "current", "why"),
    [
        ({"a": OLD}, "b", "current: must be the id"),
        ({"a": OLD[:31]}, "a", "the key 'a' must be 32 bytes"),
        ({"a": OLD.hex()}, "a", "the key 'a' must be 32 bytes"),
        ({"a:b": OLD}, "a:b", "an id must consist of 1 to 32 letters"),
    ],
)
def test_invalid_encryption_keys_are_named_but_not_shown(keys: dict[str, Any], current: str, why: str):
    with pytest.raises(ValueError, match=why) as caught:
        KeySeal(keys, current=current)

    assert OLD[:4].hex() not in str(caught.value)


@each("text", ["{", "[]", '{"current": "a"}', '{"current": "a", "keys": {"a": "?"}}'])
def test_an_invalid_key_file_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "keys.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match="the key file must be"):
        KeySeal.from_file(path)
    with pytest.raises(ValueError, match="the key file cannot be read"):
        KeySeal.from_file(tmp_path / "gone")


def test_from_env_uses_the_seal_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "keys.json"
    keys = {"current": "a", "keys": {"a": base64.b64encode(OLD).decode()}}
    path.write_text(json.dumps(keys), encoding="utf-8")
    monkeypatch.setenv("TRANSFER_SEAL", str(path))
    found = seal_from_env()
    assert found is not None
    assert seal(a=OLD).opened(found.sealed(b"data", owner="o"), owner="o") == b"data"

    path.write_text("{", encoding="utf-8")
    monkeypatch.setenv("TRANSFER_JOURNAL", str(tmp_path / "journal.db"))
    monkeypatch.setenv("TRANSFER_BASE_URL", "https://orders.example")
    monkeypatch.setenv("TRANSFER_API_TOKEN", "t")
    with pytest.raises(ValueError, match="TRANSFER_SEAL: the key file must be"):
        TransferClient.from_env(hooks=[])
    (tmp_path / "journal.db").touch()
    ended = commands.invoke("journal", "list")
    assert (ended.exit_code, "TRANSFER_SEAL: the key file must be" in ended.output) == (2, True)


@pytest.mark.parametrize("given", ["a key", KeySeal])
def test_an_object_that_is_not_a_seal_is_refused(tmp_path: Path, given: Any):
    with pytest.raises(ValueError, match="seal: "):
        SQLiteJournal(tmp_path / "journal.db", seal=given)


# --- rows -----------------------------------------------------------------------------------------


def _persons() -> Entry:
    wish = attrs.evolve(intent(), beneficiary=PersonName("Ngozi", "Okonkwo"))
    return Entry(
        state=KeyState.IN_DOUBT,
        fingerprint="f",
        intent_id=wish.id,
        intent=wish,
        client_made=False,
        claimed_at=0.0,
        reply=b'{"firstname": "Ngozi"}',
        pending_undos=tuple(attrs.evolve(one, intent=wish) for one in undos("hold")),
    )


def test_an_encrypted_row_shows_no_personal_data():
    row = rows.row_of(_persons(), token="t", now=0.0, seal=seal(a=OLD))

    written = f"{msgspec.structs.astuple(row)}".encode()
    assert [name for name in PERSONS if name in written] == []


@pytest.mark.parametrize("other", [None, seal(b=OLD), seal(a=NEW)])
def test_a_record_that_cannot_be_decrypted_is_bound_and_keeps_the_rest(other: KeySeal | None):
    row = rows.row_of(_persons(), token="t", now=0.0, seal=seal(a=OLD))

    entry = rows.entry_of(row, other)

    assert entry.unread is not None
    assert (entry.unread.is_sealed, entry.reply, entry.state) == (True, None, KeyState.IN_DOUBT)
    verdict = decide(entry, Quarantine(by="ada", reason="unreadable"), now=1e9)
    assert verdict is not None
    assert (verdict.denial, verdict.entry) == (Rejection.UNREAD, entry)


# --- a record beside another key ------------------------------------------------------------------

SEALS = [None, seal(a=OLD)]


async def rewritten(path: Path, *statements: str) -> None:
    """Change the file as anyone with write access could."""

    def write() -> None:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            for statement in statements:
                assert db.execute(statement).rowcount

    await asyncio.to_thread(write)


@pytest.mark.parametrize("one", SEALS, ids=["plain", "sealed"])
@pytest.mark.parametrize("column", ["intent", "body", "intent and body"])
async def test_an_intent_copied_to_another_key_releases_no_hold(
    world: World, tmp_path: Path, one: KeySeal | None, column: str
):
    """Without this, a refutation releases the hold of the other key's order, which may exist."""
    path = tmp_path / "journal.db"
    async with SQLiteJournal(path, seal=one) as journal:
        world.journal.journal = journal
        for key in ("theirs", "ours"):
            await world.in_doubt(key)
    copied = ", ".join(
        f"{name} = (SELECT {name} FROM keys_2 WHERE key = 'theirs')" for name in column.split(" and ")
    )
    await rewritten(path, f"UPDATE keys_2 SET {copied} WHERE key = 'ours'")
    placed = len(world.bank.placed)
    async with SQLiteJournal(path, seal=one) as journal:
        world.journal.journal = journal
        entry = await world.entry("ours")
        theirs = await world.entry("theirs")
        operators = Operators(journal, world.scope, settle_after=0.0)
        with pytest.raises(ValueError, match=r"^(undone|key): "):
            await operators.refute("ours", by="ada", reason="seen")
        await operators.refute("ours", by="ada", reason="seen", undone=True)
        await world.recover()

    assert entry.unread is not None
    assert not entry.unread.is_sealed
    assert entry.intent is None
    assert theirs.is_readable
    assert placed == 2
    assert world.bank.released == []


@pytest.mark.parametrize("one", SEALS, ids=["plain", "sealed"])
async def test_an_undo_copied_to_another_key_does_not_run(world: World, tmp_path: Path, one: KeySeal | None):
    """Without this, the undo releases the hold of an order that may exist."""
    path = tmp_path / "journal.db"
    async with SQLiteJournal(path, seal=one) as journal:
        world.journal.journal = journal
        await world.owing("theirs")
        await world.owing("ours")
    await rewritten(
        path,
        "UPDATE keys_2 SET body = json_set(body, '$.owed', "
        "json((SELECT json_extract(body, '$.owed') FROM keys_2 WHERE key = 'theirs'))) WHERE key = 'ours'",
        "DELETE FROM history WHERE key_id = (SELECT id FROM keys_2 WHERE key = 'theirs')",
        "DELETE FROM keys_2 WHERE key = 'theirs'",
    )
    world.bank.release_error = None
    async with SQLiteJournal(path, seal=one) as journal:
        world.journal.journal = journal
        entry = await world.entry("ours")
        await world.recover()

    assert entry.pending_undos == ()
    assert entry.unread is not None
    assert entry.unread.earlier_hooks == ("funds_hold",)
    assert world.bank.released == []


@pytest.mark.parametrize("one", SEALS, ids=["plain", "sealed"])
async def test_a_reply_copied_from_another_key_is_not_returned(
    world: World, tmp_path: Path, one: KeySeal | None
):
    """Without this, the caller gets another customer's order."""
    path = tmp_path / "journal.db"
    async with SQLiteJournal(path, seal=one) as journal:
        world.journal.journal = journal
        await world.create(key="theirs")
        await world.create(key="ours")
    number = "(SELECT id FROM keys_2 WHERE key = '{}')".format
    reply = f"(SELECT reply FROM replies WHERE key_id = {number('theirs')})"
    await rewritten(path, f"UPDATE replies SET reply = {reply} WHERE key_id = {number('ours')}")
    async with SQLiteJournal(path, seal=one) as journal:
        world.journal.journal = journal
        error = await world.fails(JournalFailed, key="ours")
        entry = await world.entry("ours")

    assert error.order_may_exist
    assert (entry.state, entry.reply) == (KeyState.CREATED, None)


@pytest.mark.parametrize("at", [("test", "k"), ("live", "l"), ("live-k", ""), None])
def test_data_encrypted_for_one_key_cannot_be_decrypted_under_another(at: tuple[str, str] | None):
    """The encryption is bound to the scope and the key, so changing other columns does not help."""
    one, entry = seal(a=OLD), replace(_persons(), pending_undos=())
    row = rows.row_of(entry, token="t", now=0.0, seal=one, place=("live", "k"))
    assert row.intent is not None
    key = "k" if at is None else at[1]
    moved = msgspec.structs.replace(row, intent=row.intent.replace('"key":"k"', f'"key":"{key}"'), reply=None)
    alone = msgspec.structs.replace(row, intent=None)

    assert rows.entry_of(row, one, place=("live", "k")) == entry
    for other in (moved, alone):
        assert rows.entry_of(other, one, place=at).unread is not None


def test_data_encrypted_for_one_intent_cannot_be_decrypted_in_another():
    """Without this, a record could show the data of another call with its key."""
    one, place = seal(a=OLD), ("live", "k")
    row = rows.row_of(replace(_persons(), pending_undos=()), token="t", now=0.0, seal=one, place=place)
    assert row.intent is not None
    other = row.intent.replace("intent-1", "intent-2")
    moved = msgspec.structs.replace(
        row, intent=other, body=row.body.replace("intent-1", "intent-2"), reply=None
    )

    assert rows.entry_of(moved, one, place=place).unread is not None


def test_data_encrypted_by_earlier_versions_can_be_decrypted():
    one = seal(a=OLD)
    row = rows.row_of(_persons(), token="t", now=0.0, seal=one)

    assert rows.entry_of(row, one, place=("live", "k")) == _persons()


# --- journals -------------------------------------------------------------------------------------


async def test_a_key_that_cannot_be_decrypted_raises_journal_failed_and_stays_bound(tmp_path: Path):
    path = tmp_path / "journal.db"
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        await made(journal, claim(), mark(), doubt())
    async with SQLiteJournal(path, seal=seal(a=NEW)) as journal:
        verdict = await journal.move(SCOPE, "k", claim(number=2))
        assert verdict is not None
        assert verdict.denial is Rejection.UNREAD
        other = await made(journal, claim(number=3), key="other")
        assert other.state is KeyState.CLAIMED  # other keys are not affected
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        entry = await journal.read(SCOPE, "k")
        assert entry is not None
        assert (entry.state, entry.is_readable) == (KeyState.IN_DOUBT, True)


async def test_client_and_operator_errors_name_the_missing_key(world: World, tmp_path: Path):
    path = tmp_path / "journal.db"
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        world.journal.journal = journal
        await world.in_doubt()
    async with SQLiteJournal(path) as journal:
        world.journal.journal = journal
        await world.fails(JournalFailed, match="cannot be decrypted: configure its encryption key")
        async with world.client() as client:
            with pytest.raises(ValueError, match="its record is encrypted: configure the encryption key"):
                await client.resolve("k", order_id="tx-1", by="ada", reason="seen")
            with pytest.raises(ValueError, match="its record is encrypted: configure the encryption key"):
                await client.refute("k", by="ada", reason="seen")


def everything_in(directory: Path) -> bytes:
    return b"".join(one.read_bytes() for one in sorted(directory.iterdir()))


@pytest.mark.trial(short=10, ci=200, long=1_000)
async def test_no_name_is_in_the_encrypted_file_or_its_log(world: World, tmp_path: Path, size: int):
    path = tmp_path / "journal.db"
    name = PersonName("Ngozi", "Okonkwo")
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        world.journal.journal = journal
        async with world.client() as client:
            for number in range(size):
                await client.create_order(new_order(), key=f"k-{number}", beneficiary=name)
        await world.in_doubt("lost", beneficiary=name)
        await world.owing("owing")

        stored = await asyncio.to_thread(everything_in, tmp_path)

    assert len(stored) > size * 1_000
    assert [one for one in PERSONS if one in stored] == []
