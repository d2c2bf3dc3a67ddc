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
from benchmarks.programs.load_driver import KINDS, PERCENTILES, LoadTally, StepLimits
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
class LoadFindings:
    """What a run found.

    Args:
        steps: the tally of each step, by its load.
        comparison: with our own sandbox; None of another service.
        was_stopped: somebody did not wait for the end.
    """

    steps: dict[float, LoadTally]
    comparison: Comparison | None
    was_stopped: bool


# --- the report -----------------------------------------------------------------------------------

LATE = 0.01
"""Seconds by which 1 % of the orders may start late before the page says that the driver was too slow."""


@frozen
class LoadReport:
    """Tells what a plan found."""

    plan: LoadPlan
    found: LoadFindings

    def text(self) -> str:
        """Say it in Markdown."""
        parts = [self._about(), self._speeds(), self._endings(), *self._remarks(), self._comparison()]
        return "\n\n".join(part for part in parts if part)

    def figures(self) -> dict[str, Any]:
        """Say it in numbers; the histograms are in the form that other HDR libraries read."""
        comparison = self.found.comparison
        return {
            "about": self._setting(),
            "loop": self.plan.loop,
            "steps": [{"load": load, **_figures(tally)} for load, tally in self.found.steps.items()],
            "comparison": None if comparison is None else {**asdict(comparison), "agrees": comparison.agrees},
            "was_stopped": self.found.was_stopped,
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

    # --- the page -------------------------------------------------------------------------------

    def _setting(self) -> dict[str, Any]:
        plan = self.plan
        where = "our own sandbox, in a process of its own" if plan.url is None else "a service of yours"
        return {
            "service": where,
            "journal": _kind_of(plan.journal),
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
        said = {**self._setting(), "faults": ", ".join(self.plan.faults) or "none"}
        told = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in said.items())
        loop = {
            "open": "Open loop: an order starts at its planned time, and latency counts from then.",
            "closed": "Closed loop: a fixed number of concurrent orders; the next starts when one ends.",
        }
        return f"{loop[self.plan.loop]}\n\n{told}."

    def _speeds(self) -> str:
        head = ["load", "orders", "created/s", *map(_name_of, PERCENTILES), "CPU/order"]
        rows = [
            [
                self.plan.title(load),
                tally.done,
                f"{tally.rate:.1f}",
                *(f"{tally.latency.at(percent) * 1e3:.1f} ms" for percent in PERCENTILES),
                f"{tally.cpu_each * 1e6:.0f} µs",
            ]
            for load, tally in self.found.steps.items()
        ]
        return table(head, rows)

    def _endings(self) -> str:
        kinds = [*KINDS.values(), *(["broken"] if self._total("broken") else []), "cut off"]
        rows = [
            [
                self.plan.title(load),
                *(tally.kinds[kind] for kind in kinds[:-1]),
                tally.begun - tally.done,
                ", ".join(f"{count} {error}" for error, count in tally.errors.most_common()) or "-",
            ]
            for load, tally in self.found.steps.items()
        ]
        return table(["load", *kinds, "errors"], rows)

    def _total(self, kind: str) -> int:
        return sum(tally.kinds[kind] for tally in self.found.steps.values())

    def _remarks(self) -> Iterator[str]:
        if self.found.was_stopped:
            yield "Stopped by Ctrl-C before its end."
        for load, tally in self.found.steps.items():
            late = tally.late.at(99)
            if self.plan.loop == "open" and late > LATE:
                yield (
                    f"At {self.plan.title(load)} 1 % of the orders started {late * 1e3:.0f} ms late or more: "
                    "this process was too slow, so the figures show the driver's limit."
                )

    def _comparison(self) -> str:
        one = self.found.comparison
        if one is None:
            return "The service's own record was not asked: compare it yourself."
        verdict = "The client and the sandbox agree" if one.agrees else "THE CLIENT AND THE SANDBOX DISAGREE"
        return (
            f"{verdict}, the warm-up included: duplicates {one.duplicates}, created and missing "
            f"{one.missing}, refused or not sent but found {one.unexpected}, never requested {one.strange}. "
            f"{one.existing} orders exist; {one.doubts} ended unknown, and {one.doubts_there} of those do."
        )

    # --- the plots ------------------------------------------------------------------------------

    def _draw(self, directory: Path) -> Iterator[Path]:
        steps = {load: tally for load, tally in sorted(self.found.steps.items()) if tally.done}
        if not steps:
            return
        is_open = self.plan.loop == "open"
        x = "load (orders wanted a second)" if is_open else "load (orders at once)"
        yield plot_percentiles(
            directory / "latency.png",
            {self.plan.title(load): tally.latency.at for load, tally in steps.items()},
            title="How long an order takes",
        )
        yield plot_against_load(
            directory / "throughput.png",
            {"created": [(load, tally.rate) for load, tally in steps.items()]},
            title="How many orders go through",
            x=x,
            y="orders created a second",
            guide="wanted" if is_open else None,
        )
        yield plot_against_load(
            directory / "cost.png",
            {"client": [(load, tally.cpu_each * 1e6) for load, tally in steps.items()]},
            title="What an order costs the client's process",
            x=x,
            y="processor time an order (µs)",
        )


def _kind_of(journal: str) -> str:
    """Name a journal, without its address: that may hold a password."""
    if journal == "memory":
        return journal
    return "PostgreSQL" if "://" in journal else "SQLite"


def _name_of(percent: float) -> str:
    return {50.0: "median", 100.0: "slowest"}.get(percent, f"{percent:g} %")


def _figures(tally: LoadTally) -> dict[str, Any]:
    return {
        "begun": tally.begun,
        "seconds": tally.seconds,
        "created_a_second": tally.rate,
        "kinds": dict(tally.kinds),
        "errors": dict(tally.errors),
        "latency_ms": {f"{percent:g}": tally.latency.at(percent) * 1e3 for percent in PERCENTILES},
        "late_ms": {f"{percent:g}": tally.late.at(percent) * 1e3 for percent in PERCENTILES},
        "cpu_us": tally.cpu_each * 1e6,
        "latency_histogram": tally.latency.packed(),
    }
