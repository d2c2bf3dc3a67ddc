"""Trials: tests that have a size. `pytest` runs the small ones, `pytest --trials=long` runs all.

A trial has a size at each of three levels, and receives it as an argument::

    @pytest.mark.trial(short=20, ci=300, long=5000)
    def test_no_kill_makes_two_orders(size: int): ...

At a level without a size it is skipped. Modules of trials with slow imports are named `trial_*.py` and are
not collected with short trials.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LEVELS = ("short", "ci", "long")
OPTION = "--trials"


def add_option(parser: pytest.Parser) -> None:
    """Add the option for the size of the trials."""
    parser.addoption(
        OPTION,
        choices=LEVELS,
        default="short",
        help="how large the trials are: short (some two minutes for all tests), "
        "ci (some two minutes for the trials), long (hours); `-m trial` runs nothing but trials",
    )


EXAMPLES = {"short": 50, "ci": 250, "long": 5_000}
"""The number of examples of a property test."""


def set_level(config: pytest.Config) -> None:
    """Collect `trial_*.py` unless trials are short, and set the number of examples."""
    level = config.getoption(OPTION)
    if level != "short":
        config.addinivalue_line("python_files", "trial_*.py")
    settings.register_profile(
        level, max_examples=EXAMPLES[level], deadline=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile(level)


def size_of(item: Any, config: pytest.Config) -> int:
    """Return the size of a test at the chosen level; 0 if it is skipped."""
    marker = item.get_closest_marker("trial")
    return 1 if marker is None else marker.kwargs.get(config.getoption(OPTION), 0)


def give_size(metafunc: pytest.Metafunc) -> None:
    """Give a trial its argument `size`, which is part of the test's id."""
    if "size" in metafunc.fixturenames:
        metafunc.parametrize("size", [size_of(metafunc.definition, metafunc.config)], scope="session")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the trials without a size at this level."""
    left_out = [item for item in items if not size_of(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if size_of(item, config)]
