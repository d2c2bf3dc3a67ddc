"""The cost of an order has not grown, counted in instructions so that the machine's load does not matter."""

import json
from pathlib import Path

import pytest

from benchmarks.programs.guard import guard_command
from benchmarks.programs.guard.guard_command import BLOCKS, CALLS, DECODE, ORDER, Figure, key, stored
from tests.support.cases import each

pytestmark = [pytest.mark.trial(ci=1, long=1), pytest.mark.timeout(1800)]
ADVICE = "if that is as it should be: python -m benchmarks guard --store"
here = pytest.mark.skipif(  # the stored figures hold only for one type of machine and one version of Python
    key() not in stored(),
    reason=f"no figures are stored for {key()}",
)
with_valgrind = pytest.mark.skipif(  # valgrind is not a Python package
    guard_command.why_instructions_are_unavailable() is not None,
    reason=str(guard_command.why_instructions_are_unavailable()),
)


@pytest.fixture(scope="module")
def usual() -> dict[str, float]:
    """Count the instructions once, because counting is slow."""
    return guard_command.count_instructions()


def judged(found: dict[str, float]) -> None:
    lines = guard_command.compare_figures(found, stored())
    if not any(line.compared for line in lines):
        pytest.skip("; ".join(map(str, lines)))
    assert all(line.is_within_margin for line in lines), "; ".join(map(str, (*lines, ADVICE)))


@here
def test_calls_and_memory_of_an_order_match_the_stored_figures():
    judged(guard_command.count_calls_and_memory())


@here
@with_valgrind
@pytest.mark.trial(long=1)
def test_instructions_of_an_order_and_a_decode_match_the_stored_figures(usual: dict[str, float]):
    judged(usual)


def test_an_extra_copy_changes_calls_and_memory():
    lean, wasteful = guard_command.count_calls_and_memory(), guard_command.count_calls_and_memory(waste=True)

    for name in (CALLS, BLOCKS):
        assert not Figure(name, wasteful[name], lean[name]).is_within_margin


@with_valgrind
@pytest.mark.trial(long=1)
def test_an_extra_copy_changes_instructions(usual: dict[str, float]):
    wasteful = guard_command.count_instructions(waste=True, decode=False)

    assert not Figure(ORDER, wasteful[ORDER], usual[ORDER]).is_within_margin


@each(("found", "is_within"), [(109.9, True), (90.1, True), (110.1, False), (89.9, False)])
def test_a_change_within_a_tenth_is_accepted(found: float, is_within: bool):
    assert Figure(ORDER, found, 100.0).is_within_margin is is_within


def test_figures_of_another_version_are_named_and_not_compared():
    kept = {"CPython 2.7, aiohttp 0.1": {"build": "an old one", "figures": {CALLS: 1.0}}}
    why = f"not compared: figures are stored for CPython 2.7, aiohttp 0.1, not for {key()}"

    (line,) = guard_command.compare_figures({CALLS: 5.0}, kept)

    assert (line.is_within_margin, str(line)) == (True, f"{CALLS}: 5.0; {why}")


def test_instructions_of_another_build_are_not_compared_but_calls_are():
    kept = {key(): {"build": "another", "figures": {DECODE: 1.0, CALLS: 1.0}}}

    decode, calls = guard_command.compare_figures({DECODE: 5.0, CALLS: 5.0}, kept)

    assert decode.is_within_margin
    assert "another" in str(decode)
    assert not calls.is_within_margin


def test_storing_figures_keeps_those_of_other_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, other = tmp_path / "guard.json", {"another": {"build": "", "figures": {}}}
    file.write_text(json.dumps(other), encoding="utf-8")
    monkeypatch.setattr(guard_command, "STORED", file)

    guard_command.store({CALLS: 12.34})

    assert set(stored()) == {"another", key()}
    (line,) = guard_command.compare_figures({CALLS: 12.34}, stored())
    assert line.is_within_margin
