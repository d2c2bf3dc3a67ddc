"""How a person's word becomes a move: what must be so before it, which move it is, and what is heard of it.

A person's word is a compare-and-set like any other move: on the attempt that it is about, on what was seen
if that is said, and, where it approves a proposal, on that very proposal.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
from attrs import frozen

from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, Observers, Resolved, WentInDoubt
from transfer_async._pipeline.call import fresh_id
from transfer_async._pipeline.doubt import ABANDONED
from transfer_async._pipeline.refusals import (
    FourEyesNeeded,
    Moved,
    SamePerson,
    nothing_on_record,
    refusal,
    told,
)
from transfer_async.journal.entries import Denial, Entry, KeyState, Verdict, owed_by
from transfer_async.journal.moves import Expire, LayAside, Move, Refute, Resolve
from transfer_async.journal.operator_moves import Amend, Demand, Propose, TakeBack, Waive, Withdraw
from transfer_async.journal.proposal import FOUR_EYES, Decision, Proposal, is_same_person
from transfer_async.journal.protocol import KeyRecord, record_of
from transfer_async.journal.scoped import ScopedJournal

TAKEN_BACK = "TakenBack"
"""In place of an error's name: an operator took an order's id back."""


@frozen(kw_only=True)
class Word:
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


class Decisions:
    """What people decide of the keys of one scope.

    Args:
        journal: one scope of it.
        settle_after: seconds after the last possible send before a refutation is believed.
        four_eyes: the scope is to demand four eyes from now on.
        observers: told of doubts that begin and end.
    """

    def __init__(
        self, journal: ScopedJournal, *, settle_after: float, four_eyes: bool, observers: Observers
    ) -> None:
        self._journal = journal
        self._settle_after = settle_after
        self._four_eyes = four_eyes
        self._observers = observers

    # --- four eyes ------------------------------------------------------------------------------

    async def setting(self) -> Entry | None:
        """The entry of the scope's own demand, stored anew if these are to demand it and it was not."""
        entry = await self._journal.read(FOUR_EYES)
        if not self._four_eyes or is_demanded(entry):
            return entry
        return await self.demand(Word(by="the setting", reason="four_eyes=True"))

    async def demand(self, word: Word) -> Entry:
        """From now on two persons are needed."""
        return (await self._write(FOUR_EYES, Demand(by=word.by, reason=word.reason))).entry

    async def refuse_alone(self) -> None:
        """Raise `FourEyesNeeded` where one person's word is not enough.

        What was not demanded yet when this looked, may be when the word is written down a moment later:
        the word is then as old as that moment.
        """
        if is_demanded(await self.setting()):
            raise FourEyesNeeded

    # --- what is decided ------------------------------------------------------------------------

    async def resolve(self, key: str, order_id: str, word: Word, *, undone: bool) -> KeyRecord:
        """See `Operators.resolve`."""
        entry, word = await self._in_doubt(key, word, undone=undone, or_made=order_id)
        if _is_made(entry, order_id):
            return record_of(entry)
        return await self._end(key, self._move(Decision.RESOLVE, entry, order_id, word))

    async def refute(self, key: str, word: Word, *, undone: bool) -> KeyRecord:
        """See `Operators.refute`."""
        entry, word = await self._in_doubt(key, word, undone=undone)
        if entry.state is KeyState.FREE:
            return record_of(entry)
        return await self._end(key, self._move(Decision.REFUTE, entry, None, word))

    async def amend(self, key: str, order_id: str | None, word: Word) -> KeyRecord:
        """See `Operators.amend`."""
        entry = await self._amendable(key, order_id, word)
        return await self._end(key, self._move(Decision.AMEND, entry, order_id, word))

    async def propose(
        self, key: str, decision: Decision, order_id: str | None, word: Word, *, undone: bool
    ) -> Proposal:
        """See `Operators.propose`."""
        if decision is Decision.WAIVE:
            entry = await self.setting()
            if entry is None or not is_demanded(entry):
                raise ValueError("four_eyes: are not demanded in this scope; there is nothing to waive")
        elif decision is Decision.AMEND:
            entry = await self._amendable(key, order_id, word)
        else:
            entry, word = await self._in_doubt(key, word, undone=undone)
            if entry.state is KeyState.FREE:
                raise ValueError("key: what could not be read is laid aside; nothing is left to be decided")
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

    async def approve(self, key: str, word: Word) -> KeyRecord:
        """See `Operators.approve`."""
        entry = await self._read(key)
        proposal = _proposed(entry, word)
        if is_same_person(word.by, proposal.by):
            raise SamePerson
        return await self._end(key, self._move(proposal.decision, entry, proposal.order_id, word))

    async def withdraw(self, key: str, word: Word) -> KeyRecord:
        """See `Operators.withdraw`."""
        proposal = _proposed(await self._read(key), word)
        withdraw = Withdraw(proposal=proposal.id, by=word.by, reason=word.reason)
        return record_of((await self._made(key, withdraw)).entry)

    # --- what must be so before it --------------------------------------------------------------

    async def _read(self, key: str) -> Entry:
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        return entry

    async def _amendable(self, key: str, order_id: str | None, word: Word) -> Entry:
        entry = await self._read(key)
        _refuse_if_moved(entry, word)
        if entry.state is not KeyState.CREATED:
            raise ValueError(f"key: must be created; it is {told(entry)}")
        if not entry.is_amendable:
            raise refusal(Verdict(now=0.0, entry=entry, denial=Denial.ANSWERED))
        if order_id == entry.order_id:
            raise ValueError("order_id: is the one on record")
        return entry

    async def _in_doubt(
        self, key: str, word: Word, *, undone: bool, or_made: str | None = None
    ) -> tuple[Entry, Word]:
        """The entry of a key in doubt; ``or_made`` by that id, or freed here, where it could not be read.

        And the word, of the key as it has become here: what is done here is no move of others.
        """
        entry = await self._read(key)
        _refuse_if_moved(entry, word)
        if entry.unread is not None and entry.unread.is_sealed:
            raise ValueError(
                "key: its record is sealed, and does not open here: bring the keys it was sealed with"
            )
        by_hand = _beyond_undoing(entry, refuting=or_made is None)
        if by_hand is not None and not undone:
            raise ValueError(
                "undone: must be said: what is on record of the key cannot be read, so that no recovery can "
                f"undo its hooks ({', '.join(by_hand) or 'none that is known of'}); undo them by hand first"
            )
        if entry.unread is not None:
            entry = await self._laid_aside(key, word, by_hand=by_hand or ())
            if or_made is None and entry.state is KeyState.FREE:
                return entry, word
        if entry.state is KeyState.SENDING and entry.attempt is not None:
            entry = await self._expired(key, entry.attempt)
        if entry.state is not KeyState.IN_DOUBT and not _is_made(entry, or_made):
            raise ValueError(f"key: must be in doubt; it is {told(entry)}")
        return entry, word if word.seen is None else attrs.evolve(word, seen=entry.moves)

    async def _expired(self, key: str, attempt: str) -> Entry:
        """What becomes of a request whose worker is gone."""
        verdict = await self._write(key, Expire(attempt=attempt))
        if verdict.denial is None:
            self._tell(WentInDoubt, key, verdict.entry, error=ABANDONED)
        elif verdict.denial is Denial.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker is sending its order; ask again in {left} s")
        return verdict.entry

    async def _laid_aside(self, key: str, word: Word, *, by_hand: tuple[str, ...]) -> Entry:
        why = f"{word.reason}; what could not be read is kept"
        if by_hand:
            why += f"; undone by hand: {', '.join(by_hand)}"
        verdict = await self._write(key, LayAside(by=word.by, reason=why))
        if verdict.denial is Denial.BUSY:
            left = math.ceil(verdict.lease_left)
            raise ValueError(f"key: a worker may be at work on it; ask again in {left} s")
        return verdict.entry

    # --- the move, and what is heard of it ------------------------------------------------------

    def _move(self, decision: Decision, entry: Entry, order_id: str | None, word: Word) -> Move:
        said: dict[str, Any] = attrs.asdict(word)
        attempt, wrong = entry.attempt or "", entry.order_id or ""
        if decision is Decision.RESOLVE and order_id is not None:
            return Resolve(attempt=attempt, order_id=order_id, reply=None, **said)
        if decision is Decision.REFUTE:
            return Refute(
                attempt=attempt,
                settle_after=self._settle_after,
                owed=owed_by(entry),
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
            if isinstance(move, Resolve) and _is_made(entry, move.order_id):
                return record_of(entry)  # somebody else was faster, and said the same
            raise refusal(verdict, move)
        if isinstance(move, Resolve):
            self._tell(Resolved, key, entry, outcome=Outcome.CREATED, order_id=move.order_id)
        elif isinstance(move, Refute):
            self._tell(Resolved, key, entry, outcome=Outcome.REFUSED)
        elif isinstance(move, TakeBack):
            self._tell(WentInDoubt, key, entry, error=TAKEN_BACK)
        return record_of(entry)

    async def _made(self, key: str, move: Move) -> Verdict:
        verdict = await self._write(key, move)
        if verdict.denial is not None:
            raise refusal(verdict, move)
        return verdict

    async def _write(self, key: str, move: Move) -> Verdict:
        return await self._journal.write(key, move, certain=Outcome.UNKNOWN)

    def _tell(self, kind: type[Event], key: str, entry: Entry, **fields: Any) -> None:
        self._observers.tell(kind(key=key, intent_id=entry.intent_id, attempt=0, seconds=0.0, **fields))


def is_demanded(entry: Entry | None) -> bool:
    """Whether two are needed; also where nobody can read whether they are."""
    return entry is not None and (entry.four_eyes is True or entry.unread is not None)


def _proposed(entry: Entry, word: Word) -> Proposal:
    if entry.proposal is None or entry.proposal.id != word.proposal:
        raise Moved(entry)
    return entry.proposal


def _refuse_if_moved(entry: Entry, word: Word) -> None:
    if word.seen is not None and word.seen != entry.moves:
        raise Moved(entry)


def _is_made(entry: Entry, order_id: str | None) -> bool:
    return entry.state is KeyState.CREATED and entry.order_id == order_id


def _beyond_undoing(entry: Entry, *, refuting: bool) -> tuple[str, ...] | None:
    """Hooks to be undone of which what they acted for cannot be read, so that no recovery can; None: all can.

    The hooks of an order that exists are not to be undone, only those of earlier intents of its key.
    """
    unread = entry.unread
    if not refuting:
        return (unread.owed or None) if unread is not None else None
    if unread is not None:
        return (*unread.hooks, *unread.owed)
    return entry.hooks if entry.state is KeyState.IN_DOUBT and entry.intent is None else None
