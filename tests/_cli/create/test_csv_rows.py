"""CSV files: valid rows are read exactly, and faults are reported with line and column."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import each
from tests.support.order_files import COMMON, csv_text, read_csv, row
from tests.support.strategies import CHARACTERS, new_order_fields
from transfer_async import NewExternalOrder, NewOrder, PersonName
from transfer_async._cli.create_input import COLUMNS, OPTIONAL
from transfer_async._converters.messages import OrderCommand
from transfer_async._models import requests

NEEDED = [name for name in COLUMNS if name not in OPTIONAL]


def faults(text: str | bytes) -> list[tuple[int, str, str]]:
    return [(record.line, name, why) for record in read_csv(text) for name, why in record.faults]


# --- what is read ---------------------------------------------------------------------------------


def test_a_row_is_a_command():
    changes = {
        "beneficiary_first": "Ben",
        "beneficiary_last": "Okri",
        "send_before": "2030-01-02T03:04:05+01:00",
        "deadline": "2030-01-02T03:04:00Z",
    }
    (record,) = read_csv(csv_text([row(7, **changes)]))

    assert (record.line, record.key, record.faults) == (2, "payment-0000007", ())
    assert record.command == OrderCommand(
        key="payment-0000007",
        order=NewOrder(
            poster_username="payment-0000007@bulk.example",
            **{name: value for name, value in COMMON.items() if COLUMNS[name] == f"order.{name}"},
            external_order=NewExternalOrder(
                current_account_balance="900000.10", transaction_fee="250", transaction_fee_currency="NGN"
            ),
        ),
        beneficiary=PersonName("Ben", "Okri"),
        held="hold-7",
        send_before=datetime(2030, 1, 2, 2, 4, 5, tzinfo=UTC),
        deadline=datetime(2030, 1, 2, 3, 4, tzinfo=UTC),
    )


def test_columns_may_be_in_any_order_and_optional_ones_left_out():
    (record,) = read_csv(csv_text([{name: row(1)[name] for name in NEEDED}], columns=reversed(NEEDED)))

    assert record.command.held is None
    assert record.command.beneficiary is None


def test_quotes_commas_and_ends_of_lines_are_read_as_they_are_written():
    text = csv_text([row(1, held='"A", said\nthe bank'), row(2)])
    found = read_csv(text)

    assert found[1].line == 4  # one cell of the previous row contains a line break
    assert found[1].key == "payment-0000002"
    assert found[0].faults == (("held", "contains a line break: check that every quote is closed"),)
    assert read_csv(csv_text([row(1, held='"A", said the bank')]))[0].command.held == '"A", said the bank'


@pytest.mark.parametrize("change", [lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n")])
def test_byte_order_marks_and_crlf_make_no_difference(change):
    text = csv_text([row(1), row(2)])

    assert [one.command for one in read_csv(change(text))] == [one.command for one in read_csv(text)]
    assert all(one.command for one in read_csv(change(text)))


def test_empty_lines_are_skipped_but_counted():
    header, first, second = csv_text([row(1), row(2)]).splitlines()

    assert [one.line for one in read_csv(f"\n{header}\n\n{first}\n\r\n\n{second}")] == [4, 7]


# --- the header -----------------------------------------------------------------------------------


@each("missing", NEEDED)
def test_a_missing_column_is_a_fault_of_the_first_line(missing):
    text = csv_text([], columns=[name for name in COLUMNS if name != missing])

    assert faults(text) == [(1, missing, "is missing: add this column")]


def test_unknown_and_duplicate_columns_are_faults_with_their_names():
    """If the fault had only the column's number, the user would have to count columns."""
    text = csv_text([row(1)]).replace("key,", f"key,held\x1b[2J{'d' * 99},key,", 1)

    assert faults(text) == [
        (1, f"column 2, 'held?[2J{'d' * 32}…'", "is unknown: correct or remove it"),
        (1, "key", "is the name of more than one column: keep one of them"),
    ]


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")])
def test_other_separators_than_commas_are_one_fault(mark, name):
    """Spreadsheets write semicolons in countries that use a decimal comma."""
    assert faults(csv_text([row(1)]).replace(",", mark)) == [
        (
            1,
            "",
            f"uses {name} as separators: use commas, and a decimal point in amounts",
        )
    ]


def test_a_missing_header_is_one_fault_and_shows_no_personal_data():
    text = csv_text([row(1), row(2)]).partition("\n")[2]

    assert faults(text) == [(1, "", "contains no known column name: the first line must be the header")]


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "more"), [(",x", "more"), (",", "more"), (None, "fewer")])
def test_a_row_must_have_as_many_cells_as_there_are_columns(change, more):
    header, first, second = csv_text([row(1), row(2)]).splitlines()
    first = first.rpartition(",")[0] if change is None else first + change

    assert faults(f"{header}\n{first}\n{second}") == [
        (2, "", f"has {more} values than the header has columns")
    ]


def test_faults_are_named_by_their_columns():
    changes = {
        "transaction_fee": "-1",
        "beneficiary_first": "Ben",
        "send_before": "tomorrow",
        "poster_amount": "1,0",
    }
    found = faults(csv_text([row(1, **changes)]))

    assert {(line, name) for line, name, _ in found} == {
        (2, "transaction_fee"),
        (2, "beneficiary_last"),
        (2, "send_before"),
        (2, "poster_amount"),
    }
    assert not any("tomorrow" in why or "1,0" in why for _, _, why in found)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ('"x"y', "is not valid CSV (',' expected after '\"')"),
        ('"' + "x" * 200_000 + '"', "is not valid CSV (field larger than field limit (131072))"),
        ("a\rb", "is not valid CSV (new-line character seen in unquoted field"),
    ],
)
def test_invalid_csv_is_a_fault_and_the_next_row_is_read(cell, why):
    header, first, second = csv_text([row(1), row(2)]).splitlines()
    found = read_csv(f"{header}\n{first.replace('hold-1', cell)}\n{second}\n")

    assert found[0].line == 2
    assert found[0].faults[0][1].startswith(why)
    assert found[1].command is not None


def test_an_unclosed_quote_is_a_fault_of_the_line_where_it_opens():
    text = csv_text([row(1), row(2)]).replace("hold-1", '"hold-1')

    assert [(line, name) for line, name, _ in faults(text)] == [(2, "")]


def test_quotes_that_swallow_the_orders_between_them_are_a_fault():
    """Two stray quotes turn all lines between them into one cell, and the row still has enough cells."""
    rows = [row(number, beneficiary_first="Ben", beneficiary_last="Okri") for number in range(1, 6)]
    rows[1]["beneficiary_last"] = "<Okri"
    rows[3]["beneficiary_last"] = "Okri>"
    text = csv_text(rows, columns=[*NEEDED, "held", "beneficiary_first", "beneficiary_last"])

    assert faults(text.replace("<", '"').replace(">", '"')) == [
        (3, "beneficiary_last", "contains a line break: check that every quote is closed")
    ]


def test_an_unclosed_quote_hides_a_limited_number_of_rows():
    header, _, rest = csv_text(row(number) for number in range(1, 1500)).partition("\n")
    found = read_csv(header + "\n" + rest.replace("hold-1,", '"hold-1,', 1))

    assert found[0].line == 2
    assert sum(one.command is not None for one in found) > 500


# --- round trips ----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)
references = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30).filter(
    str.strip
)
times = st.datetimes(
    min_value=datetime(2000, 1, 1),  # noqa: DTZ001 - Hypothesis adds the zone
    timezones=st.integers(-720, 720).map(lambda m: timezone(timedelta(minutes=m))),
)
commands = st.builds(
    OrderCommand,
    key=texts.filter(lambda key: requests.problem(key) is None),
    order=new_order_fields().map(lambda fields: NewOrder.quote(**fields, places=8)),
    beneficiary=st.none() | st.builds(PersonName, references, references, st.none() | references),
    held=st.none() | references,
    send_before=st.none() | times,
    deadline=st.none() | times,
)


def as_row(command: OrderCommand) -> dict[str, str]:
    parts = {
        "": attrs.asdict(command, recurse=False),
        "order": attrs.asdict(command.order, recurse=False),
        "order.external_order": attrs.asdict(command.order.external_order, recurse=False),
        "beneficiary": {} if command.beneficiary is None else attrs.asdict(command.beneficiary),
    }
    cells = {}
    for column, place in COLUMNS.items():
        part, _, name = place.rpartition(".")
        value = parts[part].get(name)
        if isinstance(value, Decimal):
            value = format(value, "f")
        cells[column] = value.isoformat() if isinstance(value, datetime) else value or ""
    return cells


@given(commands)
def test_a_command_survives_the_round_trip_through_csv(wanted):
    (record,) = read_csv(csv_text([as_row(wanted)]))

    assert record.command == wanted


@given(st.binary(max_size=300) | st.text(CHARACTERS, max_size=300).map(str.encode))
def test_reading_any_bytes_ends_with_faults_or_commands(data):
    header = csv_text([]).encode()

    for text in (data, header + data):
        for record in read_csv(text):
            assert record.faults or record.command
