"""What can be done about a key, and what each will cause, in words that name holds and amounts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from attrs import frozen

from transfer_async._pipeline.key_views import KeyView
from transfer_async.desk import words
from transfer_async.journal.entries import KeyState
from transfer_async.journal.proposal import Decision


@frozen(kw_only=True)
class Deed:
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
    effects: tuple[str, ...]
    not_before: datetime | None = None
    asks_order: bool = False
    asks_undone: bool = False


def deeds(view: KeyView, *, four_eyes: bool, holds: frozenset[str], now: datetime) -> list[Deed]:
    """What can be done about the key; nothing where only a recovery helps.

    Args:
        view: the key.
        four_eyes: one proposes, another approves.
        holds: names of hooks that place the hold.
        now: in UTC.
    """
    if view.proposal is not None:
        return []
    found = []
    if view.state in (KeyState.IN_DOUBT, KeyState.SENDING) or not view.readable:
        found = [_resolve(view, four_eyes, holds), _refute(view, four_eyes, holds, now)]
    if view.amendable:
        found += [_amend(view, four_eyes), _take_back(view, four_eyes)]
    return found


def effects_of_proposal(view: KeyView, *, holds: frozenset[str]) -> tuple[str, ...]:
    """What approving the key's proposal will cause."""
    proposal = view.proposal
    if proposal is None:
        return ()
    if proposal.decision is Decision.WAIVE:
        return ("Approving ends the demand for four eyes: from then on one person decides alone.",)
    if proposal.decision is Decision.REFUTE:
        return tuple(_of_refuting(view, "Approving", holds))
    if proposal.decision is Decision.RESOLVE:
        return tuple(_of_resolving(view, "Approving", holds, order_id=proposal.order_id))
    if proposal.order_id is not None:
        return tuple(_of_amending(view, "Approving", proposal.order_id))
    return tuple(_of_taking_back("Approving"))


def _resolve(view: KeyView, four_eyes: bool, holds: frozenset[str]) -> Deed:
    return Deed(
        name="resolve",
        title="The order exists",
        button="Propose that it exists" if four_eyes else "It exists",
        effects=tuple(_of_resolving(view, _verb("Resolving", four_eyes), holds, order_id=None)),
        asks_order=True,
        asks_undone=not view.readable and bool(view.owed),
    )


def _refute(view: KeyView, four_eyes: bool, holds: frozenset[str], now: datetime) -> Deed:
    at = view.refutable_at
    return Deed(
        name="refute",
        title="No order exists, and none can appear",
        button="Propose that none exists" if four_eyes else "None exists: release the hold",
        effects=tuple(_of_refuting(view, _verb("Refuting", four_eyes), holds)),
        not_before=at if at is not None and at > now else None,
        asks_undone=not view.readable or view.entry.intent is None,
    )


def _amend(view: KeyView, four_eyes: bool) -> Deed:
    return Deed(
        name="amend",
        title="Its order is another one",
        button="Propose the other order" if four_eyes else "Correct the order's id",
        effects=tuple(_of_amending(view, _verb("Amending", four_eyes), None)),
        asks_order=True,
    )


def _take_back(_: KeyView, four_eyes: bool) -> Deed:
    return Deed(
        name="takeback",
        title="It is not certain after all",
        button="Propose to take it back" if four_eyes else "Take it back into doubt",
        effects=tuple(_of_taking_back(_verb("Taking it back", four_eyes))),
    )


def _verb(verb: str, four_eyes: bool) -> str:
    return "Approving this" if four_eyes else verb


# --- what it will cause -------------------------------------------------------------------------


def _of_refuting(view: KeyView, verb: str, holds: frozenset[str]) -> Iterator[str]:
    if not view.readable or view.entry.intent is None:
        yield f"{verb} frees the key. Its hooks cannot be undone by a recovery: undo them by hand first."
    elif undone := list(_undone(view, holds)):
        yield f"{verb} {' and '.join(undone)}, at the next recovery, and frees the key."
    else:
        yield f"{verb} frees the key. No hook of it has anything to undo."
    if view.entry.held is not None:
        yield f"The hold {view.entry.held}, which the bank placed itself, is the bank's to release."
    yield "If the order exists all the same, it is paid without a hold, and may be paid twice."
    yield "What is still to be paid needs another key: the same message is answered from the record."


def _undone(view: KeyView, holds: frozenset[str]) -> Iterator[str]:
    """What a recovery will do once no order exists."""
    for hook in view.entry.hooks:
        receipt = view.entry.receipts.get(hook)
        if hook in holds:
            yield f"releases {receipt or 'the hold, if one was placed,'}{_of_amount(view)}"
        else:
            yield f"undoes {hook}" + (f" ({receipt})" if receipt else "")


def _of_amount(view: KeyView) -> str:
    order = view.order
    return "" if order is None else f" of {words.money(order.poster_amount, order.poster_currency)}"


def _of_resolving(view: KeyView, verb: str, holds: frozenset[str], *, order_id: str | None) -> Iterator[str]:
    yield f"{verb} binds the key to {order_id or 'that order'}: whoever uses it again is given this order."
    for name, receipt in view.entry.all_receipts.items():
        if (name in holds or name == "held") and receipt:
            yield f"{receipt}{_of_amount(view)} stays on hold: the order is paid from it."


def _of_amending(view: KeyView, verb: str, order_id: str | None) -> Iterator[str]:
    yield f"{verb} binds the key to {order_id or 'the other order'}, and no longer to {view.order_id}."


def _of_taking_back(verb: str) -> Iterator[str]:
    yield f"{verb} puts the key in doubt again: the hold stays, and nothing is sent."
