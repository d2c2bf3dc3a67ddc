"""The commands by which a person ends a doubt."""

from __future__ import annotations

from typing import Annotated

import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.exit_codes import USAGE
from transfer_async._cli.console.output import fail, shown, somebody_is_there
from transfer_async._cli.journal.asking import (
    AsJson,
    By,
    Key,
    Reason,
    Undone,
    Yes,
    at_desk,
    confirmed,
    named,
    said,
    tell_record,
    usage,
)
from transfer_async._pipeline.refusals import checked_order_id, checked_settle_after
from transfer_async.journal.protocol import Journal


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
    where, store = named(journal, scope, base_url)
    if order_id is None:
        order_id = _candidate(key, where, store, take_it=candidate)
    with usage("--order-id"):
        known_id = checked_order_id(order_id)
    _, store = named(journal, scope, base_url)
    by, reason = said(by, reason)
    record = at_desk(
        store,
        where,
        lambda at: at.operators.resolve(key, order_id=known_id, by=by, reason=reason, undone=undone),
    )
    tell_record(key, record, as_json=as_json)


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
    where, store = named(journal, scope, base_url)
    with usage("--settle-after"):
        checked_settle_after(settle_after)
    by, reason = said(by, reason)
    confirmed(
        f"{shown(key)}: this frees the key, and the hold will be released. "
        "If the order exists all the same, it is paid without one, and may be paid twice. Are you certain?",
        yes=yes,
    )
    record = at_desk(
        store,
        where,
        lambda at: at.operators.refute(key, by=by, reason=reason, undone=undone),
        settle_after=settle_after,
    )
    tell_record(key, record, as_json=as_json)


def _candidate(key: str, scope: str, store: Journal, *, take_it: bool) -> str:
    """The one order that answers named for a key in doubt, if somebody says that it is the key's."""
    view, _ = at_desk(store, scope, lambda at: at.one(key))
    candidates = view.candidates
    if len(candidates) != 1:
        named = ", ".join(candidates) or "none"
        fail(f"journal: --order-id: must be given; of orders, the key's answers name {named}", USAGE)
    if not take_it:
        if not somebody_is_there():
            fail("journal: --order-id or --candidate: must be given where nobody can be asked", USAGE)
        question = f"An answer that could not be read names {candidates[0]}. Is it the order of {shown(key)}?"
        confirmed(question, yes=False)
    return candidates[0]
