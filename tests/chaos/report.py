"""The short table that a trial ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

from tests.chaos.harness import Harness
from tests.chaos.verdict import violations
from tests.deaths.evidence import KeyEvidence, states
from tests.deaths.report import SHOWN, row
from transfer_async.journal import KeyState

KINDS = ("duplicate", "lost", "shared", "hold", "unended", "unresolved", "untold")


@frozen
class Report:
    """How a trial went."""

    harness: Harness
    evidence: Sequence[KeyEvidence]

    @property
    def violations(self) -> list[tuple[str, str]]:
        """Everything that must not be."""
        return [*violations(self.evidence), *(("trouble", why) for why in self.harness.troubles)]

    def lines(self) -> Iterator[str]:
        """The table."""
        harness, evidence = self.harness, self.evidence
        rate = harness.answered / harness.seconds if harness.seconds else 0
        yield f"chaos, seed {harness.seed}: {harness.seconds:.1f} s, {rate:.0f} commands a second"
        for name, count in harness.met.items():
            yield row(f"{name}s" if " " not in name else name, count)
        count = states(evidence)
        told = [{ended for ended, _ in one.told} for one in evidence]
        yield row("commands", len(evidence))
        yield row("told more than once", sum(len(one.told) > len(set(one.told)) for one in evidence))
        yield row("created", count["created"])
        yield row("free after a no", count["free"])
        yield row("parked", sum("parked" in ends for ends in told))
        yield from self._doubts(told)
        broken = Counter(kind for kind, _ in self.violations)
        for name in KINDS:
            yield row(name, broken[name])
        yield from (f"  {kind}: {why}" for kind, why in self.violations[:SHOWN])
        trials = harness.met.total()
        if not broken and trials:
            yield f"none in {trials} trials: with 95 % confidence fewer than {3 / trials:.2%} of them do harm"

    def _doubts(self, told: list[set[str]]) -> Iterator[str]:
        doubts = [one for one in self.evidence if one.entry and one.entry.state is KeyState.IN_DOUBT]
        ever = sum("unknown" in ends for ends in told)
        existing = sum(bool(one.orders) for one in doubts)
        yield row("told that it is unknown", ever) + f"  {ever / max(1, len(told)):.1%} of the commands"
        yield row("in doubt in the end", len(doubts)) + f"  the order of {existing} exists"
