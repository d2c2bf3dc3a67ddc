"""Reports: goals, tables and plots."""

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
    """A performance goal and the measured value.

    Args:
        metric: what is measured.
        baseline: the baseline of the comparison.
        target: an operator and a limit, such as ``<= 1.5``.
        measured: the ratio to the baseline; None if it could not be measured.
        note: a remark.
    """

    metric: str
    baseline: str
    target: str
    measured: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if it could not be measured."""
        if self.measured is None:
            return None
        sign, _, limit = self.target.partition(" ")
        return _SIGNS[sign](self.measured, float(limit))

    def row(self) -> tuple[str, ...]:
        """Return the row for the table of goals."""
        measured_text = "-" if self.measured is None else f"{self.measured:.3g}"
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return self.metric, self.baseline, self.target, measured_text, verdict, self.note


@frozen
class Table:
    """A table with a title and a note."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    def text(self) -> str:
        """Return the table in Markdown."""
        text_table = table(self.head, self.rows)
        return "\n\n".join(filter(None, (self.title + ":", text_table, self.note)))


@frozen
class AreaResult:
    """The results of one area of the suite.

    Args:
        area: the name of the area.
        goals: the goals, in the order of the report.
        tables: the figures for human readers.
        figures: the figures by name and unit, for ``python -m benchmarks compare``.
        left_out: what could not be measured, with the reason.
        seconds: the duration of the measurement.
    """

    area: str
    goals: Sequence[Goal] = ()
    tables: Sequence[Table] = ()
    figures: dict[str, float] = Factory(dict)
    left_out: Sequence[str] = ()
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the results in the format of the JSON report."""
        goals = [
            {
                "what": goal.metric,
                "against": goal.baseline,
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
    """Return a table in Markdown. The first column is left-aligned, the others are right-aligned."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    text_table = [
        [cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(cells)]
        for cells in (list(zip(line, widths, strict=True)) for line in (lines[0], marks, *lines[1:]))
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in text_table)


def goals_table(goals: Sequence[Goal]) -> str:
    """Return the table of goals."""
    return table(("what", "against", "goal", "measured", "", "note"), [goal.row() for goal in goals])


# --- plots ----------------------------------------------------------------------------------------

Points = Sequence[tuple[float, float]]

_NINES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_MARKERS = "osD^vPX*"


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401 - optional
    except ImportError:
        return False
    return True


def plot_percentiles(path: Path, at: Mapping[str, Callable[[float], float]], *, title: str) -> Path:
    """Plot latency against percentile, on an axis that spreads out the highest percentiles.

    Args:
        path: the PNG file to write.
        at: for each line, a function that returns the latency of a percentile in seconds.
        title: the title of the plot.
    """
    nines = [n / 20 for n in range(81)]  # the number of nines of a percentile: 2 is 99 %

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
    """Plot figures against the load.

    Args:
        path: the PNG file to write.
        lines: for each line, the points (load, figure).
        title: the title of the plot.
        x: the label of the load axis.
        y: the label of the figure axis.
        guide: the label of an additional line y = x; None for no such line.
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
    """Plot figures over time, with shaded phases.

    Args:
        path: the PNG file to write.
        lines: for each line, the points (minute, figure).
        title: the title of the plot.
        y: the label of the figure axis.
        spans: the phases: first and last minute, by name.
        goal: the label and the value of a horizontal line.
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
    from matplotlib.figure import Figure  # optional, and slow to import

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=True, alpha=0.3)
    draw(axes)
    figure.savefig(path, dpi=110)
    return path


def _plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # optional

    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _nines_of(percent: float) -> float:
    return -math.log10(1 - percent / 100)
