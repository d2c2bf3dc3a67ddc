"""What one commit of a durable journal decides: many moves, each as `decide` says, in one go.

A back end loads what is stored, asks for the decision, and writes what came of it::

    transaction.places ──load──> entries ──decide──> writes, steps ──> COMMIT ──> verdicts
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

import msgspec

from transfer_async.journal import rows, state_machine
from transfer_async.journal.claim import Claim
from transfer_async.journal.entries import Denial, Entry, KeyState, Step, Verdict
from transfer_async.journal.moves import Mark, Move, TakeOver
from transfer_async.journal.rows import EntryRow
from transfer_async.journal.seal import Seal

Place = tuple[str, str]
"""Scope and key."""

_LEADS_TO: dict[type, KeyState] = {
    Claim: KeyState.CLAIMED,
    TakeOver: KeyState.CLAIMED,
    Mark: KeyState.SENDING,
}
"""The moves that are worth nothing to their worker unless they were the last, and led there."""


class PendingMove(msgspec.Struct, eq=False):
    """A move that waits for its commit; what it writes carries its token, which no other write has.

    Args:
        place: of the key.
        move: the move.
        token: for what it writes.
        verdict: what its caller waits for.
        in_question: an earlier commit of it may have happened: look for its token first.
        is_settled: its commit is durable, and its caller told.
    """

    place: Place
    move: Move
    token: str
    verdict: asyncio.Future[Verdict | None]
    in_question: bool = False
    is_settled: bool = False


class Write(msgspec.Struct):
    """An entry to be stored in place of the one with the token ``known``; what is large only if it is new."""

    place: Place
    known: str | None
    row: EntryRow
    intent_changed: bool
    reply_changed: bool


class _Held(msgspec.Struct):
    """What is known of a place within a transaction."""

    token: str | None
    entry: Entry | None
    stored: Entry | None
    changed_by: str | None = None


class Recent:
    """The entries that this process wrote last, each good only as long as its token is the stored one.

    It spares reading back what the same worker wrote a moment ago.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._entries: OrderedDict[Place, tuple[str, Entry]] = OrderedDict()

    def get(self, place: Place) -> tuple[str, Entry] | None:
        """The token and the entry, if it is known."""
        return self._entries.get(place)

    def keep(self, place: Place, token: str, entry: Entry) -> None:
        """Remember what has been committed; what has ended is not asked for again soon."""
        if state_machine.is_ended(entry):
            self._entries.pop(place, None)
            return
        self._entries[place] = (token, entry)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)


class Transaction:
    """One commit.

    Args:
        wanted: the moves, in their order.
        recent: what this process wrote last.
        places: what must be loaded, in this order.
        is_committing: the commit has been asked for: what is lost from here on may have been written.
        seal: for what is stored of persons.
    """

    def __init__(self, wanted: Sequence[PendingMove], recent: Recent, *, seal: Seal | None = None) -> None:
        self.wanted: Sequence[PendingMove] = wanted
        self.recent: Recent = recent
        self.is_committing: bool = False
        self._seal = seal
        # In one order for all: whoever locks does so without a deadlock.
        self.places: list[Place] = sorted({one.place for one in wanted})
        known = {place: recent.get(place) for place in self.places}
        self._known = {place: found for place, found in known.items() if found is not None}
        self.writes: list[Write] = []
        self.steps: list[tuple[Place, str, Step]] = []
        self.verdicts: list[Verdict | None] = []
        self._held: dict[Place, _Held] = {}
        self._ids: dict[tuple[str, str], str] = {}

    @property
    def in_question(self) -> bool:
        """Whether an earlier commit of some of these moves may have happened."""
        return any(one.in_question for one in self.wanted)

    @property
    def tokens(self) -> list[str]:
        """The tokens of all moves."""
        return [one.token for one in self.wanted]

    @property
    def ids(self) -> set[tuple[str, str]]:
        """The order ids that moves want to bind, with their scopes."""
        return {
            (one.place[0], order_id) for one in self.wanted if (order_id := one.move.order_bound) is not None
        }

    @property
    def unseen(self) -> set[str]:
        """The tokens of the moves for whose places nothing was found stored."""
        return {one.token for one in self.wanted if self._held[one.place].entry is None}

    def known_token(self, place: Place) -> str | None:
        """The token under which this process knows the place's entry: if it is stored, no row is needed."""
        return self._known[place][0] if place in self._known else None

    def load(self, place: Place, token: str | None, row: EntryRow | None) -> None:
        """What is stored: no token if nothing is; no row if the token is the known one."""
        entry = None
        if row is not None:
            entry = rows.entry_of(row, self._seal)
        elif token is not None:
            entry = self._known[place][1]
        self._held[place] = _Held(token=token, entry=entry, stored=entry)

    def bind(self, scope: str, order_id: str, key: str) -> None:
        """An order id of `ids` is bound to ``key``."""
        self._ids[scope, order_id] = key

    def decide(self, now: float, *, committed: Iterable[str] = ()) -> None:
        """Judge the moves one after the other; fills `verdicts`, `writes` and `steps`.

        Args:
            now: on the database's clock.
            committed: the tokens of moves that an earlier try did commit.
        """
        already = set(committed)
        for one in self.wanted:
            held = self._held[one.place]
            if one.token in already:
                self.verdicts.append(_read_back(one, held, now))
            else:
                self.verdicts.append(self._decide_one(one, held, now))
        for place, held in self._held.items():
            if held.changed_by is not None and held.entry is not None:
                self.writes.append(_write(place, held, now, self._seal))

    def assume(self, now: float) -> None:
        """Judge without a look, as if what this process knows were what is stored, and nothing else.

        That is true only where each `Write` still finds what it says is known. What would be denied, what
        would write nothing, and what asks about other keys, is left out: there, only the store's word counts.
        """
        for place in self.places:
            self.load(place, self.known_token(place), None)
        self.decide(now)
        judged = zip(self.wanted, self.verdicts, strict=True)
        doubtful = {one.place for one, verdict in judged if _needs_a_look(one.move, verdict)}
        self.confine({write.place for write in self.writes} - doubtful)

    def confine(self, places: Collection[Place]) -> None:
        """Leave out everything about other places."""
        judged = zip(self.wanted, self.verdicts, strict=True)
        kept = [(one, verdict) for one, verdict in judged if one.place in places]
        self.wanted, self.verdicts = [one for one, _ in kept], [verdict for _, verdict in kept]
        self.writes = [write for write in self.writes if write.place in places]
        self.steps = [step for step in self.steps if step[0] in places]
        self._held = {place: held for place, held in self._held.items() if place in places}

    def _decide_one(self, one: PendingMove, held: _Held, now: float) -> Verdict | None:
        before, move = held.entry, one.move
        scope, key = one.place
        order_id = move.order_bound
        taken = order_id is not None and self._ids.get((scope, order_id), key) != key
        verdict = state_machine.decide(before, move, now=now, id_taken=taken)
        if verdict is None or verdict.entry is before:
            return verdict
        held.entry, held.changed_by = verdict.entry, one.token
        if order_id is not None and verdict.denial is None:
            self._ids[scope, order_id] = key
        if state_machine.is_told(move, verdict):
            self.steps.append(
                (one.place, one.token, state_machine.history_step(verdict.entry, move, now=now))
            )
        return verdict

    def remember(self) -> None:
        """The commit is durable: what it wrote is what is stored."""
        for place, held in self._held.items():
            if held.entry is not None and (token := held.changed_by or held.token) is not None:
                self.recent.keep(place, token, held.entry)


def _needs_a_look(move: Move, verdict: Verdict | None) -> bool:
    if verdict is None or verdict.denial is not None:
        return True
    # Whether another key has an order's id, the store says by itself only where it is written.
    return move.order_bound not in (None, verdict.entry.order_id)


def _read_back(one: PendingMove, held: _Held, now: float) -> Verdict:
    """A move whose commit was in question, and was made: believed by its own token alone."""
    assert held.entry is not None  # noqa: S101 - its place has been seen, see `Transaction.unseen`
    wanted, entry = _LEADS_TO.get(type(one.move)), held.entry
    if wanted is None or (held.token, entry.state) == (one.token, wanted):
        return Verdict(entry=entry, now=now)
    # Of what a denied move writes, the doubt that a claim finds is all there is.
    found_doubt = isinstance(one.move, Claim) and entry.state is KeyState.IN_DOUBT
    return Verdict(entry=entry, denial=Denial.IN_DOUBT if found_doubt else Denial.LOST, now=now)


def _write(place: Place, held: _Held, now: float, seal: Seal | None) -> Write:
    entry, stored, token = held.entry, held.stored, held.changed_by
    assert entry is not None and token is not None  # noqa: S101, PT018 - only what was changed is written
    intent_changed = stored is None or entry.intent is not stored.intent or stored.unread is not None
    return Write(
        place=place,
        known=None if stored is None else held.token,
        row=rows.row_of(entry, token=token, now=now, with_intent=intent_changed, seal=seal),
        intent_changed=intent_changed,
        reply_changed=entry.reply is not (None if stored is None else stored.reply),
    )
