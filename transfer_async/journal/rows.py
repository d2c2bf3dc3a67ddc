"""How a durable journal writes an entry down: a few columns to find it by, and the rest as JSON.

The wish itself (`EntryRow.intent`) and the service's reply are columns of their own, for they are large,
seldom change, and hold what is personal. All times are seconds since 1970.
"""

from __future__ import annotations

import abc
import functools
import json
import logging
import math
import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from attrs import frozen

from transfer_async._converters import converter
from transfer_async._models.errors import Cause, JournalFailed, TransferError
from transfer_async._models.requests import NewOrder, OrderIntent, PersonName, fingerprint
from transfer_async._support.util import FrozenStruct, MutableStruct
from transfer_async.journal import state_machine
from transfer_async.journal.encryption import (
    MARK,
    DoesNotOpen,
    RecordId,
    Seal,
    SealFailed,
    opened,
    opened_reply,
    owner_of,
    sealed_reply,
)
from transfer_async.journal.model import (
    ENDED,
    Ending,
    Entry,
    HistoryEvent,
    KeyState,
    OutboxEntry,
    PendingUndo,
    Proposal,
    Unread,
)

log: logging.Logger = logging.getLogger("transfer_async")

VERSION = 2
"""Of the tables and of what is in them; another one is not read. How to raise it: see `upgrading`."""

ENTRY_TABLE = f"keys_{VERSION}"
"""The name says the version: a program of another that is running finds no table, and can write nothing."""


class EntryRow(MutableStruct, eq=True):
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


class _StoredIntent(FrozenStruct, frozen=True, kw_only=True):
    id: str
    key: str
    order: msgspec.Raw
    beneficiary: tuple[str, str, str | None] | None
    held: str | None
    send_before: datetime | None


class _Persons(FrozenStruct, frozen=True, kw_only=True):
    """What of an intent says who pays whom: sealed as one text, which then stands in the order's place."""

    order: msgspec.Raw
    beneficiary: tuple[str, str, str | None] | None


class _Reply(FrozenStruct, frozen=True):
    """Of the service's reply, which order it is about."""

    id: str | None = None


class _StoredUndo(FrozenStruct, frozen=True, kw_only=True):
    intent: _StoredIntent
    hook: str
    receipt: str | None
    lease_until: float
    since: float | None = None


_STORED_NAMES = {
    "pending_undos": "owed",
    "notification_requested": "promised",
    "pending_notifications": "untold",
    "quarantined": "laid_aside",
    "version": "moves",
}
"""Fields of `Entry` whose stored name is an older one: it is part of the format, so it never changes."""


class _Body(FrozenStruct, frozen=True, kw_only=True, rename=_STORED_NAMES):
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
    pending_undos: tuple[_StoredUndo, ...]
    notification_requested: bool = False
    pending_notifications: tuple[OutboxEntry, ...] = ()
    candidates: tuple[str, ...] = ()
    cause: Cause | None = None
    quarantined: tuple[str, ...] = ()
    version: int = 0
    proposal: Proposal | None = None
    four_eyes: bool | None = None


_encoder = msgspec.json.Encoder()
_read_body = msgspec.json.Decoder(_Body).decode
_read_intent = msgspec.json.Decoder(_StoredIntent).decode
_read_persons = msgspec.json.Decoder(_Persons).decode
_read_reply = msgspec.json.Decoder(_Reply).decode
_read_ending = msgspec.json.Decoder(Ending).decode


class Misplaced(ValueError):
    """What is stored of a key is of another: an undo by it would release the other's hold."""


def row_of(
    entry: Entry,
    *,
    token: str,
    now: float,
    with_intent: bool = True,
    seal: Seal | None = None,
    place: RecordId | None = None,
) -> EntryRow:
    """``entry`` as it is stored at ``now`` by the move with that token; the wish only if it is new.

    Args:
        entry: of the key.
        token: of the move.
        now: on the journal's clock.
        with_intent: the wish is new.
        seal: for what is stored of persons.
        place: the scope and the key, to which what is sealed is bound.
    """
    intent, reply = entry.intent if with_intent else None, entry.reply
    return EntryRow(
        state=entry.state.value,
        token=token,
        order_id=entry.order_id,
        due_at=state_machine.due_at(entry),
        ended_at=now if state_machine.is_ended(entry) else None,
        body=_encode(_body(entry, seal, place)),
        intent=None if intent is None else _encode(_intent(intent, seal, place)),
        reply=reply if seal is None or reply is None else sealed_reply(seal, reply, entry.order_id, place),
    )


def entry_of(row: EntryRow, seal: Seal | None = None, *, place: RecordId | None = None) -> Entry:
    """The entry that ``row`` holds; what can be read of one that cannot be read whole has ``unread``.

    Args:
        row: as it was stored.
        seal: with which it was sealed.
        place: the scope and the key that it was found under: what is of another key cannot be read.
    """
    try:
        body = _read_body(row.body)
        entry = Entry(
            state=KeyState(row.state),
            order_id=row.order_id,
            intent=None if row.intent is None else _intent_of(_read_intent(row.intent), seal, place),
            reply=opened_reply(seal, row.reply, row.order_id, place),
            pending_undos=tuple([_undo_of(undo, seal, place) for undo in body.pending_undos]),
            **{name: getattr(body, name) for name in _SAME},
        )
        _refuse_misplaced(entry)
        if (entry.state is KeyState.CREATED) is (entry.order_id is None):
            raise ValueError  # its state or its order's id is damaged: a free key would be paid again
    except DoesNotOpen as error:
        return _what_can_be_read(row, str(error), seal, place, is_sealed=True)
    except _UNREADABLE as error:
        return _what_can_be_read(row, type(error).__name__, seal, place)
    return entry


def _refuse_misplaced(entry: Entry) -> None:
    """Refuse a wish that is not of the entry's intent, and a reply that is about another order."""
    if entry.intent is not None and entry.intent.id != entry.intent_id:
        raise Misplaced
    try:
        told = None if entry.reply is None else _read_reply(entry.reply).id
    except msgspec.MsgspecError:
        return  # whoever reads it says so
    if told is not None and told != entry.order_id:
        raise Misplaced


def entries_of(
    scope: str, found: Iterable[tuple[str, EntryRow]], seal: Seal | None = None
) -> list[tuple[str, Entry]]:
    """Keys with their entries; one that cannot be read is named in the log, and does not hide the others."""
    entries = [(key, _listed(row, seal, (scope, key))) for key, row in found]
    for key, entry in entries:
        if entry.unread is not None:
            log.error("the entry of key %r cannot be read (%s)", key, entry.unread.why)
    return entries


def _listed(row: EntryRow, seal: Seal | None, place: RecordId) -> Entry:
    try:
        return entry_of(row, seal, place=place)
    except SealFailed as error:  # it may be of this record alone
        return _what_can_be_read(row, str(error), None, place, is_sealed=True)


_SEALED = b'"' + MARK.encode()
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, TransferError)
_SAME = tuple(name for name in _Body.__annotations__ if name != "pending_undos")


def _body(entry: Entry, seal: Seal | None, place: RecordId | None) -> dict[str, Any]:
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
        "owed": [_owed(undo, seal, place) for undo in entry.pending_undos] if entry.pending_undos else (),
        "moves": entry.version,
    }
    if entry.notification_requested or entry.pending_notifications:
        body |= {"promised": entry.notification_requested, "untold": entry.pending_notifications}
    if entry.candidates:
        body["candidates"] = entry.candidates
    if entry.cause is not None:
        body["cause"] = entry.cause
    if entry.quarantined:
        body["laid_aside"] = entry.quarantined
    if entry.proposal is not None:
        body["proposal"] = entry.proposal
    if entry.four_eyes is not None:
        body["four_eyes"] = entry.four_eyes
    return body


def _owed(one: PendingUndo, seal: Seal | None, place: RecordId | None) -> _StoredUndo:
    return _StoredUndo(
        intent=_intent(one.intent, seal, place),
        hook=one.hook,
        receipt=one.receipt,
        lease_until=one.lease_until,
        since=one.since,
    )


def _intent(intent: OrderIntent, seal: Seal | None, place: RecordId | None) -> _StoredIntent:
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
    sealed = seal.sealed(persons, owner=owner_of("intent", intent.id, place))
    return msgspec.structs.replace(stored, order=msgspec.Raw(_encoder.encode(sealed)), beneficiary=None)


def _intent_of(stored: _StoredIntent, seal: Seal | None, place: RecordId | None) -> OrderIntent:
    if place is not None and stored.key != place[1]:
        raise Misplaced
    order, beneficiary = stored.order, stored.beneficiary
    if bytes(order).startswith(_SEALED):
        owner, text = owner_of("intent", stored.id, place), msgspec.json.decode(order, type=str)
        persons = _read_persons(opened(seal, text, owner=owner, formerly=stored.id))
        order, beneficiary = persons.order, persons.beneficiary
    return OrderIntent(
        id=stored.id,
        key=stored.key,
        order=converter.from_json(NewOrder, bytes(order)),
        beneficiary=None if beneficiary is None else PersonName(*beneficiary),
        held=stored.held,
        send_before=stored.send_before,
    )


def _undo_of(stored: _StoredUndo, seal: Seal | None, place: RecordId | None) -> PendingUndo:
    return PendingUndo(
        intent=_intent_of(stored.intent, seal, place),
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
    "notification_requested": False,
    "pending_notifications": (),
    "candidates": (),
    "cause": None,
    "quarantined": (),
    "version": 0,
    "four_eyes": None,
}
"""What stands for a field that cannot be read; a lease has its column."""


def _what_can_be_read(
    row: EntryRow, why: str, seal: Seal | None, place: RecordId | None, *, is_sealed: bool = False
) -> Entry:
    """Enough to show the key and to end it; what is not known to be free is bound, and in doubt."""
    parts = _read_as(dict[str, msgspec.Raw], row.body, {})
    lost = _LOST | {"lease_until": row.due_at or 0.0, "fingerprint": _fingerprint_of(row.intent, seal, place)}
    kinds = _kinds()
    values = {
        name: _read_as(kinds[name], parts.get(_STORED_NAMES.get(name, name)), instead)
        for name, instead in lost.items()
    }
    debts = _read_as(list[msgspec.Raw], parts.get("owed"), [msgspec.Raw(b"{}")])  # or who knows how many
    owed = {item: _read_undo(item, seal, place) for item in map(bytes, debts)}
    state, intent_id = _state_of(row), values["intent_id"]
    is_pending = any(debt is not None and debt.intent.id == intent_id for debt in owed.values())
    if is_pending and row.order_id is None and row.state not in _STATES:
        state = KeyState.FREE  # only a definite failure makes the undos of the last intent pending
    lost_debts = [raw for raw, debt in owed.items() if debt is None]
    # Of a free key what is pending for its last intent: the hold of its order, if that exists after all.
    own = [raw for raw in lost_debts if state is KeyState.FREE and _is_undo_of(values["intent_id"], raw)]
    of_last_intent = tuple(map(_hook_of, own)) if state in ENDED else values["hooks"]
    unread = Unread(
        why=why,
        kept=_kept(row),
        hooks=of_last_intent,
        earlier_hooks=tuple(_hook_of(raw) for raw in lost_debts if raw not in own),
        is_sealed=is_sealed,
    )
    return Entry(
        state=state,
        order_id=row.order_id,
        intent=None,
        reply=None if is_sealed or why == Misplaced.__name__ else row.reply,
        pending_undos=tuple(debt for debt in owed.values() if debt is not None),
        unread=unread,
        proposal=None,  # nobody can approve what was proposed of a record that cannot be read
        **values,
    )


_STATES = frozenset(item.value for item in KeyState)


def _state_of(row: EntryRow) -> KeyState:
    """Return the state, as far as it can be true: what has an order's id is created, and nothing else is."""
    if row.order_id is not None:
        return KeyState.CREATED
    is_known = row.state in _STATES and row.state != KeyState.CREATED.value
    return KeyState(row.state) if is_known else KeyState.IN_DOUBT


@functools.cache
def _kinds() -> dict[str, Any]:
    return typing.get_type_hints(_Body)


def _kept(row: EntryRow) -> str:
    kept = {"state": row.state, "order_id": row.order_id, "body": row.body, "intent": row.intent}
    return json.dumps(kept, default=repr)


def _fingerprint_of(intent: str | None, seal: Seal | None, place: RecordId | None) -> str:
    try:
        return "" if intent is None else fingerprint(_intent_of(_read_intent(intent), seal, place).order)
    except (*_UNREADABLE, DoesNotOpen):
        return ""


class _Debtor(msgspec.Struct):
    hook: str = "?"


class _DebtorsIntent(msgspec.Struct):
    id: str


class _Debt(msgspec.Struct):
    intent: _DebtorsIntent


def _hook_of(raw: bytes) -> str:
    return str(_read_as(_Debtor, raw, _Debtor()).hook)


def _is_undo_of(intent_id: str, raw: bytes) -> bool:
    debt = _read_as(_Debt, raw, None)
    return debt is not None and bool(intent_id) and debt.intent.id == intent_id


def _read_as(kind: Any, raw: Any, lost: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE:
        return lost


def _read_undo(raw: bytes, seal: Seal | None, place: RecordId | None) -> PendingUndo | None:
    try:
        return _undo_of(msgspec.json.decode(raw, type=_StoredUndo), seal, place)
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


def step_values(step: HistoryEvent) -> tuple[Any, ...]:
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


def step_of(values: tuple[Any, ...]) -> HistoryEvent:
    """The step that `step_values` made; of a line that cannot be read, what can be read of it."""
    at, move, state, intent_id, epoch, attempt, order_id, ending, by, reason = values
    try:
        state, ended = KeyState(state), None if ending is None else _read_ending(ending)
    except _UNREADABLE:
        state, ended, reason = KeyState.IN_DOUBT, None, f"a part of this line cannot be read; {reason}"
    return HistoryEvent(
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


# --- upgrading ---------------------------------------------------------------------------------------
# From one version of a durable journal to the next: forward, in place, all scopes in one transaction.
#
# The version is stored, and it is part of the name of the table with the entries. A program that opens a
# journal of another version refuses by what is stored. One that was running when the journal was upgraded
# finds no table of the old name, so that every move of it fails, and no key of it is freed.
#
# To raise `VERSION`: add the statements that lead there to `STEPS`, the new one's test data to
# ``tests/journal/released``, and let no statement rewrite rows, for that takes long in a large journal.
# What an older version wrote is read as it is, for ever: a field that it lacks has a default (`rows`).


STEPS: Mapping[int, tuple[str, ...]] = {
    # Entries gained what older programs would drop at their next write: causes, proposals, the rule of
    # four eyes, the count of moves; and orders may be sealed, which they could not read.
    1: ('ALTER TABLE "{schema}".keys RENAME TO keys_2',),
}
"""From each version to the next, in the SQL of both SQLite and PostgreSQL."""

PAGE = 1000
"""How many entries are read at once, however many there are."""

STOP = "stop every program that uses the journal, then run the upgrade again"


@frozen(kw_only=True)
class Upgrade:
    """What an upgrade of a journal's format is about.

    Args:
        found: the version that the journal had.
        version: the one that it has then, which is this program's. If both are the same, nothing was to do.
        states: how many keys are in each state, in all scopes; empty if nothing was to do.
        unreadable: how many of them cannot be read: neither before nor after, and nothing of them is lost.
    """

    found: int
    version: int = VERSION
    states: Mapping[str, int]
    unreadable: int

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return sum(self.states.values())


class Upgradable(abc.ABC):
    """A store with a journal of whatever version, opened to be upgraded."""

    @abc.abstractmethod
    async def version(self) -> int | None:
        """Of the journal."""

    @abc.abstractmethod
    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """Up to `PAGE` entries with their numbers, by these, of those beyond ``after``; replies left out."""

    @abc.abstractmethod
    async def carry_out(self, upgrade: Upgrade) -> bool:
        """Take the steps, in one transaction; false if the journal has another version meanwhile.

        Raises:
            JournalFailed: somebody uses the journal, or has written to it since `Upgrade.states` was counted.
        """


NOTHING = Upgrade(found=VERSION, states={}, unreadable=0)
"""Nothing is to do, or was."""


async def planned(store: Upgradable, what: str) -> Upgrade:
    """What is to be done to the journal in ``store``, which is called ``what``."""
    found = await store.version()
    if found is None or found not in STEPS:
        refuse_another_version(what, found)
        return NOTHING
    try:
        return await _looked_at(store, found)
    except Exception:
        if await store.version() == VERSION:  # somebody else has taken the table away under the look
            return NOTHING
        raise


async def upgraded(store: Upgradable, what: str, plan: Upgrade | None) -> Upgrade:
    """Do what is planned, or what is to be; what was done."""
    plan = plan or await planned(store, what)
    if plan.found != VERSION and await store.carry_out(plan):
        return plan
    refuse_another_version(what, await store.version())  # nobody has done it, or somebody has done more
    return NOTHING


async def _looked_at(store: Upgradable, found: int) -> Upgrade:
    """Read every entry, so that what this program cannot read shows before anything is changed."""
    states: Counter[str] = Counter()
    unreadable, last = 0, 0
    while page := await store.page(table_of(found), last):
        last = page[-1][0]
        states.update(row.state for _, row in page)
        unreadable += sum(map(_is_unreadable, (row for _, row in page)))
    return Upgrade(found=found, states=dict(states), unreadable=unreadable)


def _is_unreadable(row: EntryRow) -> bool:
    unread = entry_of(row).unread
    return unread is not None and not unread.is_sealed  # what is sealed stays so, whoever has the key


def table_of(version: int) -> str:
    """The table of the entries, in a journal of that version."""
    return "keys" if version == 1 else f"keys_{version}"


def statements_from(version: int, schema: str) -> list[str]:
    """All that lead from that version to this program's."""
    return [item.format(schema=schema) for step in range(version, VERSION) for item in STEPS[step]]


def checked_counts(upgrade: Upgrade, counted: Iterable[tuple[str, int]]) -> None:
    """Compare with the states that are there once all steps are taken, before they are committed.

    Raises:
        JournalFailed: they are not those that were there before the first.
    """
    if dict(counted) != dict(upgrade.states):
        raise JournalFailed(f"somebody wrote to the journal meanwhile, and nothing was changed: {STOP}")


def refuse_another_version(what: str, found: int | None) -> None:
    """Refuse a journal that is not of this program's version.

    Raises:
        JournalFailed: says of which it is, and what to do.
    """
    if found == VERSION:
        return
    formats = f"(its format is {found}, this program's is {VERSION})"
    if found in STEPS:
        raise JournalFailed(
            f"{what} was written by an older version of transfer_async {formats}: "
            "stop every program that uses it, then run: transfer-async journal upgrade"
        )
    if found is not None and found > VERSION:
        raise JournalFailed(
            f"{what} was written by a newer version of transfer_async {formats}: "
            "use that version, or one that is newer still"
        )
    raise JournalFailed(f"{what} has a format that no version of transfer_async is known to write {formats}")
