"""User objects as the service shows them (specification, sections 2.2, 2.4 and 2.5)."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec

from transfer_async.sandbox import wire
from transfer_async.sandbox.accounts import Account, CurrencyAccount
from transfer_async.sandbox.chance import Chance
from transfer_async.sandbox.wire import JsonObject

_CURRENCY_NAMES = {
    "NGN": ("nigerian naira", "₦"),
    "USD": ("us dollar", "$"),
    "GBP": ("british pound", "£"),
    "EUR": ("euro", "€"),
    "KES": ("kenyan shilling", "KSh"),
}
_STREETS = ("Harbour Road", "Marina Street", "Palm Avenue", "Station Lane", "Orchard Close")
_CITIES = ("Portside", "Newbridge", "Eastfield", "Lakeview")

# The fields of section 2.2 that the who-am-i response holds, in the specification's order.
WHO_AM_I_FIELDS = (
    *("id", "email", "username", "firstname", "lastname", "phone", "two_factor_verified", "avatar"),
    *("address", "role", "country", "timezone", "joined_at", "updated_at", "verified_at"),
    *("verification_started_at", "email_verified_at", "is_active", "dob", "gender", "city", "state"),
    *("zipcode", "mxuid", "can_post_offers", "can_accept_offers", "has_valid_address", "currencies"),
)


def user_object(account: Account) -> JsonObject:
    """Build the user object of an account, all fields of section 2.2 but `externalUser`.

    What an account does not say (telephone, address, dates) is made up from its username, the same
    every time.
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


@lru_cache(maxsize=4096)
def user_json(account: Account) -> msgspec.Raw:
    """Write the user object of an account, once: most of an order's bytes are its four user objects."""
    return wire.raw(user_object(account))


def who_am_i_object(account: Account) -> JsonObject:
    """Build the who-am-i response: exactly the subset that section 2.2 lists."""
    user = user_object(account)
    return {name: user[name] for name in WHO_AM_I_FIELDS}


def bank_logo(account: Account) -> str:
    """Name the image file of a bank's logo."""
    return f"{account.username}.png"


def bank_verification_number(account: Account) -> str:
    """Make up a customer's bank verification number: eleven digits, the same every time."""
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
        "description": "How the user wants to hear of news",
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
    return wire.timestamp(start + timedelta(seconds=seconds))
