"""What the sandbox asks of a create-order request (specification, section 4.1), and nothing else.

The specification does not say which fields are required, nor which checks the service makes; these are
the sandbox's own: every field is required, unknown fields are ignored, and all faults come together.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal, localcontext
from typing import Any, NoReturn

import msgspec
from attrs import frozen

# --- exact json --------------------------------------------------------------------------------------
# Exact JSON: numbers keep every digit, and no body, however odd, gets further than `BadJson`.
#
# The standard library reads, with `Decimal` for every number; msgspec writes `Decimal` as a JSON number.


# Longer numbers are an attack or an accident: Python itself takes quadratic time to read them.
MAX_NUMBER_LENGTH = 100

JsonObject = dict[str, Any]

_encode = msgspec.json.Encoder(decimal_format="number").encode


class BadJson(ValueError):
    """The body is not JSON that this service reads; the message says why and repeats nothing of it."""


def read(body: bytes) -> Any:
    """Read a JSON document; every number becomes a `Decimal` with the digits it was sent with.

    Raises:
        BadJson: not UTF-8, not JSON, nested too deep, NaN or infinity, an over-long number, or half of
            a surrogate pair.
    """
    try:
        text = body.decode()
        value = json.loads(
            text, parse_float=_exact_number, parse_int=_exact_number, parse_constant=_refuse_constant
        )
    except BadJson:
        raise
    except UnicodeDecodeError:
        raise BadJson("The body is not UTF-8.") from None
    except RecursionError:
        raise BadJson("The body is nested too deep.") from None
    except (ValueError, ArithmeticError):
        raise BadJson("The body is not valid JSON.") from None
    if "\\u" in text:
        _refuse_half_surrogates(value)
    return value


def write(value: object) -> bytes:
    """Write a JSON document; a `Decimal` becomes a number with exactly its digits."""
    return _encode(value)


def raw(value: object) -> msgspec.Raw:
    """Write a value once, to be placed into many documents."""
    return msgspec.Raw(write(value))


def extended(written: msgspec.Raw, name: str, value: object) -> msgspec.Raw:
    """Add one field to an object that is already written and has fields."""
    return msgspec.Raw(bytes(written)[:-1] + b"," + write({name: value})[1:])


def timestamp(moment: datetime) -> str:
    """Format a time as the specification's section 2 does: `YYYY-MM-DDTHH:MM:SS.mmmZ`, in UTC."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _exact_number(text: str) -> Decimal:
    if len(text) > MAX_NUMBER_LENGTH:
        raise BadJson(f"A number is longer than {MAX_NUMBER_LENGTH} characters.")
    return Decimal(text)


def _refuse_constant(_: str) -> NoReturn:
    raise BadJson("NaN and infinities are not JSON.")


def _refuse_half_surrogates(value: object) -> None:
    # A stack, not recursion: the reader's own depth limit is larger than ours would be.
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _refuse_half_surrogate(item)
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item


def _refuse_half_surrogate(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadJson("A string holds half of a surrogate pair.") from None


# Room for any amount of money, and too little for one that would take the sandbox seconds to print.
MAX_INTEGER_DIGITS = 20
MAX_DECIMAL_PLACES = 18

_DECIMAL_TEXT = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,18})?")
_EMAIL = re.compile(r"[^@\s\x00-\x1f\x7f]{1,64}@[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){1,8}", re.IGNORECASE)
_CURRENCY = re.compile(r"[A-Z0-9]{2,10}")
_COUNTRY = re.compile(r"[A-Z]{2}")
_PAYMENT_METHOD = re.compile(r"[a-z0-9_]{1,64}")

Problems = dict[str, list[str]]


@frozen(kw_only=True)
class CreateOrder:
    """A create-order request whose fields are well formed; amounts are exact, in units of the currency."""

    poster_username: str
    poster_recipient_username: str
    poster_currency: str
    poster_country: str
    poster_amount: Decimal
    poster_payment_method_type: str
    matcher_currency: str
    matcher_country: str
    matcher_amount: Decimal
    exchange_rate: Decimal
    current_account_balance: Decimal
    transaction_fee: Decimal
    transaction_fee_currency: str


class _Unfit(ValueError):
    """A value breaks the rule that the message states."""


def _text(pattern: re.Pattern[str], rule: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _Unfit(rule)
        return value

    return check


def _plain(value: Decimal) -> Decimal:
    # Checked before any arithmetic: 1e999999999 is short to send and endless to print.
    places = -int(value.as_tuple().exponent)
    too_large = value and value.adjusted() >= MAX_INTEGER_DIGITS
    if too_large or not -MAX_INTEGER_DIGITS <= places <= MAX_DECIMAL_PLACES:
        raise _Unfit(f"must have at most {MAX_INTEGER_DIGITS} digits and {MAX_DECIMAL_PLACES} decimal places")
    return Decimal(format(value, "f"))


def _number(value: object) -> Decimal:
    if not isinstance(value, Decimal):
        raise _Unfit("must be a number")
    return _plain(value)


def _number_text(value: object) -> Decimal:
    if not isinstance(value, str) or not _DECIMAL_TEXT.fullmatch(value):
        raise _Unfit("must be a string holding a plain decimal number")
    return Decimal(value)


def _number_or_text(value: object) -> Decimal:
    return _number_text(value) if isinstance(value, str) else _number(value)


def _positive(read: Callable[[object], Decimal]) -> Callable[[object], Decimal]:
    def check(value: object) -> Decimal:
        number = read(value)
        if number <= 0:
            raise _Unfit("must be greater than 0")
        return number

    return check


def _not_negative(value: object) -> Decimal:
    number = _number(value)
    if number < 0:
        raise _Unfit("must not be negative")
    return number


_email = _text(_EMAIL, "must be a valid e-mail address")
_currency = _text(_CURRENCY, "must be an upper-case currency code")
_country = _text(_COUNTRY, "must be a two-letter country code")

# The request's fields in the specification's order, with what each may hold.
FIELDS: dict[str, Callable[[object], Any]] = {
    "poster_username": _email,
    "poster_recipient_username": _email,
    "poster_currency": _currency,
    "poster_country": _country,
    "poster_amount": _positive(_number_or_text),
    "poster_payment_method_type": _text(_PAYMENT_METHOD, "must be the name of a payment method type"),
    "matcher_currency": _currency,
    "matcher_country": _country,
    "matcher_amount": _positive(_number_or_text),
    "exchange_rate": _positive(_number_text),
    "external_order.current_account_balance": _number_or_text,
    "external_order.transaction_fee": _not_negative,
    "external_order.transaction_fee_currency": _currency,
}


def parse(body: object) -> tuple[CreateOrder | None, Problems]:
    """Read a request body into a `CreateOrder`, or say by field what is wrong with it."""
    if not isinstance(body, dict):
        return None, {"body": ["must be a JSON object"]}
    values: dict[str, Any] = {}
    problems: Problems = {}
    for path, check in FIELDS.items():
        try:
            values[path.rpartition(".")[2]] = check(_find(body, path))
        except _Unfit as unfit:
            problems[path] = [str(unfit)]
    if problems:
        return None, problems
    request = CreateOrder(**values)
    return request, {} if amounts_agree(request) else _DISAGREEMENT


_DISAGREEMENT: Problems = {"poster_amount": ["must equal matcher_amount multiplied by exchange_rate"]}


def amounts_agree(request: CreateOrder) -> bool:
    """Tell whether the amount sent is amount received times rate, to half a unit of its last place."""
    with localcontext(Context(prec=200)):
        product = request.matcher_amount * request.exchange_rate
        places = max(0, -int(request.poster_amount.as_tuple().exponent))
        return abs(product - request.poster_amount) * 2 <= Decimal(1).scaleb(-places)


def decimal_of(value: object) -> Decimal | None:
    """A number, or a string that holds one, as a `Decimal`; None for whatever else."""
    try:
        return _number_or_text(value)
    except _Unfit:
        return None


def filled(body: JsonObject, problems: Problems, values: JsonObject) -> Any:
    """A copy of a body whose fields with problems have the values of another."""
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
            raise _Unfit("is required")
        value = value[name]
    return value
