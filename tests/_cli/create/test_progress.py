"""The progress display of a run, with a clock that the test controls."""

import io
from functools import partial

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tests.support.bank import Time
from tests.support.cases import each
from transfer_async._cli.create_outcomes import (
    PROGRESS_EVERY,
    UPDATED_EVERY,
    BarProgress,
    duration,
    shown_progress,
)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def lines():
    return []


@pytest.fixture
def progress(time, lines):
    with shown_progress(lines.append, live=False, quiet=False, clock=time.clock) as made:
        yield made


def test_the_rate_is_measured_over_the_last_seconds(time, lines, progress):
    for second in range(1, 11):  # keys that already have an order take almost no time
        time.pass_(1.0)
        progress.show("creating", 1000 * second, 20_000, "")
    for second in range(1, 101):
        time.pass_(1.0)
        progress.show("creating", 10_000 + 10 * second, 11_600, "")

    assert "; 1,000 a second, " in lines[0]
    assert lines[-1].endswith("; 10 a second, 1 min 4 s left")


@pytest.mark.parametrize("step", [0.01, 0.9, 1.0, 7.0])
def test_the_rate_does_not_depend_on_how_often_it_is_updated(time, lines, progress, step):
    for number in range(1, 1000):
        time.pass_(step)
        progress.show("checking", 1000 * number, None, "")

    rate = float(lines[-1].split()[3].replace(",", ""))
    assert rate == pytest.approx(1000 / step, rel=0.05)


def test_durations_are_shown_in_two_units():
    texts = {0: "0.0 s", 9.94: "9.9 s", 59.4: "59 s", 61: "1 min 1 s", 3599.7: "1 h 0 min", 90_000: "1 d 1 h"}

    assert {seconds: duration(seconds) for seconds in texts} == texts


def test_a_line_of_progress_is_written_every_few_seconds(time, lines, progress):
    for number in range(1, 21):
        time.pass_(PROGRESS_EVERY / 5)
        progress.show("creating", 10 * number, 1000, f"{10 * number} created")

    assert lines == [
        f"creating: {done} of 1,000 lines: {done} created; 10 a second, {left} left"
        for done, left in ((60, "1 min 34 s"), (110, "1 min 29 s"), (160, "1 min 24 s"))
    ]


def test_the_rate_is_unknown_before_any_time_has_passed(time, lines, progress):
    progress.show("creating", 0, 10, "none")
    time.pass_(PROGRESS_EVERY)
    progress.show("creating", 1, 10, "1 created")

    assert lines == ["creating: 1 of 10 lines: 1 created; no rate yet"]


def test_progress_without_a_total_is_shown(time, lines, progress):
    progress.show("checking", 0, None, "")
    for second in range(1, 6):
        time.pass_(PROGRESS_EVERY / 5)
        progress.show("checking", 10_000 * second, None, "")

    assert lines == ["checking: 50,000 lines, 10,000 a second"]


def test_on_a_terminal_there_is_a_bar(time):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, get_time=time.now) as bars:
        say = partial(console.print, markup=False, highlight=False)
        progress = BarProgress(bars, say, clock=time.clock)
        progress.show("checking", 5, None, "")
        assert bars.tasks[0].total is None  # so the bar pulses
        time.pass_(1.0)
        progress.show("creating", 10, 40, "10 created")
        time.pass_(1.0)
        progress.show("creating", 20, 40, "20 created")
        progress.say("[beside it]")
        bars.refresh()

    assert "creating: 20 of 40 lines: 20 created; 10 a second, 2.0 s left" in out.getvalue()
    assert "━" in out.getvalue()
    assert "[beside it]" in out.getvalue()


@each(("live", "written"), [(True, ("", "[beside it]")), (False, ("[beside it]", ""))])
def test_a_message_is_written_unchanged_above_the_bar_or_as_a_line(capsys, live, written):
    with shown_progress(print, live=live, quiet=False) as progress:
        progress.say("[beside it]")

    out, err = capsys.readouterr()
    assert (out.strip(), err.strip()) == written


def test_a_bar_is_not_updated_for_every_order(time):
    with Progress(disable=True, get_time=time.now) as bars:
        progress, moved = BarProgress(bars, print, clock=time.clock), []
        for number in range(1, 101):
            time.pass_(UPDATED_EVERY / 9.5)
            progress.show("creating", number, 100, "")
            moved.append(bars.tasks[0].completed)

    assert sorted(set(moved)) == [*range(1, 100, 10), 100]
