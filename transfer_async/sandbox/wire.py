"""The sandbox's JSON: exact parsing, the checks of requests, and the objects in responses.

The specification does not say which fields are required, or which checks the service makes. The sandbox
requires every field of a request, ignores unknown fields, and reports all problems at once.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, NoReturn

import msgspec
from attrs import Attribute, evolve, field, fields, frozen

from transfer_async.sandbox.accounts import Account, Chance, CurrencyAccount

# --- exact json --------------------------------------------------------------------------------------
# Numbers keep all their digits. The standard library parses JSON, because it can return each number as a
# `Decimal`. msgspec serializes JSON, because it can write a `Decimal` as a number.

# Python takes quadratic time to read a number, so a longer number could block the sandbox.
MAX_NUMBER_LENGTH = 100

JsonObject = dict[str, Any]

_encode = msgspec.json.Encoder(decimal_format="number").encode


class BadJson(ValueError):
    """Raised when a body cannot be read as JSON.

    The error message gives the reason, but does not quote the body.
    """


def read(body: bytes) -> Any:
    """Read a JSON document. Every number becomes a `Decimal` with the same digits.

    Raises:
        BadJson: the body is not UTF-8, is not JSON or is nested too deeply; or it contains NaN, an infinity,
            a number that is too long, or half of a surrogate pair.
    """
    try:
        text = body.decode()
        value = json.loads(
            text, parse_float=_exact_number, parse_int=_exact_number, parse_constant=_refuse_constant
        )
        if "\\u" in text:
            write(value)  # Half of a surrogate pair cannot be encoded as UTF-8.
    except BadJson:
        raise
    except UnicodeDecodeError:
        raise BadJson("The body is not UTF-8.") from None
    except UnicodeEncodeError:
        raise BadJson("A string contains half of a surrogate pair.") from None
    except RecursionError:
        raise BadJson("The body is nested too deeply.") from None
    except (ValueError, ArithmeticError):
        raise BadJson("The body is not valid JSON.") from None
    return value


def write(value: object) -> bytes:
    """Write a JSON document. A `Decimal` becomes a number with the same digits."""
    return _encode(value)


def timestamp(moment: datetime) -> str:
    """Format a time in UTC as in the specification's section 2: `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _exact_number(text: str) -> Decimal:
    if len(text) > MAX_NUMBER_LENGTH:
        raise BadJson(f"A number is longer than {MAX_NUMBER_LENGTH} characters.")
    return Decimal(text)


def _refuse_constant(_: str) -> NoReturn:
    raise BadJson("NaN and infinities are not JSON.")


# Enough for any amount of money; an amount with more digits could take seconds to print.
MAX_INTEGER_DIGITS = 20
MAX_DECIMAL_PLACES = 18

_DECIMAL_TEXT = r"[0-9]{1,20}(\.[0-9]{1,18})?"

Problems = dict[str, list[str]]


class _Invalid(ValueError):
    """Raised when a value is invalid. The message states the rule."""


@frozen
class Kind:
    """The type of a field: its JSON schema, and a check that returns the value or raises an error."""

    check: Callable[[object], Any]
    schema: JsonObject


def _text(pattern: str, rule: str, schema: JsonObject | None = None) -> Kind:
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise _Invalid(rule)
        return value

    return Kind(check, {"type": "string", **({"pattern": f"^{pattern}$"} if schema is None else schema)})


def _plain(value: Decimal) -> Decimal:
    # Checked before any arithmetic, because 1e999999999 is short but has a billion digits.
    places = -int(value.as_tuple().exponent)
    too_large = value and value.adjusted() >= MAX_INTEGER_DIGITS
    if too_large or not -MAX_INTEGER_DIGITS <= places <= MAX_DECIMAL_PLACES:
        raise _Invalid(
            f"must have at most {MAX_INTEGER_DIGITS} digits and {MAX_DECIMAL_PLACES} decimal places"
        )
    return Decimal(format(value, "f"))


def _number(value: object) -> Decimal:
    if not isinstance(value, Decimal):
        raise _Invalid("must be a number")
    return _plain(value)


def _number_text(value: object) -> Decimal:
    if not isinstance(value, str) or not re.fullmatch("-?" + _DECIMAL_TEXT, value):
        raise _Invalid("must be a string that contains a plain decimal number")
    return Decimal(value)


def _number_or_text(value: object) -> Decimal:
    return _number_text(value) if isinstance(value, str) else _number(value)


def _positive(read: Callable[[object], Decimal]) -> Callable[[object], Decimal]:
    def check(value: object) -> Decimal:
        number = read(value)
        if number <= 0:
            raise _Invalid("must be greater than 0")
        return number

    return check


def _not_negative(value: object) -> Decimal:
    number = _number(value)
    if number < 0:
        raise _Invalid("must not be negative")
    return number


_EMAIL = _text(
    r"(?i:[^@\s\x00-\x1f\x7f]{1,64}@[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){1,8})",
    "must be a valid e-mail address",
    {"format": "email"},
)
_CURRENCY = _text(r"[A-Z0-9]{2,10}", "must be an upper-case currency code")
_COUNTRY = _text(r"[A-Z]{2}", "must be a two-letter country code")
_PAYMENT_METHOD = _text(r"[a-z0-9_]{1,64}", "must be the name of a payment method type", {})
_POSITIVE_TEXT = {"type": "string", "pattern": f"^{_DECIMAL_TEXT}$"}
_AMOUNT = Kind(
    _positive(_number_or_text), {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, _POSITIVE_TEXT]}
)
_RATE = Kind(_positive(_number_text), _POSITIVE_TEXT)
_BALANCE = Kind(
    _number_or_text,
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": f"^-?{_DECIMAL_TEXT}$"}]},
)
_FEE = Kind(_not_negative, {"type": "number", "minimum": 0})


def _as(kind: Kind, example: object, description: str = "", *, inside: str = "") -> JsonObject:
    """Return the metadata of a request field. `inside` is the name of the surrounding object."""
    schema = {**kind.schema, **({"description": description} if description else {})}
    return {"check": kind.check, "schema": schema, "example": example, "inside": inside}


_INNER = "external_order"


@frozen(kw_only=True)
class CreateOrder:
    """A create-order request with well-formed fields. Amounts are exact and in the currency's major unit.

    The fields' metadata defines the checks, the OpenAPI schema and the example.
    """

    poster_username: str = field(
        metadata=_as(_EMAIL, "ada.eze@example.com", "The bank's customer who posts the order.")
    )
    poster_recipient_username: str = field(
        metadata=_as(
            _EMAIL,
            "ben.okri@example.com",
            "The poster's beneficiary: a registered account with a valid bank account set up for "
            "receiving payment.",
        )
    )
    poster_currency: str = field(metadata=_as(_CURRENCY, "NGN", "The poster's currency."))
    poster_country: str = field(metadata=_as(_COUNTRY, "NG", "The poster's country."))
    poster_amount: Decimal = field(
        metadata=_as(_AMOUNT, "155025.00", "Amount sent: matcher_amount multiplied by exchange_rate.")
    )
    poster_payment_method_type: str = field(
        metadata=_as(
            _PAYMENT_METHOD, "nigerian_bank_payment", "Method of final payment in the poster's country."
        )
    )
    matcher_currency: str = field(
        metadata=_as(_CURRENCY, "USD", "Currency in which the beneficiary is paid.")
    )
    matcher_country: str = field(metadata=_as(_COUNTRY, "US", "Country in which the beneficiary is paid."))
    matcher_amount: Decimal = field(metadata=_as(_AMOUNT, "100.00", "Amount that the beneficiary receives."))
    exchange_rate: Decimal = field(metadata=_as(_RATE, "1550.25", "A string holding a number."))
    current_account_balance: Decimal = field(
        metadata=_as(
            _BALANCE,
            "900000.10",
            "The customer's balance just before the offer was posted.",
            inside=_INNER,
        )
    )
    transaction_fee: Decimal = field(
        metadata=_as(_FEE, 250, "Fee the bank charges its customer.", inside=_INNER)
    )
    transaction_fee_currency: str = field(metadata=_as(_CURRENCY, "NGN", inside=_INNER))


def _path(item: "Attribute[Any]") -> str:
    return f"{item.metadata['inside']}.{item.name}".lstrip(".")


# The fields by path, in the specification's order.
FIELDS: "dict[str, Attribute[Any]]" = {_path(item): item for item in fields(CreateOrder)}

EXAMPLE: JsonObject = {
    **{path: item.metadata["example"] for path, item in FIELDS.items() if "." not in path},
    _INNER: {item.name: item.metadata["example"] for path, item in FIELDS.items() if "." in path},
}
"""A valid order between two of the default accounts."""


def request_schema(inside: str = "") -> JsonObject:
    """Return `required` and `properties` of the JSON schema for the request, or for an object in it."""
    here = {
        item.name: item.metadata["schema"] for item in FIELDS.values() if item.metadata["inside"] == inside
    }
    return {"required": [*here], "properties": here}


def parse(body: object) -> tuple[CreateOrder | None, Problems]:
    """Read a request body into a `CreateOrder`, and return it with the problems of its fields."""
    if not isinstance(body, dict):
        return None, {"body": ["must be a JSON object"]}
    values: dict[str, Any] = {}
    problems: Problems = {}
    for path, item in FIELDS.items():
        try:
            values[item.name] = item.metadata["check"](_find(body, path))
        except _Invalid as error:
            problems[path] = [str(error)]
    if problems:
        return None, problems
    request = CreateOrder(**values)
    return request, {} if amounts_agree(request) else _DISAGREEMENT


_DISAGREEMENT: Problems = {"poster_amount": ["must equal matcher_amount multiplied by exchange_rate"]}


def amounts_agree(request: CreateOrder) -> bool:
    """Return whether the amounts and the exchange rate are consistent.

    `poster_amount` may differ from `matcher_amount` times the rate by at most half a unit of its own last
    decimal place.
    """
    with localcontext(Context(prec=200)):
        product = request.matcher_amount * request.exchange_rate
        places = max(0, -int(request.poster_amount.as_tuple().exponent))
        return abs(product - request.poster_amount) * 2 <= Decimal(1).scaleb(-places)


def decimal_of(value: object) -> Decimal | None:
    """Return a number, or a numeric string, as a `Decimal`; None for anything else."""
    try:
        return _number_or_text(value)
    except _Invalid:
        return None


def filled(body: JsonObject, problems: Problems, values: JsonObject) -> Any:
    """Return a copy of `body`, with `values` in place of the fields that have problems."""
    inner_body = body.get("external_order")
    copy = {**body, "external_order": dict(inner_body) if isinstance(inner_body, dict) else {}}
    for path in problems:
        outer, _, inner = path.rpartition(".")
        source = values[outer] if outer else values
        (copy[outer] if outer else copy)[inner] = source[inner]
    return copy


def _find(body: JsonObject, path: str) -> object:
    value: object = body
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            raise _Invalid("is required")
        value = value[name]
    return value


# --- responses --------------------------------------------------------------------------------------
# The service's JSON objects for users and orders (specification, section 2).


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

    Details that the account lacks (telephone, address, dates) are derived from its username, so they never
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
    return timestamp(start + timedelta(seconds=seconds))


# The specification does not say when an offer expires. One day is the sandbox's own choice.
LIFETIME = timedelta(days=1)

# The fields of the request that the order object repeats, except the usernames and the bank's fields.
_ECHOED = tuple(path for path in FIELDS if "." not in path and not path.endswith("username"))
_ECHOED_BY_BANK = tuple(path.rpartition(".")[2] for path in FIELDS if "." in path)


@frozen(kw_only=True)
class Order:
    """An order: its request, its parties and its state. `number` is 1 for the first order."""

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

        The specification does not describe how an order's state changes. In our interpretation, `is_matched`
        becomes 1, `is_processing` becomes 0 and `can_cancel_order` becomes false. In addition, `match_id`,
        `matched_at` and `updated_at` are set.
        """
        return evolve(self, match_id=match_id, matched_at=at, updated_at=at)

    def to_object(self) -> JsonObject:
        """Build the order object with every field of section 2.1."""
        return _render(self, user_object)

    def to_json(self) -> bytes:
        """Return the order object as JSON.

        `to_json` is faster than serialising the result of `to_object`.
        """
        return write(_render(self, _cached_user_object))


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
        "posted_at": timestamp(order.posted_at),
        "updated_at": timestamp(order.updated_at),
        "expires_at": timestamp(order.posted_at + LIFETIME),
        "notified_is_about_to_expire_at": None,
        "published_at": None,
        "confirmed_at": None,
        "matched_at": order.matched_at and timestamp(order.matched_at),
        "completed_at": None,
        "cancelled_at": None,
        "matcher_payment_completed_at": None,
    }


def _external_user(order: Order, user: Callable[[Account], JsonObject]) -> JsonObject:
    registered = timestamp(order.posted_at)
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
        "created_at": timestamp(order.posted_at),
        "updated_at": timestamp(order.posted_at),
        "createdBy": user(order.bank),
        "bank_logo": bank_logo(order.bank),
    }
