"""The counts of a load: outcome, latency and cost of each order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import define, field, frozen
from hdrh.histogram import HdrHistogram

from transfer_async._models.errors import Outcome, TransferError

KINDS: Mapping[Outcome, str] = {
    Outcome.CREATED: "created",
    Outcome.REFUSED: "refused",
    Outcome.NOT_SENT: "not sent",
    Outcome.UNKNOWN: "unknown",
}
"""What an order can end in."""

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)

_UNITS = 1_000_000  # a histogram counts microseconds
_LONGEST = 3_600 * _UNITS


class Histogram:
    """Seconds, kept to three digits whether they are few or many, in constant memory (HDR)."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _LONGEST, 3)

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts.record_value(min(max(round(seconds * _UNITS), 1), _LONGEST))

    def at(self, percent: float) -> float:
        """The seconds that so many percent did not exceed; 0 of none."""
        return float(self._counts.get_value_at_percentile(percent)) / _UNITS if self.count else 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._counts.total_count)

    def packed(self) -> str:
        """All of it, in the form that every HDR histogram library reads: base64, in microseconds."""
        packed: bytes = self._counts.encode()
        return packed.decode()


@frozen
class OrderEnding:
    """How one order ended.

    Args:
        kind: one of `KINDS`; "broken" where something raised that is none of the client's errors.
        error: the name of the error's class, and the status if there was one; None of a created one.
    """

    kind: str
    error: str | None = None


CREATED = OrderEnding("created")


def ending_of(error: Exception) -> OrderEnding:
    """Say how an order ended whose call raised ``error``."""
    if not isinstance(error, TransferError):
        return OrderEnding("broken", type(error).__name__)
    status = getattr(error, "status", None)
    name = type(error).__name__
    return OrderEnding(KINDS[error.outcome], name if status is None else f"{name} {status}")


@define
class LoadTally:
    """The counts of one step, while it runs and at its end.

    Args:
        latency: of each order, from the moment at which it was *meant* to start.
        late: of each order, how long after that moment it did start: the driver's own fault.
        kinds: how many orders ended in what.
        errors: how many in which error.
        begun: how many orders were begun.
        seconds: from the first moment to the last end.
        cpu: seconds of processor time that this process used meanwhile.
    """

    latency: Histogram = field(factory=Histogram)
    late: Histogram = field(factory=Histogram)
    kinds: Counter[str] = field(factory=Counter)
    errors: Counter[str] = field(factory=Counter)
    begun: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, ending: OrderEnding, *, latency: float) -> None:
        """Count one order that ended."""
        self.kinds[ending.kind] += 1
        self.latency.add(latency)
        if ending.error is not None:
            self.errors[ending.error] += 1

    @property
    def done(self) -> int:
        """How many orders ended."""
        return self.kinds.total()

    @property
    def rate(self) -> float:
        """Orders created a second."""
        return self.kinds["created"] / self.seconds if self.seconds else 0.0

    @property
    def cpu_each(self) -> float:
        """Seconds of processor time for each order that ended."""
        return self.cpu / self.done if self.done else 0.0
