"""The check of a file: it reports all faults of all lines in bounded memory, and sums the valid orders."""

import tracemalloc

from tests.support.order_files import csv_text, lines_of, row
from transfer_async._cli import create_input
from transfer_async._cli.create_input import SHOWN, Checking, Keys, Record


def checked(rows) -> Checking:
    checking = Checking(needs_held=False)
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

    assert (checking.records, checking.faults) == (3, 0)
    assert checking.summary() == [
        "3 orders",
        "  sent      NGN        310,050.03",
        "  to arrive GBP        0.01",
        "  to arrive USD        200.00",
    ]


def test_a_duplicate_key_names_the_line_that_used_it_first_even_if_that_is_faulty():
    checking = checked([row(1, poster_amount="ada.eze"), row(2), row(1), row(1, poster_country="Ada Eze")])
    amount, duplicate, country, another = checking.listed

    used = "key: is already used on line 2: give each order its own key"
    assert amount.startswith("line 2: poster_amount: is not a plain decimal")
    assert country.startswith("line 5: poster_country: ")
    assert (duplicate, another) == (f"line 4: {used}", f"line 5: {used}")
    assert checking.complaint()[-1] == "4 errors in 3 lines. Nothing was sent."
    assert "ada" not in str(checking.listed).lower()


def test_the_first_faults_are_listed_and_the_others_counted():
    checking = checked(row(number, poster_amount="x", held="") for number in range(SHOWN + 5))

    assert len(checking.listed) == SHOWN
    shown = "1,005 errors in 1,005 lines; only the first 1,000 are shown. Nothing was sent."
    assert checking.complaint()[-1] == shown


def test_keys_are_compared_exactly():
    with Keys() as keys:
        seen = [keys.seen(key, line) for line, key in enumerate(["a", "A", "a ", "á", "á", "a"])]

    assert seen == [None, None, None, None, 3, 0]


def test_memory_stays_flat_over_a_long_file():
    def most(count: int) -> int:
        tracemalloc.start()
        checking, faults = Checking(needs_held=False), (("x", "y"),)
        with Keys() as keys:
            checking.run(
                (Record(line=one, key=f"payment-{one}", faults=faults) for one in range(count)), keys
            )
        seen = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert checking.records == count
        return seen

    few = most(500)

    assert most(3_000) < few + 100_000
