"""The plots of the reports, drawn by matplotlib without a screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Points = Sequence[tuple[float, float]]

_NINES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_MARKS = "osD^vPX*"


def are_possible() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401 - an extra's; only asked for
    except ImportError:
        return False
    return True


def percentiles(path: Path, at: Mapping[str, Callable[[float], float]], *, title: str) -> Path:
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


def against_load(
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
        for mark, (name, points) in zip(_MARKS * 9, lines.items(), strict=False):
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


def over_time(
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
