"""The plan of a load, and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from attrs import frozen

from benchmarks.programs.load.driver import StepLimits
from benchmarks.programs.load.tally import LoadTally
from benchmarks.programs.load.target import Comparison
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
