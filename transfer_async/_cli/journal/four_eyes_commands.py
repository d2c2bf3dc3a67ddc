"""The commands for two: what one person proposes another approves, and whether that is demanded."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from transfer_async._cli.console import options
from transfer_async._cli.console.exit_codes import FAILED, USAGE
from transfer_async._cli.console.output import fail, shown, somebody_is_there, tell
from transfer_async._cli.journal import tables
from transfer_async._cli.journal.asking import (
    AsJson,
    By,
    Key,
    Place,
    Reason,
    Undone,
    Yes,
    confirmed,
    named,
    said,
    tell_record,
    usage,
)
from transfer_async._cli.journal.decision_commands import (
    Candidate,
    InDoubt,
    OrderId,
    amendment_named,
    order_named,
)
from transfer_async._pipeline.key_views import FourEyes
from transfer_async._pipeline.refusals import checked_settle_after
from transfer_async.journal.proposal import FOUR_EYES, Decision, Proposal


class Wanted(enum.Enum):
    """What can be proposed of a key."""

    RESOLVE = "resolve"
    REFUTE = "refute"
    AMEND = "amend"


class Action(enum.Enum):
    """What can be done with the demand."""

    SHOW = "show"
    DEMAND = "demand"
    WAIVE = "waive"
    APPROVE = "approve"
    WITHDRAW = "withdraw"


ProposalId = Annotated[
    str | None,
    typer.Option("--proposal", help="The proposal's id; else it is shown, and you are asked."),
]


def propose(
    key: Key,
    decision: Annotated[
        Wanted, typer.Argument(metavar="DECISION", help="resolve, refute or amend, as the commands.")
    ],
    *,
    order_id: OrderId = None,
    candidate: Candidate = False,
    in_doubt: InDoubt = False,
    undone: Undone = False,
    settle_after: options.SettleAfter = 300.0,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say what is to become of a key, for another person to approve.

    Nothing becomes of it until then, and any move of the key makes it void.
    """
    place = named(journal, scope, base_url)
    with usage("--settle-after"):
        checked_settle_after(settle_after)
    view = place.view(key)
    order: str | None = None
    if decision is Wanted.RESOLVE:
        order = order_named(view, order_id, candidate=candidate)
    elif decision is Wanted.AMEND:
        order = amendment_named(order_id, in_doubt=in_doubt)
    elif order_id is not None:
        fail("journal: --order-id: is not for refute", USAGE)
    by, reason = said(by, reason)
    wanted = Decision(decision.value)
    proposal = place.at_desk(
        lambda at: at.operators.propose(
            key, wanted, order_id=order, by=by, reason=reason, undone=undone, seen=view.moves
        ),
        settle_after=settle_after,
    )
    _tell_proposal(key, proposal, as_json=as_json)


def approve(
    key: Key,
    *,
    proposal: ProposalId = None,
    settle_after: options.SettleAfter = 300.0,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    yes: Yes = False,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let what another person proposed be done.

    Shows the proposal, and asks; with --proposal and --yes it does not.
    """
    place = named(journal, scope, base_url)
    with usage("--settle-after"):
        checked_settle_after(settle_after)
    seen = _seen(key, place.view(key).proposal, proposal)
    by, reason = said(by, reason)
    confirmed(f"{_in_words(key, seen)} Do you approve?", yes=yes)
    record = place.at_desk(
        lambda at: at.operators.approve(key, proposal=seen.id, by=by, reason=reason),
        settle_after=settle_after,
    )
    tell_record(key, record, as_json=as_json)


def withdraw(
    key: Key,
    *,
    proposal: ProposalId = None,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    yes: Yes = False,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take a proposal back, or turn it down; the key stays as it is."""
    place = named(journal, scope, base_url)
    seen = _seen(key, place.view(key).proposal, proposal)
    by, reason = said(by, reason)
    confirmed(f"{_in_words(key, seen)} Is it to be turned down?", yes=yes)
    record = place.at_desk(lambda at: at.operators.withdraw(key, proposal=seen.id, by=by, reason=reason))
    if as_json:
        tell_record(key, record, as_json=True)
    else:
        tell(f"{shown(key)}: {record.state.value.replace('_', ' ')}; nothing is proposed any more")


def four_eyes(
    action: Annotated[
        Action,
        typer.Argument(metavar="ACTION", help="show, demand, waive; approve or withdraw a waiver."),
    ] = Action.SHOW,
    *,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Whether what one person decides must be approved by another, for everybody with this journal.

    One person may demand it. That it is waived is proposed by one person and approved by another.
    """
    place = named(journal, scope, base_url)
    if action is Action.SHOW:
        found = place.at_desk(lambda at: at.operators.four_eyes())
    elif action in (Action.APPROVE, Action.WITHDRAW):
        found = _waived(place, action, by, reason)
    else:
        found = _demanded(place, action, by, reason)
    _tell_four_eyes(found, as_json=as_json)


def _demanded(place: Place, action: Action, by: str | None, reason: str | None) -> FourEyes:
    name, why = said(by, reason)
    if action is Action.DEMAND:
        return place.at_desk(lambda at: at.operators.demand_four_eyes(by=name, reason=why))
    place.at_desk(lambda at: at.operators.propose(FOUR_EYES, Decision.WAIVE, by=name, reason=why))
    return place.at_desk(lambda at: at.operators.four_eyes())


def _waived(place: Place, action: Action, by: str | None, reason: str | None) -> FourEyes:
    asked = place.at_desk(lambda at: at.operators.four_eyes()).proposal
    if asked is None:
        fail("journal: four-eyes: nobody proposes to waive them", FAILED)
    by, reason = said(by, reason)
    word = {"proposal": asked.id, "by": by, "reason": reason}
    if action is Action.APPROVE:
        place.at_desk(lambda at: at.operators.approve(FOUR_EYES, **word))
    else:
        place.at_desk(lambda at: at.operators.withdraw(FOUR_EYES, **word))
    return place.at_desk(lambda at: at.operators.four_eyes())


# --- what is told -------------------------------------------------------------------------------


def _seen(key: str, proposal: Proposal | None, named_id: str | None) -> Proposal:
    """The proposal of ``key``, if it is the one that was named, or somebody can be asked."""
    if proposal is None:
        fail(f"journal: {shown(key)}: nothing is proposed, or the key has moved since", FAILED)
    if named_id is None and not somebody_is_there():
        fail("journal: --proposal: must be given where nobody can be asked", USAGE)
    if named_id not in (None, proposal.id):
        fail(f"journal: {shown(key)}: another proposal has taken its place: {proposal.id}", FAILED)
    return proposal


def _in_words(key: str, proposal: Proposal) -> str:
    by, what, why = shown(proposal.by), tables.proposed(proposal), shown(proposal.reason)
    return f"{shown(key)}: {by} proposes: {what} ({why})."


def _tell_proposal(key: str, proposal: Proposal, *, as_json: bool) -> None:
    if as_json:
        tell(tables.as_json({"key": key, "proposal": tables.proposal_json(proposal)}))
        return
    what = tables.proposed(proposal)
    tell(f"{shown(key)}: proposed: {what}; another person approves it, as {proposal.id}")


def _tell_four_eyes(found: FourEyes, *, as_json: bool) -> None:
    if as_json:
        asked = None if found.proposal is None else tables.proposal_json(found.proposal)
        tell(tables.as_json({"demanded": found.demanded, "proposal": asked}))
        return
    tell("four eyes are demanded" if found.demanded else "one person is enough")
    if found.proposal is not None:
        by, why = shown(found.proposal.by), shown(found.proposal.reason)
        tell(f"{by} proposes to waive them: {why}; another person approves it")
