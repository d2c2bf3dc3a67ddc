"""A file of orders is read twice, but its first lines are kept and parsed only once."""

import weakref

import pytest

from tests.support.cases import each
from tests.support.order_files import csv_text, jsonl_text, row, tree
from transfer_async._cli import create_input
from transfer_async._cli.create_input import Changed, Format, opened

KEPT = 3


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch):
    monkeypatch.setattr(create_input, "KEPT", KEPT)


NUMBERS = range(1, 2 * KEPT + 1)
ROWS = [row(number) for number in NUMBERS]
CSV, JSONL = csv_text(ROWS), jsonl_text(map(tree, NUMBERS))


def opened_file(tmp_path, form: Format, text: str | None = None):
    path = tmp_path / "orders"
    path.write_text(text or (CSV if form is Format.CSV else JSONL), encoding="utf-8")
    return opened(path, form)


@each(
    ("form", "text"),
    [
        (Format.CSV, CSV),
        (Format.CSV, csv_text([ROWS[0], row(2, poster_amount="x"), *ROWS[2:]])),
        (Format.JSONL, JSONL.replace("\n", "\n\n\n")),
        (Format.JSONL, "{\n" + JSONL),
    ],
)
def test_every_reading_yields_the_same_records(tmp_path, form, text):
    with opened_file(tmp_path, form, text) as file:
        first = list(file.records())

        assert list(file.records()) == first
        assert list(file.records()) == first


@pytest.mark.parametrize("form", Format)
def test_the_first_records_are_reused_from_the_check(tmp_path, form):
    with opened_file(tmp_path, form) as orders:
        first = list(orders.records())
        again = list(orders.records())

    assert [one is other for one, other in zip(first, again, strict=True)] == [True] * KEPT + [False] * KEPT


def test_an_abandoned_reading_puts_no_order_on_another_line(tmp_path):
    with opened_file(tmp_path, Format.CSV) as orders:
        first = list(orders.records())
        next(orders.records())

        assert list(orders.records()) == first


def test_kept_records_of_a_changed_file_are_not_yielded(tmp_path):
    with opened_file(tmp_path, Format.JSONL) as orders:
        assert len(list(orders.records())) == 2 * KEPT
        (tmp_path / "orders").write_text(jsonl_text([tree(7)]), encoding="utf-8")

        with pytest.raises(Changed):
            next(orders.records())


def test_a_kept_record_is_released_once_it_is_yielded(tmp_path):
    with opened_file(tmp_path, Format.CSV) as orders:
        seen = [weakref.ref(record.command.order) for record in orders.records()]
        assert [ref() is not None for ref in seen] == [True] * KEPT + [False] * KEPT
        for _ in orders.records():
            pass

    assert [ref() for ref in seen] == [None] * 2 * KEPT
