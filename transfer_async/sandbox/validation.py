"""Exact JSON parsing, and validation of create-order requests (specification, section 4.1).

The specification does not say which fields are required, or which checks the service makes. The sandbox
requires every field, ignores unknown fields, and reports all problems at once.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal, localcontext
from typing import Any, NoReturn

import msgspec
from attrs import Attribute, field, fields, frozen

# --- exact json --------------------------------------------------------------------------------------
# Numbers keep all digits. The standard library parses JSON, because it can return each number as a `Decimal`.
# msgspec serializes JSON, because it can write a `Decimal` as a number.

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
    """Format a time as the specification's section 2 does: `YYYY-MM-DDTHH:MM:SS.mmmZ`, in UTC."""
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
    """The type of a field, consisting of a check that returns the value or raises, and of a JSON schema."""

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

    `poster_amount` must equal `matcher_amount` times the rate, to within half a unit of its last decimal
    place.
    """
    with localcontext(Context(prec=200)):
        product = request.matcher_amount * request.exchange_rate
        places = max(0, -int(request.poster_amount.as_tuple().exponent))
        return abs(product - request.poster_amount) * 2 <= Decimal(1).scaleb(-places)


def decimal_of(value: object) -> Decimal | None:
    """Return a number, or a string with a number, as a `Decimal`; None for anything else."""
    try:
        return _number_or_text(value)
    except _Invalid:
        return None


def filled(body: JsonObject, problems: Problems, values: JsonObject) -> Any:
    """Return a copy of `body` in which `values` replaces the fields that have problems."""
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
