"""An answer in which all is as the specification says, read by msgspec in one go.

Of any other nothing is read here: `order` and `lenient` go through it field by field, and tell what is wrong.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import re
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any, Literal

import msgspec
from msgspec.structs import astuple

from transfer_async._converters.wire_format import (
    EVERY_DIGIT,
    WireField,
    decode,
    fields_of,
    may_be_deep,
)
from transfer_async._models import responses
from transfer_async._support.state import Fixed

_UNUSUAL = (
    *(msgspec.MsgspecError, decimal.DecimalException, ValueError, LookupError, TypeError),
    *(OverflowError, RecursionError),
)
"""What is raised on an answer that is not as it should be."""


# --- what money hangs on --------------------------------------------------------------------------

STRICT, STRICT_OF_BANK = (
    tuple(one for one in fields_of(cls) if one.is_strict and one.part is None)
    for cls in (responses.Order, responses.ExternalOrder)
)
"""The fields without which there is no order, and no external order."""

PEOPLE = tuple(one for one in fields_of(responses.Order) if one.part is responses.User)
"""Whose order it is."""

Head = tuple[Iterable[Any], tuple[Any, ...], Iterable[str | None]]
"""The values of `STRICT`, of `STRICT_OF_BANK`, and the usernames of `PEOPLE`."""

_numbers = itertools.count(1)  # never 0, which would be a no


class _Asked(type):
    """What msgspec asks of a type that it does not know, of each value: is it one? It is, and is counted."""

    # Said in Python it would cost as much as the reading.
    __instancecheck__ = staticmethod(functools.partial(next, _numbers))


class _Leaf(metaclass=_Asked):
    """A value of any type. Of two with one name msgspec keeps the last, but it has asked for both."""


_WAYS: dict[Any, tuple[type, dict[type, Callable[[Any], Any]]]] = {
    str: (str, {}),
    Decimal: (Decimal, {int: Decimal}),
    bool: (bool, {int: {0: False, 1: True}.__getitem__}),
}
"""By kind: the type that a leaf usually has already, and how it is made of others."""

_KINDS = [*(one.kind for one in (*STRICT, *STRICT_OF_BANK)), *(str for _ in PEOPLE)]
_LEAVES = [_WAYS[kind] for kind in _KINDS]
"""All of an answer that says each of them, and each object they are in, but once."""
_of_order = itemgetter(slice(len(STRICT)))
_of_bank = itemgetter(slice(len(STRICT), -len(PEOPLE)))
_usernames = itemgetter(slice(-len(PEOPLE), None))
_amounts = itemgetter(*(at for at, kind in enumerate(_KINDS) if kind is Decimal))
_MINUS_ZERO = re.compile(rb"-0\s*[,}]")


def _leaves(cls: type, fields: Iterable[WireField], **parts: Any) -> Any:
    """A struct of the fields of ``cls`` that are strict, each of which is there."""
    kinds = {one.name: _Leaf for one in fields} | parts
    rename = {one.name: one.wire_name for one in fields_of(cls)}
    return msgspec.defstruct(f"Leaves{cls.__name__}", list(kinds.items()), rename=rename, gc=False)


_Named = msgspec.defstruct("Named", [("username", _Leaf)], gc=False)
_read_leaves = msgspec.json.Decoder(
    _leaves(
        responses.Order,
        STRICT,
        external_order=_leaves(responses.ExternalOrder, STRICT_OF_BANK),
        **{person.name: _Named for person in PEOPLE},
    ),
    float_hook=EVERY_DIGIT.create_decimal,
).decode


def read_head(raw: bytes) -> Head | None:
    """What money hangs on, a third faster than by piece; None unless all is as it should be."""
    before = next(_numbers)
    try:
        *head, bank, user, beneficiary = astuple(_read_leaves(raw))
        after = next(_numbers)
        leaves = (*head, *astuple(bank), user.username, beneficiary.username)
        values: list[Any] = [
            leaf if type(leaf) is usual else ways[type(leaf)](leaf)
            for leaf, (usual, ways) in zip(leaves, _LEAVES, strict=True)
        ]
    except _UNUSUAL:
        return None
    if after - before != len(_LEAVES) + 1:  # a name comes twice, or another thread reads as well
        return None
    if not all(_amounts(values)) and _MINUS_ZERO.search(raw):  # an int has no -0
        return None
    return _of_order(values), tuple(_of_bank(values)), _usernames(values)


# --- the rest -------------------------------------------------------------------------------------


def read_rest(raw: bytes) -> list[Any] | None:
    """An order's values but for those of `STRICT`; None unless each has the type that it should have."""
    try:
        rest = list(astuple(_shape_in(raw, responses.Order)))
        for at, part in _plan(responses.Order).parts:
            rest[at] = msgspec.convert(rest[at], part | None, from_attributes=True)
    except _UNUSUAL:
        return None
    return rest


def read(cls: Any, raw: bytes) -> Any:
    """All of a model that has nothing strict; None unless each value has the type that it should have."""
    try:
        return msgspec.convert(_shape_in(raw, cls), cls, from_attributes=True)
    except _UNUSUAL:
        return None


def _shape_in(raw: bytes, cls: type) -> Any:
    if may_be_deep(raw):
        decode(raw)  # takes nothing that is too deep to be written again
    shape = _decoder(cls).decode(raw)
    _tidy(cls, shape)
    return shape


def fields_of_rest(cls: type) -> list[WireField]:
    """The fields of ``cls`` that are on the wire, but for an order's strict ones: those are read by then."""
    return [one for one in fields_of(cls) if cls is not responses.Order or one not in STRICT]


def _shape(cls: type) -> Any:
    """A struct of a model's JSON: by the wire's names, with 0 or 1 for a flag, and anything for a number."""
    fields = fields_of_rest(cls)
    return msgspec.defstruct(
        _shape_name(cls),
        [(one.name, _kind_in_shape(one) | None, None) for one in fields],
        rename={one.name: one.wire_name for one in fields},
        module=__name__,  # where the shapes of its parts are looked up
        gc=False,
    )


def _shape_name(cls: type) -> str:
    return f"_{cls.__name__}Shape"


def _kind_in_shape(one: WireField) -> Any:
    if one.part is not None:
        part: Any = typing.ForwardRef(_shape_name(one.part))
        return part if one.kind is one.part else tuple[part, ...]
    return _KIND_IN_SHAPE.get(one.kind, one.kind)


_KIND_IN_SHAPE: dict[Any, Any] = {
    bool: bool | Literal[0, 1],
    datetime: responses.Timestamp,
    Decimal: typing.Union[Any, None],  # noqa: UP007 - msgspec would take a text for a `Decimal`
}


class _Plan(Fixed, frozen=True):
    """What msgspec would not make of a shape as we do, each with its place among the fields."""

    flags: tuple[tuple[int, str], ...]
    times: tuple[int, ...]
    numbers: tuple[int, ...]
    parts: tuple[tuple[int, type], ...]
    lists: tuple[tuple[int, type], ...]


@functools.cache
def _plan(cls: type) -> _Plan:
    fields = list(enumerate(fields_of_rest(cls)))
    return _Plan(
        flags=tuple((at, one.name) for at, one in fields if one.kind is bool),
        times=tuple(at for at, one in fields if one.kind is datetime),
        numbers=tuple(at for at, one in fields if one.kind is Decimal),
        parts=tuple((at, one.part) for at, one in fields if one.part is one.kind),
        lists=tuple((at, one.part) for at, one in fields if one.part not in (one.kind, None)),
    )


def _tidy(cls: type, shape: Any) -> None:
    """Make flags ``bool``, in all parts, too.

    Raises:
        ValueError: see `_check`.
    """
    plan, values = _plan(cls), astuple(shape)
    for at, name in plan.flags:
        if type(values[at]) is int:
            setattr(shape, name, values[at] == 1)
    _check(plan, values)
    for at, part in plan.parts:
        if values[at] is not None:
            _tidy(part, values[at])
    for at, part in plan.lists:
        for one in values[at] or ():
            _tidy(part, one)


def _check(plan: _Plan, values: tuple[Any, ...]) -> None:
    for at in plan.times:
        if (time := values[at]) is not None and time.tzinfo is not UTC:
            raise ValueError("msgspec would keep the offset")
    for at in plan.numbers:
        if type(values[at]) is str:
            raise ValueError("msgspec would read it as a number")


@functools.cache
def _decoder(cls: type) -> msgspec.json.Decoder[Any]:
    # Made when the first is looked at late, for most callers look at none; and all, for one holds another.
    for each in responses.MODELS:
        if _shape_name(each) not in globals():
            globals()[_shape_name(each)] = _shape(each)
    return msgspec.json.Decoder(globals()[_shape_name(cls)], float_hook=EVERY_DIGIT.create_decimal)
