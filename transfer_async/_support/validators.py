"""What a setting must be: each rule once, for an argument and for a field of an attrs class alike.

Every refusal is a `ValueError` that begins with the name of what was set, so that whoever set it finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attrs import Attribute

from transfer_async._support.clock import Duration, duration

Validator = Callable[[Any, "Attribute[Any]", Any], None]
"""As attrs calls one: with the object, the field, and the value."""

POSITIVE = "must be more than 0 seconds, and finite"


def is_positive(seconds: object) -> bool:
    """Whether so many seconds can be waited for, and pass: more than 0, and finite."""
    return isinstance(seconds, float) and 0 < seconds < math.inf


def positive_seconds(name: str, value: Duration) -> float:
    """``value`` in seconds, as the argument ``name``.

    Raises:
        ValueError: it is no duration, or not more than 0 seconds and finite.
    """
    found = duration(name, value)
    if not is_positive(found):
        raise ValueError(f"{name}: {POSITIVE}")
    return found


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Check the number of things that is the argument ``name``.

    Raises:
        ValueError: it is not a whole number, ``least`` or more.
    """
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: must be a whole number, {least} or more")


# --- for fields ---------------------------------------------------------------------------------


def positive(rule: str = POSITIVE) -> Validator:
    """The field is seconds, more than 0 and finite; otherwise ``rule`` is told."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not is_positive(value):
            raise ValueError(f"{attribute.name}: {rule}")

    return check


def at_least(low: float) -> Validator:
    """The field is seconds, ``low`` or more, and finite."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not (isinstance(value, float) and low <= value < math.inf):
            raise ValueError(f"{attribute.name}: must be a finite number of seconds, {low:g} or more")

    return check


def a_duration(_: object, attribute: Attribute[Any], value: Duration) -> None:
    """The field is seconds, however many."""
    duration(attribute.name, value)


def count(least: int = 1) -> Validator:
    """The field is a whole number, ``least`` or more."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        check_count(attribute.name, value, least=least)

    return check


def instance_of(kind: type) -> Validator:
    """The field is a ``kind``."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise ValueError(f"{attribute.name}: must be a {kind.__name__}")  # noqa: TRY004 - as every wrong setting

    return check
