"""Which tests run at which level of trials, and at which size."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.trials import ONLY_IN_TRIALS, mostly_in_trials, size_of

SIZED = pytest.mark.trial(short=2, ci=30, long=400)


def size(*marks: Any, level: str = "short", args: tuple[str, ...] = ("tests",), test: str = "test_k") -> int:
    item = SimpleNamespace(nodeid=f"a.py::{test}", iter_markers=lambda _: [mark.mark for mark in marks])
    return size_of(item, SimpleNamespace(getoption=lambda _: level, args=list(args)))  # type: ignore[arg-type] # stand-ins with what is read


def test_a_trial_has_the_size_of_its_level():
    assert [size(SIZED, level=level) for level in ("short", "ci", "long")] == [2, 30, 400]
    assert size() == 1


def test_a_trial_without_a_size_for_the_level_is_left_out():
    assert size(ONLY_IN_TRIALS) == 0
    assert size(ONLY_IN_TRIALS, level="ci") == 1


def test_a_sized_test_marked_only_in_trials_is_skipped_by_default():
    assert size(SIZED, ONLY_IN_TRIALS) == 0
    assert size(SIZED, ONLY_IN_TRIALS, level="ci") == 30


@pytest.mark.parametrize("named", ["a.py::test_k", "a.py::test_k[row]"])
def test_a_trial_that_the_command_line_names_runs_at_every_level(named: str):
    assert size(ONLY_IN_TRIALS, args=(named,), test="test_k[row]") == 1
    assert size(pytest.mark.trial(ci=30), args=(named,)) == 30
    assert size(ONLY_IN_TRIALS, args=(named,), test="test_known") == 0


def test_a_trial_whose_class_is_named_runs_at_every_level():
    assert size(ONLY_IN_TRIALS, args=("a.py::TestK",), test="TestK::test_k") == 1


def test_only_the_named_rows_of_a_table_run_by_default():
    rows = mostly_in_trials("abc", often="b")

    assert [getattr(row, "marks", "runs") for row in rows] == [(ONLY_IN_TRIALS,), "runs", (ONLY_IN_TRIALS,)]
