"""How a durable journal writes an entry down: a few columns to find it by, and the rest as JSON.

The wish itself (`EntryRow.intent`) and the service's reply are columns of their own, for they are large,
seldom change, and hold what is personal. All times are seconds since 1970.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import typing
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from transfer_async._converters import converter
from transfer_async._models.doubt_cause import Cause
from transfer_async._models.errors import TransferError
from transfer_async._models.requests import NewOrder, OrderIntent, PersonName
from transfer_async._support.state import State
from transfer_async.journal import state_machine
from transfer_async.journal.entries import Ending, Entry, KeyState, Owed, Step, Unread, Untold
from transfer_async.journal.fingerprint import fingerprint
from transfer_async.journal.proposal import Proposal
from transfer_async.journal.seal import MARK, DoesNotOpen, Seal, opened, opened_reply, sealed_reply

log: logging.Logger = logging.getLogger("transfer_async")

VERSION = 2
"""Of the tables and of what is in them; another one is not read. How to raise it: see `upgrading`."""

ENTRY_TABLE = f"keys_{VERSION}"
"""The name says the version: a program of another that is running finds no table, and can write nothing."""


class EntryRow(State, eq=True):
    """An entry as it is stored.

    Args:
        state: see `KeyState`.
        token: of the last move: no two writes have the same.
        order_id: of the order, once it exists; unique within a scope.
        due_at: when the entry begins to wait for somebody, if it does.
        ended_at: since when nothing is left to do, if so.
        body: all the rest, as JSON.
        intent: the wish, as JSON, while it is needed.
        reply: the order as the service sent it.
    """

    state: str
    token: str
    order_id: str | None
    due_at: float | None
    ended_at: float | None
    body: str
    intent: str | None
    reply: bytes | None


class _StoredIntent(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    key: str
    order: msgspec.Raw
    beneficiary: tuple[str, str, str | None] | None
    held: str | None
    send_before: datetime | None


class _Persons(msgspec.Struct, frozen=True, kw_only=True):
    """What of an intent says who pays whom: sealed as one text, which then stands in the order's place."""

    order: msgspec.Raw
    beneficiary: tuple[str, str, str | None] | None


class _StoredOwed(msgspec.Struct, frozen=True, kw_only=True):
    intent: _StoredIntent
    hook: str
    receipt: str | None
    lease_until: float
    since: float | None = None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    fingerprint: str
    intent_id: str
    client_made: bool
    epoch: int
    hooks: tuple[str, ...]
    claimed_at: float
    lease_until: float
    receipts: dict[str, str | None]
    held: str | None
    attempt: str | None
    sent_until: float
    ending: Ending | None
    owed: tuple[_StoredOwed, ...]
    promised: bool = False
    untold: tuple[Untold, ...] = ()
    candidates: tuple[str, ...] = ()
    cause: Cause | None = None
    laid_aside: tuple[str, ...] = ()
    moves: int = 0
    proposal: Proposal | None = None
    four_eyes: bool | None = None


_encoder = msgspec.json.Encoder()
_read_body = msgspec.json.Decoder(_Body).decode
_read_intent = msgspec.json.Decoder(_StoredIntent).decode
_read_persons = msgspec.json.Decoder(_Persons).decode
_read_ending = msgspec.json.Decoder(Ending).decode


def row_of(
    entry: Entry, *, token: str, now: float, with_intent: bool = True, seal: Seal | None = None
) -> EntryRow:
    """``entry`` as it is stored at ``now`` by the move with that token; the wish only if it is new."""
    intent, reply = entry.intent if with_intent else None, entry.reply
    return EntryRow(
        state=entry.state.value,
        token=token,
        order_id=entry.order_id,
        due_at=state_machine.due_at(entry),
        ended_at=now if state_machine.is_ended(entry) else None,
        body=_encode(_body(entry, seal)),
        intent=None if intent is None else _encode(_intent(intent, seal)),
        reply=reply if seal is None or reply is None else sealed_reply(seal, reply, entry.order_id),
    )


def entry_of(row: EntryRow, seal: Seal | None = None) -> Entry:
    """The entry that ``row`` holds; what can be read of one that cannot be read whole has ``unread``."""
    try:
        body = _read_body(row.body)
        return Entry(
            state=KeyState(row.state),
            order_id=row.order_id,
            intent=None if row.intent is None else _intent_of(_read_intent(row.intent), seal),
            reply=opened_reply(seal, row.reply, row.order_id),
            owed=tuple([_owed_of(one, seal) for one in body.owed]),
            **{name: getattr(body, name) for name in _SAME},
        )
    except DoesNotOpen as error:
        return _what_can_be_read(row, str(error), seal, is_sealed=True)
    except _UNREADABLE as error:
        return _what_can_be_read(row, type(error).__name__, seal)


def entries_of(found: Iterable[tuple[str, EntryRow]], seal: Seal | None = None) -> list[tuple[str, Entry]]:
    """Keys with their entries; one that cannot be read is named in the log, and does not hide the others."""
    entries = [(key, entry_of(row, seal)) for key, row in found]
    for key, entry in entries:
        if entry.unread is not None:
            log.error("the entry of key %r cannot be read (%s)", key, entry.unread.why)
    return entries


_SEALED = b'"' + MARK.encode()
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, TransferError)
_SAME = tuple(name for name in _Body.__annotations__ if name != "owed")


def _body(entry: Entry, seal: Seal | None) -> dict[str, Any]:
    """The fields of `_Body`, for writing: three are written for each order."""
    body = {
        "fingerprint": entry.fingerprint,
        "intent_id": entry.intent_id,
        "client_made": entry.client_made,
        "epoch": entry.epoch,
        "hooks": entry.hooks,
        "claimed_at": entry.claimed_at,
        "lease_until": entry.lease_until,
        "receipts": entry.receipts,
        "held": entry.held,
        "attempt": entry.attempt,
        "sent_until": entry.sent_until,
        "ending": entry.ending,
        "owed": [_owed(one, seal) for one in entry.owed] if entry.owed else (),
        "moves": entry.moves,
    }
    if entry.promised or entry.untold:
        body |= {"promised": entry.promised, "untold": entry.untold}
    if entry.candidates:
        body["candidates"] = entry.candidates
    if entry.cause is not None:
        body["cause"] = entry.cause
    if entry.laid_aside:
        body["laid_aside"] = entry.laid_aside
    if entry.proposal is not None:
        body["proposal"] = entry.proposal
    if entry.four_eyes is not None:
        body["four_eyes"] = entry.four_eyes
    return body


def _owed(one: Owed, seal: Seal | None) -> _StoredOwed:
    return _StoredOwed(
        intent=_intent(one.intent, seal),
        hook=one.hook,
        receipt=one.receipt,
        lease_until=one.lease_until,
        since=one.since,
    )


def _intent(intent: OrderIntent, seal: Seal | None) -> _StoredIntent:
    name, order = intent.beneficiary, msgspec.Raw(intent.order.to_json())
    beneficiary = None if name is None else (name.first, name.last, name.middle)
    stored = _StoredIntent(
        id=intent.id,
        key=intent.key,
        order=order,
        beneficiary=beneficiary,
        held=intent.held,
        send_before=intent.send_before,
    )
    if seal is None:
        return stored
    persons = _encoder.encode(_Persons(order=order, beneficiary=beneficiary))
    sealed = seal.sealed(persons, owner=intent.id)
    return msgspec.structs.replace(stored, order=msgspec.Raw(_encoder.encode(sealed)), beneficiary=None)


def _intent_of(stored: _StoredIntent, seal: Seal | None) -> OrderIntent:
    order, beneficiary = stored.order, stored.beneficiary
    if bytes(order).startswith(_SEALED):
        persons = _read_persons(opened(seal, msgspec.json.decode(order, type=str), owner=stored.id))
        order, beneficiary = persons.order, persons.beneficiary
    return OrderIntent(
        id=stored.id,
        key=stored.key,
        order=converter.from_json(NewOrder, bytes(order)),
        beneficiary=None if beneficiary is None else PersonName(*beneficiary),
        held=stored.held,
        send_before=stored.send_before,
    )


def _owed_of(stored: _StoredOwed, seal: Seal | None) -> Owed:
    return Owed(
        intent=_intent_of(stored.intent, seal),
        hook=stored.hook,
        receipt=stored.receipt,
        lease_until=stored.lease_until,
        since=stored.since,
    )


# --- what cannot be read ------------------------------------------------------------------------

_LOST: dict[str, Any] = {
    "intent_id": "",
    "client_made": False,
    "epoch": 1,
    "hooks": (),
    "claimed_at": 0.0,
    "receipts": {},
    "held": None,
    "attempt": None,
    "sent_until": 0.0,
    "ending": None,
    "promised": False,
    "untold": (),
    "candidates": (),
    "cause": None,
    "laid_aside": (),
    "moves": 0,
    "proposal": None,
    "four_eyes": None,
}
"""What stands for a field that cannot be read; a lease has its column."""


def _what_can_be_read(row: EntryRow, why: str, seal: Seal | None, *, is_sealed: bool = False) -> Entry:
    """Enough to show the key and to end it; what is not known to be free is bound, and in doubt."""
    parts = _read_as(dict[str, msgspec.Raw], row.body, {})
    lost = _LOST | {"lease_until": row.due_at or 0.0, "fingerprint": _fingerprint_of(row.intent, seal)}
    kinds = _kinds()
    values = {name: _read_as(kinds[name], parts.get(name), instead) for name, instead in lost.items()}
    debts = _read_as(list[msgspec.Raw], parts.get("owed"), [msgspec.Raw(b"{}")])  # or who knows how many
    owed = {one: _read_debt(one, seal) for one in map(bytes, debts)}
    state = KeyState(row.state) if row.state in {one.value for one in KeyState} else KeyState.IN_DOUBT
    unread = Unread(
        why=why,
        kept=_kept(row),
        hooks=() if state in (KeyState.FREE, KeyState.CREATED) else values["hooks"],
        owed=tuple(_read_as(_Debtor, one, _Debtor()).hook for one, debt in owed.items() if debt is None),
        is_sealed=is_sealed,
    )
    return Entry(
        state=state,
        order_id=row.order_id,
        intent=None,
        reply=None if is_sealed else row.reply,
        owed=tuple(debt for debt in owed.values() if debt is not None),
        unread=unread,
        **values,
    )


@functools.cache
def _kinds() -> dict[str, Any]:
    return typing.get_type_hints(_Body)


def _kept(row: EntryRow) -> str:
    kept = {"state": row.state, "order_id": row.order_id, "body": row.body, "intent": row.intent}
    return json.dumps(kept, default=repr)


def _fingerprint_of(intent: str | None, seal: Seal | None) -> str:
    try:
        return "" if intent is None else fingerprint(_intent_of(_read_intent(intent), seal).order)
    except (*_UNREADABLE, DoesNotOpen):
        return ""


class _Debtor(msgspec.Struct):
    hook: str = "?"


def _read_as(kind: Any, raw: Any, lost: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE:
        return lost


def _read_debt(raw: bytes, seal: Seal | None) -> Owed | None:
    try:
        return _owed_of(msgspec.json.decode(raw, type=_StoredOwed), seal)
    except (*_UNREADABLE, DoesNotOpen):
        return None


def _encode(value: Any) -> str:
    return _encoder.encode(value).decode()


# --- history ------------------------------------------------------------------------------------

STEP_COLUMNS = (
    "at",
    "move",
    "state",
    "intent_id",
    "epoch",
    "attempt",
    "order_id",
    "ending",
    "by_whom",
    "reason",
)
"""Of the history; an entry's columns are the fields of `EntryRow`."""


def step_values(step: Step) -> tuple[Any, ...]:
    """The values of `STEP_COLUMNS`."""
    return (
        step.at,
        step.move,
        step.state.value,
        step.intent_id,
        step.epoch,
        step.attempt,
        step.order_id,
        None if step.ending is None else _encode(step.ending),
        step.by,
        step.reason,
    )


def step_of(values: tuple[Any, ...]) -> Step:
    """The step that `step_values` made; of a line that cannot be read, what can be read of it."""
    at, move, state, intent_id, epoch, attempt, order_id, ending, by, reason = values
    try:
        state, ended = KeyState(state), None if ending is None else _read_ending(ending)
    except _UNREADABLE:
        state, ended, reason = KeyState.IN_DOUBT, None, f"a part of this line cannot be read; {reason}"
    return Step(
        at=at if isinstance(at, (int, float)) else math.nan,
        move=move,
        state=state,
        intent_id=intent_id,
        epoch=epoch,
        attempt=attempt,
        order_id=order_id,
        ending=ended,
        by=by,
        reason=reason,
    )
