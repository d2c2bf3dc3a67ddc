"""The load driver: which hosts it accepts, when it starts an order, what it counts, and what it reports."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice, takewhile
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("hdrh", reason="the histograms are in the group `bench`")

from benchmarks.measuring.reports import can_plot
from benchmarks.measuring.workload import even, poisson
from benchmarks.programs import load_command
from benchmarks.programs.load_driver import (
    CREATED,
    Driver,
    Histogram,
    OrderResult,
    StepLimits,
    StepStats,
    Stop,
    result_of,
)
from benchmarks.programs.load_report import LoadReport, LoadResult
from benchmarks.programs.load_target import (
    HostNotAllowed,
    amount_for,
    check_host,
    compare_outcomes,
    order_for,
)
from benchmarks.programs.outage_simulation import Loop
from tests.support.cases import each
from transfer_async._models.errors import OutcomeUnknown, RateLimited

ROOT = Path(__file__).parent.parent.parent


# --- when orders start --------------------------------------------------------------------------


class Stalling:
    """A service that answers nothing until ``until``, and then answers everything."""

    def __init__(self, loop: Loop, *, until: float) -> None:
        self.loop, self.until = loop, until
        self.started: list[float] = []

    async def send(self, number: int) -> OrderResult:
        self.started.append(self.loop.time() - 1000.0)
        await asyncio.sleep(max(0.0, 1000.0 + self.until - self.loop.time()))
        return CREATED


def driven(
    *, until: float, limits: StepLimits, closed: int = 0, before: Callable[[Loop, Stop], None] | None = None
) -> tuple[StepStats, list[float]]:
    """Send ten orders a second, or ``closed`` at once. Return the statistics and the start times."""
    loop, stop = Loop(), Stop()
    service = Stalling(loop, until=until)
    driver = Driver(service.send, limits, StepStats(), stop)
    if before is not None:
        before(loop, stop)
    loop.create_task(driver.run_closed(closed) if closed else driver.run_open(even(10.0)))
    loop.run_until_idle()
    return driver.stats, service.started


def test_a_stalled_service_delays_no_arrival_and_raises_the_latencies():
    stats, started = driven(until=10.0, limits=StepLimits(5.0, 1000))

    assert started == pytest.approx([n / 10 for n in range(50)])
    assert stats.completed == 50
    assert stats.latency.percentile(100) == pytest.approx(10.0, rel=1e-3)
    assert stats.latency.percentile(50) == pytest.approx(7.6, rel=0.02)


def test_latency_counts_from_the_planned_start():
    def has_no_time_for_a_second(loop: Loop, _: Stop) -> None:
        loop.call_later(0.5, loop.pass_, 1.0)

    stats, _ = driven(until=0.0, limits=StepLimits(2.0, 1000), before=has_no_time_for_a_second)

    for seconds in (stats.start_delay, stats.latency):
        assert seconds.percentile(100) == pytest.approx(1.0, rel=1e-2)


def test_a_stop_waits_for_the_orders_in_flight():
    def wants_it_to_end(loop: Loop, stop: Stop) -> None:
        loop.call_later(1.05, setattr, stop, "requested", True)

    stats, _ = driven(until=3.0, limits=StepLimits(60.0, 1000), before=wants_it_to_end)

    assert stats.started == stats.completed == 11


def test_a_closed_loop_limits_the_orders_in_flight():
    stats, started = driven(until=10.0, limits=StepLimits(5.0, 1000), closed=4)

    assert started == [0.0] * 4
    assert stats.completed == 4


@pytest.mark.parametrize("closed", [0, 3])
def test_a_step_ends_with_its_number_of_orders(closed: int):
    stats, _ = driven(until=0.1, limits=StepLimits(60.0, 7), closed=closed)

    assert (stats.started, stats.completed) == (7, 7)


def test_orders_that_never_end_are_cancelled():
    stats, _ = driven(until=1e6, limits=StepLimits(1.0, 1000))

    assert (stats.started, stats.completed) == (10, 0)
    assert stats.seconds < 63.0


def test_arrivals_are_seeded_and_have_the_rate():
    def first(seed: int) -> list[float]:
        return list(islice(poisson(50.0, seed=seed), 100))

    assert first(1) == first(1) != first(2)
    assert mean(len(list(takewhile(lambda t: t < 20, poisson(50.0, seed=n)))) for n in range(20)) == (
        pytest.approx(1000, rel=0.03)
    )
    assert list(islice(even(4.0), 4)) == [0.0, 0.25, 0.5, 0.75]


# --- what is counted ----------------------------------------------------------------------------


def test_a_histogram_accepts_any_duration():
    histogram = Histogram()
    assert histogram.percentile(99) == 0.0

    for seconds in (-1.0, 0.0, 1e9):
        histogram.add(seconds)

    assert histogram.count == 3
    assert histogram.percentile(100) == pytest.approx(3600, rel=1e-3)


def test_outcomes_are_counted_by_kind():
    assert result_of(OutcomeUnknown("lost")) == OrderResult("unknown", "OutcomeUnknown")
    assert result_of(RateLimited(status=429)) == OrderResult("refused", "RateLimited 429")
    assert result_of(KeyError("x")) == OrderResult("broken", "KeyError")


def test_the_comparison_finds_orders_that_contradict_their_outcome():
    amounts = Counter(map(amount_for, [0, 1, 1, 3, 4, 99]))

    found = compare_outcomes(
        {0: "created", 1: "created", 2: "created", 3: "refused", 4: "unknown", 5: "unknown"}, amounts
    )

    assert (found.duplicates, found.missing, found.unexpected, found.unrequested) == (1, 1, 1, 1)
    assert (found.existing, found.doubts, found.doubts_existing) == (6, 2, 1)
    assert not found.agrees


def test_each_order_has_a_unique_amount():
    numbers = (0, 1, 2, 17, 1_000_000)

    assert [order_for(number).poster_amount for number in numbers] == list(map(amount_for, numbers))
    assert len(set(map(amount_for, range(2_000)))) == 2_000


# --- whom it dares to load ----------------------------------------------------------------------


@each("url", ["http://127.0.0.1:8080", "http://localhost:1", "http://[::1]:9"])
def test_loopback_hosts_are_allowed(url: str):
    assert check_host(url, owned=False) == url


@each("url", ["https://bank.example", "https://10.0.0.1", "https://127.0.0.1.example"])
def test_another_host_is_refused_unless_confirmed(url: str):
    with pytest.raises(HostNotAllowed, match="i-own-this-host"):
        check_host(url, owned=False)

    assert check_host(url, owned=True) == url


@each(
    ("arguments", "error"),
    [
        (["--rate=1", "--url=https://bank.example"], "--url"),
        (["--rate=1", "--url=nowhere"], "--url"),
        (["--rate=1", "--url=http://bank.example", "--i-own-this-host"], "--url: base_url: must be https"),
        (["--rate=1", "--for=1e9"], "--for"),
        (["--rate=1,2", "--orders=600000"], "--orders"),
        (["--rate=nan"], "--rate"),
        (["--concurrency=1.5"], "--concurrency"),
        (["--concurrency=2,2"], "--concurrency"),
        (["--rate=1", "--fault=nothing=1"], "--fault"),
        (["--rate=1", "--fault=status=0.1", "--url=http://localhost"], "--fault"),
        (["--rate=1", "--journal=mysql://here"], "--journal"),
        (["--rate=1", "--order=order.json"], "--order"),
        (["--rate=1", "--url=http://localhost"], "TRANSFER_API_TOKEN"),
    ],
)
def test_invalid_options_are_refused(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TRANSFER_API_TOKEN", raising=False)

    assert load_command.main(arguments) == load_command.USAGE
    assert capsys.readouterr().err.startswith(f"load: {error}")


@pytest.mark.trial(ci=1, long=1)
def test_a_sweep_with_faults_ends_with_a_report_and_no_duplicate_order(tmp_path: Path):
    report = tmp_path / "report"
    arguments = ["--concurrency=1,4", "--for=5", "--orders=60", "--fault=close-after-processing=0.2"]
    arguments += [f"--journal={tmp_path / 'journal.sqlite'}", f"--report={report}"]
    command = [sys.executable, "-m", "benchmarks", "load", *arguments]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    figures, page = (
        json.loads((report / "load.json").read_text("utf-8")),
        (report / "load.md").read_text("utf-8"),
    )
    assert figures["comparison"]["agrees"]
    assert figures["comparison"]["doubts"] == figures["comparison"]["doubts_existing"] > 0
    assert [step["begun"] for step in figures["steps"]] == [60, 60]
    assert all(step["kinds"]["unknown"] > 0 < step["latency_ms"]["50"] for step in figures["steps"])
    assert "duplicates 0" in page
    assert str(tmp_path) not in page
    if not can_plot():
        pytest.skip("all but the plots was checked: there is no matplotlib")
    for name in ("latency.png", "throughput.png", "cost.png"):
        assert (report / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.trial(ci=1, long=1)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no Ctrl-C to be sent to another process alone")
def test_ctrl_c_stops_the_load_and_reports_what_was_measured():
    command = [sys.executable, "-u", "-m", "benchmarks", "load", "--rate=50,60", "--for=60"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ)
    assert process.stdout is not None

    first = process.stdout.readline()  # while the step runs
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)

    assert "in flight" in first
    assert process.returncode == 0
    assert "Stopped early by Ctrl-C" in output
    assert "duplicates 0" in output


def test_the_report_states_that_the_driver_was_too_slow():
    stats = StepStats(seconds=1.0)
    for _ in range(100):
        stats.add(CREATED, latency=0.5)
        stats.start_delay.add(0.4)
    options = load_command.make_parser().parse_args(["--rate=100"])

    page = LoadReport(load_command.plan_from(options), LoadResult({100.0: stats}, None, False)).text()

    assert "400 ms late" in page
