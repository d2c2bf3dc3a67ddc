"""The smallest measured operations, one function each, with their own imports."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from benchmarks.contenders.stub import answer_to
from benchmarks.measuring.workload import new_orders, order_fields
from transfer_async import Order
from transfer_async._converters import converter

Case = Callable[[], object]

ORDER = new_orders(1)[0]
ANSWER = answer_to(ORDER)
FIELDS: dict[str, Any] = next(order_fields())


def decode_strict() -> object:
    """What a call reads: all that money hangs on, and the rest left to be read when looked at."""
    return converter.read_answer(ANSWER)


def decode_all() -> object:
    """All of it, at once: one look at a loose field reads the rest."""
    return Order.from_json(ANSWER).user


def decode_json() -> object:
    """The standard library, into dicts, numbers through float: for scale only."""
    return json.loads(ANSWER)


def decode_pydantic() -> Case:
    """pydantic 2, the same shape."""
    from benchmarks.contenders.shapes import PydanticOrder

    return lambda: PydanticOrder.model_validate_json(ANSWER)


def decode_pydantic_exact() -> Case:
    """pydantic 2 as it has to be used where digits count: by itself it reads numbers through float."""
    from benchmarks.contenders.shapes import PydanticOrder

    return lambda: PydanticOrder.model_validate(json.loads(ANSWER, parse_float=Decimal))


def encode_ours() -> object:
    """A checked order, as bytes."""
    return ORDER.to_json()


def encode_json() -> object:
    """The standard library, from a dict of strings: for scale only."""
    return json.dumps(FIELDS, default=str).encode()


def encode_pydantic() -> Case:
    """pydantic 2, from a validated model."""
    from benchmarks.contenders.shapes import PydanticNewOrder

    order = PydanticNewOrder.model_validate(FIELDS)
    return lambda: order.model_dump_json(by_alias=True)


CASES: dict[str, Callable[[], Case]] = {
    "decode: transfer_async, strict": lambda: decode_strict,
    "decode: transfer_async, all of it": lambda: decode_all,
    "decode: pydantic": decode_pydantic,
    "decode: pydantic, every digit": decode_pydantic_exact,
    "decode: json.loads": lambda: decode_json,
    "encode: transfer_async": lambda: encode_ours,
    "encode: pydantic": encode_pydantic,
    "encode: json.dumps": lambda: encode_json,
}
"""How each case is made ready."""
