"""The command line as a process: how it ends, whoever listens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.journalling import SCOPE, claim, doubt, mark, of_key
from transfer_async import SQLiteJournal

KEY = "支払い-1"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Of a journal with a key that is in doubt."""
    async with SQLiteJournal(tmp_path / "journal") as journal:
        for move in (claim(), mark(), doubt()):
            await journal.move(SCOPE, KEY, of_key(move, KEY))
    return tmp_path / "journal"


def run(words: list[str], *, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "transfer_async", *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, check=False)


def test_a_key_that_the_terminal_cannot_show_is_shown_in_escapes(path: Path):
    words = ["journal", "list", "--journal", str(path), "--base-url", SCOPE]
    done = run(words, PYTHONIOENCODING="latin-1")

    assert (done.returncode, done.stderr) == (0, b"")
    assert KEY.encode("ascii", "backslashreplace") in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_done_while_nobody_listens_is_done(path: Path, closed: str):
    said = ["--by", "ada", "--reason", "seen"]
    words = ["journal", "resolve", KEY, "--order-id", "tx-seen", *said, "--journal", str(path)]
    done = run([*words, "--base-url", SCOPE], shell=closed)
    shown = run(["journal", "show", KEY, "--journal", str(path), "--base-url", SCOPE])

    assert done.returncode == 0
    assert b"tx-seen" in shown.stdout
