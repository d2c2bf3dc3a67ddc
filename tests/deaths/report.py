"""The short table that a trial ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

from tests.deaths.evidence import KeyEvidence, states
from tests.deaths.fates import Fates
from tests.deaths.harness import Harness
from tests.deaths.verdict import violations
from transfer_async.journal import KeyState

SHOWN = 10
"""How many violations are shown at length."""

KINDS = ("duplicate", "lost", "shared", "hold", "unmarked", "unended", "unresolved")


@frozen
class Report:
    """How a trial went."""

    harness: Harness
    evidence: Sequence[KeyEvidence]
    seconds: float

    @property
    def violations(self) -> list[tuple[str, str]]:
        """Everything that must not be."""
        return [*violations(self.evidence), *(("trouble", why) for why in self.harness.troubles)]

    def lines(self) -> Iterator[str]:
        """The table."""
        trial, harness = self.harness.trial, self.harness
        kind = "postgres" if trial.is_postgres else "sqlite"
        yield f"{kind}, seed {trial.seed}: {self.seconds:.1f} s" + (
            f", {trial.mutant}" if trial.mutant else ""
        )
        yield from _fates("kills", harness.kills)
        yield from _fates("pauses", harness.pauses)
        yield row("  not waited for", harness.outwaited)
        yield row("stops of the database", harness.stops)
        yield row("visitors that died", harness.visitors)
        yield row("calls that lost the journal", harness.journal_failed)
        yield from self._keys()
        broken = Counter(kind for kind, _ in self.violations)
        for name in KINDS:
            yield row(name, broken[name])
        yield from (f"  {kind}: {why}" for kind, why in self.violations[:SHOWN])
        trials = harness.kills.met.total() + harness.pauses.met.total() + harness.stops
        if not broken and trials:
            yield f"none in {trials} trials: with 95 % confidence fewer than {3 / trials:.2%} of them do harm"

    def _keys(self) -> Iterator[str]:
        count = states(self.evidence)
        doubts = [one for one in self.evidence if one.entry and one.entry.state is KeyState.IN_DOUBT]
        yield row("keys", len(self.evidence))
        yield row("requests received", sum(one.received for one in self.evidence))
        yield row("created", count["created"])
        yield row("free after a no", count["free"])
        share = len(doubts) / max(1, len(self.evidence))
        existing = sum(bool(one.orders) for one in doubts)
        yield row("in doubt", len(doubts)) + f"  {share:.1%} of the keys; the order of {existing} exists"


def _fates(name: str, fates: Fates) -> Iterator[str]:
    yield row(name, fates.met.total())
    for point, count in sorted(fates.met.items(), key=lambda found: -found[1]):
        yield row(f"  {point}", count)


def row(name: str, count: int) -> str:
    """One row of the table."""
    return f"{name:<32}{count:>7}"
