"""The stored format of entries and history lines: round trips and corrupt records."""

import json
from datetime import UTC
from decimal import Decimal
from itertools import product
from typing import Any
from unittest.mock import ANY

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.journal.test_transitions import SITUATIONS
from tests.support.bank import new_order
from tests.support.cases import each
from tests.support.journalling import intent
from tests.support.strategies import CHARACTERS
from transfer_async import Outcome, PersonName
from transfer_async._models.requests import OrderIntent
from transfer_async.journal import KeySeal, rows
from transfer_async.journal.model import Ending, Entry, HistoryEvent, KeyState, PendingUndo

TEXTS = st.text(CHARACTERS, max_size=12)  # all characters except surrogates
NAMES = st.text("abcdefgh-", min_size=1, max_size=8)
TIMES = st.floats(0.0, 4e9)
LETTERS = st.text("abcxyzéßñ", min_size=1, max_size=8)

orders = st.integers(1, 10**25).map(
    lambda units: new_order(matcher_amount=units, exchange_rate="1.5", poster_amount=Decimal(units) * 3 / 2)
)
people = st.builds(PersonName, LETTERS, LETTERS, st.none() | LETTERS)
intents = st.builds(
    OrderIntent,
    id=NAMES,
    key=NAMES,
    order=orders,
    beneficiary=st.none() | people,
    held=st.none() | TEXTS,
    send_before=st.none() | st.datetimes(timezones=st.just(UTC)),
)
endings = st.builds(
    Ending, outcome=st.sampled_from(Outcome), error=NAMES, status=st.none() | st.integers(400, 599)
)
receipts = st.dictionaries(NAMES, st.none() | TEXTS, max_size=3)
steps = st.builds(
    HistoryEvent,
    at=TIMES,
    move=NAMES,
    state=st.sampled_from(KeyState),
    intent_id=NAMES,
    epoch=st.integers(1, 10**6),
    attempt=st.none() | NAMES,
    order_id=st.none() | NAMES,
    ending=st.none() | endings,
    by=st.none() | TEXTS,
    reason=st.none() | TEXTS,
)


SEAL = KeySeal({"a": bytes(32)}, current="a")


@given(
    st.sampled_from([entry for entry in SITUATIONS.values() if entry and entry.is_readable]),
    intents,
    receipts,
)
def test_every_entry_survives_a_round_trip(entry: Entry, wish: OrderIntent, receipts: dict[str, str | None]):
    """The round trip also works with encryption, and for records written before encryption was turned on."""
    undos = entry.pending_undos
    entry = replace(
        entry,
        intent=entry.intent and attrs.evolve(wish, id=entry.intent_id, key="k"),
        held=wish.held,
        receipts=receipts,
        pending_undos=tuple(
            attrs.evolve(undo, intent=attrs.evolve(wish, id=undo.intent.id, key="k")) for undo in undos
        ),
    )
    places, seals = (("scope", "k"), None), ((None, None), (SEAL, SEAL), (None, SEAL))
    for place, (written, read) in product(places, seals):
        row = rows.row_of(entry, token="t", now=0.0, seal=written, place=place)
        for found in (place, ("scope", "k")):
            assert rows.entry_of(row, read, place=found) == entry


@given(steps)
def test_every_history_line_survives_a_round_trip(step: HistoryEvent):
    assert rows.step_of(rows.step_values(step)) == step


# --- corrupt records ----------------------------------------------------------------------------


@each(
    "changes",
    [
        {"body": "{"},
        {"body": "{}"},
        {"body": "[]"},
        {"state": "lost"},
        {"intent": "{}"},
        {"intent": "null"},
        {"body": None},
    ],
)
def test_a_corrupt_record_keeps_its_readable_part_and_its_full_text(changes: dict[str, Any]):
    row = msgspec.structs.replace(rows.row_of(_claimed(), token="t", now=0.0), **changes)
    entry = rows.entry_of(row)

    assert entry.unread is not None
    assert entry.state is (KeyState.IN_DOUBT if "state" in changes else KeyState.CLAIMED)
    assert (entry.intent_id, entry.fingerprint) == ("" if "body" in changes else "intent-1", ANY)
    assert json.loads(entry.unread.kept) == {
        name: getattr(row, name) for name in ("state", "order_id", "body", "intent")
    }


def test_a_state_that_does_not_fit_the_order_id_is_corrupt():
    """A created key that is read as free is paid again."""
    row = rows.row_of(_claimed(), token="t", now=0.0)
    for state, order_id in (("free", "tx-1"), ("claimed", "tx-1"), ("created", None)):
        entry = rows.entry_of(msgspec.structs.replace(row, state=state, order_id=order_id))

        assert entry.unread is not None, (state, order_id)


def test_a_corrupt_order_is_reported_as_unreadable():
    row = rows.row_of(_claimed(), token="t", now=0.0)
    assert row.intent is not None
    entry = rows.entry_of(msgspec.structs.replace(row, intent=row.intent.replace('"NGN"', '"?"')))

    assert entry == replace(_claimed(), intent=None, unread=entry.unread)
    assert entry.unread is not None
    assert entry.unread.why == "InvalidOrder"


def test_a_corrupt_undo_is_named_and_the_others_stay_pending():
    debts = tuple(PendingUndo(intent=intent(number), hook=f"hook-{number}", receipt="r") for number in (1, 2))
    row = rows.row_of(replace(_claimed(), pending_undos=debts), token="t", now=0.0)
    entry = rows.entry_of(msgspec.structs.replace(row, body=row.body.replace('"NGN"', '"?"', 1)))

    assert entry.unread is not None
    assert (entry.pending_undos, entry.unread.earlier_hooks) == (debts[1:], ("hook-1",))


def test_corrupt_undos_of_earlier_intents_are_named_apart_from_those_of_the_last():
    """Without this, nobody is asked to release an earlier hold if the last intent's order exists."""
    undos = tuple(PendingUndo(intent=intent(number), hook=f"hook-{number}", receipt="r") for number in (1, 2))
    free = replace(_claimed(), state=KeyState.FREE, intent=None, intent_id="intent-2", pending_undos=undos)
    row = rows.row_of(free, token="t", now=0.0)
    unread = rows.entry_of(msgspec.structs.replace(row, body=row.body.replace('"NGN"', '"?"'))).unread

    assert unread is not None
    assert (unread.hooks, unread.earlier_hooks) == (("hook-2",), ("hook-1",))


def test_a_corrupt_record_is_logged_and_hides_no_other(
    caplog: pytest.LogCaptureFixture,
):
    good = rows.row_of(_claimed(), token="t", now=0.0)
    bad = msgspec.structs.replace(good, body="{")
    found = rows.entries_of("s", [("bad", bad), ("k", good)])

    assert [(key, entry.unread is None) for key, entry in found] == [("bad", False), ("k", True)]
    assert [record.getMessage() for record in caplog.records] == [
        "the entry of key 'bad' cannot be read (DecodeError)"
    ]


def _claimed() -> Entry:
    return Entry(
        state=KeyState.CLAIMED, fingerprint="f", intent_id="intent-1", intent=intent(), claimed_at=0.0
    )


STORED = {
    2: {
        "Attempt": "number seconds outcome status error request_id began",
        "Cause": "kind status error candidate attempts",
        "CauseKind": "abandoned closed cut_answer no_answer second_answer status superseded taken_back"
        " unreadable_answer",
        "Decision": "amend refute resolve waive",
        "Ending": "outcome error status refused in_vain fields",
        "Outcome": "created not_sent refused unknown",
        "KeyState": "claimed created free in_doubt sending",
        "OutboxEntry": "intent_id outcome order_id error status since",
        "Proposal": "id decision by reason at order_id undone",
        "_Body": "fingerprint intent_id client_made epoch hooks claimed_at lease_until receipts held attempt"
        " sent_until ending owed promised untold candidates cause laid_aside moves proposal four_eyes"
        " watcher",
        "_Persons": "order beneficiary",
        "_StoredIntent": "id key order beneficiary held send_before",
        "Watcher": "by at version",
        "_StoredUndo": "intent hook receipt lease_until since",
    }
}
"""By format: the fields of each part of a record, and the values of each enumeration."""


def test_a_format_never_changes_what_it_stores():
    """Versions with the same format run side by side, and each drops the values that it does not know.

    Only a new member of `_Body` is kept: it may join this list if the comment on `rows.STEPS` allows it.
    """
    _, parts = msgspec.json.schema_components((rows._Body, rows._Persons, KeyState))
    stored = {name: " ".join(part.get("properties") or part["enum"]) for name, part in parts.items()}

    assert stored == STORED[rows.VERSION]
