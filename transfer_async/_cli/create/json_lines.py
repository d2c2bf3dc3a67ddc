"""JSON Lines: every line one command, as it would come through a broker; empty lines are passed over."""

from __future__ import annotations

from collections.abc import Iterator

from transfer_async._cli.console.text_lines import BadLine, TextLines, each_line
from transfer_async._cli.create.record import Record
from transfer_async._converters.messages import OrderCommand
from transfer_async._models.errors import InvalidOrder


def records(lines: TextLines, known: Iterator[Record]) -> Iterator[Record]:
    """What each line comes to; that of the first ones may be ``known`` from an earlier reading."""
    for text in each_line(lines):
        yield next(known, None) or _record(lines.number, text)


def _record(line: int, text: str | BadLine) -> Record:
    if isinstance(text, BadLine):
        return Record(line=text.line, faults=(("", text.why),))
    try:
        command = OrderCommand.from_json(text)
    except InvalidOrder as error:
        faults = tuple((name.removeprefix("$"), why) for name, why in error.problems)
        return Record(line=line, key=error.key, faults=faults)
    return Record(line=line, key=command.key, command=command)
