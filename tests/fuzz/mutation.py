"""Changes that keep most of a JSON document intact, so that far more inputs get past the parser."""

import copy
import json
import random
from decimal import Decimal
from typing import Any

from tests.support import samples

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, "", "0", "1", "true", [], {}, [[]], [{}], [None], {"": None}),
    *(2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, Decimal("0.1"), Decimal("-0.0"), Decimal("1E+400")),
    *(Decimal("1E-400"), Decimal("1E+999999999999999999"), Decimal("12345678901234567.89"), Decimal("1.0")),
    *("\x00", "\ud800", "\U0001f600", "é" * 300, "tx-1", "tx-" + "z" * 101, "S3CRET-of-a-person"),
    *("2024-05-01T10:20:30.123Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2024-02-30"),
    *("2024-05-01T10:20:60Z", "2024-05-01", "10:20", "1714558830", 1714558830),
)
RAW = (
    *(b"1e99999999999999999999", b"-", b"01", b"1.", b"NaN", b"Infinity", b"-1E-99999999999999999999"),
    *(b"7" * 5000, b"[" * 500, b'{"a":' * 500, b'"\\ud83d"', b'"\\ud83d\\ude00"', b"\xff", b'"\\u0000"'),
)


def mutate(data: bytes, draw: random.Random, *, largest: int) -> bytes:
    """Change the JSON in an input, if it contains any, in one to three places. Sometimes damage its bytes."""
    start = data.find(b"{")
    if start < 0:
        return spoil(data, draw)[:largest]
    head, body = data[:start], data[start:]
    try:
        tree = json.loads(body, parse_float=Decimal, parse_int=int)
        for _ in range(draw.randint(1, 3)):
            change(tree, draw)
        body = samples.encode(tree)
    except (ValueError, RecursionError, ArithmeticError):
        body = spoil(body, draw)
    if draw.random() < 0.1:
        body = spoil(body, draw)
    return (head + body)[:largest]


def change(tree: Any, draw: random.Random) -> None:
    """Replace, remove, add, duplicate or move one value somewhere in a tree."""
    holders = [one for one in _all(tree) if isinstance(one, dict | list) and one]
    if not holders:
        return
    holder = draw.choice(holders)
    key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
    what = draw.randrange(6)
    if what <= 2:
        holder[key] = copy.deepcopy(draw.choice(ODD))
    elif what == 3:
        del holder[key]
    elif what == 4:
        holder[key] = copy.deepcopy(draw.choice(holders))
    elif isinstance(holder, dict):
        name = draw.choice(["unread", "_late", "id", "createdBy", "externalUser", "creator", "x"])
        holder[name] = copy.deepcopy(holder[key])
    else:
        holder.append(copy.deepcopy(holder[key]))


def spoil(data: bytes, draw: random.Random) -> bytes:
    """Remove or duplicate a piece of the bytes, or replace it by something odd."""
    start = draw.randint(0, len(data))
    end = min(len(data), start + draw.choice([0, 1, 2, 8, 64]))
    odd = draw.choice([b"", data[start:end] * 2, draw.choice(RAW), bytes([draw.randrange(256)])])
    return data[:start] + odd + data[end:]


def _all(tree: Any) -> list[Any]:
    found, waiting = [], [tree]
    while waiting:
        one = waiting.pop()
        found.append(one)
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found
