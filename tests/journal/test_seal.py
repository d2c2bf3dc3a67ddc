"""Encryption of personal data: what is stored, who can decrypt it, and records that cannot be decrypted."""

import asyncio
import base64
import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import attrs
import msgspec
import pytest
from msgspec.structs import replace

from tests.support import commands
from tests.support.bank import World, new_order
from tests.support.cases import each
from tests.support.journalling import SCOPE, claim, doubt, intent, judged, made, mark, undos
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


@each("change", [lambda text: text[:-4], lambda text: text[:-8] + "AAAA" + text[-4:], lambda _: f"{MARK}a:?"])
def test_a_changed_text_cannot_be_decrypted(change: Any):
    with pytest.raises(DoesNotOpen):
        seal(a=OLD).opened(change(seal(a=OLD).sealed(b"some data", owner="o")), owner="o")


@each(
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


@each("given", ["a key", KeySeal, Mock(spec=["sealed"]), Mock(spec=["opened"])])
def test_an_object_that_is_not_a_seal_is_refused(given: Any):
    with pytest.raises(ValueError, match="seal: "):
        SQLiteJournal("journal.db", seal=given)


# --- rows -----------------------------------------------------------------------------------------


WISH = attrs.evolve(intent(), beneficiary=PersonName("Ngozi", "Okonkwo"))
PLACE = ("live", "k")
IN_DOUBT = Entry(
    state=KeyState.IN_DOUBT,
    fingerprint="f",
    intent_id=WISH.id,
    intent=WISH,
    client_made=False,
    claimed_at=0.0,
    reply=b'{"firstname": "Ngozi"}',
)
OWING = replace(IN_DOUBT, pending_undos=tuple(attrs.evolve(one, intent=WISH) for one in undos("hold")))


def row_of(entry: Entry, seal: KeySeal | None, place: tuple[str, str] | None = None) -> Any:
    return rows.row_of(entry, token="t", now=0.0, seal=seal, place=place)


def test_an_encrypted_row_shows_no_personal_data():
    written = f"{msgspec.structs.astuple(row_of(OWING, seal(a=OLD)))}".encode()

    assert [name for name in PERSONS if name in written] == []


@pytest.mark.parametrize("other", [None, seal(b=OLD), seal(a=NEW)])
def test_a_record_that_cannot_be_decrypted_is_bound_and_keeps_the_rest(other: KeySeal | None):
    entry = rows.entry_of(row_of(OWING, seal(a=OLD)), other)
    verdict = decide(entry, Quarantine(by="ada", reason="unreadable"), now=1e9)

    assert entry.unread is not None
    assert (entry.unread.is_sealed, entry.reply, entry.state) == (True, None, KeyState.IN_DOUBT)
    assert verdict is not None
    assert (verdict.denial, verdict.entry) == (Rejection.UNREAD, entry)


def test_data_encrypted_by_earlier_versions_can_be_decrypted():
    one = seal(a=OLD)
    created = replace(IN_DOUBT, state=KeyState.CREATED, order_id="tx-1", intent=None, reply=b'{"id": "tx-1"}')

    for entry in (OWING, created):
        assert rows.entry_of(row_of(entry, one), one, place=PLACE) == entry


# --- a record beside another key ------------------------------------------------------------------


@each("at", [("test", "k"), ("live", "l"), ("live-k", ""), None])
def test_data_encrypted_for_one_key_cannot_be_decrypted_under_another(at: tuple[str, str] | None):
    """The encryption is bound to the scope and the key, so changing other columns does not help."""
    one, row = seal(a=OLD), row_of(IN_DOUBT, seal(a=OLD), PLACE)
    key = "k" if at is None else at[1]
    moved = replace(row, intent=row.intent.replace('"key":"k"', f'"key":"{key}"'), reply=None)

    assert rows.entry_of(row, one, place=PLACE) == IN_DOUBT
    for other in (moved, replace(row, intent=None)):
        assert rows.entry_of(other, one, place=at).unread is not None


def test_data_encrypted_for_one_intent_cannot_be_decrypted_in_another():
    """Without this, a record could show the data of another call with its key."""
    one, row = seal(a=OLD), row_of(IN_DOUBT, seal(a=OLD), PLACE)
    changed = {name: getattr(row, name).replace("intent-1", "intent-2") for name in ("intent", "body")}

    assert rows.entry_of(replace(row, **changed, reply=None), one, place=PLACE).unread is not None


THEIRS = attrs.evolve(WISH, id="intent-2", key="theirs")
SEALS = {"plain": None, "sealed": seal(a=OLD)}


def beside(one: KeySeal | None, column: str) -> Any:
    """Return the row of a key whose ``column`` was copied from another key's row."""
    undo = attrs.evolve(undos("hold")[0], intent=THEIRS)
    theirs = replace(IN_DOUBT, intent_id=THEIRS.id, intent=THEIRS, pending_undos=(undo,))
    copied = {name: getattr(row_of(theirs, one, ("live", "theirs")), name) for name in column.split()}
    return replace(row_of(IN_DOUBT, one, PLACE), **copied)


@pytest.mark.parametrize("one", SEALS.values(), ids=SEALS)
def test_an_intent_and_its_undos_that_were_copied_to_another_key_count_as_corrupt(one: KeySeal | None):
    """Without this, a refutation releases the hold of the other key's order, which may exist."""
    for column in ("intent", "body", "intent body"):
        entry = rows.entry_of(beside(one, column), one, place=PLACE)

        assert entry.unread is not None
        assert (entry.unread.is_sealed, entry.intent, entry.pending_undos) == (False, None, ()), column
        assert entry.unread.earlier_hooks == (("hold",) if "body" in column else ())


@pytest.mark.parametrize("one", SEALS.values(), ids=SEALS)
def test_a_body_that_was_copied_from_another_intent_counts_as_corrupt(one: KeySeal | None):
    """The body contains the intent's id; no undo in it names another key."""
    theirs = replace(IN_DOUBT, intent_id=THEIRS.id, intent=THEIRS)
    body = row_of(theirs, one, ("live", "theirs")).body
    entry = rows.entry_of(replace(row_of(IN_DOUBT, one, PLACE), body=body), one, place=PLACE)

    assert entry.unread is not None
    assert entry.intent is None


@pytest.mark.parametrize("one", SEALS.values(), ids=SEALS)
def test_a_reply_that_was_copied_from_another_key_is_not_returned(one: KeySeal | None):
    """Without this, the caller gets another customer's order."""
    ours, theirs = (
        replace(IN_DOUBT, state=KeyState.CREATED, order_id=id_, reply=b'{"id": "%s"}' % id_.encode())
        for id_ in ("tx-1", "tx-2")
    )
    reply = row_of(theirs, one, ("live", "theirs")).reply
    entry = rows.entry_of(replace(row_of(ours, one, PLACE), reply=reply), one, place=PLACE)

    assert entry.unread is not None
    assert (entry.state, entry.order_id, entry.reply) == (KeyState.CREATED, "tx-1", None)


async def test_a_copied_record_releases_no_hold(world: World, path: Path):
    async with SQLiteJournal(path) as journal:
        world.journal.journal = journal
        for key in ("theirs", "ours"):
            await world.in_doubt(key)
        theirs = "(SELECT {} FROM keys_2 WHERE key = 'theirs')".format
        sql = f"UPDATE keys_2 SET intent = {theirs('intent')}, body = {theirs('body')} WHERE key = 'ours'"
        await journal._ask(lambda file: file._db.execute(sql).rowcount)
    async with SQLiteJournal(path) as journal:
        world.journal.journal = journal
        operators = Operators(journal, world.scope, settle_after=0.0)
        with pytest.raises(ValueError, match=r"^(undone|key): "):
            await operators.refute("ours", by="ada", reason="seen")
        await operators.refute("ours", by="ada", reason="seen", undone=True)
        await world.recover()

    assert len(world.bank.placed) == 2
    assert world.bank.released == []


# --- journals -------------------------------------------------------------------------------------


async def test_a_key_that_cannot_be_decrypted_stays_bound_and_affects_no_other(path: Path):
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        await made(journal, claim(), mark(), doubt())
    async with SQLiteJournal(path, seal=seal(a=NEW)) as journal:
        verdict = await judged(journal, claim(number=2))
        other = await made(journal, claim(number=3), key="other")
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        entry = await journal.read(SCOPE, "k")

    assert (verdict.denial, other.state) == (Rejection.UNREAD, KeyState.CLAIMED)
    assert entry is not None
    assert (entry.state, entry.is_readable) == (KeyState.IN_DOUBT, True)


FAILED = {
    "the seal could not decrypt (ConnectionError)": {"side_effect": ConnectionError("ada.eze")},
    "the seal did not return the decrypted data as bytes": {"return_value": "ada.eze"},
}


@pytest.mark.parametrize(("why", "end"), FAILED.items())
async def test_a_record_that_the_seal_fails_to_decrypt_is_listed_as_encrypted(
    path: Path, monkeypatch: pytest.MonkeyPatch, why: str, end: dict[str, Any]
):
    """Without this, people quarantine intact records while the key management system is down."""
    away = seal(a=OLD)
    async with SQLiteJournal(path, seal=away) as journal:
        await made(journal, claim(), mark(), doubt())
        monkeypatch.setattr(away, "opened", Mock(**end))
        ((_, entry),) = await journal.in_doubt(SCOPE)

    assert entry.unread is not None
    assert (entry.unread.why, entry.unread.is_sealed) == (why, True)


@pytest.mark.parametrize("end", [b"sealed:1:", "ada.eze", None])
async def test_nothing_is_stored_if_the_seal_does_not_encrypt(
    path: Path, monkeypatch: pytest.MonkeyPatch, end: object
):
    own = seal(a=OLD)
    monkeypatch.setattr(own, "sealed", Mock(return_value=end))
    async with SQLiteJournal(path, seal=own) as journal:
        with pytest.raises(JournalFailed, match="the seal did not return a string that starts with"):
            await judged(journal, claim())

        assert await journal.read(SCOPE, "k") is None


async def test_client_and_operator_errors_name_the_missing_key(world: World, path: Path):
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        await world.in_doubt(journal=journal)
    async with SQLiteJournal(path) as journal, world.client(journal=journal) as client:
        await world.fails(
            JournalFailed, journal=journal, match="cannot be decrypted: configure its encryption key"
        )
        for decide_or_look in (
            partial(client.resolve, order_id="tx-1"),
            client.refute,
            client.operators.look,
        ):
            with pytest.raises(ValueError, match="its record is encrypted: configure the encryption key"):
                await decide_or_look("k", by="ada", reason="seen")


def everything_in(directory: Path) -> bytes:
    return b"".join(one.read_bytes() for one in sorted(directory.iterdir()))


@pytest.mark.trial(short=10, ci=200, long=1_000)
async def test_no_name_is_in_the_encrypted_file_or_its_log(world: World, path: Path, size: int):
    name = PersonName("Ngozi", "Okonkwo")
    async with SQLiteJournal(path, seal=seal(a=OLD)) as journal:
        world.journal.journal = journal
        async with world.client() as client:
            for number in range(size):
                await client.create_order(new_order(), key=f"k-{number}", beneficiary=name)
        await world.in_doubt("lost", beneficiary=name)
        await world.owing("owing")

        stored = await asyncio.to_thread(everything_in, path.parent)

    assert len(stored) > size * 1_000
    assert [one for one in PERSONS if one in stored] == []
