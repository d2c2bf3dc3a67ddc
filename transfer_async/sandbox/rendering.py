"""Builds the service's JSON objects for users and orders (specification, section 2)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache

from attrs import evolve, field, frozen

from transfer_async.sandbox import validation
from transfer_async.sandbox.accounts import Account, Chance, CurrencyAccount
from transfer_async.sandbox.validation import FIELDS, CreateOrder, JsonObject

_CURRENCY_NAMES = {
    "NGN": ("nigerian naira", "₦"),
    "USD": ("us dollar", "$"),
    "GBP": ("british pound", "£"),
    "EUR": ("euro", "€"),
    "KES": ("kenyan shilling", "KSh"),
}
_STREETS = ("Harbour Road", "Marina Street", "Palm Avenue", "Station Lane", "Orchard Close")
_CITIES = ("Portside", "Newbridge", "Eastfield", "Lakeview")

# The fields of section 2.2 in the who-am-i response, in the specification's order.
WHO_AM_I_FIELDS = (
    *("id", "email", "username", "firstname", "lastname", "phone", "two_factor_verified", "avatar"),
    *("address", "role", "country", "timezone", "joined_at", "updated_at", "verified_at"),
    *("verification_started_at", "email_verified_at", "is_active", "dob", "gender", "city", "state"),
    *("zipcode", "mxuid", "can_post_offers", "can_accept_offers", "has_valid_address", "currencies"),
)


def user_object(account: Account) -> JsonObject:
    """Build the user object of an account, with all fields of section 2.2 except `externalUser`.

    Missing details of an account (telephone, address, dates) are derived from its username, so they never
    change.
    """
    random = Chance(account.username)
    return {
        **_identity(account, random),
        **_residence(account, random),
        **_history(account, random),
        **_rights(account),
        "userOptions": _options(account, random),
        "currencies": [_currency_object(held, payable=account.payable) for held in account.currencies],
        "bank_options": {"logo": bank_logo(account)} if account.is_bank else None,
    }


_cached_user_object = lru_cache(maxsize=4096)(user_object)
"""A cached `user_object`, because an order contains four user objects. Never change its result."""


def who_am_i_object(account: Account) -> JsonObject:
    """Build the who-am-i response, with the subset of fields that section 2.2 lists."""
    user = user_object(account)
    return {name: user[name] for name in WHO_AM_I_FIELDS}


def bank_logo(account: Account) -> str:
    """Return the file name of a bank's logo."""
    return f"{account.username}.png"


def bank_verification_number(account: Account) -> str:
    """Return an account's fictional bank verification number: eleven digits, derived from the username."""
    return f"{Chance('bvn:' + account.username).randrange(10**10, 10**11)}"


def _identity(account: Account, random: Chance) -> JsonObject:
    return {
        "id": account.id,
        "email": account.email,
        "username": account.username,
        "firstname": account.firstname,
        "middlename": account.middlename,
        "lastname": account.lastname,
        "phone": f"+1555{random.randrange(100, 200):07d}",
        "avatar": None,
        "gender": None if account.is_bank else random.choice(("female", "male")),
        "dob": None if account.is_bank else _moment(random, 1960, 2000),
        "mxuid": f"@{random.randrange(10**8):08d}:chat.example.com",
    }


def _residence(account: Account, random: Chance) -> JsonObject:
    number, street = str(random.randrange(1, 200)), random.choice(_STREETS)
    city = random.choice(_CITIES)
    return {
        "building_number": number,
        "street_number": None,
        "address": f"{number} {street}",
        "address2": None,
        "city": city,
        "state": f"{city} State",
        "zipcode": f"{random.randrange(10_000, 99_999)}",
        "country": account.country,
        "country_abbreviation": account.country_abbreviation,
        "timezone": account.timezone,
        "has_valid_address": True,
    }


def _history(account: Account, random: Chance) -> JsonObject:
    joined = _moment(random, 2019, 2023)
    verified = joined if account.active else None
    return {
        "joined_at": joined,
        "updated_at": joined,
        "verified_at": verified,
        "verification_started_at": joined,
        "email_verified_at": joined,
        "name_verified_at": verified,
        "dob_verified_at": None if account.is_bank else verified,
        "identity_verified_at": verified,
    }


def _rights(account: Account) -> JsonObject:
    return {
        "tfa_required_for_login": None,
        "two_factor_verified": 0 if account.is_bank else 1,
        "role": "customer",
        "is_active": int(account.active),
        "can_post_offers": int(account.active),
        "can_accept_offers": int(account.active and not account.is_bank),
        "hear_from": "partner" if account.is_bank else "friend",
    }


def _options(account: Account, random: Chance) -> list[JsonObject]:
    if account.is_bank:
        return []
    set_at = _moment(random, 2023, 2024)
    option = {
        "id": random.randrange(1, 100_000),
        "user_id": account.id,
        "name": "notifications",
        "description": "How the user wants to be notified",
        "value": {"email": True, "sms": False},
        "created_at": set_at,
        "updated_at": set_at,
    }
    return [option]


def _currency_object(held: CurrencyAccount, *, payable: bool) -> JsonObject:
    code = held.code.lower()
    name, symbol = _CURRENCY_NAMES.get(held.code.upper(), (code, held.code))
    return {
        "currency_code": held.code,
        "currency_name": name,
        "symbol": symbol,
        "flag": f"{code}.png",
        "max_amount": held.max_amount,
        "min_amount": held.min_amount,
        "steps": held.steps,
        "payment_types": held.payment_types if payable else {},
        "can_trade_with": held.can_trade_with,
    }


def _moment(random: Chance, first_year: int, last_year: int) -> str:
    start = datetime(first_year, 1, 1, tzinfo=UTC)
    seconds = random.randrange((last_year - first_year) * 365 * 86_400)
    return validation.timestamp(start + timedelta(seconds=seconds))


# The specification does not say when an offer expires. One day is the sandbox's own choice.
LIFETIME = timedelta(days=1)

# The fields of the request that the order object repeats, except the usernames and the bank's fields.
_ECHOED = tuple(path for path in FIELDS if "." not in path and not path.endswith("username"))
_ECHOED_BY_BANK = tuple(path.rpartition(".")[2] for path in FIELDS if "." in path)


@frozen(kw_only=True)
class Order:
    """An order: its request, its parties and its state. `number` counts orders from 1."""

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
        """The poster's username, as in the request."""
        return self.request.poster_username

    @property
    def poster_amount(self) -> Decimal:
        """The exact amount that the poster sends, in the poster's currency."""
        return self.request.poster_amount

    @property
    def is_matched(self) -> bool:
        """Return whether the matcher bot has matched the order."""
        return self.matched_at is not None

    def matched(self, *, match_id: str, at: datetime) -> "Order":
        """Return a copy of the order in the matched state.

        The specification shows no transitions. In our interpretation, `is_matched` becomes 1, `is_processing`
        becomes 0 and `can_cancel_order` becomes false. In addition, `match_id`, `matched_at` and `updated_at`
        are set.
        """
        return evolve(self, match_id=match_id, matched_at=at, updated_at=at)

    def to_object(self) -> JsonObject:
        """Build the order object with every field of section 2.1."""
        return _render(self, user_object)

    def to_json(self) -> bytes:
        """Return the order object as JSON.

        This method is faster than serialising the result of `to_object`.
        """
        return validation.write(_render(self, _cached_user_object))


def _render(order: Order, user: Callable[[Account], JsonObject]) -> JsonObject:
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
        "user": {**user(order.poster), "externalUser": _external_user(order, user)},
        "postersBeneficiary": user(order.beneficiary),
        "confirmedMatches": [],
        "extraOrderDetails": [],
        "external_order": _external_order(order, user),
    }


def _sides(order: Order) -> JsonObject:
    request = order.request
    return {
        "poster_fee": request.transaction_fee,
        **{name: getattr(request, name) for name in _ECHOED},
        "posters_beneficiary_user_id": order.beneficiary.id,
        "matcher_payment_method_type": order.matcher_payment_method_type,
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
        "posted_at": validation.timestamp(order.posted_at),
        "updated_at": validation.timestamp(order.updated_at),
        "expires_at": validation.timestamp(order.posted_at + LIFETIME),
        "notified_is_about_to_expire_at": None,
        "published_at": None,
        "confirmed_at": None,
        "matched_at": order.matched_at and validation.timestamp(order.matched_at),
        "completed_at": None,
        "cancelled_at": None,
        "matcher_payment_completed_at": None,
    }


def _external_user(order: Order, user: Callable[[Account], JsonObject]) -> JsonObject:
    registered = validation.timestamp(order.posted_at)
    return {
        "id": order.number,
        "created_by": order.bank.id,
        "user_id": order.poster.id,
        "username": order.poster.username,
        "bvn": bank_verification_number(order.poster),
        "created_at": registered,
        "updated_at": registered,
        "createdBy": user(order.bank),
    }


def _external_order(order: Order, user: Callable[[Account], JsonObject]) -> JsonObject:
    request = order.request
    return {
        "id": order.number,
        "created_by": order.bank.id,
        "order_id": order.id,
        **{name: getattr(request, name) for name in _ECHOED_BY_BANK},
        "created_at": validation.timestamp(order.posted_at),
        "updated_at": validation.timestamp(order.posted_at),
        "createdBy": user(order.bank),
        "bank_logo": bank_logo(order.bank),
    }
