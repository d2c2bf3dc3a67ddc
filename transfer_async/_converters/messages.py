"""The two message formats that brokers and files use: a command to create an order, and the order's outcome.

Commands and outcomes are JSON objects with a ``version``. Amounts are plain decimal strings or JSON numbers,
and are read exactly::

    {"version": 1, "key": "payment-8731", "order": {"poster_username": ..., ...},
     "beneficiary": {"first": "Ben", "last": "Okri"}, "held": "hold-17",
     "send_before": "2026-01-01T12:00:00Z", "deadline": "2026-01-01T11:59:00Z"}

    {"version": 1, "key": "payment-8731", "intent_id": "9f0c...", "outcome": "created",
     "order_may_exist": true, "order_id": "tx-...", "state": "unknown", "poster_amount": "150000.00", ...}

A command with an unknown field is rejected, because the field may be a misspelt ``held``. A command with a
duplicate field is also rejected, because JSON readers disagree about which value to use.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, Self

import attrs
import msgspec
from attrs import field, frozen
from attrs.converters import optional

from transfer_async._converters import converter, wire_format
from transfer_async._models import requests
from transfer_async._models.errors import InvalidOrder, Outcome, TransferError
from transfer_async._models.requests import (
    NewExternalOrder,
    NewOrder,
    OrderRequest,
    PersonName,
    Problem,
    call_problems,
    refuse,
    refuse_call,
)
from transfer_async._models.responses import Order, OrderState

VERSION = 1
"""The supported version of both messages. A message with another version is rejected."""

ORDER_FIELDS = (
    "poster_amount",
    "poster_currency",
    "poster_fee",
    "matcher_amount",
    "matcher_currency",
    "exchange_rate",
)
"""The fields of the service's order that an outcome includes."""

_encode = msgspec.json.Encoder().encode


@frozen(kw_only=True)
class OrderCommand:
    """A command to create one order.

    A command contains the fields of `OrderRequest`, but its key is required.

    Args:
        key: the command sender's own id for the payment; see `TransferClient.create_order`.
        order: the order to create (specification 4.1).
        beneficiary: the beneficiary's name as the customer typed it.
        held: the reference of a hold that the bank itself has placed.
        send_before: an aware time after which the order must not be sent.
        deadline: an aware time after which the command's sender no longer waits for the outcome; see
            `TransferClient.create_order`.

    Raises:
        InvalidOrder: a field is invalid. ``.problems`` lists all invalid fields.
    """

    key: str = field(converter=requests.to_text)
    order: NewOrder
    beneficiary: PersonName | None = None
    held: str | None = field(default=None, converter=optional(requests.to_text), repr=False)
    send_before: datetime | None = field(default=None, converter=optional(requests.to_moment))
    deadline: datetime | None = field(default=None, converter=optional(requests.to_moment))

    def __attrs_post_init__(self) -> None:
        problems = [*call_problems(self.request)]
        if self.key is None:
            problems.append(("key", "is missing"))
        refuse_call(problems, key=self.key)

    @property
    def request(self) -> OrderRequest:
        """The command as an `OrderRequest`, for `TransferClient.create_orders`."""
        return OrderRequest(*_request_fields(self))

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read a command.

        Raises:
            InvalidOrder: the command is unreadable or invalid. ``.problems`` lists every problem with its
                JSON path. ``order_may_exist`` is true if the command may contain a key, because an earlier
                command may have used that key.
        """
        return cls.from_tree(tree_of(data))

    @classmethod
    def from_tree(cls, tree: object) -> Self:
        """Read a command from the result of `tree_of`; see `from_json`."""
        if not isinstance(tree, dict):
            raise InvalidOrder([("$", "is not an object")], order_may_exist=True)
        problems: list[Problem] = []
        if type(version := tree.get("version")) is not int or version != VERSION:
            problems.append(("version", f"is not {VERSION}"))
        problems += _unknown(tree, _COMMAND, "")
        values: dict[str, Any] = {"key": _key(tree.get("key"), problems)}
        if tree.get("order") is None:
            problems.append(("order", "is missing"))
        else:
            problems += _unknown_in_order(tree["order"])
            values["order"] = converter.request_in(NewOrder, tree["order"], problems, "order.")
        for name, (read, _) in OPTIONAL_FIELDS.items():
            if (given := tree.get(name)) is not None:
                values[name] = _read(read, given, name, problems)
        if not problems:
            try:
                return cls(**values)
            except InvalidOrder as error:
                problems += error.problems
        raise InvalidOrder(problems, key=values["key"], order_may_exist=tree.get("key") is not None)

    def to_json(self) -> bytes:
        """Return the command as JSON. Numbers keep all their digits."""
        tree = {"version": VERSION, "key": self.key, "order": msgspec.Raw(self.order.to_json())}
        for name, (_, write) in OPTIONAL_FIELDS.items():
            if (value := getattr(self, name)) is not None:
                tree[name] = write(value)
        return _encode(tree)


_REQUEST = tuple(attribute.name for attribute in attrs.fields(OrderRequest))
_request_fields = attrgetter(*_REQUEST)
_COMMAND = frozenset(("version", *_REQUEST))
_NAME = tuple(attribute.name for attribute in attrs.fields(PersonName))
_ORDER = frozenset(attribute.name for attribute in attrs.fields(NewOrder))
_EXTERNAL = frozenset(attribute.name for attribute in attrs.fields(NewExternalOrder))


def tree_of(data: bytes | str) -> Any:
    """Decode JSON, with integers as ``int`` and all other numbers as `Decimal`.

    Raises:
        InvalidOrder: the text is not JSON, or contains a duplicate field.
    """
    data = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    try:
        tree = wire_format.decode(data)
        has_duplicates = wire_format.has_duplicate_fields(data, tree)
    except wire_format.Unreadable as error:
        raise InvalidOrder([(error.path, error.why)], order_may_exist=True) from None
    if has_duplicates:
        raise InvalidOrder([("$", "has a duplicate field")], order_may_exist=True)
    return tree


def _unknown(tree: dict[str, Any], known: frozenset[str], prefix: str) -> list[Problem]:
    if tree.keys() <= known:
        return []
    # The unknown name may be personal data, so the message contains its position and a similar known name
    # instead.
    place = next(number for number, name in enumerate(tree, 1) if name not in known)
    from difflib import get_close_matches  # The import takes 2 ms and is needed only here.

    near = get_close_matches(list(tree)[place - 1][:100], sorted(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the known fields are {', '.join(sorted(known))}"
    return [(prefix.rstrip(".") or "$", f"field number {place} is unknown; {hint}")]


def _unknown_in_order(order: object) -> list[Problem]:
    if not isinstance(order, dict):
        return []
    inner = order.get("external_order")
    found = _unknown(order, _ORDER, "order.")
    return found + (_unknown(inner, _EXTERNAL, "order.external_order.") if isinstance(inner, dict) else [])


def _key(value: object, problems: list[Problem]) -> str | None:
    """Return the key, or None if no journal can contain it.

    If the key is invalid, add the reason to ``problems``.
    """
    if why := "is missing" if value is None else requests.problem(value):
        problems.append(("key", why))
    return value if requests.may_be_on_record(value) else None


def _read(read: Callable[[Any], Any], value: object, name: str, problems: list[Problem]) -> Any:
    try:
        return read(value)
    except InvalidOrder as error:
        problems += [(f"{name}.{inner}".removesuffix(".$"), why) for inner, why in error.problems]
    except ValueError as error:
        problems.append((name, str(error)))
    return None


def _read_name(value: object) -> PersonName:
    if not isinstance(value, dict):
        raise InvalidOrder([("$", "is not an object")])
    problems = _unknown(value, frozenset(_NAME), "")
    for name in _NAME:
        text = value.get(name)
        if text is None and name != "middle":
            problems.append((name, "is missing"))
        elif text is not None and not (isinstance(text, str) and text.strip() and requests.is_clean(text)):
            problems.append((name, "is not a name"))
    refuse(problems)
    return PersonName(value["first"], value["last"], value.get("middle"))


def _write_name(name: PersonName) -> dict[str, str]:
    return {part: text for part in _NAME if (text := getattr(name, part)) is not None}


def _write_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


_OF_KIND: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    PersonName: (_read_name, _write_name),
    str: (wire_format.LEAVES[str], str),
    datetime: (wire_format.read_time, _write_time),
}
OPTIONAL_FIELDS = {
    item.name: _OF_KIND[item.kind]
    for item in wire_format.fields_of(OrderRequest)
    if item.name not in ("order", "key")
}
"""The reader and the writer for each field of a command, except the order and the key."""


# --- outcome -----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class OrderOutcome:
    """The outcome of a command.

    An outcome is published at least once, so it may arrive more than once. If the outcome is ``unknown``, a
    final outcome with the same ``intent_id`` may follow once the order is resolved or refuted. Ignore an
    ``unknown`` that arrives after the final outcome.

    Args:
        key: the command's key.
        intent_id: the intent's id, which the bank's hooks received.
        outcome: whether the order was created, refused or never sent, or is in doubt.
        order_may_exist: whether an order for the key may exist. Release the hold only if ``order_may_exist``
            is false.
        order_id: the order's id, if known.
        error: the name of the error's class, if the order was not created. ``DuplicateSuspected`` may occur
            with any outcome. `DuplicateSuspected` means that two orders may exist, because the sender's
            result contradicts the recorded one.
        status: the HTTP status of a refusal.
        fields: the names of the request fields that the service listed in a refusal.
        receipts: the hooks' receipts, by hook name. The command's ``held`` appears as ``"held"``.
        state: the order's state when it was created.
        poster_amount: the amount in the service's order; this field and the next five are exact copies.
    """

    key: str
    intent_id: str
    outcome: Outcome
    order_may_exist: bool
    order_id: str | None = None
    error: str | None = None
    status: int | None = None
    fields: tuple[str, ...] = ()
    receipts: dict[str, str | None] = field(factory=dict, repr=False)
    state: OrderState | None = None
    poster_amount: Decimal | None = None
    poster_currency: str | None = None
    poster_fee: Decimal | None = None
    matcher_amount: Decimal | None = None
    matcher_currency: str | None = None
    exchange_rate: Decimal | None = None

    @classmethod
    def of(
        cls,
        result: Order | TransferError,
        *,
        key: str,
        intent_id: str,
        receipts: dict[str, str | None] | None = None,
    ) -> Self:
        """Create the outcome for the ``result`` of a call. For an `Order`, pass the hooks' ``receipts``."""
        if isinstance(result, Order):
            return cls(
                key=key,
                intent_id=intent_id,
                outcome=Outcome.CREATED,
                order_may_exist=True,
                order_id=result.id,
                receipts=dict(receipts or {}),
                state=result.state,
                **{name: getattr(result, name) for name in ORDER_FIELDS},
            )
        return cls(
            key=key,
            intent_id=intent_id,
            outcome=result.outcome,
            order_may_exist=result.order_may_exist,
            order_id=getattr(result, "order_id", None),
            error=None if result.outcome is Outcome.CREATED else type(result).__name__,
            status=getattr(result, "status", None),
            fields=getattr(result, "fields", ()),
            receipts=dict(receipts or result.receipts),
        )

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read an outcome. Unknown fields are ignored.

        Raises:
            ValueError: ``data`` is not an outcome, or its version is not supported.
        """
        try:
            if (version := _read_version(data).version) != VERSION:
                raise ValueError(f"the outcome has version {version}; only version {VERSION} can be read")
            read = _read_outcome(data)
            if wire_format.has_duplicate_fields(data.encode() if isinstance(data, str) else data):
                raise ValueError("the outcome has a duplicate field")
        except msgspec.MsgspecError as error:
            raise ValueError(f"cannot be read as an outcome ({error})") from None
        return cls(**{name: getattr(read, name) for name in _OUTCOME})

    def to_json(self) -> bytes:
        """Return the outcome as JSON, without empty fields. Numbers keep all their digits."""
        tree: dict[str, Any] = {"version": VERSION}
        for name, value in zip(_OUTCOME, _values_of(self), strict=True):
            if isinstance(value, Decimal):
                tree[name] = wire_format.plain(value)
            elif value is not None and value != ():
                tree[name] = value
        return _encode(tree)


@frozen(kw_only=True)
class EndOfDoubt(OrderOutcome):
    """The final outcome of an order that was in doubt.

    An `EndOfDoubt` is encoded and compared like any other outcome.

    If an operator amends an order id and later restores it, the outcomes before and after the amendment
    differ only in ``ended_at``.

    Args:
        ended_at: when the order was resolved, refuted or amended, according to the journal's clock.
            ``ended_at`` is None in records written by earlier versions.
    """

    ended_at: float | None = field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrderOutcome):
            return NotImplemented
        return bool(_values_of(self) == _values_of(other))

    __hash__ = OrderOutcome.__hash__


class _Versioned(msgspec.Struct):
    version: int


_OUTCOME = tuple(attribute.name for attribute in attrs.fields(OrderOutcome))
_values_of = attrgetter(*_OUTCOME)
_read_version = msgspec.json.Decoder(_Versioned).decode
_read_outcome = msgspec.json.Decoder(OrderOutcome).decode
