"""The ``create`` command: its options, help text, steps and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from attrs import define, field, frozen

from transfer_async._cli import options
from transfer_async._cli.create_input import (
    Changed,
    Checking,
    Format,
    Keys,
    OrderFile,
    Record,
    Stopped,
    format_of,
    opened,
)
from transfer_async._cli.create_outcomes import (
    EarlierOrder,
    OutcomeFile,
    Progress,
    Tally,
    check_place,
    duration,
    orders_of_earlier_runs,
    outcome_line,
    shown_progress,
)
from transfer_async._cli.options import BankSide, client_of, factory_named, journal_named, made_by
from transfer_async._cli.output import Say, complain, failing, in_one_line, shown, tell
from transfer_async._cli.process import DONE, FAILED, USAGE, Stopping, run
from transfer_async._client import TransferClient
from transfer_async._converters.messages import OrderCommand
from transfer_async._http.retry import RetryPolicy
from transfer_async._models import errors
from transfer_async._models.errors import (
    ClientClosed,
    ConnectionFailed,
    JournalFailed,
    KeyBusy,
    Outcome,
    OutcomeUnknown,
)
from transfer_async._models.events import Event, OrderCreated, Resolved, UndoPending
from transfer_async._models.requests import OrderRequest
from transfer_async._models.responses import Order
from transfer_async._pipeline.batch import OrderResult
from transfer_async._support.clock import Clock
from transfer_async.journal.model import LEASE, SETTLE_AFTER, KeyState
from transfer_async.journal.protocol import Journal, ScopedJournal
from transfer_async.worker.handler import Action, disposition


def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The orders, as CSV or JSON Lines.")],
    *,
    journal: options.Journal = None,
    base_url: options.BaseUrl = None,
    token: options.Token = None,
    hooks: options.Hooks = None,
    scope: options.Scope = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The file of outcomes; FILE.outcomes.jsonl by default."),
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="The format of FILE; by default, determined by the file's suffix."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="The maximum number of orders in flight at once.")
    ] = 16,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check every line and show the total amounts, without sending any order."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress, only the results.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Show progress as lines, even on a terminal.")
    ] = False,
    deadline: Annotated[
        float, typer.Option(help="Maximum seconds for sending an order, including safe retries.")
    ] = 30.0,
    lease: Annotated[
        float, typer.Option(help="Seconds until another run may use this run's keys, if this run is killed.")
    ] = LEASE,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    abandoned_settle_after: options.AbandonedSettleAfter = None,
    rate: options.PerSecond = None,
    burst: options.Burst = None,
    network: options.Network,
) -> None:
    """Create the orders listed in a file, each at most once, however often you run the command.

    All lines are checked before the first order is sent. If any line is invalid, the command lists the errors
    by line and sends nothing. Every line needs its own key. The command never creates an order twice, so you
    can run it again after Ctrl-C, kill or a power failure.

    CSV: the first line contains the column names. The columns are key; the fields of an order, such as
    poster_username; current_account_balance, transaction_fee and transaction_fee_currency; and, optionally,
    beneficiary_first, beneficiary_last, beneficiary_middle, held, send_before, deadline.

    JSON Lines: one command per line, in the format that workers use.

    FACTORY returns a sequence of hooks, or a mapping or an object that contains hooks and, optionally,
    resolve (which finds out whether an order in doubt exists) and other settings. FACTORY may be async. If no
    hook holds the funds, the held field of every line must contain the reference of an existing hold.

    The outcomes are written to PATH.part, one JSON object per line. The file is renamed to PATH when every
    line has an outcome. At the start, an existing PATH is renamed to PATH.old. The contents of an existing
    PATH.part are moved to PATH.part.old, which is deleted when PATH is complete. None of these files contains
    personal data. If they show that a line's order exists or may exist, but the journal has no record of the
    line's key in this scope, or is an old copy in which the key is free, nothing is sent.

    --rate and --burst limit this run only: divide the service's limit among all runs, workers and clients. If
    a line's send_before or deadline would pass while the line waits, its order is not sent and no hold is
    placed.

    After Ctrl-C or SIGTERM, the command finishes the orders in flight and starts no new ones; a second signal
    aborts the orders in flight. A run stops early after 10 consecutive failures caused by a wrong token or
    base URL. The run also stops early if many consecutive orders end in doubt or fail for reasons unrelated
    to the order: 20, or twice --concurrency if that is more (32 by default). If another run is using a line's
    key, the line is postponed to the end, and retried until the other run's lease expires.

    If several of the exit codes 3, 4 and 5 apply, the highest is returned. After exit code 1, 130 or 143,
    some orders may also be in doubt. Exit codes:

    \b
      0    all orders were created, or the dry run found no errors
      1    the run could not finish: the journal, the service, the file or the disk failed
      2    usage error, the file contains errors or no orders, or the journal lacks an order; nothing was sent
      3    some orders were refuted or permanently refused; all others were created
      4    some orders were not sent, or were refused for a temporary reason: run the command again,
           because it may send them; do not pay them by other means
      5    some orders are in doubt, so they may exist: run transfer-async journal list
      130  stopped by Ctrl-C; 143 by SIGTERM
    """
    live = sys.stderr.isatty() and not plain
    with (
        failing("create", {ValueError: USAGE, Failed: FAILED}),
        _afterwards(complain) as complain_later,
        _afterwards(tell) as say,
        shown_progress(complain, live=live, quiet=quiet) as progress,
    ):
        code = CreateRun(
            path=file,
            form=format_of(file, form),
            outcomes=outcomes or file.parent / f"{file.name}.outcomes.jsonl",
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
                **network(),
            },
            concurrency=concurrency,
            dry_run=dry_run,
            tell=say,
            complain=complain_later,
            progress=progress,
            stopping=Stopping(),
        ).run()
    raise typer.Exit(code)


@contextlib.contextmanager
def _afterwards(say: Say) -> Iterator[Say]:
    """Delay lines until the block ends, because a progress bar would overwrite them."""
    kept: list[str] = []
    try:
        yield kept.append
    finally:
        for line in kept:
            say(line)


# --- job ---------------------------------------------------------------------------------------------

UPDATED_EVERY = 0.5
"""Seconds between two updates of the check's progress."""


class Failed(Exception):
    """Raised if the run could not finish. The message is one line."""


@frozen(kw_only=True)
class CreateRun:
    """One run of the command, with its parsed options and its outputs."""

    path: Path
    form: Format
    outcomes: Path
    factory: Callable[[], object] | None  # returns the bank's hooks
    base_url: str | None  # optional in a dry run
    token: str | None = field(repr=False)  # optional in a dry run, or if the factory returns one
    journal: str | None  # the journal's address; optional in a dry run
    settings: dict[str, Any]  # the other settings of the client, which the factory's settings override
    concurrency: int
    dry_run: bool
    tell: Say
    complain: Say
    progress: Progress
    stopping: Stopping
    _clock: Clock = field(factory=Clock, init=False)
    _tally: Tally = field(factory=Tally, init=False)

    def run(self) -> int:
        """Run the command and return its exit code.

        Raises:
            ValueError: an option is invalid; nothing was sent.
            Failed: the run could not finish.
        """
        journal, files = journal_and_files(self.journal)
        protected = (self.path, *files)
        check_place(self.outcomes, protected=protected)
        is_new = bool(files) and not files[0].exists()
        with opened(self.path, self.form) as orders:
            try:
                return run(self._run(orders, journal, protected, journal_is_new=is_new))
            except Stopped:
                self.complain("stopped during the check; nothing was sent")
                return self.stopping.exit_code or FAILED

    async def _run(
        self, orders: OrderFile, journal: Journal | None, protected: tuple[Path, ...], *, journal_is_new: bool
    ) -> int:
        with self.stopping.by_signals():
            side = await self.stopping.unless_asked(made_by(self.factory))
            if side is None:
                raise Stopped
            async with side:
                client = self._client(side, journal)
                async with _keys_of_file() as keys:
                    checking = await self._checked(orders, keys, needs_held=not side.places_hold)
                    if checking.faults:
                        _write(self.complain, checking.complaint())
                        return USAGE
                    if not checking.records:
                        raise ValueError("FILE: contains no orders; nothing was sent")
                    if client is not None:
                        await self._refuse_forgotten_orders(
                            keys, client.operators.scope, journal_is_new=journal_is_new
                        )
                if client is None or journal is None or self.dry_run:
                    _write(self.tell, checking.summary())
                    self.tell("no errors found; this was a dry run, so nothing was sent or written")
                    return DONE
                _write(self.progress.say, checking.summary())
                if journal_is_new:
                    self.progress.say(
                        "the journal is new and contains no keys: if you have run this file before, "
                        "check --journal"
                    )
                async with _open(journal), client:
                    await _check_scope(client)
                    outcomes = await asyncio.to_thread(
                        OutcomeFile, self.outcomes, protected=protected, clock=self._clock
                    )
                    with contextlib.closing(outcomes):
                        return await self._sent(client, orders, outcomes, total=checking.records)

    def _client(self, side: BankSide, journal: Journal | None) -> TransferClient | None:
        """Return the client, or None if a dry run lacks an option that the client needs.

        Raises:
            ValueError: an option is invalid or missing.
        """
        needed = {
            options.BASE_URL: self.base_url,
            options.JOURNAL: journal,
            options.TOKEN: side.settings.get("token", self.token),
        }
        missing = [name for name, value in needed.items() if value is None]
        if missing and not self.dry_run:
            raise ValueError(f"{'; '.join(missing)}: required unless you use --dry-run")
        if missing or self.base_url is None or journal is None:
            return None
        settings = {"max_connections": max(512, self.concurrency), **self.settings}
        return client_of(self.base_url, self.token, side, journal=journal, observers=[self._note], **settings)

    def _note(self, event: Event) -> None:
        self._tally.undos_pending += isinstance(event, UndoPending)
        self._tally.made += isinstance(event, OrderCreated) or (
            isinstance(event, Resolved) and event.outcome is Outcome.CREATED
        )

    async def _checked(self, orders: OrderFile, keys: Keys, *, needs_held: bool) -> Checking:
        now, is_stopped = self._clock.utc() if self.dry_run else None, self.stopping.asked.is_set
        checking = Checking(needs_held=needs_held, now=now, is_stopped=is_stopped)
        work = asyncio.ensure_future(asyncio.to_thread(checking.run, orders.records(), keys))
        while not work.done():
            await asyncio.wait([work], timeout=UPDATED_EVERY)
            self.progress.show("checking", checking.records, None, "")
        try:
            work.result()
        except OSError as error:
            raise Failed(f"FILE: cannot be read ({error.strerror or error}); nothing was sent") from error
        return checking

    async def _refuse_forgotten_orders(self, keys: Keys, scope: str, *, journal_is_new: bool) -> None:
        """Refuse a journal or scope that does not contain an order of FILE that an earlier run created.

        With such a journal or scope, the order would be sent again. A new journal is not opened, so that no
        empty file is left behind.

        Args:
            keys: the keys of FILE.
            scope: the scope of this run.
            journal_is_new: whether the journal's file does not exist yet.

        Raises:
            ValueError: the journal does not contain an order, or an outcomes file cannot be read.
            Failed: the journal cannot be read.
        """
        unreadable: Counter[Path] = Counter()
        found = (order for order in orders_of_earlier_runs(self.outcomes, unreadable) if order.key in keys)
        page = await asyncio.to_thread(list, islice(found, COMPARED))
        if page and journal_is_new:
            raise _forgotten(page[0], scope)
        if page:
            assert self.journal is not None  # noqa: S101 - for the type checker: there is a client
            # The run's own journal could not be opened again after it is closed here.
            store = await asyncio.to_thread(journal_named, self.journal)
            journal = ScopedJournal(store, scope)
            async with _open(store):
                while page:
                    if (order := await _first_forgotten(journal, page)) is not None:
                        raise _forgotten(order, scope)
                    page = await asyncio.to_thread(list, islice(found, COMPARED))
        for file, count in unreadable.items():
            self.complain(f"{shown(str(file))}: unreadable lines, not compared with the journal: {count:,}")

    async def _sent(
        self, client: TransferClient, orders: OrderFile, outcomes: OutcomeFile, *, total: int
    ) -> int:
        began = self._clock.now()
        bulk = BulkRun(
            client,
            outcomes=outcomes,
            progress=self.progress,
            stopping=self.stopping,
            tally=self._tally,
            total=total,
            concurrency=self.concurrency,
            clock=self._clock,
        )
        failure = await _send(bulk, orders, outcomes)
        is_complete = bulk.is_complete and failure is None
        took = self._clock.now() - began
        self.tell(self._how_it_ended(total, took, is_complete=is_complete, gave_up=failure or bulk.gave_up))
        if not is_complete:
            self.tell(
                "run the same command again: it continues where this run stopped, and sends no order twice"
            )
        where = f"outcomes: {outcomes.path}" if is_complete else f"outcomes so far: {outcomes.part}"
        _write(self.tell, [shown(where), *self._tally.advice()])
        if is_complete:  # also if it gave up or was stopped at the last line
            return self._tally.exit_code
        if failure or bulk.gave_up:
            raise Failed(failure or f"stopped early: {bulk.gave_up}")
        return self.stopping.exit_code or FAILED

    def _how_it_ended(self, total: int, took: float, *, is_complete: bool, gave_up: str | None) -> str:
        tally, by = self._tally, self.stopping.by
        pace = f"{duration(took)}, {tally.done / took:,.0f} a second" if took > 0 else "0 s"
        if is_complete:
            return f"{total:,} orders in {pace}: {tally.counted()}"
        why = f"stopped by {by.name}" if by is not None and gave_up is None else "stopped early"
        return f"{why} after {tally.done:,} of {total:,} orders in {pace}: {tally.counted()}"


def _write(say: Say, lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


async def _check_scope(client: TransferClient) -> None:
    """Check that the scope does not look like another one.

    Raises:
        ValueError: the scope has no keys, and looks like a scope with keys.
        Failed: the journal cannot be read.
    """
    operators = client.operators
    try:
        others = await operators.other_scopes()
    except JournalFailed as error:
        raise Failed(f"{error}; nothing was sent") from error
    options.refuse_similar_scope(operators.scope, others)


@asynccontextmanager
async def _keys_of_file() -> AsyncIterator[Keys]:
    """Keep a temporary database of keys during the block.

    Raises:
        Failed: the database cannot be written or read; nothing was sent.
    """
    try:
        keys = await asyncio.to_thread(Keys)
        try:
            yield keys
        finally:
            await asyncio.to_thread(keys.database.close)
    except sqlite3.Error as error:
        raise Failed(
            f"cannot write the temporary file of keys ({error}): free some disk space; nothing was sent"
        ) from error


def _forgotten(order: EarlierOrder, scope: str) -> ValueError:
    return ValueError(
        f"--journal: contains no order of the key '{shown(order.key)}' in the scope {shown(scope)}, but "
        f"{shown(str(order.file))} says that an order exists or may exist for this key: pass the "
        "journal, the base URL and the scope of that run. If these are right, the key was pruned or the "
        "journal is an old copy: find out which orders exist before you pay again. To make the "
        "payments of FILE again, move its outcomes files (also .part, .old and .part.old) to another "
        "directory; nothing was sent"
    )


COMPARED = 500
"""The number of keys whose states are read from the journal at a time."""


async def _first_forgotten(journal: ScopedJournal, orders: Sequence[EarlierOrder]) -> EarlierOrder | None:
    """Return the first of ``orders`` that would be sent again, because the journal does not know its outcome.

    A key whose order does not exist after all, for example after a refutation, may be sent again. The key's
    history then contains the earlier outcome. If it does not, the journal may be an old copy.

    Raises:
        Failed: the journal cannot be read.
    """
    try:
        sent = await journal.sent([order.key for order in orders])
        for order in orders:
            if order.key in sent:
                continue
            entry = await journal.read(order.key)
            needed = KeyState.CREATED if order.outcome is Outcome.CREATED else KeyState.IN_DOUBT
            # A corrupt record is never free. The order of another call need not be created by now.
            if entry is None or (
                order.outcome in (Outcome.CREATED, Outcome.UNKNOWN)
                and entry.is_readable
                and all(step.state is not needed for step in await journal.history(order.key))
            ):
                return order
    except JournalFailed as error:
        raise Failed(f"{error}; nothing was sent") from error
    return None


@asynccontextmanager
async def _open(journal: Journal) -> AsyncIterator[None]:
    """Keep the journal open during the block.

    Raises:
        Failed: the journal cannot be opened; nothing was sent.
    """
    try:
        await journal.__aenter__()
    except Exception as error:  # each database driver has its own errors
        why = in_one_line(error, errors.safe_line(error))
        raise Failed(f"the journal cannot be opened ({why}); nothing was sent") from error
    try:
        yield
    finally:
        await journal.close()


async def _send(bulk: BulkRun, orders: OrderFile, outcomes: OutcomeFile) -> str | None:
    """Send the orders and complete the outcomes file.

    Return the error message if sending or writing fails, and None otherwise.
    """
    failed = "FILE cannot be read, or --outcomes cannot be written"
    try:
        await bulk.run(orders.records())
        if bulk.is_complete:
            failed = "--outcomes: the .part file cannot be written or renamed"
            await asyncio.to_thread(outcomes.finish)
    except Changed as changed:
        return f"{changed}: no further orders were sent"
    except OSError as error:
        return f"{failed} ({error.strerror or error})"
    return None


# --- sending -----------------------------------------------------------------------------------------
# Create the orders in a file, and write each outcome as soon as it is known.
#
# A run ends when every line has an outcome, when a signal stops it, or when it gives up. In each case, the
# journal has recorded what was done, and the next run continues from there.
#
# A run gives up after several consecutive failures that are caused not by the orders but by the service, the
# base URL, the token, the journal or a hook. Every further order would either place a hold only to release
# it, or end in doubt.
#
# If another worker (usually a killed run) holds the lease on a key, the line is postponed to the end, and
# retried until the lease has expired.


AHEAD = 64
"""The number of lines that a thread reads at a time."""

NOT_READY = 10
"""A run gives up after this many consecutive failures caused by the token or the base URL."""

AT_LEAST = 20
"""A run gives up after this many consecutive failures that are not caused by the orders, or after twice the
concurrency if that is more.
"""

MOST_POSTPONED = 10_000
"""The maximum number of lines that wait for another worker's lease. Further lines are not retried in this
run.
"""

FIRST_WAIT, LONGEST_WAIT = 1.0, 15.0
"""The first and the longest wait before postponed lines are retried, in seconds. The wait doubles each time,
because a live worker may finish a key long before its lease ends. The last retry follows the last lease."""

MARGIN = 0.05
"""Seconds between the expiry of the last lease and the last retry."""

CUT_OFF = 1.0
"""Seconds for which orders in flight may continue after the second signal."""


@frozen
class LineRequest(OrderRequest):
    """An order request with its line number."""

    line: int = 0


def request_of(record: Record) -> LineRequest:
    """Return the order request for a line.

    Raises:
        Changed: the line is invalid, although it was valid when it was checked.
    """
    command: OrderCommand | None = record.command
    if command is None:
        raise Changed(f"line {record.line} of FILE was changed after it was checked")
    return LineRequest(**attrs.asdict(command, recurse=False), line=record.line)


@define(kw_only=True)
class CircuitBreaker:
    """Counts consecutive failures that are not caused by the orders themselves."""

    concurrency: int  # the number of orders in flight
    _in_a_row: int = field(default=0, init=False)
    _not_ready: int = field(default=0, init=False)

    def count(self, result: Order | Exception) -> str | None:
        """Count a result. Return why the run must stop early, or None if it can continue."""
        if isinstance(result, KeyBusy):  # Another worker uses the key. This is no failure.
            return None
        fate = disposition(result)
        # A doubt from an earlier run does not mean that the service fails now.
        in_doubt_now = isinstance(result, OutcomeUnknown) and bool(result.attempts)
        if fate.action in (Action.ACK, Action.DEAD_LETTER) and not in_doubt_now:
            self._in_a_row = self._not_ready = 0
            return None
        self._in_a_row += 1
        # A network may recover by itself, but a wrong token does not. So a short interruption does not end a
        # run.
        may_recover = fate.ready or isinstance(result, ConnectionFailed)
        self._not_ready = 0 if may_recover else self._not_ready + 1
        limit = max(AT_LEAST, 2 * self.concurrency)
        for count, most in ((self._not_ready, NOT_READY), (self._in_a_row, limit)):
            if count >= most:
                return f"{count} consecutive orders failed with {type(result).__name__}: {fate.reason}"
        return None


@define(slots=False)
class BulkRun:
    """Sends the orders of one run.

    Attributes:
        gave_up: why the run stopped early, or None if it did not.
    """

    _client: TransferClient
    _outcomes: OutcomeFile = field(kw_only=True)  # receives the outcome of each line
    _progress: Progress = field(kw_only=True)  # shows the progress
    _stopping: Stopping = field(kw_only=True)  # receives the signals
    _tally: Tally = field(kw_only=True)  # counts the outcomes
    _total: int = field(kw_only=True)  # the number of lines
    _concurrency: int = field(kw_only=True)  # the number of orders in flight
    _clock: Clock = field(factory=Clock, kw_only=True)  # for tests
    _postponed: list[LineRequest] = field(factory=list, init=False)
    _last_lease_ends: float = field(default=0.0, init=False)
    gave_up: str | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._breaker = CircuitBreaker(concurrency=self._concurrency)

    @property
    def is_complete(self) -> bool:
        """Return whether every line has an outcome."""
        return self._tally.done == self._total

    async def run(self, records: Iterator[Record]) -> None:
        """Create the orders.

        Raises:
            Changed: the file has changed; no orders are in flight.
            OSError: the outcomes cannot be written; no orders are in flight.
        """
        cutting = asyncio.ensure_future(self._cut_off_when_asked())
        try:
            await self._round(self._requests(map(request_of, records)), may_postpone=True)
            await self._retry_postponed()
        finally:
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
            await asyncio.to_thread(self._outcomes.write)

    async def _retry_postponed(self) -> None:
        """Retry the lines that wait for a lease, until they are done or all leases have expired."""
        if self._postponed and not self._is_over:
            lines = "1 line" if len(self._postponed) == 1 else f"{len(self._postponed):,} lines"
            longest = duration(max(0.0, self._last_lease_ends - self._clock.now()))
            self._progress.say(f"waiting up to {longest} for another worker's lease to expire: {lines}")
        until, wait = self._last_lease_ends + MARGIN, FIRST_WAIT
        while self._postponed and not self._is_over:
            left = max(0.0, until - self._clock.now())
            await self._stopping.unless_asked(self._clock.sleep(min(wait, left)))
            waiting, self._postponed = self._postponed, []
            await self._round(self._requests(iter(waiting)), may_postpone=wait < left)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _round(self, requests: AsyncIterable[OrderRequest], *, may_postpone: bool) -> None:
        results = self._client.create_orders(requests, concurrency=self._concurrency, once=True)
        async with aclosing(results):
            async for result in results:
                if not (may_postpone and self._postpone_if_busy(result)):
                    self._record(result)
                if self._outcomes.is_due:
                    await asyncio.to_thread(self._outcomes.write)

    # --- requests -------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._stopping.asked.is_set() or self.gave_up is not None

    async def _requests(self, requests: Iterator[LineRequest]) -> AsyncIterator[LineRequest]:
        while ahead := await asyncio.to_thread(list, islice(requests, AHEAD)):
            for request in ahead:
                if self._is_over:
                    return
                yield request

    # --- results --------------------------------------------------------------------------------

    def _record(self, result: OrderResult) -> None:
        request, order_or_error = result.request, result.order or result.error
        assert isinstance(request, LineRequest) and request.key is not None and order_or_error is not None  # noqa: S101, PT018 - for the type checker
        if isinstance(order_or_error, ClientClosed):  # The order was cut off: the next run reports it.
            return
        self._tally.add(order_or_error)
        self._outcomes.add(outcome_line(request.line, request.key, order_or_error))
        self._progress.show("creating", self._tally.done, self._total, self._tally.counted())
        if self.gave_up is None and not self._stopping.asked.is_set():
            self.gave_up = self._breaker.count(order_or_error)
            if self.gave_up is not None:
                self._progress.say(f"stopping early: {self.gave_up}; finishing the orders in flight")

    def _postpone_if_busy(self, result: OrderResult) -> bool:
        """Postpone the line if another worker holds the lease on its key.

        Return whether the line was postponed.
        """
        request, error = result.request, result.error
        if not isinstance(error, KeyBusy) or len(self._postponed) >= MOST_POSTPONED or self._is_over:
            return False
        assert isinstance(request, LineRequest)  # noqa: S101 - for the type checker
        self._postponed.append(request)
        lease_ends = self._clock.now() + (error.retry_after or 0.0)
        self._last_lease_ends = max(self._last_lease_ends, lease_ends)
        return True

    async def _cut_off_when_asked(self) -> None:
        await self._stopping.asked.wait()
        self._progress.say(
            "stopping: finishing the orders in flight and starting no new ones; "
            "signal again to abort the orders in flight"
        )
        await self._stopping.cut.wait()
        await self._client.close(timeout=CUT_OFF)


# --- journal option ----------------------------------------------------------------------------------


def journal_and_files(address: str | None) -> tuple[Journal | None, tuple[Path, ...]]:
    """Return the unopened journal and the paths of its files, which may not exist yet.

    Raises:
        ValueError: the address is invalid, or the journal is not durable.
    """
    if address is None:
        return None, ()
    journal = journal_named(address)
    if not journal.durable:
        raise ValueError("--journal: must be durable, because the next run must know which orders were sent")
    if "://" in address:
        try:
            importlib.import_module("asyncpg")
        except ImportError as error:
            needed = 'pip install "transfer_async[postgres]"'
            raise ValueError(f"--journal: postgresql:// needs asyncpg: {needed}") from error
        return journal, ()
    path = Path(address)
    if not path.parent.is_dir():
        raise ValueError(f"--journal: the directory {shown(str(path.parent))} does not exist")
    if path.exists() and not path.is_file():
        raise ValueError(f"--journal: {shown(str(path))} exists and is not a file")
    return journal, files_of(address)


def files_of(address: str) -> tuple[Path, ...]:
    """Return the paths of the journal's files. Some of the files may not exist."""
    return () if "://" in address else tuple(Path(address + end) for end in ("", "-wal", "-shm", "-journal"))
