"""The command that creates the orders of a file: its options, its words and its exit codes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from transfer_async._cli.console import options, output
from transfer_async._cli.console.exit_codes import FAILED, USAGE
from transfer_async._cli.console.hook_loading import factory_named
from transfer_async._cli.console.output import Say, failing, tell
from transfer_async._cli.create.order_file import Format, format_of
from transfer_async._cli.create.progress import Progress, shown_progress
from transfer_async._http.retry import RetryPolicy


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
    ] = 60.0,
    settle_after: options.SettleAfter = 300.0,
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
    from transfer_async._cli.create import job  # 19 M instructions of 1,900 M, which no --help needs

    with failing("create", {ValueError: USAGE, job.Failed: FAILED}):
        wanted = job.CreateOptions(
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
                "rate": options.rate_given(rate, burst),
            },
            concurrency=concurrency,
            dry_run=dry_run,
        )
        with _shown(live=sys.stderr.isatty() and not plain, quiet=quiet) as (say, complain, progress):
            code = job.carry_out(wanted, job.Words(tell=say, complain=complain, progress=progress))
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
