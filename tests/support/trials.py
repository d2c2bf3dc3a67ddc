"""Trials: tests that have a size. `pytest` runs the small ones, `pytest --trials=long` all that there are.

A trial says how large it is at each of three levels, and takes its size as an argument::

    @pytest.mark.trial(short=20, ci=300, long=5000)
    def test_no_kill_makes_two_orders(size: int): ...

At a level of which it says nothing it is left out. Modules of trials that are heavy to import are named
`trial_*.py`: with short trials they are not even looked at.
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
"""How many examples a property is tried with, unless it says so itself."""


def set_level(config: pytest.Config) -> None:
    """Collect `trial_*.py`, too, unless trials are short; and try properties as often as is wanted."""
    level = config.getoption(OPTION)
    if level != "short":
        config.addinivalue_line("python_files", "trial_*.py")
    settings.register_profile(
        level, max_examples=EXAMPLES[level], deadline=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile(level)


def size_of(item: Any, config: pytest.Config) -> int:
    """How large a test is at the level that was asked for; 0: it is left out."""
    marker = item.get_closest_marker("trial")
    return 1 if marker is None else marker.kwargs.get(config.getoption(OPTION), 0)


def give_size(metafunc: pytest.Metafunc) -> None:
    """The argument `size` of a trial; it shows in the test's id."""
    if "size" in metafunc.fixturenames:
        metafunc.parametrize("size", [size_of(metafunc.definition, metafunc.config)], scope="session")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the trials that are none at this level."""
    left_out = [item for item in items if not size_of(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if size_of(item, config)]
