"""The orders of levels 1 and 2, each with its key and its amount, and the cap that they are cut by.

The cap is kept by how the plan is cut, before anything is sent, and by the journal: an order's key is its
name, one key has at most one order, and a key that was ever marked as sending is never sent again. So it
does not matter how often, or where, a probe is killed: all runs together send what one run may send.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path

import attrs
from attrs import field, frozen

from transfer_async._cli.probe_reads import Stopped
from transfer_async._cli.raw_http import TURNED_AWAY
from transfer_async._models import requests
from transfer_async._models.errors import CauseKind, is_final_no
from transfer_async._models.requests import NewOrder, fingerprint
from transfer_async.journal.model import AT_WORK, Entry, KeyState
from transfer_async.journal.protocol import Journal
from transfer_async.sandbox import SeenAnswer, SeenLimits, profile

REFUSALS, ORDERS = 1, 2
"""The levels."""

LIMIT_STEP = profile.NEAR
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
        attempt: it is sent once more, in its own right, where it was sent and the service had no time for it.
        counted: what it amounts to where the service worked out more than was sent.
    """

    name: str
    level: int
    order: NewOrder = field(repr=False)
    why: str
    again: str | None = None
    is_cut: bool = False
    attempt: int = 1
    counted: Decimal | None = None

    @property
    def key(self) -> str:
        """Its key in the journal: the same in every run."""
        return key_of(self.name, self.attempt)

    @property
    def amount(self) -> Decimal:
        """What it can cost, in the poster's currency: what is sent never says more."""
        return self.order.poster_amount if self.counted is None else self.counted

    @property
    def is_special(self) -> bool:
        """Whether its body is another than the order's own."""
        return self.name in profile.MUST_BE_REFUSED or self.name in profile.WITHOUT

    def body(self, document: profile.Document) -> bytes:
        """What is sent in the place of the body that the client has made."""
        special = profile.MUST_BE_REFUSED.get(self.name) or profile.WITHOUT.get(self.name)
        return profile.written(document) if special is None else special.made(document)


def key_of(name: str, attempt: int = 1) -> str:
    """The key of the order of a name."""
    return f"probe-{name}" if attempt == 1 else f"probe-{name}.{attempt}"


NAMES = (
    *profile.MUST_BE_REFUSED,
    *(profile.ORDER, profile.SAME_AGAIN, profile.CUT, profile.CUT_AGAIN),
    *profile.WITHOUT,
    *(profile.LEAST, profile.BELOW, profile.GREATEST, profile.ABOVE),
)
"""Of all orders that there can be, in the order in which they are sent."""


def planned(
    order: NewOrder, *, apart: Decimal, limits: Mapping[str, SeenLimits], attempt: int = 1
) -> list[PlannedOrder]:
    """All orders of both levels, no two with one amount but where one repeats another.

    Args:
        order: a good one.
        apart: by how much matcher_amount grows from one to the next, so that none is taken for another.
        limits: of amounts, by currency code; without those of the poster's currency they are not tried.
        attempt: the amounts are others in each.
    """
    begin = len(NAMES) * (attempt - 1)
    sizes = (_sized(order, order.matcher_amount + apart * (begin + number)) for number in range(len(NAMES)))
    found = list(_with_amounts_of_their_own(sizes))
    if (limit := limits.get(order.poster_currency)) is not None:
        found += _at_the_limits(order, limit, LIMIT_STEP * (attempt - 1))
    return [attrs.evolve(item, attempt=attempt) for item in found]


@frozen(kw_only=True)
class Plan:
    """All orders that there can be; the arguments are those of `planned`."""

    order: NewOrder
    apart: Decimal
    limits: Mapping[str, SeenLimits]
    _made: dict[int, list[PlannedOrder]] = field(factory=dict, init=False, repr=False)

    def next(self, name: str, sent: Sequence[PlannedOrder]) -> PlannedOrder | None:
        """The order of a name that is to be sent after those that were; None if there is none."""
        attempt = 1 + sum(item.name == name for item in sent)
        if attempt not in self._made:
            made = planned(self.order, apart=self.apart, limits=self.limits, attempt=attempt)
            self._made[attempt] = made
        found = next((item for item in self._made[attempt] if item.name == name), None)
        if found is not None and (first := [item for item in sent if item.name == found.again]):
            return attrs.evolve(found, order=first[-1].order)  # that which was answered
        return found


def _with_amounts_of_their_own(sizes: Iterator[NewOrder]) -> Iterator[PlannedOrder]:
    for name, special in profile.MUST_BE_REFUSED.items():
        yield PlannedOrder(name=name, level=REFUSALS, order=next(sizes), why=special.why)
    yield _real(profile.ORDER, first := next(sizes), "a good order")
    yield _real(
        profile.SAME_AGAIN, first, "its body once more: one order, two, or a no?", again=profile.ORDER
    )
    cut = _real(profile.CUT, next(sizes), "the connection is closed once the body was sent")
    yield attrs.evolve(cut, is_cut=True)
    why = "the body that was cut once more, where a repeated body is told from a new one"
    yield _real(profile.CUT_AGAIN, cut.order, why, again=profile.CUT)
    for name, special in profile.WITHOUT.items():
        yield _real(name, next(sizes), special.why)


def _real(name: str, order: NewOrder, why: str, *, again: str | None = None) -> PlannedOrder:
    return PlannedOrder(name=name, level=ORDERS, order=order, why=why, again=again)


def _at_the_limits(order: NewOrder, limit: SeenLimits, shift: Decimal) -> Iterator[PlannedOrder]:
    """Orders at both limits, and beyond them by the least that the rate allows."""
    rate = order.exchange_rate
    least = _WIDE.divide(limit.least, rate).quantize(LIMIT_STEP, ROUND_CEILING, _WIDE)
    greatest = _WIDE.divide(limit.greatest, rate).quantize(LIMIT_STEP, ROUND_FLOOR, _WIDE)
    sizes = {
        profile.LEAST: (least + shift, "the least amount of the poster's currency, as who-am-i shows it"),
        profile.BELOW: (least - LIMIT_STEP - shift, "an amount below it"),
        profile.GREATEST: (greatest - shift, "the greatest amount"),
        profile.ABOVE: (greatest + LIMIT_STEP + shift, "an amount above it"),
    }
    for name, (matcher_amount, why) in sizes.items():
        if matcher_amount > 0 and requests.product(matcher_amount, rate, places=2) > 0:
            yield _real(name, _sized(order, matcher_amount), why)


def _sized(order: NewOrder, matcher_amount: Decimal) -> NewOrder:
    poster_amount = requests.product(matcher_amount, order.exchange_rate, places=2)
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


def admitted(wanted: Iterable[PlannedOrder], sent: Iterable[PlannedOrder], cap: Cap) -> list[PlannedOrder]:
    """Those of the orders that are wanted, in turn, that the cap has room for.

    Args:
        wanted: what is to be sent.
        sent: what was, or may have been, sent before, by all runs: a doubt counts as an order does.
        cap: what all of them keep to together.
    """
    before = [item.amount for item in sent]
    count, amount = len(before), sum(before, Decimal(0))
    found = []
    for pending in wanted:
        if count + 1 > cap.orders or amount + pending.amount > cap.amount:
            continue
        count, amount = count + 1, amount + pending.amount
        found.append(pending)
    return found


# --- spending ----------------------------------------------------------------------------------------
# What has been spent, by the journal: which orders were, or may have been, sent; and who may send now.


try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: there nobody may start two probes on one journal
    fcntl = None  # type: ignore[assignment]


class OtherPlan(ValueError):
    """The journal is of a probe with another order, or another way to size it."""


@frozen
class Ledger:
    """The probe's part of a journal.

    Args:
        journal: a durable one: what it says is there after a kill.
        scope: of the service.
    """

    journal: Journal
    scope: str

    async def sent(self, plan: Plan) -> list[PlannedOrder]:
        """The orders that were, or may have been, sent, each as often as it was.

        Raises:
            OtherPlan: an order of that name is, but not as the plan has it: nothing adds up.
        """
        found: list[PlannedOrder] = []
        for name in NAMES:
            for attempt in itertools.count(1):
                key = key_of(name, attempt)
                entry = await self.journal.read(self.scope, key)
                if entry is None or not await self._was_sent(key, entry):
                    break
                wanted = plan.next(name, found)
                if wanted is None or fingerprint(wanted.order) != entry.fingerprint:
                    raise OtherPlan(
                        "--journal: has orders of another --order or --apart, or with other limits; with "
                        "these, a journal of its own is needed (whose cap counts anew)"
                    )
                found.append(wanted)
        return found

    async def _was_sent(self, key: str, entry: Entry) -> bool:
        """Whether it was ever marked: one that was refused is free again, and is spent all the same."""
        if entry.state is KeyState.CREATED or (
            entry.state in AT_WORK and entry.state is not KeyState.CLAIMED
        ):
            return True
        return any(step.state is KeyState.SENDING for step in await self.journal.history(self.scope, key))

    async def recorded(self, sent: Iterable[PlannedOrder]) -> dict[str, SeenAnswer]:
        """What the journal says of how orders were answered that no profile tells of.

        Raises:
            Stopped: one may amount to more than was counted, and nobody knows how much.
        """
        found = {}
        for item in sent:
            entry = await self.journal.read(self.scope, item.key)
            answer = None if entry is None else _answer_of(item, entry)
            if answer is not None:
                found[item.name] = answer
        return found

    async def ids(self, sent: Iterable[PlannedOrder]) -> frozenset[str]:
        """The ids of those of the orders that exist."""
        entries = [await self.journal.read(self.scope, item.key) for item in sent]
        return frozenset(
            entry.order_id for entry in entries if entry is not None and entry.order_id is not None
        )


def _answer_of(sent: PlannedOrder, entry: Entry) -> SeenAnswer | None:
    """How an order was answered; None if it was not: then it may be sent once more, and is counted again."""
    if entry.state is KeyState.CREATED:
        return SeenAnswer(status=200, body="json", order="new")
    if entry.state is KeyState.FREE and entry.ending is not None:
        is_answer = entry.ending.status is not None and is_final_no(entry.ending.error, entry.ending.status)
        return SeenAnswer(status=entry.ending.status, order="none") if is_answer else None
    if entry.cause is not None and entry.cause.kind is CauseKind.UNREADABLE_ANSWER:
        raise Stopped(
            f"{sent.name}: the profile has lost how it was answered, and it may amount to more than was "
            "counted. Look at the order in the test environment; another --journal counts anew"
        )
    status = None if entry.cause is None else entry.cause.status
    is_answer = sent.is_cut or not (status is None or status in TURNED_AWAY)
    return SeenAnswer(status=status, order="unknown") if is_answer else None


@contextmanager
def alone(journal: Path) -> Iterator[None]:
    """For as long as this lasts, nobody else probes with this journal; a process that is killed lets go.

    Raises:
        ValueError: somebody does.
    """
    path = journal.with_name(journal.name + ".probe")
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:  # pragma: no branch - as above
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError("--journal: another probe is at work with it") from None
        yield
    finally:
        os.close(file)
