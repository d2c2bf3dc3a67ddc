"""Commands for workers: read, checked, and sent to their broker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from codecs import BOM_UTF8
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from transfer_async._converters.messages import OrderCommand
from transfer_async._models.errors import InvalidOrder
from transfer_async._support.addresses import public
from transfer_async.integrations.faststream.broker import line_at, reason
from transfer_async.integrations.faststream.line import TooLarge, WorkerSettings

PATIENCE = 10.0
"""Seconds that a broker may take."""


def commands_in(file: Path) -> list[OrderCommand]:
    """The commands in ``file``, one a line; of ``-``, those on stdin.

    Raises:
        ValueError: a line is none; names it, and what is wrong with it.
        OSError: it cannot be read.
    """
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    lines = data.removeprefix(BOM_UTF8).splitlines()
    return [_command(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _command(number: int, line: bytes) -> OrderCommand:
    try:
        return OrderCommand.from_json(line)
    except InvalidOrder as error:
        raise ValueError(f"line {number}: {error}") from None


async def send(
    broker: str, commands: list[OrderCommand], settings: WorkerSettings, *, patience: float = PATIENCE
) -> None:
    """Send ``commands``; returns once the broker has them all.

    Args:
        broker: its address.
        commands: what is sent.
        settings: where to.
        patience: seconds that the broker may take to be there, and then for each command.

    Raises:
        ValueError: the address names no broker.
        ConnectionError: the broker did not take them all.
    """
    line = line_at(broker, settings)
    try:
        await _within(patience, line.open(only_to_send=True))
        for command in commands:
            await _within(patience, line.order(command))
    except TooLarge as error:
        why = f"{command.key!r}: {error}; those before it are sent, those after it are not"
        raise ConnectionError(why) from error
    except Exception as error:
        why = f"the broker at {public(broker)} did not take them all ({reason(error)}); send again"
        raise ConnectionError(why) from error
    finally:
        with contextlib.suppress(Exception):  # it is gone, or it is let go
            await _within(patience, line.close())


async def _within(patience: float, work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``; a broker's driver would try again for ever."""
    try:
        async with asyncio.timeout(patience) as limit:
            await work
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"no answer within {patience:g} s") from error
        raise
