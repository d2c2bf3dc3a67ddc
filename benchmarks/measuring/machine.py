"""The machine: its description, CPU cores, file limit and memory."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = (
    *("aiohttp", "attrs", "cattrs", "msgspec", "tenacity"),
    *("httpx", "pydantic", "modern-treasury", "stripe", "pyperf"),
)
"""The packages whose versions reports contain: dependencies first, then contenders."""


def pick_cores() -> tuple[int | None, int | None]:
    """Return a core for the contender and one for the service; None if processes cannot be pinned."""
    if not hasattr(os, "sched_setaffinity"):
        return None, None
    free = sorted(os.sched_getaffinity(0))
    return (free[-1], free[0]) if len(free) > 1 else (None, None)


def pin(core: int | None) -> None:
    """Pin this process to one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as possible and return it."""
    try:
        import resource  # Windows has none
    except ImportError:
        return 500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 65_536 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def rss() -> int:
    """Return the resident set size in bytes, or its maximum if that is all the system reports."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # not on Windows, where this raises

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def rss_after_gc() -> int:
    """Collect garbage, then return the resident set size."""
    gc.collect()
    return rss()


def about() -> dict[str, Any]:
    """Describe the machine, the versions, the time and the commit."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD") or "unknown",
        "changed": bool(_git("status", "--porcelain", "--", "transfer_async", "benchmarks")),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, {_processor()}",
        "pinned": pick_cores()[0] is not None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")


def _git(*arguments: str) -> str:
    try:
        completed = subprocess.run(  # noqa: S603 - our own arguments
            (shutil.which("git") or "git", *arguments),
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout.strip()
