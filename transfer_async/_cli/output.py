"""How a command speaks: lines on stdout, complaints on stderr, and how it ends."""

from __future__ import annotations

import io
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, TextIO

import typer
from typer.core import TyperCommand

from transfer_async._models.requests import UNSEEN

Say = Callable[[str], object]
"""Writes one line."""


def tell(line: str) -> None:
    """Write a line; once nobody reads any more, nothing: the exit code still tells how it ends."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        _let_go(sys.stdout)


def complain(line: str) -> None:
    """The same on stderr."""
    try:
        typer.echo(line, err=True)
    except BrokenPipeError:
        _let_go(sys.stderr)


def _let_go(stream: TextIO) -> None:
    # What is left in its buffer must go somewhere, or Python ends with a code of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fail(why: str, code: int) -> NoReturn:
    """Complain in a line, and end."""
    complain(shown(why))
    raise typer.Exit(code)


@contextmanager
def failing(
    command: str, codes: Mapping[type[Exception], int], *, words: Callable[[Exception], str] | None = None
) -> Iterator[None]:
    """Tell an error of these kinds in one line, and end the command with the code of the first that fits.

    Args:
        command: begins the line.
        codes: exit codes by kind.
        words: what is told of an error.
    """
    try:
        yield
    except tuple(codes) as error:
        code = next(code for kind, code in codes.items() if isinstance(error, kind))
        fail(f"{command}: {(words or in_words)(error)}", code)


def in_words(error: Exception) -> str:
    """What ``error`` says; of the system's own the file and the reason, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def in_one_line(error: BaseException, words: str | None = None) -> str:
    """The kind of ``error``, and what it says; of an error that may say too much, those of its words."""
    told = str(error) if words is None else words
    return f"{type(error).__name__}: {shown(told)}".removesuffix(": ")


def in_columns(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> Iterator[str]:
    """Rows as lines, cell below cell; those from column ``numbers_from`` on end where the others end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if numbers_from is None or at < numbers_from else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table: with lines and colours on a terminal, in columns elsewhere."""
    if not sys.stdout.isatty():
        for line in in_columns([columns, *rows]):
            tell(line)
        return
    from rich.console import Console  # 20 ms, with the next two
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as texts: a key may look like markup
    Console().print(table)


def somebody_is_there() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()


@contextmanager
def logged(
    logger: logging.Logger,
    say: Callable[[str], object],
    *,
    form: str = "%(asctime)s %(levelname)s %(message)s",
    time: str | None = None,
) -> Iterator[None]:
    """Hand every record of ``logger`` on to ``say`` as a line, those of level INFO too.

    Args:
        logger: whose records.
        say: takes one line.
        form: what a line looks like, as `logging.Formatter` takes it.
        time: what its time looks like.
    """
    lines, level = _LineHandler(say), logger.level
    lines.setFormatter(logging.Formatter(form, time))
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


class _LineHandler(logging.Handler):
    """Hands every record on as a line."""

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(shown_lines(self.format(record)))  # a broker's own words may be in it
        except Exception:  # noqa: BLE001 - as logging's own handlers: a log line never hurts the work
            self.handleError(record)


# --- text from elsewhere ----------------------------------------------------------------------------


def shown(text: str | None) -> str:
    """``text`` from elsewhere, fit for a terminal: nothing that moves its cursor or starts a line."""
    if text is None:
        return "-"
    if text.isascii() and text.isprintable():
        return text
    return "".join(item if item.isprintable() and not UNSEEN.match(item) else "?" for item in text)


def shown_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(shown, text.split("\n")))


def shown_json(text: str) -> str:
    """JSON, fit for a terminal: it says the same, with what would move the cursor escaped."""
    # Outside its strings there is nothing to escape but the ends of lines.
    return "".join(
        item if item.isprintable() or item == "\n" else json.dumps(item).removeprefix('"').removesuffix('"')
        for item in text
    )


# --- usage -------------------------------------------------------------------------------------------
# How a command is told to be used: its arguments by their names alone, as in every manual page.


class PlainUsage(TyperCommand):
    """A command whose usage line says ``KEY``, where Typer would say ``{KEY}``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands after the command's name."""
        return [piece.removeprefix("{").removesuffix("}") for piece in super().collect_usage_pieces(ctx)]


# --- text lines --------------------------------------------------------------------------------------
# The lines of a text file, numbered as an editor shows them, none of them longer than memory is for.


LONGEST = 1 << 20
"""How many bytes a line may have: an order has less than a thousand."""

_BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """A line cannot be read as text; those after it can."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


class TextLines:
    """An iterator that goes on after a `BadLine`.

    Args:
        file: read from its beginning.

    Attributes:
        number: of the last line that was read.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.number = 0

    def __iter__(self) -> TextLines:
        return self

    def __next__(self) -> str:
        """The next line with its end, as it is in the file.

        Raises:
            BadLine: it is no text, or too long.
        """
        raw = self._file.readline(LONGEST + 1)
        if not raw:
            raise StopIteration
        self.number += 1
        if len(raw) > LONGEST:
            self._skip_rest(raw)
            raise BadLine(self.number, "is longer than a mebibyte")
        if self.number == 1:
            raw = raw.removeprefix(_BOM)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise BadLine(self.number, "is not UTF-8") from None

    def _skip_rest(self, raw: bytes) -> None:
        while raw and not raw.endswith(b"\n"):
            raw = self._file.readline(LONGEST)


def each_line(lines: TextLines) -> Iterator[str | BadLine]:
    """Each line that has something in it, and instead of one that cannot be read, why."""
    while True:
        try:
            text = next(lines, None)
        except BadLine as bad:
            yield bad
            continue
        if text is None:
            return
        if text.strip():
            yield text


# --- temporary database ------------------------------------------------------------------------------
# What a command must remember of a large file: on the disk, however much it is, and not in memory.


_SETTINGS = """
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
PRAGMA cache_size=-16384;
"""
# A database without a name lies in a temporary file that nobody else can open, and goes with it.


class TemporaryDatabase:
    """A context manager; what is built on it asks ``database``.

    Args:
        tables: the statements that make them.
    """

    def __init__(self, tables: str) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.database.executescript(f"{_SETTINGS}{tables}BEGIN;")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.database.close()
