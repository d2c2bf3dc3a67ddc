"""The journal that ``--journal`` names, checked as far as it can be before anything else is done."""

from __future__ import annotations

import importlib
from pathlib import Path

from transfer_async._cli.console.clients import journal_named
from transfer_async._cli.console.output import shown
from transfer_async.journal.protocol import Journal


def journal_and_files(address: str | None) -> tuple[Journal | None, tuple[Path, ...]]:
    """The journal, not yet open, and the files that it may lie in.

    Raises:
        ValueError: there cannot be one there, or it would forget.
    """
    if address is None:
        return None, ()
    journal = journal_named(address)
    if not journal.durable:
        raise ValueError("--journal: must be durable, or the next run would not know what this one has done")
    if "://" in address:
        _check_driver()
        return journal, ()
    _check_place(Path(address))
    return journal, tuple(Path(address + end) for end in ("", "-wal", "-shm", "-journal"))


def _check_driver() -> None:
    try:
        importlib.import_module("asyncpg")
    except ImportError as error:
        needed = 'pip install "transfer_async[postgres]"'
        raise ValueError(f"--journal: postgresql:// needs an extra: {needed}") from error


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"--journal: there is no directory {shown(str(path.parent))}")
    if path.exists() and not path.is_file():
        raise ValueError(f"--journal: {shown(str(path))} is there, and is not a file")
