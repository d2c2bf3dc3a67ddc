"""Files of orders, as a bank would write them."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.order_fields import EXTERNAL, ORDER
from transfer_async._cli import create_input
from transfer_async._cli.create_input import COLUMNS, Record
from transfer_async._cli.output import TextLines

COMMON = {name: str(value) for name, value in {**ORDER, **EXTERNAL}.items() if name != "poster_username"}
REFUSED_EVERY = 100
"""One order in so many has a beneficiary whom the service does not know."""


def row(number: int, **changes: str) -> dict[str, str]:
    """The cells of an order, by column; its poster's name says which it is."""
    key = f"payment-{number:07}"
    return {"key": key, "poster_username": poster_of(key)} | COMMON | {"held": f"hold-{number}"} | changes


def poster_of(key: str) -> str:
    return f"{key}@bulk.example"


def rows(count: int, **changes: str) -> Iterator[dict[str, str]]:
    """So many orders, some of which will be refused."""
    for number in range(1, count + 1):
        nobody = {"poster_recipient_username": "nobody@example.com"} if number % REFUSED_EVERY == 0 else {}
        yield row(number, **changes, **nobody)


def csv_text(rows: Iterable[dict[str, str]], *, columns: Iterable[str] | None = None) -> str:
    out = io.StringIO()
    write_csv(out, rows, columns=columns)
    return out.getvalue()


def write_csv(out: Any, rows: Iterable[dict[str, str]], *, columns: Iterable[str] | None = None) -> None:
    writer = csv.DictWriter(out, list(columns or COLUMNS), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def tree(number: int, **changes: Any) -> dict[str, Any]:
    """An order as JSON Lines have it."""
    cells = row(number)
    external = {name: cells[name] for name in COLUMNS if COLUMNS[name].startswith("order.external_order.")}
    order = {name: cells[name] for name in COLUMNS if COLUMNS[name] == f"order.{name}"}
    command = {"version": 1, "key": cells["key"], "held": cells["held"]}
    return command | {"order": order | {"external_order": external}} | changes


def jsonl_text(trees: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in trees)


def csv_file(path: Path, count: int, **changes: str) -> Path:
    """A file with so many orders."""
    with path.open("w", newline="", encoding="utf-8") as out:
        write_csv(out, rows(count, **changes))
    return path


def lines_of(text: str | bytes) -> TextLines:
    """The text as it is read from a file."""
    data = text.encode() if isinstance(text, str) else text
    return TextLines(io.BufferedReader(io.BytesIO(data)))


def read_csv(text: str | bytes) -> list[Record]:
    """What comes of it, line by line."""
    return list(create_input.csv_records(lines_of(text), iter(())))


def told(path: Path) -> list[dict[str, Any]]:
    """The lines of an outcome file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
