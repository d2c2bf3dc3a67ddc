"""How far it has come, told by a clock that a test holds in its hands."""

import io
import sys

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tests.support.bank import Time
from transfer_async._cli.create.progress import (
    DRAWN_EVERY,
    EVERY,
    LiveProgress,
    Pace,
    PlainProgress,
    Silence,
    duration,
    shown_progress,
)


@pytest.fixture
def time():
    return Time()


def test_the_rate_is_that_of_late(time):
    pace = Pace(time.now)
    for second in range(1, 11):  # what was done before goes by at once
        time.pass_(1.0)
        pace.note(1000 * second)
    fast = pace.rate
    for second in range(1, 101):
        time.pass_(1.0)
        pace.note(10_000 + 10 * second)

    assert fast == pytest.approx(1000)
    assert pace.rate == pytest.approx(10)
    assert pace.told(11_600) == "10 a second, 1 min 0 s left"


def test_nobody_can_say_a_rate_before_any_time_has_passed(time):
    pace = Pace(time.now)
    pace.note(0)

    assert pace.told(10) == "no rate yet"


@pytest.mark.parametrize("step", [0.01, 0.9, 1.0, 7.0, 31.0, 100.0])
def test_the_rate_is_right_however_often_it_is_noted(time, step):
    pace = Pace(time.now)
    for number in range(1, 200):
        time.pass_(step)
        pace.note(number)

    assert pace.rate == pytest.approx(1 / step, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (3599.7, "1 h 0 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations_are_told_in_two_units(seconds, told):
    assert duration(seconds) == told


def test_a_line_comes_every_few_seconds_and_no_more(time):
    lines = []
    progress = PlainProgress(lines.append, clock=time.clock)
    for number in range(1, 21):
        time.pass_(EVERY / 5)
        progress.show("creating", 10 * number, 1000, f"{10 * number} created")

    assert lines == [
        f"creating: {done} of 1,000 lines: {done} created; 10 a second, {left} left"
        for done, left in ((60, "1 min 34 s"), (110, "1 min 29 s"), (160, "1 min 24 s"))
    ]


def test_what_has_no_end_yet_is_told_too(time):
    lines = []
    progress = PlainProgress(lines.append, clock=time.clock)
    progress.show("checking", 0, None, "")
    time.pass_(EVERY)
    progress.show("checking", 50_000, None, "")
    progress.say("beside it")

    assert lines == ["checking: 50,000 lines, 10,000 a second", "beside it"]


def test_on_a_terminal_there_is_a_bar(time):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(BarColumn(), TextColumn("{task.description}", markup=False), console=console) as bars:
        progress = LiveProgress(bars, clock=time.clock)
        progress.show("checking", 5, None, "")
        time.pass_(1.0)
        progress.show("creating", 10, 40, "10 created")
        time.pass_(1.0)
        progress.show("creating", 20, 40, "20 created")
        progress.say("[beside it]")
        bars.refresh()

    assert "creating: 20 of 40 lines: 20 created; 10 a second, 2.0 s left" in out.getvalue()
    assert "━" in out.getvalue()
    assert "[beside it]" in out.getvalue()


def test_a_bar_is_not_drawn_for_every_order(time):
    class Bars:
        def __init__(self):
            self.drawn = []

        def add_task(self, *_, **__):
            return 1

        def update(self, _, *, completed, **__):
            self.drawn.append(completed)

    bars = Bars()
    progress = LiveProgress(bars, clock=time.clock)
    for number in range(1, 101):
        time.pass_(DRAWN_EVERY / 9.5)
        progress.show("creating", number, 100, "")

    assert bars.drawn == [*range(1, 100, 10), 100]


@pytest.mark.parametrize(
    ("live", "quiet", "kind"),
    [
        (False, False, PlainProgress),
        (True, False, LiveProgress),
        (True, True, Silence),
        (False, True, Silence),
    ],
)
def test_it_is_shown_as_it_is_wanted(live, quiet, kind):
    with shown_progress(print, live=live, quiet=quiet) as progress:
        assert type(progress) is kind


def test_without_rich_there_are_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with shown_progress(print, live=True, quiet=False) as progress:
        assert type(progress) is PlainProgress


def test_silence_says_nothing(capsys):
    Silence().show("creating", 1, 2, "")
    Silence().say("x")

    assert capsys.readouterr() == ("", "")
