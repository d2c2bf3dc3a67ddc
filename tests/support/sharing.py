"""Where several processes share the tests (`-n 4`): together they run just what one would, and say so."""

from collections.abc import Sequence
from typing import Any

import pytest

TOLD = "tests were shared by {processes} processes: each had found the same, and each test ran once"


class Sharing:
    """What each process has found, and what ran; in the process that hands the tests out."""

    def __init__(self) -> None:
        self.found: dict[str, Sequence[str]] = {}
        self.ran: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Each has its share in one piece, and so starts few of the servers; who is done helps others."""
        if config.getoption("dist") != "load":  # somebody asks for another way
            return None
        from xdist.scheduler import WorkStealingScheduling  # only who shares needs it

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
            told = self.trouble or TOLD.format(processes=len(self.found))
            terminalreporter.write_line(f"{len(self.ran)} {told}")

    @property
    def trouble(self) -> str | None:
        """In which way it differs from what one process would have run."""
        first, *others = self.found.values()
        if any(other != first for other in others):
            return "tests ran, and the processes had not found the same"
        if sorted(self.ran) != sorted(first):
            return f"tests ran, of {len(first)} that were found"
        return None


def watch(config: pytest.Config) -> None:
    """Watch over the sharing, where this process hands the tests out."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sharing())
