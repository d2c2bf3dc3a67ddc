"""The simulated outage at a small size meets its goals, and without a retry budget it misses them."""

import json
from pathlib import Path

import pytest

from benchmarks.measuring.reports import can_plot
from benchmarks.programs import outage_command
from benchmarks.programs.outage_simulation import (
    MAX_AMPLIFICATION,
    NO_BUDGET,
    Fleet,
    Loop,
    OutageResult,
    OutageSchedule,
    Scenario,
    SimulatedService,
)
from transfer_async import RetryBudget

pytestmark = [pytest.mark.trial(ci=1, long=1), pytest.mark.timeout(1800)]
DEFAULT = RetryBudget()


def simulate(
    budget: RetryBudget, *, clients: int = 1, failure: str = "429", recovery_window: float = 1.5
) -> OutageResult:
    schedule = OutageSchedule(capacity=8.0, healthy=10.0, slow=2.0, outage=100.0, failure=failure)
    setting = Scenario(
        clients=clients,
        rate=4.0,
        schedule=schedule,
        budget=budget,
        retry_pauses=(5.0, 12.0),
        recovery_window=recovery_window,
    )
    return Fleet(setting).run()


@pytest.fixture(scope="module")
def budgeted() -> OutageResult:
    return simulate(DEFAULT)


@pytest.fixture(scope="module")
def unbounded() -> OutageResult:
    return simulate(NO_BUDGET, recovery_window=0.0)


def test_a_budget_prevents_a_retry_storm_and_the_backlog_clears_in_time(budgeted: OutageResult):
    assert budgeted.amplification <= MAX_AMPLIFICATION
    assert budgeted.goals_met == (True, True)
    assert budgeted.doubts == 0


def test_without_a_budget_the_goal_is_missed(unbounded: OutageResult):
    # Each order used all attempts that the retry policy allows.
    assert unbounded.amplification == pytest.approx(4.0, abs=0.1)
    assert unbounded.goals_met[0] is False


@pytest.mark.trial(long=1)
def test_a_refused_connection_costs_the_budget_more_than_a_429(budgeted: OutageResult):
    refused = simulate(DEFAULT, failure="refused")

    assert 1.0 < refused.amplification < budgeted.amplification
    assert refused.goals_met == (True, True)


@pytest.mark.trial(long=1)
def test_each_client_has_a_budget_of_its_own(budgeted: OutageResult):
    fleet = simulate(DEFAULT, clients=50, recovery_window=0.0)

    assert fleet.calls == pytest.approx(budgeted.calls, rel=0.1)
    assert fleet.requests - fleet.calls > budgeted.requests - budgeted.calls


def test_the_same_seed_gives_the_same_outage_within_the_budget(budgeted: OutageResult):
    again = simulate(DEFAULT, recovery_window=0.0)

    assert (again.calls, again.requests) == (budgeted.calls, budgeted.requests)
    assert budgeted.calls <= budgeted.requests <= budgeted.calls + 500 // 5


def test_the_service_rejects_requests_beyond_its_queue_at_a_cost():
    service = SimulatedService(OutageSchedule(capacity=4.0, queue=1.0, rejection_cost=0.5), Loop())

    waits = [service.admit() for _ in range(6)]

    assert waits == [0.25, 0.5, 0.75, 1.0, None, None]
    assert service._free_at - service.now() == 1.0 + 2 * 0.125


def test_a_report_is_a_page_with_figures_and_plots(
    tmp_path: Path, budgeted: OutageResult, unbounded: OutageResult
):
    written = outage_command.write(tmp_path, [budgeted, unbounded])

    figures = json.loads((tmp_path / "outage.json").read_text(encoding="utf-8"))
    assert [one["goals"][0] for one in figures] == [True, False]
    page = (tmp_path / "outage.md").read_text(encoding="utf-8")
    assert "1 clients, 429, no budget" in page
    assert "MISSED" in page
    if not can_plot():
        pytest.skip("the page was checked; there is no matplotlib for the plots")
    assert all(path.name in page for path in written if path.suffix == ".png")


@pytest.mark.parametrize("wrong", ["--clients=0", "--clients=many", "--rate=0", "--outage=1"])
def test_invalid_options_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]):
    assert outage_command.main([wrong]) == outage_command.USAGE
    assert "must be" in capsys.readouterr().err
