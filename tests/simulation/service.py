"""The service and the network: responses of every kind, lost responses, and late requests."""

import asyncio
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from tests.simulation.chance import Weighted
from tests.simulation.loop import OUTSIDE, PROCESS, this_call
from tests.support.bank import new_order, other_order
from transfer_async._http.transport import ExchangeResult, TransportClosed
from transfer_async._http.write_guard import ConnectionState, GuardedBody
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async.journal.model import SETTLE_AFTER
from transfer_async.testing import make_order

if TYPE_CHECKING:
    from tests.simulation.world import World

ABANDONED_AFTER = 4500.0  # seconds; longer than two freezes of a process
WISH, OTHER_WISH = new_order(), other_order()


def _reply(wish: NewOrder) -> tuple[bytes, bytes]:
    """Return the parts of the service's response before and after the order's id."""
    head, tail = make_order(wish, id="tx-here").to_json().split(b"tx-here")
    return head, tail


OURS, FOREIGN = _reply(WISH), _reply(OTHER_WISH)


@frozen
class Answer:
    """One way to respond.

    Args:
        effect: when the order is created: "at once", "slowly", "too late" for anyone to wait, or never.
        status: the status; None if there is no response.
        body: "order", "another's", "twin's" (of another key with the same content), "cut", or literal bytes.
    """

    effect: str
    status: int | None
    body: bytes | str = b"{}"


GOOD = Answer("at once", 200, "order")
ANSWERS = Weighted(
    (3, Answer("slowly", 200, "order")),
    (3, Answer("at once", None)),
    (2, Answer("never", None)),
    (4, Answer("too late", None)),
    (2, Answer("too late", 504)),
    (3, Answer("never", 422, b'{"message": "no"}')),
    (3, Answer("never", 429)),
    (3, Answer("at once", 503)),
    (2, Answer("never", 503)),
    (1, Answer("at once", 500)),
    (1, Answer("at once", 408)),
    (1, Answer("never", 401, b'{"message": "Unauthorized"}')),
    (1, Answer("at once", 403, b"<html>")),
    (1, Answer("at once", 200, b"<html>")),
    (1, Answer("at once", 200, "cut")),
    (1, Answer("never", 200, "another's")),
    (1, Answer("at once", 200, "another's")),
    (3, Answer("at once", 200, "twin's")),
)
CONNECTING = Weighted((3, "refused"), (1, "slow"), (1, "stale"))


@frozen
class Made:
    """An order at the service."""

    id: str
    key: str
    intent_id: str
    reply: bytes


@define(eq=False)
class Request:
    """A request whose first byte was sent. ``latest`` is the last time at which it may create an order."""

    key: str
    intent_id: str
    latest: float
    wish: NewOrder
    reply: "asyncio.Future[ExchangeResult]" = field(repr=False)


class Service:
    """The service. Because it does not know keys, each request that arrives creates another order."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.orders: list[Made] = []
        self.requests = 0

    def order_of(self, intent_id: str) -> Made | None:
        return next((order for order in self.orders if order.intent_id == intent_id), None)

    def order_of_key(self, key: str | None, *, seen: int | None = None) -> Made | None:
        """Return the key's first order. If ``seen`` is given, consider only that many orders."""
        return next((order for order in self.orders[:seen] if order.key == key), None)

    def take(self, request: Request) -> None:
        """Receive a request from a worker."""
        world, chance = self.world, self.world.chance
        self.requests += 1
        answer = ANSWERS.draw(chance) if world.trouble("service") else GOOD
        now = world.loop.time()
        answer_at = now + chance.latency()
        world.note(f"a request of {request.intent_id} arrives: {answer}")
        if answer.effect == "at once":
            self._effect(request)
        elif answer.effect == "slowly":
            answer_at = now + 24.0 * chance.random()
            world.loop.call_at(min(answer_at, request.latest), self._effect, request, context=OUTSIDE)
        elif answer.effect == "too late":
            when = now + (request.latest - now) * chance.random()
            world.loop.call_at(when, self._effect, request, context=OUTSIDE)
        if answer.status is not None or chance.once_in(0.5):  # otherwise, the worker waits until its timeout
            world.loop.call_at(answer_at, self._answer, request, answer, context=OUTSIDE)

    def _effect(self, request: Request) -> None:
        head, tail = OURS if request.wish == WISH else FOREIGN
        order_id = f"tx-{len(self.orders) + 1}"
        if request.reply.done():
            self.world.saw("late effect")
        self.world.note(f"{order_id} exists for {request.intent_id}")
        made = Made(order_id, request.key, request.intent_id, head + order_id.encode() + tail)
        self.orders.append(made)
        self.world.witness.exists(made)

    def _answer(self, request: Request, answer: Answer) -> None:
        if request.reply.done():
            return
        if answer.status is None:
            request.reply.set_exception(ConnectionResetError())
            return
        body = answer.body if isinstance(answer.body, bytes) else self._body(request, answer.body)
        self.world.saw(f"status {answer.status}")
        request.reply.set_result(ExchangeResult(sent=True, status=answer.status, body=body, intact=True))

    def _body(self, request: Request, what: str) -> bytes:
        made = self.order_of(request.intent_id)
        if what == "another's":
            self.world.saw("foreign order")
            head, tail = FOREIGN if request.wish == WISH else OURS
            return head + b"tx-0" + tail
        if what == "twin's":
            # Use only an order that is already recorded for another key; others could not be distinguished.
            ids = self.world.database.ids
            bound = next((one for one in self.orders if ids.get(one.id, request.key) != request.key), None)
            if bound is not None and request.wish == WISH:
                self.world.saw("twin's order")
                return bound.reply
        reply = b"" if made is None else made.reply
        return reply[: len(reply) // 2] if what == "cut" else reply


class Wire:
    """A stand-in for the connection to which aiohttp writes."""

    def __init__(self, world: "World", intent: OrderIntent, *, stale: bool) -> None:
        self.world, self.intent, self.stale = world, intent, stale
        self.transport = self
        self.reply = world.loop.create_future()

    def is_closing(self) -> bool:
        return self.stale

    def get_extra_info(self, name: str) -> None:
        return None

    async def write(self, content: bytes) -> None:
        """Send the first byte. The process may still pause between the last check and this write."""
        world, intent = self.world, self.intent
        world.witness.looked(intent)
        looked = world.loop.time()
        PROCESS.get().on_the_way_to("write")
        await asyncio.sleep(0)
        if (paused := world.loop.time() - looked) >= SETTLE_AFTER - 1.0:
            world.witness.continued(intent, paused)
            if world.pauses.once_in(0.3):
                raise ConnectionResetError  # most connections that are not used survive such a pause
            world.saw("sent after a pause")
        latest = world.loop.time() + SETTLE_AFTER - 1.0
        world.witness.sending(intent)
        request = Request(intent.key, intent.id, latest, intent.order, self.reply)
        world.loop.call_soon(world.service.take, request, context=OUTSIDE)


class SimulatedTransport:
    """A stand-in for `transfer_async._http.transport.Transport`."""

    is_open = False  # avoids a warning of a client that died with its process

    def __init__(self, world: "World") -> None:
        self.world = world
        self._closed = False
        self._wires: list[Wire] = []

    def open(self) -> None:
        if self._closed:
            raise TransportClosed

    async def close(self) -> None:
        self._closed = True
        for wire in self._wires:
            if not wire.reply.done():
                wire.reply.set_exception(TransportClosed())

    def stays_quiet(self, carrier: ConnectionState) -> bool:
        """Return True: nothing ever follows a response here."""
        return True

    async def post_order(self, body: GuardedBody, *, headers: Any, left: float) -> ExchangeResult:
        try:
            async with asyncio.timeout(min(25.0, max(left, 0.001))):
                return await self._exchange(body)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - its type proves nothing
            return ExchangeResult(sent=body.handed_over, error=error)
        finally:
            body.spent = True

    async def _exchange(self, body: GuardedBody) -> ExchangeResult:
        world = self.world
        how = CONNECTING.draw(world.chance) if world.trouble("service", 0.3) else "fast"
        await world.sleep(40.0 * world.chance.random() if how == "slow" else world.chance.latency())
        if how == "refused":
            raise ConnectionRefusedError
        self.open()
        wire = Wire(world, this_call().work.intent, stale=how == "stale")
        self._wires.append(wire)
        await body.take(wire.transport, None)
        await wire.write(body.content)
        return await wire.reply
