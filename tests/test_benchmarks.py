"""The benchmark programs run, at their smallest; what they measure is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.data import Answers, new_orders
from benchmarks.measure import Sample, interleaved, percentile, ratio, table
from transfer_async import Order

ROOT = Path(__file__).parent.parent


def test_the_journals_program_prints_its_tables_and_writes_its_figures(tmp_path: Path):
    figures = tmp_path / "figures.json"
    smallest = ["--rounds=1", "--orders=8", "--growth=100", "--at-once", "64", "--server=raw"]
    command = [sys.executable, "-m", "benchmarks.journal", *smallest, f"--json={figures}"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    assert "| MemoryJournal " in done.stdout
    assert "of MemoryJournal" in done.stdout
    found = json.loads(figures.read_text())
    assert {"MemoryJournal", "SQLiteJournal"} <= {one["journal"] for one in found["speeds"]}
    assert all(one["rate"] > 0 for one in found["speeds"])
    assert all(0 < one["p50"] <= one["p99"] for one in found["waits"])
    assert found["growths"][0]["many"] == 100
    assert {one["met"] for one in found["goals"]} <= {True, False}


def test_orders_are_the_same_for_the_same_seed():
    assert new_orders(20, seed=3) == new_orders(20, seed=3)
    assert new_orders(20, seed=3) != new_orders(20, seed=4)


def test_an_answer_is_an_order_to_the_question_with_an_id_of_its_own():
    answers = Answers()
    for new in new_orders(20):
        order = Order.from_json(answers.answer(json.loads(new.to_json(), parse_float=str)))

        assert not order.unread
        assert (order.poster_amount, order.matcher_amount) == (new.poster_amount, new.matcher_amount)
        assert order.user.username == new.poster_username
    ids = {Order.from_json(answers.answer(json.loads(new.to_json()))).id for new in new_orders(500)}
    assert len(ids) == 500
    assert order.id not in ids


async def test_contenders_take_turns_and_begin_in_turn():
    seen = []

    async def turn(name: str) -> str:
        seen.append(name)
        return name

    found = await interleaved({name: lambda name=name: turn(name) for name in "abc"}, rounds=3)

    assert "".join(seen) == "abcbcacab"
    assert found == {name: [name] * 3 for name in "abc"}


def test_ratios_are_taken_within_a_round():
    fast = [Sample(10, seconds, 0.0) for seconds in (1.0, 10.0, 1.0)]  # the second round was slow for all
    slow = [Sample(10, seconds, 0.0) for seconds in (2.0, 20.0, 3.0)]

    assert ratio(slow, fast, lambda one: one.rate) == 0.5


def test_a_percentile_is_one_of_the_values():
    values = range(1, 101)

    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]


def test_a_table_is_aligned():
    assert table(("who", "n"), [("a", 10), ("bcde", 1)]).splitlines() == [
        "| who  |  n |",
        "| ---- | -: |",
        "| a    | 10 |",
        "| bcde |  1 |",
    ]
