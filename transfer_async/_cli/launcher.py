"""The entry point of the ``transfer-async`` command.

The launcher handles ``--version`` without importing the command line, and reports an error if typer is not
installed.
"""

from __future__ import annotations

import copy
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer

_STOPPED_BY_CTRL_C = 130
"""128 plus the number of SIGINT, as shells do. `signal` would take longer to import than the launcher."""


def main() -> None:
    """Run the ``transfer-async`` command. `main` raises `SystemExit` at the end, except for ``--version``."""
    _make_streams_safe()
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # takes 20 ms; other commands do not need it

        sys.stdout.write(f"transfer-async {version('transfer_async')}\n")
        return
    try:
        app = _loaded_app()
    except KeyboardInterrupt:  # Loading takes half a second; afterwards, typer handles Ctrl-C.
        sys.stderr.write("transfer-async: stopped by Ctrl-C while starting; nothing was done\n")
        sys.exit(_STOPPED_BY_CTRL_C)
    try:
        narrowed(app, sys.argv[1:])(prog_name="transfer-async")
    finally:
        _discard_unwritable_output()


def _loaded_app() -> Typer:
    """Import the command line. If typer is not installed, report this and exit."""
    try:
        import typer  # noqa: F401 - imported alone, so that its absence is reported in one line
    except ModuleNotFoundError as error:
        if error.name != "typer":  # Typer is installed, but a module that it needs is missing.
            raise
        from transfer_async._cli.process import USAGE

        sys.stderr.write('transfer-async needs typer: pip install "transfer_async[cli]"\n')
        sys.exit(USAGE)
    from transfer_async._cli.app import app  # needs typer, and the whole client

    return app


def _make_streams_safe() -> None:
    """Replace closed streams and escape characters that stdout cannot encode, so that no output fails."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:  # The stream is closed. uvloop would reuse its number and abort.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr; keys may be in any script


def _discard_unwritable_output() -> None:
    """Discard output that cannot be written, because Python would replace the exit code by 120."""
    from transfer_async._cli.output import redirect_to_null  # needs typer

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            redirect_to_null(stream)


def narrowed(app: Typer, words: Sequence[str]) -> Typer:
    """Return an app with only the command named ``words[0]``, because building all commands is slow.

    If ``words[0]`` is missing or is not a command, return the whole app, which then prints its help or an
    error.
    """
    from typer.main import get_command_name

    asked = words[0] if words else None
    commands = [
        command
        for command in app.registered_commands
        if asked == (command.name or (command.callback and get_command_name(command.callback.__name__)))
    ]
    groups = [group for group in app.registered_groups if asked == group.name]
    if not commands and not groups:
        return app
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone
