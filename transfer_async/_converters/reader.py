"""An order: what money hangs on is read at once, and strictly; the loose rest when it is first looked at.

Strict are an order's id, amounts, rate, fee, balance, currencies and flags: a missing or wrong one is an
error with its JSON path. An answer that is as it should be is read `at_once`; any other field by field.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import re
import typing
from collections.abc import Callable, Iterable
from decimal import Decimal
from operator import itemgetter
from typing import Any, TypeVar

import attrs
import msgspec
from msgspec.structs import astuple

from transfer_async._converters.wire_format import (
    EVERY_DIGIT,
    LEAVES,
    Fields,
    Number,
    Reader,
    Unreadable,
    WireField,
    as_decoded,
    as_written,
    exactly,
    fields_of,
    read_object,
)
from transfer_async._models import responses
from transfer_async._models.requests import is_sendable

# --- lenient -----------------------------------------------------------------------------------------
# All that money does not hang on, read without ever raising: what cannot be read is ``None``, and told.


T = TypeVar("T")

MOST_VALUES = 20_000
"""Values, about, of a model by itself beyond which it is not read; a user with fifty currencies has hundreds.

A megabyte has room for half a million, which would hold up the event loop for seconds.
"""


def loose_fields(cls: type) -> list[WireField]:
    """The fields of ``cls`` that may be None."""
    return [item for item in fields_of(cls) if not item.is_strict]


def read_pieces(cls: type, written: dict[str, Any], path: str, unread: list[str]) -> dict[str, Any]:
    """The loose fields of ``cls`` from an object as it was written; a broken piece takes no other along."""
    return {
        field.name: _read_piece(field.kind, written.get(field.wire_name), f"{path}.{field.wire_name}", unread)
        for field in loose_fields(cls)
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
    return tuple(each) if kind is Any else tuple(item for item in each if item is not None)


def _read_model(cls: Any, tree: Any, path: str, unread: list[str]) -> Any:
    if type(tree) is not dict:
        unread.append(path)
        return None
    values = {
        item.name: _read_loosely(item.kind, tree.get(item.wire_name), f"{path}.{item.wire_name}", unread)
        for item in fields_of(cls)
    }
    return cls(**values)


def read_part(cls: Callable[..., T], raw: bytes) -> T:
    """A model that has no strict field, by itself."""
    if raw.count(b",") + raw.count(b"{") > MOST_VALUES:  # commas in a text count too: there are not so many
        raise Unreadable("$", f"has more than {MOST_VALUES:,} values")
    whole = as_written(raw)
    if not isinstance(whole, Fields):
        raise Unreadable("$", "is not an object")
    names = (item.wire_name for item in fields_of(cls))
    if twin := whole.twin(*names):  # a beneficiary's name or username, say
        raise Unreadable(f"$.{twin}", "comes twice")
    model: T = _read_whole(cls, whole)
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


# --- at once -----------------------------------------------------------------------------------------
# The strict part of an order, read by msgspec in one go where all of it is as the specification says.
#
# Any other response is read field by field in `order`, which also says what is wrong with it.


_UNUSUAL = (
    *(msgspec.MsgspecError, decimal.DecimalException, ValueError, LookupError, TypeError),
    *(OverflowError, RecursionError),
)
"""What is raised on an answer that is not as it should be."""


# --- what money hangs on --------------------------------------------------------------------------

STRICT, STRICT_OF_BANK = (
    tuple(item for item in fields_of(cls) if item.is_strict and item.part is None)
    for cls in (responses.Order, responses.ExternalOrder)
)
"""The fields without which there is no order, and no external order."""

PEOPLE = tuple(item for item in fields_of(responses.Order) if item.part is responses.User)
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

_KINDS = [*(item.kind for item in (*STRICT, *STRICT_OF_BANK)), *(str for _ in PEOPLE)]
_LEAVES = [_WAYS[kind] for kind in _KINDS]
"""All of an answer that says each of them, and each object they are in, but once."""
_of_order = itemgetter(slice(len(STRICT)))
_of_bank = itemgetter(slice(len(STRICT), -len(PEOPLE)))
_usernames = itemgetter(slice(-len(PEOPLE), None))
_amounts = itemgetter(*(at for at, kind in enumerate(_KINDS) if kind is Decimal))
_MINUS_ZERO = re.compile(rb"-0\s*[,}]")


def _leaves(cls: type, fields: Iterable[WireField], **parts: Any) -> Any:
    """A struct of the fields of ``cls`` that are strict, each of which is there."""
    kinds = {field.name: _Leaf for field in fields} | parts
    rename = {item.name: item.wire_name for item in fields_of(cls)}
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


def fields_of_rest(cls: type) -> list[WireField]:
    """The fields of ``cls`` that are on the wire, but for an order's strict ones: those are read by then."""
    return [item for item in fields_of(cls) if cls is not responses.Order or item not in STRICT]


_ORDER_ID = re.compile(r"tx-[a-z0-9]{1,100}")
_ANY_ORDER_ID = re.compile(rb'"id"\s*:\s*"(tx-[a-z0-9]{1,100})"')


def find_order_id(raw: bytes) -> str | None:
    """The order's id in bytes that are not readably an order, if just one can be found.

    An id at the top is the order's own; two are one too many to choose from, there or elsewhere.
    """
    try:
        whole = as_written(raw)
    except ValueError:
        whole = None
    top = whole if isinstance(whole, Fields) else ()
    found = {value for name, value in top if name == "id" and _is_order_id(value)}
    if not found:
        found = {item.decode() for item in _ANY_ORDER_ID.findall(raw)}
    return found.pop() if len(found) == 1 else None


def _is_order_id(value: object) -> bool:
    return type(value) is str and _ORDER_ID.fullmatch(value) is not None


class Answer(msgspec.Struct, frozen=True):
    """A reply that is an order, and whose order it says it is: the usernames, where they are shown."""

    order: responses.Order
    poster_username: str | None
    beneficiary_username: str | None


def read_answer(raw: bytes) -> Answer:
    """Read the whole strict part of an order now; the loose rest waits until it is looked at.

    Raises:
        Unreadable: names the JSON path.
    """
    strict, of_bank, usernames = read_head(raw) or _read_head_by_piece(raw)
    order = object.__new__(responses.Order)
    for put, value in zip(_PUT_STRICT, strict, strict=True):
        put(order, value)
    if not _is_order_id(order.id):
        raise Unreadable("$.id", "is not an order id (tx- and lowercase letters or digits)")
    _PUT_LATE(order, functools.partial(_read_rest, raw=raw, of_bank=of_bank))
    return Answer(order, *usernames)


def read_order(raw: bytes) -> responses.Order:
    """An order whose loose fields are read when one of them is first looked at."""
    return read_answer(raw).order


def read_external_order(raw: bytes) -> responses.ExternalOrder:
    """An `ExternalOrder` by itself, all of it at once."""
    written = _once_each(as_written(raw), "$", STRICT_OF_BANK)
    return _external_order(written, _read_strictly(STRICT_OF_BANK, written, "$"), "$", [])


# --- what money hangs on, field by field ----------------------------------------------------------


def _read_head_by_piece(raw: bytes) -> Head:
    written = _once_each(as_written(raw), "$", (*STRICT, _BANK, *PEOPLE))
    usernames = [_username(written.get(person.wire_name), f"$.{person.wire_name}") for person in PEOPLE]
    strict = _read_strictly(STRICT, written, "$")
    bank = _once_each(_present(written, _BANK, "$"), f"$.{_BANK.wire_name}", STRICT_OF_BANK)
    return strict, _read_strictly(STRICT_OF_BANK, bank, f"$.{_BANK.wire_name}"), usernames


def _once_each(written: Any, path: str, fields: Iterable[WireField]) -> dict[str, Any]:
    """An object as it was written, unless it says one of ``fields`` twice, alike or not."""
    if not isinstance(written, Fields):
        raise Unreadable(path, "is not a JSON object that can be read")
    if twin := written.twin(*(field.wire_name for field in fields)):
        raise Unreadable(f"{path}.{twin}", "comes twice")
    return dict(written)


def _username(written: Any, path: str) -> str | None:
    if not isinstance(written, Fields):
        return None
    username = _once_each(written, path, _USERNAME).get("username")
    return username if type(username) is str and is_sendable(username) else None


def _read_strictly(fields: Iterable[WireField], written: dict[str, Any], path: str) -> tuple[Any, ...]:
    return tuple(_read_strict(field, written, path) for field in fields)


def _read_strict(one: WireField, written: dict[str, Any], path: str) -> Any:
    value = _present(written, one, path)
    try:
        if one.kind is Decimal and type(value) is Number:
            return exactly(value)
        return LEAVES[one.kind](as_decoded(value))
    except ValueError as error:
        raise Unreadable(f"{path}.{one.wire_name}", str(error)) from None


def _present(written: dict[str, Any], one: WireField, path: str) -> Any:
    if one.wire_name not in written:
        raise Unreadable(f"{path}.{one.wire_name}", "is missing")
    return written[one.wire_name]


# --- the rest -------------------------------------------------------------------------------------


def _read_rest(order: responses.Order, *, raw: bytes, of_bank: tuple[Any, ...]) -> None:
    """Fill the loose slots; what cannot be read becomes None, with its path in ``unread``."""
    unread: list[str] = []
    rest = _rest_by_piece(raw, of_bank, unread)
    for put, value in zip(_PUT_REST, (*rest, tuple(unread), _nothing_left), strict=True):
        put(order, value)
    for put, value in zip(_PUT_OF_BANK, of_bank, strict=True):
        put(order.external_order, value)  # as it was read strictly: an int has no -0


def _rest_by_piece(raw: bytes, of_bank: tuple[Any, ...], unread: list[str]) -> tuple[Any, ...]:
    try:
        written = dict(as_written(raw))
    except Unreadable:  # it was readable once, but this caller has less of the stack left to do it with
        unread.append("$")
        written = {}
    bank = dict(written.get(_BANK.wire_name, ()))
    external_order = _external_order(bank, of_bank, f"$.{_BANK.wire_name}", unread)
    return (external_order, *read_pieces(responses.Order, written, "$", unread).values())


def _external_order(
    written: dict[str, Any], strict: tuple[Any, ...], path: str, unread: list[str]
) -> responses.ExternalOrder:
    pieces = read_pieces(responses.ExternalOrder, written, path, unread)
    strictly = {one.name: value for one, value in zip(STRICT_OF_BANK, strict, strict=True)}
    return responses.ExternalOrder(**strictly, **pieces)


def _nothing_left(_order: responses.Order) -> None:
    """What ``_late`` is once all has been read."""


(_BANK,) = (item for item in fields_of(responses.Order) if item.part is responses.ExternalOrder)
_USERNAME = tuple(item for item in fields_of(responses.User) if item.name == "username")
_PUT_STRICT = [getattr(responses.Order, item.name).__set__ for item in STRICT]
_PUT_OF_BANK = [getattr(responses.ExternalOrder, item.name).__set__ for item in STRICT_OF_BANK]
_PUT_LATE = responses.Order._late.__set__  # type: ignore[attr-defined] # a slot
_REST = [item.name for item in fields_of_rest(responses.Order)]
_PUT_REST = [getattr(responses.Order, name).__set__ for name in (*_REST, "unread", "_late")]
