"""What must be true of every key in the end, after killed processes and in the simulation alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from transfer_async.journal import KeyState
from transfer_async.journal.model import Entry

Faults = Iterator[tuple[str, str]]
"""The kind and the description of each broken promise."""

_ENDS = (KeyState.CREATED, KeyState.FREE, KeyState.IN_DOUBT)


@frozen(kw_only=True)
class KeyEvidence:
    """The evidence about one key, when all workers have recovered.

    Args:
        orders: the orders that exist.
        reported: the reported outcomes, each with the order's id.
        entry: the journal's entry, when only doubts are left.
        open_effects: the effects of hooks that are not undone, each with the id of its intent.
    """

    key: str
    orders: Sequence[str]
    reported: Sequence[tuple[str, str]]
    entry: Entry | None
    open_effects: frozenset[tuple[str, str]]


def broken_promises(one: KeyEvidence) -> Faults:
    """Check that at most one order exists, and that the journal, the service and the bank agree on it."""
    entry = one.entry
    if len(one.orders) > 1:
        yield "duplicate", f"{len(one.orders)} orders exist"
    if entry is None or entry.state not in _ENDS or entry.pending_undos:
        yield "unended", f"the journal leaves it {entry and (entry.state.value, len(entry.pending_undos))}"
    else:
        yield from _against_the_service(one, entry)
        yield from _against_the_bank(one, entry)
    state, order_id = (entry.state, entry.order_id) if entry else (None, None)
    for ended, reported_id in one.reported:
        if ended == "created" and (state is not KeyState.CREATED or reported_id != order_id):
            yield (
                "lost",
                f"reported as created with the id {reported_id}; the journal says {state}, {order_id}",
            )
        if ended == "created" and reported_id not in one.orders:
            yield "lost", f"reported as created with the id {reported_id}, which does not exist"


def _against_the_service(one: KeyEvidence, entry: Entry) -> Faults:
    if entry.state is KeyState.CREATED and entry.order_id not in one.orders:
        yield "lost", f"created as {entry.order_id}, which does not exist"
    if entry.state is KeyState.FREE and entry.ending is None:
        yield "unended", "free, without a no on record"
    if entry.state is KeyState.FREE and one.orders:
        yield "lost", "an order exists, and the key is free"


def _against_the_bank(one: KeyEvidence, entry: Entry) -> Faults:
    is_bound = entry.state is not KeyState.FREE
    allowed = {(hook, entry.intent_id) for hook in entry.hooks if is_bound}
    wanted = {("hold", entry.intent_id)} if is_bound and entry.held is None else set()
    if not wanted <= one.open_effects <= allowed | wanted:
        yield "hold", f"{entry.state.value}, with {sorted(one.open_effects)} open"
