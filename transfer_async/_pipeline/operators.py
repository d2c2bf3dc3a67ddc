"""Operations for operators: list keys, resolve or refute orders in doubt, correct decisions, delete keys.

An operator first asks the service whether the order exists, and then decides. The journal rejects the
decision if the key's attempt has changed in the meantime. The key's history records the person and the
reason. A refutation is accepted only after ``settle_after``, because until then a stalled request may still
take effect. Under dual control (four eyes), one person proposes a decision and another approves it. The table
in `decisions` lists all decisions.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

import attrs
from attrs import frozen

from transfer_async._models import requests
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, Observer, Observers, OrderInDoubt, Resolved
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import checked_settle_after, fresh_id
from transfer_async._pipeline.decisions import DecisionRow, checked_undone, row_of, transition_of
from transfer_async._pipeline.key_views import (
    ApprovalRequired,
    ApproverIsProposer,
    Doubt,
    FourEyes,
    KeyChanged,
    KeyView,
    RecordSetAside,
    checked_decision,
    checked_name,
    checked_order_id,
    checked_text,
    doubt_of,
    nearest_time,
    nothing_on_record,
    parties_of,
    refusal,
    state_text,
    too_early,
    view_of,
)
from transfer_async._support.clock import Clock, Duration, time_after
from transfer_async.journal.model import (
    ABANDONED,
    FOUR_EYES,
    SETTLE_AFTER,
    Decision,
    Entry,
    HistoryEvent,
    KeyState,
    Proposal,
    Rejection,
    TransitionResult,
    demands_four_eyes,
    is_same_person,
)
from transfer_async.journal.operator_transitions import Demand, Look, Note, Propose, Unwatch, Watch, Withdraw
from transfer_async.journal.protocol import (
    AuditLine,
    Journal,
    KeyRecord,
    ScopedJournal,
    checked_journal,
    record_of,
)
from transfer_async.journal.transitions import Expire, Move, Quarantine

V = TypeVar("V", bound=KeyView)

PAGE = 500
"""The number of keys that each read of the journal returns."""

TAKEN_BACK = "TakenBack"
"""The ``error`` of the `OrderInDoubt` event that is published when an order id is withdrawn."""


@frozen(kw_only=True)
class Basis:
    """The basis of a decision: the person, the reason, and the version of the key that the person saw.

    Args:
        by: the person who decides.
        reason: the evidence for the decision.
        seen: the version of the key that the person saw, or None to accept any version.
        proposal: the id of the proposal that this decision approves, or None.
    """

    by: str
    reason: str
    seen: int | None = None
    proposal: str | None = None


class Operators:
    """The operations that operators can perform on the keys of one scope in a journal.

    Args:
        journal: the journal. `Operators` does not close the journal.
        scope: the name of the service in the journal; pass the client's ``scope``, or its normalised
            ``base_url``.
        settle_after: how many seconds must pass, after the last moment at which the order could have been
            sent, before a refutation is accepted.
        four_eyes: whether to require dual control in this scope from now on, so that every operator's
            decision needs another person's approval. The journal stores the requirement, so passing False
            does not end dual control.
        observers: the functions that receive `Resolved` and `OrderInDoubt` events.
        clock: the source of time; for tests.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    def __init__(
        self,
        journal: Journal,
        scope: str,
        *,
        settle_after: Duration = SETTLE_AFTER,
        four_eyes: bool = False,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        self._journal = ScopedJournal(checked_journal(journal), requests.checked_scope(scope))
        self._settle_after = checked_settle_after(settle_after)
        self._clock = clock or Clock()
        if four_eyes is not True and four_eyes is not False:
            raise ValueError("four_eyes: must be True or False")
        self._four_eyes = four_eyes
        self._observers = Observers(observers)

    async def prepare(self) -> None:
        """If ``four_eyes`` is set, record in the journal that this scope requires dual control.

        Every method that makes a decision calls `prepare` first.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        if self._four_eyes:
            await self._setting()

    @property
    def scope(self) -> str:
        """The name of the service that the keys belong to."""
        return self._journal.scope

    async def other_scopes(self) -> tuple[str, ...]:
        """If this scope has no keys, return the scopes that have keys.

        A non-empty result suggests that the name of this scope is wrong. The result is empty if this scope
        has keys, if no scope has keys, or if the journal does not implement ``scopes``.

        Raises:
            JournalFailed: the journal could not be read.
        """
        return await self._journal.other_scopes()

    # --- views -------------------------------------------------------------------

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """Return every key in doubt, oldest first.

        Raises:
            JournalFailed: the journal could not be read.
        """
        return await self._views(await self._journal.in_doubt(), doubt_of)

    async def waiting(self) -> tuple[KeyView, ...]:
        """Return every key that needs attention, oldest first.

        A key needs attention if it is in doubt, if its worker died, or if it has a pending undo, a pending
        notification or a proposal to approve.

        Raises:
            JournalFailed: the journal could not be read.
        """
        found = dict(await self._journal.in_doubt())
        last = ""
        while page := await self._journal.work(limit=PAGE, after=last):
            found.update(page)
            last = page[-1][0]
        views = await self._views(list(found.items()), view_of)
        return tuple(sorted(views, key=lambda view: view.entry.claimed_at))

    async def page(self, *, limit: int = 100, after: str = "") -> tuple[KeyView, ...]:
        """Return one page of the keys that need attention and that no worker has leased.

        Args:
            limit: the maximum number of keys.
            after: return only keys that follow this key in the journal's own order.

        Raises:
            JournalFailed: the journal could not be read.
        """
        return await self._views(await self._journal.work(limit=limit, after=after), view_of)

    async def view(self, key: str) -> KeyView:
        """Return the record of a key as a `KeyView`.

        Raises:
            ValueError: the key has no record.
            JournalFailed: the journal could not be read.
        """
        key = requests.to_text(key)
        (view,) = await self._views([(key, await self._read(key))], view_of)
        return view

    async def look(self, key: str, *, by: str, reason: str) -> OrderIntent | Order:
        """Return the parties to a key's order, which are personal data.

        The key's history records who viewed the parties.

        Args:
            by: the person who views the parties.
            reason: the reason, which is stored in the key's history.

        Returns:
            The intent if it is still stored, otherwise the order in the service's response.

        Raises:
            ValueError: the parties are not on record, the record is encrypted, or an argument is invalid.
            JournalFailed: the journal could not be read or written, so the parties are not returned.
        """
        look = Look(by=checked_name("by", by), reason=checked_text("reason", reason))
        key = requests.to_text(key)
        entry = await self._read(key)
        _refuse_encrypted(entry)
        if parties_of(entry) is None:
            raise ValueError("key: the parties to its order are not on record")
        parties = parties_of((await self._write(key, look)).entry)
        if parties is None:
            raise ValueError("key: was changed just now, and the parties are no longer on record")
        return parties

    async def note(self, key: str, *, by: str, reason: str) -> None:
        """Add a note to the key's history. The key's version does not change, and a proposal stays valid.

        Args:
            by: the person who writes the note.
            reason: the note, one line of text.

        Raises:
            ValueError: the key has no record, or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        note = Note(by=checked_name("by", by), reason=checked_text("reason", reason))
        key = requests.to_text(key)
        await self._read(key)
        await self._write_or_refuse(key, note)

    async def watch(self, key: str, *, by: str, ends: bool = False) -> None:
        """Record that a person is looking at a key, so that other people can choose other keys.

        The key's version does not change. The key's next change removes the watcher.

        Args:
            by: the person.
            ends: whether to remove the watcher. Anyone may remove the watcher.

        Raises:
            ValueError: the key has no record, or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        move = (Unwatch if ends else Watch)(by=checked_name("by", by))
        key = requests.to_text(key)
        await self._read(key)
        await self._write_or_refuse(key, move)

    async def history(self, key: str) -> tuple[HistoryEvent, ...]:
        """Return a key's recorded history, oldest line first. An unknown key has an empty history.

        Raises:
            InvalidOrder: the key has no history and is invalid.
            JournalFailed: the journal could not be read.
        """
        key = requests.to_text(key)
        steps = await self._journal.history(key)
        if not steps:
            requests.refuse_key(key)
        return steps

    async def audit(
        self,
        *,
        limit: int = 100,
        after: str = "",
        by: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[list[AuditLine], str]:
        """Return the history lines that record people's actions, for all keys of the scope, newest first.

        To stay fast, a call may search only part of a long history, so it may return fewer lines than
        ``limit``, or none at all.

        Args:
            limit: the maximum number of lines.
            after: the ``after`` that the previous call returned; empty for the first call.
            by: return only lines by the given person.
            since: an aware ``datetime``; return only lines recorded at this time or later.
            until: an aware ``datetime``; return only lines recorded before this time.

        Returns:
            The lines, and the ``after`` to pass to the next call; an empty string means that no lines are
            left. Each line is a tuple: the key, the history line, and the line of the proposal that was
            pending at that time (or None).

        Raises:
            ValueError: ``since`` or ``until`` is not an aware ``datetime``, or the journal does not implement
                ``audit``.
            JournalFailed: the journal could not be read.
        """
        begin, end = _seconds("since", since), _seconds("until", until)
        return await self._journal.audit(limit=limit, after=after, by=by, since=begin, until=end)

    # --- decisions ------------------------------------------------------------------------------

    async def resolve(
        self,
        key: str,
        *,
        order_id: str,
        by: str,
        reason: str,
        undone: bool = False,
        seen: int | None = None,
    ) -> KeyRecord:
        """Record that the order of a key in doubt exists. Later calls with the key return the order.

        If the given id is already recorded as the key's order, return the record without writing anything.

        Args:
            key: a key in doubt.
            order_id: the order's id, ``tx-…``.
            by: the person who decides.
            reason: the evidence, which is stored in the key's history.
            undone: confirms that a person has undone the hooks of an earlier intent. ``undone`` is required
                if an undo of an earlier intent is pending but cannot be read.
            seen: the version of the key that the person saw. The decision is refused if the key now has
                another version.

        Returns:
            The key's record after the decision.

        Raises:
            ApprovalRequired: the scope requires dual control; see `propose`.
            KeyChanged: the key has changed since ``seen``.
            ValueError: the key is neither in doubt nor recorded with the given order id, the order belongs to
                another key, or an argument is invalid. `ApprovalRequired` and `KeyChanged` are subclasses of
                ValueError.
            JournalFailed: the journal could not be read or written.
        """
        return await self.decide(
            key, Decision.RESOLVE, order_id=order_id, by=by, reason=reason, undone=undone, seen=seen
        )

    async def refute(
        self, key: str, *, by: str, reason: str, undone: bool = False, seen: int | None = None
    ) -> KeyRecord:
        """Record that the order of a key in doubt does not exist, and can no longer appear.

        The key becomes free, and the undos of its hooks become pending. `TransferClient.recover` runs the
        undos, which release the hold if a hook placed it. A hold that was passed as ``held=`` must be
        released by the bank. If the order does appear later, the payment may be made twice, or without a
        hold.

        Args:
            key: a key in doubt, at least ``settle_after`` seconds after the last moment at which its order
                could have been sent.
            by: the person who decides.
            reason: the evidence, which is stored in the key's history.
            undone: confirms that a person undid the hooks and released the hold. ``undone`` is required if
                the record is corrupt, because `recover` may then be unable to undo the hooks. The corrupt
                record itself is kept.
            seen: see `resolve`.

        Returns:
            The key's record after the decision.

        Raises:
            ApprovalRequired: the scope requires dual control; see `propose`.
            KeyChanged: the key has changed since ``seen``.
            ValueError: the key is not in doubt, it is too early to refute the order, ``undone`` is required,
                or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        return await self.decide(key, Decision.REFUTE, by=by, reason=reason, undone=undone, seen=seen)

    async def amend(
        self, key: str, *, order_id: str | None, by: str, reason: str, seen: int | None = None
    ) -> KeyRecord:
        """Correct or withdraw an order id that a person or the bank's ``resolve`` supplied.

        An id from the service's own response cannot be changed. If a worker has already published the wrong
        id, the correction is published as well.

        Args:
            key: a key in the created state, with an order id but no order from the service's response.
            order_id: the correct id. If the correct id is unknown, pass None to put the key back in doubt.
            by: the person who decides.
            reason: the evidence, which is stored in the key's history.
            seen: see `resolve`.

        Returns:
            The key's record after the decision.

        Raises:
            ApprovalRequired: the scope requires dual control; see `propose`.
            KeyChanged: the key has changed since ``seen``.
            ValueError: the key is not in the created state, its order comes from the service's response, the
                id is unchanged or belongs to another key, or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        return await self.decide(key, Decision.AMEND, order_id=order_id, by=by, reason=reason, seen=seen)

    async def decide(
        self,
        key: str,
        decision: Decision,
        *,
        order_id: str | None = None,
        by: str,
        reason: str,
        undone: bool = False,
        seen: int | None = None,
    ) -> KeyRecord:
        """Make any decision that one person may make alone.

        `resolve`, `refute` and `amend` are special cases of `decide`.

        Args:
            decision: the decision to make. ``WAIVE`` is refused, because ending dual control takes two
                people.
            order_id: the order's id, if the decision requires one.
            by: the person who decides.
            reason: the evidence, which is stored in the key's history.
            undone: confirms that a person has done the undos that `recover` cannot run.
            seen: the version of the key that the person saw, or None to accept any version.

        Returns:
            The key's record after the decision.

        Raises:
            ApprovalRequired: the scope requires dual control; see `propose`.
            KeyChanged: the key has changed since ``seen``.
            ValueError: the decision cannot be made now, or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        basis = _basis(by, reason, seen=seen)
        row, order_id, key = *_row_and_id(decision, order_id), requests.to_text(key)
        if row.applies_to is KeyState.FREE:
            raise ValueError(f"decision: {row.decision.value} needs two people: propose it instead")
        # This is an early check. The write checks it again; see `is_by_one_person`.
        if demands_four_eyes(await self._setting()):
            raise ApprovalRequired
        async with self._decidable(key, row, order_id, basis, undone=undone) as (entry, basis):
            if entry.state is not row.applies_to:  # The decision is already recorded.
                return record_of(entry)
            return await self._end(key, row, entry, order_id, basis)

    # --- dual control ---------------------------------------------------------------------------

    async def propose(
        self,
        key: str,
        decision: Decision,
        *,
        order_id: str | None = None,
        by: str,
        reason: str,
        undone: bool = False,
        seen: int | None = None,
    ) -> Proposal:
        """Propose a decision for another person to approve.

        Any other change to the key makes the proposal void.

        Args:
            key: a key that the decision applies to. For ``WAIVE``, which ends dual control, pass `FOUR_EYES`.
            decision: the proposed decision.
            order_id: the order's id for ``RESOLVE`` and ``AMEND``. For ``AMEND``, pass None to put the key in
                doubt again.
            by: the person who proposes the decision.
            reason: the evidence, which is stored in the key's history.
            undone: confirms that a person has done the undos that `recover` cannot run.
            seen: see `resolve`.

        Returns:
            The recorded proposal.

        Raises:
            KeyChanged: the key has changed since ``seen``.
            ValueError: the decision cannot be made now, or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        basis = _basis(by, reason, seen=seen)
        row, order_id, key = *_row_and_id(decision, order_id), requests.to_text(key)
        async with self._decidable(key, row, order_id, basis, undone=undone, proposing=True) as (
            entry,
            basis,
        ):
            propose = Propose(
                id=fresh_id(),
                decision=row.decision,
                attempt=entry.attempt,
                order_id=order_id,
                by=basis.by,
                said=basis.reason,
                undone=undone,
                settle_after=self._settle_after,
                seen=basis.seen,
            )
            proposal = (await self._write_or_refuse(key, propose)).entry.proposal
        assert proposal is not None  # noqa: S101 - the transition has just recorded it
        return proposal

    async def approve(self, key: str, *, proposal: str, by: str, reason: str) -> KeyRecord:
        """Approve another person's proposal, and thereby make the proposed decision.

        Args:
            proposal: the id of the proposal that the person saw. The call fails if the key's current proposal
                has a different id.
            by: the person who approves, who must not be the proposer.
            reason: the evidence, which is stored in the key's history.

        Returns:
            The key's record after the decision.

        Raises:
            ApproverIsProposer: ``by`` is the proposer's name, or a name that looks the same.
            KeyChanged: the proposal is void, or another proposal has replaced it.
            ValueError: the decision cannot be made now, or an argument is invalid. `ApproverIsProposer` and
                `KeyChanged` are subclasses of ValueError.
            JournalFailed: the journal could not be read or written.
        """
        basis, key = _basis(by, reason, proposal=proposal), requests.to_text(key)
        entry = await self._read(key)
        proposed = _open_proposal(entry, basis)
        if is_same_person(basis.by, proposed.by):
            raise ApproverIsProposer
        row = row_of(proposed.decision, proposed.order_id)
        return await self._end(key, row, entry, proposed.order_id, basis)

    async def withdraw(self, key: str, *, proposal: str, by: str, reason: str) -> KeyRecord:
        """Withdraw or reject a proposal.

        Anyone may withdraw or reject a proposal. The key's state does not change.

        Args:
            proposal: the id of the proposal that the person saw.
            by: the person who withdraws or rejects the proposal.
            reason: the reason, which is stored in the key's history.

        Returns:
            The key's record.

        Raises:
            KeyChanged: the proposal is void, or another proposal has replaced it.
            ValueError: the key has no record, or an argument is invalid.
            JournalFailed: the journal could not be read or written.
        """
        basis, key = _basis(by, reason, proposal=proposal), requests.to_text(key)
        proposed = _open_proposal(await self._read(key), basis)
        withdraw = Withdraw(proposal=proposed.id, by=basis.by, reason=basis.reason)
        return record_of((await self._write_or_refuse(key, withdraw)).entry)

    async def four_eyes(self) -> FourEyes:
        """Return whether the scope requires dual control, and the proposal to end it, if any.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        entry = await self._setting()
        return FourEyes(demanded=demands_four_eyes(entry), proposal=None if entry is None else entry.proposal)

    async def demand_four_eyes(self, *, by: str, reason: str) -> FourEyes:
        """Require dual control in this scope from now on.

        One person can introduce dual control, but ending it takes two people.

        Args:
            by: the person who requires dual control.
            reason: the reason, which is kept in the history of `FOUR_EYES`.

        Raises:
            ValueError: an argument is invalid.
            JournalFailed: the journal could not be written.
        """
        entry = await self._demand(_basis(by, reason))
        return FourEyes(demanded=demands_four_eyes(entry), proposal=entry.proposal)

    # --- the rest -------------------------------------------------------------------------------

    async def prune(self, *, before: datetime) -> int:
        """Delete the keys on which work ended before a given time.

        Keys in doubt, in use or with pending work are kept.

        A deleted key is free, so the next call with it creates another order. A key on which work ended
        within the last day, by the journal's clock, is always kept, because its message may be delivered
        again.

        Args:
            before: an aware ``datetime`` that is not in the future.

        Returns:
            The number of deleted keys.

        Raises:
            ValueError: ``before`` is not an aware ``datetime``, or is in the future.
            JournalFailed: the journal could not be written.
        """
        return await self._journal.prune(before=before)

    async def times(self) -> Callable[[float], datetime]:
        """Return a function that converts the journal's times to UTC, limited to the range of ``datetime``.

        Raises:
            JournalFailed: the journal could not be read.
        """
        utc = await self._calendar()
        return lambda seconds: nearest_time(utc, seconds)

    async def _calendar(self) -> Callable[[float], datetime | None]:
        """Return a function that converts the journal's times to UTC, or to None if out of range."""
        journal_now, utc_now = await self._journal.now(), self._clock.utc()
        return lambda seconds: time_after(utc_now, seconds - journal_now)

    async def _views(self, found: Sequence[tuple[str, Entry]], view: Callable[..., V]) -> tuple[V, ...]:
        if not found:
            return ()
        utc, now = await self._calendar(), self._clock.utc()
        wait = self._settle_after
        return tuple(view(key, entry, utc, now=now, settle_after=wait) for key, entry in found)

    async def _setting(self) -> Entry | None:
        """Return the entry that stores the dual-control rule.

        If ``four_eyes`` is set, record the rule first.
        """
        entry = await self._journal.read(FOUR_EYES)
        if not self._four_eyes or demands_four_eyes(entry):
            return entry
        return await self._demand(Basis(by="the setting", reason="four_eyes=True"))

    async def _demand(self, basis: Basis) -> Entry:
        return (await self._write(FOUR_EYES, Demand(by=basis.by, reason=basis.reason))).entry

    # --- checks before a decision ----------------------------------------------------------------

    async def _read(self, key: str) -> Entry:
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        return entry

    @asynccontextmanager
    async def _decidable(
        self,
        key: str,
        row: DecisionRow,
        order_id: str | None,
        basis: Basis,
        *,
        undone: bool,
        proposing: bool = False,
    ) -> AsyncIterator[tuple[Entry, Basis]]:
        """Yield the entry that the decision is about, and ``basis`` with the version of that entry.

        First put a corrupt record into quarantine. The yielded entry is in doubt, free, or created with
        ``order_id``. A write by `_decidable` itself does not cause a `KeyChanged`. If a ValueError other
        than `RecordSetAside` is raised, nothing has been written.
        """
        if (row.applies_to is KeyState.FREE) != (key == FOUR_EYES):
            raise ValueError("key: the only decision for FOUR_EYES is WAIVE, which no other key allows")
        if row.applies_to is KeyState.FREE:
            yield await self._demanded(), basis
            return
        entry = await self._read(key)
        if basis.seen is not None and basis.seen != entry.version:
            raise KeyChanged(entry)
        if row.applies_to is KeyState.CREATED:
            _refuse_unless_amendable(entry, order_id)
            yield entry, basis
            return
        was_corrupt = entry.unread is not None
        by_hand = _refuse_unreadable(entry, order_id, undone=undone)
        if was_corrupt:
            entry = await self._quarantined(key, entry, order_id, basis, by_hand=by_hand, proposing=proposing)
        try:
            if entry.state is KeyState.SENDING and entry.attempt is not None:
                entry = await self._expired(key, entry.attempt, seen=basis.seen)
            if not (was_corrupt and order_id is None and entry.state is KeyState.FREE):
                _refuse_unless_in_doubt(entry, None if proposing else order_id)
            yield entry, basis if basis.seen is None else attrs.evolve(basis, seen=entry.version)
        except ValueError as error:
            if not was_corrupt:
                raise
            why = str(error).removeprefix("key: ")
            raise RecordSetAside(
                f"key: the corrupt record was quarantined. Nothing was decided: {why}"
            ) from error

    async def _demanded(self) -> Entry:
        entry = await self._setting()
        if entry is None or not demands_four_eyes(entry):
            raise ValueError("four_eyes: this scope does not require dual control; there is nothing to waive")
        return entry

    async def _quarantined(
        self,
        key: str,
        entry: Entry,
        order_id: str | None,
        basis: Basis,
        *,
        by_hand: tuple[str, ...],
        proposing: bool,
    ) -> Entry:
        """Put a corrupt record into quarantine, unless the decision is a refutation that is too early."""
        if order_id is None and (proposing or entry.state is not KeyState.FREE):
            wait = entry.settled_at(self._settle_after) - await self._journal.now()
            if entry.sent_until and wait > 0:
                raise too_early(wait)
        why = f"{basis.reason}; the unreadable part is kept"
        if by_hand:
            why += f"; undone manually: {', '.join(by_hand)}"
        may_exist = proposing or order_id is not None
        quarantine = Quarantine(by=basis.by, reason=why, proposing=proposing, order_may_exist=may_exist)
        verdict = await self._write(key, quarantine)
        if verdict.denial is Rejection.ALONE:
            raise ApprovalRequired
        if verdict.denial is Rejection.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker may be using the key; try again in {left} s")
        return verdict.entry

    async def _expired(self, key: str, attempt: str, *, seen: int | None) -> Entry:
        """Put a key in doubt if the lease of the worker that was sending its order has expired."""
        verdict = await self._write(key, Expire(attempt=attempt))
        if verdict.denial is None:
            self._publish(OrderInDoubt, key, verdict.entry, error=ABANDONED)
        elif verdict.denial is Rejection.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker is sending its order; try again in {left} s")
        elif seen is not None:  # The sender has reported its outcome in the meantime.
            raise KeyChanged(verdict.entry)
        return verdict.entry

    # --- the write, and its events --------------------------------------------------------------

    async def _end(
        self, key: str, row: DecisionRow, entry: Entry, order_id: str | None, basis: Basis
    ) -> KeyRecord:
        move = transition_of(row, entry, order_id, settle_after=self._settle_after, basis=attrs.asdict(basis))
        verdict = await self._write(key, move)
        entry = verdict.entry
        if verdict.denial is not None:
            # Another person may have made the same decision first. In that case, a decision that depends on
            # ``seen`` or on a proposal is not on record, and must not be reported as made.
            is_idempotent = row.decision is Decision.RESOLVE and basis.proposal is None and basis.seen is None
            if is_idempotent and _is_created_as(entry, order_id):
                return record_of(entry)
            raise refusal(verdict, move)
        if row.outcome is Outcome.UNKNOWN:
            self._publish(OrderInDoubt, key, entry, error=TAKEN_BACK)
        elif row.outcome is not None:
            self._publish(Resolved, key, entry, outcome=row.outcome, order_id=order_id)
        return record_of(entry)

    async def _write_or_refuse(self, key: str, move: Move) -> TransitionResult:
        verdict = await self._write(key, move)
        if verdict.denial is not None:
            raise refusal(verdict, move)
        return verdict

    async def _write(self, key: str, move: Move) -> TransitionResult:
        return await self._journal.write(key, move, certain=Outcome.UNKNOWN)

    def _publish(self, kind: type[Event], key: str, entry: Entry, **fields: Any) -> None:
        ids: dict[str, Any] = {"key": key, "intent_id": entry.intent_id, "attempt_id": entry.attempt}
        self._observers.publish(kind(**ids, attempt=0, seconds=0.0, **fields))


def _basis(by: str, reason: str, *, seen: int | None = None, proposal: str | None = None) -> Basis:
    return Basis(
        by=checked_name("by", by), reason=checked_text("reason", reason), seen=seen, proposal=proposal
    )


def _seconds(name: str, time: datetime | None) -> float | None:
    """Return ``time`` in seconds since 1970.

    Raises:
        ValueError: ``time`` is not an aware ``datetime``.
    """
    if time is None:
        return None
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise ValueError(f"{name}: must be an aware datetime")
    return time.timestamp()


def _row_and_id(decision: Decision, order_id: str | None) -> tuple[DecisionRow, str | None]:
    """Check a decision and its order id. Return the decision's row and the id."""
    row = row_of(checked_decision(decision), order_id)
    return row, None if order_id is None else checked_order_id(order_id)


def _open_proposal(entry: Entry, basis: Basis) -> Proposal:
    if entry.proposal is None or entry.proposal.id != basis.proposal:
        raise KeyChanged(entry)
    return entry.proposal


def _refuse_unless_amendable(entry: Entry, order_id: str | None) -> None:
    if entry.state is not KeyState.CREATED:
        raise ValueError(f"key: must have a recorded order; it is {state_text(entry)}")
    if not entry.is_amendable:
        raise refusal(TransitionResult(now=0.0, entry=entry, denial=Rejection.ANSWERED))
    if order_id == entry.order_id:
        raise ValueError("order_id: is already recorded for the key")


def _refuse_encrypted(entry: Entry) -> None:
    if entry.unread is not None and entry.unread.is_sealed:
        raise ValueError("key: its record is encrypted: configure the encryption key")


def _refuse_unreadable(entry: Entry, order_id: str | None, *, undone: bool) -> tuple[str, ...]:
    """Return the hooks that a person undid, or raise ValueError if the record does not allow the decision."""
    _refuse_encrypted(entry)
    if entry.state is KeyState.CREATED:  # This is checked before anything is written.
        _refuse_created(entry, order_id)
    return checked_undone(entry, refuting=order_id is None, undone=undone)


def _refuse_created(entry: Entry, order_id: str | None) -> None:
    """Reject a decision about a created key, unless the decision confirms the recorded order id."""
    if _is_created_as(entry, order_id):
        return
    if entry.unread is not None and order_id is not None:
        raise ValueError(
            f"order_id: the corrupt record contains {entry.order_id}. Pass this id to quarantine the record; "
            "a wrong id can be amended afterwards"
        )
    raise ValueError(f"key: must be in doubt; it is {state_text(entry)}")


def _refuse_unless_in_doubt(entry: Entry, order_id: str | None) -> None:
    if entry.state is not KeyState.IN_DOUBT and not _is_created_as(entry, order_id):
        raise ValueError(f"key: must be in doubt; it is {state_text(entry)}")


def _is_created_as(entry: Entry, order_id: str | None) -> bool:
    return entry.state is KeyState.CREATED and entry.order_id == order_id
