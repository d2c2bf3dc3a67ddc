"""Assertions about a key at the end of a test: it has one order, and its hold is placed or released.

They read the journal, the sandbox's orders and the bank's ledger. Each fails with an `AssertionError` that
says what it found.
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
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CreateOrder, rendering, validation


class HasOrders(Protocol):
    """An object with all existing orders: a `Sandbox`, or a `FakeClient`'s."""

    @property
    def orders(self) -> Mapping[str, rendering.Order]:
        """By id."""
        ...


async def assert_one_order(key: str, *, client: TransferClient, sandbox: HasOrders) -> None:
    """Assert that the sandbox has exactly one order with the content of ``key``.

    Two keys with the same content cannot be distinguished: give the orders of one test different amounts.
    An order under a new key at a new rate has other content: `assert_one_payment` counts that one, too.

    Args:
        key: the caller's.
        client: whose journal knows the key; it may be closed.
        sandbox: where the order is.
    """
    entry, found = await _orders_of(key, client, sandbox)
    _check(len(found) == 1, key, f"there should be one order, and there are {len(found)}: {', '.join(found)}")
    known = entry.order_id or found[0]
    _check(found == [known], key, f"the journal says {known}, and the sandbox {found[0]}")


def assert_one_payment(*, sandbox: HasOrders, **fields: object) -> None:
    """Assert that the sandbox has exactly one order with these fields, whatever its key, rate and time.

    Name what makes it one payment to your bank, and leave out what a new quote changes::

        assert_one_payment(
            sandbox=sandbox,
            poster_username="ada.eze@example.com",
            poster_recipient_username="ben.okri@example.com",
            matcher_amount="100.00",  # what the beneficiary receives; or poster_amount, if that is fixed
        )

    Args:
        sandbox: where the order is.
        fields: fields of `NewOrder`, or of its ``external_order``, by name; amounts may be texts.

    Raises:
        ValueError: no field is named, or one that an order does not have, or an amount that is none.
    """
    known = attrs.fields_dict(CreateOrder)
    if wrong := sorted(set(fields) - set(known)):
        raise ValueError(f"{', '.join(wrong)}: an order has no such field; it has {', '.join(known)}")
    if not fields:
        raise ValueError("name at least one field that makes an order this payment, such as matcher_amount")
    wanted = {name: _wanted(name, value) for name, value in fields.items()}
    orders = sandbox.orders.values()
    found = [
        order
        for order in orders
        if all(getattr(order.request, name) == value for name, value in wanted.items())
    ]
    told = "".join(f"\n  {order.id}: {_shown(order.request)}" for order in found)
    if len(found) != 1:
        raise AssertionError(f"{fields}: there should be one order, and there are {len(found)}{told}")


async def assert_no_order(key: str, *, client: TransferClient, sandbox: HasOrders) -> None:
    """Assert that the sandbox has no order with the content of ``key``; see `assert_one_order`."""
    _, found = await _orders_of(key, client, sandbox)
    _check(not found, key, f"there should be no order, and there is {', '.join(found)}")


async def assert_hold_kept(key: str, *, client: TransferClient, held: Held) -> None:
    """Assert that ``key`` has exactly one hold: that of its last intent, and none of an earlier one.

    Args:
        key: the caller's.
        client: whose journal knows the key; it may be closed.
        held: returns the holds of an intent; see `Held`.
    """
    *earlier, last = await _intents_of(key, client)
    found = await standing_holds(held, last)
    said = f"one hold should stand, and there are {len(found)}: {', '.join(found)}"
    _check(len(found) == 1, key, said)
    await _assert_none(key, earlier, held, "of an earlier intent, ")


async def assert_hold_released(key: str, *, client: TransferClient, held: Held) -> None:
    """Assert that no intent of ``key`` has a hold; see `assert_hold_kept`."""
    await _assert_none(key, await _intents_of(key, client), held, "")


async def _assert_none(key: str, intents: list[str], held: Held, which: str) -> None:
    found = [hold for intent_id in intents for hold in await standing_holds(held, intent_id)]
    _check(not found, key, f"no hold {which}should stand, and there is {', '.join(found)}")


async def _orders_of(key: str, client: TransferClient, sandbox: HasOrders) -> tuple[Entry, list[str]]:
    entry = await _entry(key, client)
    orders = [order.id for order in sandbox.orders.values() if _content(order.request) == entry.fingerprint]
    return entry, orders


async def _intents_of(key: str, client: TransferClient) -> list[str]:
    """Return the ids of all intents of the key, the last one last."""
    entry = await _entry(key, client)
    steps = await context_of(client).journal.history(key)
    earlier = (step.intent_id for step in steps if step.intent_id != entry.intent_id)
    return [*dict.fromkeys(earlier), entry.intent_id]


async def _entry(key: str, client: TransferClient) -> Entry:
    entry = await context_of(client).journal.read(key)
    if entry is None:
        raise AssertionError(f"{key!r}: the journal has no such key: nothing was ever asked for with it")
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


def _check(is_so: bool, key: str, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(f"{key!r}: {otherwise}")


# --- holds -------------------------------------------------------------------------------------------
# The bank's holds in tests: a small ledger, and a function that reads any ledger.


Standing = Iterable[str] | str | None
"""The references of the holds that are placed: all of them, the only one, or None."""

Held = Callable[[str], Standing | Awaitable[Standing]]
"""Returns the holds of an ``intent.id`` from the bank's own ledger; it may be async.

It must return a hold that was placed twice twice, so that a test can detect it.
"""


async def standing_holds(held: Held, intent_id: str) -> tuple[str, ...]:
    """Return the references of the holds that are placed for an intent."""
    found = held(intent_id)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        return ()
    return (found,) if isinstance(found, str) else tuple(found)


class Holds:
    """A ledger of holds in memory, for tests of code that uses the client; it keeps the hooks' rules.

    Attributes:
        standing: the reference of each placed hold, by ``intent.id``.
        placed: the intent of each call of `place`, in order.
        released: the intent id of each call of `release`, in order.
    """

    def __init__(self) -> None:
        self.standing: dict[str, str] = {}
        self.placed: list[OrderIntent] = []
        self.released: list[str] = []

    @property
    def hook(self) -> FundsHold:
        """The hold hook of a client: ``hooks=[holds.hook]``."""
        return FundsHold(self.place, self.release)

    async def place(self, intent: OrderIntent) -> str:
        """Hold, once for each intent."""
        self.placed.append(intent)
        return self.standing.setdefault(intent.id, f"hold-{intent.id}")

    async def release(self, intent: OrderIntent, reference: str | None) -> None:  # noqa: ARG002 - the intent is enough
        """Release the hold, if there is one."""
        self.released.append(intent.id)
        self.standing.pop(intent.id, None)

    def held(self, intent_id: str) -> str | None:
        """Return the hold of an intent; see `Held`."""
        return self.standing.get(intent_id)


# --- sample data --------------------------------------------------------------------------------------


_PEOPLE = Accounts(DEFAULT_ACCOUNTS)
_MADE = datetime(2024, 5, 6, 12, tzinfo=UTC)


def make_new_order(**changes: Any) -> NewOrder:
    """Make an order that the sandbox accepts: Ada Eze sends Ben Okri 100 dollars.

    Args:
        changes: fields of `NewOrder`; ``poster_amount`` is computed unless it is given.

    Raises:
        InvalidOrder: the changes contradict each other, or the specification.
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
    """Make the argument of a hook, with a new ``id`` each time.

    Args:
        order: `make_new_order()` by default.
        key: the caller's key.
        changes: further fields of `OrderIntent`.
    """
    fields: dict[str, Any] = {"id": fresh_id(), "key": key, "order": order or make_new_order(), **changes}
    return OrderIntent(**fields)


def make_order(new: NewOrder | None = None, **changes: Any) -> Order:
    """Make the order that the service would return for ``new``, with every field of the specification.

    Args:
        new: `make_new_order()` by default; the sandbox need not accept it.
        changes: fields of the response (specification 2.1), under the specification's own names.

    Raises:
        UnreadableOrder: with these changes the response is no valid order.
    """
    new = new or make_new_order()
    made = rendering.Order(
        id=f"tx-{fresh_id()[:20]}",
        number=1,
        request=_as_received(new),
        bank=_PEOPLE.bank,
        poster=_person(new.poster_username),
        beneficiary=_person(new.poster_recipient_username),
        matcher_payment_method_type="paypal_payment",
        posted_at=_MADE,
        updated_at=_MADE,
    )
    return Order.from_json(validation.write(made.to_object() | changes))


def make_user(username: str = "ben.okri@example.com", **changes: Any) -> User:
    """Make a user as the service returns it; an unknown username becomes a new person.

    Args:
        username: an e-mail address.
        changes: fields of the response (specification 2.2), under the specification's own names.
    """
    return User.from_json(validation.write(rendering.user_object(_person(username)) | changes))


def _person(username: str) -> Account:
    name = username.partition("@")[0].partition(".")
    made_up = Account(username=username, firstname=name[0].title(), lastname=name[2].title() or "Customer")
    return _PEOPLE.get(username) or made_up


def _as_received(new: NewOrder) -> CreateOrder:
    fields = attrs.asdict(new, recurse=False)
    external = attrs.asdict(fields.pop("external_order"))
    return CreateOrder(**fields, **external)


# --- manual clock ------------------------------------------------------------------------------------
# Time that a test controls: leases, deadlines and ``settle_after`` pass at once.


START = datetime(2024, 5, 6, 12, tzinfo=UTC)


@define
class _Hands:
    """The clock's state: the seconds that have passed, and the time at which it started."""

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
    """A clock that stands still until `advance` is called; a sleep on it ends at once and moves it on.

    Pass the same one to the client and to your own journal; `PostgresJournal` uses the database's time.
    Retries then take no real time. Every random share is a half, so delays are the same each time.
    aiohttp (`Timeouts`) still measures real time.

    Args:
        start: its aware wall-clock time at first; noon of 6 May 2024 UTC by default.

    Raises:
        ValueError: ``start`` is not an aware time.
    """

    _hands: _Hands

    def __init__(self, start: datetime = START) -> None:
        if start.utcoffset() is None:
            raise ValueError("start: must be an aware datetime")
        hands = _Hands(start)
        super().__init__(now=hands.now, utc=hands.utc, sleep=hands.sleep, chance=lambda: 0.5)
        object.__setattr__(self, "_hands", hands)  # a clock is frozen, and its hands are not

    def advance(self, by: Duration) -> None:
        """Move the clock forward by seconds or a ``timedelta``.

        Raises:
            ValueError: ``by`` is no duration, or less than 0.
        """
        if not (seconds := duration("by", by)) >= 0:
            raise ValueError("by: must be 0 seconds or more: a clock never goes back")
        self._hands.passed += seconds
