"""The move that begins it all: a worker takes a key, or learns why it may not."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from transfer_async._models.requests import OrderIntent
from transfer_async.journal.entries import LEFT_ALONE, Denial, Entry, KeyState, Owed, Verdict, owed_by
from transfer_async.journal.moves import Move, due


class Claim(Move, frozen=True, kw_only=True):
    """Take the key for a new intent, or go on with one whose worker is gone.

    Whatever that worker's hooks did is undone, and a new intent begins, if it is too old or was done
    for other words than these: another beneficiary, another hold, other hooks.

    Args:
        intent: the wish, with a new id that is used only if the key is free.
        hooks: the names of the hooks that may now run and have something to undo, last first.
        once: a final refusal of the same order is its answer: no new intent begins. So is a hook's no,
            where the bank names the same hold again: it may have let go of it when it heard of the no.
    """

    name: ClassVar[str] = "claim"

    intent: OrderIntent
    fingerprint: str
    client_made: bool
    lease: float
    max_claim_age: float
    hooks: tuple[str, ...]
    once: bool = False

    def decide(self, entry: Entry | None, now: float) -> Verdict:
        """The verdict: of an order's moves this alone needs no entry, and writes a doubt as it is denied."""
        if entry is None or entry.state is KeyState.FREE:
            return self._decide_free(entry, now)
        if entry.fingerprint != self.fingerprint:
            return Verdict(now=now, entry=entry, denial=Denial.CONFLICT)
        if entry.state is KeyState.CREATED:
            return Verdict(now=now, entry=entry, denial=Denial.CREATED)
        if entry.state is KeyState.IN_DOUBT:
            return Verdict(now=now, entry=entry, denial=Denial.IN_DOUBT)
        if now < entry.lease_until:
            return Verdict(now=now, entry=entry, denial=Denial.BUSY)
        if entry.state is KeyState.SENDING:
            doubted = entry.but(state=KeyState.IN_DOUBT, cause=LEFT_ALONE, moves=entry.moves + 1)
            return Verdict(now=now, entry=doubted, denial=Denial.IN_DOUBT, found_doubt=True)
        if abs(now - entry.claimed_at) > self.max_claim_age or not self._is_served_by(entry):
            return Verdict(now=now, entry=self._begin(now, before=entry, owed=owed_by(entry)))
        return Verdict(now=now, entry=self._go_on(entry, now))

    def _decide_free(self, entry: Entry | None, now: float) -> Verdict:
        if entry is not None and self.once and self._was_refused(entry):
            return Verdict(now=now, entry=entry, denial=Denial.REFUSED)
        return Verdict(now=now, entry=self._begin(now, before=entry))

    def _was_refused(self, entry: Entry) -> bool:
        ending = entry.ending
        if ending is None or entry.fingerprint != self.fingerprint:
            return False
        same_hold = self.intent.held is not None and self.intent.held == entry.held
        return ending.is_final or (ending.refused and same_hold)

    def _is_served_by(self, entry: Entry) -> bool:
        """Whether what a dead worker's hooks did serves this claim, too, and stays in its hands.

        What was verified for Ben says nothing of Mallory, a hold of the bank's own takes the place of a
        hook's, and an undo that is not among ``hooks`` would be nobody's once the order exists.
        """
        same_words = entry.intent is not None and _words(entry.intent) == _words(self.intent)
        return same_words and set(entry.hooks) <= set(self.hooks)

    def _go_on(self, entry: Entry, now: float) -> Entry:
        return entry.but(
            intent=attrs.evolve(self.intent, id=entry.intent_id),
            hooks=self.hooks,
            epoch=entry.epoch + 1,
            moves=entry.moves + 1,
            lease_until=now + self.lease,
        )

    def _begin(self, now: float, *, before: Entry | None, owed: tuple[Owed, ...] = ()) -> Entry:
        return _BEGUN.but(
            fingerprint=self.fingerprint,
            intent_id=self.intent.id,
            intent=self.intent,
            client_made=self.client_made,
            hooks=self.hooks,
            claimed_at=now,
            lease_until=now + self.lease,
            receipts={},
            held=self.intent.held,
            owed=(before.owed if before else ()) + due(owed, now),
            untold=before.untold if before else (),
            laid_aside=before.laid_aside if before else (),
            moves=before.moves + 1 if before else 1,
        )


_BEGUN = Entry(state=KeyState.CLAIMED, fingerprint="", intent_id="", intent=None, claimed_at=0.0)
"""What is alike in every entry that a claim begins: a copy of it costs half of what a new one does."""


def _words(intent: OrderIntent) -> tuple[Any, ...]:
    """What hooks go by, beside the order: that is the same wherever its fingerprint is."""
    return intent.beneficiary, intent.held
