"""Decode JSON exactly, map fields to their JSON names, and read single values."""

from __future__ import annotations

import decimal
import functools
import json
import types
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import msgspec

from transfer_async._models import responses
from transfer_async._models.requests import is_sendable
from transfer_async._support.util import FrozenStruct

Reader = Callable[[Any], Any]


class Unreadable(ValueError):
    """Raised if the JSON at ``path`` is not as specified. ``why`` gives the reason, without the value."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


MAX_DEPTH = 64
"""The maximum nesting depth of JSON. Deeper values cannot be written, compared or pickled."""

DIGITS = 100
"""The largest exponent of ten, positive or negative, of a number that is written without an exponent."""

EVERY_DIGIT = decimal.Context(
    prec=decimal.MAX_PREC,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.InvalidOperation, decimal.Overflow, decimal.Inexact, decimal.Clamped],
)


def exactly(text: str) -> Decimal:
    """Return the number in ``text`` exactly, without rounding.

    Raises:
        ValueError: a `Decimal` cannot represent the number without rounding.
    """
    try:
        return EVERY_DIGIT.create_decimal(text)
    except decimal.DecimalException:
        raise ValueError("is a number that is too large or too small") from None


def plain(value: Decimal) -> str:
    """Return ``value`` as text.

    An exponent is used only if the text would otherwise contain too many zeros.
    """
    return format(value, "f") if abs(value.adjusted()) <= DIGITS else str(value)


def decode(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON of any shape, with integers as ``int`` and all other numbers as exact `Decimal`.

    Raises:
        Unreadable: the bytes are not JSON, are nested too deeply, or contain a number that is too large.
    """
    data = bytes(raw)
    try:
        tree = _decoder.decode(data)
    except msgspec.ValidationError:  # In JSON of any shape, this is the only cause of the error.
        raise Unreadable("$", "contains a whole number with too many digits") from None
    except (msgspec.MsgspecError, ValueError, RecursionError, decimal.DecimalException) as error:
        raise Unreadable("$", f"is not readable JSON ({type(error).__name__})") from None
    brackets = len(data) - len(data.replace(b"{", b"").replace(b"[", b""))  # `count` takes ten times as long.
    if brackets > MAX_DEPTH and _is_deep(tree):
        raise Unreadable("$", "is nested too deeply")
    return tree


def is_json(raw: bytes) -> bool:
    """Return whether `decode` can decode ``raw``."""
    try:
        decode(raw)
    except Unreadable:
        return False
    return True


class Number(str):
    """The text of a JSON number."""

    __slots__ = ()


class Fields(list[tuple[str, Any]]):
    """The fields of a JSON object in order, including duplicates.

    A duplicate required field is an error, because JSON readers disagree about which value to use.
    """

    def duplicate(self, *among: str) -> str | None:
        """Return the first duplicate name, or None. If ``among`` is given, consider only those names."""
        seen: set[str] = set()
        for name, _ in self:
            if name in seen and (not among or name in among):
                return name
            seen.add(name)
        return None


def as_written(raw: bytes, *, each: Callable[[list[tuple[str, Any]]], Any] = Fields) -> Any:
    """Parse JSON without converting its values. Use `as_decoded` to convert single values.

    `as_written` is much slower than `decode`, but an invalid value does not prevent the other values from
    being read. Invalid UTF-8 becomes a string for which `is_sendable` is false.

    Args:
        raw: the JSON.
        each: a function that takes the fields of each object; its return value replaces the object.

    Returns:
        The parsed JSON, with numbers as `Number`.

    Raises:
        Unreadable: ``raw`` is not JSON, or is nested too deeply.
    """
    decoder = json.JSONDecoder(
        object_pairs_hook=each, parse_int=Number, parse_float=Number, parse_constant=_no_constant
    )
    try:
        return decoder.decode(raw.decode(errors="surrogateescape"))
    except (ValueError, RecursionError):
        raise Unreadable("$", "is not JSON") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def as_decoded(written: Any, *, levels: int = MAX_DEPTH) -> Any:
    """Convert a value from `as_written` as `decode` would.

    Raises:
        ValueError: `decode` would reject the value.
    """
    if type(written) is Number:
        return _whole(written) if written.lstrip("-").isdigit() else exactly(written)
    if type(written) is str and not is_sendable(written):
        raise ValueError("is not a string")
    if not isinstance(written, list):
        return written
    if not levels:
        raise ValueError("is nested too deeply")
    if isinstance(written, Fields):
        return {as_decoded(name): as_decoded(value, levels=levels - 1) for name, value in written}
    return [as_decoded(item, levels=levels - 1) for item in written]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is a whole number with too many digits") from None


def has_duplicate_fields(raw: bytes, decoded: Any = None) -> bool:
    """Return whether any object in ``raw`` contains two fields with the same name.

    Args:
        raw: JSON that `decode` accepts.
        decoded: the result of `decode` for ``raw``, if available; it usually saves a second parse.

    Raises:
        Unreadable: see `as_written`.
    """
    # A colon follows each name in the JSON, and the decoded result contains only one of two equal names.
    # Colons in strings merely cause an unnecessary parse.
    if raw.count(b":") == _count_fields(decoded):
        return False
    found: list[bool] = []
    as_written(raw, each=lambda fields: found.append(Fields(fields).duplicate() is not None))
    return any(found)


def _count_fields(tree: Any) -> int:
    """Return the number of fields in all objects of ``tree``."""
    count = 0
    inside: Iterable[Any] = ()
    if type(tree) is dict:
        count, inside = len(tree), tree.values()
    elif type(tree) is list:
        inside = tree
    for item in inside:
        if type(item) is dict or type(item) is list:
            count += _count_fields(item)
    return count


def _is_deep(tree: Any) -> bool:
    level = [tree]
    for _ in range(MAX_DEPTH):
        insides = (item.values() if type(item) is dict else item for item in level)
        level = [item for inside in insides for item in inside if type(item) in (dict, list)]
        if not level:
            return False
    return True


_decoder = msgspec.json.Decoder(float_hook=EVERY_DIGIT.create_decimal)


# --- fields of a model -------------------------------------------------------------------------------


class WireField(FrozenStruct, frozen=True):
    """The JSON representation of a model's field.

    Args:
        name: the field's name in the model.
        wire_name: the field's name in the JSON.
        kind: the field's type, without ``None``.
        part: the type of model that the field contains, directly or in a tuple; None if it contains no model.
        is_flag: whether the service writes the field as 0 or 1.
        is_strict: whether the field is required.
    """

    name: str
    wire_name: str
    kind: Any
    part: Any
    is_flag: bool
    is_strict: bool


@functools.cache
def fields_of(cls: type) -> tuple[WireField, ...]:
    """Return the fields of a model that occur in its JSON."""
    hints = typing.get_type_hints(cls)
    return tuple(
        WireField(
            name=field.name,
            wire_name=field.metadata.get("name", field.name),
            kind=(kind := _without_none(hints[field.name])),
            part=_part(kind),
            is_flag="is_flag" in field.metadata,
            is_strict=field.default is attrs.NOTHING,
        )
        for field in attrs.fields(cls)
        if field.name != "unread"  # The service never sends this field.
    )


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
    return kind


def _part(kind: Any) -> type | None:
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
    return inner if isinstance(inner, type) and attrs.has(inner) else None


# --- single values -----------------------------------------------------------------------------------
# There is one reader for each type. It raises `ValueError` for a value of any other type.


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
    raise ValueError("is not 0, 1, true or false")


def read_time(value: Any) -> datetime:
    """Read a time that includes a UTC offset, and return it in UTC."""
    try:
        return msgspec.convert(value, responses.Timestamp).astimezone(UTC)
    except msgspec.ValidationError:  # not a ValueError in older versions of msgspec
        raise ValueError("is not an ISO 8601 time with an offset") from None
    except OverflowError:
        raise ValueError("is a time outside the years 1 to 9999 (UTC)") from None


def read_object(value: Any) -> dict[str, Any]:
    """Read an object of unknown shape."""
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
