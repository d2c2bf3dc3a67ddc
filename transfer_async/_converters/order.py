"""An order: what money hangs on is read at once, and strictly; the loose rest when it is first looked at.

Strict are an order's id, amounts, rate, fee, balance, currencies and flags: a missing or wrong one is an
error with its JSON path. An answer that is as it should be is read `at_once`; any other field by field.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec

from transfer_async._converters import at_once, lenient
from transfer_async._converters.at_once import PEOPLE, STRICT, STRICT_OF_BANK, Head, fields_of_rest
from transfer_async._converters.wire_format import (
    LEAVES,
    Fields,
    Number,
    Unreadable,
    WireField,
    as_decoded,
    as_written,
    exactly,
    fields_of,
)
from transfer_async._models import responses
from transfer_async._models.texts import is_sendable

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
        found = {one.decode() for one in _ANY_ORDER_ID.findall(raw)}
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
    strict, of_bank, usernames = at_once.read_head(raw) or _read_head_by_piece(raw)
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
    if twin := written.twin(*(one.wire_name for one in fields)):
        raise Unreadable(f"{path}.{twin}", "comes twice")
    return dict(written)


def _username(written: Any, path: str) -> str | None:
    if not isinstance(written, Fields):
        return None
    username = _once_each(written, path, _USERNAME).get("username")
    return username if type(username) is str and is_sendable(username) else None


def _read_strictly(fields: Iterable[WireField], written: dict[str, Any], path: str) -> tuple[Any, ...]:
    return tuple(_read_strict(one, written, path) for one in fields)


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
    """Fill the loose slots: all at once; piece by piece only where some type is another."""
    unread: list[str] = []
    rest = at_once.read_rest(raw) or _rest_by_piece(raw, of_bank, unread)
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
    return (external_order, *lenient.read_pieces(responses.Order, written, "$", unread).values())


def _external_order(
    written: dict[str, Any], strict: tuple[Any, ...], path: str, unread: list[str]
) -> responses.ExternalOrder:
    pieces = lenient.read_pieces(responses.ExternalOrder, written, path, unread)
    strictly = {one.name: value for one, value in zip(STRICT_OF_BANK, strict, strict=True)}
    return responses.ExternalOrder(**strictly, **pieces)


def _nothing_left(_order: responses.Order) -> None:
    """What ``_late`` is once all has been read."""


(_BANK,) = (one for one in fields_of(responses.Order) if one.part is responses.ExternalOrder)
_USERNAME = tuple(one for one in fields_of(responses.User) if one.name == "username")
_PUT_STRICT = [getattr(responses.Order, one.name).__set__ for one in STRICT]
_PUT_OF_BANK = [getattr(responses.ExternalOrder, one.name).__set__ for one in STRICT_OF_BANK]
_PUT_LATE = responses.Order._late.__set__  # type: ignore[attr-defined] # a slot
_REST = [one.name for one in fields_of_rest(responses.Order)]
_PUT_REST = [getattr(responses.Order, name).__set__ for name in (*_REST, "unread", "_late")]
