"""The headers that messages are sent along with, the same at each broker."""

from __future__ import annotations

from collections.abc import Mapping

REASON = "Transfer-Reason"
"""Of a parked message: why it is there."""

JSON = {"content-type": "application/json"}

LONGEST = 1000
"""Characters of a header's name or value: more would not fit everywhere."""


def reason_header(reason: str) -> dict[str, str]:
    """``reason`` as a header."""
    return {REASON: _fitting(reason)}


def fitting(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers`` as any broker takes them: each one line of ASCII, cut where it is long."""
    return {_fitting(name): _fitting(value) for name, value in headers.items()}


def _fitting(text: object) -> str:
    line = "".join(one if one.isprintable() else " " for one in str(text))
    return line.encode("ascii", "backslashreplace").decode()[:LONGEST]


def carried_on(headers: Mapping[str, str], *, without: str) -> dict[str, str]:
    """The headers of a message for its copy, but for those that begin with ``without``."""
    return {name: value for name, value in headers.items() if not name.lower().startswith(without)}
