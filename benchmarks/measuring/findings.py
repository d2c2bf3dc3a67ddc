"""What a benchmark has to say: figures, goals that were met or not, tables, and who was left out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from attrs import Factory, frozen

from benchmarks.measuring.samples import table

_SIGNS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@frozen
class Effort:
    """How much is done to be sure.

    Args:
        name: of it.
        rounds: how often each contender has its turn.
        few: the same, where a turn takes long.
        starts: how often those whose costs are near to each other are started anew.
        turn: seconds of a turn.
        crowd: how many orders are in flight where memory is measured.
        levels: how many orders at once, where the load grows.
        done: after how many orders a long-running process is looked at.
        bound: how many keys its journal keeps.
        orders: how many orders pass through each journal in a turn.
    """

    name: str
    rounds: int
    few: int
    starts: int
    turn: float
    crowd: int
    levels: tuple[int, ...]
    done: tuple[int, ...]
    bound: int
    orders: int


QUICK = Effort(
    name="quick",
    rounds=3,
    few=2,
    starts=1,
    turn=0.25,
    crowd=2_000,
    levels=(1, 8, 64, 512),
    done=(1_000, 3_000, 10_000, 20_000),
    bound=1_000,
    orders=600,
)
FULL = Effort(
    name="full",
    rounds=9,
    few=5,
    starts=6,
    turn=0.8,
    crowd=10_000,
    levels=(1, 8, 64, 512, 4_096),
    done=(1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    bound=10_000,
    orders=2_000,
)


@frozen
class Goal:
    """What was to be reached, and what was measured; None where it could not be.

    Args:
        what: was measured.
        against: what it was measured.
        wanted: a sign and a limit.
        measured: a ratio within one run.
        note: what else there is to know.
    """

    what: str
    against: str
    wanted: str
    measured: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether it was reached."""
        if self.measured is None:
            return None
        sign, _, limit = self.wanted.partition(" ")
        return _SIGNS[sign](self.measured, float(limit))

    def row(self) -> tuple[str, ...]:
        """Its line in the table of goals."""
        seen = "-" if self.measured is None else f"{self.measured:.3g}"
        word = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return self.what, self.against, self.wanted, seen, word, self.note


@frozen
class Table:
    """One table of a report."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    def text(self) -> str:
        """The table in Markdown."""
        laid = table(self.head, self.rows)
        return "\n\n".join(filter(None, (self.title + ":", laid, self.note)))


@frozen
class Findings:
    """All that one area has to say.

    Args:
        area: its name.
        goals: in the order in which they are told.
        tables: the figures as they are read.
        figures: the same by name, each in its unit, for ``python -m benchmarks compare``.
        left_out: who or what could not be measured, and why.
        seconds: how long it took.
    """

    area: str
    goals: Sequence[Goal] = ()
    tables: Sequence[Table] = ()
    figures: dict[str, float] = Factory(dict)
    left_out: Sequence[str] = ()
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """What is written of it as JSON."""
        goals = [
            {
                "what": one.what,
                "against": one.against,
                "goal": one.wanted,
                "measured": one.measured,
                "met": one.met,
            }
            for one in self.goals
        ]
        return {
            "area": self.area,
            "goals": goals,
            "figures": self.figures,
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 1),
        }


def goals_table(goals: Sequence[Goal]) -> str:
    """The table of goals."""
    return table(("what", "against", "goal", "measured", "", "note"), [goal.row() for goal in goals])
