"""A worker whose user may only read the journal's file."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that every user reaches."""
    made = Path(tempfile.mkdtemp())
    yield made
    made.chmod(0o700)
    shutil.rmtree(made)


def test_a_worker_that_may_not_write_the_journal_sends_nothing_and_holds_nothing(directory: Path):
    command = [sys.executable, "-m", "tests.trouble.read_only_child", str(directory / "journal.db")]
    done = subprocess.run(command, check=True, capture_output=True, timeout=50)

    assert json.loads(done.stdout) == {
        "cause": "attempt to write a readonly database",
        "outcome": "NOT_SENT",
        "requests": 0,
        "holds": 0,
    }
