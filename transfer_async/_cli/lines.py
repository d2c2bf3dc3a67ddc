"""How a command speaks: lines on stdout, complaints on stderr, and how it ends."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn

import typer

FAILED = 1
"""The exit code of a command that was used well, and met a no."""

complain = partial(typer.echo, err=True)


def tell(line: str) -> None:
    """Write a line; once nobody reads any more, nothing: the exit code still tells how it ends."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(why: str, code: int) -> NoReturn:
    """Complain in a line, and end."""
    complain(why)
    raise typer.Exit(code)


def somebody_is_there() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()
