"""The orders of levels 1 and 2, each with its key and its amount, and the cap that they are cut by.

The cap is kept by how the plan is cut, before anything is sent, and by the journal: an order's key is its
name, one key has at most one order, and a key that was ever marked as sending is never sent again. So it
does not matter how often, or where, a probe is killed: all runs together send what one run may send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import attrs
from attrs import field, frozen

from transfer_async._models import amounts
from transfer_async._models.requests import NewOrder
from transfer_async.sandbox import SeenLimits, ask_cases

REFUSALS, ORDERS = 1, 2
"""The levels."""

LIMIT_STEP = ask_cases.NEAR
_WIDE = Context(prec=100)


@frozen(kw_only=True)
class PlannedOrder:
    """One order.

    Args:
        name: see `ask_cases`; its key is made of it.
        level: 1 where it must be refused.
        order: as the journal has it; what is sent may differ from it.
        why: what it is for, in a few words.
        again: the name of the order whose body it repeats.
        is_cut: the connection is closed once the body was sent.
    """

    name: str
    level: int
    order: NewOrder = field(repr=False)
    why: str
    again: str | None = None
    is_cut: bool = False

    @property
    def key(self) -> str:
        """Its key in the journal: the same in every run."""
        return key_of(self.name)

    @property
    def amount(self) -> Decimal:
        """What it can cost, in the poster's currency: what is sent never says more."""
        return self.order.poster_amount

    def body(self, document: ask_cases.Document) -> bytes:
        """What is sent in the place of the body that the client has made."""
        special = ask_cases.MUST_BE_REFUSED.get(self.name) or ask_cases.WITHOUT.get(self.name)
        return ask_cases.written(document) if special is None else special.made(document)


def key_of(name: str) -> str:
    """The key of the order of a name."""
    return f"probe-{name}"


NAMES = (
    *ask_cases.MUST_BE_REFUSED,
    *(ask_cases.ORDER, ask_cases.SAME_AGAIN, ask_cases.CUT, ask_cases.CUT_AGAIN),
    *ask_cases.WITHOUT,
    *(ask_cases.LEAST, ask_cases.BELOW, ask_cases.GREATEST, ask_cases.ABOVE),
)
"""Of all orders that there can be, in the order in which they are sent."""


def planned(order: NewOrder, *, apart: Decimal, limits: Mapping[str, SeenLimits]) -> list[PlannedOrder]:
    """All orders of both levels, no two with one amount but where one repeats another.

    Args:
        order: a good one.
        apart: by how much matcher_amount grows from one to the next, so that none is taken for another.
        limits: of amounts, by currency code; without those of the poster's currency they are not tried.
    """
    found = list(_with_amounts_of_their_own(order, apart))
    limit = limits.get(order.poster_currency)
    return found if limit is None else [*found, *_at_the_limits(order, limit)]


def _with_amounts_of_their_own(order: NewOrder, apart: Decimal) -> Iterator[PlannedOrder]:
    sizes = (_sized(order, order.matcher_amount + apart * number) for number in range(len(NAMES)))
    for name, special in ask_cases.MUST_BE_REFUSED.items():
        yield PlannedOrder(name=name, level=REFUSALS, order=next(sizes), why=special.why)
    yield _real(ask_cases.ORDER, first := next(sizes), "a good order")
    yield _real(
        ask_cases.SAME_AGAIN, first, "its body once more: one order, two, or a no?", again=ask_cases.ORDER
    )
    cut = _real(ask_cases.CUT, next(sizes), "the connection is closed once the body was sent")
    yield attrs.evolve(cut, is_cut=True)
    why = "the body that was cut once more, where a repeated body is told from a new one"
    yield _real(ask_cases.CUT_AGAIN, cut.order, why, again=ask_cases.CUT)
    for name, special in ask_cases.WITHOUT.items():
        yield _real(name, next(sizes), special.why)


def _real(name: str, order: NewOrder, why: str, *, again: str | None = None) -> PlannedOrder:
    return PlannedOrder(name=name, level=ORDERS, order=order, why=why, again=again)


def _at_the_limits(order: NewOrder, limit: SeenLimits) -> Iterator[PlannedOrder]:
    """Orders at both limits, and beyond them by the least that the rate allows."""
    rate = order.exchange_rate
    least = _WIDE.divide(limit.least, rate).quantize(LIMIT_STEP, ROUND_CEILING, _WIDE)
    greatest = _WIDE.divide(limit.greatest, rate).quantize(LIMIT_STEP, ROUND_FLOOR, _WIDE)
    sizes = {
        ask_cases.LEAST: (least, "the least amount of the poster's currency, as who-am-i shows it"),
        ask_cases.BELOW: (least - LIMIT_STEP, "an amount below it"),
        ask_cases.GREATEST: (greatest, "the greatest amount"),
        ask_cases.ABOVE: (greatest + LIMIT_STEP, "an amount above it"),
    }
    for name, (matcher_amount, why) in sizes.items():
        if matcher_amount > 0 and amounts.product(matcher_amount, rate, places=2) > 0:
            yield _real(name, _sized(order, matcher_amount), why)


def _sized(order: NewOrder, matcher_amount: Decimal) -> NewOrder:
    poster_amount = amounts.product(matcher_amount, order.exchange_rate, places=2)
    return attrs.evolve(order, matcher_amount=matcher_amount, poster_amount=poster_amount)


@frozen(kw_only=True)
class Cap:
    """How much may be sent to the service, by all runs on one journal together.

    Args:
        orders: so many, whatever becomes of them.
        amount: together, in the poster's currency.
    """

    orders: int
    amount: Decimal


def admitted(
    plan: Collection[PlannedOrder], spent: Collection[str], cap: Cap, *, levels: Collection[int]
) -> list[PlannedOrder]:
    """The orders of some levels that the cap has room for: those that are spent, and the others in turn.

    Args:
        plan: of both levels.
        spent: the names of those that were, or may have been, sent before: a doubt counts as they do.
        cap: what all that were sent, and all that will be, keep to together.
        levels: those that are to be run now.
    """
    count = sum(one.name in spent for one in plan)
    amount = sum((one.amount for one in plan if one.name in spent), Decimal(0))
    found = []
    for one in plan:
        if one.level not in levels:
            continue
        if one.name not in spent:
            if count + 1 > cap.orders or amount + one.amount > cap.amount:
                continue
            count, amount = count + 1, amount + one.amount
        found.append(one)
    return found
