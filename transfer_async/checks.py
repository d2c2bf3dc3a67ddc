"""What a request must be before it may be sent: exact amounts, well-formed texts, one rule between them.

Every check is pure and none says a value: a fault names the field and the rule.
All arithmetic is exact, whatever the caller's decimal context is.
"""

from __future__ import annotations

import decimal
import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from transfer_async import keys
from transfer_async.errors import InvalidOrder

if TYPE_CHECKING:
    from transfer_async.models import NewExternalOrder, NewOrder, PersonName

Problem = tuple[str, str]

Exact = Decimal | int | str
"""What an amount or a rate may be given as: never a float, which a type checker then names, too."""

EXACT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    rounding=decimal.ROUND_HALF_EVEN,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero],
)

DIGITS = 64  # on either side of the point: no sum of money needs more, and an exponent is no bomb

REFERENCE = 10_000
"""Characters of a hold's reference, or a receipt: it goes along in messages, and those have bounds."""

NAME = 1_000
"""Characters of a part of a person's name."""

_TOO_LONG = f"has more than {DIGITS} digits on one side of the decimal point"
_NOT_PLAIN = "is not a plain decimal such as '1250.00' (no exponent, no spaces, no separators)"
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_CURRENCY = re.compile(r"[A-Z0-9]{2,10}")
_COUNTRY = re.compile(r"[A-Z]{2}")


def refuse(problems: Sequence[Problem] | Iterator[Problem]) -> None:
    """Raise `InvalidOrder` with all ``problems``, if there are any."""
    if found := tuple(problems):
        raise InvalidOrder(found)


def refuse_call(problems: Iterator[Problem], *, key: object) -> None:
    """Raise `InvalidOrder` with all ``problems`` of a call, if there are any.

    An earlier call with the same key may have created an order, unless this one names no valid order,
    or nothing that was ever taken for a key.
    """
    if found := tuple(problems):
        may_exist = keys.may_be_on_record(key) and "order" not in {name for name, _ in found}
        raise InvalidOrder(found, key=key if isinstance(key, str) else None, order_may_exist=may_exist)


def to_text(value: str) -> str:
    """A plain ``str`` for any kind of one: those of numpy, lxml or a template cannot be written as JSON.

    Everything else stays as it is, for a check to name.
    """
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value


def to_optional_text(value: str | None) -> str | None:
    """The same, where there may be none."""
    return None if value is None else to_text(value)


def to_moment(value: datetime | None) -> datetime | None:
    """A plain ``datetime`` in UTC for any aware one, whatever its class and its time zone.

    Everything else stays as it is, for a check to name.
    """
    if not isinstance(value, datetime) or (type(value) is datetime and value.tzinfo is UTC):
        return value
    try:
        offset = value.utcoffset()
        plain = datetime(  # noqa: DTZ001 - its zone follows
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
        )
        return value if offset is None else (plain - offset).replace(tzinfo=UTC)
    except Exception:  # noqa: BLE001 - a time zone is anybody's code, and no time may look like one
        return value


def to_decimal(value: Exact) -> Any:
    """Convert what is exact; leave everything else as it is, for `number_problem` to name."""
    if isinstance(value, str):
        value = to_text(value)
    elif isinstance(value, Decimal) and type(value) is not Decimal:
        value = Decimal(value)
    if type(value) is int and value.bit_length() <= 4 * DIGITS:  # beyond it, too long in any case
        value = EXACT.create_decimal(value)
    if type(value) is str and len(value) <= 3 * DIGITS and _PLAIN.fullmatch(value):
        value = EXACT.create_decimal(value)
    if isinstance(value, Decimal) and value.is_zero():
        return value.copy_abs()  # "-0" is not a negative amount
    return value


def number_problem(value: object) -> str | None:
    """Why ``value`` is no exact, finite amount; None if it is one."""
    if isinstance(value, float):
        return "is a float, which cannot hold most decimal amounts exactly: pass a Decimal or a string"
    if isinstance(value, str):
        # A plain one would have been converted, were it shorter.
        return _TOO_LONG if _PLAIN.fullmatch(value) else _NOT_PLAIN
    if type(value) is int:
        return _TOO_LONG
    if not isinstance(value, Decimal):
        return "is not a Decimal, an int or a plain decimal string"
    if not value.is_finite():
        return "is not a finite number"
    if not value.is_zero() and not (-DIGITS <= value.adjusted() < DIGITS and places(value) <= DIGITS):
        return _TOO_LONG
    if value.is_zero() and abs(_exponent(value)) > DIGITS:
        return _TOO_LONG
    return None


def places(value: Decimal) -> int:
    """How many decimal places ``value`` carries, from 0."""
    return max(0, -_exponent(value))


def unit(value: Decimal) -> Decimal:
    """One unit of the last decimal place that ``value`` carries."""
    return Decimal((0, (1,), -places(value)))


def product(amount: Exact, rate: Exact, *, places: int) -> Decimal:
    """``amount × rate`` to ``places`` decimals, half-even.

    1 where either is no amount: its own fault will be told.
    """
    if type(places) is not int or not 0 <= places <= DIGITS:
        raise InvalidOrder([("places", f"is not a whole number from 0 to {DIGITS}")])
    left, right = to_decimal(amount), to_decimal(rate)
    if number_problem(left) or number_problem(right):
        return Decimal(1)
    return EXACT.quantize(EXACT.multiply(left, right), Decimal((0, (1,), -places)))


def differ(a: Decimal, b: Decimal, *, by_more_than: Decimal) -> bool:
    """Whether ``a`` and ``b`` lie further apart than ``by_more_than``, without rounding."""
    if abs(a.adjusted() - b.adjusted()) > 4 * DIGITS:  # the exact difference could be gigabytes long
        return a != b and max(a.copy_abs(), b.copy_abs()) > by_more_than
    return EXACT.subtract(a, b).copy_abs() > by_more_than


def external_order_problems(new: NewExternalOrder) -> Iterator[Problem]:
    """Every fault of ``new`` (specification 4.1, ``external_order``)."""
    if why := number_problem(new.current_account_balance):
        yield "current_account_balance", why
    if why := number_problem(new.transaction_fee):
        yield "transaction_fee", why
    elif new.transaction_fee < 0:
        yield "transaction_fee", "is negative"
    if why := _text_problem(new.transaction_fee_currency, _CURRENCY, "2 to 10 of A-Z and 0-9"):
        yield "transaction_fee_currency", why


def order_problems(new: NewOrder, *, external_order: type) -> Iterator[Problem]:
    """Every fault of ``new`` (specification 4.1)."""
    for name, (pattern, rule) in _TEXTS.items():
        if why := _text_problem(getattr(new, name), pattern, rule):
            yield name, why
    wrong = dict(_amount_problems(new))
    yield from wrong.items()
    if not wrong and not _amounts_agree(new):
        yield (
            "poster_amount",
            "is not matcher_amount × exchange_rate to within half a unit of its last decimal place",
        )
    if not isinstance(new.external_order, external_order):
        yield "external_order", f"is not a {external_order.__name__}"


def call_problems(
    *,
    order: object,
    key: object,
    beneficiary: object,
    held: object,
    send_before: object,
    kinds: tuple[type, type],
) -> Iterator[Problem]:
    """Every fault of what a caller passes to ``create_order``, as `OrderRequest` has made it plain.

    ``kinds``: the order's class, the name's.
    """
    new_order, person_name = kinds
    if not isinstance(order, new_order):
        yield "order", f"is not a {new_order.__name__}"
    if key is not None and (why := keys.problem(key)):
        yield "key", why
    if beneficiary is not None and not isinstance(beneficiary, person_name):
        yield "beneficiary", f"is not a {person_name.__name__}"
    elif beneficiary is not None:
        yield from _name_problems(beneficiary)
    if held is not None and not (isinstance(held, str) and held.strip() and is_clean(held)):
        yield "held", "is not the reference of a hold: a text with something in it"
    elif held is not None and len(held) > REFERENCE:
        yield "held", f"is longer than {REFERENCE:,} characters"
    if send_before is not None and not (type(send_before) is datetime and send_before.tzinfo is UTC):
        yield "send_before", "is not a datetime with a time zone, within the years 1 to 9999 of UTC"


def person_name_problems(name: PersonName) -> Iterator[Problem]:
    """The parts of ``name`` that are no texts."""
    for part in ("first", "last", "middle"):
        value = getattr(name, part)
        if not (isinstance(value, str) or (value is None and part == "middle")):
            yield part, "is not a string"


def _name_problems(name: Any) -> Iterator[Problem]:
    for part in ("first", "last", "middle"):
        value: str = getattr(name, part) or ""
        if not is_clean(value):
            yield f"beneficiary.{part}", "holds a control character"
        elif len(value) > NAME:
            yield f"beneficiary.{part}", f"is longer than {NAME:,} characters"


_MAIL = (_EMAIL, "an e-mail address")
_CODE = (_CURRENCY, "2 to 10 of A-Z and 0-9")
_LAND = (_COUNTRY, "two letters, upper case")
_TEXTS: dict[str, tuple[re.Pattern[str] | None, str]] = {
    "poster_username": _MAIL,
    "poster_recipient_username": _MAIL,
    "poster_currency": _CODE,
    "poster_country": _LAND,
    "poster_payment_method_type": (None, "a payment method type's name"),
    "matcher_currency": _CODE,
    "matcher_country": _LAND,
}


def _amount_problems(new: NewOrder) -> Iterator[Problem]:
    for name in ("poster_amount", "matcher_amount", "exchange_rate"):
        value: Decimal = getattr(new, name)
        if why := number_problem(value):
            yield name, why
        elif value <= 0:
            yield name, "is not more than zero"


def _amounts_agree(new: NewOrder) -> bool:
    half = Decimal((0, (5,), -places(new.poster_amount) - 1))
    return not differ(
        EXACT.multiply(new.matcher_amount, new.exchange_rate), new.poster_amount, by_more_than=half
    )


def _text_problem(value: object, pattern: re.Pattern[str] | None, rule: str) -> str | None:
    if not isinstance(value, str):
        return "is not a string"
    if not is_clean(value):
        return "holds a control character"
    if not value.strip() or len(value) > 254 or (pattern is not None and not pattern.fullmatch(value)):
        return f"is not {rule}"
    return None


def is_clean(text: str) -> bool:
    """Whether ``text`` holds no control character, and nothing else that breaks a line."""
    # Printable ASCII is nearly every text here; of the rest, Cc are controls, Cs cannot be sent as
    # UTF-8, and Zl and Zp break a line where a log or a terminal is read.
    if text.isascii() and text.isprintable():
        return True
    return not any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text)


def checked_scope(given: str) -> str:
    """``given``, if it can name a service in a journal.

    Raises:
        ValueError: it is no text, or an empty one.
    """
    if not (isinstance(given, str) and given and is_clean(given)):
        raise ValueError("scope: must be a string with something in it")
    return to_text(given)


def is_sendable(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8: half of a surrogate pair cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0  # NaN and infinity have none
