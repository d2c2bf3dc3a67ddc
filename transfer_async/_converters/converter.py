"""JSON bytes <-> models: the cattrs converter, whose docstring is the wire format.

cattrs owns the conversion: each model has one structure and one unstructure hook on one converter.
msgspec does the work beneath, at C speed and never through ``float``: see `at_once`, and what reads an
answer that is not as it should be, `order` and `lenient`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import msgspec

from transfer_async._converters import reader, wire_format
from transfer_async._converters.wire_format import LEAVES, Reader, Unreadable, decode, fields_of
from transfer_async._models import requests, responses
from transfer_async._models.errors import InvalidOrder, ServiceFailed, UnreadableOrder
from transfer_async._models.requests import Problem
from transfer_async._models.responses import CODEC

if TYPE_CHECKING:
    import cattrs

T = TypeVar("T")

_encoder = msgspec.json.Encoder(decimal_format="number")


def from_json(cls: type[T], data: bytes | str) -> T:
    """Read one model from JSON; see `Wire.from_json` for the errors."""
    # A lone surrogate becomes bytes that are not UTF-8, and is refused as such.
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    try:
        return _converter().structure(raw, cls)
    except Unreadable as error:
        problem = error
    if cls is responses.Order:
        raise UnreadableOrder(
            f"not readably an order: {problem}", raw=raw, order_id=reader.find_order_id(raw)
        )
    if cls in (requests.NewOrder, requests.NewExternalOrder):
        raise InvalidOrder([(problem.path, problem.why)])
    raise ServiceFailed(f"not readably a {cls.__name__}: {problem}", body=raw)


def to_json(model: Any) -> bytes:
    """Write one model as JSON, digits kept."""
    return encode(model)


def make_converter() -> cattrs.Converter:
    """The one converter, which is the wire format:

    * Numbers of the service become `Decimal`, digit for digit, never through ``float``; a whole
      number inside an object of unknown shape stays ``int``. A string is no number.
    * Flags are 0 or 1 on the wire, ``bool`` here; ``true`` and ``false`` are taken too.
    * Timestamps are ISO 8601, here aware and in UTC; milliseconds are written, more where there is more.
    * Six names are camel-cased on the wire: each field says its own (`transfer_async._models.responses`).
    * Strict, an error with its JSON path: an order's id, amounts, rate, fee, balance, currencies and
      state flags. Loose, ``None`` with its path in ``unread``: everything else. Unknown fields are ignored.
    * A new order's amounts, rate and balance are written as plain decimal strings, its fee as a number.
    """
    import cattrs  # 14 ms, and not before there is a client, see `prepare`

    converter = cattrs.Converter()
    for kind, read in LEAVES.items():
        converter.register_structure_hook(kind, _as_hook(read))
    converter.register_structure_hook(responses.Order, _as_model_hook(reader.read_order))
    converter.register_structure_hook(responses.ExternalOrder, _as_model_hook(reader.read_external_order))
    for part in (responses.User, responses.ExternalUser, responses.Currency, responses.UserOption):
        converter.register_structure_hook(part, _as_model_hook(functools.partial(reader.read_part, part)))
    for request in (requests.NewOrder, requests.NewExternalOrder):
        converter.register_structure_hook(request, _as_model_hook(functools.partial(_read_request, request)))
    converter.register_unstructure_hook(datetime, _write_time)
    converter.register_unstructure_hook(Decimal, lambda value: value)
    for model in responses.MODELS:
        converter.register_unstructure_hook_factory(
            functools.partial(lambda model, kind: kind is model, model),
            functools.partial(_writer, converter=converter),
        )
    for request in (requests.NewExternalOrder, requests.NewOrder):
        converter.register_unstructure_hook(request, _request_writer(request, converter))
    return converter


def _as_hook(read: Reader) -> Callable[[Any, Any], Any]:
    return lambda value, _kind: read(value)


def _as_model_hook(read: Callable[[bytes], Any]) -> Callable[[Any, Any], Any]:
    """A model is read from its own bytes; inside something decoded already, it is written again for that."""
    return lambda value, _kind: read(value if isinstance(value, bytes) else _encoder.encode(value))


def _writer(cls: Any, *, converter: cattrs.Converter) -> Callable[[Any], Any]:
    from cattrs.gen import make_dict_unstructure_fn, override

    overrides: dict[str, Any] = {
        item.name: override(
            rename=None if item.wire_name == item.name else item.wire_name,
            unstruct_hook=_write_flag if item.is_flag else None,
        )
        for item in fields_of(cls)
        if item.is_flag or item.wire_name != item.name
    }
    if cls in (responses.Order, responses.User):
        overrides["unread"] = override(omit=True)
    return make_dict_unstructure_fn(cls, converter, **overrides)


def _request_writer(cls: Any, converter: cattrs.Converter) -> Callable[[Any], Any]:
    from cattrs.gen import make_dict_unstructure_fn, override

    overrides: dict[str, Any] = {
        item.name: override(unstruct_hook=_write_fee if item.name == "transaction_fee" else _write_amount)
        for item in fields_of(cls)
        if item.kind is Decimal
    }
    return make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=True, **overrides)


def encode(value: Any) -> bytes:
    """Write any JSON value, or one that holds models; `Decimal` as a number, digit for digit."""
    return _encoder.encode(_converter().unstructure(value))


def read_into(into: type[Any] | None, raw: bytes) -> Any:
    """Read an answer into ``into``, or as decoded JSON without one; an empty body is None then.

    Raises:
        Unreadable: it cannot be read so.
    """
    if into is None:
        return decode(raw) if raw.strip() else None
    if into in responses.MODELS:
        return _converter().structure(raw, into)
    import cattrs

    try:
        return _converter().structure(decode(raw), into)
    except (cattrs.BaseValidationError, TypeError, ValueError, KeyError, AttributeError) as error:
        problems = cattrs.transform_error(error) if isinstance(error, cattrs.BaseValidationError) else []
        told = (_KEYS.sub("[...]", problem) for problem in problems)
        raise Unreadable("$", "; ".join(told) or f"is not a {into!r}") from None


_KEYS = re.compile(r"\[(?!\d+\]).*\]")  # the keys of an object are the service's, and may be anybody's name


# --- requests -----------------------------------------------------------------------------------


def _write_amount(value: Decimal) -> str:
    return format(value, "f")


def _write_fee(value: Decimal) -> msgspec.Raw:
    return msgspec.Raw(format(value, "f").encode())  # a JSON number, as plain as it was given


def _read_request(cls: type[T], raw: bytes) -> T:
    tree = decode(raw)
    problems: list[Problem] = []
    if wire_format.has_duplicate_fields(raw, tree):
        problems.append(("$", "has a field twice"))
    model = request_in(cls, tree, problems, "")
    if problems or model is None:
        raise InvalidOrder(problems)
    return model


def request_in(cls: type[T], tree: Any, problems: list[Problem], prefix: str) -> T | None:
    """``cls`` made from ``tree``, or None with every fault of it, and of what is in it, in ``problems``."""
    if type(tree) is not dict:
        problems.append((prefix.rstrip(".") or "$", "is not an object"))
        return None
    values: dict[str, Any] = {
        name: tree.get(name)
        for name, may_be_absent in _fields_read(cast("Any", cls))
        if not may_be_absent or tree.get(name) is not None
    }
    known = {name for name, value in values.items() if value is None}
    problems += [(f"{prefix}{name}", "is missing") for name in values if name in known]
    if cls is requests.NewOrder and "external_order" not in known:
        inner = request_in(
            requests.NewExternalOrder, values["external_order"], problems, f"{prefix}external_order."
        )
        values["external_order"] = inner
        known |= {"external_order"} if inner is None else set()
    try:
        return cls(**values)
    except InvalidOrder as error:
        problems += [(f"{prefix}{name}", why) for name, why in error.problems if name not in known]
        return None


@functools.cache
def _fields_read(cls: Any) -> tuple[tuple[str, bool], ...]:
    return tuple((item.name, requests.is_optional(item)) for item in attrs.fields(cls))


def _write_time(value: datetime) -> str:
    spec = "milliseconds" if value.microsecond % 1000 == 0 else "microseconds"
    return value.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")


def _write_flag(value: bool | None) -> int | None:
    return None if value is None else int(value)


@functools.cache
def _converter() -> cattrs.Converter:
    return make_converter()


def prepare() -> None:
    """Make the converter, unless it is made: whoever makes a client waits for it, and not its first order."""
    _converter()


CODEC.from_json, CODEC.to_json = from_json, to_json
