"""What people do with a journal: see what is in doubt, end a doubt, look back, and forget.

An operator has found out, by the bank's own means, what became of an order. Its word is a move like
any other: a compare-and-set on the attempt that it was asked about, kept in the key's history with
who said it and why. Nobody's word is believed too early: a request that stalled may still take effect.
Where a scope demands four eyes, one person proposes and another approves: the word of one is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from transfer_async._models import keys, texts
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Observer, Observers
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order
from transfer_async._pipeline.decisions import Decisions, Word, is_demanded
from transfer_async._pipeline.key_views import Doubt, FourEyes, KeyView, doubt_of, parties_of, view_of
from transfer_async._pipeline.refusals import (
    checked_decision,
    checked_flag,
    checked_order_id,
    checked_settle_after,
    checked_text,
    nothing_on_record,
)
from transfer_async._support.clock import EARLIEST, LATEST, Clock, Duration, time_after
from transfer_async.journal.entries import Entry, Step
from transfer_async.journal.operator_moves import Look
from transfer_async.journal.proposal import FOUR_EYES, Decision, Proposal
from transfer_async.journal.protocol import Journal, KeyRecord, checked_journal
from transfer_async.journal.scoped import ScopedJournal

PAGE = 500
"""Keys that are asked for at once."""


class Operators:
    """The operators' side of a journal, for one scope of it.

    Args:
        journal: the journal; it is not closed.
        scope: names the service in the journal: a client's ``scope``, or its normalised ``base_url``.
        settle_after: seconds after the last possible send before a refutation is believed.
        four_eyes: the scope is to demand, from now on and of everybody, that what one person decides is
            approved by another. It is stored in the journal; false obeys what is stored there.
        observers: called with `Resolved`, and with `WentInDoubt` for a dead worker's request.
        clock: time; for tests.

    Raises:
        ValueError: names the argument and the rule.
    """

    def __init__(
        self,
        journal: Journal,
        scope: str,
        *,
        settle_after: Duration = 300.0,
        four_eyes: bool = False,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        self._journal = ScopedJournal(checked_journal(journal), texts.checked_scope(scope))
        self._settle_after = checked_settle_after(settle_after)
        self._clock = clock or Clock()
        self._four_eyes = checked_flag("four_eyes", four_eyes)
        self._decisions = Decisions(
            self._journal,
            settle_after=self._settle_after,
            four_eyes=self._four_eyes,
            observers=Observers(observers),
        )

    async def prepare(self) -> None:
        """Store the demand for four eyes, if these are to make it; each decision does so, too.

        Raises:
            JournalFailed: the journal could not be read or written.
        """
        if self._four_eyes:
            await self._decisions.setting()

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
        key = texts.to_text(key)
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
        look = Look(by=checked_text("by", by), reason=checked_text("reason", reason))
        key = texts.to_text(key)
        entry = await self._journal.read(key)
        if entry is None:
            raise nothing_on_record(key)
        if parties_of(entry) is None:
            raise ValueError("key: nothing is on record of the parties of its order")
        parties = parties_of((await self._journal.write(key, look, certain=Outcome.UNKNOWN)).entry)
        if parties is None:
            raise ValueError("key: was changed just now; nothing is on record of the parties any more")
        return parties

    async def history(self, key: str) -> tuple[Step, ...]:
        """Every move of the key that is remembered, oldest first; empty for a key never heard of.

        Raises:
            InvalidOrder: there is none, and it cannot be a key.
            JournalFailed: the journal could not be read.
        """
        key = texts.to_text(key)
        steps = await self._journal.history(key)
        if not steps:
            keys.refuse(key)
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
            FourEyesNeeded: the scope demands that another person approves: see `propose`.
            Moved: the key has moved since ``seen``.
            ValueError: the key is neither in doubt nor created by that id, the id is another key's, or an
                argument is no good. The two above are of its kind.
            JournalFailed: the journal could not be read or written.
        """
        word, order_id = _word(by, reason, seen=seen), checked_order_id(order_id)
        await self._decisions.refuse_alone()
        return await self._decisions.resolve(texts.to_text(key), order_id, word, undone=undone)

    async def refute(
        self, key: str, *, by: str, reason: str, undone: bool = False, seen: int | None = None
    ) -> KeyRecord:
        """Write down that the order of a doubt does not exist, and that none can appear any more.

        This frees the key, and the undos of its hooks become owed: `TransferClient.recover` pays them,
        and so releases the hold. An order that appears all the same is a duplicate, or a loss.

        Args:
            key: a key in doubt, ``settle_after`` after the last possible send.
            by: who says so.
            reason: how they know; it is kept in the key's history.
            undone: where the key's record cannot be read, whatever its state: what its hooks did is undone,
                and the hold released, by hand; no `recover` could. What cannot be read is kept.
            seen: as for `resolve`.

        Returns:
            What is on record of the key now.

        Raises:
            FourEyesNeeded: as for `resolve`; so is `Moved`.
            ValueError: the key is not in doubt, it is too early, ``undone`` must be said, or an argument
                is no good.
            JournalFailed: the journal could not be read or written.
        """
        word = _word(by, reason, seen=seen)
        await self._decisions.refuse_alone()
        return await self._decisions.refute(texts.to_text(key), word, undone=undone)

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
            FourEyesNeeded: as for `resolve`; so is `Moved`.
            ValueError: the key is not created, the service itself answered with its order, the id is the
                same or another key's, or an argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        word = _word(by, reason, seen=seen)
        right = None if order_id is None else checked_order_id(order_id)
        await self._decisions.refuse_alone()
        return await self._decisions.amend(texts.to_text(key), right, word)

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
            Moved: as for `resolve`.
            ValueError: it could not be decided now by whoever may, or an argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        word, decision = _word(by, reason, seen=seen), checked_decision(decision)
        named = decision is Decision.RESOLVE or (decision is Decision.AMEND and order_id is not None)
        if named:
            order_id = checked_order_id(order_id or "")
        elif order_id is not None:
            raise ValueError(f"order_id: must not be given to {decision.value}")
        key = texts.to_text(key)
        if (decision is Decision.WAIVE) != (key == FOUR_EYES):
            raise ValueError("key: FOUR_EYES is what is to be waived, and nothing else is")
        return await self._decisions.propose(key, decision, order_id, word, undone=undone)

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
            SamePerson: ``by`` proposed it.
            Moved: the proposal is void, or another has taken its place.
            ValueError: it cannot be done now, or an argument is no good. The two above are of its kind.
            JournalFailed: the journal could not be read or written.
        """
        return await self._decisions.approve(texts.to_text(key), _word(by, reason, proposal=proposal))

    async def withdraw(self, key: str, *, proposal: str, by: str, reason: str) -> KeyRecord:
        """Take a proposal back, or turn it down; anybody may, and the key stays as it is.

        Args:
            key: the key.
            proposal: the id of the proposal that was seen.
            by: who says so.
            reason: why; it is kept in the key's history.

        Raises:
            Moved: as for `approve`.
            ValueError: nothing is on record of the key, or an argument is no good.
            JournalFailed: the journal could not be read or written.
        """
        return await self._decisions.withdraw(texts.to_text(key), _word(by, reason, proposal=proposal))

    async def four_eyes(self) -> FourEyes:
        """Whether the scope demands two persons, and whether it is proposed that one shall be enough.

        Raises:
            JournalFailed: the journal could not be read; or written, if these `Operators` demand it first.
        """
        entry = await self._decisions.setting()
        return FourEyes(demanded=is_demanded(entry), proposal=None if entry is None else entry.proposal)

    async def demand_four_eyes(self, *, by: str, reason: str) -> FourEyes:
        """From now on two persons are needed in this scope; one may say so, and two that it is waived.

        Args:
            by: who says so.
            reason: why; it is kept in the history of `FOUR_EYES`.

        Raises:
            ValueError: an argument is no good.
            JournalFailed: the journal could not be written.
        """
        entry = await self._decisions.demand(_word(by, reason))
        return FourEyes(demanded=is_demanded(entry), proposal=entry.proposal)

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


def _word(by: str, reason: str, *, seen: int | None = None, proposal: str | None = None) -> Word:
    return Word(
        by=checked_text("by", by), reason=checked_text("reason", reason), seen=seen, proposal=proposal
    )
