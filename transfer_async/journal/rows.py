"""The stored format of durable journals: a row of searchable columns and a JSON body for each entry.

The intent and the service's reply have their own columns, because they are large, rarely change, and contain
personal data. All times are in seconds since 1970.
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
from attrs import field, frozen

from transfer_async._converters import converter
from transfer_async._models.errors import Cause, JournalFailed, TransferError
from transfer_async._models.requests import NewOrder, OrderIntent, PersonName, fingerprint
from transfer_async._support.util import FrozenStruct, MutableStruct
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
    BLANK,
    ENDED,
    Ending,
    Entry,
    HistoryEvent,
    KeyState,
    OutboxEntry,
    PendingUndo,
    Proposal,
    Unread,
    Watcher,
)
from transfer_async.journal.transitions import due_at, is_ended

log: logging.Logger = logging.getLogger("transfer_async")

VERSION = 2
"""The version of the format. Other versions are rejected. The text above `STEPS` explains how to raise it."""

ENTRY_TABLE = f"keys_{VERSION}"
"""The table of entries. Its name contains the version, so that programs of other versions cannot write to
it."""


class EntryRow(MutableStruct, eq=True):
    """A stored entry.

    Args:
        state: see `KeyState`.
        token: the token of the last transition. Every write stores a new token.
        order_id: the order's id, once the order exists; unique within a scope.
        due_at: when work on the entry becomes due, or None.
        ended_at: when work on the entry ended, or None if work remains.
        body: all other fields of the entry, as JSON.
        intent: the intent as JSON; None once it is no longer needed.
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
    """The personal data of an intent. A journal with a seal stores this data encrypted."""

    order: msgspec.Raw
    beneficiary: tuple[str, str, str | None] | None


class _Reply(FrozenStruct, frozen=True):
    """The part of the service's reply that contains the order's id."""

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
"""The stored names of renamed `Entry` fields. A stored name is part of the format and never changes."""


PENDING_UNDO = f'%"{_STORED_NAMES["pending_undos"]}":[{{%'
"""The SQL pattern that matches a body with a pending undo. Quotes in a JSON string are escaped."""


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
    watcher: Watcher | None = None


_encoder = msgspec.json.Encoder()
_read_body = msgspec.json.Decoder(_Body).decode
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_intent = msgspec.json.Decoder(_StoredIntent).decode
_read_persons = msgspec.json.Decoder(_Persons).decode
_read_reply = msgspec.json.Decoder(_Reply).decode
_read_ending = msgspec.json.Decoder(Ending).decode


class Misplaced(ValueError):
    """Raised if a stored record belongs to another key, whose hold the record's undos would release."""


def row_of(
    entry: Entry,
    *,
    token: str,
    now: float,
    with_intent: bool = True,
    seal: Seal | None = None,
    place: RecordId | None = None,
) -> EntryRow:
    """Convert an entry to the row to store.

    Args:
        entry: the key's entry.
        token: the token of the transition that writes the row.
        now: the time in seconds on the journal's clock.
        with_intent: whether the row contains the intent; if false, the stored intent does not change.
        seal: encrypts personal data, or None.
        place: the scope and key, to which encrypted data is bound.
    """
    intent, reply = entry.intent if with_intent else None, entry.reply
    return EntryRow(
        state=entry.state.value,
        token=token,
        order_id=entry.order_id,
        due_at=due_at(entry),
        ended_at=now if is_ended(entry) else None,
        body=_encode(_body(entry, seal, place)),
        intent=None if intent is None else _encode(_intent(intent, seal, place)),
        reply=reply if seal is None or reply is None else sealed_reply(seal, reply, entry.order_id, place),
    )


def entry_of(row: EntryRow, seal: Seal | None = None, *, place: RecordId | None = None) -> Entry:
    """Convert a stored row to an entry. If the row is corrupt, return its readable part with ``unread`` set.

    Args:
        row: the stored row.
        seal: decrypts personal data, or None.
        place: the scope and key under which the row was found. A record of a different key counts as corrupt.
    """
    try:
        body = _read_body(row.body)
        entry = Entry(
            state=KeyState(row.state),
            order_id=row.order_id,
            intent=None if row.intent is None else _intent_of(_read_intent(row.intent), seal, place),
            reply=opened_reply(seal, row.reply, row.order_id, place),
            pending_undos=tuple([_undo_of(undo, seal, place) for undo in body.pending_undos]),
            unknown_members=_unknown(_read_members(row.body)),
            **{name: getattr(body, name) for name in _SAME_FIELDS},
        )
        _refuse_misplaced(entry)
        if (entry.state is KeyState.CREATED) is (entry.order_id is None):
            raise ValueError  # One of the two is damaged, and a key that is read as free would be paid again.
    except DoesNotOpen as error:
        return _readable_part(row, str(error), seal, place, is_sealed=True)
    except _UNREADABLE as error:
        return _readable_part(row, type(error).__name__, seal, place)
    return entry


def _refuse_misplaced(entry: Entry) -> None:
    """Reject an intent or a reply that belongs to another entry.

    Raises:
        Misplaced: the stored intent has another id, or the reply names another order.
    """
    if entry.intent is not None and entry.intent.id != entry.intent_id:
        raise Misplaced
    try:
        named = None if entry.reply is None else _read_reply(entry.reply).id
    except msgspec.MsgspecError:
        return  # An unreadable reply is reported where it is used.
    if named is not None and named != entry.order_id:
        raise Misplaced


def entries_of(
    scope: str, found: Iterable[tuple[str, EntryRow]], seal: Seal | None = None
) -> list[tuple[str, Entry]]:
    """Convert stored rows to keys and entries.

    Corrupt records are logged, and do not prevent other records from being converted.
    """
    entries = [(key, _listed(row, seal, (scope, key))) for key, row in found]
    for key, entry in entries:
        if entry.unread is not None:
            log.error("the entry of key %r cannot be read (%s)", key, entry.unread.why)
    return entries


def _listed(row: EntryRow, seal: Seal | None, place: RecordId) -> Entry:
    try:
        return entry_of(row, seal, place=place)
    except SealFailed as error:  # The seal may fail only for this record.
        return _readable_part(row, str(error), None, place, is_sealed=True)


_SEALED = b'"' + MARK.encode()
_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, TransferError)
_SAME_FIELDS = tuple(name for name in _Body.__annotations__ if name != "pending_undos")
_KNOWN_MEMBERS = frozenset(_Body.__struct_encode_fields__)


def _unknown(members: Mapping[str, msgspec.Raw]) -> dict[str, bytes] | None:
    """Return the members that only a newer version uses; None if there are none."""
    return {name: bytes(members[name]) for name in members.keys() - _KNOWN_MEMBERS} or None


def _body(entry: Entry, seal: Seal | None, place: RecordId | None) -> dict[str, Any]:
    """Return the members of a `_Body` as a dict, which is faster to create."""
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
        "owed": [_stored_undo(undo, seal, place) for undo in entry.pending_undos]
        if entry.pending_undos
        else (),
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
    if entry.watcher is not None:
        body["watcher"] = entry.watcher
    if entry.unknown_members:
        body |= {name: msgspec.Raw(value) for name, value in entry.unknown_members.items()}
    return body


def _stored_undo(undo: PendingUndo, seal: Seal | None, place: RecordId | None) -> _StoredUndo:
    return _StoredUndo(
        intent=_intent(undo.intent, seal, place),
        hook=undo.hook,
        receipt=undo.receipt,
        lease_until=undo.lease_until,
        since=undo.since,
    )


def _intent(intent: OrderIntent, seal: Seal | None, place: RecordId | None) -> _StoredIntent:
    name, order = intent.beneficiary, msgspec.Raw(converter.encode(intent.order))
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


# --- corrupt records ----------------------------------------------------------------------------


def _readable_part(
    row: EntryRow, why: str, seal: Seal | None, place: RecordId | None, *, is_sealed: bool = False
) -> Entry:
    """Return the readable part of a corrupt record, so that people can view and resolve the key.

    A key whose state cannot be read counts as in doubt, unless its pending undos show that it is free.
    """
    parts = _read_as(dict[str, msgspec.Raw], row.body, {})
    # An unreadable field has the value of a blank entry, or one from another column.
    substitutes = {name: getattr(BLANK, name) for name in _SAME_FIELDS if name != "proposal"} | {
        "lease_until": row.due_at or 0.0,
        "fingerprint": _stored_fingerprint(row.intent, seal, place),
    }
    kinds = _kinds()
    values = {
        name: _read_as(kinds[name], parts.get(_STORED_NAMES.get(name, name)), substitute)
        for name, substitute in substitutes.items()
    }
    # If the list itself is corrupt, the number of pending undos is unknown, so one placeholder represents
    # all.
    stored_undos = _read_as(list[msgspec.Raw], parts.get("owed"), [msgspec.Raw(b"{}")])
    undos = {raw: _read_undo(raw, seal, place) for raw in map(bytes, stored_undos)}
    state, intent_id = _state_of(row), values["intent_id"]
    is_pending = any(undo is not None and undo.intent.id == intent_id for undo in undos.values())
    if is_pending and row.order_id is None and row.state not in _STATES:
        state = KeyState.FREE  # Only a definite failure makes the last intent's undos pending.
    corrupt = [raw for raw, undo in undos.items() if undo is None]
    # If a free key's order exists after all, the corrupt undos of its last intent concern that order's hold.
    own = [raw for raw in corrupt if state is KeyState.FREE and _is_undo_of(intent_id, raw)]
    stored = {"state": row.state, "order_id": row.order_id, "body": row.body, "intent": row.intent}
    unread = Unread(
        why=why,
        kept=json.dumps(stored, default=repr),
        hooks=tuple(map(_hook_of, own)) if state in ENDED else values["hooks"],
        earlier_hooks=tuple(_hook_of(raw) for raw in corrupt if raw not in own),
        is_sealed=is_sealed,
    )
    return Entry(
        state=state,
        order_id=row.order_id,
        intent=None,
        reply=None if is_sealed or why == Misplaced.__name__ else row.reply,
        pending_undos=tuple(undo for undo in undos.values() if undo is not None),
        unread=unread,
        proposal=None,  # An approver could not see what the proposal was about.
        unknown_members=_unknown(parts),
        **values,
    )


_STATES = frozenset(item.value for item in KeyState)


def _state_of(row: EntryRow) -> KeyState:
    """Return the stored state; created if there is an order id; in doubt if the state is implausible."""
    if row.order_id is not None:
        return KeyState.CREATED
    is_known = row.state in _STATES and row.state != KeyState.CREATED.value
    return KeyState(row.state) if is_known else KeyState.IN_DOUBT


@functools.cache
def _kinds() -> dict[str, Any]:
    return typing.get_type_hints(_Body)


def _stored_fingerprint(intent: str | None, seal: Seal | None, place: RecordId | None) -> str:
    try:
        return "" if intent is None else fingerprint(_intent_of(_read_intent(intent), seal, place).order)
    except (*_UNREADABLE, DoesNotOpen):
        return ""


def _member(raw: Any, name: str, kind: Any, substitute: Any) -> Any:
    """Return one member of a JSON object, even if other members cannot be read."""
    return _read_as(kind, _read_as(dict[str, msgspec.Raw], raw, {}).get(name), substitute)


def _hook_of(raw: bytes) -> str:
    return str(_member(raw, "hook", str, "?"))


def _is_undo_of(intent_id: str, raw: bytes) -> bool:
    intent = _member(raw, "intent", msgspec.Raw, None)
    return bool(intent_id) and _member(intent, "id", str, None) == intent_id


def _read_as(kind: Any, raw: Any, substitute: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE:
        return substitute


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
"""The columns of the history. The columns of an entry are the fields of `EntryRow`."""


def step_values(step: HistoryEvent) -> tuple[Any, ...]:
    """Convert a history line to the values of `STEP_COLUMNS`."""
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
    """Convert the values of `STEP_COLUMNS` to a history line, or to the readable part of a corrupt one."""
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
# An upgrade converts a journal to the next format, in place, with all scopes in one transaction.
#
# The version is stored, and is also part of the name of the table of entries. A program that opens a journal
# of another version reads the stored version and raises an error. A program that was running during the
# upgrade no longer finds its table: all its transitions fail, so it cannot free a key.
#
# Two releases that use the same format version may run side by side, so a change without a new version must
# not harm the older release. It may add a member with a default to `_Body`: an older program writes the
# member back unchanged when it changes the rest (expand). If the member is only valid for one state of the
# key, store `Entry.version` in it, and ignore it once the key has another version. Only a new format version
# may require the member in all records, or stop writing the member that it replaces (contract). All other
# changes need a new version: members of nested objects, new values of enums, and rules that an older program
# would break.
#
# To raise `VERSION`, add the statements to `STEPS`, and test data of the new version to
# ``tests/journal/released``. No statement may rewrite rows, because that takes too long in a large journal.
# Records of older versions stay unchanged and readable: a field that they lack has a default.


STEPS: Mapping[int, tuple[str, ...]] = {
    # Entries gained fields that older programs would drop at their next write: the cause, the proposal, the
    # demand for dual control and the version. Orders may be encrypted, which older programs cannot read.
    1: ('ALTER TABLE "{schema}".keys RENAME TO keys_2',),
}
"""The statements that upgrade each version to the next. They are valid in both SQLite and PostgreSQL."""

PAGE = 1000
"""The number of entries that an upgrade reads at once."""

STOP = "stop every program that uses the journal, then run the upgrade again"


@frozen(kw_only=True)
class Upgrade:
    """A planned or completed upgrade of a journal's format.

    Args:
        found: the version before the upgrade.
        version: this program's version, which the upgrade produces; equal to ``found`` if no upgrade is
            needed.
        states: the number of keys in each state, across all scopes; empty if no upgrade is needed.
        unreadable: the number of keys whose record is corrupt. The upgrade does not change corrupt records.
        users: the number, program and address of the other connections to the database, including idle ones;
            empty for SQLite, which cannot list connections.
    """

    found: int
    version: int = VERSION
    states: Mapping[str, int]
    unreadable: int
    users: tuple[str, ...] = field(default=(), eq=False)

    @property
    def keys(self) -> int:
        """The number of keys."""
        return sum(self.states.values())


class Upgradable(abc.ABC):
    """A journal of any version, opened for an upgrade."""

    @abc.abstractmethod
    async def version(self) -> int | None:
        """Return the version of the journal."""

    @abc.abstractmethod
    async def page(self, table: str, after: int) -> list[tuple[int, EntryRow]]:
        """Return the next entries, at most `PAGE`, with row numbers above ``after``, and without replies."""

    async def users(self) -> list[str]:
        """Return the store's other users, or an empty list if the store cannot list them."""
        return []

    @abc.abstractmethod
    async def carry_out(self, upgrade: Upgrade) -> bool:
        """Upgrade in one transaction. Return False if the journal no longer has the planned version.

        Raises:
            JournalFailed: the journal is in use, or was written to after `Upgrade.states` was counted.
        """


NOTHING = Upgrade(found=VERSION, states={}, unreadable=0)
"""The upgrade for a journal that needs none."""


async def planned(store: Upgradable, what: str) -> Upgrade:
    """Return the upgrade that the journal in ``store`` needs.

    ``what`` names the journal in error messages.
    """
    found = await store.version()
    if found is None or found not in STEPS:
        refuse_another_version(what, found)
        return NOTHING
    try:
        return await _counted(store, found)
    except Exception:
        if await store.version() == VERSION:  # Another program has just upgraded it, and renamed the table.
            return NOTHING
        raise


async def upgraded(store: Upgradable, what: str, plan: Upgrade | None) -> Upgrade:
    """Carry out ``plan``, by default the upgrade that the journal needs, and return what was done."""
    plan = plan or await planned(store, what)
    if plan.found != VERSION and await store.carry_out(plan):
        return plan
    # Raises an error unless another program has just upgraded the journal.
    refuse_another_version(what, await store.version())
    return NOTHING


async def _counted(store: Upgradable, found: int) -> Upgrade:
    """Count the entries by state, and read all of them to find corrupt records before any change."""
    states: Counter[str] = Counter()
    unreadable, last = 0, 0
    while page := await store.page(table_of(found), last):
        last = page[-1][0]
        for _, row in page:
            states[row.state] += 1
            unread = entry_of(row).unread
            if unread is not None and not unread.is_sealed:  # An encrypted record is not corrupt.
                unreadable += 1
    users = tuple(await store.users())
    return Upgrade(found=found, states=dict(states), unreadable=unreadable, users=users)


def table_of(version: int) -> str:
    """Return the name of the table of entries in a journal of the given ``version``."""
    return "keys" if version == 1 else f"keys_{version}"


def statements_from(version: int, schema: str) -> list[str]:
    """Return all statements that upgrade a journal of the given ``version`` to `VERSION`."""
    return [item.format(schema=schema) for step in range(version, VERSION) for item in STEPS[step]]


def checked_counts(upgrade: Upgrade, counted: Iterable[tuple[str, int]]) -> None:
    """Check that the numbers of keys are as planned, after the last statement and before the commit.

    Raises:
        JournalFailed: the journal was written to during the upgrade.
    """
    if dict(counted) != dict(upgrade.states):
        raise JournalFailed(f"the journal was written to during the upgrade, so nothing was changed: {STOP}")


def refuse_another_version(what: str, found: int | None) -> None:
    """Reject a journal whose version is not this program's.

    Raises:
        JournalFailed: the journal has another version; the message contains that version and what to do.
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
            "stop this program, and start that version or a newer one"
        )
    raise JournalFailed(f"{what} has a format that is unknown to this version of transfer_async {formats}")
