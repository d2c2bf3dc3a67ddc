"""What `transfer-async create` does, from its options to its exit code."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from transfer_async._cli.console import options
from transfer_async._cli.console.clients import client_of
from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import DONE, FAILED, USAGE
from transfer_async._cli.console.hook_loading import BankSide, made_by
from transfer_async._cli.console.output import Say, in_one_line, shown
from transfer_async._cli.create.first_pass import Checking, Stopped
from transfer_async._cli.create.journal_option import journal_and_files
from transfer_async._cli.create.order_file import Format, OrderFile, opened
from transfer_async._cli.create.outcome_file import OutcomeFile, check_place
from transfer_async._cli.create.progress import Progress, duration
from transfer_async._cli.create.second_pass import BulkRun
from transfer_async._cli.create.stopping import Stopping
from transfer_async._cli.create.tally import Tally
from transfer_async._cli.create.unchanged_file import Changed
from transfer_async._client import TransferClient
from transfer_async._models import causes
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, OrderCreated, Resolved, UndoOwed
from transfer_async._support.clock import Clock
from transfer_async.journal.protocol import Journal

LOOKED_AT_EVERY = 0.5
"""Seconds between two looks at how far the check has come."""


DRY = "no faults; a dry run: nothing was sent, and nothing written"


class Failed(Exception):
    """It could not be carried through; says why in a line."""


@frozen(kw_only=True)
class CreateOptions:
    """What was asked for.

    Args:
        path: of the orders.
        form: how they are written.
        outcomes: where to write what became of them.
        factory: makes the bank's hooks; None for none.
        base_url: of the service; None for a dry run that needs none.
        token: for it; None for the same, or where the factory brings one.
        journal: its address; None for a dry run that needs none.
        settings: of the client, all others, unless the factory brings its own.
        concurrency: how many orders are in flight.
        dry_run: check, and send nothing.
    """

    path: Path
    form: Format
    outcomes: Path
    factory: Callable[[], object] | None
    base_url: str | None
    token: str | None
    journal: str | None
    settings: dict[str, Any]
    concurrency: int
    dry_run: bool = False


@frozen(kw_only=True)
class Words:
    """Who hears what."""

    tell: Say
    """Takes the lines that are the result."""
    complain: Say
    """Takes what is wrong."""
    progress: Progress
    """Takes the rest."""


def carry_out(
    wanted: CreateOptions, words: Words, *, clock: Clock | None = None, stopping: Stopping | None = None
) -> int:
    """Do it, and say how it ended.

    Returns:
        The exit code.

    Raises:
        ValueError: an option is no good; nothing was sent.
        Failed: it could not be carried through.
    """
    journal, files = journal_and_files(wanted.journal)
    check_place(wanted.outcomes, protected=(wanted.path, *files))
    is_new = bool(files) and not files[0].exists()
    stopping = stopping or Stopping()
    with opened(wanted.path, wanted.form) as orders:
        creation = _Creation(wanted, words, orders, stopping=stopping, clock=clock or Clock())
        try:
            return run(creation.run(journal, protected=(wanted.path, *files), journal_is_new=is_new))
        except Stopped:
            words.complain("stopped before anything was sent")
            return stopping.exit_code or FAILED


class _Creation:
    def __init__(
        self, wanted: CreateOptions, words: Words, orders: OrderFile, *, stopping: Stopping, clock: Clock
    ) -> None:
        self._wanted, self._words, self._orders = wanted, words, orders
        self._stopping, self._clock = stopping, clock
        self._tally = Tally()

    async def run(self, journal: Journal | None, *, protected: tuple[Path, ...], journal_is_new: bool) -> int:
        with self._stopping.by_signals():
            side = await self._stopping.unless_asked(made_by(self._wanted.factory))
            if side is None:
                raise Stopped
            client = self._client(side, journal)
            holds = side.places_hold
            checking = await self._checked(needs_held=not holds)
            if checking.faults:
                self._each(self._words.complain, checking.complaint())
                return USAGE
            if not checking.records:
                raise ValueError("FILE: has no orders; nothing was sent")
            if client is None or journal is None or self._wanted.dry_run:
                self._each(self._words.tell, [*checking.summary(), DRY])
                return DONE
            self._each(self._words.progress.say, checking.summary())
            if journal_is_new:
                self._words.progress.say("the journal is new: no key is known in it")
            async with _open(journal), client, self._outcome_file(protected) as outcomes:
                return await self._sent(client, outcomes, total=checking.records)

    @staticmethod
    def _each(say: Say, lines: Iterable[str]) -> None:
        for line in lines:
            say(line)

    def _client(self, side: BankSide, journal: Journal | None) -> TransferClient | None:
        """The client; None for a dry run for which not enough was given to make one.

        Raises:
            ValueError: of what was given, or what was not.
        """
        wanted = self._wanted
        needed = {
            options.BASE_URL: wanted.base_url,
            options.JOURNAL: journal,
            options.TOKEN: side.settings.get("token", wanted.token),
        }
        missing = [name for name, value in needed.items() if value is None]
        if missing and not wanted.dry_run:
            raise ValueError(f"{'; '.join(missing)}: must be given, but for --dry-run")
        if missing or wanted.base_url is None or journal is None:
            return None
        settings = {"max_connections": max(512, wanted.concurrency), **wanted.settings}
        return client_of(
            wanted.base_url, wanted.token, side, journal=journal, observers=[self._note], **settings
        )

    def _note(self, event: Event) -> None:
        self._tally.owed += isinstance(event, UndoOwed)
        self._tally.made += isinstance(event, OrderCreated) or (
            isinstance(event, Resolved) and event.outcome is Outcome.CREATED
        )

    # --- the two passes -------------------------------------------------------------------------

    async def _checked(self, *, needs_held: bool) -> Checking:
        now = self._clock.utc() if self._wanted.dry_run else None
        checking = Checking(needs_held=needs_held, now=now, is_stopped=self._stopping.asked.is_set)
        work = asyncio.ensure_future(asyncio.to_thread(checking.run, self._orders.records()))
        while not work.done():
            await asyncio.wait([work], timeout=LOOKED_AT_EVERY)
            self._words.progress.show("checking", checking.records, None, "")
        try:
            work.result()
        except OSError as error:
            raise Failed(f"the file cannot be read ({error.strerror or error}); nothing was sent") from error
        except sqlite3.Error as error:
            raise Failed(f"no room to remember the keys ({error}); nothing was sent") from error
        return checking

    async def _sent(self, client: TransferClient, outcomes: OutcomeFile, *, total: int) -> int:
        began = self._clock.now()
        bulk = BulkRun(
            client,
            outcomes=outcomes,
            progress=self._words.progress,
            stopping=self._stopping,
            tally=self._tally,
            total=total,
            concurrency=self._wanted.concurrency,
            clock=self._clock,
        )
        broken = await _run(bulk, self._orders)
        if bulk.is_whole and broken is None:
            broken = await asyncio.to_thread(_finished, outcomes)
        is_whole = bulk.is_whole and broken is None
        took = self._clock.now() - began
        self._words.tell(self._how_it_ended(total, took, is_whole=is_whole, gave_up=broken or bulk.gave_up))
        if not is_whole:
            self._words.tell("run the same command again: what is done is not done twice")
        where = f"outcomes: {outcomes.path}" if is_whole else f"outcomes so far: {outcomes.part}"
        self._each(self._words.tell, [shown(where), *self._tally.advice()])
        if is_whole:  # whoever gave up at the last line has left nothing out
            return self._tally.exit_code
        if broken or bulk.gave_up:
            raise Failed(broken or f"given up: {bulk.gave_up}")
        return self._stopping.exit_code or FAILED

    def _how_it_ended(self, total: int, took: float, *, is_whole: bool, gave_up: str | None) -> str:
        tally, by = self._tally, self._stopping.by
        pace = f"{duration(took)}, {tally.done / took:,.0f} a second" if took > 0 else "no time"
        if is_whole:
            return f"{total:,} orders in {pace}: {tally.told()}"
        why = f"stopped by {by.name}" if by is not None and gave_up is None else "given up"
        return f"{why} after {tally.done:,} of {total:,} orders in {pace}: {tally.told()}"

    @asynccontextmanager
    async def _outcome_file(self, protected: tuple[Path, ...]) -> AsyncIterator[OutcomeFile]:
        made = partial(OutcomeFile, self._wanted.outcomes, protected=protected, clock=self._clock)
        outcomes = await asyncio.to_thread(made)
        try:
            yield outcomes
        finally:
            outcomes.close()


@asynccontextmanager
async def _open(journal: Journal) -> AsyncIterator[None]:
    """The journal, opened before anything else, and closed after it.

    Raises:
        Failed: it cannot be; nothing was sent.
    """
    try:
        await journal.__aenter__()
    except Exception as error:  # the store's own: a database's, or the machine's
        why = in_one_line(error, causes.said(error))
        raise Failed(f"the journal cannot be opened ({why}); nothing was sent") from error
    try:
        yield
    finally:
        await journal.close()


async def _run(bulk: BulkRun, orders: OrderFile) -> str | None:
    """Run it; what broke, if something did."""
    try:
        await bulk.run(orders.records())
    except Changed as changed:
        return f"{changed}: no further line was begun"
    except OSError as error:
        return f"the orders cannot be read, or the outcomes not written ({error.strerror or error})"
    return None


def _finished(outcomes: OutcomeFile) -> str | None:
    try:
        outcomes.finish()
    except OSError as error:
        return f"the outcomes cannot be put in their place ({error.strerror or error})"
    return None
