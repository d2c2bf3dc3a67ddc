"""A journal that is open while its process is forked, as servers do that load the application first."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.journal.forking import _calls
from transfer_async import MemoryJournal

CALLS = tuple(_calls(MemoryJournal()))
REFUSED = dict.fromkeys(CALLS, "fork") | {"close": "done"}
DONE = dict.fromkeys(CALLS, "done")


def told(address: str) -> list[Any]:
    """What the child could do with its parent's journal and with one of its own, and then the parent."""
    command = [sys.executable, "-m", "tests.journal.forking", address]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=50)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_file_that_was_open_at_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent(tmp_path: Path):
    """SQLite would take its parent's locks for the child's own; its thread is not there, and calls hung."""
    assert told(str(tmp_path / "journal.db")) == [{"its parent's": REFUSED, "its own": REFUSED}, DONE]


def test_a_database_that_was_open_at_a_fork_is_refused_in_the_child_which_may_open_its_own(database: str):
    """Both would speak on one connection, and take each other's replies."""
    assert told(database) == [{"its parent's": REFUSED, "its own": DONE}, DONE]
