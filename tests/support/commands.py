"""Helpers that run the command line in the test's process or in another one."""

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
"""A timeout in seconds that expires only if something hangs."""

testing._get_command = functools.cache(testing._get_command)  # slow to build, and always the same


def invoke(*arguments: Any, answers: str | bytes | None = None) -> testing.Result:
    """Run a command in its own event loop."""
    return testing.CliRunner().invoke(app, [*map(str, arguments)], input=answers, prog_name="transfer-async")


async def asked(*arguments: Any, answers: str | None = None, code: int = 0) -> testing.Result:
    """Run a command in a thread. Check its exit code and that it prints no traceback."""
    result = await asyncio.to_thread(invoke, *arguments, answers=answers)
    assert "Traceback" not in result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: Any, answers: str | bytes | None = None) -> str:
    """Run a command that must be refused. Return its error, which has one line."""
    result = invoke(*arguments, answers=answers)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return result.stderr


class Running:
    """A command that runs in another process, with its output read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, begin: str) -> str:
        """Skip to the next line that begins with ``begin``. Return the rest of it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                line = (await self.process.stdout.readline()).decode()
                assert line, f"it ended without {begin!r}:\n{''.join(self.lines)}"
                self.lines.append(line)
                if line.startswith(begin):
                    return line.removeprefix(begin).strip()

    async def end(self) -> tuple[int | None, str]:
        """Wait until the command ends. Return its exit code and the rest of its output."""
        async with asyncio.timeout(PATIENCE):
            rest, _ = await self.process.communicate()
        return self.process.returncode, (rest or b"").decode()


@asynccontextmanager
async def running(
    *arguments: Any,
    cwd: Path = ROOT,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.STDOUT,
    **environment: str,
) -> AsyncIterator[Running]:
    """Run a command with only the given ``TRANSFER_`` variables, and kill it at the end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRANSFER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "transfer_async", *map(str, arguments)),
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
