"""The report of a load: text for the terminal, and a directory with a page, plots and figures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, frozen

from benchmarks.measuring.reports import can_plot, plot_against_load, plot_percentiles, table
from benchmarks.programs.load_driver import OUTCOME_NAMES, PERCENTILES, StepLimits, StepStats
from benchmarks.programs.load_target import Comparison
from transfer_async import NewOrder


@frozen(kw_only=True)
class LoadPlan:
    """What is asked for.

    Args:
        loop: ``open``, of so many a second, or ``closed``, of so many at once.
        loads: one step each.
        schedule: of the open loop's arrivals.
        limits: of each step.
        seed: of the arrivals and of the faults.
        journal: its address.
        connections: how many the client may hold.
        faults: of our own sandbox.
        url: the service, or None for our own sandbox.
        order: makes the order of a number.
    """

    loop: Literal["open", "closed"]
    loads: tuple[float, ...]
    schedule: str
    limits: StepLimits
    seed: int
    journal: str
    connections: int
    faults: tuple[str, ...]
    url: str | None
    order: Callable[[int], NewOrder]

    def title(self, load: float) -> str:
        """Say what a step is."""
        return f"{load:g} a second" if self.loop == "open" else f"{load:g} at once"


@frozen
class LoadResult:
    """What a run found.

    Args:
        steps: the tally of each step, by its load.
        comparison: with our own sandbox; None of another service.
        was_stopped: somebody did not wait for the end.
    """

    steps: dict[float, StepStats]
    comparison: Comparison | None
    was_stopped: bool


# --- the report -----------------------------------------------------------------------------------

MAX_START_DELAY = 0.01
"""Seconds by which 1 % of the orders may start late before the page says that the driver was too slow."""


@frozen
class LoadReport:
    """Tells what a plan found."""

    plan: LoadPlan
    result: LoadResult

    def text(self) -> str:
        """Say it in Markdown."""
        parts = [
            self._about(),
            self._latency_table(),
            self._outcome_table(),
            *self._remarks(),
            self._comparison(),
        ]
        return "\n\n".join(part for part in parts if part)

    def figures(self) -> dict[str, Any]:
        """Say it in numbers; the histograms are in the form that other HDR libraries read."""
        comparison = self.result.comparison
        return {
            "about": self._conditions(),
            "loop": self.plan.loop,
            "steps": [{"load": load, **_figures(stats)} for load, stats in self.result.steps.items()],
            "comparison": None if comparison is None else {**asdict(comparison), "agrees": comparison.agrees},
            "was_stopped": self.result.was_stopped,
        }

    def write(self, directory: Path) -> list[Path]:
        """Write the page, the figures and, if matplotlib is installed, the plots.

        Returns:
            What was written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        drawn = list(self._draw(directory)) if can_plot() else []
        pictures = "\n\n".join(f"![{path.stem}]({path.name})" for path in drawn)
        pictures = pictures or "No plots: matplotlib is not installed."
        page, figures = directory / "load.md", directory / "load.json"
        page.write_text(f"# A load on the service\n\n{self.text()}\n\n{pictures}\n", encoding="utf-8")
        figures.write_text(json.dumps(self.figures(), indent=1) + "\n", encoding="utf-8")
        return [page, figures, *drawn]

    # --- the page ---------------------------------------------------------------------------------

    def _conditions(self) -> dict[str, Any]:
        plan = self.plan
        where = "our own sandbox, in a process of its own" if plan.url is None else "a service of yours"
        return {
            "service": where,
            "journal": _journal_type(plan.journal),
            "faults": list(plan.faults),
            "arrivals": plan.schedule if plan.loop == "open" else "when a place is free",
            "seed": plan.seed,
            "seconds_a_step": plan.limits.seconds,
            "connections": plan.connections,
            "python": platform.python_version(),
            "aiohttp": version("aiohttp"),
            "processors": os.cpu_count(),
        }

    def _about(self) -> str:
        conditions = {**self._conditions(), "faults": ", ".join(self.plan.faults) or "none"}
        details = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in conditions.items())
        loop = {
            "open": "Open loop: an order starts at its planned time, and latency counts from then.",
            "closed": "Closed loop: a fixed number of concurrent orders; the next starts when one ends.",
        }
        return f"{loop[self.plan.loop]}\n\n{details}."

    def _latency_table(self) -> str:
        head = ["load", "orders", "created/s", *map(_percentile_name, PERCENTILES), "CPU/order"]
        rows = [
            [
                self.plan.title(load),
                stats.completed,
                f"{stats.rate:.1f}",
                *(f"{stats.latency.percentile(percent) * 1e3:.1f} ms" for percent in PERCENTILES),
                f"{stats.cpu_per_order * 1e6:.0f} µs",
            ]
            for load, stats in self.result.steps.items()
        ]
        return table(head, rows)

    def _outcome_table(self) -> str:
        kinds = [*OUTCOME_NAMES.values(), *(["broken"] if self._total("broken") else []), "cut off"]
        rows = [
            [
                self.plan.title(load),
                *(stats.kinds[kind] for kind in kinds[:-1]),
                stats.started - stats.completed,
                ", ".join(f"{count} {error}" for error, count in stats.errors.most_common()) or "-",
            ]
            for load, stats in self.result.steps.items()
        ]
        return table(["load", *kinds, "errors"], rows)

    def _total(self, kind: str) -> int:
        return sum(stats.kinds[kind] for stats in self.result.steps.values())

    def _remarks(self) -> Iterator[str]:
        if self.result.was_stopped:
            yield "Stopped by Ctrl-C before its end."
        for load, stats in self.result.steps.items():
            start_delay = stats.start_delay.percentile(99)
            if self.plan.loop == "open" and start_delay > MAX_START_DELAY:
                yield (
                    f"At {self.plan.title(load)}, 1 % of the orders started "
                    f"at least {start_delay * 1e3:.0f} ms late: "
                    "the load driver was too slow, so the figures show its limit, not the service's."
                )

    def _comparison(self) -> str:
        comparison = self.result.comparison
        if comparison is None:
            return "The service's own record was not asked: compare it yourself."
        verdict = (
            "The client and the sandbox agree" if comparison.agrees else "THE CLIENT AND THE SANDBOX DISAGREE"
        )
        return (
            f"{verdict} (including the warm-up): duplicates {comparison.duplicates}; reported as created but "
            f"missing {comparison.missing}; reported as refused or not sent but found "
            f"{comparison.unexpected}; never requested {comparison.unrequested}. "
            f"{comparison.existing} orders exist. "
            f"{comparison.doubts} outcomes are unknown; {comparison.doubts_existing} of these orders exist."
        )

    # --- the plots --------------------------------------------------------------------------------

    def _draw(self, directory: Path) -> Iterator[Path]:
        steps = {load: stats for load, stats in sorted(self.result.steps.items()) if stats.completed}
        if not steps:
            return
        is_open = self.plan.loop == "open"
        x = "load (orders wanted a second)" if is_open else "load (orders at once)"
        yield plot_percentiles(
            directory / "latency.png",
            {self.plan.title(load): stats.latency.percentile for load, stats in steps.items()},
            title="How long an order takes",
        )
        yield plot_against_load(
            directory / "throughput.png",
            {"created": [(load, stats.rate) for load, stats in steps.items()]},
            title="How many orders go through",
            x=x,
            y="orders created a second",
            guide="wanted" if is_open else None,
        )
        yield plot_against_load(
            directory / "cost.png",
            {"client": [(load, stats.cpu_per_order * 1e6) for load, stats in steps.items()]},
            title="What an order costs the client's process",
            x=x,
            y="processor time an order (µs)",
        )


def _journal_type(journal: str) -> str:
    """Name a journal, without its address: that may hold a password."""
    if journal == "memory":
        return journal
    return "PostgreSQL" if "://" in journal else "SQLite"


def _percentile_name(percent: float) -> str:
    return {50.0: "median", 100.0: "slowest"}.get(percent, f"{percent:g} %")


def _figures(stats: StepStats) -> dict[str, Any]:
    return {
        "begun": stats.started,
        "seconds": stats.seconds,
        "created_a_second": stats.rate,
        "kinds": dict(stats.kinds),
        "errors": dict(stats.errors),
        "latency_ms": {f"{percent:g}": stats.latency.percentile(percent) * 1e3 for percent in PERCENTILES},
        "late_ms": {f"{percent:g}": stats.start_delay.percentile(percent) * 1e3 for percent in PERCENTILES},
        "cpu_us": stats.cpu_per_order * 1e6,
        "latency_histogram": stats.latency.encoded(),
    }
