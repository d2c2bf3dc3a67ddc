"""Assertions for the end of a test: for example, a key has exactly one order, or its hold is released.

The assertions read the journal, the sandbox's orders and the bank's ledger. If an assertion fails, it raises
an `AssertionError` that lists the orders or holds found.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

import attrs
from attrs import define

from transfer_async._client import TransferClient, context_of
from transfer_async._models.requests import (
    NewExternalOrder,
    NewOrder,
    OrderIntent,
    fingerprint,
    number_problem,
    to_decimal,
)
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.call import fresh_id
from transfer_async._pipeline.hooks import FundsHold
from transfer_async._support.clock import Clock, Duration, duration
from transfer_async.journal.model import Entry
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CreateOrder, wire


class HasOrders(Protocol):
    """Any object with an ``orders`` property: a `Sandbox`, or the ``sandbox`` of a `FakeClient`."""

    @property
    def orders(self) -> Mapping[str, wire.Order]:
        """The existing orders by id."""


async def assert_one_order(key: str, *, client: TransferClient, sandbox: HasOrders) -> None:
    """Assert that the sandbox has exactly one order with the same content as the order for ``key``.

    Orders with the same content are indistinguishable, so give each order in a test a different amount. If
    one payment may use several keys or rates, count its orders with `assert_one_payment`.

    Args:
        key: the caller's key.
        client: the client whose journal contains the key. The client need not be open.
        sandbox: the sandbox that received the order.
    """
    entry, found = await _orders_of(key, client, sandbox)
    _check(len(found) == 1, key, f"expected one order, but found {len(found)}: {', '.join(found)}")
    known = entry.order_id or found[0]
    _check(found == [known], key, f"the journal contains order {known}, but the sandbox contains {found[0]}")


def assert_one_payment(*, sandbox: HasOrders, **fields: object) -> None:
    """Assert that the sandbox has exactly one order with ``fields``. All other fields may have any value.

    Pass the fields by which your bank identifies a payment. Omit the fields that change with a new quote::

        assert_one_payment(
            sandbox=sandbox,
            poster_username="ada.eze@example.com",
            poster_recipient_username="ben.okri@example.com",
            matcher_amount="100.00",  # or poster_amount, if that is the fixed amount
        )

    Args:
        sandbox: the sandbox that received the order.
        fields: fields of `NewOrder` or of its ``external_order``, by name. Amounts may be strings.

    Raises:
        ValueError: no field was passed, a field is unknown, or an amount is invalid.
    """
    known = attrs.fields_dict(CreateOrder)
    if wrong := sorted(set(fields) - set(known)):
        raise ValueError(f"{', '.join(wrong)}: an order has no such field; choose from {', '.join(known)}")
    if not fields:
        raise ValueError("pass at least one field that identifies the payment, such as matcher_amount")
    wanted = {name: _wanted(name, value) for name, value in fields.items()}
    orders = sandbox.orders.values()
    found = [
        order
        for order in orders
        if all(getattr(order.request, name) == value for name, value in wanted.items())
    ]
    listed = "".join(f"\n  {order.id}: {_shown(order.request)}" for order in found)
    if len(found) != 1:
        raise AssertionError(f"{fields}: expected one order, but found {len(found)}{listed}")


async def assert_no_order(key: str, *, client: TransferClient, sandbox: HasOrders) -> None:
    """Assert that the sandbox has no order with the same content as the order for ``key``.

    The arguments are the same as for `assert_one_order`.
    """
    _, found = await _orders_of(key, client, sandbox)
    _check(not found, key, f"expected no order, but found {', '.join(found)}")


async def assert_hold_kept(key: str, *, client: TransferClient, held: Held) -> None:
    """Assert that ``key`` has exactly one hold, and that the hold belongs to the key's last intent.

    Args:
        key: the caller's key.
        client: the client whose journal contains the key. The client need not be open.
        held: a function that returns the holds of an intent; see `Held`.
    """
    *earlier, last = await _intents_of(key, client)
    found = await standing_holds(held, last)
    _check(len(found) == 1, key, f"expected one hold, but found {len(found)}: {', '.join(found)}")
    await _assert_none(key, earlier, held, " of an earlier intent")


async def assert_hold_released(key: str, *, client: TransferClient, held: Held) -> None:
    """Assert that no intent of ``key`` has a hold.

    The arguments are the same as for `assert_hold_kept`.
    """
    await _assert_none(key, await _intents_of(key, client), held, "")


async def _assert_none(key: str, intents: list[str], held: Held, which: str) -> None:
    found = [hold for intent_id in intents for hold in await standing_holds(held, intent_id)]
    _check(not found, key, f"expected no hold{which}, but found {', '.join(found)}")


async def _orders_of(key: str, client: TransferClient, sandbox: HasOrders) -> tuple[Entry, list[str]]:
    entry = await _entry(key, client)
    orders = [order.id for order in sandbox.orders.values() if _content(order.request) == entry.fingerprint]
    return entry, orders


async def _intents_of(key: str, client: TransferClient) -> list[str]:
    entry = await _entry(key, client)
    steps = await context_of(client).journal.history(key)
    earlier = (step.intent_id for step in steps if step.intent_id != entry.intent_id)
    return [*dict.fromkeys(earlier), entry.intent_id]


async def _entry(key: str, client: TransferClient) -> Entry:
    entry = await context_of(client).journal.read(key)
    if entry is None:
        raise AssertionError(f"{key!r}: the journal has no such key: no order was ever requested with it")
    return entry


def _wanted(name: str, value: Any) -> object:
    if attrs.fields_dict(CreateOrder)[name].type not in (Decimal, "Decimal"):
        return value
    amount = to_decimal(value)
    if problem := number_problem(amount):
        raise ValueError(f"{name}: {problem}")
    return amount


def _shown(request: CreateOrder) -> str:
    return f"{request.matcher_amount} {request.matcher_currency} at {request.exchange_rate}"


def _content(request: CreateOrder) -> str:
    fields = attrs.asdict(request)
    external = {name: fields.pop(name) for name in attrs.fields_dict(NewExternalOrder)}
    return fingerprint(NewOrder(external_order=NewExternalOrder(**external), **fields))


def _check(condition: bool, key: str, failure: str) -> None:
    if not condition:
        raise AssertionError(f"{key!r}: {failure}")


# --- holds -------------------------------------------------------------------------------------------
# A small ledger of holds for tests, and a function that reads the holds from any ledger.


Standing = Iterable[str] | str | None
"""The references of placed holds: one string, several strings, or None."""

Held = Callable[[str], Standing | Awaitable[Standing]]
"""A sync or async function that returns the holds of an ``intent.id`` from the bank's own ledger.

If a hold was placed twice, the function must return both holds, so that a test can detect the fault.
"""


async def standing_holds(held: Held, intent_id: str) -> tuple[str, ...]:
    """Return the references of an intent's current holds."""
    found = held(intent_id)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        return ()
    return (found,) if isinstance(found, str) else tuple(found)


class Holds:
    """An in-memory ledger of holds, for testing code that uses the client.

    The ledger's hook follows all rules for hooks.

    Attributes:
        standing: the reference of each placed hold, by ``intent.id``.
        placed: the intents for which `place` was called, in order.
        released: the intent ids for which `release` was called, in order.
    """

    def __init__(self) -> None:
        self.standing: dict[str, str] = {}
        self.placed: list[OrderIntent] = []
        self.released: list[str] = []

    @property
    def hook(self) -> FundsHold:
        """The hook to pass to a client: ``hooks=[holds.hook]``."""
        return FundsHold(self.place, self.release)

    async def place(self, intent: OrderIntent) -> str:
        """Place the intent's hold, unless it already exists, and return its reference."""
        self.placed.append(intent)
        return self.standing.setdefault(intent.id, f"hold-{intent.id}")

    async def release(self, intent: OrderIntent, reference: str | None) -> None:  # noqa: ARG002 - the intent is enough
        """Release the hold of an intent, if it has one."""
        self.released.append(intent.id)
        self.standing.pop(intent.id, None)

    def held(self, intent_id: str) -> str | None:
        """Return the hold of an intent, or None; see `Held`."""
        return self.standing.get(intent_id)


# --- sample data --------------------------------------------------------------------------------------


_PEOPLE = Accounts(DEFAULT_ACCOUNTS)
_POSTED_AT = datetime(2024, 5, 6, 12, tzinfo=UTC)


def make_new_order(**changes: Any) -> NewOrder:
    """Make an order that the sandbox accepts: Ada Eze sends Ben Okri 100 dollars.

    Args:
        changes: the fields of `NewOrder` to change. Without ``poster_amount``, the amount is computed from
            the other fields.

    Raises:
        InvalidOrder: the changes contradict each other or the specification.
    """
    fields: dict[str, Any] = {
        "poster_username": "ada.eze@example.com",
        "poster_recipient_username": "ben.okri@example.com",
        "poster_currency": "NGN",
        "poster_country": "NG",
        "poster_payment_method_type": "nigerian_bank_payment",
        "matcher_currency": "USD",
        "matcher_country": "US",
        "matcher_amount": "100.00",
        "exchange_rate": "1500",
        "external_order": NewExternalOrder(
            current_account_balance="900000.00", transaction_fee="12.50", transaction_fee_currency="NGN"
        ),
        **changes,
    }
    return NewOrder(**fields) if "poster_amount" in fields else NewOrder.quote(**fields)


def make_intent(order: NewOrder | None = None, *, key: str = "payment-1", **changes: Any) -> OrderIntent:
    """Make an intent with a new ``id``, like the intents that hooks receive.

    Args:
        order: the order to create; `make_new_order()` by default.
        key: the caller's key.
        changes: additional fields of `OrderIntent`.
    """
    fields: dict[str, Any] = {"id": fresh_id(), "key": key, "order": order or make_new_order(), **changes}
    return OrderIntent(**fields)


def make_order(new: NewOrder | None = None, **changes: Any) -> Order:
    """Make the order that the service would return for ``new``, with every specified field.

    Args:
        new: the requested order, which the sandbox need not accept; `make_new_order()` by default.
        changes: the fields of the response to change, by their names in section 2.1 of the specification.

    Raises:
        UnreadableOrder: the changes make the response invalid.
    """
    new = new or make_new_order()
    order = wire.Order(
        id=f"tx-{fresh_id()[:20]}",
        number=1,
        request=_as_received(new),
        bank=_PEOPLE.bank,
        poster=_person(new.poster_username),
        beneficiary=_person(new.poster_recipient_username),
        matcher_payment_method_type="paypal_payment",
        posted_at=_POSTED_AT,
        updated_at=_POSTED_AT,
    )
    return Order.from_json(wire.write(order.to_object() | changes))


def make_user(username: str = "ben.okri@example.com", **changes: Any) -> User:
    """Make a user like those that the service returns. For an unknown username, the details are invented.

    Args:
        username: the user's e-mail address.
        changes: the fields of the response to change, by their names in section 2.2 of the specification.
    """
    return User.from_json(wire.write(wire.user_object(_person(username)) | changes))


def _person(username: str) -> Account:
    first, _, last = username.partition("@")[0].partition(".")
    invented = Account(username=username, firstname=first.title(), lastname=last.title() or "Customer")
    return _PEOPLE.get(username) or invented


def _as_received(new: NewOrder) -> CreateOrder:
    fields = attrs.asdict(new, recurse=False)
    external = attrs.asdict(fields.pop("external_order"))
    return CreateOrder(**fields, **external)


# --- manual clock ------------------------------------------------------------------------------------
# A clock that a test controls, so that leases, deadlines and ``settle_after`` take no real time.


START = datetime(2024, 5, 6, 12, tzinfo=UTC)


@define
class _ClockState:
    began: datetime
    passed: float = 0.0

    def now(self) -> float:
        return 1000.0 + self.passed

    def utc(self) -> datetime:
        return self.began + timedelta(seconds=self.passed)

    async def sleep(self, seconds: float) -> None:
        self.passed += max(0.0, seconds)
        await asyncio.sleep(0)


class ManualClock(Clock):
    """A clock that moves only by `advance` and by sleeps. A sleep returns at once and advances the clock.

    Pass one clock to both the client and your own journal, so that retries take no real time.
    `PostgresJournal` uses the database's time instead. Every random number is 0.5, so delays are the same in
    each run. The `Timeouts` of a request are still measured in real time.

    Args:
        start: the initial wall-clock time, an aware datetime; noon UTC on 6 May 2024 by default.

    Raises:
        ValueError: ``start`` has no time zone.
    """

    _state: _ClockState

    def __init__(self, start: datetime = START) -> None:
        if start.utcoffset() is None:
            raise ValueError("start: must be an aware datetime")
        state = _ClockState(start)
        super().__init__(now=state.now, utc=state.utc, sleep=state.sleep, chance=lambda: 0.5)
        object.__setattr__(self, "_state", state)  # The clock is frozen; its state is in a mutable object.

    def advance(self, by: Duration) -> None:
        """Move the clock forward by a number of seconds or a ``timedelta``.

        Raises:
            ValueError: ``by`` is not a duration, or is negative.
        """
        if not (seconds := duration("by", by)) >= 0:
            raise ValueError("by: must be 0 seconds or more: the clock cannot be set back")
        self._state.passed += seconds
