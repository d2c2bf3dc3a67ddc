"""The models of requests. A model is checked when it is created, and one error lists all its problems."""

from __future__ import annotations

import decimal
import functools
import hashlib
import re
import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Self, TypeGuard, cast

import attrs
from attrs import field, frozen
from attrs.converters import optional

from transfer_async._models.errors import LIMITS, InvalidOrder
from transfer_async._models.responses import Wire

# --- texts and times ---------------------------------------------------------------------------------
# Subclasses of ``str`` and ``datetime`` become plain values, and texts are checked for unsafe characters.


LONGEST_REFERENCE = 10_000
"""The maximum length of a hold's reference or of a receipt, in characters."""

LONGEST_NAME = 1_000
"""The maximum length of one part of a person's name, in characters."""

UNSEEN: re.Pattern[str] = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u2800\u2d7f\ufffc\U0001107f\U00013441\U00013442\U00016fe4\U0001bc9d\U0001d159]"
)
"""A pattern for one invisible character.

It includes all characters with the property Default_Ignorable_Code_Point in Unicode's file
DerivedCoreProperties.txt. It also includes some blank characters: the Braille pattern without dots, a
notehead, two Egyptian signs, the object replacement character, and joiners, fillers and selectors of four
scripts. Other checks refuse the characters that Python does not call printable.
"""


def to_text(value: str) -> str:
    """Convert an instance of a ``str`` subclass, such as numpy's or lxml's, to a plain ``str`` for JSON.

    Any other value is returned unchanged, so that a later check can report it.
    """
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value


def to_moment(value: datetime | None) -> datetime | None:
    """Convert an aware ``datetime`` of any class and time zone to a plain ``datetime`` in UTC.

    Any other value is returned unchanged, so that a later check can report it.
    """
    if not isinstance(value, datetime) or (type(value) is datetime and value.tzinfo is UTC):
        return value
    try:
        offset = value.utcoffset()
        plain = datetime(  # noqa: DTZ001 - the time zone is added below
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
        )
        return value if offset is None else (plain - offset).replace(tzinfo=UTC)
    except Exception:  # noqa: BLE001 - a time zone may be any code, and raise anything
        return value


_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def ascii_lower(text: str) -> str:
    """Convert the ASCII letters in ``text`` to lower case. All other characters stay unchanged.

    Usernames are converted by `ascii_lower` before they are compared. Unicode case folding would treat
    different usernames as equal, for example ``straße`` and ``strasse``.
    """
    return text.lower() if text.isascii() else text.translate(_LOWER)


def is_clean(text: str) -> bool:
    """Return whether ``text`` contains no control character, no lone surrogate and no line separator."""
    # Nearly every text is printable ASCII. Of the refused categories, Cc are control characters, Cs cannot
    # be encoded as UTF-8, and Zl and Zp break a line in a log or a terminal.
    if text.isascii() and text.isprintable():
        return True
    return not any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text)


def checked_scope(given: str) -> str:
    """Return ``given`` as a plain string if it is a valid scope, which names a service in a journal.

    Raises:
        ValueError: ``given`` is not a string, is empty, or contains a control character.
    """
    if not (isinstance(given, str) and given and is_clean(given)):
        raise ValueError("scope: must be a non-empty string without control characters")
    return to_text(given)


def is_sendable(text: str) -> bool:
    """Return whether ``text`` can be encoded as UTF-8, that is, contains no lone surrogate."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


# --- keys --------------------------------------------------------------------------------------------
# Two keys that look the same must be equal. Otherwise one payment may create two orders.
#
# Typical invisible differences are a trailing blank from a spreadsheet, an accent written as two code points,
# and a variation selector.


LONGEST_KEY = 200
"""The maximum length of a key, in characters."""


def problem(key: object) -> str | None:
    """Return why ``key`` is not a valid key, or None if it is valid."""
    if not may_be_on_record(key):
        return f"does not consist of 1 to {LONGEST_KEY} printable characters"
    if key != key.strip():
        return "begins or ends with a blank: the key without the blank looks the same, but is another key"
    if key.isascii():
        return None
    if UNSEEN.search(key):
        return "contains an invisible character: the key without it looks the same, but is another key"
    if not unicodedata.is_normalized("NFC", key):
        return "is not in Unicode normal form C: the key in that form looks the same, but is another key"
    return None


def may_be_on_record(key: object) -> TypeGuard[str]:
    """Return whether a journal may contain ``key``.

    Earlier versions accepted all printable characters in a key.
    """
    return isinstance(key, str) and 1 <= len(key) <= LONGEST_KEY and key.isprintable()


def refuse_key(key: object) -> None:
    """Raise `InvalidOrder` unless ``key`` is valid. Call `refuse_key` only for a key that has no record."""
    if why := problem(key):
        raise InvalidOrder([("key", why)])


# --- amounts -----------------------------------------------------------------------------------------
# Amounts and rates are exact. There is no implicit rounding, and the caller's decimal context has no effect.


Exact = Decimal | int | str
"""The types that are accepted for an amount or a rate. A float is refused, and type checkers report it."""

EXACT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    rounding=decimal.ROUND_HALF_EVEN,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero],
)

# The maximum number of digits on either side of the decimal point. No amount of money needs more, and the
# limit prevents a huge exponent from using up the memory.
DIGITS = 64

_TOO_LONG = f"has more than {DIGITS} digits on one side of the decimal point"
_NOT_PLAIN = "is not a plain decimal such as '1250.00' (no exponent, no spaces, no separators)"
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def to_decimal(value: Exact) -> Any:
    """Convert an exact value to `Decimal`. Return any other value unchanged; `number_problem` reports it."""
    if type(value) is not Decimal:
        value = _made_decimal(value)
    if isinstance(value, Decimal) and value.is_zero():
        return value.copy_abs()  # "-0" is not a negative amount.
    return value


def _made_decimal(value: Exact) -> Any:
    if isinstance(value, str):
        text = to_text(value)
        return EXACT.create_decimal(text) if len(text) <= 3 * DIGITS and _PLAIN.fullmatch(text) else text
    if isinstance(value, Decimal):
        return Decimal(value)
    if type(value) is int and value.bit_length() <= 4 * DIGITS:  # A longer int is refused.
        return EXACT.create_decimal(value)
    return value


def number_problem(value: object) -> str | None:
    """Return why ``value`` is not an exact, finite amount, or None if it is one."""
    if isinstance(value, float):
        return "is a float, which cannot represent most decimal amounts exactly: pass a Decimal or a string"
    if isinstance(value, str):
        # A shorter plain decimal string was converted already.
        return _TOO_LONG if _PLAIN.fullmatch(value) else _NOT_PLAIN
    if type(value) is int:
        return _TOO_LONG
    if not isinstance(value, Decimal):
        return "is not a Decimal, an int or a plain decimal string"
    if not value.is_finite():
        return "is not a finite number"
    text = EXACT.to_sci_string(value)  # In the caller's decimal context, the E may be in lower case.
    if len(text) <= DIGITS and "E" not in text:  # This quick test suffices for nearly every amount.
        return None
    if value.is_zero():
        return _TOO_LONG if abs(_exponent(value)) > DIGITS else None
    return None if -DIGITS <= value.adjusted() < DIGITS and places(value) <= DIGITS else _TOO_LONG


def places(value: Decimal) -> int:
    """Return the number of decimal places of ``value``, 0 or more."""
    return max(0, -_exponent(value))


def unit(value: Decimal) -> Decimal:
    """Return one unit of the last decimal place of ``value``: 0.01 for 12.50."""
    return Decimal((0, (1,), -places(value)))


def product(amount: Exact, rate: Exact, *, places: int) -> Decimal:
    """Return ``amount × rate``, rounded half-even to ``places`` decimals.

    If ``amount`` or ``rate`` is invalid, return 1, because the check of that field reports the problem.

    Raises:
        InvalidOrder: ``places`` is not a whole number from 0 to 64.
    """
    if type(places) is not int or not 0 <= places <= DIGITS:
        raise InvalidOrder([("places", f"is not a whole number from 0 to {DIGITS}")])
    left, right = to_decimal(amount), to_decimal(rate)
    if number_problem(left) or number_problem(right):
        return Decimal(1)
    return EXACT.quantize(EXACT.multiply(left, right), Decimal((0, (1,), -places)))


def differ(a: Decimal, b: Decimal, *, by_more_than: Decimal) -> bool:
    """Return whether the exact difference between ``a`` and ``b`` is more than ``by_more_than``."""
    # The digits of the exact difference could take gigabytes.
    if abs(a.adjusted() - b.adjusted()) > 4 * DIGITS:
        return a != b and max(a.copy_abs(), b.copy_abs()) > by_more_than
    return EXACT.subtract(a, b).copy_abs() > by_more_than


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0  # NaN and infinity have no exponent.


# --- rules of fields ---------------------------------------------------------------------------------
# The rules for the fields of an order. Checks, fingerprints, messages and CSV columns are derived from the
# definitions of the fields. A field with a default is optional.


def _text_problem(pattern: re.Pattern[str] | None, rule: str, value: object) -> str | None:
    if not isinstance(value, str):
        return "is not a string"
    if not is_clean(value):
        return "contains a control character"
    if not value.strip() or len(value) > 254 or (pattern is not None and not pattern.fullmatch(value)):
        return f"is not {rule}"
    return None


def _price_problem(value: Decimal) -> str | None:
    return number_problem(value) or ("is not greater than zero" if value <= 0 else None)


def _fee_problem(value: Decimal) -> str | None:
    return number_problem(value) or ("is negative" if value < 0 else None)


def _text_rule(pattern: str | None, rule: str, **more: Any) -> dict[str, Any]:
    return {"problem": partial(_text_problem, None if pattern is None else re.compile(pattern), rule), **more}


_USERNAME = _text_rule(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+", "an e-mail address", ignores_case=True)
_CURRENCY = _text_rule(r"[A-Z0-9]{2,10}", "2 to 10 of A-Z and 0-9")
_COUNTRY = _text_rule(r"[A-Z]{2}", "two upper-case letters")
_METHOD = _text_rule(None, "the name of a payment method type")
_PRICE = {"problem": _price_problem, "is_number": True}
_FEE = {"problem": _fee_problem, "is_number": True}
# The balance may change before a redelivery.
_BALANCE = {"problem": number_problem, "is_number": True, "is_reread": True}


@functools.cache
def _checks(kind: Any) -> tuple[tuple[str, Callable[[Any], str | None], bool], ...]:
    return tuple(
        (item.name, item.metadata["problem"], is_optional(item))
        for item in attrs.fields(kind)
        if "problem" in item.metadata
    )


def is_optional(item: attrs.Attribute[Any]) -> bool:
    """Return whether the field is optional."""
    return item.default is not attrs.NOTHING


def _field_problems(new: NewOrder | NewExternalOrder) -> Iterator[Problem]:
    for name, problem_of, may_be_absent in _checks(cast("Any", type(new))):
        value = getattr(new, name)
        if not (may_be_absent and value is None) and (why := problem_of(value)):
            yield name, why


@frozen(kw_only=True)
class NewExternalOrder(Wire):
    """The bank's own data about an order (specification 4.1, ``external_order``).

    Args:
        current_account_balance: the customer's balance just before the order; may be zero or negative.
        transaction_fee: the fee that the bank charges its customer; may be zero.
        transaction_fee_currency: the fee's currency, 2 to 10 characters of ``[A-Z0-9]``.

    Raises:
        InvalidOrder: a field is invalid; ``.problems`` lists all of them.
    """

    current_account_balance: Decimal = field(converter=to_decimal, repr=False, metadata=_BALANCE)
    transaction_fee: Decimal = field(converter=to_decimal, metadata=_FEE)
    transaction_fee_currency: str = field(converter=to_text, metadata=_CURRENCY)

    def __attrs_post_init__(self) -> None:
        refuse(_field_problems(self))


@frozen(kw_only=True)
class NewOrder(Wire):
    """An order to be created (specification 4.1). Every field is required.

    Amounts and the rate are `Decimal`. ``int`` and plain decimal ``str`` are converted exactly;
    ``float`` is refused. ``poster_amount`` may differ from ``matcher_amount × exchange_rate`` by at most half
    a unit in its own last decimal place.

    Args:
        poster_username: the e-mail address of the bank's customer.
        poster_recipient_username: the e-mail address of the beneficiary, who must have a registered account.
        poster_currency: the currency that is sent, 2 to 10 characters of ``[A-Z0-9]``.
        poster_country: the sending country, two upper-case letters.
        poster_amount: the amount that is sent, more than zero.
        poster_payment_method_type: the name of the method of final payment in the poster's country.
        matcher_currency: the currency that the beneficiary receives, 2 to 10 characters of ``[A-Z0-9]``.
        matcher_country: the receiving country, two upper-case letters.
        matcher_amount: the amount that the beneficiary receives, more than zero.
        exchange_rate: the price of one unit of the matcher's currency in the poster's currency.
        external_order: the bank's own data about the order.

    Raises:
        InvalidOrder: a field is invalid; ``.problems`` lists all of them.
    """

    poster_username: str = field(converter=to_text, repr=False, metadata=_USERNAME)
    poster_recipient_username: str = field(converter=to_text, repr=False, metadata=_USERNAME)
    poster_currency: str = field(converter=to_text, metadata=_CURRENCY)
    poster_country: str = field(converter=to_text, metadata=_COUNTRY)
    poster_amount: Decimal = field(converter=to_decimal, metadata=_PRICE)
    poster_payment_method_type: str = field(converter=to_text, metadata=_METHOD)
    matcher_currency: str = field(converter=to_text, metadata=_CURRENCY)
    matcher_country: str = field(converter=to_text, metadata=_COUNTRY)
    matcher_amount: Decimal = field(converter=to_decimal, metadata=_PRICE)
    exchange_rate: Decimal = field(converter=to_decimal, metadata=_PRICE)
    external_order: NewExternalOrder

    def __attrs_post_init__(self) -> None:
        refuse(order_problems(self))

    @classmethod
    def quote(
        cls,
        *,
        poster_username: str,
        poster_recipient_username: str,
        poster_currency: str,
        poster_country: str,
        poster_payment_method_type: str,
        matcher_currency: str,
        matcher_country: str,
        matcher_amount: Exact,
        exchange_rate: Exact,
        external_order: NewExternalOrder,
        places: int = 2,
    ) -> Self:
        """Create an order whose ``poster_amount`` is computed as ``matcher_amount × exchange_rate``.

        Args:
            places: the number of decimals to which ``poster_amount`` is rounded (half-even), 0 to 64.

        The other arguments are those of `NewOrder`.

        Raises:
            InvalidOrder: a field is invalid; ``.problems`` lists all of them.
        """
        return cls(
            poster_username=poster_username,
            poster_recipient_username=poster_recipient_username,
            poster_currency=poster_currency,
            poster_country=poster_country,
            poster_amount=product(matcher_amount, exchange_rate, places=places),
            poster_payment_method_type=poster_payment_method_type,
            matcher_currency=matcher_currency,
            matcher_country=matcher_country,
            matcher_amount=matcher_amount,
            exchange_rate=exchange_rate,
            external_order=external_order,
        )


@frozen
class PersonName:
    """A person's name as the bank's customer typed it.

    Args:
        middle: the middle name; None if there is none.

    Raises:
        InvalidOrder: a part is not a string.
    """

    first: str = field(converter=to_text, repr=False)
    last: str = field(converter=to_text, repr=False)
    middle: str | None = field(default=None, converter=optional(to_text), repr=False)

    def __attrs_post_init__(self) -> None:
        refuse(person_name_problems(self))


@frozen
class OrderRequest:
    """One request to create one order, for `TransferClient.create_orders`.

    The fields are the arguments of `TransferClient.create_order`. ``send_before`` and ``deadline`` are
    converted to UTC. The fields are checked when the order is created, not when the `OrderRequest` is
    created.
    """

    order: NewOrder
    key: str | None = field(default=None, converter=optional(to_text))
    beneficiary: PersonName | None = None
    held: str | None = field(default=None, converter=optional(to_text))
    send_before: datetime | None = field(default=None, converter=optional(to_moment))
    deadline: datetime | None = field(default=None, converter=optional(to_moment))


@frozen
class OrderIntent:
    """One intent to create one order, as hooks receive it.

    Args:
        id: the intent's id, which stays the same for retries and take-overs. If the key is used again after a
            definite failure, the new intent has a new id.
        key: the caller's own id, or one that the client generated.
        order: the order to create.
        beneficiary: the beneficiary's name, as the customer typed it.
        held: the reference of a hold that the bank itself placed.
        send_before: an aware time after which the order must not be sent.
    """

    id: str
    key: str
    order: NewOrder
    beneficiary: PersonName | None = None
    held: str | None = None
    send_before: datetime | None = None


Problem = tuple[str, str]


def refuse(problems: Sequence[Problem] | Iterator[Problem]) -> None:
    """Raise `InvalidOrder` with all ``problems`` if there are any."""
    if found := tuple(problems):
        raise InvalidOrder(found)


def refuse_call(problems: Sequence[Problem] | Iterator[Problem], *, key: object) -> None:
    """Raise `InvalidOrder` with all ``problems`` of a call if there are any.

    If a key was given, ``order_may_exist`` is true: an earlier call with the key may have created an order.
    ``order_may_exist`` is also true for an invalid key, because another version of the package, or a newer
    version of Unicode, may have accepted the key.
    """
    if found := tuple(problems):
        given = key if isinstance(key, str) else None
        raise InvalidOrder(found, key=given, order_may_exist=key is not None)


def order_problems(new: NewOrder) -> Iterator[Problem]:
    """Yield every problem with ``new`` (specification 4.1)."""
    problems = dict(_field_problems(new))
    yield from problems.items()
    if not problems.keys() & _AMOUNTS and not _amounts_agree(new):
        yield (
            "poster_amount",
            "differs from matcher_amount × exchange_rate by more than half a unit of its last decimal place",
        )
    if not isinstance(new.external_order, NewExternalOrder):
        yield "external_order", "is not a NewExternalOrder"


def call_problems(call: OrderRequest) -> Iterator[Problem]:
    """Yield every problem with the arguments of ``create_order``."""
    key, beneficiary, held = call.key, call.beneficiary, call.held
    if not isinstance(call.order, NewOrder):
        yield "order", "is not a NewOrder"
    if key is not None and (why := problem(key)):
        yield "key", why
    if beneficiary is not None and not isinstance(beneficiary, PersonName):
        yield "beneficiary", "is not a PersonName"
    elif beneficiary is not None:
        yield from _name_problems(beneficiary)
    if held is not None and not (isinstance(held, str) and held.strip() and is_clean(held)):
        yield "held", "is not the reference of a hold: pass a non-blank string without control characters"
    elif held is not None and len(held) > LONGEST_REFERENCE:
        yield "held", f"is longer than {LONGEST_REFERENCE:,} characters"
    for name in LIMITS:
        moment = getattr(call, name)
        if moment is not None and (why := moment_problem(moment)):
            yield name, why


def moment_problem(moment: object) -> str | None:
    """Return why ``moment`` is not a valid time; None if it is valid or absent."""
    if moment is None or (type(moment) is datetime and moment.tzinfo is UTC):
        return None
    return "is not a datetime with a time zone, or is outside the years 1 to 9999 in UTC"


def person_name_problems(name: PersonName) -> Iterator[Problem]:
    """Yield a problem for each part of ``name`` that is not a string."""
    for part in ("first", "last", "middle"):
        value = getattr(name, part)
        if not (isinstance(value, str) or (value is None and part == "middle")):
            yield part, "is not a string"


def _name_problems(name: Any) -> Iterator[Problem]:
    for part in ("first", "last", "middle"):
        value: str = getattr(name, part) or ""
        if not is_clean(value):
            yield f"beneficiary.{part}", "contains a control character"
        elif len(value) > LONGEST_NAME:
            yield f"beneficiary.{part}", f"is longer than {LONGEST_NAME:,} characters"


_AMOUNTS = frozenset(("poster_amount", "matcher_amount", "exchange_rate"))


def _amounts_agree(new: NewOrder) -> bool:
    half = Decimal((0, (5,), -places(new.poster_amount) - 1))
    return not differ(
        EXACT.multiply(new.matcher_amount, new.exchange_rate), new.poster_amount, by_more_than=half
    )


# --- fingerprint -------------------------------------------------------------------------------------
# A fingerprint identifies the order of a key. Equal orders have the same fingerprint.


def fingerprint(order: NewOrder) -> str:
    """Return a digest of an order's fields. Equal orders have the same digest.

    Before the digest is computed, numbers are normalized, and the ASCII letters in usernames are converted to
    lower case. Fields that may change before a redelivery (``is_reread``) are omitted. Optional fields are
    included only if they are set, so a new optional field in the model does not change stored digests.
    """
    parts: list[str] = []
    for model, kind in ((order, NewOrder), (order.external_order, NewExternalOrder)):
        for name, write, may_be_absent in _written(kind):
            value = getattr(model, name)
            if not may_be_absent:
                parts.append(write(value))
            elif value is not None:
                parts.append(f"{name}={write(value)}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def _written(kind: Any) -> tuple[tuple[str, Callable[[Any], str], bool], ...]:
    return tuple(
        (item.name, _writer_of(item), is_optional(item))
        for item in attrs.fields(kind)
        if "problem" in item.metadata and "is_reread" not in item.metadata
    )


def _writer_of(item: attrs.Attribute[Any]) -> Callable[[Any], str]:
    if "is_number" in item.metadata:
        return _number
    return ascii_lower if "ignores_case" in item.metadata else str


def _number(value: Decimal) -> str:
    # In the caller's decimal context, the E may be in lower case.
    return EXACT.to_sci_string(EXACT.normalize(value))
