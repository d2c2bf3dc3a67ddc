"""The result of a benchmark: figures, goals, tables and plots."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

_SIGNS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@frozen
class Goal:
    """A goal and the measured value; None if it could not be measured.

    Args:
        what: what is measured.
        against: what it is compared with.
        target: a sign and a limit.
        measured: a ratio within one run.
        note: a remark.
    """

    what: str
    against: str
    target: str
    measured: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met."""
        if self.measured is None:
            return None
        sign, _, limit = self.target.partition(" ")
        return _SIGNS[sign](self.measured, float(limit))

    def row(self) -> tuple[str, ...]:
        """Return its row in the table of goals."""
        measured_text = "-" if self.measured is None else f"{self.measured:.3g}"
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return self.what, self.against, self.target, measured_text, verdict, self.note


@frozen
class Table:
    """One table of a report."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    def text(self) -> str:
        """The table in Markdown."""
        text_table = table(self.head, self.rows)
        return "\n\n".join(filter(None, (self.title + ":", text_table, self.note)))


@frozen
class AreaResult:
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
                "what": goal.what,
                "against": goal.against,
                "goal": goal.target,
                "measured": goal.measured,
                "met": goal.met,
            }
            for goal in self.goals
        ]
        return {
            "area": self.area,
            "goals": goals,
            "figures": self.figures,
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 1),
        }


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown, the first column aligned left and all others right."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    text_table = [
        [cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(cells)]
        for cells in (list(zip(line, widths, strict=True)) for line in (lines[0], marks, *lines[1:]))
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in text_table)


def goals_table(goals: Sequence[Goal]) -> str:
    """The table of goals."""
    return table(("what", "against", "goal", "measured", "", "note"), [goal.row() for goal in goals])


# --- plots ----------------------------------------------------------------------------------------

Points = Sequence[tuple[float, float]]

_NINES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_MARKERS = "osD^vPX*"


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401 - an extra's; only asked for
    except ImportError:
        return False
    return True


def plot_percentiles(path: Path, at: Mapping[str, Callable[[float], float]], *, title: str) -> Path:
    """Draw latencies by percentile, a line for each name, the highest percentiles spread out.

    Args:
        path: of the PNG file.
        at: says the seconds of a percentile.
        title: stands above.
    """
    nines = [n / 20 for n in range(81)]  # how many nines a percentile has: 0 is 0 %, 2 is 99 %

    def draw(axes: Any) -> None:
        for name, seconds in at.items():
            axes.plot(nines, [seconds(100 - 100 / 10**nine) * 1e3 for nine in nines], label=name)
        axes.set_xticks([_nines_of(percent) for percent in _NINES], [f"{percent:g} %" for percent in _NINES])
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
        axes.set(xlabel="percentile of orders", ylabel="latency (ms)", title=title)
        axes.legend(title="load")

    return _save(path, draw)


def plot_against_load(
    path: Path, lines: Mapping[str, Points], *, title: str, x: str, y: str, guide: str | None = None
) -> Path:
    """Draw figures against the load.

    Args:
        path: of the PNG file.
        lines: points of load and figure, by name.
        title: stands above.
        x: names the load, with its unit.
        y: names the figure, with its unit.
        guide: names a line on which the figure is the load itself; none without.
    """

    def draw(axes: Any) -> None:
        for mark, (name, points) in zip(_MARKERS * 9, lines.items(), strict=False):
            axes.plot(*zip(*points, strict=True), marker=mark, label=name)
        loads = sorted({load for points in lines.values() for load, _ in points})
        if guide is not None:
            axes.plot(loads, loads, linestyle="--", color="grey", label=guide)
        if loads[-1] / loads[0] > 20:
            axes.set_xscale("log")
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        axes.minorticks_off()
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.set(xlabel=x, ylabel=y, title=title)
        axes.legend()

    return _save(path, draw)


def plot_over_time(
    path: Path,
    lines: Mapping[str, Points],
    *,
    title: str,
    y: str,
    spans: Mapping[str, tuple[float, float]],
    goal: tuple[str, float] | None = None,
) -> Path:
    """Draw figures over time, with what happened meanwhile behind them.

    Args:
        path: of the PNG file.
        lines: points of minute and figure, by name.
        title: stands above.
        y: names the figure, with its unit.
        spans: from which minute to which, by name.
        goal: a name and a figure.
    """

    def draw(axes: Any) -> None:
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), label=name, linestyle="--" if "no budget" in name else "-")
        for shade, (name, (start, end)) in zip((0.10, 0.22, 0.05), spans.items(), strict=False):
            axes.axvspan(start, end, color="tab:red", alpha=shade, label=name, linewidth=0)
        if goal is not None:
            axes.axhline(goal[1], color="black", linestyle=":", label=goal[0])
        axes.set_ylim(bottom=0)
        axes.set(xlabel="time (minutes)", ylabel=y, title=title)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)

    return _save(path, draw, size=(10.5, 4.8))


def _save(path: Path, draw: Callable[[Any], None], *, size: tuple[float, float] = (8.0, 4.8)) -> Path:
    from matplotlib.figure import Figure  # an extra's, and heavy

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=True, alpha=0.3)
    draw(axes)
    figure.savefig(path, dpi=110)
    return path


def _plain_numbers(axis: Any) -> None:
    """Say 5 and 200 where a logarithmic axis would say powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # as above

    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _nines_of(percent: float) -> float:
    return -math.log10(1 - percent / 100)
