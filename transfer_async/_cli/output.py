"""Helpers for printing, logging, reporting errors, and reading text files line by line."""

from __future__ import annotations

import csv
import getpass
import io
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TextIO

import typer
from typer.core import TyperCommand

from transfer_async._cli.process import FAILED, USAGE
from transfer_async._models.requests import UNSEEN

Say = Callable[[str], object]
"""Writes one line."""


def tell(line: str) -> None:
    """Write a line to stdout. Ignore a closed pipe, whose reader wants no more lines.

    If stdout fails in another way, end the command with an error: incomplete output must not look complete.
    """
    try:
        typer.echo(line)
    except BrokenPipeError:
        redirect_to_null(sys.stdout)
    except OSError as error:
        redirect_to_null(sys.stdout)
        why = f"stdout: cannot be written ({error.strerror or error}); the command may have done its work"
        fail(why, FAILED)


def complain(line: str) -> None:
    """Write a line to stderr. Ignore any failure, so that it does not change the exit code.

    If the disk is full, this line is lost; later lines may succeed.
    """
    try:
        typer.echo(line, err=True)
    except BrokenPipeError:
        redirect_to_null(sys.stderr)
    except OSError:
        return


def redirect_to_null(stream: TextIO) -> None:
    """Discard everything written to ``stream`` from now on, and anything still in its buffer."""
    # Python flushes the stream at exit. If that failed, Python would replace the exit code.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def fail(why: str, code: int) -> NoReturn:
    """Write ``why`` to stderr, and exit with ``code``."""
    complain(shown(why))
    raise typer.Exit(code)


@contextmanager
def failing(
    command: str, codes: Mapping[type[Exception], int], *, words: Callable[[Exception], str] | None = None
) -> Iterator[None]:
    """If an error of a type in ``codes`` is raised, report it in one line, and exit with the matching code.

    Args:
        command: the command's name, printed at the beginning of the line.
        codes: exit codes by error type. The first type that matches is used.
        words: returns the message for an error; `in_words` by default.
    """
    try:
        yield
    except tuple(codes) as error:
        code = next(code for kind, code in codes.items() if isinstance(error, kind))
        fail(f"{command}: {(words or in_words)(error)}", code)


def in_words(error: Exception) -> str:
    """Return the text of ``error``. For an `OSError`, return the file and the reason, but no error number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def in_one_line(error: BaseException, words: str | None = None) -> str:
    """Return the type and text of ``error``. If the text may contain secrets, ``words`` is used instead."""
    text = str(error) if words is None else words
    return f"{type(error).__name__}: {shown(text)}".removesuffix(": ")


def in_columns(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> Iterator[str]:
    """Yield the rows as aligned lines. Columns from index ``numbers_from`` onwards are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if numbers_from is None or at < numbers_from else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def show_table(columns: Mapping[str, Callable[[Any], str]], items: Sequence[Any]) -> None:
    """Print a table, with borders and colours on a terminal and as aligned text elsewhere.

    Args:
        columns: for each column heading, the function that returns an item's text.
        items: one item per row.
    """
    rows = [[cell(item) for cell in columns.values()] for item in items]
    if not sys.stdout.isatty():
        for line in in_columns([[*columns], *rows]):
            tell(line)
        return
    from rich.console import Console  # The three imports take 20 ms.
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Rich must not read a key as markup.
    Console().print(table)


def is_interactive() -> bool:
    """Return whether stdin is a terminal, so that a person can answer questions."""
    return sys.stdin.isatty()


def login_name(command: str) -> str:
    """Return the user's login name, or end the command if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        fail(f"{command}: --by is required: this machine has no login name for you", USAGE)


@contextmanager
def logged(
    logger: logging.Logger,
    say: Callable[[str], object],
    *,
    form: str = "%(asctime)s %(levelname)s %(message)s",
    time: str | None = None,
) -> Iterator[None]:
    """During the block, pass every record of ``logger`` at level INFO or above to ``say``, as text.

    Args:
        logger: the logger, whose level is INFO during the block.
        say: called with the text of each record.
        form: the ``fmt`` argument of `logging.Formatter`.
        time: the ``datefmt`` argument of `logging.Formatter`.
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
    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(shown_lines(self.format(record)))  # The record may quote a broker's response.
        except Exception:  # noqa: BLE001 - like logging's own handlers: a log record never raises an error
            self.handleError(record)


# --- untrusted text ----------------------------------------------------------------------------------


def shown(text: str | None) -> str:
    """Replace control characters and line breaks in ``text``, so that it is safe to print on a terminal."""
    if text is None:
        return "-"
    if text.isascii() and text.isprintable():
        return text
    return "".join(item if item.isprintable() and not UNSEEN.match(item) else "?" for item in text)


def shown_lines(text: str) -> str:
    """Make each line of ``text`` safe to print on a terminal; see `shown`."""
    return "\n".join(map(shown, text.split("\n")))


def shown_json(text: str) -> str:
    """Escape control characters in JSON text, so that it is safe to print on a terminal."""
    # Outside of strings, JSON contains no control characters except line breaks.
    return "".join(
        item if item.isprintable() or item == "\n" else json.dumps(item).removeprefix('"').removesuffix('"')
        for item in text
    )


# --- usage -------------------------------------------------------------------------------------------


class PlainUsage(TyperCommand):
    """A command whose usage line shows an argument as ``KEY``, as manual pages do. Typer shows ``{KEY}``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line after the command's name."""
        return [piece.removeprefix("{").removesuffix("}") for piece in super().collect_usage_pieces(ctx)]


# --- text lines --------------------------------------------------------------------------------------
# The lines of a text file with their numbers, as in an editor. The length of a line is limited.


LONGEST = 1 << 20
"""The maximum length of a line, in bytes. The line of an order has less than a thousand."""

_BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """Raised for a line that cannot be read as text. Reading can continue with the next line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


class TextLines:
    """An iterator over the lines of a file. Iteration can continue after a `BadLine`."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.number = 0  # the number of the last line that was read

    def __iter__(self) -> TextLines:
        return self

    def __next__(self) -> str:
        """Return the next line with its line ending.

        Raises:
            BadLine: the line is not UTF-8 or is too long.
        """
        raw = self._file.readline(LONGEST + 1)
        if not raw:
            raise StopIteration
        self.number += 1
        if len(raw) > LONGEST:
            while raw and not raw.endswith(b"\n"):
                raw = self._file.readline(LONGEST)
            raise BadLine(self.number, "is longer than 1 MiB")
        if self.number == 1:
            raw = raw.removeprefix(_BOM)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise BadLine(self.number, "is not UTF-8") from None


def each_line(lines: TextLines) -> Iterator[str | BadLine]:
    """Yield each line that is not blank, and a `BadLine` in place of each line that cannot be read."""
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


def csv_rows(lines: TextLines) -> Iterator[tuple[int, list[str] | BadLine]]:
    """Yield the line number and the cells of each CSV row, or a `BadLine` if the row cannot be read."""
    reader = csv.reader(lines, strict=True)
    while True:
        line = lines.number + 1
        try:
            cells = next(reader, None)
        except BadLine as bad:
            yield line, bad
        except csv.Error as error:  # The error's text never quotes the line.
            yield line, BadLine(line, f"is not valid CSV ({error})")
        else:
            if cells is None:
                return
            yield line, cells


# --- temporary database ------------------------------------------------------------------------------
# Commands keep the data of large files on the disk, so that their memory stays limited.


_SETTINGS = """
PRAGMA journal_mode=OFF;
PRAGMA synchronous=OFF;
PRAGMA cache_size=-16384;
"""
# SQLite deletes the file of a database without a name when it is closed, and no other process can open it.


class TemporaryDatabase:
    """A temporary SQLite database, created by the SQL in ``tables`` and deleted when the block ends."""

    def __init__(self, tables: str) -> None:
        self.database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self.database.executescript(f"{_SETTINGS}{tables}BEGIN;")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()
