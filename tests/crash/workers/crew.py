"""The workers as the harness sees them."""

from __future__ import annotations

from attrs import define, field

from tests.crash.processes import Child
from tests.crash.setting import Point
from tests.crash.workers.fates import Fates


@define(eq=False)
class Worker:
    """One worker.

    Args:
        child: its process.
        out: what it has been handed: by delivery number, the key and the fate that is planned for it.
        doomed: the moment at which a fate comes to it, whatever it is doing, and of which kind.
        paused_at: when it was stopped.
        missed: the keys of which one must be taken over, or end, before it goes on.
        recovery: the kind of fate that is set for its next recovery.
        is_killed: its end is expected.
    """

    child: Child
    out: dict[int, tuple[str, Fates | None, Point | None]] = field(factory=dict)
    doomed: tuple[float, Fates] | None = None
    paused_at: float | None = None
    missed: set[str] = field(factory=set)
    recovery: Fates | None = None
    is_killed: bool = False

    @property
    def keys(self) -> list[str]:
        """The keys that it has been handed."""
        return [key for key, _, _ in self.out.values()]

    def doom(self, fates: Fates, at: float) -> None:
        """Let a fate come to it at a moment; one is enough."""
        if self.doomed is None:
            self.doomed = (at, fates)
        else:
            fates.forget(Point.ANYWHERE)

    def forget_fates(self) -> None:
        """It is dead: what was planned for it will not be met."""
        if self.doomed is not None:
            self.doomed[1].forget(Point.ANYWHERE)
        if self.recovery is not None:
            self.recovery.forget(Point.RECOVERING)
        for _, fates, point in self.out.values():
            if fates is not None and point is not None:
                fates.forget(point)
