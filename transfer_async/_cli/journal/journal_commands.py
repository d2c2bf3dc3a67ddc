"""The commands for whoever looks after a journal: their options, their words and their exit codes."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import FAILED, OWED, USAGE
from transfer_async._cli.console.hook_loading import factory_named
from transfer_async._cli.console.output import (
    complain,
    fail,
    failing,
    show_table,
    shown,
    somebody_is_there,
    tell,
)
from transfer_async._cli.journal import desk, tables
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.refusals import checked_order_id, checked_settle_after, checked_text
from transfer_async.journal.protocol import KEPT, Journal, KeyRecord

T = TypeVar("T")

app = typer.Typer(
    help="Look after a journal: what is in doubt, what is owed, and how it ends.\n\n"
    "Exit codes: 0 done; 1 the journal said no, or somebody did when asked; 2 a wrong use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Key = Annotated[str, typer.Argument(help="The key.")]
By = Annotated[str | None, typer.Option(help="Who says so; the login name by default.")]
Reason = Annotated[str | None, typer.Option(help="How they know; kept in the key's history.")]
Undone = Annotated[
    bool, typer.Option("--undone", help="Of a record that cannot be read: its hooks are undone by hand.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


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
    where, store = _named(journal, scope, base_url)

    views = _at_desk(store, where, lambda at: at.waiting())
    totals = desk.totals(views)
    if as_json:
        keys = [tables.view_json(view) for view in views]
        tell(tables.as_json({"scope": where, "keys": keys, "totals": tables.totals_json(totals)}))
        return
    if views:
        show_table(tables.WAITING, tables.waiting_rows(views))
    tell(tables.total_told(totals))


@app.command()
def show(
    key: Key,
    *,
    journal: options.JournalNeeded,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what is on record of a key, and its history."""
    where, store = _named(journal, scope, base_url)
    view, steps = _at_desk(store, where, lambda at: at.one(key))
    if as_json:
        record = tables.view_json(view) | {"receipts": view.entry.all_receipts}
        tell(tables.as_json(record | {"history": [tables.step_json(step) for step in steps]}))
        return
    for text in tables.record_lines(view):
        tell(text)
    tell("")
    show_table(tables.HISTORY, tables.history_rows(steps))


@app.command()
def resolve(
    key: Key,
    *,
    order_id: Annotated[str | None, typer.Option(help="The order's id, tx-…")] = None,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="It is the one that an answer named which could not be read.")
    ] = False,
    undone: Undone = False,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a doubt: its order exists.

    From now on the key gives the order back, by its id. Without an id it asks about the candidate.
    """
    where, store = _named(journal, scope, base_url)
    if order_id is None:
        order_id = _candidate(key, where, store, take_it=candidate)
    with _usage("--order-id"):
        known_id = checked_order_id(order_id)
    _, store = _named(journal, scope, base_url)
    by, reason = _said(by, reason)
    record = _at_desk(
        store,
        where,
        lambda at: at.operators.resolve(key, order_id=known_id, by=by, reason=reason, undone=undone),
    )
    _tell_record(key, record, as_json=as_json)


@app.command()
def refute(
    key: Key,
    *,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    settle_after: options.SettleAfter = 300.0,
    undone: Undone = False,
    yes: Yes = False,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a doubt: no order exists, and none can appear.

    This frees the key, and the next recovery undoes its hooks: the hold is released. Asks before it does.
    The message, or the line of a file, that the doubt came from is not sent when it comes again: it is
    answered from the record. What is still to be paid needs another key.
    """
    where, store = _named(journal, scope, base_url)
    with _usage("--settle-after"):
        checked_settle_after(settle_after)
    by, reason = _said(by, reason)
    _confirmed(
        f"{shown(key)}: this frees the key, and the hold will be released. "
        "If the order exists all the same, it is paid without one, and may be paid twice. Are you certain?",
        yes=yes,
    )
    record = _at_desk(
        store,
        where,
        lambda at: at.operators.refute(key, by=by, reason=reason, undone=undone),
        settle_after=settle_after,
    )
    _tell_record(key, record, as_json=as_json)


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
    where, store = _named(journal, scope, base_url)
    with _usage():
        factory = factory_named(hooks)
    work = desk.recovered(
        store, factory, base_url=base_url, token=token, scope=where, settle_after=settle_after
    )
    report = _done(work, says_no=USAGE)  # what is no good here is the hooks, or a setting
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
    where, store = _named(journal, scope, base_url)
    now = datetime.now(UTC)
    with _usage():
        time = desk.time_named(before, older_than, now=now)
    if (now - time).total_seconds() < KEPT:
        complain("journal: what ended within the last day is kept: its message, or its file, may come again")
    _confirmed(
        f"This forgets every key of {shown(where)} that ended before {tables.iso(time)}, "
        "and longer than a day ago. A forgotten key that is used again creates another order. Go on?",
        yes=yes,
    )
    # What is no good here is the time.
    forgotten = _at_desk(store, where, lambda at: at.operators.prune(before=time), says_no=USAGE)
    tell(
        tables.as_json({"forgotten": forgotten})
        if as_json
        else f"{tables.counted(forgotten, 'key')} forgotten"
    )


# --- what they share ----------------------------------------------------------------------------


def _named(address: str, scope: str | None, base_url: str | None) -> tuple[str, Journal]:
    with _usage():
        return desk.scope_of(scope, base_url), desk.journal_named(address)


def _usage(option: str | None = None) -> AbstractContextManager[None]:
    """What is checked within is a wrong use, or as it should be; ``option`` is what it is about."""
    return failing("journal", {ValueError: USAGE}, words=lambda error: _as_option(str(error), option))


def _candidate(key: str, scope: str, store: Journal, *, take_it: bool) -> str:
    """The one order that answers named for a key in doubt, if somebody says that it is the key's."""
    view, _ = _at_desk(store, scope, lambda at: at.one(key))
    candidates = view.candidates
    if len(candidates) != 1:
        named = ", ".join(candidates) or "none"
        fail(f"journal: --order-id: must be given; of orders, the key's answers name {named}", USAGE)
    if not take_it:
        if not somebody_is_there():
            fail("journal: --order-id or --candidate: must be given where nobody can be asked", USAGE)
        question = f"An answer that could not be read names {candidates[0]}. Is it the order of {shown(key)}?"
        _confirmed(question, yes=False)
    return candidates[0]


def _as_option(why: str, option: str | None) -> str:
    """``why``, which begins with an argument's name, with the option's in its place."""
    return why if option is None else f"{option}:{why.partition(':')[2]}"


def _said(by: str | None, reason: str | None) -> tuple[str, str]:
    """Who says so, and why; asked for where somebody can be asked."""
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError, ImportError):
            fail("journal: --by: must say who you are; there is no login name here", USAGE)
    if reason is None:
        if not somebody_is_there():
            fail("journal: --reason: must say how you know; nobody can be asked here", USAGE)
        reason = str(typer.prompt("How do you know", err=True))
    with _usage():
        return checked_text("--by", by), checked_text("--reason", reason)


def _confirmed(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not somebody_is_there():
        fail("journal: --yes: must be given where nobody can be asked", USAGE)
    if not typer.confirm(question, err=True):
        fail("journal: nothing was changed", FAILED)


def _at_desk(
    store: Journal,
    scope: str,
    do: Callable[[desk.Desk], Awaitable[T]],
    *,
    settle_after: float = 300.0,
    says_no: int = FAILED,
) -> T:
    async def work() -> T:
        async with desk.opened(store, scope, settle_after=settle_after) as at:
            return await do(at)

    return _done(work(), says_no=says_no)


def _done(work: Coroutine[Any, Any, T], *, says_no: int = FAILED) -> T:
    """Do ``work``; what speaks against it is told in one line."""
    # In this order: some of the client's errors are ValueErrors, too.
    with failing("journal", {TransferError: FAILED, ValueError: says_no}, words=desk.explained):
        return run(work)


_REFUTED = (
    "the next recovery undoes what is owed. The same message or line of a file is answered from the record: "
    "what is still to be paid needs another key"
)


def _tell_record(key: str, record: KeyRecord, *, as_json: bool) -> None:
    if as_json:
        told = {"key": key, "state": record.state.value, "intent_id": record.intent_id}
        tell(tables.as_json(told | {"order_id": record.order_id}))
    else:
        order = f"its order is {record.order_id}" if record.order_id else _REFUTED
        tell(f"{shown(key)}: {record.state.value}; {order}")
