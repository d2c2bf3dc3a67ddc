"""Texts and moments as plain values, and what a text may hold."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime

REFERENCE = 10_000
"""Characters of a hold's reference, or a receipt: it goes along in messages, and those have bounds."""

NAME = 1_000
"""Characters of a part of a person's name."""

UNSEEN: re.Pattern[str] = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""What is shown as nothing: Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt."""


def to_text(value: str) -> str:
    """A plain ``str`` for any kind of one: those of numpy, lxml or a template cannot be written as JSON.

    Everything else stays as it is, for a check to name.
    """
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value


def to_optional_text(value: str | None) -> str | None:
    """The same, where there may be none."""
    return None if value is None else to_text(value)


def to_moment(value: datetime | None) -> datetime | None:
    """A plain ``datetime`` in UTC for any aware one, whatever its class and its time zone.

    Everything else stays as it is, for a check to name.
    """
    if not isinstance(value, datetime) or (type(value) is datetime and value.tzinfo is UTC):
        return value
    try:
        offset = value.utcoffset()
        plain = datetime(  # noqa: DTZ001 - its zone follows
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
        )
        return value if offset is None else (plain - offset).replace(tzinfo=UTC)
    except Exception:  # noqa: BLE001 - a time zone is anybody's code, and no time may look like one
        return value


def is_clean(text: str) -> bool:
    """Whether ``text`` holds no control character, and nothing else that breaks a line."""
    # Printable ASCII is nearly every text here; of the rest, Cc are controls, Cs cannot be sent as
    # UTF-8, and Zl and Zp break a line where a log or a terminal is read.
    if text.isascii() and text.isprintable():
        return True
    return not any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text)


def checked_scope(given: str) -> str:
    """``given``, if it can name a service in a journal.

    Raises:
        ValueError: it is no text, or an empty one.
    """
    if not (isinstance(given, str) and given and is_clean(given)):
        raise ValueError("scope: must be a string with something in it")
    return to_text(given)


def is_sendable(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8: half of a surrogate pair cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
