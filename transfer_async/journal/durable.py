"""The base class of durable journals, which combines concurrent transitions in one commit.

This module queues transitions and decides on them; a subclass stores them. Transitions that arrive during a
commit share the next one, so commits become larger under load. Before each commit, the journal waits briefly
for more transitions, for example from callers whose previous transition has just been committed.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import math
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Protocol, Self

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
from transfer_async.journal.audit import Audit
from transfer_async.journal.encryption import RecordId, Seal, SealFailed, checked_seal
from transfer_async.journal.model import (
    FOUR_EYES,
    Entry,
    HistoryEvent,
    KeyState,
    Rejection,
    TransitionResult,
    similar_scope,
)
from transfer_async.journal.protocol import AuditLine, forgettable
from transfer_async.journal.rows import (
    PENDING_UNDO,
    EntryRow,
    Upgradable,
    Upgrade,
    entries_of,
    entry_of,
    planned,
    step_of,
    upgraded,
)
from transfer_async.journal.transitions import (
    Claim,
    MarkSending,
    Move,
    Refute,
    Release,
    Resolve,
    TakeOver,
    history_step,
    is_ended,
    is_told,
)

log: logging.Logger = logging.getLogger("transfer_async")

MAX_SHARED = 256
"""The maximum number of transitions in one commit."""

QUIET_TURNS = 2
"""A commit starts after this many iterations of the event loop without a new transition."""

PRUNE_BATCH = 1000
"""The maximum number of keys deleted in one transaction. Other writers can write between transactions."""


class Queries(Protocol):
    """The SQL statements for reading the journal, which take the same parameters in every back end."""

    find: str
    sent: str
    in_doubt: str
    count_in_doubt: str
    orders: str
    history: str
    scopes: str


class DurableJournal(abc.ABC):
    """Base class of journals whose contents outlive the process.

    Args:
        concurrent_commits: the maximum number of concurrent commits.
        seal: encrypts stored personal data; None stores it unencrypted.
    """

    durable = True

    _sql: Queries
    _audit: Audit
    """The audit of people's actions on all keys. A back end sets it."""

    def __init__(self, *, concurrent_commits: int = 1, seal: Seal | None = None) -> None:
        self._seal = checked_seal(seal)
        self._concurrent_commits = concurrent_commits
        self._waiting: deque[PendingMove] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Task[None] | None = None
        """The runner that is waiting for more transitions before its commit, or None."""

        self._cache = WriteCache()
        self._scopes_seen: set[str] = set()
        self._stored_scopes: set[str] = set()
        """The scopes that had committed keys when they were last read. `PostgresJournal` uses them."""

        self._closed = False
        self._commit_seconds = 0.0
        self._bound_to: tuple[int, asyncio.AbstractEventLoop] | None = None

    # --- implemented by a back end --------------------------------------------------------------

    @abc.abstractmethod
    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        """Load, decide and write the transitions until all are durable, and then call `_settle`.

        The store must be open. Before it writes keys of a new scope, it calls `refuse_similar_scopes`.
        """

    @abc.abstractmethod
    async def _close(self) -> None:
        """Close the store."""

    @abc.abstractmethod
    def _is_store_error(self, error: BaseException) -> bool:
        """Return whether the store raised ``error``, so that every other transition would fail too."""

    @abc.abstractmethod
    async def now(self) -> float:
        """Return the journal's time in seconds since 1970; see `Journal.now`."""

    @abc.abstractmethod
    async def _prune_some(self, scope: str, before: float) -> int:
        """Delete and count at most `PRUNE_BATCH` keys on which work ended before ``before``."""

    @property
    @abc.abstractmethod
    def _name(self) -> str:
        """The store's name in error messages."""

    @abc.abstractmethod
    def _upgradable(self) -> AbstractAsyncContextManager[Upgradable]:
        """Open a store of any version for an upgrade."""

    @abc.abstractmethod
    async def _query(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of a query."""

    @abc.abstractmethod
    async def _page(
        self, scope: str, body: str, *, limit: int, after: str, at: float | None = None
    ) -> list[tuple[str, EntryRow]]:
        """Return one page of `Journal.work`, limited to keys whose body matches the SQL pattern ``body``.

        Keys whose lease is valid at the time ``at``, by default now, are omitted.
        """

    @abc.abstractmethod
    async def _with_move(self, move: str, scope: str, after: str) -> tuple[list[str], str]:
        """Return a page of the keys whose history contains ``move``, and the ``after`` for the next page.

        Even an empty page may be followed by more pages; an empty ``after`` marks the end.
        """

    # --- for callers ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the journal immediately, and raise any error here rather than on first use."""
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
        """Open the store if it is not open yet."""

    async def __aexit__(self, *exc: object) -> None:
        """Close the journal."""
        await self.close()

    async def close(self) -> None:
        """Wait for the writes in progress, then close the journal; its contents are kept."""
        if self._is_forked:
            self._closed = True  # The open store belongs to the parent process.
            return
        if self._bound_to is not None and self._bound_to[1].is_closed():
            self._runners.clear()  # The runners ended with their loop.
            self._waiting.clear()
            self._gathering = self._bound_to = None
        self._bind_to_loop()
        self._closed = True
        while self._runners:
            await asyncio.wait(self._runners)
        await self._close()
        self._bound_to = None

    async def planned_upgrade(self) -> Upgrade:
        """Return what `upgrade` would do, without changing anything.

        Planning reads every key, which takes about a minute for a million keys.

        Raises:
            JournalFailed: the journal does not exist, its version is newer than this program's, or the store
                failed.
        """
        async with self._being_upgraded() as store:
            return await planned(store, self._name)

    async def upgrade(self, plan: Upgrade | None = None) -> Upgrade:
        """Upgrade the journal, including all scopes, to the format of this version.

        First stop every program that uses the journal. After the upgrade, programs of the older version can
        no longer write to the journal. An upgrade cannot be undone. The upgrade runs in one transaction: if
        it is interrupted, nothing has changed, and it can be run again.

        Args:
            plan: the result of `planned_upgrade`, for example one that a person has confirmed.

        Returns:
            What was done.

        Raises:
            JournalFailed: the journal does not exist, its version is newer than this program's, it is in use,
                it was written to after the plan was made, or the store failed.
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
            why = f"the upgrade failed ({name_of(error)}): run it again; it first reports the journal's state"
            raise JournalFailed(why) from sanitize_exception(error)

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """See `Journal.move`."""
        loop = self._require_open()
        wanted = PendingMove((scope, key), move, os.urandom(16).hex(), loop.create_future())
        self._waiting.append(wanted)
        self._start_runner()
        return await wanted.result

    def _start_runner(self) -> None:
        """Start a runner, unless one is gathering transitions or all permitted runners are active."""
        if self._waiting and self._gathering is None and len(self._runners) < self._concurrent_commits:
            self._gathering = asyncio.get_running_loop().create_task(self._run())
            self._runners.add(self._gathering)
            self._gathering.add_done_callback(self._on_runner_end)

    def _on_runner_end(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._gathering is runner:
            self._gathering = None
        self._start_runner()  # A cancelled runner may have left transitions in the queue.

    async def _rows(self, sql: str, *values: object) -> list[tuple[str, EntryRow]]:
        return [(key, EntryRow(*row)) for key, *row in await self._query(sql, *values)]

    async def read(self, scope: str, key: str) -> Entry | None:
        """See `Journal.read`."""
        found = await self._rows(self._sql.find, scope, key)
        return entry_of(found[0][1], self._seal, place=(scope, key)) if found else None

    async def _sent(self, scope: str, keys: Sequence[str]) -> set[str]:
        """See `ScopedJournal.sent`."""
        found = await self._query(self._sql.sent, scope, msgspec.json.encode(keys).decode())
        return {key for (key,) in found}

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal.work`."""
        return entries_of(scope, await self._page(scope, "%", limit=limit, after=after), self._seal)

    async def unfinished(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal`."""
        found = await self._page(scope, "%", limit=limit, after=after, at=math.inf)
        return entries_of(scope, found, self._seal)

    async def pending_undos(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal`."""
        found = await self._page(scope, PENDING_UNDO, limit=limit, after=after)
        return entries_of(scope, found, self._seal)

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        """See `Journal.in_doubt`."""
        found = entries_of(scope, await self._rows(self._sql.in_doubt, scope), self._seal)
        return sorted(found, key=lambda doubt: doubt[1].sent_until)

    async def count_in_doubt(self, scope: str) -> int:
        """See `Journal.count_in_doubt`."""
        [(count,)] = await self._query(self._sql.count_in_doubt, scope)
        return int(count)

    async def orders(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, str, float | None]]:
        """See `Journal`."""
        found = await self._query(self._sql.orders, scope, after, limit)
        return [(order_id, key, at) for order_id, key, at in found]

    async def refuted(self, scope: str, *, after: str = "") -> tuple[list[str], str]:
        """See `Journal`. Keys are listed in the order in which the history names them."""
        return await self._with_move(Refute.name, scope, after)

    async def resolved(self, scope: str, *, after: str = "") -> tuple[list[str], str]:
        """See `Journal`. Keys are listed in the order in which the history names them."""
        return await self._with_move(Resolve.name, scope, after)

    async def history(self, scope: str, key: str) -> tuple[HistoryEvent, ...]:
        """See `Journal.history`."""
        return tuple(step_of(tuple(row)) for row in await self._query(self._sql.history, scope, key))

    async def scopes(self) -> list[str]:
        """See `Journal`."""
        return [scope for (scope,) in await self._query(self._sql.scopes, FOUR_EYES)]

    async def audit(
        self,
        scope: str,
        *,
        limit: int,
        after: str = "",
        by: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> tuple[list[AuditLine], str]:
        """See `Journal`. One call reads at most `audit.MAX_RANGES` ranges of the history."""
        page = self._audit.page
        return await page(scope, limit=limit, after=after, by=by, since=since, until=until)

    async def prune(self, scope: str, *, before: datetime) -> int:
        """See `Journal.prune`."""
        self._require_open()
        count, until = 0, forgettable(before, now=await self.now())
        while some := await self._prune_some(scope, until):
            count += some
        return count

    def _require_open(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, or raise an error if the journal cannot be used in it.

        Raises:
            JournalFailed: the journal is closed, or is open in another process or event loop.
        """
        # While the journal closes, the runners still read the scopes for transitions requested earlier.
        if self._closed and asyncio.current_task() not in self._runners:
            raise JournalFailed("the journal is closed")
        return self._bind_to_loop()

    def _bind_to_loop(self) -> asyncio.AbstractEventLoop:
        """On first use, bind the journal to this process and event loop. Return the running loop."""
        if self._is_forked:  # Checked first: the thread and the connections exist only in the parent.
            raise JournalFailed("the journal was opened before a fork: create a journal in each process")
        loop = asyncio.get_running_loop()
        if self._bound_to is None:
            self._bound_to = (os.getpid(), loop)
        elif self._bound_to[1] is not loop:
            raise JournalFailed(
                "the journal is open in another event loop: close it there first, or create a journal for "
                "each loop"
            )
        return loop

    @property
    def _is_forked(self) -> bool:
        return self._bound_to is not None and self._bound_to[0] != os.getpid()

    async def _run(self) -> None:
        """Commit the waiting transitions until none is left."""
        runner = asyncio.current_task()
        assert runner is not None  # noqa: S101 - for the type checker: this code runs in a task
        try:
            while self._waiting and self._gathering in (None, runner):
                self._gathering = runner
                await self._gather()
                self._gathering = None
                began = _loop_time()
                count = min(len(self._waiting), MAX_SHARED)
                taken = [self._waiting.popleft() for _ in range(count)]
                self._start_runner()  # for the transitions beyond the maximum
                try:
                    await self._commit_all(taken)
                finally:
                    for pending in taken:
                        if not pending.result.done():  # No caller may wait forever.
                            why = "the journal failed: read the key to find out its state"
                            pending.result.set_exception(JournalFailed(why))
                self._commit_seconds = _loop_time() - began
        finally:
            # The callback would run too late: the next transition must be able to start a runner immediately.
            self._runners.discard(runner)

    async def _gather(self) -> None:
        """Wait until no more transitions arrive, but no longer than the last commit took.

        A caller whose transition has just been committed usually makes its next transition soon. Without the
        wait, two groups of callers would alternate and need twice as many commits, which matters on a slow
        disk.
        """
        end, quiet = _loop_time() + self._commit_seconds, 0
        while quiet < QUIET_TURNS and len(self._waiting) < MAX_SHARED and _loop_time() < end:
            before = len(self._waiting)
            await asyncio.sleep(0)
            quiet = 0 if len(self._waiting) > before else quiet + 1

    async def _commit_all(self, wanted: list[PendingMove]) -> None:
        new_scopes = {pending.place[0] for pending in wanted} - self._scopes_seen
        try:
            await self._open()
            if new_scopes:
                await self._warn_of_new_scopes(new_scopes)
        except BaseException as error:  # noqa: BLE001 - raised in each caller
            _fail(wanted, error)
            return
        try:
            await self._commit(wanted)
        except BaseException as error:  # noqa: BLE001 - as above
            left = [pending for pending in wanted if not pending.is_settled]
            if len(wanted) > 1 and isinstance(error, Exception) and not self._is_store_error(error):
                for pending in left:  # Commit each one separately, so that only a faulty transition fails.
                    await self._commit_all([pending])
                return
            _fail(left, error)

    def _settle(self, transaction: Transaction) -> None:
        """Cache the entries of a durable commit, and set the callers' results."""
        transaction.remember()
        for pending, result in zip(transaction.wanted, transaction.results, strict=True):
            pending.is_settled = True
            if not pending.result.done():
                pending.result.set_result(result)

    async def _warn_of_new_scopes(self, scopes: set[str]) -> None:
        """Log a warning, once, for each scope without keys, because the service's address may have changed.

        If a scope looks like one that has keys, `_commit` refuses it; see `refuse_similar_scopes`.
        """
        known = await self.scopes()
        self._stored_scopes.update(known)
        # A concurrent commit may have checked a scope meanwhile.
        for scope in scopes - self._scopes_seen - self._stored_scopes:
            if known and similar_scope(scope, known) is None:
                log.warning(
                    "the journal has keys in the scope %r, but none in %r: if only the service's address has "
                    "changed, pass scope=%r; otherwise every key is free, and every payment may be made "
                    "again",
                    known[0],
                    scope,
                    known[0],
                )
        self._scopes_seen.update(scopes)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _fail(wanted: list[PendingMove], error: BaseException) -> None:
    is_safe_to_show = is_ours(error) and is_a(error, (JournalFailed, SealFailed))
    why = str(error) if is_safe_to_show else f"the journal failed ({name_of(error)})"
    cause = bare_alone(error)  # Its frames contain rows with personal data.
    for pending in wanted:
        if not pending.result.done():
            own = JournalFailed(why)  # Each call sets its own outcome on it.
            own.__cause__ = cause
            pending.result.set_exception(own)


# --- transaction -------------------------------------------------------------------------------------
# One commit of a durable journal decides many transitions, each with `decide`.
#
# A back end loads the stored entries, calls `decide`, and writes the results::
#
#     transaction.places ──load──> entries ──decide──> writes, steps ──> COMMIT ──> results


_LEADS_TO: dict[type, KeyState] = {
    Claim: KeyState.CLAIMED,
    TakeOver: KeyState.CLAIMED,
    MarkSending: KeyState.SENDING,
}
"""The target states of a worker's transitions. The worker may continue only if the key is in this state."""


class PendingMove(msgspec.Struct, eq=False):
    """A transition that is waiting to be committed.

    Args:
        place: the scope and key.
        move: the transition.
        token: a unique token, stored with the transition.
        result: the future that the caller awaits.
        commit_unknown: whether an earlier attempt to commit the transition may have succeeded. After an
            attempt with an unknown result, the token is looked up before the transition is decided again.
        is_settled: whether the transition is durable and its caller has received the result.
        order_id: the order id to bind to the key, or None; computed from ``move``.
        is_by_one_person: see `Move.is_by_one_person`; computed from ``move``.
    """

    place: RecordId
    move: Move
    token: str
    result: asyncio.Future[TransitionResult | None]
    commit_unknown: bool = False
    is_settled: bool = False
    order_id: str | None = None
    is_by_one_person: bool = False

    def __post_init__(self) -> None:
        self.order_id, self.is_by_one_person = self.move.order_bound, self.move.is_by_one_person


class Write(msgspec.Struct):
    """An entry to write, either as a new entry or in place of the stored one with the token ``known``.

    The intent and the reply are large, and are written only if they have changed.
    """

    place: RecordId
    known: str | None
    row: EntryRow
    intent_changed: bool
    reply_changed: bool


class _Held(msgspec.Struct):
    """The state of one key within a transaction."""

    token: str | None
    entry: Entry | None
    stored: Entry | None
    changed_by: str | None = None


class WriteCache:
    """Caches the entries that this process wrote last, so that they need not be read again.

    A cached entry is valid while the stored entry has the same token.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._entries: OrderedDict[RecordId, tuple[str, Entry]] = OrderedDict()

    def get(self, place: RecordId) -> tuple[str, Entry] | None:
        """Return the token and the entry, or None."""
        return self._entries.get(place)

    def keep(self, place: RecordId, token: str, entry: Entry) -> None:
        """Cache a committed entry if work on it remains; other entries are rarely needed again."""
        if is_ended(entry):
            self._entries.pop(place, None)
            return
        self._entries[place] = (token, entry)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)


class Transaction:
    """The transitions that share one commit, in the order in which they were requested.

    Attributes:
        places: the keys to load, in order, including the scope's own entry if a person decides alone.
        is_committing: whether the commit has been sent. A sent commit may succeed even if an error is raised.
    """

    def __init__(self, wanted: Sequence[PendingMove], cache: WriteCache, *, seal: Seal | None = None) -> None:
        self.wanted: Sequence[PendingMove] = wanted
        self.cache: WriteCache = cache
        self.is_committing: bool = False
        self._seal = seal
        rules = {(pending.place[0], FOUR_EYES) for pending in wanted if pending.is_by_one_person}
        # Every process locks the keys in the same order, so there is no deadlock.
        self.places: list[RecordId] = sorted({pending.place for pending in wanted} | rules)
        known = {place: cache.get(place) for place in self.places}
        self._known = {place: found for place, found in known.items() if found is not None}
        self.writes: list[Write] = []
        self.steps: list[tuple[RecordId, str, tuple[Any, ...]]] = []
        self.results: list[TransitionResult | None] = []
        self._held: dict[RecordId, _Held] = {}
        self._ids: dict[tuple[str, str], str] = {}

    @property
    def commit_unknown(self) -> bool:
        """Whether an earlier commit of any of these transitions may have succeeded."""
        return any(pending.commit_unknown for pending in self.wanted)

    @property
    def tokens(self) -> list[str]:
        """The tokens of all transitions."""
        return [pending.token for pending in self.wanted]

    @property
    def ids(self) -> set[tuple[str, str]]:
        """The order ids to bind, with their scopes."""
        return {
            (pending.place[0], pending.order_id) for pending in self.wanted if pending.order_id is not None
        }

    @property
    def rules(self) -> dict[str, bool]:
        """Each scope whose dual-control rule this transaction reads, and whether it may change that rule.

        A back end with concurrent transactions needs a lock that prevents changes to the rule while other
        transactions depend on it. A row lock is not enough, because no row exists before the rule is first
        stored.
        """
        changed = {pending.place[0] for pending in self.wanted if pending.place[1] == FOUR_EYES}
        return {scope: scope in changed for scope, key in self.places if key == FOUR_EYES}

    @property
    def tokens_without_entry(self) -> set[str]:
        """The tokens of the transitions whose keys have no stored entry."""
        return {pending.token for pending in self.wanted if self._held[pending.place].entry is None}

    def known_token(self, place: RecordId) -> str | None:
        """Return the cached entry's token, or None. A stored row with the same token need not be read."""
        return self._known[place][0] if place in self._known else None

    def load(self, place: RecordId, token: str | None, row: EntryRow | None) -> None:
        """Set the stored state of a key.

        Args:
            place: the scope and key.
            token: the stored entry's token, or None if no entry is stored.
            row: the stored row; None if no entry is stored, or if the cached entry has the same token.
        """
        entry = None
        if row is not None:
            entry = rows.entry_of(row, self._seal, place=place)
        elif token is not None:
            entry = self._known[place][1]
        self._held[place] = _Held(token=token, entry=entry, stored=entry)

    def bind(self, scope: str, order_id: str, key: str) -> None:
        """Record that ``key`` is bound to one of the order ids in `ids`."""
        self._ids[scope, order_id] = key

    def decide(self, now: float, *, committed: Iterable[str] = ()) -> None:
        """Decide the transitions one by one, and fill in `results`, `writes` and `steps`.

        ``committed`` contains the tokens of transitions that an earlier attempt has committed.
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
        """Decide as if the store contained only the cached entries.

        The results are valid only if the entry that each `Write` replaces still has the expected token.
        Transitions that would be rejected, would write nothing, or depend on other keys are skipped, because
        they must be decided from the stored state.
        """
        for place in self.places:
            self.load(place, self.known_token(place), None)
        self.decide(now)
        decided = zip(self.wanted, self.results, strict=True)
        uncertain = {pending.place for pending, result in decided if _needs_stored_state(pending, result)}
        self.restrict_to({write.place for write in self.writes} - uncertain)

    def restrict_to(self, places: Collection[RecordId]) -> None:
        """Keep only the transitions, results, writes and steps of the keys in ``places``."""
        decided = zip(self.wanted, self.results, strict=True)
        kept = [(pending, result) for pending, result in decided if pending.place in places]
        self.wanted, self.results = [pending for pending, _ in kept], [result for _, result in kept]
        self.writes = [write for write in self.writes if write.place in places]
        self.steps = [step for step in self.steps if step[0] in places]
        self._held = {place: held for place, held in self._held.items() if place in places}

    def _decide_one(self, pending: PendingMove, held: _Held, now: float) -> TransitionResult | None:
        before, move, order_id = held.entry, pending.move, pending.order_id
        scope, key = pending.place
        taken = order_id is not None and self._ids.get((scope, order_id), key) != key
        rule = self._held.get((scope, FOUR_EYES))
        result = state_machine.decide(
            before, move, now=now, id_taken=taken, four_eyes=None if rule is None else rule.entry
        )
        if result is None or result.entry is before:
            return result
        held.entry, held.changed_by = result.entry, pending.token
        if order_id is not None and result.entry.order_id == order_id:  # A proposal does not bind the id.
            self._ids[scope, order_id] = key
        if is_told(move, result):
            step = history_step(result.entry, move, now=now)
            self.steps.append((pending.place, pending.token, rows.step_values(step)))
        return result

    def remember(self) -> None:
        """Cache the entries that this commit wrote. Call `remember` only when the commit is durable."""
        for place, held in self._held.items():
            if held.entry is not None and (token := held.changed_by or held.token) is not None:
                self.cache.keep(place, token, held.entry)


def _needs_stored_state(pending: PendingMove, result: TransitionResult | None) -> bool:
    if result is None or result.denial is not None:
        return True
    # Whether a person may decide alone depends on the scope's rule, which another process may have just
    # changed.
    if pending.is_by_one_person or pending.place[1] == FOUR_EYES:
        return True
    # The store checks that an order id is unique only when it writes the id.
    return pending.order_id not in (None, result.entry.order_id)


def _result_of_found_commit(pending: PendingMove, held: _Held, now: float) -> TransitionResult:
    """Return the result of a committed transition, whose token was found in the store."""
    assert held.entry is not None  # noqa: S101 - otherwise the commit is tried again, see `Transaction.tokens_without_entry`
    wanted, entry = _LEADS_TO.get(type(pending.move)), held.entry
    if isinstance(pending.move, Release) and entry.state is KeyState.IN_DOUBT:
        return TransitionResult(entry=entry, denial=Rejection.LOST, now=now)
    if wanted is None or (held.token, entry.state) == (pending.token, wanted):
        return TransitionResult(entry=entry, now=now)
    # A rejected claim is stored only if it put the key in doubt: see `TransitionResult.found_doubt`.
    found_doubt = isinstance(pending.move, Claim) and entry.state is KeyState.IN_DOUBT
    return TransitionResult(
        entry=entry, denial=Rejection.IN_DOUBT if found_doubt else Rejection.LOST, now=now
    )


def _write(place: RecordId, held: _Held, now: float, seal: Seal | None) -> Write:
    entry, stored, token = held.entry, held.stored, held.changed_by
    assert entry is not None and token is not None  # noqa: S101, PT018 - only changed entries are written
    intent_changed = stored is None or entry.intent is not stored.intent or stored.unread is not None
    return Write(
        place=place,
        known=None if stored is None else held.token,
        row=rows.row_of(entry, token=token, now=now, with_intent=intent_changed, seal=seal, place=place),
        intent_changed=intent_changed,
        reply_changed=entry.reply is not (None if stored is None else stored.reply),
    )
