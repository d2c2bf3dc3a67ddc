"""What the durable journals share: callers that come at once share a commit, and none is cut off.

A back end stores; this decides who waits for what. While one commit is on its way to the disk, the
moves that come meanwhile gather for the next: the more there is to do, the more each commit carries.
And it waits a moment for those who are about to come: those whom the last one has set free, say.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Self

import msgspec

from transfer_async._models.errors import (
    JournalFailed,
    bare_alone,
    is_a,
    is_ours,
    name_of,
    sanitize_exception,
)
from transfer_async.journal import rows, state_machine
from transfer_async.journal.encryption import RecordId, Seal, SealFailed, checked_seal
from transfer_async.journal.model import (
    FOUR_EYES,
    Entry,
    HistoryEvent,
    KeyState,
    Rejection,
    TransitionResult,
)
from transfer_async.journal.protocol import forgettable
from transfer_async.journal.rows import EntryRow, Upgradable, Upgrade, entries_of, planned, upgraded
from transfer_async.journal.transitions import Claim, MarkSending, Move, Release, TakeOver

log: logging.Logger = logging.getLogger("transfer_async")

MAX_SHARED = 256
"""How many moves one commit carries at most."""

QUIET_TURNS = 2
"""Turns of the loop without another move, after which a commit waits for no more."""

PRUNE_BATCH = 1000
"""How many keys are forgotten in one transaction: others need the journal meanwhile."""


class DurableJournal(abc.ABC):
    """A journal that survives its process: the side that faces the callers.

    Args:
        concurrent_commits: how many commits may be on their way at once.
        seal: for what is stored of persons.
    """

    durable = True

    def __init__(self, *, concurrent_commits: int = 1, seal: Seal | None = None) -> None:
        self._seal = checked_seal(seal)
        self._at_once = concurrent_commits
        self._waiting: deque[PendingMove] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Task[None] | None = None
        """The runner that has not taken its moves yet: what comes now joins them."""

        self._cache = WriteCache()
        self._scopes_seen: set[str] = set()
        self._closed = False
        self._commit_seconds = 0.0
        self._bound_to: tuple[int, asyncio.AbstractEventLoop] | None = None

    # --- what a back end does -------------------------------------------------------------------

    @abc.abstractmethod
    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        """Load, decide, write, and `_settle` what is durable, until all is. The store is open."""

    @abc.abstractmethod
    async def _close(self) -> None:
        """Let go of the store."""

    @abc.abstractmethod
    def _is_store_error(self, error: BaseException) -> bool:
        """Whether ``error`` is the store's own, so that each of the moves would meet it."""

    @abc.abstractmethod
    async def now(self) -> float:
        """See `Journal.now`; in seconds since 1970."""

    @abc.abstractmethod
    async def _prune_some(self, scope: str, before: float) -> int:
        """Forget up to `PRUNE_BATCH` keys that ended before that time; how many it were."""

    @abc.abstractmethod
    async def scopes(self) -> list[str]:
        """See `Journal`."""

    @property
    @abc.abstractmethod
    def _name(self) -> str:
        """What the store is called in a sentence."""

    @abc.abstractmethod
    def _upgradable(self) -> AbstractAsyncContextManager[Upgradable]:
        """The store, opened to be upgraded, of whatever version it is."""

    @abc.abstractmethod
    async def _page(self, scope: str, *, limit: int, after: str) -> list[tuple[str, EntryRow]]:
        """One page of what `Journal.work` gives, as it is stored."""

    # --- what callers see -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the journal, so that what is wrong with it shows now."""
        was_open = self._bound_to is not None
        self._bind_to_loop()
        self._closed = False
        try:
            await self._open()
        except BaseException:
            if not (was_open or self._runners):
                self._bound_to = None
            raise
        return self

    @abc.abstractmethod
    async def _open(self) -> None:
        """Open the store, unless it is open."""

    async def __aexit__(self, *exc: object) -> None:
        """Close the journal."""
        await self.close()

    async def close(self) -> None:
        """Finish what has begun, then close the journal; what it holds stays."""
        if self._is_forked:
            self._closed = True  # what is open is the other process's, and waits there
            return
        if self._bound_to is not None and self._bound_to[1].is_closed():
            self._runners.clear()  # they ended with it
            self._waiting.clear()
            self._gathering = self._bound_to = None
        self._bind_to_loop()
        self._closed = True
        while self._runners:
            await asyncio.wait(self._runners)
        await self._close()
        self._bound_to = None

    async def planned_upgrade(self) -> Upgrade:
        """What `upgrade` would do; nothing is changed. Every key is read: of a million it takes a minute.

        Raises:
            JournalFailed: there is no journal, it is of a newer version, or the store failed.
        """
        async with self._being_upgraded() as store:
            return await planned(store, self._name)

    async def upgrade(self, plan: Upgrade | None = None) -> Upgrade:
        """Bring a journal that an older version wrote to the format of this one, and all its scopes with it.

        Stop every program that uses the journal first: one of the older version that still runs can write
        nothing to it from then on. There is no way back. All of it is one transaction: whoever is stopped in
        the middle leaves the journal as it was, and runs it again.

        Args:
            plan: what `planned_upgrade` gave, if somebody was asked about it.

        Returns:
            What was done; or that nothing was to do.

        Raises:
            JournalFailed: there is no journal, it is of a newer version, somebody uses it, or has written to
                it since the plan was made, or the store failed.
        """
        async with self._being_upgraded() as store:
            return await upgraded(store, self._name, plan)

    @asynccontextmanager
    async def _being_upgraded(self) -> AsyncIterator[Upgradable]:
        self._require_open()
        try:
            async with self._upgradable() as store:
                yield store
        except JournalFailed:
            raise
        except Exception as error:
            if not self._is_store_error(error):
                raise
            why = f"the upgrade failed ({name_of(error)}): run it again, it says how the journal stands"
            raise JournalFailed(why) from sanitize_exception(error)

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """See `Journal.move`."""
        loop = self._require_open()
        wanted = PendingMove((scope, key), move, os.urandom(16).hex(), loop.create_future())
        self._waiting.append(wanted)
        self._start_runner()
        return await wanted.result

    def _start_runner(self) -> None:
        """Have what waits committed, unless a runner is gathering it, or as many as may be are at work."""
        if self._waiting and self._gathering is None and len(self._runners) < self._at_once:
            self._gathering = asyncio.get_running_loop().create_task(self._run())
            self._runners.add(self._gathering)
            self._gathering.add_done_callback(self._on_runner_end)

    def _on_runner_end(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._gathering is runner:
            self._gathering = None
        self._start_runner()  # for what it has not taken, if it was cancelled

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal.work`."""
        return entries_of(scope, await self._page(scope, limit=limit, after=after), self._seal)

    async def prune(self, scope: str, *, before: datetime) -> int:
        """See `Journal.prune`."""
        self._require_open()
        count, until = 0, forgettable(before, now=await self.now())
        while some := await self._prune_some(scope, until):
            count += some
        return count

    def _require_open(self) -> asyncio.AbstractEventLoop:
        """The loop of a call that may be made here and now.

        Raises:
            JournalFailed: the journal is closed, or open elsewhere.
        """
        if self._closed:
            raise JournalFailed("the journal is closed")
        return self._bind_to_loop()

    def _bind_to_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop: what the journal was opened in, process and loop, is where it is used."""
        if self._is_forked:  # before anything is waited for that only the parent has: a thread, a reply
            raise JournalFailed("the journal was opened before a fork: each process must make its own")
        loop = asyncio.get_running_loop()
        if self._bound_to is None:
            self._bound_to = (os.getpid(), loop)
        elif self._bound_to[1] is not loop:
            raise JournalFailed(
                "the journal is open in another event loop: close it there first, or make one for each"
            )
        return loop

    @property
    def _is_forked(self) -> bool:
        return self._bound_to is not None and self._bound_to[0] != os.getpid()

    async def _run(self) -> None:
        """Commit whatever waits, until nothing does."""
        runner = asyncio.current_task()
        assert runner is not None  # noqa: S101 - it is this one
        try:
            while self._waiting and self._gathering in (None, runner):
                self._gathering = runner
                await self._gather()
                self._gathering = None
                began = _loop_time()
                count = min(len(self._waiting), MAX_SHARED)
                taken = [self._waiting.popleft() for _ in range(count)]
                self._start_runner()  # for those that were one too many
                try:
                    await self._commit_all(taken)
                finally:
                    _end_all(taken)
                self._commit_seconds = _loop_time() - began
        finally:
            self._runners.discard(runner)  # at once: a move that comes now starts another

    async def _gather(self) -> None:
        """Let those join who are about to come: as long as some do, and no longer than the last commit took.

        Whoever was told a moment ago comes back with the next move. Without them there would be two groups by
        turns, each with a commit of its own; and a commit beside a busy loop makes both slower, for they take
        the interpreter from each other. On a slow disk half as many commits are worth more still.
        """
        end, quiet = _loop_time() + self._commit_seconds, 0
        while quiet < QUIET_TURNS and len(self._waiting) < MAX_SHARED and _loop_time() < end:
            before = len(self._waiting)
            await asyncio.sleep(0)
            quiet = 0 if len(self._waiting) > before else quiet + 1

    async def _commit_all(self, wanted: list[PendingMove]) -> None:
        try:
            await self._open()
            await self._warn_of_new_scopes(wanted)
        except BaseException as error:  # noqa: BLE001 - whatever it is, each caller must hear of it
            _fail(wanted, error)
            return
        try:
            await self._commit(wanted)
        except BaseException as error:  # noqa: BLE001 - whatever it is, each caller must hear of it
            left = [pending for pending in wanted if not pending.is_settled]
            if len(wanted) > 1 and isinstance(error, Exception) and not self._is_store_error(error):
                for item in left:  # something about one of them: the others shall not suffer
                    await self._commit_all([item])
                return
            _fail(left, error)

    def _settle(self, transaction: Transaction) -> None:
        """Its commit is durable: remember it, and tell those who wait."""
        transaction.remember()
        for one, result in zip(transaction.wanted, transaction.results, strict=True):
            one.is_settled = True
            if not one.result.done():
                one.result.set_result(result)

    async def _warn_of_new_scopes(self, wanted: list[PendingMove]) -> None:
        """Warn, once each, of a scope that has no keys where others have: its address may have changed."""
        for scope in {pending.place[0] for pending in wanted} - self._scopes_seen:
            self._scopes_seen.add(scope)
            known: list[str] = []
            with contextlib.suppress(Exception):  # the commit that follows will tell
                known = await self.scopes()
            if known and scope not in known:
                other = known[0]
                log.warning(
                    "the journal has keys of %r, and none of %r: if it is the same service under a new "
                    "address, say scope=%r, or every key is free, and may be paid again",
                    other,
                    scope,
                    other,
                )


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _fail(wanted: list[PendingMove], error: BaseException) -> None:
    is_told = is_ours(error) and is_a(error, (JournalFailed, SealFailed))
    why = str(error) if is_told else f"the journal failed ({name_of(error)})"
    cause = bare_alone(error)  # its frames hold rows, with all their words
    for pending in wanted:
        if not pending.result.done():
            own = JournalFailed(why)  # what is certain differs from call to call
            own.__cause__ = cause
            pending.result.set_exception(own)


def _end_all(taken: list[PendingMove]) -> None:
    """End every move without a result, so that nobody waits for ever whatever failed."""
    for item in taken:
        if not item.result.done():
            item.result.set_exception(
                JournalFailed("the journal failed: read it to see what became of the key")
            )


# --- transaction -------------------------------------------------------------------------------------
# What one commit of a durable journal decides: many moves, each as `decide` says, in one go.
#
# A back end loads what is stored, asks for the decision, and writes what came of it::
#
#     transaction.places ──load──> entries ──decide──> writes, steps ──> COMMIT ──> results


_LEADS_TO: dict[type, KeyState] = {
    Claim: KeyState.CLAIMED,
    TakeOver: KeyState.CLAIMED,
    MarkSending: KeyState.SENDING,
}
"""The moves that are worth nothing to their worker unless they were the last, and led there."""


class PendingMove(msgspec.Struct, eq=False):
    """A move that waits for its commit; what it writes carries its token, which no other write has.

    Args:
        place: of the key.
        move: the move.
        token: for what it writes.
        result: what its caller waits for.
        commit_unknown: an earlier commit of it may have happened: look for its token first.
        is_settled: its commit is durable, and its caller told.
    """

    place: RecordId
    move: Move
    token: str
    result: asyncio.Future[TransitionResult | None]
    commit_unknown: bool = False
    is_settled: bool = False


class Write(msgspec.Struct):
    """An entry to be stored in place of the one with the token ``known``; what is large only if it is new."""

    place: RecordId
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


class WriteCache:
    """The entries that this process wrote last, each good only as long as its token is the stored one.

    It spares reading back what the same worker wrote a moment ago.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._entries: OrderedDict[RecordId, tuple[str, Entry]] = OrderedDict()

    def get(self, place: RecordId) -> tuple[str, Entry] | None:
        """The token and the entry, if it is known."""
        return self._entries.get(place)

    def keep(self, place: RecordId, token: str, entry: Entry) -> None:
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
        places: what must be loaded, in this order; the scope's own entry, too, where one person decides.
        is_committing: the commit has been asked for: what is lost from here on may have been written.
        seal: for what is stored of persons.
    """

    def __init__(
        self, wanted: Sequence[PendingMove], recent: WriteCache, *, seal: Seal | None = None
    ) -> None:
        self.wanted: Sequence[PendingMove] = wanted
        self.cache: WriteCache = recent
        self.is_committing: bool = False
        self._seal = seal
        # In one order for all: whoever locks does so without a deadlock.
        self.places: list[RecordId] = sorted({pending.place for pending in wanted} | _rules(wanted))
        known = {place: recent.get(place) for place in self.places}
        self._known = {place: found for place, found in known.items() if found is not None}
        self.writes: list[Write] = []
        self.steps: list[tuple[RecordId, str, HistoryEvent]] = []
        self.results: list[TransitionResult | None] = []
        self._held: dict[RecordId, _Held] = {}
        self._ids: dict[tuple[str, str], str] = {}

    @property
    def commit_unknown(self) -> bool:
        """Whether an earlier commit of some of these moves may have happened."""
        return any(pending.commit_unknown for pending in self.wanted)

    @property
    def tokens(self) -> list[str]:
        """The tokens of all moves."""
        return [pending.token for pending in self.wanted]

    @property
    def ids(self) -> set[tuple[str, str]]:
        """The order ids that moves want to bind, with their scopes."""
        return {
            (pending.place[0], order_id)
            for pending in self.wanted
            if (order_id := pending.move.order_bound) is not None
        }

    @property
    def rules(self) -> dict[str, bool]:
        """The scopes whose rule of four eyes these moves depend on; true where they may change it.

        Where nothing is stored of the rule yet, there is nothing to lock: a back end whose transactions run
        side by side must keep those that change it apart from those that depend on it.
        """
        changed = {pending.place[0] for pending in self.wanted if pending.place[1] == FOUR_EYES}
        return {scope: scope in changed for scope, key in self.places if key == FOUR_EYES}

    @property
    def tokens_without_entry(self) -> set[str]:
        """The tokens of the moves for whose places nothing was found stored."""
        return {pending.token for pending in self.wanted if self._held[pending.place].entry is None}

    def known_token(self, place: RecordId) -> str | None:
        """The token under which this process knows the place's entry: if it is stored, no row is needed."""
        return self._known[place][0] if place in self._known else None

    def load(self, place: RecordId, token: str | None, row: EntryRow | None) -> None:
        """What is stored: no token if nothing is; no row if the token is the known one."""
        entry = None
        if row is not None:
            entry = rows.entry_of(row, self._seal, place=place)
        elif token is not None:
            entry = self._known[place][1]
        self._held[place] = _Held(token=token, entry=entry, stored=entry)

    def bind(self, scope: str, order_id: str, key: str) -> None:
        """An order id of `ids` is bound to ``key``."""
        self._ids[scope, order_id] = key

    def decide(self, now: float, *, committed: Iterable[str] = ()) -> None:
        """Judge the moves one after the other; fills `results`, `writes` and `steps`.

        Args:
            now: on the database's clock.
            committed: the tokens of moves that an earlier try did commit.
        """
        already = set(committed)
        for pending in self.wanted:
            held = self._held[pending.place]
            if pending.token in already:
                self.results.append(_result_of_found_commit(pending, held, now))
            else:
                self.results.append(self._decide_one(pending, held, now))
        for place, held in self._held.items():
            if held.changed_by is not None and held.entry is not None:
                self.writes.append(_write(place, held, now, self._seal))

    def decide_optimistically(self, now: float) -> None:
        """Judge without a look, as if what this process knows were what is stored, and nothing else.

        That is true only where each `Write` still finds what it says is known. What would be denied, what
        would write nothing, and what asks about other keys, is left out: there, only the store's word counts.
        """
        for place in self.places:
            self.load(place, self.known_token(place), None)
        self.decide(now)
        judged = zip(self.wanted, self.results, strict=True)
        doubtful = {one.place for one, result in judged if _needs_stored_state(one.place, one.move, result)}
        self.restrict_to({write.place for write in self.writes} - doubtful)

    def restrict_to(self, places: Collection[RecordId]) -> None:
        """Leave out everything about other places."""
        judged = zip(self.wanted, self.results, strict=True)
        kept = [(one, result) for one, result in judged if one.place in places]
        self.wanted, self.results = [one for one, _ in kept], [result for _, result in kept]
        self.writes = [write for write in self.writes if write.place in places]
        self.steps = [step for step in self.steps if step[0] in places]
        self._held = {place: held for place, held in self._held.items() if place in places}

    def _decide_one(self, one: PendingMove, held: _Held, now: float) -> TransitionResult | None:
        before, move = held.entry, one.move
        scope, key = one.place
        order_id = move.order_bound
        taken = order_id is not None and self._ids.get((scope, order_id), key) != key
        rule = self._held.get((scope, FOUR_EYES))
        result = state_machine.decide(
            before, move, now=now, id_taken=taken, four_eyes=None if rule is None else rule.entry
        )
        if result is None or result.entry is before:
            return result
        held.entry, held.changed_by = result.entry, one.token
        if order_id is not None and result.denial is None:
            self._ids[scope, order_id] = key
        if state_machine.is_told(move, result):
            self.steps.append((one.place, one.token, state_machine.history_step(result.entry, move, now=now)))
        return result

    def remember(self) -> None:
        """The commit is durable: what it wrote is what is stored."""
        for place, held in self._held.items():
            if held.entry is not None and (token := held.changed_by or held.token) is not None:
                self.cache.keep(place, token, held.entry)


def _rules(wanted: Sequence[PendingMove]) -> set[RecordId]:
    """The places of the rules that what one person decides depends on."""
    return {(pending.place[0], FOUR_EYES) for pending in wanted if pending.move.is_by_one_person}


def _needs_stored_state(place: RecordId, move: Move, result: TransitionResult | None) -> bool:
    if result is None or result.denial is not None:
        return True
    # What one person decides depends on the scope's rule, which another process may have just changed.
    if move.is_by_one_person or place[1] == FOUR_EYES:
        return True
    # Whether another key has an order's id, the store says by itself only where it is written.
    return move.order_bound not in (None, result.entry.order_id)


def _result_of_found_commit(one: PendingMove, held: _Held, now: float) -> TransitionResult:
    """A move whose commit was in question, and was made: believed by its own token alone."""
    assert held.entry is not None  # noqa: S101 - its place has been seen, see `Transaction.tokens_without_entry`
    wanted, entry = _LEADS_TO.get(type(one.move)), held.entry
    if isinstance(one.move, Release) and entry.state is KeyState.IN_DOUBT:
        return TransitionResult(entry=entry, denial=Rejection.LOST, now=now)
    if wanted is None or (held.token, entry.state) == (one.token, wanted):
        return TransitionResult(entry=entry, now=now)
    # A rejected transition writes only a doubt: one that a claim finds, or that a `Release` leads into.
    found_doubt = isinstance(one.move, Claim) and entry.state is KeyState.IN_DOUBT
    return TransitionResult(
        entry=entry, denial=Rejection.IN_DOUBT if found_doubt else Rejection.LOST, now=now
    )


def _write(place: RecordId, held: _Held, now: float, seal: Seal | None) -> Write:
    entry, stored, token = held.entry, held.stored, held.changed_by
    assert entry is not None and token is not None  # noqa: S101, PT018 - only what was changed is written
    intent_changed = stored is None or entry.intent is not stored.intent or stored.unread is not None
    return Write(
        place=place,
        known=None if stored is None else held.token,
        row=rows.row_of(entry, token=token, now=now, with_intent=intent_changed, seal=seal, place=place),
        intent_changed=intent_changed,
        reply_changed=entry.reply is not (None if stored is None else stored.reply),
    )
