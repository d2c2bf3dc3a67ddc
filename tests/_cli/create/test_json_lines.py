"""JSON Lines files: each line is a command in the format that workers receive, or it has faults."""

import json

from tests.support.cases import each
from tests.support.order_files import jsonl_text, lines_of, tree
from transfer_async._cli.create_input import Record, json_records
from transfer_async._converters.messages import OrderCommand

GOOD = json.dumps(tree(1))


def read(text: str | bytes) -> list[Record]:
    return list(json_records(lines_of(text), iter(())))


def test_a_line_is_read_like_a_message_of_a_broker():
    text = jsonl_text([tree(1), tree(2, beneficiary={"first": "Ben", "last": "Okri"})])
    found = read(text)

    assert [record.command for record in found] == [
        OrderCommand.from_json(line) for line in text.splitlines()
    ]
    assert [(record.line, record.key) for record in found] == [(1, "payment-0000001"), (2, "payment-0000002")]


def test_empty_lines_are_skipped_but_counted():
    assert [record.line for record in read(f"\n  \n{GOOD}\n\r\n\n{GOOD}")] == [3, 6]


@each(
    ("text", "fault"),
    [
        *(
            (text, (1, "", "is not readable JSON (DecodeError)"))
            for text in ("{", "nonsense", "{} {}", '"\\ud800"x', "[1")
        ),
        # If the fault were "not JSON", the user would search for a missing bracket.
        (GOOD.replace('"155025.00"', "9" * 5000), (1, "", "contains a whole number with too many digits")),
        (GOOD.encode().replace(b"payment", b"p\xff"), (1, "", "is not UTF-8")),
        (json.dumps(tree(1, key=None)), (1, "key", "is missing")),
    ],
)
def test_a_line_that_is_no_command_has_one_fault(text, fault):
    (record,) = read(text)

    assert (record.line, *record.faults[0]) == fault
    assert (len(record.faults), record.command) == (1, None)


def test_all_faults_of_a_line_are_reported_with_their_paths():
    bad = tree(1, held=7)
    bad["order"] |= {"poster_amount": "1e5", "poster_country": "ng"}
    del bad["order"]["matcher_currency"]
    (record,) = read(json.dumps(bad))

    names = ["order.matcher_currency", "order.poster_amount", "order.poster_country"]
    assert sorted(name for name, _ in record.faults) == ["held", *names]
    assert record.key == "payment-0000001"
