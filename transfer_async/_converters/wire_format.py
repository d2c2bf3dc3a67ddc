"""What every reader of the service's JSON shares: its names, its leaves, and exact decoding."""

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
    if may_be_deep(data) and _is_deep(tree):
        raise Unreadable("$", "is nested too deeply")
    return tree


def may_be_deep(data: bytes) -> bool:
    """Whether more brackets open in ``data`` than there may be levels."""
    # `count` looks at each byte by itself, which takes ten times as long.
    return len(data) - len(data.replace(b"{", b"").replace(b"[", b"")) > LEVELS


class Number(str):
    """A number as it was written."""

    __slots__ = ()


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
    """JSON with nothing decided yet: numbers as `Number`, each object as what ``each`` makes of its fields.

    A text that is none (half of a character, bytes that are no UTF-8) is one that cannot be sent.
    It is far slower than `decode`; in return, what is wrong in one place hides no other.

    Raises:
        Unreadable: it is no JSON, or nested too deeply.
    """
    decoder = json.JSONDecoder(
        object_pairs_hook=each, parse_int=Number, parse_float=Number, parse_constant=_no_constant
    )
    try:
        return decoder.decode(raw.decode(errors="surrogateescape"))
    except (ValueError, RecursionError):
        raise Unreadable("$", "is not JSON that every reader takes") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def as_decoded(written: Any, *, levels: int = LEVELS) -> Any:
    """What `decode` makes of a part that `as_written` has read.

    Raises:
        ValueError: `decode` would take none of it.
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
        return {as_decoded(name): as_decoded(one, levels=levels - 1) for name, one in written}
    return [as_decoded(item, levels=levels - 1) for item in written]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is a whole number of too many digits") from None


def has_duplicate_fields(raw: bytes, decoded: Any = None) -> bool:
    """Whether an object anywhere in ``raw``, which `decode` reads, has two fields of one name.

    Args:
        raw: the JSON.
        decoded: what `decode` has made of it, where that is at hand: most often it is enough.

    Raises:
        Unreadable: see `as_written`.
    """
    # Each name as it was written has a colon behind it, and of two twins one name is left.
    if raw.count(b":") == _names(decoded):
        return False
    found: list[bool] = []
    as_written(raw, each=lambda fields: found.append(Fields(fields).twin() is not None))
    return any(found)


def _names(tree: Any) -> int:
    """How many fields all objects in ``tree`` have."""
    count = 0
    inside: Iterable[Any] = ()
    if type(tree) is dict:
        count, inside = len(tree), tree.values()
    elif type(tree) is list:
        inside = tree
    for item in inside:
        if type(item) is dict or type(item) is list:
            count += _names(item)
    return count


def _is_deep(tree: Any) -> bool:
    level = [tree]
    for _ in range(LEVELS):
        insides = (item.values() if type(item) is dict else item for item in level)
        level = [item for inside in insides for item in inside if type(item) in (dict, list)]
        if not level:
            return False
    return True


_decoder = msgspec.json.Decoder(float_hook=EVERY_DIGIT.create_decimal)


# --- what is on the wire, as each model's fields say ----------------------------------------------


class WireField(FrozenStruct, frozen=True):
    """A field of a model, as it is on the wire.

    Args:
        name: ours.
        wire_name: the service's.
        kind: its type, without the ``None``.
        part: the model that it holds, alone or in a tuple.
        is_flag: whether the service writes it as 0 or 1.
        is_strict: whether there is no model without it.
    """

    name: str
    wire_name: str
    kind: Any
    part: Any
    is_flag: bool
    is_strict: bool


@functools.cache
def fields_of(cls: type) -> tuple[WireField, ...]:
    """The fields of a model that are on the wire."""
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
        if field.name != "unread"  # ours, never the service's
    )


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
    return kind


def _part(kind: Any) -> type | None:
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
    return inner if isinstance(inner, type) and attrs.has(inner) else None


# --- leaves ---------------------------------------------------------------------------------------

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
