"""What must be true of every command in the end: all that is true of its key, and that its sender heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.deaths import verdict
from tests.deaths.evidence import KeyEvidence
from transfer_async.journal import KeyState


def violations(evidence: Sequence[KeyEvidence]) -> list[tuple[str, str]]:
    """The kind of every promise that was broken, and for which command and how."""
    readable = [one for one in evidence if not one.key.startswith("bad")]
    found = verdict.violations(readable, marks=False)
    for one in evidence:
        check = _of_garbage if one.key.startswith("bad") else _of_the_telling
        found += [(kind, f"{one.key}: {why} ({one.story})") for kind, why in check(one)]
    return found


def _of_garbage(one: KeyEvidence) -> Iterator[tuple[str, str]]:
    if {ended for ended, _ in one.told} != {"parked"}:
        yield "unended", "it cannot be read, and was not parked"
    if one.entry is not None or one.orders:
        yield "duplicate", "it cannot be read, and something was made of it"


def _of_the_telling(one: KeyEvidence) -> Iterator[tuple[str, str]]:
    """The end that is on record was told, whatever was told before it."""
    if one.entry is None:
        return
    if one.entry.untold:
        yield "untold", "how its doubt ended was not told"
    told = {ended for ended, _ in one.told}
    if "parked" in told:
        yield "unended", "it can be read, and was parked"
    if one.entry.state is KeyState.CREATED and ("created", one.entry.order_id) not in set(one.told):
        yield "untold", "the order was not told"
    if one.entry.state is KeyState.IN_DOUBT and "unknown" not in told:
        yield "untold", "the doubt was not told"
    ending = one.entry.ending
    if one.entry.state is KeyState.FREE and ending is not None and ending.outcome.value not in told:
        yield "untold", f"{ending.error} was not told"
