"""An order as the sandbox keeps it, and as the service shows it (specification, sections 2.1 and 2.3)."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from attrs import evolve, field, frozen

from transfer_async.sandbox import users, wire
from transfer_async.sandbox.accounts import Account
from transfer_async.sandbox.checks import CreateOrder
from transfer_async.sandbox.wire import JsonObject

# How long an offer lives is not in the specification; a day is the sandbox's own choice.
LIFETIME = timedelta(days=1)


@frozen(kw_only=True)
class Order:
    """One order: who asked for what, and how far it has come. `number` counts orders from 1."""

    id: str
    number: int
    request: CreateOrder = field(repr=False)
    bank: Account = field(repr=False)
    poster: Account = field(repr=False)
    beneficiary: Account = field(repr=False)
    matcher_payment_method_type: str
    posted_at: datetime
    updated_at: datetime
    match_id: str | None = None
    matched_at: datetime | None = None

    @property
    def poster_username(self) -> str:
        """The poster's username as the request gave it."""
        return self.request.poster_username

    @property
    def poster_amount(self) -> Decimal:
        """The amount sent, exact, in units of the poster's currency."""
        return self.request.poster_amount

    @property
    def is_matched(self) -> bool:
        """Whether the matcher bot has been here."""
        return self.matched_at is not None

    def matched(self, *, match_id: str, at: datetime) -> "Order":
        """The order once matched.

        The specification shows no transitions. Our reading: `is_matched` becomes 1, `is_processing` 0 and
        `can_cancel_order` false; `match_id`, `matched_at` and `updated_at` are set; nothing else changes.
        """
        return evolve(self, match_id=match_id, matched_at=at, updated_at=at)

    def to_object(self) -> JsonObject:
        """Build the order object, every field of section 2.1."""
        order = _render(self, users.user_object)
        order["user"]["externalUser"] = _external_user(self, users.user_object)
        return order

    def to_json(self) -> bytes:
        """Write the order object; the same as `to_object` would give, but faster."""
        order = _render(self, users.user_json)
        external = _external_user(self, users.user_json)
        order["user"] = wire.extended(order["user"], "externalUser", external)
        return wire.write(order)


def _render(order: Order, user: Callable[[Account], Any]) -> JsonObject:
    return {
        "id": order.id,
        "user_id": order.poster.id,
        **_sides(order),
        **_state(order),
        **_times(order),
        "parent_id": None,
        "match_id": order.match_id,
        "probably_paid": None,
        "poster_payment_purpose": None,
        "matcher_payment_purpose": None,
        "user": user(order.poster),
        "postersBeneficiary": user(order.beneficiary),
        "confirmedMatches": [],
        "extraOrderDetails": [],
        "external_order": _external_order(order, user),
    }


def _sides(order: Order) -> JsonObject:
    request = order.request
    return {
        "poster_fee": request.transaction_fee,
        "poster_amount": request.poster_amount,
        "poster_currency": request.poster_currency,
        "poster_country": request.poster_country,
        "poster_payment_method_type": request.poster_payment_method_type,
        "posters_beneficiary_user_id": order.beneficiary.id,
        "matcher_amount": request.matcher_amount,
        "matcher_currency": request.matcher_currency,
        "matcher_country": request.matcher_country,
        "matcher_payment_method_type": order.matcher_payment_method_type,
        "exchange_rate": request.exchange_rate,
    }


def _state(order: Order) -> JsonObject:
    return {
        "is_matched": int(order.is_matched),
        "is_confirmed": 0,
        "is_completed": 0,
        "is_accepted": 0,
        "is_cancelled": 0,
        "is_processing": int(not order.is_matched),
        "can_cancel_order": not order.is_matched,
    }


def _times(order: Order) -> JsonObject:
    return {
        "posted_at": wire.timestamp(order.posted_at),
        "updated_at": wire.timestamp(order.updated_at),
        "expires_at": wire.timestamp(order.posted_at + LIFETIME),
        "notified_is_about_to_expire_at": None,
        "published_at": None,
        "confirmed_at": None,
        "matched_at": order.matched_at and wire.timestamp(order.matched_at),
        "completed_at": None,
        "cancelled_at": None,
        "matcher_payment_completed_at": None,
    }


def _external_user(order: Order, user: Callable[[Account], Any]) -> JsonObject:
    registered = wire.timestamp(order.posted_at)
    return {
        "id": order.number,
        "created_by": order.bank.id,
        "user_id": order.poster.id,
        "username": order.poster.username,
        "bvn": users.bank_verification_number(order.poster),
        "created_at": registered,
        "updated_at": registered,
        "createdBy": user(order.bank),
    }


def _external_order(order: Order, user: Callable[[Account], Any]) -> JsonObject:
    request = order.request
    return {
        "id": order.number,
        "created_by": order.bank.id,
        "order_id": order.id,
        "current_account_balance": request.current_account_balance,
        "transaction_fee": request.transaction_fee,
        "transaction_fee_currency": request.transaction_fee_currency,
        "created_at": wire.timestamp(order.posted_at),
        "updated_at": wire.timestamp(order.posted_at),
        "createdBy": user(order.bank),
        "bank_logo": users.bank_logo(order.bank),
    }
