"""Each write reaches the disk before the step that it guards: as the kernel sees it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

STRACE = shutil.which("strace")
CALLS = "fdatasync,fsync,sendto,sendmsg,write,writev"

SYNC, HOOK, POST, DONE = "sync", "hook", "POST", "done"
ONE_ORDER = [SYNC, HOOK, SYNC, POST, SYNC, DONE]

_LINE = re.compile(r"(?P<thread>\d+) +(?P<rest>.*)")
_SYNC = re.compile(r"f(data)?sync\(\d+<[^>]*journal\.db(-wal)?>")


def may_trace() -> bool:
    """Whether there is ``strace``, and the machine lets it look."""
    if STRACE is None:
        return False
    return subprocess.run([STRACE, "-f", "true"], capture_output=True, check=False).returncode == 0


# Where programs may not be traced (no strace, another system, a sandbox), there is nothing to look at.
pytestmark = pytest.mark.skipif(not may_trace(), reason="strace cannot be used here")


def watched(directory: Path, *, orders: int, level: str) -> list[str]:
    """What the kernel saw of a client that makes orders, in short."""
    trace = directory / "trace"
    child = [sys.executable, "-m", "tests.trouble.write_order_child"]
    command = [STRACE or "", "-f", "-y", "-s", "64", "-e", f"trace={CALLS}", "-o", str(trace)]
    command += [*child, str(directory / "journal.db"), str(orders), level]
    subprocess.run(command, check=True, capture_output=True, timeout=55)
    seen = [event for event, _ in groupby(_events(trace.read_text().splitlines()))]
    return seen[: -1 if seen[-1] == SYNC else None]  # the last one is the closing's


def _events(lines: list[str]) -> Iterator[str]:
    """Syncs count when they have returned, and all else when it begins."""
    syncing: set[str] = set()
    for line in lines:
        found = _LINE.fullmatch(line)
        assert found is not None, line
        thread, rest = found["thread"], found["rest"]
        if _SYNC.match(rest):
            if rest.endswith("= 0"):
                yield SYNC
            else:
                syncing.add(thread)
        elif "sync resumed>" in rest and thread in syncing:
            syncing.discard(thread)
            yield SYNC
        elif '"HOOK' in rest:
            yield HOOK
        elif '"POST /' in rest:
            yield POST
        elif '"DONE' in rest:
            yield DONE


def test_every_step_of_every_order_waits_for_the_disk(tmp_path: Path):
    assert watched(tmp_path, orders=50, level="FULL") == ONE_ORDER * 50


def test_a_journal_that_does_not_wait_for_the_disk_is_found_out(tmp_path: Path):
    seen = watched(tmp_path, orders=5, level="NORMAL")

    assert [event for event in seen if event != SYNC] == [HOOK, POST, DONE] * 5
    assert seen != ONE_ORDER * 5
