"""The file that the orders come from: one that can be read twice, as CSV or JSON Lines."""

from __future__ import annotations

import enum
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transfer_async._cli.console.text_lines import TextLines
from transfer_async._cli.create import csv_rows, json_lines
from transfer_async._cli.create.record import Record
from transfer_async._cli.create.unchanged_file import SteadyFile


class Format(enum.StrEnum):
    """How the file is written."""

    CSV = "csv"
    JSONL = "jsonl"


KEPT = 8192
"""How many orders are kept from one reading to the next, where making them costs more than reading the bytes.
They take 1.5 kB each; of a longer file, the others are made anew."""

_SUFFIXES = {".csv": Format.CSV, ".jsonl": Format.JSONL, ".ndjson": Format.JSONL}
_READERS = {Format.CSV: csv_rows.records, Format.JSONL: json_lines.records}


def format_of(path: Path, given: Format | None) -> Format:
    """The format that was given, or the one that the file's suffix means.

    Raises:
        ValueError: neither says.
    """
    found = given or _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise ValueError("--format: must say csv or jsonl, for the file's name does not")
    return found


class OrderFile:
    """Orders, read from the first line to the last as often as asked; the same each time.

    Args:
        steady: the file.
        form: how it is written.
    """

    def __init__(self, steady: SteadyFile, form: Format) -> None:
        self._steady, self._form = steady, form
        self._kept: deque[Record] | None = None

    def records(self) -> Iterator[Record]:
        """What each line comes to, in the file's order.

        The bytes are read each time, and held against those of the first reading. What the first reading
        has made of the first of them is kept, once: what was checked is what the second one hands out.

        Raises:
            Changed: on the way, if the file is not what it was.
        """
        lines, read = TextLines(self._steady.reading()), _READERS[self._form]
        if self._kept is not None:
            kept, self._kept = self._kept, deque()
            yield from read(lines, _handed_out(kept))
            return
        kept = self._kept = deque()
        for record in read(lines, iter(())):
            if len(kept) < KEPT:
                kept.append(record)
            yield record


def _handed_out(kept: deque[Record]) -> Iterator[Record]:
    """Each but once: who has it then says how long it stays in memory."""
    while kept:
        yield kept.popleft()


@contextmanager
def opened(path: Path, form: Format) -> Iterator[OrderFile]:
    """The file, to be closed in the end.

    Raises:
        ValueError: there is none, it cannot be read, or not twice.
    """
    try:
        # What is no file might never be opened: a pipe waits for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("FILE: must be a file: it is read twice, which a pipe or a directory cannot be")
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise ValueError(f"FILE: cannot be read ({error.strerror or error})") from None
    with file:
        yield OrderFile(SteadyFile(file), form)
