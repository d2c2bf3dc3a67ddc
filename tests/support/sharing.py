"""Tests in several processes: what they share, and a check that they run each test exactly once."""

import importlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

TOLD = "tests ran in {processes} processes: all collected the same tests, and each test ran once"


class Sharing:
    """The tests that each process collected, and those that ran. It is a plug-in of the main process."""

    def __init__(self) -> None:
        self.found: dict[str, Sequence[str]] = {}
        self.ran: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Give each process one contiguous share, so that few processes start a server; then let it steal."""
        if config.getoption("dist") != "load":  # another scheduler was chosen
            return None
        from xdist.scheduler import WorkStealingScheduling  # installed only if tests are shared

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
            summary = self.trouble or TOLD.format(processes=len(self.found))
            terminalreporter.write_line(f"{len(self.ran)} {summary}")

    @property
    def trouble(self) -> str | None:
        """The difference from a run in one process, or None."""
        first, *others = self.found.values()
        if any(other != first for other in others):
            return "tests ran, but the processes collected different tests"
        if sorted(self.ran) != sorted(first):
            return f"tests ran, of {len(first)} that were collected"
        return None


def import_tests(config: pytest.Config, root: Path) -> None:
    """Import all tests, each process from another one on, so that each module is compiled by one process.

    Pytest compiles a test module when it is imported first, which takes longer than all imports later. If all
    processes began with the same module, each would compile all of them.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    paths = [path for place in config.args for path in sorted((root / place).rglob("test_*.py"))]
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in (*paths[first:], *paths[:first]):
        with suppress(Exception, pytest.skip.Exception):  # the collection imports it again, and reports it
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def watch(config: pytest.Config) -> None:
    """Register the check in the main process."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sharing())
