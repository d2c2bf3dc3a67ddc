"""Read the faults in `faults.diff`, each with the test that caught it last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

LIST = Path(__file__).with_name("faults.diff")
SIMULATION, INTERLEAVINGS = "tests.simulation --seed ", "tests.interleavings"
"""The commands that run tests with a planted fault, as they appear in the list."""

PROMISE = (
    "tests/_pipeline/test_create_order.py",
    "tests/faults/test_failure_table.py",
    "tests/faults/test_another_behind.py",
    "tests/faults/test_stale_connections.py",
    "tests/faults/test_cancellation.py",
    "tests/faults/test_bounded_reading.py",
    "tests/contract",
    "tests/chaos",
    "tests/simulation/test_simulation.py::test_every_promise_is_kept",
)
"""The tests of the complete promise, which run last. None of them plants a fault itself."""


class LinesNotFound(Exception):
    """The lines of a fault do not occur exactly once in its file. Adapt the fault to the code."""


@frozen
class Fault:
    """One fault.

    Args:
        path: the path of the file in the checkout.
        name: unique among all faults.
        loses: what a bank would lose.
        caught_by: the test that caught it last, or a file of tests.
        worlds: the commands of the other tests that must notice it too.
        hunks: pairs of whole lines, which occur in the file exactly once, and their replacement.
    """

    path: str
    name: str
    loses: str
    caught_by: str
    worlds: tuple[str, ...]
    hunks: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: str, lines: list[str]) -> Fault:
        """Read a fault of the file ``path`` from its lines in the list."""
        name, loses = lines[0].split(": ", 1)
        caught_by, *worlds = [line.removeprefix("@@ ") for line in lines if line.startswith("@@ ")]
        places = "\n".join(lines[2 + len(worlds) :]).split("\n@@\n")
        hunks = tuple(_hunk(place.splitlines()) for place in places)
        return cls(path, name, loses, caught_by, tuple(worlds), hunks)

    @property
    def seed(self) -> int | None:
        """The seed with which the simulation detects the fault; None if it need not."""
        seeds = [world.removeprefix(SIMULATION) for world in self.worlds if world.startswith(SIMULATION)]
        return int(seeds[0]) if seeds else None

    def plant(self, source: str) -> str:
        """Return ``source`` with the fault.

        Raises:
            LinesNotFound: the lines do not occur exactly once.
        """
        for before, after in self.hunks:
            literal = after.replace("\\", "\\\\")
            source, count = re.subn(f"(?m)^{re.escape(before)}", literal, source)
            if not before or count != 1:
                raise LinesNotFound(f"{self.name}: found {count} times in {self.path}:\n{before}")
        return source


def _hunk(lines: list[str]) -> tuple[str, str]:
    before, after = ([line[1:] for line in lines if line[0] in marks] for marks in (" -", " +"))
    return "".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)


def read_faults(text: str) -> Iterator[Fault]:
    """Yield the faults of a list."""
    path = ""
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and line[0] != "#"]
        if lines and lines[0].startswith("diff "):
            path = lines[0].removeprefix("diff ")
        elif lines:
            yield Fault.read(path, lines)


FAULTS = tuple(read_faults(LIST.read_text(encoding="utf-8")))


def record(found: dict[str, str]) -> None:
    """Write the test that caught each fault into the list."""
    text = LIST.read_text(encoding="utf-8")
    for fault in FAULTS:
        heading = f"\n{fault.name}: {fault.loses}\n@@ "
        caught_by = found.get(fault.name, fault.caught_by)
        text = text.replace(f"{heading}{fault.caught_by}\n", f"{heading}{caught_by}\n")
    LIST.write_text(text, encoding="utf-8")
