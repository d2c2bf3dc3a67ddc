"""A journal that is open during a fork, as in a server that loads the application before it forks."""

import json
import subprocess
import sys
from pathlib import Path

from tests.journal.forking import _calls
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import MemoryJournal

CALLS = tuple(_calls(MemoryJournal()))
REFUSED = dict.fromkeys(CALLS, "fork") | {"close": "done"}
DONE = dict.fromkeys(CALLS, "done")


@ONLY_IN_TRIALS
def test_a_journal_that_was_open_at_a_fork_fails_in_the_child_and_works_in_the_parent(
    tmp_path: Path, database: str
):
    """Without this, the child uses its parent's locks, or both use one connection.

    Because SQLite remembers the parent's locks, the child cannot open the file again, but it can open a
    database.
    """
    command = [sys.executable, "-m", "tests.journal.forking", str(tmp_path / "journal.db"), database]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=100)
    child_in_file, parent_in_file, child, parent = map(json.loads, done.stdout.splitlines())

    assert child_in_file == {"its parent's": REFUSED, "its own": REFUSED}
    assert child == {"its parent's": REFUSED, "its own": DONE}
    assert parent_in_file == parent == DONE
