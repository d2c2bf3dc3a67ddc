"""All that money does not hang on, read without ever raising: what cannot be read is ``None``, and told."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import attrs
import msgspec

from transfer_async._converters.wire_format import (
    FLAGS,
    LEAVES,
    WIRE_NAMES,
    Reader,
    Unreadable,
    as_written,
    decode,
    fields_of,
    read_object,
    read_time,
    wire_name,
)

T = TypeVar("T")

MOST_VALUES = 20_000
"""Values, about, of a model by itself beyond which it is not read; a user with fifty currencies has hundreds.

A megabyte has room for half a million, which would hold up the event loop for seconds.
"""

_WRONG = object()  # stands in a tree for a value that no field takes


@attrs.frozen
class Plan:
    """How the loose fields of one model are read: what to tidy for msgspec, and each field's type."""

    renames: tuple[tuple[str, str], ...]
    flags: tuple[str, ...]
    numbers: tuple[str, ...]
    times: tuple[str, ...]
    parts: tuple[tuple[str, type], ...]
    kinds: dict[str, Any]


@functools.cache
def plan(cls: type) -> Plan:
    """The plan of ``cls``, made once."""
    kinds = {name: kind for name, kind in kinds_of(cls).items() if name not in _required(cls)}
    parts = {name: _part(kind) for name, kind in kinds_of(cls).items()}
    return Plan(
        renames=tuple((WIRE_NAMES[name], name) for name in kinds if name in WIRE_NAMES),
        flags=tuple(name for name in fields_of(cls) if name in FLAGS),
        numbers=tuple(name for name, kind in kinds.items() if kind is Decimal),
        times=tuple(name for name, kind in kinds.items() if kind is datetime),
        parts=tuple((name, part) for name, part in parts.items() if part is not None),
        kinds=kinds,
    )


def _required(cls: type) -> frozenset[str]:
    """What is strict: the fields that have no default."""
    return frozenset(attribute.name for attribute in attrs.fields(cls) if attribute.default is attrs.NOTHING)


def kinds_of(cls: type) -> dict[str, Any]:
    """Each field's type, without the ``None``."""
    hints = typing.get_type_hints(cls)
    return {name: _without_none(hints[name]) for name in fields_of(cls)}


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (one for one in typing.get_args(kind) if one is not type(None))
    return kind


def _part(kind: Any) -> type | None:
    """The model that a field of this type holds, alone or in a tuple."""
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
    return inner if isinstance(inner, type) and attrs.has(inner) else None


def read_pieces(
    cls: type, pieces: Mapping[str, bytes | msgspec.Raw], path: str, unread: list[str]
) -> dict[str, Any]:
    """The loose fields of ``cls``, each piece decoded for itself: one that fails takes no other along."""
    return {
        name: _read_piece(kind, pieces[name], f"{path}.{wire_name(name)}", unread) if name in pieces else None
        for name, kind in plan(cls).kinds.items()
    }


def _read_piece(kind: Any, raw: bytes | msgspec.Raw, path: str, unread: list[str]) -> Any:
    try:
        value = decode(raw)
        if attrs.has(kind) and type(value) is dict:
            return _read_part(kind, value, path, unread)
        return _read_loosely(kind, value, path, unread)
    except (Unreadable, RecursionError):  # users within users, deeper than anybody means
        unread.append(path)
        return None


def _read_part(cls: Any, tree: Any, path: str, unread: list[str]) -> Any:
    """All of ``tree`` at once by msgspec; field by field only where some type in it is another."""
    tidy(cls, tree)
    try:
        return msgspec.convert(tree, cls)
    except msgspec.ValidationError:
        return _read_model(cls, tree, path, unread)


def tidy(cls: type, tree: Any) -> None:
    """Make ``tree`` fit for msgspec, deeply: our names, flags as ``bool``, no text for a number, UTC."""
    if type(tree) is not dict:
        return
    how = plan(cls)
    tree.pop("unread", None)  # ours, never the service's
    for wire, ours in how.renames:
        tree[ours] = tree.pop(wire, None)
    _tidy_leaves(how, tree)
    for name, part in how.parts:
        inner = tree.get(name)
        for one in inner if type(inner) is list else (inner,):
            tidy(part, one)


def _tidy_leaves(how: Plan, tree: dict[str, Any]) -> None:
    for name in how.flags:
        if type(value := tree.get(name)) is int and value in (0, 1):
            tree[name] = bool(value)
    for name in how.numbers:
        if type(tree.get(name)) is str:  # msgspec would read it as a number
            tree[name] = _WRONG
    for name in how.times:
        if type(value := tree.get(name)) is str and not value.endswith("Z"):  # msgspec would keep the offset
            tree[name] = _in_utc(value)


def _in_utc(value: str) -> Any:
    try:
        return read_time(value)
    except ValueError:
        return _WRONG


def _read_loosely(kind: Any, value: Any, path: str, unread: list[str]) -> Any:
    """``value`` as ``kind``; None, and its path in ``unread``, where it is something else."""
    if value is None or kind is Any:
        return value
    if typing.get_origin(kind) is tuple:
        return _read_list(typing.get_args(kind)[0], value, path, unread)
    if attrs.has(kind):
        return _read_model(kind, value, path, unread)
    read: Reader = LEAVES.get(kind, read_object)
    try:
        return read(value)
    except ValueError:
        unread.append(path)
        return None


def _read_list(kind: Any, value: Any, path: str, unread: list[str]) -> tuple[Any, ...] | None:
    if type(value) is not list:
        unread.append(path)
        return None
    each = (_read_loosely(kind, one, f"{path}[{at}]", unread) for at, one in enumerate(value))
    return tuple(each) if kind is Any else tuple(one for one in each if one is not None)


def _read_model(cls: Any, tree: Any, path: str, unread: list[str]) -> Any:
    if type(tree) is not dict:
        unread.append(path)
        return None
    values = {
        name: _read_loosely(kind, tree.get(name), f"{path}.{wire_name(name)}", unread)
        for name, kind in plan(cls).kinds.items()
    }
    return cls(**values)


def read_part(cls: type[T], raw: bytes) -> T:
    """A model that has no strict field, by itself."""
    if raw.count(b",") + raw.count(b"{") > MOST_VALUES:  # commas in a text count too: there are not so many
        raise Unreadable("$", f"has more than {MOST_VALUES:,} values")
    tree = decode(raw)
    if type(tree) is not dict:
        raise Unreadable("$", "is not an object")
    if twin := as_written(raw).twin(*map(wire_name, fields_of(cls))):  # a beneficiary's name or username, say
        raise Unreadable(f"$.{twin}", "comes twice")
    unread: list[str] = []
    try:
        model: T = _read_part(cls, tree, "$", unread)
    except RecursionError:
        raise Unreadable("$", "is nested too deeply") from None
    if unread and hasattr(model, "unread"):
        object.__setattr__(model, "unread", tuple(unread))
    return model
