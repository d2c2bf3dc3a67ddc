"""Levels 1 and 2: which orders there are, what they may cost, how they are sent, and what was seen of them.

The cap is kept by how the plan is cut, before anything is sent, and by the journal: an order's key is its
name, one key has at most one order, and a key that was ever marked as sending is never sent again. So it
does not matter how often, or where, a probe is killed: all runs together send what one run may send.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
from aiohttp import web
from attrs import define, evolve, field, frozen

from transfer_async._cli.output import Say
from transfer_async._cli.probe_http import (
    TURNED_AWAY,
    RawAnswer,
    Service,
    Stopped,
    check_reached,
    order_in,
    seen,
)
from transfer_async._client import TransferClient
from transfer_async._http.retry import RetryPolicy
from transfer_async._http.transport import Timeouts
from transfer_async._http.urls import CREATE_ORDER
from transfer_async._models import requests
from transfer_async._models.errors import CauseKind, KeyBusy, TransferError, is_final_no
from transfer_async._models.requests import NewOrder, fingerprint
from transfer_async.journal.model import AT_WORK, Entry, KeyState
from transfer_async.journal.protocol import Journal
from transfer_async.sandbox import SeenAnswer, SeenLimits, profile, validation

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: there nobody may start two probes on one journal
    fcntl = None  # type: ignore[assignment]

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


# --- sending ----------------------------------------------------------------------------------------


HELD = "probe: no funds of anybody"
"""What the client is told of the hold: the test environment moves no money."""

Keep = Callable[[str, SeenAnswer], Awaitable[None]]
"""Keeps what was seen of an order before the next one is sent."""


@define(kw_only=True)
class Spending:
    """What a level is to send.

    Args:
        plan: of both levels.
        cap: see `admitted`.
        level: the one to be run.
        sent: see `Ledger.sent`; what is sent now comes to it.
        known: the answers, by the order's name. One that was sent and has none is to be sent once more.
    """

    plan: Plan
    cap: Cap
    level: int
    sent: list[PlannedOrder] = field(factory=list)
    known: dict[str, SeenAnswer] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name, answer in self.known.items():
            self._count(name, answer)

    def next(self, name: str) -> PlannedOrder | None:
        """The order of that name that is to be sent; None if none is."""
        found = None if name in self.known else self.plan.next(name, self.sent)
        return found if found is not None and found.level == self.level else None

    @property
    def wanted(self) -> list[PlannedOrder]:
        """Those that are yet to be sent."""
        return [item for item in map(self.next, NAMES) if item is not None]

    @property
    def new(self) -> list[PlannedOrder]:
        """Those of them that the cap has room for."""
        return admitted(self.wanted, self.sent, self.cap)

    @property
    def amount_sent(self) -> Decimal:
        """Of all that was sent, as far as it is known."""
        return sum((item.amount for item in self.sent), Decimal(0))

    def answered(self, name: str, answer: SeenAnswer) -> None:
        """An order was answered: it counts with what the service says that it amounts to."""
        self.known[name] = answer
        self._count(name, answer)

    def _count(self, name: str, answer: SeenAnswer) -> None:
        last = max((at for at, one in enumerate(self.sent) if one.name == name), default=None)
        if last is not None and answer.amount is not None:
            self.sent[last] = evolve(self.sent[last], counted=answer.amount)


def announced(spending: Spending) -> list[str]:
    """What a level will do, in full, and the most that it can cost."""
    new = spending.new
    currency = spending.plan.order.poster_currency
    amount = sum((item.amount for item in new), Decimal(0))
    what = {
        1: "level 1: orders that must be refused; which is assumed: one that is created stops the probe",
        2: "level 2: real orders of the test environment",
    }
    return [
        what[spending.level],
        *(f"  {item.name}: {item.why}; {item.amount} {currency}" for item in new),
        *(_left_out(pending) for pending in spending.wanted if pending not in new),
        f"  {len(new)} requests; at most {len(new)} orders, and {amount:f} {currency} in all",
        "  1 more before them: who am I",
        f"  spent before: {len(spending.sent)} orders, {spending.amount_sent:f} {currency}",
        f"  the cap: {spending.cap.orders} orders, {spending.cap.amount:f} {currency}",
        "  what the service has no time for (429, 503) is sent once more, and counted again",
    ]


def _left_out(one: PlannedOrder) -> str:
    return f"  left out, beyond the cap: {one.name}"


async def run(service: Service, ledger: Ledger, spending: Spending, *, keep: Keep, say: Say) -> None:
    """Send what is admitted and has no answer, one after the other.

    Args:
        service: where to.
        ledger: where each is counted before it is sent.
        spending: what.
        keep: takes each answer.
        say: takes lines.

    Raises:
        Stopped: an order was created that had to be refused, or a good one was not; it cost too much;
            there was no answer; or it was in vain.
    """
    _look_at(spending)
    names, times = [item.name for item in spending.new], 0
    ids = await ledger.ids(spending.sent)
    async with Relay(service, ids) as relay, _client(relay, service, ledger) as client:
        while names:
            one = spending.next(names[0])
            if one is None or not _is_worth_it(one, spending.known):
                names.pop(0)
                continue
            if not admitted([one], spending.sent, spending.cap):
                say(_left_out(one))
                names.pop(0)
                continue
            answer = await _sent(client, relay, one)
            spending.sent.append(one)
            if relay.raw.is_turned_away:
                await keep(profile.TURNED_AWAY, answer)
                await service.rest(relay.raw, times=times)
                times += 1
                continue
            times = 0
            _check_answered(one, relay.raw)
            spending.answered(one.name, answer)
            await keep(one.name, answer)
            _look_at(spending)


def _check_answered(one: PlannedOrder, raw: RawAnswer) -> None:
    """Whether what came back, or did not, says anything of the order.

    Raises:
        Stopped: it does not.
    """
    if raw.status is not None or not raw.is_sent:
        check_reached(raw)
    elif not one.is_cut and one.attempt == 1:
        raise Stopped(
            f"{one.name} ({one.why}) was sent, and no answer came: look in the test environment whether "
            "there is an order. If the probe is run again, it is sent once more; then silence is its answer"
        )


def _client(relay: Relay, service: Service, ledger: Ledger) -> TransferClient:
    """A client that sends everything once, and says of a doubt that it is one."""
    total = 2.5 * service.patience  # the relay's own patience is 2 of it
    return TransferClient(
        relay.base_url,
        service.token,
        journal=ledger.journal,
        scope=ledger.scope,
        retry=RetryPolicy(attempts=1, deadline=total),
        timeouts=Timeouts(sock_read=total, total=total),
        lease=1.5 * total,
    )


async def _sent(client: TransferClient, relay: Relay, planned: PlannedOrder) -> SeenAnswer:
    relay.arm(planned)
    try:
        await client.create_order(planned.order, key=planned.key, held=HELD, once=True)
    except KeyBusy as busy:
        wait = busy.retry_after or 0.0
        raise Stopped(f"{planned.name}: a run that was killed has it still; again in {wait:.0f} s") from None
    except TransferError:
        pass  # what the service said is with the relay; the rest is with the journal
    finally:
        answer = relay.disarm()
    if answer is None:
        raise Stopped(
            f"{planned.name} was not sent: the journal did not allow it, or it could not be written"
        )
    return answer


def _is_worth_it(planned: PlannedOrder, known: Mapping[str, SeenAnswer]) -> bool:
    """Whether an order that repeats another can tell anything."""
    if planned.again is None:
        return True
    if planned.name == profile.CUT_AGAIN:  # else nobody knows whose answer it is
        told = known.get(profile.SAME_AGAIN)
        return planned.again in known and told is not None and told.order != "new"
    return planned.again in known


def _look_at(spending: Spending) -> None:
    """Whether anything speaks against the next order.

    Raises:
        Stopped: something does.
    """
    for item in spending.sent:
        answer = spending.known.get(item.name)
        if answer is None:
            continue
        if item.level == REFUSALS and is_created(answer):
            raise Stopped(
                f"{item.name} ({item.why}) was created, or answered as if it were: it had to be refused. "
                "Look at the order in the test environment; nothing more is sent"
            )
        if item.name == profile.ORDER and answer.order != "new":
            raise Stopped(
                "a good order was not created: is everything in --order as this service wants it?"
                if answer.unreadable is None
                else f"a good order was answered with {answer.status}, and the client cannot read the "
                f"answer: {answer.unreadable}. Every order of a client would end in doubt. The service must "
                "answer as the specification says (2.1)"
            )
    more = ", ".join(item.name for item in spending.sent if item.counted is not None)
    if more and spending.amount_sent > spending.cap.amount:
        raise Stopped(
            f"the service worked out more than was sent ({more}): all orders together are "
            f"{spending.amount_sent:f} {spending.plan.order.poster_currency}, beyond --most-amount. "
            "Nothing more is sent"
        )


def is_created(answer: SeenAnswer) -> bool:
    """Whether an answer shows an order, or says yes without showing one."""
    return answer.order in ("new", "same") or (answer.status is not None and 200 <= answer.status <= 299)


# --- relay -------------------------------------------------------------------------------------------
# What stands between the client and the service: it sends what the probe wants sent, once, and looks.
#
# The client claims, marks and settles as it does for any order; it speaks to this address of this machine.
# The relay hands on one request for each time that it is armed, with the body that is wanted.


_HOST = "127.0.0.1"
_NEVER_SENT = 425  # to the client: nothing was done, as it is
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "upgrade"}
)


class Relay:
    """The way to a service, for one order at a time.

    Args:
        service: where it hands on.
        known: ids of orders that are known.
    """

    def __init__(self, service: Service, known: Collection[str]) -> None:
        self.known = set(known)
        self._service = service
        self._armed: PlannedOrder | None = None
        self._answer: SeenAnswer | None = None
        self.raw = RawAnswer()
        """What came back last."""
        self._listener: asyncio.Server | None = None
        self._server = web.Server(self._handle, access_log=None)

    @property
    def base_url(self) -> str:
        """Where the client finds it."""
        assert self._listener is not None  # noqa: S101 - it is entered
        return f"http://{_HOST}:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.get_running_loop().create_server(self._server, _HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None  # noqa: S101 - it was entered
        self._listener.close()
        await self._server.shutdown(1.0)

    def arm(self, planned: PlannedOrder) -> None:
        """Let the next request pass, as this order."""
        self._armed, self._answer = planned, None

    def disarm(self) -> SeenAnswer | None:
        """Let nothing pass any more; what was seen of the request that did, if one did."""
        self._armed = None
        return self._answer

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        planned, self._armed = self._armed, None  # before anything is sent: nothing passes twice
        if planned is None or request.path != CREATE_ORDER or not self._is_ours(request):
            return web.Response(status=404)
        raw = await self._hand_on(planned, body)
        if not raw.is_sent:
            return web.Response(status=_NEVER_SENT)
        if raw.status is None or not raw.is_intact:
            request.protocol.force_close()
            return web.Response(status=502)
        headers = [(name, value) for name, value in raw.headers if name.lower() not in _HOP]
        return web.Response(status=raw.status, body=raw.body, headers=headers)

    def _is_ours(self, request: web.BaseRequest) -> bool:
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(said, f"Bearer {self._service.token}".encode())

    async def _hand_on(self, planned: PlannedOrder, body: bytes) -> RawAnswer:
        wanted = planned.body(validation.read(body))
        question = self._service.question("POST", CREATE_ORDER, body=wanted)
        connection = self._service.connection()
        began = self._service.clock.now()
        self._answer = SeenAnswer(order="unknown")
        self.raw = RawAnswer()
        try:
            raw = self.raw = await (connection.send_and_cut if planned.is_cut else connection.ask)(question)
        finally:
            connection.close()
        found = order_in(raw, self.known, sent=None if planned.is_special else planned.order)
        if found.amount is not None and found.amount <= planned.amount:
            found = evolve(found, amount=None)
        self._answer = seen(raw, seconds=self._service.clock.now() - began, found=found)
        if found.order_id is not None and found.says != "none":
            self.known.add(found.order_id)
        return raw
