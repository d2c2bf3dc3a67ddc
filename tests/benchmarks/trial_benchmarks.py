"""The benchmark programs run at their smallest size. Their figures are not checked here."""

import importlib.util
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import PROGRAMS, USAGE, main
from benchmarks.contenders import BARE, HANDWRITTEN, HTTPX, OURS, STRIPE, TREASURY, ContenderSettings
from benchmarks.contenders.process import ContenderProcess, ContenderUnavailable
from benchmarks.measuring.reports import AreaResult, Goal, Table
from benchmarks.measuring.samples import RunSize, Sample, interleave, ratio
from benchmarks.measuring.services import WARM_UP_REQUESTS, run_service
from benchmarks.measuring.workload import CREATE_ORDER_PATH, Responses, new_orders
from benchmarks.programs import compare
from benchmarks.programs.bench_create import measure_create
from benchmarks.programs.bench_micro import extras_imported, measure_decode, measure_imports
from benchmarks.programs.bench_scale import measure_memory, measure_scale
from benchmarks.programs.suite_command import as_json, as_text, run_areas
from transfer_async import Order

pytestmark = [pytest.mark.trial(ci=1, long=1), pytest.mark.timeout(1800)]
ROOT = Path(__file__).parent.parent.parent

SMALLEST = RunSize(
    name="smallest",
    rounds=1,
    slow_rounds=1,
    restarts=2,
    sample_seconds=0.02,
    in_flight=100,
    concurrency_levels=(1, 64, 80),
    orders_done=(50, 200, 400),
    max_keys=50,
    orders_per_sample=8,
)
NEEDED = {HTTPX: "httpx", TREASURY: "modern_treasury", STRIPE: "stripe"}
missing = {name for name, module in NEEDED.items() if importlib.util.find_spec(module) is None}
with_pyperf = pytest.mark.skipif(  # pyperf is not needed to run the tests
    importlib.util.find_spec("pyperf") is None, reason="pyperf is not installed: it is in the group `bench`"
)
ABOUT: dict[str, Any] = {"date": "2024-05-06", "commit": "abc", "versions": {"aiohttp": "3"}}


def run_program(*arguments: str) -> str:
    """Run a benchmark program in its own process. Return its output."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.trial(long=1)
def test_the_journals_program_prints_its_tables_and_writes_its_figures(tmp_path: Path):
    figures = tmp_path / "figures.json"
    smallest = ["--rounds=1", "--orders=8", "--growth=100", "--concurrency", "64", "--server=raw"]
    printed = run_program("journal", *smallest, f"--json={figures}")

    assert "| MemoryJournal " in printed
    assert "of MemoryJournal" in printed
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert {"MemoryJournal", "SQLiteJournal"} <= {one["journal"] for one in found["speeds"]}
    assert all(one["rate"] > 0 for one in found["speeds"])
    assert all(0 < one["p50"] <= one["p99"] for one in found["waits"])
    assert found["growths"][0]["many"] == 100
    assert {one["met"] for one in found["goals"]} <= {True, False}


def test_the_suite_measures_the_chosen_areas_and_writes_its_report(tmp_path: Path):
    run_program("suite", "--quick", "--only=profile", f"--out={tmp_path}")

    assert "Where the time of one `create_order` goes" in (tmp_path / "report.md").read_text("utf-8")
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["areas"][0]["area"] == "profile"


def test_orders_are_the_same_for_the_same_seed():
    assert new_orders(20, seed=3) == new_orders(20, seed=3)
    assert new_orders(20, seed=3) != new_orders(20, seed=4)


def test_each_response_has_the_requested_order_and_a_new_id():
    answers = Responses()
    for new in new_orders(20):
        order = Order.from_json(answers.respond(json.loads(new.to_json(), parse_float=str)))

        assert not order.unread
        assert (order.poster_amount, order.matcher_amount) == (new.poster_amount, new.matcher_amount)
        assert order.user.username == new.poster_username
    ids = {Order.from_json(answers.respond(json.loads(new.to_json()))).id for new in new_orders(500)}
    assert len(ids) == 500
    assert order.id not in ids


async def test_contenders_alternate_and_rotate_the_first_place():
    seen = []

    async def sample_seconds(name: str) -> str:
        seen.append(name)
        return name

    found = await interleave({name: lambda name=name: sample_seconds(name) for name in "abc"}, rounds=3)

    assert "".join(seen) == "abcbcacab"
    assert found == {name: [name] * 3 for name in "abc"}


def test_ratios_are_computed_within_a_round():
    fast = [Sample(10, seconds, 0.0) for seconds in (1.0, 10.0, 1.0)]  # the second round was slow for both
    slow = [Sample(10, seconds, 0.0) for seconds in (2.0, 20.0, 3.0)]

    assert ratio(slow, fast, lambda one: one.rate) == 0.5


def test_contenders_create_orders_and_missing_ones_are_named():
    found = measure_create(SMALLEST)

    assert {line.partition(":")[0] for line in found.left_out} == missing
    assert {row[0] for row in found.tables[0].rows} == {OURS, BARE, HANDWRITTEN, *NEEDED} - missing
    needed = [None, None, TREASURY, STRIPE, None]
    assert [goal.measured is None for goal in found.goals] == [name in missing for name in needed]


@with_pyperf
def test_decoding_is_measured():
    found = measure_decode(SMALLEST)

    assert "decode: transfer_async, strict" in {row[0] for row in found.tables[0].rows}
    assert all(value > 0 for value in found.figures.values())


def test_imports_are_measured_and_no_extra_is_imported_with_the_package():
    assert measure_imports(SMALLEST).figures["import: aiohttp, ms"] > 0
    assert extras_imported() == []


def test_memory_is_measured_with_all_orders_in_flight():
    found = measure_memory(SMALLEST)

    assert all(value > 0 for value in found.figures.values())
    assert "concurrency 100" in found.goals[0].metric


@pytest.mark.trial(long=1)
def test_growth_is_measured():
    measured = [goal.measured for goal in measure_scale(SMALLEST).goals]

    assert len(measured) == 7
    assert all(share is not None and share > 0 for share in measured)


def test_a_contender_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "httpx.py").write_text("raise ImportError('there is no httpx')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(ContenderUnavailable, match="there is no httpx"):
        ContenderProcess(HTTPX, ContenderSettings(), core=None)


def test_a_failing_contender_is_reported_and_ended():
    process = ContenderProcess(BARE, ContenderSettings(), core=None)  # no server listens there

    with pytest.raises(RuntimeError, match="the process exited"):
        process.sample(concurrency=1, seconds=0.1)


def test_the_raw_service_holds_responses_until_all_requests_have_arrived():
    with run_service("raw", hold=2) as remote:

        def post(path: str, *, wait: float) -> bytes:
            request = urllib.request.Request(remote.base_url + path, data=new_orders(1)[0].to_json())
            with urllib.request.urlopen(request, timeout=wait) as response:
                return response.read()

        answers = [post("/v1/transfers", wait=10.0) for _ in range(WARM_UP_REQUESTS)]

        assert len({json.loads(answer)["id"] for answer in answers}) == WARM_UP_REQUESTS
        with pytest.raises(TimeoutError):
            post(CREATE_ORDER_PATH, wait=0.2)


# --- the report ---------------------------------------------------------------------------------


def test_a_goal_is_met_missed_or_not_measured():
    goals = [Goal("a", "b", "<= 0.5", value) for value in (0.5, 0.51, None)]

    assert [goal.met for goal in goals] == [True, False, None]
    assert Goal("a", "b", ">= 0.5", 0.6).met


def test_the_report_has_goals_tables_and_missing_contenders():
    goals, tables = [Goal("speed", "light", "<= 1.0", 0.5)], [Table("Numbers", ("n",), [(1,)], "A note.")]
    report = as_text(ABOUT, [AreaResult("area", goals, tables, {"f": 1.0}, ["somebody: gone"])])

    assert "| speed |   light | <= 1.0 |      0.5 | met |      |" in report
    assert "- somebody: gone" in report
    assert "Numbers:\n\n" in report


def test_a_failing_area_is_reported_and_the_others_continue(monkeypatch: pytest.MonkeyPatch):
    def broken(_: RunSize) -> AreaResult:
        raise OSError("no disk")

    areas = {"one": broken, "other": lambda _: AreaResult("other", figures={"f": 1.0})}
    monkeypatch.setattr("benchmarks.programs.suite_command.AREAS", areas)

    one, other = run_areas(["one", "other"], SMALLEST)

    assert one.left_out == ["one: failed (OSError: no disk)"]
    assert other.figures == {"f": 1.0}


def test_two_runs_are_compared_figure_by_figure():
    def report(value: float) -> Any:
        goals = [Goal("x", "y", "<= 1.0", value)]
        return json.loads(as_json(ABOUT, [AreaResult("a", goals, (), {"time, µs": value})]))

    text = compare.compare_reports(report(2.0), report(1.0))

    assert "NOT MET, then met" in text
    assert "| time, µs | 2 | 1 |  0.50 |" in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_a_help(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])

    assert f"python -m benchmarks {name} " in capsys.readouterr().out


def test_without_a_name_the_programs_are_listed(capsys: pytest.CaptureFixture[str]):
    assert (main([]), main(["fast"])) == (0, USAGE)

    output = capsys.readouterr().out
    assert all(output.count(what) == 2 for _, what in PROGRAMS.values())
