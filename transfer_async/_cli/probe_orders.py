"""Levels 1 and 2: orders, each through the client and its journal, and what was seen of them."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from decimal import Decimal
from types import TracebackType
from typing import Self

from aiohttp import web
from attrs import define, evolve, field

from transfer_async._cli.output import Say
from transfer_async._cli.probe_budget import NAMES, REFUSALS, Cap, Ledger, Plan, PlannedOrder, admitted
from transfer_async._cli.probe_reads import Service, Stopped, check_reached
from transfer_async._cli.raw_http import RawAnswer, order_in, seen
from transfer_async._client import TransferClient
from transfer_async._http.retry import RetryPolicy
from transfer_async._http.transport import Timeouts
from transfer_async._http.urls import CREATE_ORDER
from transfer_async._models.errors import KeyBusy, TransferError
from transfer_async.sandbox import SeenAnswer, profile, validation

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
