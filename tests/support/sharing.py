"""A check that the processes of `pytest -n 4` together run each test exactly once."""

from collections.abc import Sequence
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


def watch(config: pytest.Config) -> None:
    """Register the check in the main process."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sharing())
