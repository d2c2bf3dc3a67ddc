"""Sample requests and sample JSON of the service (specification, section 2), with fictional people."""

import copy
import json
import random
from decimal import Decimal
from typing import Any

from transfer_async._models.requests import NewExternalOrder, NewOrder

FIRST = ("Ada", "Ben", "Chidi", "Dara", "Efua", "Femi")
LAST = ("Okafor", "Okri", "Mensah", "Bello", "Quist", "Adeyemi")
MADE = "2024-05-01T10:20:30.123Z"
ORDER_TIMES = ("posted_at", "updated_at", "expires_at")
ORDER_LATER = (
    "parent_id",
    "match_id",
    "notified_is_about_to_expire_at",
    "published_at",
    "confirmed_at",
    "matched_at",
    "completed_at",
    "cancelled_at",
    "matcher_payment_completed_at",
    "probably_paid",
    "poster_payment_purpose",
    "matcher_payment_purpose",
)
FLAGS = ("is_matched", "is_confirmed", "is_completed", "is_accepted", "is_cancelled", "is_processing")


def encode(tree: Any) -> bytes:
    """Return a tree as JSON. A `Decimal` becomes a number with all its digits, and bytes stay as they are."""
    return _text(tree).encode(errors="surrogateescape")


def _text(tree: Any) -> str:
    if isinstance(tree, Decimal):
        return str(tree)
    if isinstance(tree, bytes):
        return tree.decode(errors="surrogateescape")
    if isinstance(tree, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_text, tree)) + "]"
    return json.dumps(tree)


def steps_of(path: str) -> list[str | int]:
    """Return the steps of a JSON path such as ``$.user.currencies[0].symbol``."""
    steps = path.removeprefix("$").removeprefix(".").replace("[", ".").replace("]", "").split(".")
    return [int(step) if step.isdigit() else step for step in steps if step]


def inside(tree: Any, path: str) -> Any:
    """Return the value at the JSON path."""
    for step in steps_of(path):
        tree = tree[step]
    return tree


def changed(tree: Any, path: str, value: Any) -> Any:
    """Return a copy of ``tree`` with ``value`` at the JSON path. The other values are not copied."""
    tree, holder, last = _opened(tree, path)
    holder[last] = value
    return tree


def without(tree: Any, path: str) -> Any:
    """Return a copy of ``tree`` without the value at the JSON path. The other values are not copied."""
    tree, holder, last = _opened(tree, path)
    del holder[last]
    return tree


def _opened(tree: Any, path: str) -> tuple[Any, Any, str | int]:
    """Copy ``tree`` along the path. Return the copy, the container of the last step, and the last step."""
    *way, last = steps_of(path)
    tree = holder = copy.copy(tree)
    for step in way:
        holder[step] = copy.copy(holder[step])
        holder = holder[step]
    return tree, holder, last


def at(model: Any, attributes: str) -> Any:
    """Return the value at a path such as ``user.currencies.0.symbol`` of a model."""
    for step in attributes.split("."):
        model = model[int(step)] if step.isdigit() else getattr(model, step)
    return model


def _id(draw: random.Random) -> str:
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20))


def currency_json() -> dict[str, Any]:
    """Return a currency object (2.5)."""
    return {
        "currency_code": "NGN",
        "currency_name": "naira",
        "symbol": "₦",
        "flag": "ngn.png",
        "max_amount": 1000000,
        "min_amount": Decimal("0.50"),
        "steps": 10,
        "payment_types": {
            "nigerian_bank_payment": {
                "account_name": "Account name",
                "account_number": "Account number",
                "bank_code": "Bank code",
            }
        },
        "can_trade_with": ["usd", "gbp"],
    }


def option_json() -> dict[str, Any]:
    """Return an option object (2.2, ``userOptions``)."""
    return {
        "id": 7,
        "user_id": "usr-option",
        "name": "notify",
        "description": "Tell by e-mail",
        "value": {"enabled": 1, "limit": Decimal("0.1")},
        "created_at": MADE,
        "updated_at": None,
    }


def user_json(seed: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a user object (2.2) with every field except ``externalUser``."""
    draw = random.Random(seed)
    first, last = draw.choice(FIRST), draw.choice(LAST)
    email = f"{first}.{last}{seed}@example.org".lower()
    return {
        "id": _id(draw),
        "email": email,
        "username": email,
        "firstname": first,
        "middlename": None,
        "lastname": last,
        "phone": "+234800000000",
        "tfa_required_for_login": 0,
        "two_factor_verified": 1,
        "avatar": "avatar.png",
        "building_number": "12",
        "street_number": "3",
        "address": "12 Made-up Street",
        "address2": None,
        "role": "customer",
        "country": "Nigeria",
        "country_abbreviation": "NG",
        "timezone": "Africa/Lagos",
        "joined_at": MADE,
        "updated_at": MADE,
        "verified_at": MADE,
        "verification_started_at": None,
        "email_verified_at": MADE,
        "name_verified_at": None,
        "dob_verified_at": None,
        "identity_verified_at": MADE,
        "is_active": 1,
        "dob": "1990-02-03T00:00:00.000Z",
        "gender": "female",
        "city": "Lagos",
        "state": "Lagos",
        "zipcode": "100001",
        "mxuid": "@made-up:example.org",
        "can_post_offers": 1,
        "can_accept_offers": 0,
        "hear_from": "a friend",
        "userOptions": [option_json()],
        "has_valid_address": True,
        "currencies": [currency_json()],
        "bank_options": {"logo": "bank.png"},
        **changes,
    }


def external_user_json(seed: int = 1) -> dict[str, Any]:
    """Return an external user object (2.4)."""
    return {
        "id": 31,
        "created_by": "bank-account",
        "user_id": "usr-poster",
        "username": f"poster{seed}@example.org",
        "bvn": "22200000001",
        "created_at": MADE,
        "updated_at": MADE,
        "createdBy": user_json(seed + 100, role="bank"),
    }


def external_order_json(seed: int = 1, **changes: Any) -> dict[str, Any]:
    """Return an external order object (2.3)."""
    return {
        "id": 41,
        "created_by": "bank-account",
        "order_id": "tx-9fk2m1c0d4",
        "current_account_balance": Decimal("50000.00"),
        "transaction_fee": Decimal("1.50"),
        "transaction_fee_currency": "USD",
        "created_at": MADE,
        "updated_at": MADE,
        "createdBy": user_json(seed + 200, role="bank"),
        "bank_logo": "bank.png",
        **changes,
    }


def order_json(seed: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a new order (2.1) with every field, including those of its parts."""
    return {
        "id": "tx-9fk2m1c0d4",
        "user_id": "usr-poster",
        "poster_fee": Decimal("1.50"),
        "poster_amount": Decimal("1250.00"),
        "poster_currency": "USD",
        "poster_country": "US",
        "poster_payment_method_type": "paypal_payment",
        "posters_beneficiary_user_id": "usr-beneficiary",
        "matcher_amount": 1000000,
        "matcher_currency": "NGN",
        "matcher_country": "NG",
        "matcher_payment_method_type": "nigerian_bank_payment",
        "exchange_rate": Decimal("0.00125"),
        **dict.fromkeys(FLAGS, 0),
        "is_processing": 1,
        "can_cancel_order": True,
        **dict.fromkeys(ORDER_TIMES, MADE),
        **dict.fromkeys(ORDER_LATER),
        "user": user_json(seed, externalUser=external_user_json(seed)),
        "postersBeneficiary": user_json(seed + 1),
        "confirmedMatches": [],
        "extraOrderDetails": [],
        "external_order": external_order_json(seed),
        **changes,
    }


def external_order_fields(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a `NewExternalOrder`."""
    return {
        "current_account_balance": Decimal("50000.00"),
        "transaction_fee": Decimal("1.50"),
        "transaction_fee_currency": "USD",
        **changes,
    }


def new_external_order(**changes: Any) -> NewExternalOrder:
    """Return the bank's own data for a new order."""
    return NewExternalOrder(**external_order_fields(**changes))


def order_fields(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a `NewOrder`."""
    return {
        "poster_username": "ada.okafor@example.org",
        "poster_recipient_username": "ben.okri@example.org",
        "poster_currency": "USD",
        "poster_country": "US",
        "poster_amount": Decimal("1250.00"),
        "poster_payment_method_type": "paypal_payment",
        "matcher_currency": "NGN",
        "matcher_country": "NG",
        "matcher_amount": Decimal(1000000),
        "exchange_rate": Decimal("0.00125"),
        "external_order": new_external_order(),
        **changes,
    }


def new_order(**changes: Any) -> NewOrder:
    """Return an order to be created."""
    return NewOrder(**order_fields(**changes))


def new_order_json(**changes: Any) -> dict[str, Any]:
    """Return the order as JSON of a request (specification 4.1), with all numbers but the fee as strings."""
    order = {name: str(value) for name, value in order_fields().items()}
    external = external_order_fields(current_account_balance="50000.00")
    return {**order, "external_order": external, **changes}


TWO_PEOPLE = (
    ("ben@strasse.example", "ben@straße.example"),
    ("kofi@example.com", "\u212aofi@example.com"),  # the Kelvin sign
    ("ike@example.com", "\u0130ke@example.com"),  # capital I with a dot
    ("zoe.É@example.com", "zoe.é@example.com"),
    ("sophia@example.com", "ſophia@example.com"),
    ("sofia@example.com", "soﬁa@example.com"),  # a ligature
)
"""Pairs of usernames that Unicode case folding or normalization makes equal, although they are two people."""
