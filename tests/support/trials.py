"""Trials: tests that have a size. `pytest` runs the small ones, `pytest --trials=long` runs all.

A trial has a size at each of three levels, and receives it as an argument::

    @pytest.mark.trial(short=20, ci=300, long=5000)
    def test_no_kill_makes_two_orders(size: int): ...

At a level without a size it is skipped, unless the command line names it as ``path::test``. Modules of trials
with slow imports are named `trial_*.py` and are not collected with short trials.

`ONLY_IN_TRIALS` marks a test, or a row of a table, that `pytest` leaves out by default. Every property test
is a trial too: longer trials give it more examples.
"""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LEVELS = ("short", "ci", "long")
OPTION = "--trials"

ONLY_IN_TRIALS = pytest.mark.trial(ci=1, long=1)
"""Marks tests that `pytest` skips by default: tests of the test tools, and repetitions on other back ends."""


def mostly_in_trials(rows: Iterable[Any], *, often: Collection[Any]) -> list[Any]:
    """Return the rows of a table. Only those in ``often`` run by default."""
    rows = list(rows)
    assert all(row in rows for row in often), "such a row does not exist"
    return [row if row in often else pytest.param(row, marks=ONLY_IN_TRIALS) for row in rows]


def add_option(parser: pytest.Parser) -> None:
    """Add the option ``--trials``, and a Hypothesis profile for each level."""
    parser.addoption(
        OPTION,
        choices=LEVELS,
        default="short",
        help="how large the trials are: short (some two minutes for all tests), "
        "ci (some minutes for the trials), long (hours); `-m trial` runs nothing but trials",
    )
    for level, count in EXAMPLES.items():
        settings.register_profile(
            level, max_examples=count, deadline=None, suppress_health_check=list(HealthCheck)
        )


EXAMPLES = {"short": 15, "ci": 100, "long": 5_000}
"""The number of examples of each property test."""


def set_level(config: pytest.Config) -> None:
    """Collect `trial_*.py` unless trials are short. Set the number of examples."""
    level = config.getoption(OPTION)
    if level != "short":
        config.addinivalue_line("python_files", "trial_*.py")
    settings.load_profile(config.getoption("--hypothesis-profile") or level)


def size_of(item: Any, config: pytest.Config) -> int:
    """Return the size of a test at the chosen level; 0 if it is skipped."""
    level, sizes = config.getoption(OPTION), [1]
    for mark in item.iter_markers("trial"):
        sizes.append(mark.kwargs.get(level, 0))
        if not sizes[-1] and is_named(item, config):
            sizes[-1] = next(iter(mark.kwargs.values()))
    return min(sizes) and max(sizes)


def is_named(item: Any, config: pytest.Config) -> bool:
    """Return whether the command line names the test or its class as ``path::test``."""
    test = item.nodeid.partition("[")[0]
    named = (arg.partition("[")[0] for arg in config.args if "::" in arg)
    return any(test == name or test.startswith(f"{name}::") for name in named)


def give_size(metafunc: pytest.Metafunc) -> None:
    """Pass `size` to a trial as an argument, which becomes part of the test's id."""
    if "size" in metafunc.fixturenames:
        metafunc.parametrize("size", [size_of(metafunc.definition, metafunc.config)], scope="session")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the trials that have no size at this level, and mark the property tests as trials."""
    sizes = [size_of(item, config) for item in items]
    if not all(sizes):
        left_out = [item for item, size in zip(items, sizes, strict=True) if not size]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item, size in zip(items, sizes, strict=True) if size]
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.trial(**EXAMPLES))
