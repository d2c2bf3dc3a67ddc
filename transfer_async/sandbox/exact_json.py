"""Exact JSON: numbers keep every digit, and no body, however odd, gets further than `BadJson`.

The standard library reads, with `Decimal` for every number; msgspec writes `Decimal` as a JSON number.
"""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

# Longer numbers are an attack or an accident: Python itself takes quadratic time to read them.
MAX_NUMBER_LENGTH = 100

JsonObject = dict[str, Any]

_encode = msgspec.json.Encoder(decimal_format="number").encode


class BadJson(ValueError):
    """The body is not JSON that this service reads; the message says why and repeats nothing of it."""


def read(body: bytes) -> Any:
    """Read a JSON document; every number becomes a `Decimal` with the digits it was sent with.

    Raises:
        BadJson: not UTF-8, not JSON, nested too deep, NaN or infinity, an over-long number, or half of
            a surrogate pair.
    """
    try:
        text = body.decode()
        value = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_refuse_constant)
    except BadJson:
        raise
    except UnicodeDecodeError:
        raise BadJson("The body is not UTF-8.") from None
    except RecursionError:
        raise BadJson("The body is nested too deep.") from None
    except (ValueError, ArithmeticError):
        raise BadJson("The body is not valid JSON.") from None
    if "\\u" in text:
        _refuse_half_surrogates(value)
    return value


def write(value: object) -> bytes:
    """Write a JSON document; a `Decimal` becomes a number with exactly its digits."""
    return _encode(value)


def raw(value: object) -> msgspec.Raw:
    """Write a value once, to be placed into many documents."""
    return msgspec.Raw(write(value))


def extended(written: msgspec.Raw, name: str, value: object) -> msgspec.Raw:
    """Add one field to an object that is already written and has fields."""
    return msgspec.Raw(bytes(written)[:-1] + b"," + write({name: value})[1:])


def timestamp(moment: datetime) -> str:
    """Format a time as the specification's section 2 does: `YYYY-MM-DDTHH:MM:SS.mmmZ`, in UTC."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _number(text: str) -> Decimal:
    if len(text) > MAX_NUMBER_LENGTH:
        raise BadJson(f"A number is longer than {MAX_NUMBER_LENGTH} characters.")
    return Decimal(text)


def _refuse_constant(_: str) -> NoReturn:
    raise BadJson("NaN and infinities are not JSON.")


def _refuse_half_surrogates(value: object) -> None:
    # A stack, not recursion: the reader's own depth limit is larger than ours would be.
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _refuse_half_surrogate(item)
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item


def _refuse_half_surrogate(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadJson("A string holds half of a surrogate pair.") from None
