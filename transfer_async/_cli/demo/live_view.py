"""What many orders look like while they run: a live view on a terminal, plain lines everywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from attrs import frozen

from transfer_async._cli.console.output import Say

COLUMNS = ("outcome", "orders", "in the sandbox", "holds kept", "holds released")


@frozen(kw_only=True)
class Row:
    """One outcome: how many orders ended in it, and what there is of them elsewhere."""

    outcome: str
    orders: int
    existing: int
    kept: int
    released: int

    def cells(self) -> tuple[str, ...]:
        """The row as texts."""
        return (self.outcome, *map(str, (self.orders, self.existing, self.kept, self.released)))


class Board(Protocol):
    """Shows how far many orders have come, and what became of them."""

    def show(self, done: int, total: int, counts: dict[str, int]) -> None:
        """Show the state of things."""
        ...

    def table(self, rows: Sequence[Row]) -> None:
        """Show the end of things."""
        ...


class PlainBoard:
    """Lines: one for every ``every`` orders, and the table in columns.

    Args:
        say: writes one line.
        every: how many orders lie between two lines.
    """

    def __init__(self, say: Say, *, every: int = 50) -> None:
        self._say, self._every = say, every

    def show(self, done: int, total: int, counts: dict[str, int]) -> None:
        """Write a line now and then."""
        if done % self._every == 0:
            told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
            self._say(f"{done:5} of {total} orders: {told}")

    def table(self, rows: Sequence[Row]) -> None:
        """Write the table."""
        lines = [COLUMNS, *(row.cells() for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            self._say("  " + "  ".join(_padded(line, widths)).rstrip())


def _padded(cells: Iterable[str], widths: list[int]) -> Iterator[str]:
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield cell.rjust(width) if at else cell.ljust(width)


class LiveBoard:
    """A table that changes as orders end, by rich."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def show(self, done: int, total: int, counts: dict[str, int]) -> None:
        """Redraw: how many, a bar, and the outcomes so far."""
        from rich.console import Group  # with the extra, and only on a terminal
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table("outcome so far", "orders", title=f"{done} of {total} orders", title_justify="left")
        for outcome, number in counts.items():
            table.add_row(outcome, str(number))
        self._live.update(Group(ProgressBar(total=total, completed=done, width=40), table))

    def table(self, rows: Sequence[Row]) -> None:
        """Put the last table in the view's place."""
        from rich.table import Table  # with the extra, and only on a terminal

        table = Table(title="what became of them", title_justify="left")
        for at, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if at else "left")
        for row in rows:
            table.add_row(*row.cells(), style="bold" if row is rows[-1] else None)
        self._live.update(table)


@contextmanager
def live_view(*, live: bool, **options: Any) -> Iterator[Any]:
    """A view of rich's, with its ``options``, where that is wanted and rich is installed; None otherwise."""
    try:
        if not live:
            raise ImportError  # noqa: TRY301 - as if there were none
        from rich.live import Live  # an extra's
    except ImportError:
        yield None
        return
    with Live(**options) as view:
        yield view


@contextmanager
def live_or_plain(say: Say, *, live: bool) -> Iterator[Board]:
    """A live view where that is wanted and rich is installed; plain lines otherwise."""
    with live_view(live=live, refresh_per_second=12) as view:
        yield PlainBoard(say) if view is None else LiveBoard(view)
