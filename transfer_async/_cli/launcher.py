"""The command ``transfer-async`` as it is installed: it answers ``--version`` at once.

In the wheel this module stands beside the package, as `transfer_async_launcher`, because whatever is inside
the package brings the whole client: 400 ms, before a word of the command line is read.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Show the version, if that is all that is asked; run the command line otherwise."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version  # 20 ms that no other command needs

        sys.stdout.write(f"transfer-async {version('transfer_async')}\n")
        return
    from transfer_async._cli import entry  # the package

    entry.main()
