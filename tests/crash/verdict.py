"""What must be true of every key in the end, and what it is called if it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.crash.evidence import Evidence, KeyEvidence
from transfer_async.journal import KeyState

TIME_STEP = 0.002
"""Seconds by which the journal's clock may differ from a worker's on the same machine."""

_ENDS = (KeyState.CREATED, KeyState.FREE, KeyState.IN_DOUBT)

Faults = Iterator[tuple[str, str]]
"""Of promises that were broken: what it is called, and how."""


def violations(evidence: Evidence, *checks: Callable[[KeyEvidence], Faults]) -> list[tuple[str, str]]:
    """The kind of every promise that was broken, and for which key and how."""
    found = [
        (kind, f"{one.key}: {why} ({one.story})")
        for one in evidence.keys
        for check in checks
        for kind, why in check(one)
    ]
    found += [("unasked", f"{key}: an order exists that nobody asked for") for key in evidence.unasked]
    owners: dict[str, str] = {}
    for one in evidence.keys:
        if one.entry is not None and one.entry.order_id is not None:
            other = owners.setdefault(one.entry.order_id, one.key)
            if other != one.key:
                found.append(("shared", f"{one.key}: has the order of {other}"))
    return found


def of_the_key(one: KeyEvidence) -> Faults:
    """At most one order, and all agree about it: the journal, the service, the bank and who was told."""
    if len(one.orders) > 1:
        yield "duplicate", f"{len(one.orders)} orders exist"
    if one.entry is None or one.entry.state not in _ENDS or one.entry.pending_undos:
        state = one.entry and (one.entry.state.value, len(one.entry.pending_undos))
        yield "unended", f"the journal leaves it {state}"
    else:
        yield from _against_the_service(one)
        yield from _against_the_bank(one)
    yield from _against_what_was_told(one)


def _against_the_service(one: KeyEvidence) -> Faults:
    assert one.entry is not None
    state, order_id = one.entry.state, one.entry.order_id
    if state is KeyState.CREATED and order_id not in one.orders:
        yield "lost", f"created as {order_id}, which does not exist"
    if state is KeyState.FREE and one.entry.ending is None:
        yield "unended", "free, without a no on record"
    if one.is_listed is not (state is KeyState.IN_DOUBT):
        yield "unended", f"{state.value}, and listed in doubt: {one.is_listed}"
    if state is KeyState.FREE and one.orders:
        yield "lost", "an order exists, and the key is free"
    end = one.resolved and one.resolved.state
    if end is not (KeyState.CREATED if one.orders else KeyState.FREE):
        yield "unresolved", f"{len(one.orders)} orders exist, and it ended {end}"


def _against_the_bank(one: KeyEvidence) -> Faults:
    assert one.entry is not None
    bound = one.entry.state is not KeyState.FREE
    if one.holds != (frozenset({one.entry.intent_id}) if bound else frozenset()):
        yield "hold", f"{one.entry.state.value}, with {len(one.holds)} holds open"
    if len(one.holds_resolved) != min(1, len(one.orders)):
        yield "hold", f"{len(one.orders)} orders and {len(one.holds_resolved)} holds in the end"


def _against_what_was_told(one: KeyEvidence) -> Faults:
    state, order_id = (one.entry.state, one.entry.order_id) if one.entry else (None, None)
    for ended, told_id in one.told:
        if ended == "created" and (state is not KeyState.CREATED or told_id != order_id):
            yield "lost", f"told created as {told_id}; the journal says {state}, {order_id}"
        if ended == "created" and told_id not in one.orders:
            yield "lost", f"told created as {told_id}, which does not exist"
    if not one.told:
        yield "unended", "nobody was ever told"
    # Of two deliveries at the same time one may be refused, and say so last, and the other created.
    elif one.orders and one.ends <= {"refused", "not_sent"}:
        yield "lost", "everybody was told that there is none, and an order exists"


def of_the_marks(one: KeyEvidence) -> Faults:
    """Nothing was sent without its mark; for trials in which all that is sent is written down."""
    if one.received > len(one.sends):
        yield "unmarked", f"{one.received} requests, of which {len(one.sends)} are accounted for"
    for attempt, at in one.sends:
        if one.marks.get(attempt, float("inf")) > at + TIME_STEP:
            yield "unmarked", "a request was sent without its mark"


def of_the_telling(one: KeyEvidence) -> Faults:
    """The end that is on record was told, whatever was told before it."""
    if one.entry is None:
        return
    if one.entry.pending_notifications:
        yield "untold", "how its doubt ended was not told"
    if one.entry.state is KeyState.CREATED and ("created", one.entry.order_id) not in set(one.told):
        yield "untold", "the order was not told"
    if one.entry.state is KeyState.IN_DOUBT and "unknown" not in one.ends:
        yield "untold", "the doubt was not told"
    ending = one.entry.ending
    if one.entry.state is KeyState.FREE and ending is not None and ending.outcome.value not in one.ends:
        yield "untold", f"{ending.error} was not told"
