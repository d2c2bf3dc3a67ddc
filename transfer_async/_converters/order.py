"""What money hangs on, read at once: an order's id, amounts, rate, fee, balance, currencies and flags.

A reply is scanned once and cut into raw fields; the strict ones are read straight from their bytes,
and a missing or wrong one is an error with its JSON path. The loose rest waits: see `loose`.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import attrs
import msgspec
from msgspec.structs import astuple

from transfer_async._converters import lenient
from transfer_async._converters.wire_format import (
    EVERY_DIGIT,
    Fields,
    Reader,
    Unreadable,
    as_written,
    decode,
    exactly,
    fields_of,
    wire_name,
)
from transfer_async._models import responses

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


def _raw_number(raw: msgspec.Raw) -> Decimal:
    text = str(bytes(raw), "ascii", "replace")
    if text[0] not in "-0123456789":
        raise ValueError("is not a number")
    return exactly(text)


def _raw_flag(raw: msgspec.Raw) -> bool:
    try:
        return _RAW_FLAGS[bytes(raw)]
    except KeyError:
        raise ValueError("is not 0 or 1, true or false") from None


def _raw_text(raw: msgspec.Raw) -> str:
    try:
        return _text_decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError):
        raise ValueError("is not a string") from None


def _raw_order_id(raw: msgspec.Raw) -> str:
    order_id = _raw_text(raw)
    if not _ORDER_ID.fullmatch(order_id):
        raise ValueError("is not an order id (tx- and lowercase letters or digits)")
    return order_id


_RAW_FLAGS = {b"0": False, b"1": True, b"false": False, b"true": True}
_ABSENT = msgspec.Raw(b"")
_text_decoder = msgspec.json.Decoder(str)


def _cutter(cls: type, names: Iterable[str], **kinds: Any) -> Any:
    """A struct that cuts an object's JSON into the raw bytes of the fields named."""
    names = tuple(names)
    return msgspec.defstruct(
        f"Raw{cls.__name__}",
        [(name, kinds.get(name, msgspec.Raw), _ABSENT) for name in names],
        rename={name: wire_name(name) for name in names},
        gc=False,
    )


_STRICT: dict[type, tuple[tuple[str, Reader], ...]] = {
    responses.Order: (
        ("id", _raw_order_id),
        ("poster_fee", _raw_number),
        ("poster_amount", _raw_number),
        ("poster_currency", _raw_text),
        ("matcher_amount", _raw_number),
        ("matcher_currency", _raw_text),
        ("exchange_rate", _raw_number),
        ("is_matched", _raw_flag),
        ("is_confirmed", _raw_flag),
        ("is_completed", _raw_flag),
        ("is_accepted", _raw_flag),
        ("is_cancelled", _raw_flag),
        ("is_processing", _raw_flag),
    ),
    responses.ExternalOrder: (
        ("current_account_balance", _raw_number),
        ("transaction_fee", _raw_number),
        ("transaction_fee_currency", _raw_text),
    ),
}
_RawExternalOrder = _cutter(responses.ExternalOrder, fields_of(responses.ExternalOrder))
_PEOPLE = ("user", "posters_beneficiary")

_cut_all = msgspec.json.Decoder(
    _cutter(responses.Order, fields_of(responses.Order), external_order=_RawExternalOrder)
)
_cut_head = msgspec.json.Decoder(
    _cutter(
        responses.Order,
        (*dict(_STRICT[responses.Order]), "external_order", *_PEOPLE),
        external_order=_cutter(responses.ExternalOrder, dict(_STRICT[responses.ExternalOrder])),
    )
)
_cut_external_order = msgspec.json.Decoder(_RawExternalOrder)
_cut_person = msgspec.json.Decoder(_cutter(responses.User, ("username",)))

_ORDER_FIELDS = tuple(dict(_STRICT[responses.Order]))
_BANK_FIELDS = tuple(dict(_STRICT[responses.ExternalOrder]))


# --- at once: an answer that is as it should be ---------------------------------------------------


_numbers = itertools.count(1)  # never 0, which would be a no


class _Asked(type):
    """What msgspec asks of a type that it does not know, of each value: is it one? It is, and is counted."""

    # Said in Python it would cost as much as the reading.
    __instancecheck__ = staticmethod(functools.partial(next, _numbers))


class _Leaf(metaclass=_Asked):
    """A value of any type. Of two with one name msgspec keeps the last, but it has asked for both."""


_Ways = tuple[type, dict[type, Callable[[Any], Any]]]
"""The type that a leaf usually has already, and how it is made of others."""

_TEXT: _Ways = str, {}
_NUMBER: _Ways = Decimal, {int: Decimal}
_FLAG: _Ways = bool, {int: {0: False, 1: True}.__getitem__}
_WAYS: dict[Reader, _Ways] = {_raw_order_id: _TEXT, _raw_text: _TEXT, _raw_number: _NUMBER, _raw_flag: _FLAG}


def _cut_leaves(cls: type, **more: Any) -> Any:
    """A struct of the strict fields, each of which is there."""
    kinds = dict.fromkeys(dict(_STRICT[cls]), _Leaf) | more
    rename = {name: wire_name(name) for name in kinds}
    return msgspec.defstruct(f"Leaves{cls.__name__}", list(kinds.items()), rename=rename, gc=False)


_Named = msgspec.defstruct("Named", [("username", _Leaf)], gc=False)
_LEAVES = [
    *(_WAYS[read] for cls in (responses.Order, responses.ExternalOrder) for _, read in _STRICT[cls]),
    *(_TEXT for _ in _PEOPLE),
]
"""All of an answer that says each of them, and each object they are in, but once."""
_STRICT_ONES = slice(len(_ORDER_FIELDS))
_BANKS_ONES = slice(len(_ORDER_FIELDS), -len(_PEOPLE))
_USERNAMES = slice(-len(_PEOPLE), None)
_read_head = msgspec.json.Decoder(
    _cut_leaves(
        responses.Order,
        external_order=_cut_leaves(responses.ExternalOrder),
        **dict.fromkeys(_PEOPLE, _Named),
    ),
    float_hook=EVERY_DIGIT.create_decimal,
).decode


# --- by piece: any other, so that what is wrong can be named --------------------------------------

_HALVES = re.compile(  # what is whole comes first: an escaped backslash, then both halves of a character
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_WHERE = re.compile(r"`(\$[^`]*)`$")


def _cut(cutter: msgspec.json.Decoder[Any], raw: bytes | msgspec.Raw) -> Any:
    try:
        return cutter.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        where = _WHERE.search(str(error))
        raise Unreadable(where[1] if where else "$", "is not a JSON object that can be read") from None


def _without_half_characters(raw: bytes) -> bytes:
    """JSON may name half a character (a text cut amid an emoji), and msgspec then takes none of it.

    In place of each half stands a byte that is no UTF-8: it spoils only the part that it is in.
    """
    return _HALVES.sub(lambda found: b"\xff" if found[1] else found[0], raw)


def _read_strictly(cls: type, cut: Any, path: str) -> dict[str, Any]:
    values = {}
    for name, read in _STRICT[cls]:
        raw = getattr(cut, name)
        if raw is _ABSENT:
            raise Unreadable(f"{path}.{name}", "is missing")
        try:
            values[name] = read(raw)
        except ValueError as error:
            raise Unreadable(f"{path}.{name}", str(error)) from None
    return values


@attrs.frozen
class Answer:
    """A reply that is an order, and whose order it says it is: the usernames, where they are shown."""

    order: responses.Order
    poster_username: str | None
    beneficiary_username: str | None


def read_answer(raw: bytes) -> Answer:
    """Read the whole strict part of an order now; the loose rest waits until it is looked at.

    Raises:
        Unreadable: names the JSON path.
    """
    return _read_at_once(raw) or _read_by_piece(raw)


def _read_at_once(raw: bytes) -> Answer | None:
    """An order that is as it should be, in one go and a third less time; None for any other."""
    before = next(_numbers)
    try:
        *head, bank, user, beneficiary = astuple(_read_head(raw))
        after = next(_numbers)
        leaves = (*head, *astuple(bank), user.username, beneficiary.username)
        values: list[Any] = [
            leaf if type(leaf) is usual else ways[type(leaf)](leaf)
            for leaf, (usual, ways) in zip(leaves, _LEAVES, strict=True)
        ]
    except (
        msgspec.MsgspecError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
        decimal.DecimalException,
    ):
        return None
    if after - before != len(_LEAVES) + 1:  # a name comes twice, or another thread reads as well
        return None
    strict, of_bank, usernames = values[_STRICT_ONES], tuple(values[_BANKS_ONES]), values[_USERNAMES]
    if not _ORDER_ID.fullmatch(strict[0]):
        return None
    if not (all(strict[:7]) and all(of_bank)) and b"-0" in raw:  # an int has no -0
        return None
    return Answer(_unread_order(strict, raw, of_bank), *usernames)


def _unread_order(strict: Iterable[Any], raw: bytes, of_bank: Iterable[Any]) -> responses.Order:
    """An order of which the rest is read when it is looked at; ``of_bank``: the strict part of the bank's."""
    order = object.__new__(responses.Order)
    for put, value in zip(_PUT_STRICT, strict, strict=True):
        put(order, value)
    _put(order, "_late", functools.partial(_read_rest, raw=raw, of_bank=of_bank))
    return order


def _read_by_piece(raw: bytes) -> Answer:
    """The strict part, field by field, so that what is wrong can be named."""
    try:
        head = _cut(_cut_head, raw)
    except Unreadable:
        raw = _without_half_characters(raw)
        head = _cut(_cut_head, raw)
    _refuse_twins(raw)
    strict = _read_strictly(responses.Order, head, "$")
    if head.external_order is _ABSENT:
        raise Unreadable("$.external_order", "is missing")
    of_bank = _read_strictly(responses.ExternalOrder, head.external_order, "$.external_order")
    order = _unread_order(strict.values(), raw, tuple(of_bank.values()))
    return Answer(order, _username(head.user), _username(head.posters_beneficiary))


def _refuse_twins(raw: bytes, *, top: str | None = None) -> None:
    """Refuse a reply that says twice what money hangs on, whether or not it says the same.

    Raises:
        Unreadable: names it.
    """
    whole: Fields = as_written(raw)
    for name, part in [(top, whole), *whole]:
        if name in _ONCE and isinstance(part, Fields) and (twin := part.twin(*_ONCE[name])):
            where = f"$.{twin}" if part is whole else f"$.{name}.{twin}"
            raise Unreadable(where, "comes twice")


_ONCE: dict[str | None, tuple[str, ...]] = {
    None: (*_ORDER_FIELDS, "external_order", *map(wire_name, _PEOPLE)),
    "external_order": _BANK_FIELDS,
} | {wire_name(person): ("username",) for person in _PEOPLE}
"""By the name of an object within an order, None for the order itself: what may be in it but once."""


def _username(raw: msgspec.Raw) -> str | None:
    try:
        return _raw_text(_cut(_cut_person, raw).username)
    except ValueError:
        return None


def read_order(raw: bytes) -> responses.Order:
    """An order whose loose fields are read when one of them is first looked at."""
    return read_answer(raw).order


def read_external_order(raw: bytes) -> responses.ExternalOrder:
    """An `ExternalOrder` by itself, all of it at once."""
    cut = _cut(_cut_external_order, raw)
    _refuse_twins(raw, top="external_order")
    of_bank = _read_strictly(responses.ExternalOrder, cut, "$")
    return responses.ExternalOrder(**of_bank, **_loose_fields(responses.ExternalOrder, cut, "$", []))


def _read_rest(order: responses.Order, *, raw: bytes, of_bank: Iterable[Any]) -> None:
    """Fill the loose slots: all at once by msgspec; piece by piece only where some type is another."""
    unread: list[str] = []
    named = dict(zip(_BANK_FIELDS, of_bank, strict=True))
    for name, value in (_rest_at_once(raw, named) or _rest_by_piece(raw, named, unread)).items():
        _put(order, name, value)
    _put(order, "unread", tuple(unread))
    _put(order, "_late", _nothing_left)


def _rest_at_once(raw: bytes, of_bank: dict[str, Any]) -> dict[str, Any] | None:
    try:
        tree = decode(raw)
        tree["external_order"].update(of_bank)  # as it was read strictly: an int has no -0
        lenient.tidy(responses.Order, tree)
        read = msgspec.convert(tree, responses.Order)
    except (Unreadable, msgspec.ValidationError, RecursionError):
        return None
    return {name: getattr(read, name) for name in ("external_order", *lenient.plan(responses.Order).kinds)}


def _rest_by_piece(raw: bytes, of_bank: dict[str, Any], unread: list[str]) -> dict[str, Any]:
    try:
        cut = _cut(_cut_all, raw)
    except Unreadable:  # it was readable once, but this caller has less of the stack left to do it with
        unread.append("$")
        loosely = dict.fromkeys(lenient.plan(responses.Order).kinds)
        return {"external_order": responses.ExternalOrder(**of_bank)} | loosely
    bank = _loose_fields(responses.ExternalOrder, cut.external_order, "$.external_order", unread)
    external_order = responses.ExternalOrder(**of_bank, **bank)
    return {"external_order": external_order} | _loose_fields(responses.Order, cut, "$", unread)


def _loose_fields(cls: type, cut: Any, path: str, unread: list[str]) -> dict[str, Any]:
    pieces = {name: getattr(cut, name) for name in lenient.plan(cls).kinds}
    return lenient.read_pieces(
        cls, {name: raw for name, raw in pieces.items() if raw is not _ABSENT}, path, unread
    )


def _nothing_left(_order: responses.Order) -> None:
    """What ``_late`` is once all has been read."""


_put = object.__setattr__
_PUT_STRICT = [getattr(responses.Order, name).__set__ for name in _ORDER_FIELDS]
