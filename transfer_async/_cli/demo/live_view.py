"""What many orders look like while they run: a live view on a terminal, plain lines everywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from transfer_async._cli.console.output import Say, in_columns

if TYPE_CHECKING:
    from rich.live import Live

Cells = tuple[str, ...]


class Board(Protocol):
    """Shows how far many orders have come, and what became of them."""

    def show(self, done: int, total: int, counts: Mapping[str, int]) -> None:
        """Show the state of things."""
        ...

    def table(self, columns: Cells, rows: Sequence[Cells]) -> None:
        """Show the end of things: a row for each outcome, and the last for all."""
        ...


class PlainBoard:
    """Lines: one for every ``every`` orders, and the table in columns.

    Args:
        say: writes one line.
        every: how many orders lie between two lines.
    """

    def __init__(self, say: Say, *, every: int = 50) -> None:
        self._say, self._every = say, every

    def show(self, done: int, total: int, counts: Mapping[str, int]) -> None:
        """Write a line now and then."""
        if done % self._every == 0:
            told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
            self._say(f"{done:5} of {total} orders: {told}")

    def table(self, columns: Cells, rows: Sequence[Cells]) -> None:
        """Write the table."""
        for line in in_columns([columns, *rows], numbers_from=1):
            self._say(f"  {line}")


class LiveBoard:
    """A table that changes as orders end, by rich."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, done: int, total: int, counts: Mapping[str, int]) -> None:
        """Redraw: how many, a bar, and the outcomes so far."""
        from rich.console import Group  # there already, with the view
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table("outcome so far", "orders", title=f"{done} of {total} orders", title_justify="left")
        for outcome, number in counts.items():
            table.add_row(outcome, str(number))
        self._live.update(Group(ProgressBar(total=total, completed=done, width=40), table))

    def table(self, columns: Cells, rows: Sequence[Cells]) -> None:
        """Put the last table in the view's place."""
        from rich.table import Table

        table = Table(title="what became of them", title_justify="left")
        for at, name in enumerate(columns):
            table.add_column(name, justify="right" if at else "left")
        for row in rows:
            table.add_row(*row, style="bold" if row is rows[-1] else None)
        self._live.update(table)


@contextmanager
def live_or_plain(say: Say, *, live: bool) -> Iterator[Board]:
    """A live view where that is wanted; plain lines otherwise."""
    if not live:
        yield PlainBoard(say)
        return
    from rich.live import Live  # 20 ms, and only on a terminal

    with Live(refresh_per_second=12) as view:
        yield LiveBoard(view)
