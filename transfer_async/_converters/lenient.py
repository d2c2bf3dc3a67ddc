"""All that money does not hang on, read without ever raising: what cannot be read is ``None``, and told."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from transfer_async._converters import at_once
from transfer_async._converters.wire_format import (
    LEAVES,
    Fields,
    Reader,
    Unreadable,
    WireField,
    as_decoded,
    as_written,
    fields_of,
    read_object,
)

T = TypeVar("T")

MOST_VALUES = 20_000
"""Values, about, of a model by itself beyond which it is not read; a user with fifty currencies has hundreds.

A megabyte has room for half a million, which would hold up the event loop for seconds.
"""


def loose_fields(cls: type) -> list[WireField]:
    """The fields of ``cls`` that may be None."""
    return [one for one in fields_of(cls) if not one.is_strict]


def read_pieces(cls: type, written: dict[str, Any], path: str, unread: list[str]) -> dict[str, Any]:
    """The loose fields of ``cls`` from an object as it was written; a broken piece takes no other along."""
    return {
        one.name: _read_piece(one.kind, written.get(one.wire_name), f"{path}.{one.wire_name}", unread)
        for one in loose_fields(cls)
    }


def _read_piece(kind: Any, written: Any, path: str, unread: list[str]) -> Any:
    try:
        return _read_loosely(kind, as_decoded(written), path, unread)
    except (ValueError, RecursionError):  # users within users, deeper than anybody means
        unread.append(path)
        return None


def _read_loosely(kind: Any, value: Any, path: str, unread: list[str]) -> Any:
    """``value`` as ``kind``; None, and its path in ``unread``, where it is something else."""
    if value is None or kind is Any:
        return value
    if typing.get_origin(kind) is tuple:
        return _read_list(typing.get_args(kind)[0], value, path, unread)
    if attrs.has(kind):
        return _read_model(kind, value, path, unread)
    try:
        read: Reader = LEAVES.get(kind, read_object)
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
        one.name: _read_loosely(one.kind, tree.get(one.wire_name), f"{path}.{one.wire_name}", unread)
        for one in fields_of(cls)
    }
    return cls(**values)


def read_part(cls: Callable[..., T], raw: bytes) -> T:
    """A model that has no strict field, by itself."""
    if raw.count(b",") + raw.count(b"{") > MOST_VALUES:  # commas in a text count too: there are not so many
        raise Unreadable("$", f"has more than {MOST_VALUES:,} values")
    whole = as_written(raw)
    if not isinstance(whole, Fields):
        raise Unreadable("$", "is not an object")
    names = (one.wire_name for one in fields_of(cls))
    if twin := whole.twin(*names):  # a beneficiary's name or username, say
        raise Unreadable(f"$.{twin}", "comes twice")
    model: T = at_once.read(cls, raw) or _read_whole(cls, whole)
    return model


def _read_whole(cls: Any, written: Fields) -> Any:
    unread: list[str] = []
    try:
        model = _read_model(cls, as_decoded(written), "$", unread)
    except RecursionError:
        raise Unreadable("$", "is nested too deeply") from None
    except ValueError as error:
        raise Unreadable("$", f"holds what {error}") from None
    if unread and hasattr(model, "unread"):
        object.__setattr__(model, "unread", tuple(unread))
    return model
