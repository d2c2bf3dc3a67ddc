"""The command ``transfer-async``, which answers ``--version`` before it imports the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Show the version, if that is all that is asked; run the command line otherwise."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # 20 ms that no other command needs

        sys.stdout.write(f"transfer-async {version('transfer_async')}\n")
        return
    from transfer_async._cli import entry  # needs typer, and the whole client

    entry.main()
