"""The commands for whoever looks after a journal: their options, their words and their exit codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from transfer_async._cli import journal_decisions, journal_output, options
from transfer_async._cli.journal_session import (
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
from transfer_async._cli.options import factory_named
from transfer_async._cli.output import PlainUsage, complain, show_table, shown, tell
from transfer_async._cli.process import OWED, USAGE
from transfer_async.journal.durable import DurableJournal
from transfer_async.journal.model import SETTLE_AFTER
from transfer_async.journal.protocol import KEPT
from transfer_async.journal.rows import Upgrade

# --- upgrade command ---------------------------------------------------------------------------------
# The command that brings a journal to this version's format.


def upgrade(*, journal: options.JournalNeeded, yes: Yes = False, as_json: AsJson = False) -> None:
    """Bring the journal to this version's format.

    In place, all its scopes at once, and in one transaction: if it is stopped in the middle, run it again.
    Stop every program that uses the journal first. One of an earlier version can never use it again. Shows
    what is there, and asks before anything is changed; does nothing if the format is the right one already.
    """
    plan = done(_with(_named(journal), lambda store: store.planned_upgrade()))
    if _is_needed(plan):
        complain(_found_told(plan))
        confirmed(
            "Programs of an earlier version, running ones too, can never use the journal again, and there is "
            "no way back. Are all of them stopped? Go on?",
            yes=yes,
        )
        plan = done(_with(_named(journal), lambda store: store.upgrade(plan)))
    tell(journal_output.as_json(_as_json(plan)) if as_json else _told(plan))


def _named(address: str) -> DurableJournal:
    with usage():
        return journal_output.journal_named(address)


async def _with(store: DurableJournal, do: Callable[[DurableJournal], Awaitable[Upgrade]]) -> Upgrade:
    try:
        return await do(store)
    finally:
        await store.close()


def _found_told(found: Upgrade) -> str:
    states = ", ".join(f"{count} {shown(_words(state))}" for state, count in sorted(found.states.items()))
    told = f"journal: its format is {found.found}, and will be {found.version}; {_counted(found)}"
    told += f": {states}" if states else ""
    if found.unreadable:
        told += (
            f"; of {journal_output.counted(found.unreadable, 'key')} the record cannot be read, then as now"
        )
    return told


def _told(made: Upgrade) -> str:
    if not _is_needed(made):
        return f"the journal's format is {made.version} already: there is nothing to do"
    return f"the journal's format is {made.version} now; all is as it was of {_counted(made)}"


def _counted(found: Upgrade) -> str:
    return journal_output.counted(found.keys, "key")


def _words(state: str) -> str:
    return state.replace("_", " ")


def _is_needed(made: Upgrade) -> bool:
    """Whether there is, or was, anything to do."""
    return made.found != made.version


def _as_json(made: Upgrade) -> dict[str, Any]:
    told: dict[str, Any] = {"upgraded": _is_needed(made), "found": made.found, "version": made.version}
    if _is_needed(made):
        told |= {"keys": made.keys, "states": dict(made.states), "unreadable": made.unreadable}
    return told


app = typer.Typer(
    help="Look after a journal: what is in doubt, what is owed, and how it ends.\n\n"
    "Exit codes: 0 done; 1 the journal said no, or somebody did when asked; 2 a wrong use; "
    "4 the journal has keys of other scopes only.",
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
    totals = journal_output.totals(views)
    if as_json:
        keys = [journal_output.view_json(view) for view in views]
        tell(
            journal_output.as_json(
                {"scope": place.scope, "keys": keys, "totals": journal_output.totals_json(totals)}
            )
        )
        return
    if views:
        show_table(journal_output.WAITING, journal_output.waiting_rows(views))
    tell(f"{shown(place.scope)}: {journal_output.total_told(totals)}")


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
        parties = journal_output.parties(seen)
    view, steps = place.at_desk(lambda at: at.one(key))
    if as_json:
        record = (
            {"scope": place.scope} | journal_output.view_json(view) | {"receipts": view.entry.all_receipts}
        )
        record |= {"parties": parties} if with_order else {}
        tell(journal_output.as_json(record | {"history": [journal_output.step_json(step) for step in steps]}))
        return
    tell(f"{'scope':<12}{shown(place.scope)}")
    for text in journal_output.record_lines(view, parties):
        tell(text)
    tell("")
    show_table(journal_output.HISTORY, journal_output.history_rows(steps))


for _decide in (
    journal_decisions.resolve,
    journal_decisions.refute,
    journal_decisions.amend,
    journal_decisions.propose,
    journal_decisions.approve,
    journal_decisions.withdraw,
):
    app.command(cls=PlainUsage)(_decide)
app.command("four-eyes", cls=PlainUsage)(journal_decisions.four_eyes)


app.command()(upgrade)


@app.command()
def recover(
    *,
    journal: options.JournalNeeded,
    hooks: options.HooksNeeded,
    base_url: options.BaseUrlNeeded,
    token: options.Token = None,
    scope: options.Scope = None,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    abandoned_settle_after: options.AbandonedSettleAfter = None,
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
    place.checked()
    work = journal_output.recovered(
        place.journal,
        factory,
        base_url=base_url,
        token=token,
        scope=place.scope,
        settle_after=settle_after,
        abandoned_settle_after=abandoned_settle_after,
    )
    report = done(work, says_no=USAGE)  # what is no good here is the hooks, or a setting
    if as_json:
        tell(journal_output.as_json(journal_output.report_json(report)))
    else:
        tell(f"{'scope':<12} {shown(place.scope)}")
        for line in journal_output.report_lines(report):
            tell(line)
    if report.undos_pending or report.unreadable:
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
        time = journal_output.time_named(before, older_than, now=now)
    if (now - time).total_seconds() < KEPT:
        complain("journal: what ended within the last day is kept: its message, or its file, may come again")
    confirmed(
        f"This forgets every key of {shown(place.scope)} that ended before {journal_output.iso(time)}, "
        "and longer than a day ago. A forgotten key that is used again creates another order. Go on?",
        yes=yes,
    )
    # What is no good here is the time.
    forgotten = place.at_desk(lambda at: at.operators.prune(before=time), says_no=USAGE)
    tell(
        journal_output.as_json({"forgotten": forgotten})
        if as_json
        else f"{shown(place.scope)}: {journal_output.counted(forgotten, 'key')} forgotten"
    )
