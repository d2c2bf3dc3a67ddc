"""What a key may look like: two keys that look the same must be the same, or one payment has two.

A blank that a spreadsheet left behind, an accent that another system writes as two code points, a
variation selector: whoever compares the keys by eye sees one, and a journal has two, each with an order.
"""

from __future__ import annotations

import unicodedata
from typing import TypeGuard

from transfer_async._models.errors import InvalidOrder
from transfer_async._models.texts import UNSEEN

LONGEST = 200
"""Characters."""


def problem(key: object) -> str | None:
    """Why ``key`` can be none; None if it can."""
    if not may_be_on_record(key):
        return f"is not 1 to {LONGEST} printable characters"
    if key != key.strip():
        return "begins or ends with a blank: it would look like the key without, and be another"
    if key.isascii():
        return None
    if UNSEEN.search(key):
        return "holds a character that is never seen: it would look like the key without, and be another"
    if not unicodedata.is_normalized("NFC", key):
        return "is not in Unicode's normal form C: it would look like the key in NFC, and be another"
    return None


def may_be_on_record(key: object) -> TypeGuard[str]:
    """Whether a journal may hold ``key``: earlier versions took every text of printable characters."""
    return isinstance(key, str) and 1 <= len(key) <= LONGEST and key.isprintable()


def refuse(key: object) -> None:
    """Raise `InvalidOrder` unless ``key`` can be one: for a key of which nothing is on record."""
    if why := problem(key):
        raise InvalidOrder([("key", why)])
