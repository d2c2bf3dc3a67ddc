"""A table of the decisions that people can make about a key, and the effects of each one.

Each row contains the decision as stored, its transition, the keys it applies to, and its texts. `Operators`
checks and records a decision according to its row. The command line builds its commands from the rows, and
the operators' page builds its forms from them.

To add a decision, add its stored value to `Decision`, its transition and the transition's states to
`operator_transitions`, and a row to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from attrs import field, frozen

from transfer_async._models.errors import Outcome
from transfer_async._pipeline.key_views import KeyView, Sentence
from transfer_async.journal.model import (
    FOUR_EYES,
    Decision,
    Entry,
    HistoryEvent,
    KeyState,
    PendingUndo,
    Proposal,
    is_same_person,
    undos_on_failure,
)
from transfer_async.journal.operator_transitions import WITHOUT_CHANGE, Amend, Propose, TakeBack, Waive
from transfer_async.journal.protocol import AuditLine
from transfer_async.journal.transitions import Move, Refute, Resolve

Effects = Callable[[KeyView, str, AbstractSet[str], str | None], Iterable[Sentence]]
"""A function that takes the key, a verb, the names of hold hooks and the order id, and returns the
effects."""

# --- effects of a decision --------------------------------------------------------------------------


def to_undo_by_hand(entry: Entry, *, refuting: bool) -> tuple[str, ...] | None:
    """Return the hooks that a person must undo, because their intent is unreadable; None if there are none.

    An empty tuple means that hooks may have to be undone, but their names are unreadable. If the order exists
    (``refuting`` is false), only the hooks of the key's earlier intents must be undone.
    """
    unread = entry.unread
    if unread is not None and not refuting:
        return unread.earlier_hooks or None
    if unread is not None:
        names = (*unread.hooks, *unread.earlier_hooks)
        # A free key has no hooks except those of its pending undos.
        return names or (None if entry.state is KeyState.FREE else ())
    return entry.hooks if entry.state is KeyState.IN_DOUBT and entry.intent is None else None


def checked_undone(entry: Entry, *, refuting: bool, undone: bool) -> tuple[str, ...]:
    """Return the hooks that had to be undone manually; empty if there are none.

    Raises:
        ValueError: hooks had to be undone manually, and ``undone`` does not confirm that they were.
    """
    by_hand = to_undo_by_hand(entry, refuting=refuting)
    if by_hand is not None and not undone:
        raise ValueError(
            "undone: must be set, because recover cannot undo the hooks of a record that it cannot read "
            f"({', '.join(by_hand) or 'not known'}). Undo them manually first"
        )
    return by_hand or ()


def releases_hold(view: KeyView, *, holds: AbstractSet[str]) -> bool:
    """Return whether recovery releases a hold after a refutation; ``holds`` names the hold hooks."""
    return any(item.hook in holds for item in undos_on_failure(view.entry))


def pending(view: KeyView, *, holds: AbstractSet[str]) -> Sentence:
    """Return a sentence that lists the next recovery's undos and the hold that the bank must release."""
    entry = view.entry
    undone = _listed("the next recovery", entry.pending_undos, holds)
    if entry.held is None:
        return undone or Sentence("nothing is left to undo")
    undone = undone or Sentence("nothing is left for a recovery to undo")
    return Sentence(f"{undone.text}; the bank must release the hold {{}}", (*undone.values, entry.held))


def _listed(subject: str, undos: tuple[PendingUndo, ...], holds: AbstractSet[str]) -> Sentence | None:
    """Return a sentence that lists ``undos``, with the given subject; None if ``undos`` is empty."""
    texts: list[str] = []
    values: list[str] = []
    for undo in undos:
        if undo.hook in holds:
            order = undo.intent.order
            amount = f" of {order.poster_amount:,f} {order.poster_currency}"
            texts.append(f"releases {'{}' if undo.receipt else 'the hold, if one was placed,'}{amount}")
            values += [undo.receipt] if undo.receipt else []
        else:
            texts.append("undoes {} ({})" if undo.receipt else "undoes {}")
            values += [undo.hook, undo.receipt] if undo.receipt else [undo.hook]
    return Sentence(f"{subject} {' and '.join(texts)}", tuple(values)) if texts else None


def _kept(view: KeyView, holds: AbstractSet[str], why: str) -> Iterator[Sentence]:
    order, entry = view.order, view.entry
    amount = "" if order is None else f" of {order.poster_amount:,f} {order.poster_currency}"
    receipts = entry.all_receipts
    if entry.state is KeyState.FREE:
        receipts = {undo.hook: undo.receipt for undo in entry.pending_undos}
        yield Sentence("The key was free. A hold that was already released stays released.")
    for name, receipt in receipts.items():
        if (name in holds or name == "held") and receipt:
            yield Sentence(f"{{}}{amount} stays on hold{why}.", (receipt,))


def _of_resolving(
    view: KeyView, verb: str, holds: AbstractSet[str], order_id: str | None
) -> Iterator[Sentence]:
    named = "{}" if order_id else "that order"
    if view.state is KeyState.CREATED:  # The record is corrupt; otherwise there is nothing to resolve.
        known = view.order_id or "no id"
        yield Sentence(
            f"{verb} quarantines the corrupt record. The recorded order does not change: {{}}.",
            (known,),
        )
        return
    yield Sentence(
        f"{verb} binds the key to {named}: later calls with the key return this order.",
        (order_id,) if order_id else (),
    )
    yield from _kept(view, holds, ": the order is paid from it")
    if by_hand := to_undo_by_hand(view.entry, refuting=False):
        yield Sentence(
            "Pending undos of an earlier intent cannot be read. "
            f"Undo these hooks manually first: {', '.join(['{}'] * len(by_hand))}.",
            by_hand,
        )


def _of_refuting(view: KeyView, verb: str, holds: AbstractSet[str], _: str | None) -> Iterator[Sentence]:
    entry = view.entry
    yield from _undone_by_refuting(entry, verb, holds)
    if entry.held is not None:
        yield Sentence(
            "The bank must release the hold {}, because it placed this hold itself.", (entry.held,)
        )
    if entry.state is KeyState.FREE:
        return
    if not view.sender_reported:
        yield Sentence(
            "The order's sender never reported a result. If its process is only suspended, it may still send "
            "the order."
        )
    is_by_hand = to_undo_by_hand(entry, refuting=True) is not None
    loses_hold = is_by_hand or entry.held is not None or releases_hold(view, holds=holds)
    paid = "it is paid without a hold, and may be paid twice" if loses_hold else "it may be paid twice"
    yield Sentence(f"If the order does exist, {paid}.")
    yield Sentence(
        "If the payment is still due, use another key: resending the same message only returns the recorded "
        "result."
    )


def _undone_by_refuting(entry: Entry, verb: str, holds: AbstractSet[str]) -> Iterator[Sentence]:
    by_hand = to_undo_by_hand(entry, refuting=True)
    frees = "quarantines the corrupt record" if entry.state is KeyState.FREE else "frees the key"
    undone = _listed(verb, undos_on_failure(entry), holds)
    if by_hand:
        yield Sentence(f"{verb} {frees}. Its hooks cannot be undone by a recovery: undo them manually first.")
        yield Sentence(f"Undo these hooks manually: {', '.join(['{}'] * len(by_hand))}.", by_hand)
    elif by_hand is not None:
        yield Sentence(
            f"{verb} {frees}. The record does not show whether any hook still has to be undone: "
            "find out first."
        )
    elif undone is not None:
        yield Sentence(f"{undone.text}, at the next recovery, and {frees}.", undone.values)
    elif entry.state is KeyState.FREE and entry.pending_undos:
        yield Sentence(f"{verb} {frees}.")
    else:
        yield Sentence(f"{verb} {frees}. No hook has to be undone.")
    undos = _listed("After that, the next recovery", entry.pending_undos, holds)
    # Recovery can still run the undos of earlier intents, so a person must not do them.
    if entry.unread is not None and undos is not None:
        yield Sentence(f"{undos.text}.", undos.values)


def _of_amending(view: KeyView, verb: str, _: AbstractSet[str], order_id: str | None) -> Iterator[Sentence]:
    known = view.order_id or "another one"
    named = order_id or "the other order"
    yield Sentence(f"{verb} binds the key to {{}} instead of {{}}.", (named, known))


def _of_taking_back(view: KeyView, verb: str, holds: AbstractSet[str], _: str | None) -> Iterator[Sentence]:
    yield Sentence(f"{verb} puts the key in doubt again: nothing is sent and nothing is released.")
    yield from _kept(view, holds, "")


def _of_waiving(_: KeyView, verb: str, __: AbstractSet[str], ___: str | None) -> Iterator[Sentence]:
    yield Sentence(f"{verb} ends dual control: from then on, a single person can make decisions alone.")


# --- the table --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class DecisionRow:
    """A decision that a person can make about a key.

    Args:
        decision: the decision as the journal stores it. A decision may have two rows: one with an order id,
            and one without.
        transition: the transition that records the decision. The form for the decision on the operators' page
            has the same name as the transition.
        applies_to: the state that a key must be in for the decision. ``IN_DOUBT`` includes keys with a
            corrupt record. ``CREATED`` includes only keys whose order id can be amended. ``FREE`` stands for
            the scope's dual-control rule (`FOUR_EYES`).
        names_order: whether this row requires an order id.
        frees_key: whether the decision records that no order exists. A decision that frees the key must be
            confirmed, and is accepted only ``settle_after`` seconds after the last moment at which the
            order could have been sent.
        outcome: the outcome that is published to observers; None if no event is published.
        effects: a function that describes the decision's effects in sentences.
        help: the help text of the command. If two rows contain the same decision, only the first has a help
            text.
        title: the heading of the form.
        button: the label of the form's button, or a function that creates it from a key and the names of hold
            hooks.
        propose: the label of the button under dual control.
        verb: the subject of the sentences about the effects, such as "Resolving".
        proposed: a short text that describes the proposed decision, with ``{}`` for the order id.
        explained: the decision as a clause, for the web page's forms, proposals, histories and audit.
        done: the decision's name in the URL to which the page redirects once the decision has been saved.
        saved: the message that the page shows once the decision has been saved.
    """

    decision: Decision
    transition: type[Move]
    applies_to: KeyState
    names_order: bool = False
    frees_key: bool = False
    outcome: Outcome | None = None
    effects: Effects = field(repr=False)
    help: str = ""
    title: str = ""
    button: str | Callable[[KeyView, AbstractSet[str]], str] = ""
    propose: str = ""
    verb: str = ""
    proposed: str
    explained: str
    done: str = ""
    saved: str = ""

    @property
    def name(self) -> str:
        """The name of the transition in the history, and of the form on the operators' page."""
        return self.transition.name

    def is_offered(self, view: KeyView) -> bool:
        """Return whether to offer the decision for the key."""
        if view.key == FOUR_EYES or self.applies_to is KeyState.FREE:
            return False
        if self.applies_to is KeyState.CREATED:
            return view.amendable
        if self.frees_key and view.state is KeyState.CREATED:
            return False
        return view.state in (KeyState.IN_DOUBT, KeyState.SENDING) or not view.readable

    def asks_undone(self, view: KeyView) -> bool:
        """Return whether a person must undo hooks manually before the decision."""
        if self.applies_to is not KeyState.IN_DOUBT:
            return False
        return to_undo_by_hand(view.entry, refuting=self.frees_key) is not None

    def in_short(self, order_id: str | None) -> str:
        """Return the decision as a short text with the order id, such as ``resolve as tx-1``."""
        return self.proposed.format(order_id)


def _refute_button(view: KeyView, holds: AbstractSet[str]) -> str:
    if view.state is KeyState.FREE:
        return "No order exists: quarantine the record"
    return f"No order exists: {'release the hold' if releases_hold(view, holds=holds) else 'free the key'}"


DECISIONS: tuple[DecisionRow, ...] = (
    DecisionRow(
        decision=Decision.RESOLVE,
        transition=Resolve,
        applies_to=KeyState.IN_DOUBT,
        names_order=True,
        outcome=Outcome.CREATED,
        effects=_of_resolving,
        help="Record that the order of a key in doubt exists.\n\n"
        "From now on, calls with the key return the order's id. Without an id, the command asks whether to "
        "use the candidate, the order id found in the service's response.",
        title="The order exists",
        button="It exists",
        propose="Propose that the order exists",
        verb="Resolving",
        proposed="resolve as {}",
        explained="the order exists",
        done="resolved",
        saved="Saved: the order exists. Calls with this key now return it.",
    ),
    DecisionRow(
        decision=Decision.REFUTE,
        transition=Refute,
        applies_to=KeyState.IN_DOUBT,
        frees_key=True,
        outcome=Outcome.REFUSED,
        effects=_of_refuting,
        help="Record that a key in doubt has no order, and that none can appear.\n\n"
        "The command shows what the next recovery will undo, such as a hold, and asks for confirmation. "
        "Processing the same message or line of a file again sends nothing and returns the recorded result. "
        "If the payment is still due, use a new key.",
        title="No order exists, and none can appear",
        button=_refute_button,
        propose="Propose that no order exists",
        verb="Refuting",
        proposed="refute",
        explained="no order exists, and none can appear",
        done="refuted",
        saved="Saved: no order exists.",
    ),
    DecisionRow(
        decision=Decision.AMEND,
        transition=Amend,
        applies_to=KeyState.CREATED,
        names_order=True,
        effects=_of_amending,
        help="Correct or withdraw an order id that a person supplied.\n\n"
        "An id from the service's own response cannot be changed. The option --in-doubt puts the key back in "
        "doubt.",
        title="The order's id is wrong",
        button="Correct the order's id",
        propose="Propose another order id",
        verb="Amending",
        proposed="amend to {}",
        explained="the order's id is corrected",
        done="amended",
        saved="Saved: the order's id is corrected.",
    ),
    DecisionRow(
        decision=Decision.AMEND,
        transition=TakeBack,
        applies_to=KeyState.CREATED,
        outcome=Outcome.UNKNOWN,
        effects=_of_taking_back,
        title="The order's id is not certain",
        button="Put the key back in doubt",
        propose="Propose to put the key back in doubt",
        verb="Taking it back",
        proposed="back into doubt",
        explained="the order's id is withdrawn",
        done="takenback",
        saved="Saved: the key is in doubt again.",
    ),
    DecisionRow(
        decision=Decision.WAIVE,
        transition=Waive,
        applies_to=KeyState.FREE,
        effects=_of_waiving,
        proposed="waive",
        explained="dual control is waived",
    ),
)
"""All decisions, in the order of the forms on the page."""


def rows_of(decision: Decision) -> tuple[DecisionRow, ...]:
    """Return the rows of a decision: one, or two if it can be made both with and without an order id."""
    return tuple(row for row in DECISIONS if row.decision is decision)


def row_of(decision: Decision, order_id: str | None) -> DecisionRow:
    """Return the row for a decision with the given order id, or without an id.

    Raises:
        ValueError: the decision requires an order id, or does not allow one.
    """
    rows = rows_of(decision)
    found = next((row for row in rows if row.names_order is (order_id is not None)), None)
    if found is not None:
        return found
    if rows[0].names_order:
        raise ValueError("order_id: must look like 'tx-…'")
    raise ValueError(f"order_id: is not allowed for {decision.value}")


def proposed_row(proposal: Proposal) -> DecisionRow:
    """Return the row of a stored proposal, for display.

    In a damaged record, the proposal may lack an order id that the decision requires, or contain one that the
    decision does not allow. A damaged proposal can be shown, but not approved.
    """
    rows = rows_of(proposal.decision)
    names_order = proposal.order_id is not None
    return next((row for row in rows if row.names_order is names_order), rows[0])


def effects_of(
    view: KeyView, row: DecisionRow, *, holds: AbstractSet[str], verb: str = "", order_id: str | None = None
) -> tuple[Sentence, ...]:
    """Return the effects of a decision about a key, as sentences.

    The command line and the page show these sentences before asking for confirmation, so that a person knows
    which holds will be released.

    Args:
        view: the record of the key.
        row: the decision.
        holds: the names of hooks that place a hold.
        verb: the subject of the sentences, such as "Approving" or "this"; by default, the row's ``verb``.
        order_id: the order id that the decision names, or None if no id has been entered yet.
    """
    verb = verb or row.verb
    if view.is_sealed and row.applies_to is not KeyState.FREE:
        return (
            Sentence(
                f"{verb} changes nothing: the record is encrypted with a key that is not available here."
            ),
        )
    return tuple(row.effects(view, verb, holds, order_id))


def effects_of_proposal(view: KeyView, *, holds: AbstractSet[str]) -> tuple[Sentence, ...]:
    """Return the effects of approving the key's proposal; empty if there is no proposal."""
    proposal = view.proposal
    if proposal is None:
        return ()
    row = proposed_row(proposal)
    return effects_of(view, row, holds=holds, verb="Approving", order_id=proposal.order_id)


def transition_of(
    row: DecisionRow, entry: Entry, order_id: str | None, *, settle_after: float, basis: dict[str, Any]
) -> Move:
    """Create the transition that records a decision about ``entry``.

    Args:
        row: the decision.
        entry: the entry that the decision is about.
        order_id: the order id, if the decision names one.
        settle_after: how many seconds must pass, after the last moment at which the order could have been
            sent, before a refutation is accepted.
        basis: the fields of a `Basis`, such as the person, the reason and the version that the person saw.
    """
    values = {
        "attempt": entry.attempt or "",
        "wrong": entry.order_id or "",
        "order_id": order_id,
        "reply": None,
        "settle_after": settle_after,
        "pending_undos": undos_on_failure(entry),
        "lease": 0.0,  # No worker runs the undos now; the next recovery does.
        **basis,
    }
    fields = row.transition.__struct_fields__
    return row.transition(**{name: value for name, value in values.items() if name in fields})


# --- the history ------------------------------------------------------------------------------------


def proposed_in(step: HistoryEvent) -> tuple[str, str] | None:
    """Return a proposed decision as a clause, and the proposal's reason; None if the line is not a proposal.

    A line does not show whether an order id is to be corrected or withdrawn, so the clause mentions both.
    """
    name, _, reason = (step.reason or "").partition(": ")
    clauses = [row.explained for row in DECISIONS if row.decision.value == name]
    if step.move != Propose.name or not clauses:
        return None
    return " or ".join([clauses[0], *(clause.rpartition(" ")[2] for clause in clauses[1:])]), reason


def is_approval(step: HistoryEvent, proposal: HistoryEvent) -> bool:
    """Return whether ``step`` records that another person made the proposed decision."""
    row = next((row for row in DECISIONS if row.name == step.move), None)
    if row is None or is_same_person(step.by or "", proposal.by or ""):
        return False
    is_same_order = not row.names_order or step.order_id == proposal.order_id
    return is_same_order and (proposal.reason or "").startswith(f"{row.decision.value}: ")


def approved_proposal(line: AuditLine) -> HistoryEvent | None:
    """Return the history line of the proposal that ``line`` approves, or None."""
    _, step, proposal = line
    return proposal if proposal is not None and is_approval(step, proposal) else None


def approval(steps: Sequence[HistoryEvent]) -> HistoryEvent | None:
    """Return the step in which another person approved the most recent proposal, or None."""
    changes = [step for step in steps if step.move not in WITHOUT_CHANGE]
    last = max((number for number, step in enumerate(changes) if step.move == Propose.name), default=None)
    if last is None or last + 1 == len(changes):
        return None
    proposed, step = changes[last], changes[last + 1]
    is_same = is_same_person(step.by or "", proposed.by or "")
    return step if any(step.move == row.name for row in DECISIONS) and not is_same else None


def since(token: str, view: KeyView, steps: Sequence[HistoryEvent]) -> tuple[HistoryEvent, ...]:
    """Return the key's changes since a page with the given form token was shown; empty if unknown."""
    moves = [step for step in steps if step.move not in WITHOUT_CHANGE]
    number = token.partition(".")[0]
    seen = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else view.version
    new = max(0, view.version - seen)
    return tuple(moves[-new:]) if new else ()
