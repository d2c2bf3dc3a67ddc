"""The commands by which a person ends a doubt, or corrects what was said."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from transfer_async._cli import journal_output, options
from transfer_async._cli.journal_output import OpenJournal
from transfer_async._cli.journal_session import (
    AsJson,
    By,
    JournalTarget,
    Key,
    Reason,
    Undone,
    Yes,
    confirmed,
    named,
    said,
    tell_record,
    told_effects,
    usage,
    warn_of_sender,
)
from transfer_async._cli.output import fail, shown, somebody_is_there, tell
from transfer_async._cli.process import FAILED, USAGE
from transfer_async._pipeline.key_views import (
    FourEyes,
    KeyChanged,
    KeyView,
    approval,
    checked_order_id,
    checked_settle_after,
)
from transfer_async.journal.model import FOUR_EYES, SETTLE_AFTER, Decision, Proposal
from transfer_async.journal.protocol import KeyRecord

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
    tell_record(place, key, record, as_json=as_json)


def refute(
    key: Key,
    *,
    journal: options.JournalNeeded,
    by: By = None,
    reason: Reason = None,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    undone: Undone = False,
    yes: Yes = False,
    scope: options.Scope = None,
    base_url: options.BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """End a doubt: no order exists, and none can appear.

    This frees the key. Shows what the next recovery will undo, such as a hold, and asks before it does.
    The message, or the line of a file, that the doubt came from is not sent when it comes again: it is
    answered from the record. What is still to be paid needs another key.
    """
    place = named(journal, scope, base_url)
    with usage("--settle-after"):
        checked_settle_after(settle_after)
    view = place.view(key)
    by, reason = said(by, reason)
    if yes:
        warn_of_sender(view)  # else the question says so
    confirmed(f"{told_effects(view, Decision.REFUTE)} Are you certain?", yes=yes)
    record = place.at_desk(
        lambda at: at.operators.refute(key, by=by, reason=reason, undone=undone, seen=view.moves),
        settle_after=settle_after,
    )
    tell_record(place, key, record, as_json=as_json)


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
    tell_record(place, key, record, as_json=as_json)


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
        fail(f"journal: --order-id is required: the service's responses to this key name {names}", USAGE)
    if not take_it:
        if not somebody_is_there():
            fail("journal: --order-id or --candidate is required when not interactive", USAGE)
        question = (
            f"An answer that could not be read names {candidates[0]}. Is it the order of {shown(view.key)}?"
        )
        confirmed(question, yes=False)
    return candidates[0]


# --- four eyes commands ------------------------------------------------------------------------------
# The commands for two: what one person proposes another approves, and whether that is demanded.


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
    settle_after: options.SettleAfter = SETTLE_AFTER,
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
    if decision is Wanted.REFUTE:
        warn_of_sender(view)
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
    settle_after: options.SettleAfter = SETTLE_AFTER,
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
    view = place.view(key)
    seen = _seen(place, view, proposal)
    if yes and seen.decision is Decision.REFUTE:
        warn_of_sender(view)
    by, reason = said(by, reason)
    effects = told_effects(view, seen.decision, order_id=seen.order_id)
    confirmed(f"{effects}\n{_in_words(key, seen)} Do you approve?", yes=yes)
    word = {"proposal": seen.id, "by": by, "reason": reason}
    record = place.at_desk(lambda at: _approved(at, key, word), settle_after=settle_after)
    tell_record(place, key, record, as_json=as_json)


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
    seen = _seen(place, place.view(key), proposal)
    by, reason = said(by, reason)
    confirmed(f"{_in_words(key, seen)} Is it to be turned down?", yes=yes)
    record = place.at_desk(lambda at: at.operators.withdraw(key, proposal=seen.id, by=by, reason=reason))
    if as_json:
        tell_record(place, key, record, as_json=True)
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
    _tell_four_eyes(place.scope, found, as_json=as_json)


def _demanded(place: JournalTarget, action: Action, by: str | None, reason: str | None) -> FourEyes:
    name, why = said(by, reason)
    if action is Action.DEMAND:  # also before the first order of a scope
        return place.at_desk(lambda at: at.operators.demand_four_eyes(by=name, reason=why), in_any_scope=True)
    place.at_desk(lambda at: at.operators.propose(FOUR_EYES, Decision.WAIVE, by=name, reason=why))
    return place.at_desk(lambda at: at.operators.four_eyes())


def _waived(place: JournalTarget, action: Action, by: str | None, reason: str | None) -> FourEyes:
    asked = place.at_desk(lambda at: at.operators.four_eyes()).proposal
    if asked is None:
        fail("journal: four-eyes: nobody proposes to waive them", FAILED)
    by, reason = said(by, reason)
    word = {"proposal": asked.id, "by": by, "reason": reason}
    if action is Action.APPROVE:
        place.at_desk(lambda at: _approved(at, FOUR_EYES, word))
    else:
        place.at_desk(lambda at: at.operators.withdraw(FOUR_EYES, **word))
    return place.at_desk(lambda at: at.operators.four_eyes())


# --- what is told -------------------------------------------------------------------------------


async def _approved(at: OpenJournal, key: str, word: dict[str, str]) -> KeyRecord:
    """Approve a proposal; if another person was faster, say who, and when."""
    try:
        return await at.operators.approve(key, **word)
    except KeyChanged as moved:
        raise ValueError(f"{moved}{await _already(at, key)}") from None


async def _already(at: OpenJournal, key: str) -> str:
    """Who has approved the key's last proposal, and when; empty if nobody has."""
    step = approval(await at.operators.history(key))
    return "" if step is None else f"; {shown(step.by)} approved it at {journal_output.step_time(step)}"


def _seen(place: JournalTarget, view: KeyView, named_id: str | None) -> Proposal:
    """The proposal of the key, if it is the one that was named, or somebody can be asked."""
    key, proposal = view.key, view.proposal
    if proposal is None:
        already = place.at_desk(lambda at: _already(at, key))
        fail(f"journal: {shown(key)}: nothing is proposed, or the key has moved since{already}", FAILED)
    if named_id is None and not somebody_is_there():
        fail("journal: --proposal is required when not interactive", USAGE)
    if named_id not in (None, proposal.id):
        fail(f"journal: {shown(key)}: another proposal has taken its place: {proposal.id}", FAILED)
    return proposal


def _in_words(key: str, proposal: Proposal) -> str:
    by, what, why = shown(proposal.by), journal_output.proposed(proposal), shown(proposal.reason)
    return f"{shown(key)}: {by} proposes: {what} ({why})."


def _tell_proposal(key: str, proposal: Proposal, *, as_json: bool) -> None:
    if as_json:
        tell(journal_output.as_json({"key": key, "proposal": journal_output.proposal_json(proposal)}))
        return
    what = journal_output.proposed(proposal)
    tell(f"{shown(key)}: proposed: {what}; another person approves it, as {proposal.id}")


def _tell_four_eyes(scope: str, found: FourEyes, *, as_json: bool) -> None:
    if as_json:
        asked = None if found.proposal is None else journal_output.proposal_json(found.proposal)
        tell(journal_output.as_json({"scope": scope, "demanded": found.demanded, "proposal": asked}))
        return
    tell(f"{shown(scope)}: {'four eyes are demanded' if found.demanded else 'one person is enough'}")
    if found.proposal is not None:
        by, why = shown(found.proposal.by), shown(found.proposal.reason)
        tell(f"{by} proposes to waive them: {why}; another person approves it")
