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
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Self

from transfer_async._models.causes import bare
from transfer_async._models.errors import JournalFailed
from transfer_async.journal.entries import Entry, Verdict
from transfer_async.journal.moves import Move
from transfer_async.journal.protocol import forgettable
from transfer_async.journal.rows import EntryRow, entries_of
from transfer_async.journal.seal import Seal, checked_seal
from transfer_async.journal.transaction import PendingMove, Recent, Transaction
from transfer_async.journal.upgrading import Upgradable, Upgrade, planned, upgraded

log: logging.Logger = logging.getLogger("transfer_async")

SHARED = 256
"""How many moves one commit carries at most."""

QUIET = 2
"""Turns of the loop without another move, after which a commit waits for no more."""

PRUNED = 1000
"""How many keys are forgotten in one transaction: others need the journal meanwhile."""


class DurableJournal(abc.ABC):
    """A journal that survives its process: the side that faces the callers.

    Args:
        at_once: how many commits may be on their way at once.
        seal: for what is stored of persons.
    """

    durable = True

    def __init__(self, *, at_once: int = 1, seal: Seal | None = None) -> None:
        self._seal = checked_seal(seal)
        self._at_once = at_once
        self._waiting: deque[PendingMove] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Task[None] | None = None
        """The runner that has not taken its moves yet: what comes now joins them."""

        self._recent = Recent()
        self._scopes_seen: set[str] = set()
        self._closed = False
        self._took = 0.0
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None

    # --- what a back end does -------------------------------------------------------------------

    @abc.abstractmethod
    async def _commit(self, wanted: Sequence[PendingMove]) -> None:
        """Load, decide, write, and `_settle` what is durable, until all is. The store is open."""

    @abc.abstractmethod
    async def _close(self) -> None:
        """Let go of the store."""

    @abc.abstractmethod
    def _is_of_the_store(self, error: BaseException) -> bool:
        """Whether ``error`` is the store's own, so that each of the moves would meet it."""

    @abc.abstractmethod
    async def now(self) -> float:
        """See `Journal.now`; in seconds since 1970."""

    @abc.abstractmethod
    async def _prune_some(self, scope: str, before: float) -> int:
        """Forget up to `PRUNED` keys that ended before that time; how many it were."""

    @abc.abstractmethod
    async def _other_scope(self, scope: str) -> str | None:
        """The name of a scope with keys, if there is one, and ``scope`` has none."""

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
        was_open = self._home is not None
        self._come_home()
        self._closed = False
        try:
            await self._open()
        except BaseException:
            if not (was_open or self._runners):
                self._home = None
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
        if self._is_parents:
            self._closed = True  # what is open is the other process's, and waits there
            return
        if self._home is not None and self._home[1].is_closed():
            self._runners.clear()  # they ended with it
            self._waiting.clear()
            self._gathering = self._home = None
        self._come_home()
        self._closed = True
        while self._runners:
            await asyncio.wait(self._runners)
        await self._close()
        self._home = None

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
        self._admitted()
        try:
            async with self._upgradable() as store:
                yield store
        except JournalFailed:
            raise
        except Exception as error:
            if not self._is_of_the_store(error):
                raise
            why = f"the upgrade failed ({type(error).__name__}): run it again, it says how the journal stands"
            raise JournalFailed(why) from bare(error)

    async def move(self, scope: str, key: str, move: Move) -> Verdict | None:
        """See `Journal.move`."""
        loop = self._admitted()
        wanted = PendingMove((scope, key), move, os.urandom(16).hex(), loop.create_future())
        self._waiting.append(wanted)
        self._start_runner()
        return await wanted.verdict

    def _start_runner(self) -> None:
        """Have what waits committed, unless a runner is gathering it, or as many as may be are at work."""
        if self._waiting and self._gathering is None and len(self._runners) < self._at_once:
            self._gathering = asyncio.get_running_loop().create_task(self._run())
            self._runners.add(self._gathering)
            self._gathering.add_done_callback(self._ended)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if self._gathering is runner:
            self._gathering = None
        self._start_runner()  # for what it has not taken, if it was cancelled

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal.work`."""
        return entries_of(await self._page(scope, limit=limit, after=after), self._seal)

    async def prune(self, scope: str, *, before: datetime) -> int:
        """See `Journal.prune`."""
        self._admitted()
        count, until = 0, forgettable(before, now=await self.now())
        while some := await self._prune_some(scope, until):
            count += some
        return count

    def _admitted(self) -> asyncio.AbstractEventLoop:
        """The loop of a call that may be made here and now.

        Raises:
            JournalFailed: the journal is closed, or open elsewhere.
        """
        if self._closed:
            raise JournalFailed("the journal is closed")
        return self._come_home()

    def _come_home(self) -> asyncio.AbstractEventLoop:
        """The running loop: what the journal was opened in, process and loop, is where it is used."""
        if self._is_parents:  # before anything is waited for that only the parent has: a thread, a reply
            raise JournalFailed("the journal was opened before a fork: each process must make its own")
        loop = asyncio.get_running_loop()
        if self._home is None:
            self._home = (os.getpid(), loop)
        elif self._home[1] is not loop:
            raise JournalFailed(
                "the journal is open in another event loop: close it there first, or make one for each"
            )
        return loop

    @property
    def _is_parents(self) -> bool:
        return self._home is not None and self._home[0] != os.getpid()

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
                count = min(len(self._waiting), SHARED)
                taken = [self._waiting.popleft() for _ in range(count)]
                self._start_runner()  # for those that were one too many
                await self._commit_all(taken)
                self._took = _loop_time() - began
        finally:
            self._runners.discard(runner)  # at once: a move that comes now starts another

    async def _gather(self) -> None:
        """Let those join who are about to come: as long as some do, and no longer than the last commit took.

        Whoever was told a moment ago comes back with the next move. Without them there would be two groups by
        turns, each with a commit of its own; and a commit beside a busy loop makes both slower, for they take
        the interpreter from each other. On a slow disk half as many commits are worth more still.
        """
        end, quiet = _loop_time() + self._took, 0
        while quiet < QUIET and len(self._waiting) < SHARED and _loop_time() < end:
            before = len(self._waiting)
            await asyncio.sleep(0)
            quiet = 0 if len(self._waiting) > before else quiet + 1

    async def _commit_all(self, wanted: list[PendingMove]) -> None:
        try:
            await self._open()
            await self._look_at_scopes(wanted)
        except BaseException as error:  # noqa: BLE001 - whatever it is, each caller must hear of it
            _fail(wanted, error)
            return
        try:
            await self._commit(wanted)
        except BaseException as error:  # noqa: BLE001 - whatever it is, each caller must hear of it
            left = [one for one in wanted if not one.is_settled]
            if len(wanted) > 1 and isinstance(error, Exception) and not self._is_of_the_store(error):
                for one in left:  # something about one of them: the others shall not suffer
                    await self._commit_all([one])
                return
            _fail(left, error)

    def _settle(self, transaction: Transaction) -> None:
        """Its commit is durable: remember it, and tell those who wait."""
        transaction.remember()
        for one, verdict in zip(transaction.wanted, transaction.verdicts, strict=True):
            one.is_settled = True
            if not one.verdict.done():
                one.verdict.set_result(verdict)

    async def _look_at_scopes(self, wanted: list[PendingMove]) -> None:
        """Warn, once each, of a scope that has no keys where others have: its address may have changed."""
        for scope in {one.place[0] for one in wanted} - self._scopes_seen:
            self._scopes_seen.add(scope)
            other = None
            with contextlib.suppress(Exception):  # the commit that follows will tell
                other = await self._other_scope(scope)
            if other is not None:
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
    why = str(error) if isinstance(error, JournalFailed) else f"the journal failed ({type(error).__name__})"
    for one in wanted:
        if not one.verdict.done():
            own = JournalFailed(why)  # what is certain differs from call to call
            own.__cause__ = bare(error).with_traceback(None)  # its frames hold rows, with all their words
            one.verdict.set_exception(own)
