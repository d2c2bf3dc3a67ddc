"""What the desk says in words: plain text, which the templates escape like any other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from attrs import frozen

from transfer_async._models.errors import Cause, CauseKind
from transfer_async._pipeline.key_views import (
    LOOK,
    KeyView,
    Sentence,
    approval,
    effects_of,
    only_scopes,
    releases_hold,
    to_undo_by_hand,
)
from transfer_async.journal.model import FOUR_EYES, Decision, HistoryEvent, KeyState

NOTHING_ON_RECORD = "The journal has nothing on record of this key in this scope."

KINDS = {
    "doubt": "in doubt",
    "proposed": "proposed",
    "owed": "undo owed",
    "abandoned": "abandoned",
    "untold": "to tell",
    "unreadable": "unreadable",
}
"""Why a key waits."""

KINDS_EXPLAINED = {
    "doubt": "The order may exist, and the hold is kept. Find out, then say how it ended.",
    "proposed": "One person has proposed how it ends; another one approves.",
    "owed": "A certain no is on record, but a hook is not undone yet: the next recovery tries again.",
    "abandoned": "Its worker never reported an end: the next recovery takes it up.",
    "untold": "A doubt has ended, and whoever waits for that has not heard: a worker tells them.",
    "unreadable": "What is stored of the key cannot be read: no recovery can end it.",
}

SEALED = "What is stored of the key cannot be read here: a desk with the keys that sealed it can."
"""In place of the last, where nothing is damaged."""

_CAUSES = {
    CauseKind.NO_ANSWER: "no answer",
    CauseKind.CUT_ANSWER: "answer cut off",
    CauseKind.STATUS: "unclear status",
    CauseKind.UNREADABLE_ANSWER: "unreadable answer",
    CauseKind.SECOND_ANSWER: "a second answer",
    CauseKind.ABANDONED: "abandoned",
    CauseKind.CLOSED: "cut off at close",
    CauseKind.TAKEN_BACK: "taken back",
    CauseKind.SUPERSEDED: "an earlier order may exist",
}

_MOVES = {
    "claim": "a worker took the key",
    "keep": "the worker was still at it",
    "takeover": "another worker took over, to undo it",
    "mark": "the request was about to be sent",
    "create": "the service answered with the order",
    "free": "it ended in a certain no",
    "doubt": "it became unknown whether the order exists",
    "expire": "abandoned: its worker never reported an end; the request may have arrived",
    "resolve": "the order was said to exist",
    "refute": "the order was said not to exist",
    "amend": "the order's id was corrected",
    "takeback": "the order's id was taken back",
    "propose": "an end was proposed",
    "withdraw": "the proposal was withdrawn",
    "demand": "four eyes were demanded",
    "waive": "four eyes were no longer demanded",
    "look": "the parties were looked at",
    "paid": "what its hooks did was undone",
    "owe": "an undo became due late",
    "suspect": "an order turned up against the record",
    "layaside": "what could not be read was laid aside",
    "promise": "somebody was told that it is unknown",
    "told": "somebody was told how it ended",
}
"""What the history calls a move, in words; one of a later version keeps its name."""


DECISIONS = {
    "resolve": "the order exists",
    "refute": "no order exists, and none can appear",
    "amend": "what was said before is corrected",
    "waive": "four eyes are no longer demanded",
}
"""What may be proposed."""

_DONE = {
    "resolved": ("resolve", "Saved: the order exists. Calls with this key now return it."),
    "refuted": ("refute", "Saved: no order exists."),
    "setaside": ("layaside", "Saved: the damaged record was set aside."),
    "amended": ("amend", "Saved: the key has the other order now."),
    "takenback": ("takeback", "Saved: the key is in doubt again."),
    "proposed": ("propose", "Proposed. It waits for somebody else to approve it."),
    "withdrawn": ("withdraw", "The proposal is withdrawn."),
}
"""What the address of a key's page may say that its reader did: the move in the history, and the words."""


def notice(name: str, view: KeyView, steps: Sequence[HistoryEvent], *, by: str) -> str | None:
    """Return what a change did, as far as it is on record; None if it is not.

    Anybody can write an address, so what it says that was done proves nothing.

    Args:
        name: what the address says that was done.
        view: the key.
        steps: its history.
        by: who reads the page.
    """
    changes = [step for step in steps if step.move != LOOK]
    if name == "approved":
        made, told = approval(steps), "Approved: it is done."
        made = made if made is not None and made.by == by else None
    else:
        wanted, told = _DONE.get(name, ("", ""))
        made = next((step for step in reversed(changes) if (step.move, step.by) == (wanted, by)), None)
    if made is None:
        return None
    if made is not changes[-1] or made.state is not view.state:
        return f"Saved at {time(moment(made.at))}. The key has changed since then: see what happened."
    return told


def other_scopes(names: tuple[str, ...]) -> Sentence:
    """That a journal has keys of other scopes only: nobody may take it for good news that nothing waits."""
    found = only_scopes(names)
    return Sentence(
        f"The journal has no key of this scope, {found.text}. Start the desk for the right scope.",
        found.values,
    )


def nothing_to_do(view: KeyView) -> str:
    """Why nothing can be done about a key by hand."""
    if view.key == FOUR_EYES and not view.readable:
        return (
            "Nothing here. The rule cannot be read, so two persons are needed: "
            "transfer-async journal four-eyes demand writes it anew."
        )
    if view.key == FOUR_EYES:
        return "Nothing here: transfer-async journal demands it, and proposes to end it."
    if view.is_sealed:
        return "Nothing here: its record is sealed. Start the desk with the keys that it was sealed with."
    if view.owed:
        return "Nothing by hand: the next recovery undoes what is owed."
    if view.state is KeyState.CLAIMED:
        return "Nothing by hand, for nothing was sent: a new delivery or the next recovery takes it up."
    return "Nothing: it has come to its end."


def sentence(error: Exception) -> str:
    """What a journal's no says, without the name of the argument that it begins with."""
    told = str(error)
    argument, _, rest = told.partition(": ")
    if rest and argument in ("key", "by"):
        return rest[:1].upper() + rest[1:]
    if rest and argument.isidentifier():  # a field of the form; what follows may name a hook
        told = f"{argument.replace('_', ' ')}: {rest}"
    return told[:1].upper() + told[1:]


def moment(since_1970: float) -> datetime:
    """So many seconds since 1970 as a time in UTC; damaged ones as the nearest that there is."""
    try:
        return datetime.fromtimestamp(since_1970, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime(9999, 12, 31, tzinfo=UTC) if since_1970 > 0 else datetime(1, 1, 1, tzinfo=UTC)


def name_of(key: str) -> str:
    """What a key is called."""
    return "The rule of four eyes" if key == FOUR_EYES else key


def move(name: str) -> str:
    """A move of the history."""
    return _MOVES.get(name, name)


def cause_in_short(cause: Cause | None) -> str:
    """Why a key is in doubt, in two or three words; empty if it is not known."""
    if cause is None:
        return ""
    if cause.kind is CauseKind.STATUS and cause.status is not None:
        return f"status {cause.status}"
    return _CAUSES[cause.kind]


def money(amount: Decimal, currency: str) -> str:
    """An amount, every digit of it, with its thousands apart."""
    return f"{amount:,f} {currency}".rstrip()


def count(number: int, thing: str) -> str:
    """How many of them."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def time(when: datetime) -> str:
    """A time in UTC, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_time(when: datetime) -> str:
    """The same as ISO 8601."""
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# --- deeds -------------------------------------------------------------------------------------------
# What can be done about a key, and what each will cause, in words that name holds and amounts.


@frozen(kw_only=True)
class AvailableAction:
    """Something that can be done about a key.

    Args:
        name: of its form: ``resolve``, ``refute``, ``amend`` or ``takeback``.
        title: what it says.
        button: what is pressed.
        effects: what it will cause, a sentence each.
        not_before: when it can be done at the earliest, if that lies ahead.
        asks_order: an order's id is asked for.
        asks_undone: hooks must be undone by hand first.
    """

    name: str
    title: str
    button: str
    effects: tuple[Sentence, ...]
    not_before: datetime | None = None
    asks_order: bool = False
    asks_undone: bool = False


def deeds(view: KeyView, *, four_eyes: bool, holds: frozenset[str], now: datetime) -> list[AvailableAction]:
    """What can be done about the key; nothing where only a recovery helps.

    Args:
        view: the key.
        four_eyes: one proposes, another approves.
        holds: names of hooks that place the hold.
        now: in UTC.
    """
    if view.proposal is not None or view.is_sealed or view.key == FOUR_EYES:
        return []
    found = []
    if view.state in (KeyState.IN_DOUBT, KeyState.SENDING) or not view.readable:
        found = [_resolve(view, four_eyes, holds)]
        if view.state is not KeyState.CREATED:
            found.append(_refute(view, four_eyes, holds, now))
    if view.amendable:
        found += [_amend(view, four_eyes, holds), _take_back(view, four_eyes, holds)]
    return found


def effects_of_proposal(view: KeyView, *, holds: frozenset[str]) -> tuple[Sentence, ...]:
    """What approving the key's proposal will cause."""
    proposal = view.proposal
    if proposal is None:
        return ()
    return effects_of(view, proposal.decision, "Approving", holds=holds, order_id=proposal.order_id)


def _resolve(view: KeyView, four_eyes: bool, holds: frozenset[str]) -> AvailableAction:
    return AvailableAction(
        name="resolve",
        title="The order exists",
        button="Propose that it exists" if four_eyes else "It exists",
        effects=effects_of(view, Decision.RESOLVE, _verb("Resolving", four_eyes), holds=holds),
        asks_order=True,
        asks_undone=to_undo_by_hand(view.entry, refuting=False) is not None,
    )


def _refute(view: KeyView, four_eyes: bool, holds: frozenset[str], now: datetime) -> AvailableAction:
    at = view.refutable_at
    button = "None exists: free the key"
    if view.state is KeyState.FREE:
        button = "None exists: put the record aside"
    elif releases_hold(view, holds=holds):
        button = "None exists: release the hold"
    return AvailableAction(
        name="refute",
        title="No order exists, and none can appear",
        button="Propose that none exists" if four_eyes else button,
        effects=effects_of(view, Decision.REFUTE, _verb("Refuting", four_eyes), holds=holds),
        not_before=at if at is not None and at > now else None,
        asks_undone=to_undo_by_hand(view.entry, refuting=True) is not None,
    )


def _amend(view: KeyView, four_eyes: bool, holds: frozenset[str]) -> AvailableAction:
    verb = _verb("Amending", four_eyes)
    return AvailableAction(
        name="amend",
        title="Its order is another one",
        button="Propose the other order" if four_eyes else "Correct the order's id",
        effects=effects_of(view, Decision.AMEND, verb, holds=holds, order_id="the other order"),
        asks_order=True,
    )


def _take_back(view: KeyView, four_eyes: bool, holds: frozenset[str]) -> AvailableAction:
    return AvailableAction(
        name="takeback",
        title="It is not certain after all",
        button="Propose to take it back" if four_eyes else "Take it back into doubt",
        effects=effects_of(view, Decision.AMEND, _verb("Taking it back", four_eyes), holds=holds),
    )


def _verb(verb: str, four_eyes: bool) -> str:
    return "Approving this" if four_eyes else verb
