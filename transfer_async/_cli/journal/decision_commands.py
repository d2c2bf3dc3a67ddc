"""The commands by which a person ends a doubt, or corrects what was said."""

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
    confirmed,
    named,
    said,
    tell_record,
    usage,
)
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.refusals import checked_order_id, checked_settle_after

OrderId = Annotated[str | None, typer.Option(help="The order's id, tx-…")]
Candidate = Annotated[
    bool, typer.Option("--candidate", help="It is the one that an answer named which could not be read.")
]
InDoubt = Annotated[bool, typer.Option("--in-doubt", help="Nobody knows the order: in doubt again.")]


def resolve(
    key: Key,
    *,
    order_id: OrderId = None,
    candidate: Candidate = False,
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
    place = named(journal, scope, base_url)
    view = place.view(key)
    known_id = order_named(view, order_id, candidate=candidate)
    by, reason = said(by, reason)
    record = place.at_desk(
        lambda at: at.operators.resolve(
            key, order_id=known_id, by=by, reason=reason, undone=undone, seen=view.moves
        )
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
    place = named(journal, scope, base_url)
    with usage("--settle-after"):
        checked_settle_after(settle_after)
    view = place.view(key)
    by, reason = said(by, reason)
    confirmed(
        f"{shown(key)}: this frees the key, and the hold will be released. "
        "If the order exists all the same, it is paid without one, and may be paid twice. Are you certain?",
        yes=yes,
    )
    record = place.at_desk(
        lambda at: at.operators.refute(key, by=by, reason=reason, undone=undone, seen=view.moves),
        settle_after=settle_after,
    )
    tell_record(key, record, as_json=as_json)


def amend(
    key: Key,
    *,
    order_id: OrderId = None,
    in_doubt: InDoubt = False,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Correct an order's id that a person gave, or take it back.

    Never what the service itself answered. With --in-doubt the key is in doubt again.
    """
    place = named(journal, scope, base_url)
    view = place.view(key)
    right = amendment_named(order_id, in_doubt=in_doubt)
    by, reason = said(by, reason)
    record = place.at_desk(
        lambda at: at.operators.amend(key, order_id=right, by=by, reason=reason, seen=view.moves)
    )
    tell_record(key, record, as_json=as_json)


# --- which order ----------------------------------------------------------------------------------


def order_named(view: KeyView, order_id: str | None, *, candidate: bool) -> str:
    """The order that was named, or the candidate, if somebody says that it is the key's."""
    if order_id is None:
        return _candidate(view, take_it=candidate)
    with usage("--order-id"):
        return checked_order_id(order_id)


def amendment_named(order_id: str | None, *, in_doubt: bool) -> str | None:
    """The right order; None where nobody knows, and that was said."""
    if (order_id is None) is not in_doubt:
        fail("journal: --order-id or --in-doubt: give one of them", USAGE)
    if order_id is None:
        return None
    with usage("--order-id"):
        return checked_order_id(order_id)


def _candidate(view: KeyView, *, take_it: bool) -> str:
    """The one order that answers named for a key in doubt, if somebody says that it is the key's."""
    candidates = view.candidates
    if len(candidates) != 1:
        names = ", ".join(candidates) or "none"
        fail(f"journal: --order-id: must be given; of orders, the key's answers name {names}", USAGE)
    if not take_it:
        if not somebody_is_there():
            fail("journal: --order-id or --candidate: must be given where nobody can be asked", USAGE)
        question = (
            f"An answer that could not be read names {candidates[0]}. Is it the order of {shown(view.key)}?"
        )
        confirmed(question, yes=False)
    return candidates[0]
