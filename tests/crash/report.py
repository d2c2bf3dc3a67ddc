"""The short table that a trial ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

from tests.crash.evidence import Evidence

SHOWN = 10
"""How many violations are shown at length."""

KINDS = (
    "duplicate",
    "lost",
    "shared",
    "unasked",
    "hold",
    "unmarked",
    "unended",
    "unresolved",
    "untold",
    "beyond",
    "trouble",
)


@frozen(kw_only=True)
class Report:
    """How a trial went.

    Args:
        title: which trial it was.
        trials: how many faults were made.
        rows: what the trial counted itself.
        evidence: what was gathered in the end.
        violations: everything that must not be.
    """

    title: str
    trials: int
    rows: Sequence[tuple[str, int]]
    evidence: Evidence
    violations: Sequence[tuple[str, str]]

    def lines(self) -> Iterator[str]:
        """The table."""
        yield self.title
        for name, count in self.rows:
            yield _row(name, count)
        yield from self._keys()
        broken = Counter(kind for kind, _ in self.violations)
        for name in KINDS:
            yield _row(name, broken[name])
        yield from (f"  {kind}: {why}" for kind, why in self.violations[:SHOWN])
        if not broken and self.trials:
            share = f"{3 / self.trials:.2%}"
            yield f"none in {self.trials} trials: with 95 % confidence fewer than {share} of them do harm"

    def _keys(self) -> Iterator[str]:
        keys, states, doubts = self.evidence.keys, self.evidence.states, self.evidence.doubts
        told = sum("unknown" in one.ends for one in keys)
        yield _row("keys", len(keys))
        yield _row("requests received", sum(one.received for one in keys))
        yield _row("told more than once", sum(len(one.told) > len(set(one.told)) for one in keys))
        yield _row("created", states["created"])
        yield _row("free after a no", states["free"])
        yield _row("told that it is unknown", told) + f"  {told / max(1, len(keys)):.1%} of the keys"
        existing = sum(bool(one.orders) for one in doubts)
        share = f"{len(doubts) / max(1, len(keys)):.1%}"
        yield _row("in doubt", len(doubts)) + f"  {share} of the keys; the order of {existing} exists"


def _row(name: str, count: int) -> str:
    return f"{name:<32}{count:>7}"
