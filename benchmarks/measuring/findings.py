"""The result of a benchmark: figures, goals, tables, and the contenders that are not available."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from attrs import Factory, frozen

from benchmarks.measuring.samples import table

_SIGNS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@frozen
class Effort:
    """The extent of the measurements.

    Args:
        name: the name of this extent.
        rounds: the number of rounds.
        few: the number of rounds if one takes long.
        starts: how often contenders with similar costs are restarted.
        turn: the seconds of each contender in a round.
        crowd: the number of orders in flight when memory is measured.
        levels: the numbers of concurrent orders when the load grows.
        done: the numbers of orders after which a long-running process is measured.
        bound: the number of keys that its journal keeps.
        orders: the number of orders for each journal in a round.
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
    """A goal and the measured value; None if it could not be measured.

    Args:
        what: what is measured.
        against: what it is compared with.
        wanted: a sign and a limit.
        measured: a ratio within one run.
        note: a remark.
    """

    what: str
    against: str
    wanted: str
    measured: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met."""
        if self.measured is None:
            return None
        sign, _, limit = self.wanted.partition(" ")
        return _SIGNS[sign](self.measured, float(limit))

    def row(self) -> tuple[str, ...]:
        """Return its row in the table of goals."""
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
    """The result of one area.

    Args:
        area: its name.
        goals: the goals, in the order of the report.
        tables: the figures for readers.
        figures: the same by name, each in its unit, for ``python -m benchmarks compare``.
        left_out: what could not be measured, and why.
        seconds: the duration.
    """

    area: str
    goals: Sequence[Goal] = ()
    tables: Sequence[Table] = ()
    figures: dict[str, float] = Factory(dict)
    left_out: Sequence[str] = ()
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the result for the JSON file."""
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
