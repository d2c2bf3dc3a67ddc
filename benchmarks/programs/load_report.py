"""The plan, the result and the report of a load test."""

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
    """The parameters of a load test.

    Args:
        loop: ``open`` (fixed arrival rate) or ``closed`` (fixed concurrency).
        loads: the rates or concurrencies, one for each step.
        schedule: the distribution of arrival times in an open loop.
        limits: the limits of each step.
        seed: seeds the arrival times and the faults.
        journal: the address of the journal.
        connections: the maximum number of connections.
        faults: the faults of the sandbox.
        url: the base URL of the service; None to start a sandbox.
        order: returns the order for a number.
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
        """Return the title of a step."""
        return f"{load:g}/s" if self.loop == "open" else f"concurrency {load:g}"


@frozen
class LoadResult:
    """The result of a load test.

    Args:
        steps: the statistics of each step, by its load.
        comparison: the comparison with the sandbox's orders; None for another service.
        was_stopped: whether Ctrl-C ended the run early.
    """

    steps: dict[float, StepStats]
    comparison: Comparison | None
    was_stopped: bool


# --- the report -----------------------------------------------------------------------------------

MAX_START_DELAY = 0.01
"""If 1 % of the orders start this many seconds late, the report warns that the driver was too slow."""


@frozen
class LoadReport:
    """The report of a load test."""

    plan: LoadPlan
    result: LoadResult

    def text(self) -> str:
        """Return the report in Markdown."""
        parts = [
            self._about(),
            self._latency_table(),
            self._outcome_table(),
            *self._remarks(),
            self._comparison(),
        ]
        return "\n\n".join(part for part in parts if part)

    def figures(self) -> dict[str, Any]:
        """Return the report for JSON. The histograms can be read by any HDR library."""
        comparison = self.result.comparison
        return {
            "about": self._conditions(),
            "loop": self.plan.loop,
            "steps": [{"load": load, **_figures(stats)} for load, stats in self.result.steps.items()],
            "comparison": None if comparison is None else {**asdict(comparison), "agrees": comparison.agrees},
            "was_stopped": self.result.was_stopped,
        }

    def write(self, directory: Path) -> list[Path]:
        """Write a page, the figures and, if matplotlib is installed, the plots.

        Returns:
            The paths of the written files.
        """
        directory.mkdir(parents=True, exist_ok=True)
        drawn = list(self._draw(directory)) if can_plot() else []
        pictures = "\n\n".join(f"![{path.stem}]({path.name})" for path in drawn)
        pictures = pictures or "No plots: matplotlib is not installed."
        page, figures = directory / "load.md", directory / "load.json"
        page.write_text(f"# Load test\n\n{self.text()}\n\n{pictures}\n", encoding="utf-8")
        figures.write_text(json.dumps(self.figures(), indent=1) + "\n", encoding="utf-8")
        return [page, figures, *drawn]

    # --- the page ---------------------------------------------------------------------------------

    def _conditions(self) -> dict[str, Any]:
        plan = self.plan
        where = "sandbox in its own process" if plan.url is None else "external service"
        return {
            "service": where,
            "journal": _journal_type(plan.journal),
            "faults": list(plan.faults),
            "arrivals": plan.schedule if plan.loop == "open" else "when an order completes",
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
            "open": "Open loop: each order starts at its scheduled time, and latency counts from then.",
            "closed": "Closed loop: a fixed number of orders in flight; the next starts when one completes.",
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
        kinds = [*OUTCOME_NAMES.values(), *(["broken"] if self._total("broken") else []), "cancelled"]
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
            yield "Stopped early by Ctrl-C."
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
            return "The outcomes were not compared with the service's orders: compare them yourself."
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
        x = "arrival rate (orders per second)" if is_open else "concurrency"
        yield plot_percentiles(
            directory / "latency.png",
            {self.plan.title(load): stats.latency.percentile for load, stats in steps.items()},
            title="Latency",
        )
        yield plot_against_load(
            directory / "throughput.png",
            {"created": [(load, stats.rate) for load, stats in steps.items()]},
            title="Throughput",
            x=x,
            y="created orders per second",
            guide="arrival rate" if is_open else None,
        )
        yield plot_against_load(
            directory / "cost.png",
            {"client": [(load, stats.cpu_per_order * 1e6) for load, stats in steps.items()]},
            title="CPU time of the client",
            x=x,
            y="CPU time per order (µs)",
        )


def _journal_type(journal: str) -> str:
    """Return the type of the journal, because its address may contain a password."""
    if journal == "memory":
        return journal
    return "PostgreSQL" if "://" in journal else "SQLite"


def _percentile_name(percent: float) -> str:
    return {50.0: "median", 100.0: "max"}.get(percent, f"{percent:g} %")


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
