"""The entry point of the command line, which is an extra; the commands are in `transfer_async._cli.app`."""

from __future__ import annotations

import sys

from transfer_async._cli.console.exit_codes import USAGE

NO_TYPER = 'transfer-async needs typer: pip install "transfer_async[cli]"\n'


def main() -> None:
    """Run the command line; ends in `SystemExit`."""
    try:
        import typer  # noqa: F401 - asked for here alone, so that its absence is told in a line
    except ModuleNotFoundError as error:
        if error.name != "typer":  # typer is there, and something that it needs is not
            raise
        sys.stderr.write(NO_TYPER)
        sys.exit(USAGE)
    from transfer_async._cli.app import app  # needs typer

    app(prog_name="transfer-async")
