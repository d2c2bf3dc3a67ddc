"""What every reader of the service's JSON shares: its names, its leaves, and exact decoding."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import msgspec

from transfer_async._models import responses

Reader = Callable[[Any], Any]

WIRE_NAMES = {
    "posters_beneficiary": "postersBeneficiary",
    "external_user": "externalUser",
    "user_options": "userOptions",
    "confirmed_matches": "confirmedMatches",
    "extra_order_details": "extraOrderDetails",
    "creator": "createdBy",
}
"""The names that the service writes in camel case, by ours."""

FLAGS = frozenset(
    {
        "is_matched",
        "is_confirmed",
        "is_completed",
        "is_accepted",
        "is_cancelled",
        "is_processing",
        "is_active",
        "can_post_offers",
        "can_accept_offers",
        "tfa_required_for_login",
        "two_factor_verified",
    }
)
"""The fields that the service writes as 0 or 1."""


class Unreadable(ValueError):
    """The JSON at ``path`` is not what the specification says; ``why`` never shows the value."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


LEVELS = 64
"""How deep JSON may be nested, so that what was read can also be written, compared and pickled."""

DIGITS = 100
"""How many digits before the point, or zeros after it, are written out."""

EVERY_DIGIT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.InvalidOperation, decimal.Overflow, decimal.Inexact, decimal.Clamped],
)


def exactly(text: str) -> Decimal:
    """The number that ``text`` says, every digit of it.

    Raises:
        ValueError: it is beyond all measure: a `Decimal` would have to be infinite, or rounded.
    """
    try:
        return EVERY_DIGIT.create_decimal(text)
    except decimal.DecimalException:
        raise ValueError("is a number beyond all measure") from None


def plain(value: Decimal) -> str:
    """``value`` without an exponent; with one, where that would be an endless row of zeros."""
    return format(value, "f") if abs(value.adjusted()) <= DIGITS else str(value)


def decode(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON of any shape: whole numbers as ``int``, all others as exact `Decimal`.

    Raises:
        Unreadable: whatever is wrong with the bytes.
    """
    data = bytes(raw)
    try:
        tree = _decoder.decode(data)
    except msgspec.ValidationError:  # of JSON of any shape, the one thing that is not taken
        raise Unreadable("$", "has a whole number of too many digits") from None
    except (msgspec.MsgspecError, ValueError, RecursionError, decimal.DecimalException) as error:
        raise Unreadable("$", f"is not JSON that can be read ({type(error).__name__})") from None
    if data.count(b"{") + data.count(b"[") > LEVELS and _is_deep(tree):
        raise Unreadable("$", "is nested too deeply")
    return tree


class Fields(list[tuple[str, Any]]):
    """An object's fields as they were written: one that comes twice is there twice.

    Readers differ in which of the two they believe, so what money hangs on is read from neither.
    """

    def twin(self, *among: str) -> str | None:
        """The first name that comes twice, of those named, or of all; None if none does."""
        seen: set[str] = set()
        for name, _ in self:
            if name in seen and (not among or name in among):
                return name
            seen.add(name)
        return None


def as_written(raw: bytes, *, each: Callable[[list[tuple[str, Any]]], Any] = Fields) -> Any:
    """JSON that `decode` reads, each object as what ``each`` makes of its fields.

    Numbers are not read: it is far slower than `decode`, and the names are all that it is for.

    Raises:
        Unreadable: it is nested too deeply.
    """
    try:
        return json.JSONDecoder(object_pairs_hook=each, parse_int=len, parse_float=len).decode(
            raw.decode(errors="replace")
        )
    except (ValueError, RecursionError):
        raise Unreadable("$", "is not JSON that every reader takes") from None


def has_twins(raw: bytes) -> bool:
    """Whether an object anywhere in ``raw``, which `decode` reads, has two fields of one name.

    Raises:
        Unreadable: see `as_written`.
    """
    found: list[bool] = []
    as_written(raw, each=lambda fields: found.append(Fields(fields).twin() is not None))
    return any(found)


def _is_deep(tree: Any) -> bool:
    level = [tree]
    for _ in range(LEVELS):
        insides = (one.values() if type(one) is dict else one for one in level)
        level = [one for inside in insides for one in inside if type(one) in (dict, list)]
        if not level:
            return False
    return True


_decoder = msgspec.json.Decoder(float_hook=EVERY_DIGIT.create_decimal)


def fields_of(cls: type) -> tuple[str, ...]:
    """The fields of a model that are on the wire, by our names."""
    return tuple(attribute.name for attribute in attrs.fields(cls) if attribute.name != "unread")


def wire_name(name: str) -> str:
    """The service's name for our field ``name``."""
    return WIRE_NAMES.get(name, name)


# One reader a type; each raises ValueError for a value of another type.


def _read_text(value: Any) -> str:
    if type(value) is str:
        return value
    raise ValueError("is not a string")


def _read_number(value: Any) -> Decimal:
    if type(value) is Decimal:
        return value
    if type(value) is int:
        return Decimal(value)
    raise ValueError("is not a number")


def _read_whole(value: Any) -> int:
    if type(value) is int:
        return value
    raise ValueError("is not a whole number")


def _read_flag(value: Any) -> bool:
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise ValueError("is not 0 or 1, true or false")


def read_time(value: Any) -> datetime:
    """An aware time, in UTC."""
    try:
        return msgspec.convert(value, responses.Timestamp).astimezone(UTC)
    except msgspec.ValidationError:  # no ValueError in older versions
        raise ValueError("is not an ISO 8601 time with an offset") from None
    except OverflowError:
        raise ValueError("is a time beyond the calendar in UTC") from None


def read_object(value: Any) -> dict[str, Any]:
    """An object of unknown shape."""
    if type(value) is dict:
        return value
    raise ValueError("is not an object")


LEAVES: dict[Any, Reader] = {
    str: _read_text,
    int: _read_whole,
    bool: _read_flag,
    Decimal: _read_number,
    datetime: read_time,
}
