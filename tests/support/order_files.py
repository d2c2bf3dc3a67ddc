"""Create files of orders, and read their outcomes."""

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
"""Of this number of orders, one has an unregistered beneficiary, so the service refuses it."""


def row(number: int, **changes: str) -> dict[str, str]:
    """Return the cells of an order by column name. The poster's username contains the key."""
    key = f"payment-{number:07}"
    return {"key": key, "poster_username": poster_of(key)} | COMMON | {"held": f"hold-{number}"} | changes


def poster_of(key: str) -> str:
    return f"{key}@bulk.example"


def rows(count: int, **changes: str) -> Iterator[dict[str, str]]:
    """Yield ``count`` orders; the service refuses every hundredth one."""
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
    """Return an order as the object on a line of a JSON Lines file."""
    cells = row(number)
    external = {name: cells[name] for name in COLUMNS if COLUMNS[name].startswith("order.external_order.")}
    order = {name: cells[name] for name in COLUMNS if COLUMNS[name] == f"order.{name}"}
    command = {"version": 1, "key": cells["key"], "held": cells["held"]}
    return command | {"order": order | {"external_order": external}} | changes


def jsonl_text(trees: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(tree) + "\n" for tree in trees)


def csv_file(path: Path, count: int, **changes: str) -> Path:
    """Write a file with ``count`` orders."""
    with path.open("w", newline="", encoding="utf-8") as out:
        write_csv(out, rows(count, **changes))
    return path


def lines_of(text: str | bytes) -> TextLines:
    """Return the lines of a text as if they were read from a file."""
    data = text.encode() if isinstance(text, str) else text
    return TextLines(io.BufferedReader(io.BytesIO(data)))


def read_csv(text: str | bytes) -> list[Record]:
    """Return the records of a CSV text."""
    return list(create_input.csv_records(lines_of(text), iter(())))


def outcomes_in(path: Path) -> list[dict[str, Any]]:
    """Return the outcomes that a file contains."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
