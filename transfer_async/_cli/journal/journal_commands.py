"""The commands for whoever looks after a journal: their options, their words and their exit codes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.exit_codes import OWED, USAGE
from transfer_async._cli.console.hook_loading import factory_named
from transfer_async._cli.console.output import complain, show_table, shown, tell
from transfer_async._cli.console.usage import PlainUsage
from transfer_async._cli.journal import (
    decision_commands,
    four_eyes_commands,
    tables,
    terminal,
    upgrade_command,
)
from transfer_async._cli.journal.asking import (
    AsJson,
    By,
    Key,
    Reason,
    Yes,
    confirmed,
    done,
    named,
    usage,
    who,
)
from transfer_async.journal.protocol import KEPT

app = typer.Typer(
    help="Look after a journal: what is in doubt, what is owed, and how it ends.\n\n"
    "Exit codes: 0 done; 1 the journal said no, or somebody did when asked; 2 a wrong use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_waiting(
    *,
    journal: options.JournalNeeded,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the keys that wait for somebody.

    Those in doubt, those that a dead worker left claimed or sending, and those with an undo owed or an end
    of a doubt that is still to be told.
    """
    place = named(journal, scope, base_url)
    views = place.at_desk(lambda at: at.operators.waiting())
    totals = terminal.totals(views)
    if as_json:
        keys = [tables.view_json(view) for view in views]
        tell(tables.as_json({"scope": place.scope, "keys": keys, "totals": tables.totals_json(totals)}))
        return
    if views:
        show_table(tables.WAITING, tables.waiting_rows(views))
    tell(tables.total_told(totals))


@app.command(cls=PlainUsage)
def show(
    key: Key,
    *,
    journal: options.JournalNeeded,
    with_order: Annotated[
        bool, typer.Option("--with-order", help="Who the parties are, too; that you looked is kept.")
    ] = False,
    by: By = None,
    reason: Reason = None,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what is on record of a key, why it is in doubt, and its history."""
    place = named(journal, scope, base_url)
    parties: dict[str, str | None] = {}
    if with_order:
        looks, why = who(by), reason or "journal show --with-order"
        seen = place.at_desk(lambda at: at.operators.look(key, by=looks, reason=why))
        parties = tables.parties(seen)
    view, steps = place.at_desk(lambda at: at.one(key))
    if as_json:
        record = tables.view_json(view) | {"receipts": view.entry.all_receipts}
        record |= {"parties": parties} if with_order else {}
        tell(tables.as_json(record | {"history": [tables.step_json(step) for step in steps]}))
        return
    for text in tables.record_lines(view, parties):
        tell(text)
    tell("")
    show_table(tables.HISTORY, tables.history_rows(steps))


for _decide in (
    decision_commands.resolve,
    decision_commands.refute,
    decision_commands.amend,
    four_eyes_commands.propose,
    four_eyes_commands.approve,
    four_eyes_commands.withdraw,
):
    app.command(cls=PlainUsage)(_decide)
app.command("four-eyes", cls=PlainUsage)(four_eyes_commands.four_eyes)


app.command()(upgrade_command.upgrade)


@app.command()
def recover(
    *,
    journal: options.JournalNeeded,
    hooks: options.HooksNeeded,
    base_url: options.BaseUrlNeeded,
    token: options.Token = None,
    scope: options.Scope = None,
    settle_after: options.SettleAfter = 300.0,
    as_json: AsJson = False,
) -> None:
    """Work off abandoned claims, doubts and owed undos.

    FACTORY returns a sequence of hooks; or a mapping, or an object, with hooks and perhaps resolve,
    the bank's own means to end a doubt. It may be async.
    Exit codes: as above; 3 if an undo is owed still, or a record cannot be read.
    """
    place = named(journal, scope, base_url)
    with usage():
        factory = factory_named(hooks)
    work = terminal.recovered(
        place.journal, factory, base_url=base_url, token=token, scope=place.scope, settle_after=settle_after
    )
    report = done(work, says_no=USAGE)  # what is no good here is the hooks, or a setting
    if as_json:
        tell(tables.as_json(tables.report_json(report)))
    else:
        for line in tables.report_lines(report):
            tell(line)
    if report.still_owed or report.unreadable:
        raise typer.Exit(OWED)


@app.command()
def prune(
    *,
    journal: options.JournalNeeded,
    before: Annotated[str | None, typer.Option(help="A date or a time, as in 2026-01-01; UTC.")] = None,
    older_than: Annotated[str | None, typer.Option(help="An age, as in 90d, 12h or 2w.")] = None,
    yes: Yes = False,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Forget keys that ended long ago.

    Never one in doubt, at work, or with an undo owed, and none that ended within the last day: its message,
    or its file, may come again. Asks before it does: a forgotten key is free, and whoever uses it again
    creates another order.
    """
    place = named(journal, scope, base_url)
    now = datetime.now(UTC)
    with usage():
        time = terminal.time_named(before, older_than, now=now)
    if (now - time).total_seconds() < KEPT:
        complain("journal: what ended within the last day is kept: its message, or its file, may come again")
    confirmed(
        f"This forgets every key of {shown(place.scope)} that ended before {tables.iso(time)}, "
        "and longer than a day ago. A forgotten key that is used again creates another order. Go on?",
        yes=yes,
    )
    # What is no good here is the time.
    forgotten = place.at_desk(lambda at: at.operators.prune(before=time), says_no=USAGE)
    tell(
        tables.as_json({"forgotten": forgotten})
        if as_json
        else f"{tables.counted(forgotten, 'key')} forgotten"
    )
