"""The command line within the test's own process: what somebody types, and what comes of it."""

import asyncio
import functools
from typing import Any

from typer import testing

from transfer_async._cli.app import app

testing._get_command = functools.cache(testing._get_command)  # dear to make, and the same for every call


def invoke(*words: Any, answers: str | None = None) -> testing.Result:
    """Type it; it runs on a loop of its own."""
    return testing.CliRunner().invoke(app, [*map(str, words)], input=answers, prog_name="transfer-async")


async def asked(*words: Any, answers: str | None = None, code: int = 0) -> testing.Result:
    """The same beside a loop that serves it; it ends with this code, and shows no traceback."""
    result = await asyncio.to_thread(invoke, *words, answers=answers)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    return result
