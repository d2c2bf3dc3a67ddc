"""Levels 1 and 2 of the probe: plan orders, limit their number and cost, and send them.

The cap applies to the total of all runs that use the same journal, even if probes are killed. Orders that
would exceed the cap are skipped before anything is sent. The journal preserves the count across runs: each
order has a fixed key, a key has at most one order, and an order counts from the moment its key is recorded as
sending.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from pathlib import Path

from aiohttp import web
from attrs import define, evolve, field, frozen

from transfer_async._cli.output import Say
from transfer_async._cli.probe_http import (
    BUSY,
    Response,
    Service,
    Stopped,
    check_reached,
    find_order,
    seen_answer,
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
from transfer_async.sandbox import SeenAnswer, SeenLimits, profile, wire

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows; there, run only one probe with a journal
    fcntl = None  # type: ignore[assignment]

REFUSALS, ORDERS = 1, 2  # the levels

AMOUNT_STEP = profile.NEAR
_WIDE = Context(prec=100)


# --- the plan ----------------------------------------------------------------------------------------


@frozen
class Case:
    """A test case of the probe. Each case sends one order."""

    name: str  # the case's name, which is part of the order's key
    level: int  # 1 if the order must be refused
    why: str  # the purpose of the order, in a few words
    repeats: str | None = None  # the name of the case whose body this one repeats
    is_cut: bool = False  # whether the connection is closed once the body is sent


CASES = (
    *(Case(name, REFUSALS, special.why) for name, special in profile.MUST_BE_REFUSED.items()),
    Case(profile.ORDER, ORDERS, "a valid order"),
    Case(profile.SAME_AGAIN, ORDERS, "the same body again: one order, two, or a refusal?", profile.ORDER),
    Case(profile.CUT, ORDERS, "the connection is closed after the body is sent", is_cut=True),
    Case(
        profile.CUT_AGAIN,
        ORDERS,
        ("the body from the closed connection again, if the service recognises repeated bodies"),
        profile.CUT,
    ),
    *(Case(name, ORDERS, special.why) for name, special in profile.WITHOUT.items()),
    Case(profile.LEAST, ORDERS, "the minimum order amount in the poster's currency, according to who-am-i"),
    Case(profile.BELOW, ORDERS, "an amount below the minimum amount"),
    Case(profile.GREATEST, ORDERS, "the maximum amount"),
    Case(profile.ABOVE, ORDERS, "an amount above the maximum amount"),
)
"""All cases, in their sequence. Amounts depend on a case's position, so never change the sequence."""

NAMES = tuple(case.name for case in CASES)
_AT_LIMITS = (profile.LEAST, profile.BELOW, profile.GREATEST, profile.ABOVE)
_NUMBERED = [case.name for case in CASES if case.repeats is None and case.name not in _AT_LIMITS]


@frozen(kw_only=True)
class PlannedOrder:
    """The order to send for one test case."""

    case: Case
    order: NewOrder = field(repr=False)  # the order in the journal; the body that is sent may differ from it
    attempt: int = 1  # counted from 1. If the service was busy, another attempt has its own key and amount.
    counted: Decimal | None = None  # the amount that the service calculated, if it is more than was sent

    @property
    def name(self) -> str:
        """The case's name."""
        return self.case.name

    @property
    def key(self) -> str:
        """The order's key in the journal, which is the same in every run."""
        return key_of(self.name, self.attempt)

    @property
    def amount(self) -> Decimal:
        """The maximum cost of the order, in the poster's currency.

        The request body never contains a larger amount.
        """
        return self.order.poster_amount if self.counted is None else self.counted

    @property
    def special(self) -> profile.Special | None:
        """The changes to make to the client's body, or None."""
        return profile.MUST_BE_REFUSED.get(self.name) or profile.WITHOUT.get(self.name)

    def body(self, document: profile.Document) -> bytes:
        """Return the body to send in place of the client's body."""
        return wire.write(document) if self.special is None else self.special.made(document)


def key_of(name: str, attempt: int = 1) -> str:
    """Return the key for a case's order."""
    return f"probe-{name}" if attempt == 1 else f"probe-{name}.{attempt}"


@frozen(kw_only=True)
class Plan:
    """The orders of levels 1 and 2. No two orders have the same amount, unless one repeats the other."""

    order: NewOrder  # a valid order
    apart: Decimal  # the step of ``matcher_amount`` from one order to the next, so that all orders differ
    limits: Mapping[str, SeenLimits]  # by currency; limits are not tested if the poster's currency has none

    def next(self, name: str, sent: Sequence[PlannedOrder]) -> PlannedOrder | None:
        """Return the next order to send for a case, or None if all its orders were sent."""
        case = CASES[NAMES.index(name)]
        found = self.planned(case, attempt=1 + sum(item.name == name for item in sent))
        if found is not None and (first := [item for item in sent if item.name == case.repeats]):
            return evolve(found, order=first[-1].order)  # the attempt that got a response
        return found

    def planned(self, case: Case, *, attempt: int = 1) -> PlannedOrder | None:
        """Return the order for a case. Each attempt at a case has a different amount.

        Return None if the case tests a limit that is unknown, or if the amount would not be positive.
        """
        rate, name = self.order.exchange_rate, case.repeats or case.name
        if name in _AT_LIMITS:
            amount = self._at_limit(name, attempt)
            if amount is None or amount <= 0 or requests.product(amount, rate, places=2) <= 0:
                return None
        else:
            number = len(CASES) * (attempt - 1) + _NUMBERED.index(name)
            amount = self.order.matcher_amount + self.apart * number
        poster_amount = requests.product(amount, rate, places=2)
        order = evolve(self.order, matcher_amount=amount, poster_amount=poster_amount)
        return PlannedOrder(case=case, order=order, attempt=attempt)

    def _at_limit(self, name: str, attempt: int) -> Decimal | None:
        """Return the ``matcher_amount`` that tests the limit ``name``, or None if no limit is known."""
        limits, rate = self.limits.get(self.order.poster_currency), self.order.exchange_rate
        if limits is None:
            return None
        least = _WIDE.divide(limits.least, rate).quantize(AMOUNT_STEP, ROUND_CEILING, _WIDE)
        greatest = _WIDE.divide(limits.greatest, rate).quantize(AMOUNT_STEP, ROUND_FLOOR, _WIDE)
        return {
            profile.LEAST: least + AMOUNT_STEP * (attempt - 1),
            profile.BELOW: least - AMOUNT_STEP * attempt,
            profile.GREATEST: greatest - AMOUNT_STEP * (attempt - 1),
            profile.ABOVE: greatest + AMOUNT_STEP * attempt,
        }[name]


# --- the cap -----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Cap:
    """The maximum number and total amount of the orders in all runs that use the same journal."""

    orders: int  # maximum number
    amount: Decimal  # maximum sum, in the poster's currency

    def admitted(self, wanted: Iterable[PlannedOrder], sent: Iterable[PlannedOrder]) -> list[PlannedOrder]:
        """Return the ``wanted`` orders that fit within the cap, in addition to those in ``sent``.

        Every order that any run has sent, or may have sent, counts in full, whatever its outcome.
        """
        before = [item.amount for item in sent]
        count, amount = len(before), sum(before, Decimal(0))
        found = []
        for pending in wanted:
            if count + 1 > self.orders or amount + pending.amount > self.amount:
                continue
            count, amount = count + 1, amount + pending.amount
            found.append(pending)
        return found


@frozen
class Ledger:
    """The orders in a durable journal that were sent, or that a killed run may have sent."""

    journal: Journal
    scope: str
    _entries: dict[str, Entry] = field(factory=dict, init=False, repr=False)

    async def sent(self, plan: Plan) -> list[PlannedOrder]:
        """Return the orders that were sent, or may have been sent.

        Raises:
            ValueError: the amount of an order is unknown, because the order differs from the plan.
        """
        found: list[PlannedOrder] = []
        for name in NAMES:
            for attempt in itertools.count(1):
                key = key_of(name, attempt)
                entry = await self.journal.read(self.scope, key)
                if entry is None or not await self._was_sent(key, entry):
                    break
                planned = plan.next(name, found)
                if planned is None or fingerprint(planned.order) != entry.fingerprint:
                    raise ValueError(
                        "--journal: contains orders that do not match --order, --apart or the "
                        "profile's limits: pass the previous values, or a new journal, which has its "
                        "own cap"
                    )
                self._entries[key] = entry
                found.append(planned)
        return found

    async def _was_sent(self, key: str, entry: Entry) -> bool:
        """Return whether the key was ever recorded as sending, even if its order was refused later."""
        if entry.state is KeyState.CREATED or (
            entry.state in AT_WORK and entry.state is not KeyState.CLAIMED
        ):
            return True
        return any(step.state is KeyState.SENDING for step in await self.journal.history(self.scope, key))

    def recorded(self, sent: Iterable[PlannedOrder]) -> dict[str, SeenAnswer]:
        """Return the answers in the journal; raise `Stopped` if an order may cost more than was counted."""
        found = {}
        for item in sent:
            if (answer := _recorded_answer(item, self._entries[item.key])) is not None:
                found[item.name] = answer
        return found

    def ids(self) -> set[str]:
        """Return the ids of the orders that exist."""
        return {entry.order_id for entry in self._entries.values() if entry.order_id is not None}


def _recorded_answer(sent: PlannedOrder, entry: Entry) -> SeenAnswer | None:
    """Return the recorded answer, or None if the order must be sent again."""
    if entry.state is KeyState.CREATED:
        return SeenAnswer(status=200, body="json", order="new")
    if entry.state is KeyState.FREE and entry.ending is not None:
        is_answer = entry.ending.status is not None and is_final_no(entry.ending.error, entry.ending.status)
        return SeenAnswer(status=entry.ending.status, order="none") if is_answer else None
    if entry.cause is not None and entry.cause.kind is CauseKind.UNREADABLE_ANSWER:
        raise Stopped(
            f"{sent.name}: the response to this order is no longer in the profile, and the "
            "order may cost more than was counted. Check the order in the test "
            "environment, then use another --journal with its own cap"
        )
    status = None if entry.cause is None else entry.cause.status
    is_answer = sent.case.is_cut or not (status is None or status in BUSY)
    return SeenAnswer(status=status, order="unknown") if is_answer else None


@contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Lock the journal against other probes.

    If a process is killed, the operating system releases its lock.
    """
    file = os.open(journal.with_name(journal.name + ".probe"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:  # pragma: no branch - Windows
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError("--journal: in use by another probe; wait until that probe ends") from None
        yield
    finally:
        os.close(file)


# --- a level -----------------------------------------------------------------------------------------


@define(kw_only=True)
class LevelOrders:
    """The orders of one level: those already sent, their answers, and those still to send."""

    plan: Plan  # the plan of both levels
    cap: Cap
    level: int
    sent: list[PlannedOrder] = field(factory=list)  # see `Ledger.sent`; this run appends its orders
    answers: dict[str, SeenAnswer] = field(factory=dict)  # by case; an order without an answer is sent again

    def __attrs_post_init__(self) -> None:
        for name, answer in [*self.answers.items()]:  # `answered` writes to this dictionary.
            self.answered(name, answer)

    def next(self, name: str) -> PlannedOrder | None:
        """Return the order to send for a case, or None."""
        found = None if name in self.answers else self.plan.next(name, self.sent)
        return found if found is not None and found.case.level == self.level else None

    @property
    def wanted(self) -> list[PlannedOrder]:
        """The orders that have not been sent yet."""
        return [item for item in map(self.next, NAMES) if item is not None]

    @property
    def amount_sent(self) -> Decimal:
        """The total amount of all orders sent."""
        return sum((item.amount for item in self.sent), Decimal(0))

    def admit(self, wanted: Iterable[PlannedOrder]) -> list[PlannedOrder]:
        """Return the orders that do not exceed the cap."""
        return self.cap.admitted(wanted, self.sent)

    def answered(self, name: str, answer: SeenAnswer) -> None:
        """Record an answer, and count its amount if that is larger than the amount sent."""
        self.answers[name] = answer
        last = max((at for at, item in enumerate(self.sent) if item.name == name), default=None)
        if last is not None and answer.amount is not None:
            self.sent[last] = evolve(self.sent[last], counted=answer.amount)

    def is_useful(self, case: Case) -> bool:
        """Return whether the order of a case is worth sending.

        An order that repeats an earlier order is worth sending only if the earlier order has an answer.
        """
        again = self.answers.get(profile.SAME_AGAIN)
        if case.name == profile.CUT_AGAIN and (again is None or again.order == "new"):
            return False  # The response would not show which of the two orders exists.
        return case.repeats is None or case.repeats in self.answers

    def check(self) -> None:
        """Raise `Stopped` if a response means that no further order may be sent."""
        for item in self.sent:
            answer = self.answers.get(item.name)
            if answer is None:
                continue
            is_success = answer.status is not None and 200 <= answer.status <= 299
            if item.case.level == REFUSALS and (is_success or answer.order in ("new", "same")):
                raise Stopped(
                    f"{item.name} ({item.case.why}) should have been refused, but the service created the "
                    "order or returned a success status. Check the order in the test environment; no "
                    "further order is sent"
                )
            if item.name == profile.ORDER and answer.order != "new" and answer.unreadable is None:
                raise Stopped(
                    "the valid order was not created: correct --order so that this service accepts the order"
                )
            if item.name == profile.ORDER and answer.order != "new":
                raise Stopped(
                    f"the service responded to the valid order with {answer.status}, and the client "
                    f"cannot read the response: {answer.unreadable}. Every order would be in doubt. "
                    "The service must respond as the specification says (2.1)"
                )
        more = ", ".join(item.name for item in self.sent if item.counted is not None)
        if more and self.amount_sent > self.cap.amount:
            raise Stopped(
                f"the service calculated larger amounts than the probe sent ({more}): the total is "
                f"now {self.amount_sent:f} {self.plan.order.poster_currency}, more than "
                "--most-amount. No further order is sent"
            )


_TITLES = {
    REFUSALS: "level 1: orders that must be refused; if one is created, the probe stops",
    ORDERS: "level 2: real orders in the test environment",
}


def order_announcement(orders: LevelOrders) -> list[str]:
    """Return the lines that announce the orders of a level and their maximum cost."""
    wanted = orders.wanted
    new, currency = orders.admit(wanted), orders.plan.order.poster_currency
    amount = sum((item.amount for item in new), Decimal(0))
    return [
        _TITLES[orders.level],
        *(f"  {item.name}: {item.case.why}; {item.amount} {currency}" for item in new),
        *(_LEFT_OUT.format(item.name) for item in wanted if item not in new),
        f"  {len(new)} requests; at most {len(new)} orders, and {amount:f} {currency} in total",
        "  first, one who-am-i request",
        f"  already sent: {len(orders.sent)} orders, {orders.amount_sent:f} {currency}",
        f"  the cap: {orders.cap.orders} orders, {orders.cap.amount:f} {currency}",
        ("  if the service is busy (429, 503), the order is sent again later, and is counted again"),
    ]


_LEFT_OUT = "  skipped, because they would exceed the cap: {}"


async def send_orders(
    service: Service,
    ledger: Ledger,
    orders: LevelOrders,
    *,
    keep: Callable[[str, SeenAnswer], Awaitable[None]],
    say: Say,
) -> None:
    """Send the orders of a level that do not exceed the cap.

    ``keep`` saves each answer before the next order is sent.

    Raises:
        Stopped: an order that must be refused was created, the valid order was not created, the cap is
            exceeded, there was no response, or an order could not be sent.
    """
    orders.check()
    names, times = [item.name for item in orders.admit(orders.wanted)], 0
    relay = Relay(service, ledger.ids())
    async with relay.listening() as address, _client(address, service, ledger) as client:
        while names:
            planned = orders.next(names[0])
            if planned is None or not orders.is_useful(planned.case):
                names.pop(0)
                continue
            if not orders.admit([planned]):
                say(_LEFT_OUT.format(planned.name))
                names.pop(0)
                continue
            answer = await _sent(client, relay, planned)
            orders.sent.append(planned)
            if relay.response.is_busy:
                await keep(profile.TURNED_AWAY, answer)
                await service.wait(relay.response, times=times)
                times += 1
                continue
            times = 0
            _check_answered(planned, relay.response)
            orders.answered(planned.name, answer)
            await keep(planned.name, answer)
            orders.check()


def _check_answered(planned: PlannedOrder, response: Response) -> None:
    """Raise `Stopped` if the response is missing, or if the service rejected the token."""
    if response.status is not None or not response.sent:
        check_reached(response)
    elif not planned.case.is_cut and planned.attempt == 1:
        raise Stopped(
            f"{planned.name} ({planned.case.why}) was sent, but no response arrived: look "
            "for the order in the test environment, then run the probe again. The probe "
            "will send the order once more. If there is again no response, the profile will "
            "record the missing response"
        )


def _client(address: str, service: Service, ledger: Ledger) -> TransferClient:
    """Create a client that sends each order to the relay, only once, and does not resolve doubts."""
    total = 2.5 * service.timeout  # The relay waits for a response for up to 2 of these timeouts.
    return TransferClient(
        address,
        service.token,
        journal=ledger.journal,
        scope=ledger.scope,
        retry=RetryPolicy(attempts=1, deadline=total),
        timeouts=Timeouts(sock_read=total, total=total),
        lease=1.5 * total,
        request_id_header=service.request_id_header,
    )


async def _sent(client: TransferClient, relay: Relay, planned: PlannedOrder) -> SeenAnswer:
    relay.arm(planned)
    try:
        # The test environment moves no money, so there is nothing to hold.
        await client.create_order(planned.order, key=planned.key, held="probe: no funds", once=True)
    except KeyBusy as busy:
        wait = busy.retry_after or 0.0
        raise Stopped(
            f"{planned.name}: a killed run still holds the key; run the probe again in {wait:.0f} s"
        ) from None
    except TransferError:
        pass  # The relay has the service's response, and the journal has the outcome.
    finally:
        answer = relay.disarm()
    if answer is None:
        raise Stopped(
            f"{planned.name} was not sent, because the journal refused the order or could "
            "not be written; check --journal"
        )
    return answer


# --- the relay ---------------------------------------------------------------------------------------
# The client records each order in the journal as usual, but sends it to the relay on this machine. After each
# call of `arm`, the relay forwards one request to the service, with the body of the case.


_HOST = "127.0.0.1"
_NEVER_SENT = 425  # The client reads this status as "not processed".
_NOT_FORWARDED = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "upgrade"}
)


@define(eq=False)
class Relay:
    """Forwards one order at a time to the service, and keeps the service's last ``response``."""

    _service: Service
    _known: set[str]  # the ids of orders that are known
    response: Response = field(factory=Response, init=False)
    _armed: PlannedOrder | None = field(default=None, init=False)
    _answer: SeenAnswer | None = field(default=None, init=False)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen on this machine during the block, and yield the base URL for the client."""
        server = web.Server(self._handle, access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, _HOST, 0)
        try:
            yield f"http://{_HOST}:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            await server.shutdown(1.0)

    def arm(self, planned: PlannedOrder) -> None:
        """Forward the next request to the service, with the body of the planned order."""
        self._armed, self._answer = planned, None

    def disarm(self) -> SeenAnswer | None:
        """Stop forwarding, and return the response to the forwarded request, or None if none arrived."""
        self._armed = None
        return self._answer

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        planned, self._armed = self._armed, None  # Before the order is sent, so that it is not sent twice.
        if planned is None or request.path != CREATE_ORDER or not self._is_authorized(request):
            return web.Response(status=404)
        name = self._service.request_id_header
        attempt_id = {} if name is None else {name: request.headers[name]}
        response = await self._forward(planned, body, attempt_id)
        if not response.sent:
            return web.Response(status=_NEVER_SENT)
        if response.status is None or not response.intact:
            request.protocol.force_close()
            return web.Response(status=502)
        headers = [
            (name, value) for name, value in response.headers.items() if name.lower() not in _NOT_FORWARDED
        ]
        return web.Response(status=response.status, body=response.body, headers=headers)

    def _is_authorized(self, request: web.BaseRequest) -> bool:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self._service.token}".encode())

    async def _forward(self, planned: PlannedOrder, body: bytes, attempt_id: Mapping[str, str]) -> Response:
        request = self._service.request("POST", CREATE_ORDER, body=planned.body(wire.read(body)))
        request = evolve(request, headers={**request.headers, **attempt_id})
        self._answer, self.response = SeenAnswer(order="unknown"), Response()
        response, seconds = await self._service.exchange(request, cut=planned.case.is_cut)
        found = find_order(response, self._known, sent=planned.order if planned.special is None else None)
        if found.amount is not None and found.amount <= planned.amount:
            found = evolve(found, amount=None)
        self.response, self._answer = response, seen_answer(response, seconds=seconds, found=found)
        if found.order_id is not None and found.order != "none":
            self._known.add(found.order_id)
        return response
