"""A copy of the checkout in which one fault is planted and tests run until one fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from tests.mutation.faults import FAULTS, PROMISE, Fault

HERE = Path(__file__).parents[2]
PATIENCE = 900.0
"""Seconds after which a test run counts as hanging. Each test also has its own timeout."""

HANGS, DIES = "it hangs", "it dies"
"""The results of a run without a failed test."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_USAGE, _NONE = 4, 5  # pytest's exit codes for wrong usage and for no collected test
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0", "--tb=no", "-rfE")
# The default number of examples is too small to detect every fault reliably.
_MANY_EXAMPLES = "--hypothesis-profile=ci"


class Checkout:
    """A copy of the checkout with its uncommitted changes, but without files that git ignores."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._changes = 0
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=HERE, capture_output=True, encoding="utf-8", check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (HERE / name).is_file():
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(HERE / name, top / name)

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Plant ``fault`` while the block runs.

        Raises:
            LinesNotFound: the fault does not fit the code.
        """
        path = self._top / fault.path
        sound = path.read_text(encoding="utf-8")
        self._write(path, fault.plant(sound))
        try:
            yield
        finally:
            self._write(path, sound)

    def _write(self, path: Path, source: str) -> None:
        """Write a module with a new time, because Python compares bytecode by size and seconds."""
        path.write_text(source, encoding="utf-8")
        self._changes += 1
        when = time.time() - 1_000_000 + self._changes
        os.utime(path, (when, when))

    def passes(self, tests: Iterable[str]) -> bool:
        """Return whether all of ``tests`` exist and pass."""
        with suppress(subprocess.TimeoutExpired):
            return self._run(tests).returncode == 0
        return False

    def first_failure(self, tests: Iterable[str]) -> str | None:
        """Return the first of ``tests`` that fails, `HANGS` or `DIES`; None if none fails."""
        try:
            done = self._run(tests)
        except subprocess.TimeoutExpired:
            return HANGS
        is_gone = done.returncode == _USAGE and "not found" in done.stderr
        if done.returncode in (0, _NONE) or is_gone:
            return None
        if done.returncode < 0:
            return DIES
        found = _FAILED.search(done.stdout)
        if found is None:
            raise RuntimeError(f"pytest named no failed test:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return found[1]

    def _run(self, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *_PYTEST, _MANY_EXAMPLES, *tests],
            cwd=self._top,
            env=self._environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        return kept | {"PYTHONPATH": str(self._top)}  # also used by processes that the tests start


@frozen
class Found:
    """The result for one fault.

    Args:
        name: the name of the fault.
        by: the test that caught it; None if it survived.
        in_vain: a test that failed, but also fails without the fault.
        seconds: the duration.
    """

    name: str
    by: str | None
    in_vain: str | None
    seconds: float

    @property
    def verdict(self) -> str:
        """The test that caught the fault, or the reason why there is none."""
        return self.by or ("SURVIVED" if self.in_vain is None else f"FAILS ANYWAY {self.in_vain}")


def ask(fault: Fault, checkout: Checkout, *, sound: Container[str] = frozenset()) -> Found:
    """Run tests with ``fault`` planted until one fails.

    Args:
        fault: the fault to plant.
        checkout: the copy in which the tests run.
        sound: tests that are known to pass without the fault.
    """
    began = time.monotonic()
    with checkout.with_fault(fault):
        failures = map(checkout.first_failure, _asked(fault))
        failed = next(filter(None, failures), None)
    proves = failed in (None, HANGS, DIES) or failed in sound or checkout.passes([failed])
    by, in_vain = (failed, None) if proves else (None, failed)
    return Found(fault.name, by, in_vain, time.monotonic() - began)


def _asked(fault: Fault) -> Iterator[tuple[str, ...]]:
    """Yield the test that caught the fault last, tests that catch other faults of the file, and `PROMISE`."""
    if fault.caught_by not in (HANGS, DIES):
        yield (fault.caught_by,)
    others = [other.caught_by for other in FAULTS if other.path == fault.path]
    yield tuple(dict.fromkeys(test.partition("::")[0] for test in others if test not in (HANGS, DIES)))
    yield PROMISE
