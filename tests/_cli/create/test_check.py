"""The check of a file: it reports all faults of all lines in bounded memory, and sums the valid orders."""

import tracemalloc
from decimal import Decimal

import pytest

from tests.support.order_files import csv_text, lines_of, row
from transfer_async._cli import create_input
from transfer_async._cli.create_input import SHOWN, Checking, Keys, Record, Stopped


def checked(rows, **settings) -> Checking:
    checking = Checking(**{"needs_held": False, **settings})
    with Keys() as keys:
        checking.run(create_input.csv_records(lines_of(csv_text(rows)), iter(())), keys)
    return checking


def test_the_sums_by_currency_are_exact():
    pounds = {
        "matcher_currency": "GBP",
        "matcher_amount": "0.01",
        "poster_amount": "0.03",
        "exchange_rate": "3",
    }
    checking = checked([row(1), row(2), row(3, **pounds)])

    assert (checking.records, checking.faults, checking.complaint()[0]) == (
        3,
        0,
        "0 errors in 0 lines. Nothing was sent.",
    )
    assert checking.sums == {
        "sent": {"NGN": Decimal("310050.03")},
        "to arrive": {"USD": Decimal("200.00"), "GBP": Decimal("0.01")},
    }
    assert checking.summary() == [
        "3 orders",
        "  sent      NGN        310,050.03",
        "  to arrive GBP        0.01",
        "  to arrive USD        200.00",
    ]


def test_a_duplicate_key_names_the_line_that_used_it_first():
    checking = checked([row(1), row(2), row(1), row(1, poster_amount="x")])

    assert checking.listed[0] == "line 4: key: is already used on line 2: give each order its own key"
    assert checking.listed[1].startswith("line 5: poster_amount: is not a plain decimal")
    assert checking.listed[2] == "line 5: key: is already used on line 2: give each order its own key"
    assert checking.complaint()[-1] == "3 errors in 2 lines. Nothing was sent."


def test_the_key_of_a_faulty_line_counts():
    assert (
        checked([row(1, poster_amount="x"), row(1)]).listed[1]
        == "line 3: key: is already used on line 2: give each order its own key"
    )


def test_the_first_faults_are_listed_and_the_others_counted():
    checking = checked(row(number, poster_amount="x", held="") for number in range(SHOWN + 500))

    assert len(checking.listed) == SHOWN
    assert (
        checking.complaint()[-1]
        == "1,500 errors in 1,500 lines; only the first 1,000 are shown. Nothing was sent."
    )


def test_no_fault_shows_a_value():
    told = "\n".join(
        checked(
            [row(1, poster_username="ada.eze", poster_country="Ada Eze", held="")], needs_held=True
        ).listed
    )

    assert "ada" not in told.lower()
    assert told.count("\n") == 1


def test_a_signal_stops_the_check():
    asked = []

    def is_stopped() -> bool:
        asked.append(True)
        return len(asked) > 2

    with pytest.raises(Stopped):
        checked((row(number) for number in range(1000)), is_stopped=is_stopped)


def test_keys_are_compared_exactly():
    with Keys() as keys:
        assert [keys.seen(key, line) for line, key in enumerate(["a", "A", "a ", "á", "á", "a"])] == [
            *[None] * 4,
            3,
            0,
        ]


def test_memory_stays_flat_over_a_long_file():
    def most(count: int) -> int:
        tracemalloc.start()
        checking = Checking(needs_held=False)
        with Keys() as keys:
            checking.run(
                (
                    Record(line=number, key=f"payment-{number}", faults=(("x", "y"),))
                    for number in range(count)
                ),
                keys,
            )
        seen = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert checking.records == count
        return seen

    few = most(500)

    assert most(3_000) < few + 100_000
