"""What people do with a journal: see what is in doubt, end a doubt, look back, and forget.

An operator has found out, by the bank's own means, what became of an order. Its word is a move like
any other: a compare-and-set on the attempt that it was asked about, kept in the key's history with
who said it and why. Nobody's word is believed too early: a request that stalled may still take effect.
Where a scope demands four eyes, one person proposes and another approves: the word of one is not enough.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import attrs
from attrs import frozen

from transfer_async._models import requests
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, Observer, Observers, OrderInDoubt, Resolved
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.call import fresh_id
from transfer_async._pipeline.key_views import (
    ApprovalRequired,
    ApproverIsProposer,
    Doubt,
    FourEyes,
    KeyChanged,
    KeyView,
    RecordSetAside,
    checked_decision,
    checked_flag,
    checked_name,
    checked_order_id,
    checked_settle_after,
    checked_text,
    doubt_of,
    nothing_on_record,
    parties_of,
    refusal,
    to_undo_by_hand,
    told,
    too_early,
    view_of,
)
from transfer_async._support.clock import EARLIEST, LATEST, Clock, Duration, time_after
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
    undos_on_failure,
)
from transfer_async.journal.operator_transitions import (
    Amend,
    Demand,
    Look,
    Propose,
    TakeBack,
    Waive,
    Withdraw,
)
from transfer_async.journal.protocol import Journal, KeyRecord, ScopedJournal, checked_journal, record_of
from transfer_async.journal.transitions import Expire, Move, Quarantine, Refute, Resolve

PAGE = 500
"""Keys that are asked for at once."""


TAKEN_BACK = "TakenBack"
"""In place of an error's name: an operator took an order's id back."""


@frozen(kw_only=True)
class OperatorDecision:
    """What somebody says: who, how they know, and of the key as they saw it.

    Args:
        by: who says so.
        reason: how they know.
        seen: the entry's ``moves`` when they looked; None for whatever it has become.
        proposal: the id of the proposal that this approves, if it does.
    """

    by: str
    reason: str
    seen: int | None = None
    proposal: str | None = None


class Operators:
    """The operators' side of a journal, for one scope of it.

    Args:
        journal: the journal; it is not closed.
        scope: names the service in the journal: a client's ``scope``, or its normalised ``base_url``.
        settle_after: seconds after the last possible send before a refutation is believed.
        four_eyes: the scope is to demand, from now on and of everybody, that what one person decides is
            approved by another. It is stored in the journal; false obeys what is stored there.
        observers: called with `Resolved`, and with `OrderInDoubt` for a dead worker's request.
        clock: time; for tests.

    Raises:
        ValueError: names the argument and the rule.
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
        self._four_eyes = checked_flag("four_eyes", four_eyes)
        self._observers = Observers(observers)

    async def prepare(self) -> None:
        """Store the demand for four eyes, if these are to make it; each decision does so, too.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        if self._four_eyes:
            await self._setting()

    @property
    def scope(self) -> str:
        """Names the service whose keys these are."""
        return self._journal.scope

    async def other_scopes(self) -> tuple[str, ...]:
        """The scopes of which the journal has keys, if it has none of this one: the scope may be wrong.

        Empty as well if the journal has no keys at all, or cannot tell.

        Raises:
            JournalFailed: the journal could not be read.
        """
        return await self._journal.other_scopes()

    # --- what there is to see -------------------------------------------------------------------

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """Every key in doubt, oldest first.

        Raises:
            JournalFailed: the journal could not be read.
        """
        found = await self._journal.in_doubt()
        if not found:
            return ()
        utc = await self.times()
        return tuple(doubt_of(key, entry, utc) for key, entry in found)

    async def waiting(self) -> tuple[KeyView, ...]:
        """Every key that waits for somebody, oldest first.

        In doubt, left by a dead worker, with an undo owed, an end untold, or a proposal to be approved.

        Raises:
            JournalFailed: the journal could not be read.
        """
        found = dict(await self._journal.in_doubt())
        last = ""
        while page := await self._journal.work(limit=PAGE, after=last):
            found.update(page)
            last = page[-1][0]
        views = await self._views(list(found.items()))
        return tuple(sorted(views, key=lambda view: view.entry.claimed_at))

    async def page(self, *, limit: int = 100, after: str = "") -> tuple[KeyView, ...]:
        """Some of the keys that wait for somebody and that nobody attends to just now.

        Args:
            limit: how many at most.
            after: only keys beyond this one, in the journal's own order of keys.

        Raises:
            JournalFailed: the journal could not be read.
        """
        return await self._views(await self._journal.work(limit=limit, after=after))

    async def view(self, key: str) -> KeyView:
        """What is on record of a key.

        Raises:
            ValueError: nothing is.
            JournalFailed: the journal could not be read.
        """
        key = requests.to_text(key)
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        (view,) = await self._views([(key, entry)])
        return view

    async def look(self, key: str, *, by: str, reason: str) -> OrderIntent | Order:
        """Who the parties of a key's order are; that it was asked, by whom and why, is kept in the history.

        Args:
            key: the key.
            by: who looks.
            reason: why.

        Returns:
            What was wished for, as long as it is kept, or else the order as the service answered it.

        Raises:
            ValueError: nothing is on record of them, or an argument is no good.
            JournalFailed: the journal could not be read or written: nothing is shown then.
        """
        look = Look(by=checked_name("by", by), reason=checked_text("reason", reason))
        key = requests.to_text(key)
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        if parties_of(entry) is None:
            raise ValueError("key: nothing is on record of the parties of its order")
        parties = parties_of((await self._journal.write(key, look, certain=Outcome.UNKNOWN)).entry)
        if parties is None:
            raise ValueError("key: was changed just now; nothing is on record of the parties any more")
        return parties

    async def history(self, key: str) -> tuple[HistoryEvent, ...]:
        """Every move of the key that is remembered, oldest first; empty for a key never heard of.

        Raises:
            InvalidOrder: there is none, and it cannot be a key.
            JournalFailed: the journal could not be read.
        """
        key = requests.to_text(key)
        steps = await self._journal.history(key)
        if not steps:
            requests.refuse_key(key)
        return steps

    # --- what they decide ------------------------------------------------------------------------

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
        """Write down that the order of a doubt exists; from now on the key gives it back.

        Of a key whose order is known by that very id, nothing is left to be done: what is on record is
        given back, and not written anew.

        Args:
            key: a key in doubt.
            order_id: the order's id, ``tx-…``.
            by: who says so.
            reason: how they know; it is kept in the key's history.
            undone: where an undo that is owed for an earlier wish cannot be read: it is done by hand.
            seen: the key's ``moves`` when somebody looked: it is only done if it has made none since.

        Returns:
            What is on record of the key now.

        Raises:
            ApprovalRequired: the scope demands that another person approves: see `propose`.
            KeyChanged: the key has moved since ``seen``.
            ValueError: the key is neither in doubt nor created by that id, the id is another key's, or an
                argument is no good. The two above are of its kind.
            JournalFailed: the journal could not be read or written.
        """
        word, order_id, key = _word(by, reason, seen=seen), checked_order_id(order_id), requests.to_text(key)
        await self._refuse_alone()
        async with self._in_doubt(key, word, undone=undone, order_id=order_id) as (entry, word):
            if _is_made(entry, order_id):
                return record_of(entry)
            return await self._end(key, self._move(Decision.RESOLVE, entry, order_id, word))

    async def refute(
        self, key: str, *, by: str, reason: str, undone: bool = False, seen: int | None = None
    ) -> KeyRecord:
        """Write down that the order of a doubt does not exist, and that none can appear any more.

        This frees the key, and the undos of its hooks become owed: `TransferClient.recover` pays them, and so
        releases a hold that they placed; one given as ``held=`` is the bank's to release. An order that
        appears all the same is a duplicate, or a loss.

        Args:
            key: a key in doubt, ``settle_after`` after the last possible send.
            by: who says so.
            reason: how they know; it is kept in the key's history.
            undone: required if the record cannot be read and names hooks, or may have had some, that
                `recover` cannot undo: you have undone them, and released the hold, by hand. The stored
                record is kept.
            seen: as for `resolve`.

        Returns:
            What is on record of the key now.

        Raises:
            ApprovalRequired: as for `resolve`; so is `KeyChanged`.
            ValueError: the key is not in doubt, it is too early, ``undone`` is required, or an argument
                is no good.
            JournalFailed: the journal could not be read or written.
        """
        word = _word(by, reason, seen=seen)
        key = requests.to_text(key)
        await self._refuse_alone()
        async with self._in_doubt(key, word, undone=undone) as (entry, word):
            if entry.state is KeyState.FREE:
                return record_of(entry)
            return await self._end(key, self._move(Decision.REFUTE, entry, None, word))

    async def amend(
        self, key: str, *, order_id: str | None, by: str, reason: str, seen: int | None = None
    ) -> KeyRecord:
        """Correct the id of an order that a person, or the bank's own ``resolve``, gave; never the service's.

        Args:
            key: a key that is created, of whose order the id alone is on record.
            order_id: the right one; None where nobody knows: the key is in doubt again.
            by: who says so.
            reason: how they know; it is kept in the key's history.
            seen: as for `resolve`.

        Returns:
            What is on record of the key now. Whoever was told of the wrong id by a worker is told anew.

        Raises:
            ApprovalRequired: as for `resolve`; so is `KeyChanged`.
            ValueError: the key is not created, the service itself answered with its order, the id is the
                same or another key's, or an argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        word = _word(by, reason, seen=seen)
        right = None if order_id is None else checked_order_id(order_id)
        key = requests.to_text(key)
        await self._refuse_alone()
        entry = await self._amendable(key, right, word)
        return await self._end(key, self._move(Decision.AMEND, entry, right, word))

    # --- four eyes ------------------------------------------------------------------------------

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
        """Say what is to become of a key, for another person to approve.

        A later proposal takes the place of an earlier one, and any other move of the key makes it void.

        Args:
            key: as for `resolve`, `refute` and `amend`; `FOUR_EYES` for ``WAIVE``.
            decision: which of them; or ``WAIVE``: that one person shall be enough from now on.
            order_id: for ``RESOLVE`` and ``AMEND``: the order's id; None with ``AMEND``: in doubt again.
            by: who proposes it.
            reason: how they know.
            undone: as for them.
            seen: as for `resolve`.

        Raises:
            KeyChanged: as for `resolve`.
            ValueError: it could not be decided now by whoever may, or an argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        word, decision = _word(by, reason, seen=seen), checked_decision(decision)
        named = decision is Decision.RESOLVE or (decision is Decision.AMEND and order_id is not None)
        if named:
            order_id = checked_order_id(order_id or "")
        elif order_id is not None:
            raise ValueError(f"order_id: must not be given to {decision.value}")
        key = requests.to_text(key)
        if (decision is Decision.WAIVE) != (key == FOUR_EYES):
            raise ValueError("key: FOUR_EYES is what is to be waived, and nothing else is")
        if decision is Decision.WAIVE:
            entry = await self._setting()
            if entry is None or not demands_four_eyes(entry):
                raise ValueError("four_eyes: are not demanded in this scope; there is nothing to waive")
        elif decision is Decision.AMEND:
            entry = await self._amendable(key, order_id, word)
        else:
            doubted = self._in_doubt(key, word, undone=undone, order_id=order_id, proposing=True)
            async with doubted as (entry, word):
                return await self._proposed(key, decision, entry, order_id, word, undone=undone)
        return await self._proposed(key, decision, entry, order_id, word, undone=undone)

    async def _proposed(
        self,
        key: str,
        decision: Decision,
        entry: Entry,
        order_id: str | None,
        word: OperatorDecision,
        *,
        undone: bool,
    ) -> Proposal:
        move = Propose(
            id=fresh_id(),
            decision=decision,
            attempt=entry.attempt,
            order_id=order_id,
            by=word.by,
            said=word.reason,
            undone=undone,
            settle_after=self._settle_after,
            seen=word.seen,
        )
        proposal = (await self._made(key, move)).entry.proposal
        assert proposal is not None  # noqa: S101 - the move has just made it
        return proposal

    async def approve(self, key: str, *, proposal: str, by: str, reason: str) -> KeyRecord:
        """Let what another person proposed be done: the key becomes what was proposed.

        Args:
            key: the key.
            proposal: the id of the proposal that was seen: no other is approved.
            by: who approves; not who proposed it.
            reason: how they know.

        Returns:
            What is on record of the key now.

        Raises:
            ApproverIsProposer: ``by`` proposed it.
            KeyChanged: the proposal is void, or another has taken its place.
            ValueError: it cannot be done now, or an argument is no good. The two above are of its kind.
            JournalFailed: the journal could not be read or written.
        """
        word, key = _word(by, reason, proposal=proposal), requests.to_text(key)
        entry = await self._read(key)
        proposed = _proposed(entry, word)
        if is_same_person(word.by, proposed.by):
            raise ApproverIsProposer
        return await self._end(key, self._move(proposed.decision, entry, proposed.order_id, word))

    async def withdraw(self, key: str, *, proposal: str, by: str, reason: str) -> KeyRecord:
        """Take a proposal back, or turn it down; anybody may, and the key stays as it is.

        Args:
            key: the key.
            proposal: the id of the proposal that was seen.
            by: who says so.
            reason: why; it is kept in the key's history.

        Raises:
            KeyChanged: as for `approve`.
            ValueError: nothing is on record of the key, or an argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        word, key = _word(by, reason, proposal=proposal), requests.to_text(key)
        proposed = _proposed(await self._read(key), word)
        withdraw = Withdraw(proposal=proposed.id, by=word.by, reason=word.reason)
        return record_of((await self._made(key, withdraw)).entry)

    async def four_eyes(self) -> FourEyes:
        """Whether the scope demands two persons, and whether it is proposed that one shall be enough.

        Raises:
            JournalFailed: the journal could not be read; or written, if these `Operators` demand it first.
        """
        entry = await self._setting()
        return FourEyes(demanded=demands_four_eyes(entry), proposal=None if entry is None else entry.proposal)

    async def demand_four_eyes(self, *, by: str, reason: str) -> FourEyes:
        """From now on two persons are needed in this scope; one may say so, and two that it is waived.

        Args:
            by: who says so.
            reason: why; it is kept in the history of `FOUR_EYES`.

        Raises:
            ValueError: an argument is no good.
            JournalFailed: the journal could not be written.
        """
        entry = await self._demand(_word(by, reason))
        return FourEyes(demanded=demands_four_eyes(entry), proposal=entry.proposal)

    # --- the rest ---------------------------------------------------------------------------------

    async def prune(self, *, before: datetime) -> int:
        """Forget keys that ended before then; never one in doubt, at work, or with anything owed.

        A forgotten key is free: whoever uses it again creates another order. So one that ended within
        the last day, on the journal's own clock, stays whatever is asked: its message may come again.

        Args:
            before: an aware time that does not lie ahead.

        Returns:
            How many keys were forgotten.

        Raises:
            ValueError: ``before`` is not an aware time, or lies ahead.
            JournalFailed: the journal could not be written.
        """
        return await self._journal.prune(before=before)

    async def times(self) -> Callable[[float], datetime]:
        """What turns the journal's seconds into times in UTC; a damaged one is the nearest that there is.

        Raises:
            JournalFailed: the journal could not be read.
        """
        time = await self._calendar()
        return lambda seconds: time(seconds) or (EARLIEST if seconds < 0 else LATEST)

    async def _calendar(self) -> Callable[[float], datetime | None]:
        """The same, but None for what is no time."""
        there, here = await self._journal.now(), self._clock.utc()
        return lambda seconds: time_after(here, seconds - there)

    async def _views(self, found: Sequence[tuple[str, Entry]]) -> tuple[KeyView, ...]:
        if not found:
            return ()
        utc, now = await self._calendar(), self._clock.utc()
        wait = self._settle_after
        return tuple(view_of(key, entry, utc, now=now, settle_after=wait) for key, entry in found)

    async def _setting(self) -> Entry | None:
        """The entry of the scope's own demand, stored anew if these are to demand it and it was not."""
        entry = await self._journal.read(FOUR_EYES)
        if not self._four_eyes or demands_four_eyes(entry):
            return entry
        return await self._demand(OperatorDecision(by="the setting", reason="four_eyes=True"))

    async def _demand(self, word: OperatorDecision) -> Entry:
        return (await self._write(FOUR_EYES, Demand(by=word.by, reason=word.reason))).entry

    async def _refuse_alone(self) -> None:
        """Raise `ApprovalRequired` where one person's word is not enough.

        This only refuses early: the write itself looks at the rule again, see `Move.is_by_one_person`.
        """
        if demands_four_eyes(await self._setting()):
            raise ApprovalRequired

    # --- what must be so before it --------------------------------------------------------------

    async def _read(self, key: str) -> Entry:
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        return entry

    async def _amendable(self, key: str, order_id: str | None, word: OperatorDecision) -> Entry:
        entry = await self._read(key)
        _refuse_if_moved(entry, word)
        if entry.state is not KeyState.CREATED:
            raise ValueError(f"key: must be created; it is {told(entry)}")
        if not entry.is_amendable:
            raise refusal(TransitionResult(now=0.0, entry=entry, denial=Rejection.ANSWERED))
        if order_id == entry.order_id:
            raise ValueError("order_id: is the one on record")
        return entry

    @asynccontextmanager
    async def _in_doubt(
        self,
        key: str,
        word: OperatorDecision,
        *,
        undone: bool,
        order_id: str | None = None,
        proposing: bool = False,
    ) -> AsyncIterator[tuple[Entry, OperatorDecision]]:
        """Give the entry of a key in doubt for the decision within: that ``order_id`` exists, or no order.

        A damaged record is set aside first; then it may also be free, or created by that id. And the word,
        of the key as it has become here: what is done here is no move of others.

        Raises:
            RecordSetAside: the damaged record was set aside, and then the decision was refused.
            ValueError: nothing was written.
        """
        entry = await self._read(key)
        _refuse_if_moved(entry, word)
        if entry.unread is not None and entry.unread.is_sealed:
            raise ValueError(
                "key: its record is sealed, and does not open here: bring the keys it was sealed with"
            )
        is_damaged = entry.unread is not None
        if entry.state is KeyState.CREATED:  # before anything is written
            _refuse_created(entry, order_id, proposing=proposing)
        by_hand = to_undo_by_hand(entry, refuting=order_id is None)
        if by_hand is not None and not undone:
            raise ValueError(
                "undone: is required: the record cannot be read, so recover cannot undo its hooks "
                f"({', '.join(by_hand) or 'not known'}). Undo them by hand first"
            )
        if is_damaged:
            if order_id is None and (proposing or entry.state is not KeyState.FREE):
                await self._refuse_too_early(entry)
            entry = await self._laid_aside(
                key,
                word,
                by_hand=by_hand or (),
                proposing=proposing,
                order_may_exist=proposing or order_id is not None,
            )
        try:
            if entry.state is KeyState.SENDING and entry.attempt is not None:
                entry = await self._expired(key, entry.attempt)
            may_be_free = is_damaged and order_id is None
            if not (may_be_free and entry.state is KeyState.FREE):
                _refuse_unless_in_doubt(entry, order_id)
            yield entry, word if word.seen is None else attrs.evolve(word, seen=entry.version)
        except ValueError as error:
            if not is_damaged:
                raise
            why = str(error).removeprefix("key: ")
            raise RecordSetAside(
                f"key: the damaged record was set aside. Nothing was decided: {why}"
            ) from error

    async def _refuse_too_early(self, entry: Entry) -> None:
        """Refuse a refutation before the record is written, if its last possible send can be read."""
        wait = entry.settled_at(self._settle_after) - await self._journal.now()
        if entry.sent_until and wait > 0:
            raise too_early(wait)

    async def _expired(self, key: str, attempt: str) -> Entry:
        """What becomes of a request whose worker is gone."""
        verdict = await self._write(key, Expire(attempt=attempt))
        if verdict.denial is None:
            self._tell(OrderInDoubt, key, verdict.entry, error=ABANDONED)
        elif verdict.denial is Rejection.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker is sending its order; ask again in {left} s")
        return verdict.entry

    async def _laid_aside(
        self,
        key: str,
        word: OperatorDecision,
        *,
        by_hand: tuple[str, ...],
        proposing: bool,
        order_may_exist: bool,
    ) -> Entry:
        why = f"{word.reason}; what could not be read is kept"
        if by_hand:
            why += f"; undone by hand: {', '.join(by_hand)}"
        quarantine = Quarantine(by=word.by, reason=why, proposing=proposing, order_may_exist=order_may_exist)
        verdict = await self._write(key, quarantine)
        if verdict.denial is Rejection.ALONE:
            raise ApprovalRequired
        if verdict.denial is Rejection.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker may be at work on it; ask again in {left} s")
        return verdict.entry

    # --- the move, and what is heard of it ------------------------------------------------------

    def _move(self, decision: Decision, entry: Entry, order_id: str | None, word: OperatorDecision) -> Move:
        said: dict[str, Any] = attrs.asdict(word)
        attempt, wrong = entry.attempt or "", entry.order_id or ""
        if decision is Decision.RESOLVE and order_id is not None:
            return Resolve(attempt=attempt, order_id=order_id, reply=None, **said)
        if decision is Decision.REFUTE:
            return Refute(
                attempt=attempt,
                settle_after=self._settle_after,
                pending_undos=undos_on_failure(entry),
                lease=0.0,  # nobody is at it yet: the next `recover` is
                **said,
            )
        if decision is Decision.WAIVE:
            return Waive(**said)
        if order_id is not None:
            return Amend(attempt=attempt, wrong=wrong, order_id=order_id, **said)
        return TakeBack(attempt=attempt, wrong=wrong, **said)

    async def _end(self, key: str, move: Move) -> KeyRecord:
        verdict = await self._write(key, move)
        entry = verdict.entry
        if verdict.denial is not None:
            # Somebody else was faster, and said the same. What was said of the key as it was seen, or of a
            # proposal, is not on record then, and must not be reported as done.
            is_idempotent = isinstance(move, Resolve) and move.proposal is None and move.seen is None
            if is_idempotent and _is_made(entry, move.order_bound):
                return record_of(entry)
            raise refusal(verdict, move)
        if isinstance(move, Resolve):
            self._tell(Resolved, key, entry, outcome=Outcome.CREATED, order_id=move.order_id)
        elif isinstance(move, Refute):
            self._tell(Resolved, key, entry, outcome=Outcome.REFUSED)
        elif isinstance(move, TakeBack):
            self._tell(OrderInDoubt, key, entry, error=TAKEN_BACK)
        return record_of(entry)

    async def _made(self, key: str, move: Move) -> TransitionResult:
        verdict = await self._write(key, move)
        if verdict.denial is not None:
            raise refusal(verdict, move)
        return verdict

    async def _write(self, key: str, move: Move) -> TransitionResult:
        return await self._journal.write(key, move, certain=Outcome.UNKNOWN)

    def _tell(self, kind: type[Event], key: str, entry: Entry, **fields: Any) -> None:
        self._observers.publish(kind(key=key, intent_id=entry.intent_id, attempt=0, seconds=0.0, **fields))


def _word(by: str, reason: str, *, seen: int | None = None, proposal: str | None = None) -> OperatorDecision:
    return OperatorDecision(
        by=checked_name("by", by), reason=checked_text("reason", reason), seen=seen, proposal=proposal
    )


def _proposed(entry: Entry, word: OperatorDecision) -> Proposal:
    if entry.proposal is None or entry.proposal.id != word.proposal:
        raise KeyChanged(entry)
    return entry.proposal


def _refuse_if_moved(entry: Entry, word: OperatorDecision) -> None:
    if word.seen is not None and word.seen != entry.version:
        raise KeyChanged(entry)


def _refuse_created(entry: Entry, order_id: str | None, *, proposing: bool) -> None:
    """Refuse to end what has ended, but for what changes nothing of the order on record."""
    if _is_made(entry, order_id) and (entry.unread is not None or not proposing):
        return
    if entry.unread is not None and order_id is not None:
        raise ValueError(
            f"order_id: the damaged record has {entry.order_id}. Give this id to set the record aside; "
            "a wrong id can be amended then"
        )
    raise ValueError(f"key: must be in doubt; it is {told(entry)}")


def _refuse_unless_in_doubt(entry: Entry, order_id: str | None) -> None:
    if entry.state is not KeyState.IN_DOUBT and not _is_made(entry, order_id):
        raise ValueError(f"key: must be in doubt; it is {told(entry)}")


def _is_made(entry: Entry, order_id: str | None) -> bool:
    return entry.state is KeyState.CREATED and entry.order_id == order_id
