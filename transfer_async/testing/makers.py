"""Orders, answers and people for tests, made up and whole: name what matters, the rest is there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs

from transfer_async._models.requests import NewExternalOrder, NewOrder, OrderIntent
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.call import fresh_id
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CreateOrder, exact_json, rendering

_PEOPLE = Accounts(DEFAULT_ACCOUNTS)
_MADE = datetime(2024, 5, 6, 12, tzinfo=UTC)


def make_new_order(**changes: Any) -> NewOrder:
    """An order that the sandbox takes: Ada Eze sends Ben Okri 100 dollars.

    Args:
        changes: fields of `NewOrder`; ``poster_amount`` is worked out unless it is given.

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
    """What a hook is given, with an ``id`` of its own each time.

    Args:
        order: `make_new_order()` by default.
        key: the caller's.
        changes: further fields of `OrderIntent`.
    """
    fields: dict[str, Any] = {"id": fresh_id(), "key": key, "order": order or make_new_order(), **changes}
    return OrderIntent(**fields)


def make_order(new: NewOrder | None = None, **changes: Any) -> Order:
    """An order as the service would answer ``new``: every field of the specification is there.

    Args:
        new: `make_new_order()` by default; it need not be one that the sandbox would take.
        changes: fields of the answer (specification 2.1), under the specification's own names.

    Raises:
        UnreadableOrder: changed so, it is no order any more.
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
    return Order.from_json(exact_json.write(made.to_object() | changes))


def make_user(username: str = "ben.okri@example.com", **changes: Any) -> User:
    """A user as the service shows one; a username that the sandbox does not know is a new person's.

    Args:
        username: an e-mail address.
        changes: fields of the answer (specification 2.2), under the specification's own names.
    """
    return User.from_json(exact_json.write(rendering.user_object(_person(username)) | changes))


def _person(username: str) -> Account:
    name = username.partition("@")[0].partition(".")
    made_up = Account(username=username, firstname=name[0].title(), lastname=name[2].title() or "Customer")
    return _PEOPLE.get(username) or made_up


def _as_received(new: NewOrder) -> CreateOrder:
    fields = attrs.asdict(new, recurse=False)
    external = attrs.asdict(fields.pop("external_order"))
    return CreateOrder(**fields, **external)
