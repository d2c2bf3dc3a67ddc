"""JSON Lines files: each line is a command in the format that workers receive, or it has faults."""

import json

from tests.support.cases import each
from tests.support.order_files import jsonl_text, lines_of, tree
from transfer_async._cli.create_input import Record, json_records
from transfer_async._converters.messages import OrderCommand


def read(text: str | bytes) -> list[Record]:
    return list(json_records(lines_of(text), iter(())))


def only_fault(text: str | bytes) -> tuple[int, str, str]:
    (record,) = read(text)
    ((name, why),) = record.faults
    assert record.command is None
    return record.line, name, why


def test_a_line_is_read_like_a_message_of_a_broker():
    text = jsonl_text([tree(1), tree(2, beneficiary={"first": "Ben", "last": "Okri"})])
    found = read(text)

    assert [record.command for record in found] == [
        OrderCommand.from_json(line) for line in text.splitlines()
    ]
    assert [(record.line, record.key) for record in found] == [(1, "payment-0000001"), (2, "payment-0000002")]


def test_empty_lines_are_skipped_but_counted():
    text = f"\n  \n{json.dumps(tree(1))}\n\r\n\n{json.dumps(tree(2))}"

    assert [record.line for record in read(text)] == [3, 6]


@each("text", ["{", "nonsense", "{} {}", '"\\ud800"x', "[1"])
def test_invalid_json_is_a_fault_of_the_line_itself(text):
    line, name, why = only_fault(text)

    assert (line, name) == (1, "")
    assert "JSON" in why


def test_a_number_with_too_many_digits_is_reported_as_such():
    """If the fault were "not JSON", the user would search for a missing bracket."""
    text = jsonl_text([tree(1)]).replace('"155025.00"', "9" * 5000)

    assert only_fault(text) == (1, "", "contains a whole number with too many digits")


def test_bad_bytes_are_a_fault_of_their_line():
    assert only_fault(json.dumps(tree(1)).encode().replace(b"payment", b"p\xff")) == (1, "", "is not UTF-8")


def test_all_faults_of_a_line_are_reported_with_their_paths():
    bad = tree(1, held=7)
    bad["order"] |= {"poster_amount": "1e5", "poster_country": "ng"}
    del bad["order"]["matcher_currency"]
    (record,) = read(json.dumps(bad))

    assert {name for name, _ in record.faults} == {
        "held",
        "order.poster_amount",
        "order.poster_country",
        "order.matcher_currency",
    }
    assert record.key == "payment-0000001"


def test_a_line_without_a_key_is_a_fault():
    assert only_fault(json.dumps(tree(1, key=None))) == (1, "key", "is missing")
