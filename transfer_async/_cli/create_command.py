"""The command that creates the orders of a file: its options, its words and its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import frozen

from transfer_async._cli import options, output
from transfer_async._cli.create_input import Changed, Checking, Format, OrderFile, Stopped, format_of, opened
from transfer_async._cli.create_outcomes import (
    OutcomeFile,
    Progress,
    Tally,
    check_place,
    duration,
    shown_progress,
)
from transfer_async._cli.create_run import BulkRun, Stopping
from transfer_async._cli.options import BankSide, client_of, factory_named, journal_named, made_by
from transfer_async._cli.output import Say, failing, in_one_line, shown, tell
from transfer_async._cli.process import DONE, FAILED, USAGE, run
from transfer_async._client import TransferClient
from transfer_async._http.retry import RetryPolicy
from transfer_async._models import errors
from transfer_async._models.errors import Outcome
from transfer_async._models.events import Event, OrderCreated, Resolved, UndoPending
from transfer_async._support.clock import Clock
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.journal.protocol import Journal


def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The orders: CSV, or JSON Lines.")],
    *,
    journal: options.Journal = None,
    base_url: options.BaseUrl = None,
    token: options.Token = None,
    hooks: options.Hooks = None,
    scope: options.Scope = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="What became of each line; FILE.outcomes.jsonl by default."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="How FILE is written; by default as its name says.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="How many orders are in flight.")] = 16,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, tell the sums, send nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the end.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Progress in lines, on a terminal too.")] = False,
    deadline: Annotated[
        float, typer.Option(help="Seconds within which an order is sent, and sent again where that is safe.")
    ] = 30.0,
    lease: Annotated[
        float, typer.Option(help="Seconds for which a run that was killed keeps its keys from the next.")
    ] = LEASE,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    abandoned_settle_after: options.AbandonedSettleAfter = None,
    rate: options.PerSecond = None,
    burst: options.Burst = None,
) -> None:
    """Create the orders of a file, each at most once, however often it is run.

    Every line is checked before the first is sent. If any has a fault, all faults are listed by line, and
    nothing is sent. Every line has a key of its own; what the journal says of a key is never done twice,
    so after Ctrl-C, kill or a power cut: run the same command again.

    CSV: the first line names the columns: key; poster_username, poster_recipient_username and the other
    fields of an order; current_account_balance, transaction_fee, transaction_fee_currency; and, where
    there is something to say, beneficiary_first, beneficiary_last, beneficiary_middle, held, send_before,
    deadline.
    JSON Lines: one object a line, as a worker takes it from a broker.

    FACTORY returns a sequence of hooks; or a mapping, or an object, with hooks and perhaps resolve,
    the bank's own means to end a doubt, and other settings. It may be async. Without a hook that holds
    the funds, every line must say that they are (held).

    The outcomes are written to PATH.part, a JSON object a line, which becomes PATH when there is one for
    every line; those of an earlier run are renamed to PATH.old. They name no person.

    --rate and --burst are this run's alone: divide what the service allows among runs, workers and clients.
    A line whose send_before or deadline comes before its turn is not sent, and nothing is held for it.

    Ctrl-C or SIGTERM: no new line is begun, those in flight come to their end. A second one cuts them off.
    A run gives up by itself when 10 orders in a row meet a token or an address that is not good, or when
    32 (twice --concurrency, but at least 20) meet any other fault that is not the order's, or end in doubt.
    Keys that another run still has a lease on are tried again after all others, until it ends.

    Exit codes; of 3 to 5 the highest. After 1, 130 and 143 some may be in doubt, too:

    \b
      0    all orders are created, or the dry run found no fault
      1    it could not be carried through: the journal, the service, the file or the disk
      2    a wrong use, faults in the file, or no orders in it; nothing was sent
      3    some were refused, and would be again, or refuted; all others are created
      4    some were not sent, or refused for a reason that may pass: run it again
      5    some are in doubt: they may exist; see transfer-async journal list
      130  stopped by Ctrl-C; 143 by SIGTERM
    """

    with failing("create", {ValueError: USAGE, Failed: FAILED}):
        wanted = CreateOptions(
            path=file,
            form=format_of(file, form),
            outcomes=outcomes or file.with_name(file.name + ".outcomes.jsonl"),
            factory=None if hooks is None else factory_named(hooks),
            base_url=base_url,
            token=token,
            journal=journal,
            settings={
                "scope": scope,
                "retry": RetryPolicy(deadline=deadline),
                "lease": lease,
                "settle_after": settle_after,
                "abandoned_settle_after": abandoned_settle_after,
                "rate": options.rate_given(rate, burst),
            },
            concurrency=concurrency,
            dry_run=dry_run,
        )
        with _shown(live=sys.stderr.isatty() and not plain, quiet=quiet) as (say, complain, progress):
            code = carry_out(wanted, Words(tell=say, complain=complain, progress=progress))
    raise typer.Exit(code)


@contextlib.contextmanager
def _shown(*, live: bool, quiet: bool) -> Iterator[tuple[Say, Say, Progress]]:
    """How lines are told, how they are complained of, and how far it has come."""
    with (
        _afterwards(_mention) as complain,
        _afterwards(tell) as say,
        shown_progress(_mention, live=live, quiet=quiet) as progress,
    ):
        yield say, complain, progress


def _mention(line: str) -> None:
    """Complain; a run does not end because nobody listens any more."""
    with contextlib.suppress(OSError):
        output.complain(line)


@contextlib.contextmanager
def _afterwards(say: Say) -> Iterator[Say]:
    """Keep lines until a bar is gone that would be drawn over them."""
    kept: list[str] = []
    try:
        yield kept.append
    finally:
        for line in kept:
            say(line)


# --- job ---------------------------------------------------------------------------------------------
# What `transfer-async create` does, from its options to its exit code.


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
            async with side:
                return await self._run_with(side, journal, protected, journal_is_new=journal_is_new)

    async def _run_with(
        self, side: BankSide, journal: Journal | None, protected: tuple[Path, ...], *, journal_is_new: bool
    ) -> int:
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
            raise ValueError(f"required, except with --dry-run: {'; '.join(missing)}")
        if missing or wanted.base_url is None or journal is None:
            return None
        settings = {"max_connections": max(512, wanted.concurrency), **wanted.settings}
        return client_of(
            wanted.base_url, wanted.token, side, journal=journal, observers=[self._note], **settings
        )

    def _note(self, event: Event) -> None:
        self._tally.owed += isinstance(event, UndoPending)
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
        why = in_one_line(error, errors.said(error))
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


# --- journal option ----------------------------------------------------------------------------------
# The journal that ``--journal`` names, checked as far as it can be before anything else is done.


def journal_and_files(address: str | None) -> tuple[Journal | None, tuple[Path, ...]]:
    """The journal, not yet open, and the files that it may lie in.

    Raises:
        ValueError: there cannot be one there, or it would forget.
    """
    if address is None:
        return None, ()
    journal = journal_named(address)
    if not journal.durable:
        raise ValueError("--journal: must be durable, or the next run would not know what this one has done")
    if "://" in address:
        _check_driver()
        return journal, ()
    _check_place(Path(address))
    return journal, tuple(Path(address + end) for end in ("", "-wal", "-shm", "-journal"))


def _check_driver() -> None:
    try:
        importlib.import_module("asyncpg")
    except ImportError as error:
        needed = 'pip install "transfer_async[postgres]"'
        raise ValueError(f"--journal: postgresql:// needs an extra: {needed}") from error


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"--journal: there is no directory {shown(str(path.parent))}")
    if path.exists() and not path.is_file():
        raise ValueError(f"--journal: {shown(str(path))} is there, and is not a file")
