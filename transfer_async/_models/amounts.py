"""Exact amounts and rates: what may be given as one, and arithmetic that never rounds by itself.

No caller's decimal context changes anything here.
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal
from typing import Any

from transfer_async._models.errors import InvalidOrder
from transfer_async._models.texts import to_text

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

_TOO_LONG = f"has more than {DIGITS} digits on one side of the decimal point"
_NOT_PLAIN = "is not a plain decimal such as '1250.00' (no exponent, no spaces, no separators)"
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def to_decimal(value: Exact) -> Any:
    """Convert what is exact; leave everything else as it is, for `number_problem` to name."""
    if type(value) is not Decimal:
        value = _made_decimal(value)
    if isinstance(value, Decimal) and value.is_zero():
        return value.copy_abs()  # "-0" is not a negative amount
    return value


def _made_decimal(value: Exact) -> Any:
    if isinstance(value, str):
        text = to_text(value)
        return EXACT.create_decimal(text) if len(text) <= 3 * DIGITS and _PLAIN.fullmatch(text) else text
    if isinstance(value, Decimal):
        return Decimal(value)
    if type(value) is int and value.bit_length() <= 4 * DIGITS:  # beyond it, too long in any case
        return EXACT.create_decimal(value)
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
    text = EXACT.to_sci_string(value)  # in a caller's context the E may be a small one
    if len(text) <= DIGITS and "E" not in text:  # nearly every one is, and no digit need be looked at
        return None
    return _length_problem(value)


def _length_problem(value: Decimal) -> str | None:
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


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0  # NaN and infinity have none
