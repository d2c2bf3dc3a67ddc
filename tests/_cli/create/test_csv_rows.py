"""CSV files: valid rows are read exactly, and faults are reported with line and column."""

import json
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import each
from tests.support.order_files import csv_text, read_csv, row, tree
from tests.support.strategies import CHARACTERS, new_order_fields
from transfer_async import NewOrder, PersonName
from transfer_async._cli.create_input import COLUMNS, OPTIONAL
from transfer_async._converters.messages import OrderCommand
from transfer_async._models import requests

NEEDED = [name for name in COLUMNS if name not in OPTIONAL]


def faults(text: str | bytes) -> list[tuple[int, str, str]]:
    return [(record.line, name, why) for record in read_csv(text) for name, why in record.faults]


GOOD = csv_text([row(1), row(2)])
HEADER, FIRST, SECOND = GOOD.splitlines()


# --- what is read ---------------------------------------------------------------------------------


def test_a_row_is_the_same_command_as_a_line_of_json():
    name = {"first": "Ben", "last": "Okri"}
    times = {"send_before": "2030-01-02T03:04:05+01:00", "deadline": "2030-01-02T03:04:00Z"}
    cells = row(7, beneficiary_first="Ben", beneficiary_last="Okri", **times)
    (record,) = read_csv(csv_text([cells]))

    assert (record.line, record.key, record.faults) == (2, "payment-0000007", ())
    assert record.command == OrderCommand.from_json(json.dumps(tree(7, beneficiary=name, **times)).encode())


def test_columns_may_be_in_any_order_and_optional_ones_left_out():
    (record,) = read_csv(csv_text([{name: row(1)[name] for name in NEEDED}], columns=reversed(NEEDED)))

    assert (record.command.held, record.command.beneficiary) == (None, None)


def test_quotes_and_commas_are_read_as_they_are_written():
    assert read_csv(csv_text([row(1, held='"A", said the bank')]))[0].command.held == '"A", said the bank'


@each("text", ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n")])
def test_byte_order_marks_and_crlf_make_no_difference(text):
    commands = [record.command for record in read_csv(text)]

    assert commands == [record.command for record in read_csv(GOOD)]
    assert all(commands)


def test_empty_lines_are_skipped_but_counted():
    assert [one.line for one in read_csv(f"\n{HEADER}\n\n{FIRST}\n\r\n\n{SECOND}")] == [4, 7]


# --- faults ---------------------------------------------------------------------------------------

UNCLOSED = "contains a line break: check that every quote is closed"
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


USE_COMMAS = "as separators: use commas, and a decimal point in amounts"


def without(name: str) -> str:
    return csv_text([], columns=[column for column in COLUMNS if column != name])


def swallowed() -> str:
    """Return a file in which two stray quotes turn the lines between them into one cell of a whole row."""
    rows = [row(number, beneficiary_first="Ben", beneficiary_last="Okri") for number in range(1, 6)]
    rows[1]["beneficiary_last"] = "<Okri"
    rows[3]["beneficiary_last"] = "Okri>"
    columns = [*NEEDED, "held", "beneficiary_first", "beneficiary_last"]
    return re.sub("[<>]", '"', csv_text(rows, columns=columns))


@each(
    ("text", "line", "column", "why"),
    [
        *((without(name), 1, name, "is missing: add this column") for name in NEEDED),
        # Spreadsheets write semicolons in countries that use a decimal comma.
        *((GOOD.replace(",", sign), 1, "", f"uses {name} {USE_COMMAS}") for sign, name in SEPARATORS.items()),
        (f"{FIRST}\n{SECOND}", 1, "", "contains no known column name: the first line must be the header"),
        (f"{HEADER}\n{FIRST},x\n{SECOND}", 2, "", "has more values than the header has columns"),
        (f"{HEADER}\n{FIRST},\n{SECOND}", 2, "", "has more values than the header has columns"),
        (f"{HEADER}\n{FIRST[:-1]}\n{SECOND}", 2, "", "has fewer values than the header has columns"),
        (csv_text([row(1, held='"A", said\nthe bank'), row(2)]), 2, "held", UNCLOSED),
        (swallowed(), 3, "beneficiary_last", UNCLOSED),
    ],
)
def test_each_fault_has_its_line_its_column_and_its_reason(text, line, column, why):
    assert faults(text) == [(line, column, why)]


def test_unknown_and_duplicate_columns_are_faults_with_their_names():
    """If the fault had only the column's number, the user would have to count columns."""
    assert faults(GOOD.replace("key,", f"key,held\x1b[2J{'d' * 99},key,", 1)) == [
        (1, f"column 2, 'held?[2J{'d' * 32}…'", "is unknown: correct or remove it"),
        (1, "key", "is the name of more than one column: keep one of them"),
    ]


def test_faults_are_named_by_their_columns():
    changes = {
        "transaction_fee": "-1",
        "beneficiary_first": "Ben",
        "send_before": "tomorrow",
        "poster_amount": "1,0",
    }
    found = faults(csv_text([row(1, **changes)]))

    names = ("transaction_fee", "beneficiary_last", "send_before", "poster_amount")
    assert {(line, name) for line, name, _ in found} == {(2, name) for name in names}
    assert not any("tomorrow" in why or "1,0" in why for _, _, why in found)


@each(
    ("cell", "why"),
    [
        ('"x"y', "is not valid CSV (',' expected after '\"')"),
        ('"' + "x" * 200_000 + '"', "is not valid CSV (field larger than field limit (131072))"),
        ("a\rb", "is not valid CSV (new-line character seen in unquoted field"),
    ],
)
def test_invalid_csv_is_a_fault_and_the_next_row_is_read(cell, why):
    first, second = read_csv(f"{HEADER}\n{FIRST.replace('hold-1', cell)}\n{SECOND}\n")

    assert (first.line, first.faults[0][1][: len(why)]) == (2, why)
    assert second.command is not None


@each(("count", "least"), [(2, 0), (1499, 500)])
def test_an_unclosed_quote_is_a_fault_of_its_line_and_hides_a_limited_number_of_rows(count, least):
    text = csv_text(row(number) for number in range(1, count + 1))
    found = read_csv(text.replace("hold-1,", '"hold-1,', 1))

    assert [(record.line, record.faults[0][0]) for record in found[:1]] == [(2, "")]
    assert sum(record.command is not None for record in found) >= least


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
