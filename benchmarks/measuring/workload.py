"""The workload: orders, the service's responses, and arrival times.

All of it is seeded, so every contender and every run gets the same data. The orders use the sandbox's default
accounts, so that the sandbox accepts them, too.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from transfer_async import NewExternalOrder, NewOrder

CREATE_ORDER_PATH = "/api/api/v1/order/create"
WHO_AM_I_PATH = "/api/api/v1/user/who-am-i"

POSTERS = ("ada.eze@example.com", "tunde.bello@example.com", "chidi.obi@example.com")
CORRIDORS = (
    ("ben.okri@example.com", "USD", "US", 1550),
    ("maria.silva.santos@example.com", "GBP", "GB", 1980),
    ("maria.silva.santos@example.com", "EUR", "FR", 1690),
)
"""For each beneficiary: username, currency, country, and an approximate exchange rate in naira."""

TIME = "2024-05-06T10:20:30.123Z"


# --- orders ---------------------------------------------------------------------------------------


def order_fields(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the fields of an endless sequence of orders, named as in the specification (4.1)."""
    rng = random.Random(seed)
    while True:
        recipient, currency, country, naira = rng.choice(CORRIDORS)
        amount = Decimal(rng.randint(1_000, 500_000)).scaleb(-2)
        rate = Decimal(naira * 100 + rng.randint(-2_000, 2_000)).scaleb(-2)
        yield {
            "poster_username": rng.choice(POSTERS),
            "poster_recipient_username": recipient,
            "poster_currency": "NGN",
            "poster_country": "NG",
            "poster_amount": str((amount * rate).quantize(Decimal("0.01"))),
            "poster_payment_method_type": "nigerian_bank_payment",
            "matcher_currency": currency,
            "matcher_country": country,
            "matcher_amount": str(amount),
            "exchange_rate": str(rate),
            "external_order": {
                "current_account_balance": str(Decimal(rng.randint(10**9, 10**11)).scaleb(-2)),
                "transaction_fee": Decimal(rng.randint(0, 50_000)).scaleb(-2),
                "transaction_fee_currency": "NGN",
            },
        }


def new_orders(count: int, *, seed: int = 0) -> list[NewOrder]:
    """Return ``count`` orders."""
    return [
        NewOrder(**{**fields, "external_order": NewExternalOrder(**fields["external_order"])})
        for fields in itertools.islice(order_fields(seed), count)
    ]


# --- responses ------------------------------------------------------------------------------------

_FROM_REQUEST = (
    "poster_username",
    "poster_recipient_username",
    "poster_currency",
    "poster_country",
    "poster_amount",
    "poster_payment_method_type",
    "matcher_currency",
    "matcher_country",
    "matcher_amount",
    "exchange_rate",
    "current_account_balance",
    "transaction_fee",
    "transaction_fee_currency",
)
_NUMBERS = {"poster_amount", "matcher_amount", "exchange_rate", "current_account_balance", "transaction_fee"}
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so multiplying modulo 2**64 yields unique ids, spread widely


class Responses:
    """The service's responses to create-order requests: each is a new order of about 8.6 KB.

    Args:
        seed: seeds the order ids. Different seeds never produce the same id.
    """

    def __init__(self, seed: int = 0) -> None:
        self._prefix = f"tx-{seed & 0xFFFF:04x}"
        self._numbers = itertools.count(1)
        text = re.sub(r'"@(\w+)#"', r"@\1@", json.dumps(_order(), separators=(",", ":")))
        *self._pieces, self._tail = re.split(r"@(\w+)@", text)

    def respond(self, request: Mapping[str, Any]) -> bytes:
        """Return the response to a request, with its amounts and names."""
        values = {**request, **request["external_order"]}
        values["order_id"] = f"{self._prefix}{next(self._numbers) * _MULTIPLIER % 2**64:016x}"
        pieces = iter(self._pieces)
        parts = [
            part for text, name in zip(pieces, pieces, strict=True) for part in (text, str(values[name]))
        ]
        return "".join((*parts, self._tail)).encode()


def who_am_i() -> bytes:
    """Return the bank's own user object (specification 3)."""
    return json.dumps(_user("api@lagoon-bank.example.com", "Lagoon", "Bank", role="bank")).encode()


def _placeholder(name: str) -> str:
    """Return a placeholder for a value of the request."""
    return f"@{name}#" if name in _NUMBERS else f"@{name}@"


def _order() -> dict[str, Any]:
    """Return the order object (2.1) with every field and with placeholders."""
    sides = {name: _placeholder(name) for name in _FROM_REQUEST[2:10]}
    poster = _user("@poster_username@", "Ada", "Eze", middle="Ngozi")
    bank = _user("api@lagoon-bank.example.com", "Lagoon", "Bank", role="bank")
    flags = ("is_matched", "is_confirmed", "is_completed", "is_accepted", "is_cancelled")
    later = ("parent_id", "match_id", "notified_is_about_to_expire_at", "published_at", "confirmed_at")
    latest = ("matched_at", "completed_at", "cancelled_at", "matcher_payment_completed_at", "probably_paid")
    purposes = ("poster_payment_purpose", "matcher_payment_purpose")
    return {
        "id": "@order_id@",
        "user_id": "6f1d8f2e-3a55-5a0e-9d0c-6f0f3d9a1b01",
        "poster_fee": _placeholder("transaction_fee"),
        **sides,
        "posters_beneficiary_user_id": "6f1d8f2e-3a55-5a0e-9d0c-6f0f3d9a1b02",
        "matcher_payment_method_type": "paypal_payment",
        **dict.fromkeys(flags, 0),
        "is_processing": 1,
        "can_cancel_order": True,
        **dict.fromkeys(("posted_at", "updated_at", "expires_at"), TIME),
        **dict.fromkeys((*later, *latest, *purposes)),
        "user": {**poster, "externalUser": _external_user(bank)},
        "postersBeneficiary": _user("@poster_recipient_username@", "Ben", "Okri"),
        "confirmedMatches": [],
        "extraOrderDetails": [],
        "external_order": _external_order(bank),
    }


def _external_user(bank: dict[str, Any]) -> dict[str, Any]:
    """Return an external user object (2.4)."""
    return {
        "id": 31,
        "created_by": bank["id"],
        "user_id": "6f1d8f2e-3a55-5a0e-9d0c-6f0f3d9a1b01",
        "username": "@poster_username@",
        "bvn": "22200000001",
        "created_at": TIME,
        "updated_at": TIME,
        "createdBy": bank,
    }


def _external_order(bank: dict[str, Any]) -> dict[str, Any]:
    """Return an external order object (2.3)."""
    return {
        "id": 41,
        "created_by": bank["id"],
        "order_id": "@order_id@",
        **{name: _placeholder(name) for name in _FROM_REQUEST[10:]},
        "created_at": TIME,
        "updated_at": TIME,
        "createdBy": bank,
        "bank_logo": "https://static.example.com/banks/lagoon-bank.png",
    }


def _user(
    username: str, first: str, last: str, *, middle: str | None = None, role: str = "customer"
) -> dict[str, Any]:
    """Return a user object (2.2)."""
    return {
        "id": f"6f1d8f2e-3a55-5a0e-9d0c-{role:0>12}",
        "email": username,
        "username": username,
        "firstname": first,
        "middlename": middle,
        "lastname": last,
        "phone": "+2348000000000",
        "tfa_required_for_login": 0,
        "two_factor_verified": 1,
        "avatar": "https://static.example.com/avatars/made-up.png",
        **_address(),
        "role": role,
        **dict.fromkeys(("joined_at", "updated_at", "verified_at"), TIME),
        "verification_started_at": None,
        **dict.fromkeys(("email_verified_at", "identity_verified_at"), TIME),
        **dict.fromkeys(("name_verified_at", "dob_verified_at")),
        "is_active": 1,
        "dob": "1990-02-03T00:00:00.000Z",
        "gender": "female",
        "mxuid": "@made-up:example.com",
        "can_post_offers": 1,
        "can_accept_offers": 0,
        "hear_from": "a friend",
        "userOptions": [_option()],
        "has_valid_address": True,
        "currencies": [_currency("NGN", "naira", "₦")],
        "bank_options": {"logo": "https://static.example.com/banks/lagoon-bank.png"},
    }


def _address() -> dict[str, Any]:
    return {
        "building_number": "12",
        "street_number": "3",
        "address": "12 Made-up Street, Victoria Island",
        "address2": None,
        "city": "Lagos",
        "state": "Lagos",
        "zipcode": "100001",
        "country": "Nigeria",
        "country_abbreviation": "NG",
        "timezone": "Africa/Lagos",
    }


def _option() -> dict[str, Any]:
    """Return an option object (2.2, ``userOptions``)."""
    return {
        "id": 7,
        "user_id": "6f1d8f2e-3a55-5a0e-9d0c-6f0f3d9a1b01",
        "name": "notify",
        "description": "Tell by e-mail of every order that is matched, confirmed, completed or cancelled",
        "value": {"enabled": 1},
        "created_at": TIME,
        "updated_at": None,
    }


def _currency(code: str, name: str, symbol: str) -> dict[str, Any]:
    """Return a currency object (2.5)."""
    account = {"account_name": "Made Up", "account_number": "0123456789", "bank_code": "999"}
    return {
        "currency_code": code,
        "currency_name": name,
        "symbol": symbol,
        "flag": f"https://static.example.com/flags/{code.lower()}.png",
        "max_amount": 50_000_000,
        "min_amount": 1_000,
        "steps": 0.01,
        "payment_types": {"nigerian_bank_payment": account},
        "can_trade_with": ["usd", "gbp", "eur"],
    }


# --- arrival times --------------------------------------------------------------------------------


def even(rate: float, *, seed: int = 0) -> Iterator[float]:  # noqa: ARG001 - same signature as `poisson`
    """Yield evenly spaced arrival times, in seconds from the start."""
    return (number / rate for number in itertools.count())


def poisson(rate: float, *, seed: int = 0) -> Iterator[float]:
    """Yield the arrival times of a Poisson process, which models many independent customers."""
    rng, moment = random.Random(f"arrivals:{seed}"), 0.0
    while True:
        moment += rng.expovariate(rate)
        yield moment


SCHEDULES: dict[str, Callable[..., Iterator[float]]] = {"poisson": poisson, "even": even}
