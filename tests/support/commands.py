"""The command line, within the test's own process or in one of its own."""

import asyncio
import functools
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typer import testing

from transfer_async._cli.app import app

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds: only a hang meets it."""

testing._get_command = functools.cache(testing._get_command)  # dear to make, and the same for every call


def invoke(*words: Any, answers: str | bytes | None = None) -> testing.Result:
    """Type it; it runs on a loop of its own."""
    return testing.CliRunner().invoke(app, [*map(str, words)], input=answers, prog_name="transfer-async")


async def asked(*words: Any, answers: str | None = None, code: int = 0) -> testing.Result:
    """The same beside a loop that serves it; it ends with this code, and shows no traceback."""
    result = await asyncio.to_thread(invoke, *words, answers=answers)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    return result


def refused(*words: Any, answers: str | bytes | None = None) -> str:
    """Return the one-line error of a refused command."""
    result = invoke(*words, answers=answers)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr


class Running:
    """A command in a process of its own, read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, begin: str) -> str:
        """The rest of the next line that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                line = (await self.process.stdout.readline()).decode()
                assert line, f"it ended without {begin!r}:\n{''.join(self.lines)}"
                self.lines.append(line)
                if line.startswith(begin):
                    return line.removeprefix(begin).strip()

    async def end(self) -> tuple[int | None, str]:
        """Its exit code, and what else it said."""
        async with asyncio.timeout(PATIENCE):
            rest, _ = await self.process.communicate()
        return self.process.returncode, (rest or b"").decode()


@asynccontextmanager
async def running(
    *words: Any,
    cwd: Path = ROOT,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.STDOUT,
    **environment: str,
) -> AsyncIterator[Running]:
    """The command, with nothing in its environment but what is given; it is gone in the end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRANSFER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "transfer_async", *map(str, words)),
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
