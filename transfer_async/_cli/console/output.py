"""How a command speaks: lines on stdout, complaints on stderr, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, TextIO

import typer

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
    command: str, codes: Mapping[type[Exception], int], *, words: Callable[[Exception], str] = str
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
        fail(f"{command}: {words(error)}", code)


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
    return "".join(one if one.isprintable() else "?" for one in text)


def shown_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(shown, text.split("\n")))


def shown_json(text: str) -> str:
    """JSON, fit for a terminal: it says the same, with what would move the cursor escaped."""
    # Outside its strings there is nothing to escape but the ends of lines.
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one).removeprefix('"').removesuffix('"')
        for one in text
    )
