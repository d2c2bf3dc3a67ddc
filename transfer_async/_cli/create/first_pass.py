"""The first pass: every line is checked before any is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from transfer_async._cli.console.output import shown
from transfer_async._cli.create.key_index import Keys
from transfer_async._cli.create.record import LineFault, Record
from transfer_async._models.amounts import EXACT
from transfer_async._models.requests import NewOrder

SHOWN = 1000
"""How many faults are listed; the others are counted."""


class Stopped(Exception):
    """Somebody does not want to wait for the end."""


class Checking:
    """One pass.

    Args:
        needs_held: every order must say that its funds are held, for no hook would hold them.
        now: the time that it is, where an order that comes too late is a fault; None where it is not: one
            that was created in time is given back.
        is_stopped: asked now and then.

    Attributes:
        records: how many orders were looked at, good or not.
        faulty: how many of them have faults.
        faults: how many faults there are.
        told: the first of them, one a line.
        sums: of the good ones, what is sent and what arrives, by currency.
    """

    def __init__(
        self,
        *,
        needs_held: bool,
        now: datetime | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._needs_held, self._now, self._is_stopped = needs_held, now, is_stopped
        self.records = self.faulty = self.faults = 0
        self.told: list[str] = []
        self.sums: dict[str, dict[str, Decimal]] = {"sent": {}, "to arrive": {}}

    def run(self, records: Iterable[Record]) -> None:
        """Look at every record.

        Raises:
            Stopped: before the end, if asked to.
            sqlite3.Error: the disk has no room for the keys.
        """
        with Keys() as keys:
            for record in records:
                if self.records % 64 == 0 and self._is_stopped():
                    raise Stopped
                self.records += 1
                faults = list(self._faults(record, keys))
                if record.command is None or faults:
                    self.faulty += 1
                    self._note(record.line, faults)
                else:
                    self._add(record.command.order)

    def _faults(self, record: Record, keys: Keys) -> Iterator[LineFault]:
        yield from record.faults
        if record.key is not None and (first := keys.seen(record.key, record.line)) is not None:
            yield "key", f"stands on line {first} already"
        if self._needs_held and record.command is not None and record.command.held is None:
            yield "held", "is missing, and there is no hook that would hold the funds"
        for name in ("send_before", "deadline"):
            if self._has_passed(getattr(record.command, name, None)):
                yield name, "has passed: unless its key has an order already, none will be made"

    def _has_passed(self, moment: datetime | None) -> bool:
        return self._now is not None and moment is not None and moment <= self._now

    def _note(self, line: int, faults: list[LineFault]) -> None:
        self.faults += len(faults)
        room = SHOWN - len(self.told)
        self.told += [
            f"line {line}: {shown(f'{name}: {why}' if name else why)}" for name, why in faults[:room]
        ]

    def _add(self, order: NewOrder) -> None:
        for side, currency, amount in (
            ("sent", order.poster_currency, order.poster_amount),
            ("to arrive", order.matcher_currency, order.matcher_amount),
        ):
            sums = self.sums[side]
            sums[currency] = EXACT.add(sums.get(currency, Decimal(0)), amount)

    def summary(self) -> list[str]:
        """What is in the file, in lines."""
        lines = [f"{self.records:,} orders" if self.records != 1 else "1 order"]
        for side, sums in self.sums.items():
            lines += [f"  {side:<10}{currency:<11}{amount:,f}" for currency, amount in sorted(sums.items())]
        return lines

    def complaint(self) -> list[str]:
        """The faults, in lines, and how many there are."""
        more = f"; the first {len(self.told):,} are shown" if self.faults > len(self.told) else ""
        faults = "1 fault" if self.faults == 1 else f"{self.faults:,} faults"
        records = "1 line" if self.faulty == 1 else f"{self.faulty:,} lines"
        return [*self.told, f"{faults} in {records}{more}. Nothing was sent."]
