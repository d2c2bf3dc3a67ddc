"""What a line of the file comes to: an order to create, or what is wrong with it."""

from __future__ import annotations

from attrs import frozen

from transfer_async._converters.messages import OrderCommand

LineFault = tuple[str, str]
"""What is wrong with a line: the field (empty for the line itself), and the rule; never a value."""


@frozen(kw_only=True)
class Record:
    """What a line, or a row of more than one, comes to.

    Args:
        line: the number of its first line.
        key: of the order, where it has a good one.
        command: the order, if nothing is wrong with it.
        faults: otherwise, what is.
    """

    line: int
    key: str | None = None
    command: OrderCommand | None = None
    faults: tuple[LineFault, ...] = ()
