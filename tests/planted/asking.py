"""One fault, and the tests that are asked about it, one after the other, until one fails."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from pathlib import Path

from attrs import frozen

from tests.planted.by_hand import BY_HAND
from tests.planted.checkout import DIES, HANGS, Checkout
from tests.planted.fault import Fault
from tests.planted.mutated import MUTATED
from tests.planted.places import PROMISE

FAULTS = (*MUTATED, *BY_HAND)
RECORD = Path(__file__).with_name("caught.txt")


@frozen
class Found:
    """What became of one fault.

    Args:
        name: the fault's.
        by: the test that caught it, if any did.
        in_vain: a test that failed, but does so without the fault, too: it proves nothing.
        seconds: how long it took.
    """

    name: str
    by: str | None
    in_vain: str | None
    seconds: float

    @property
    def verdict(self) -> str:
        """The test, or why there is none."""
        return self.by or ("SURVIVED" if self.in_vain is None else f"FAILS ANYWAY {self.in_vain}")


def recorded() -> dict[str, str]:
    """The test that caught each fault when that was last written down."""
    lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    return dict(line.split(" ", 1) for line in lines)


def record(found: dict[str, str]) -> None:
    """Write down which test caught which fault, in the order of `FAULTS`."""
    lines = [f"{fault.name} {found[fault.name]}\n" for fault in FAULTS if fault.name in found]
    RECORD.write_text("".join(lines), encoding="utf-8")


def ask(fault: Fault, checkout: Checkout, *, last: str | None, sound: Container[str] = frozenset()) -> Found:
    """Which test catches ``fault``.

    Args:
        fault: planted for as long as tests are asked.
        checkout: where.
        last: the test that caught it last.
        sound: tests that are known to pass without the fault.
    """
    began = time.monotonic()
    with checkout.with_fault(fault):
        failures = map(checkout.first_failure, _asked(fault, last))
        failed = next(filter(None, failures), None)
    proves = failed in (None, HANGS, DIES) or failed in sound or checkout.passes([failed])
    by, in_vain = (failed, None) if proves else (None, failed)
    return Found(fault.name, by, in_vain, time.monotonic() - began)


def _asked(fault: Fault, last: str | None) -> Iterator[tuple[str, ...]]:
    if last is not None and "::" in last:
        yield (last,)
    yield fault.asked
    yield PROMISE
