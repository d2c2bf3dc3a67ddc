"""Run tests in several processes: what they share, and a check that each test runs exactly once."""

import importlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

SUMMARY = "tests ran in {processes} processes: all collected the same tests, and each test ran once"


class Sharing:
    """A plug-in of the main process that records which tests each process collected, and which ran."""

    def __init__(self) -> None:
        self.found: dict[str, Sequence[str]] = {}
        self.ran: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Give each process one contiguous share, so that few of them start a server; then let them steal."""
        if config.getoption("dist") != "load":  # the user chose another scheduler
            return None
        # Pytest-xdist is needed only to run tests in several processes.
        from xdist.scheduler import WorkStealingScheduling

        return WorkStealingScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self.found[node.gateway.id] = ids

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.ran.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and self.found and self.trouble:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if self.found and exitstatus != pytest.ExitCode.INTERRUPTED:
            summary = self.trouble or SUMMARY.format(processes=len(self.found))
            terminalreporter.write_line(f"{len(self.ran)} {summary}")

    @property
    def trouble(self) -> str | None:
        """The difference from a run in a single process, or None."""
        first, *others = self.found.values()
        if any(other != first for other in others):
            return "tests ran, but the processes collected different tests"
        if sorted(self.ran) != sorted(first):
            return f"tests ran, of {len(first)} that were collected"
        return None


def import_tests(config: pytest.Config, root: Path) -> None:
    """Import all tests. Each process starts with another module, so that each module is compiled only once.

    pytest compiles a test module on its first import, which takes longer than all later imports. If all
    processes began with the same module, each would compile all of them.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    paths = [path for place in config.args for path in sorted((root / place).rglob("test_*.py"))]
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in (*paths[first:], *paths[:first]):
        # Collecting imports the module again, and reports the error.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def watch(config: pytest.Config) -> None:
    """Register the check of the main process."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sharing())
