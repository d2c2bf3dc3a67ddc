"""Commands for workers: read, checked, and sent to their broker."""

from __future__ import annotations

import sys
from pathlib import Path

from transfer_async.errors import InvalidOrder
from transfer_async.integrations.brokers import line_at
from transfer_async.integrations.brokers.line import WorkerSettings
from transfer_async.messages import OrderCommand


def commands_in(file: Path) -> list[OrderCommand]:
    """The commands in ``file``, one a line; of ``-``, those on stdin.

    Raises:
        ValueError: a line is none; names it, and what is wrong with it.
        OSError: there is no such file.
    """
    lines = sys.stdin.buffer.readlines() if str(file) == "-" else file.read_bytes().splitlines()
    return [_command(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _command(number: int, line: bytes) -> OrderCommand:
    try:
        return OrderCommand.from_json(line)
    except InvalidOrder as error:
        raise ValueError(f"line {number}: {error}") from None


async def send(broker: str, commands: list[OrderCommand], settings: WorkerSettings) -> None:
    """Send ``commands``; returns once the broker has them all.

    Raises:
        ValueError: the address names no broker.
        ConnectionError: the broker did not take them all.
    """
    line = line_at(broker, settings)
    try:
        await line.open(only_to_send=True)
        for command in commands:
            await line.order(command)
    except Exception as error:
        why = type(error).__name__
        raise ConnectionError(f"the broker did not take them all ({why}); send again") from error
    finally:
        await line.close()
