"""Each write reaches the disk before the step that it guards. The system calls prove it."""

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

SYNC, HOOK, POST, DONE, END = "sync", "hook", "POST", "done", "end"
ONE_ORDER = [SYNC, HOOK, SYNC, POST, SYNC, DONE]

_LINE = re.compile(r"(?P<thread>\d+) +(?P<rest>.*)")
_SYNC = re.compile(r"f(data)?sync\(\d+<[^>]*journal\.db(-wal)?>")


def may_trace() -> bool:
    """Return whether ``strace`` is installed and permitted."""
    if STRACE is None:
        return False
    return subprocess.run([STRACE, "-f", "true"], capture_output=True, check=False).returncode == 0


# Some systems and sandboxes forbid tracing.
pytestmark = pytest.mark.skipif(not may_trace(), reason="strace cannot be used here")


def watched(directory: Path, *clients: object) -> list[list[str]]:
    """Return the events of each client. ``clients`` has pairs: a number of orders and a ``synchronous``
    level.
    """
    trace = directory / "trace"
    child = [sys.executable, "-m", "tests.chaos.write_order_child", str(directory)]
    how = ["-f", "--seccomp-bpf", "-y", "-s", "64", "-e", f"trace={CALLS}", "-o", str(trace)]
    command = [STRACE or "", *how, *child, *map(str, clients)]
    subprocess.run(command, check=True, capture_output=True, timeout=55)
    seen = [event for event, _ in groupby(_events(trace.read_text(encoding="utf-8").splitlines()))]
    found = [list(events) for is_end, events in groupby(seen, END.__eq__) if not is_end]
    return [
        events[:-1] if events[-1] == SYNC else events for events in found
    ]  # the last sync happens when the journal is closed


def _events(lines: list[str]) -> Iterator[str]:
    """Yield the events: a sync when it returns, all others when they begin."""
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
        elif '"END' in rest:
            yield END


def test_every_step_of_every_order_waits_for_the_disk(tmp_path: Path):
    """The test also detects a journal that does not wait."""
    careful, careless = watched(tmp_path, 30, "FULL", 5, "NORMAL")

    assert careful == ONE_ORDER * 30
    assert [event for event in careless if event != SYNC] == [HOOK, POST, DONE] * 5
    assert careless != ONE_ORDER * 5
