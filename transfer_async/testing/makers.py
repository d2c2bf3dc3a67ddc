"""Complete orders, intents and users for tests: pass the fields that matter, the rest has defaults."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from attrs import define

from transfer_async._models.requests import NewExternalOrder, NewOrder, OrderIntent
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.call import fresh_id
from transfer_async._support.clock import Clock, Duration, duration
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CreateOrder, rendering, validation

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
