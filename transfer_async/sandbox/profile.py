"""What a service was seen to do: written by `transfer-async probe`, and imitated by the sandbox.

A profile has no person, no token and nothing of a body but the names of a few fields that many services
use: it may lie beside the code.
"""

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
from attrs import field, frozen

VERSION = 1

WITHIN = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Seconds: an answer is said to have come within one of these. To the millisecond no two runs agree."""

IDLE = (1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 75.0, 90.0, 120.0, 180.0, 300.0)
"""Seconds of idleness after which a connection is looked at."""

NOT_KEPT = frozenset(
    {"date", "content-length", "content-type", "content-encoding", "transfer-encoding", "trailer", "upgrade"}
)
"""Headers that belong to one answer, and say nothing of the service."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,200}")
_WORD = re.compile(r"[A-Za-z_]{1,40}")

BodyKind = Literal["json", "html", "text", "empty"]

OrderSeen = Literal["none", "new", "same", "unknown"]
"""What an answer says of an order: that there is none, a new one, one known before, or nothing certain."""


def _checked_status(_: object, __: object, status: int | None) -> None:
    if status is not None and not 200 <= status <= 599:
        raise ValueError(f"status: {status} is no status of an answer")


def _checked_headers(_: object, __: object, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name in NOT_KEPT or not _HEADER_VALUE.fullmatch(value):
            raise ValueError("headers: hold what HTTP does not allow in a header")


def _checked_fields(_: object, __: object, names: tuple[str, ...]) -> None:
    if not all(map(_WORD.fullmatch, names)):
        raise ValueError("fields: hold what is no name of a field")


def _checked_names(_: object, __: object, names: tuple[str, ...]) -> None:
    if not all(map(_HEADER_NAME.fullmatch, names)):
        raise ValueError("request_ids: hold what is no name of a header")


@frozen(kw_only=True)
class SeenAnswer:
    """How one question was answered.

    Args:
        status: None where no whole answer came.
        body: of which kind it was.
        fields: those of a JSON object's fields that many services use; never a value.
        unauthorized: the body was exactly the one of the specification's section 7.
        headers: by lower-case name, but `NOT_KEPT`; a value is left
            out ("") where it may say more than how the service works.
        within: seconds, of `WITHIN`; None where no whole answer came.
        order: see `OrderSeen`; "none" also where none was asked for.
    """

    status: int | None = field(default=None, validator=_checked_status)
    body: BodyKind = "empty"
    fields: tuple[str, ...] = field(default=(), validator=_checked_fields)
    unauthorized: bool = False
    headers: Mapping[str, str] = field(factory=dict, validator=_checked_headers)
    within: float | None = None
    order: OrderSeen = "none"


@frozen(kw_only=True)
class SeenConnection:
    """How long a connection is kept.

    Args:
        asked: how many requests were sent on one connection at most.
        requests: after how many it was closed; None: not after ``asked``.
        open_after: seconds of idleness after which it was still open.
        closed_by: after so many it was closed; None: no longer was waited.
    """

    asked: int
    requests: int | None = None
    open_after: float = 0.0
    closed_by: float | None = None


@frozen(kw_only=True)
class SeenLimits:
    """The limits of amounts in a currency that who-am-i shows (specification, section 2.5)."""

    least: Decimal
    greatest: Decimal


@frozen(kw_only=True)
class ServiceProfile:
    """What a service was seen to do.

    Args:
        version: of this form; 1.
        levels: of the probe that have been run to their end.
        answers: by the name of the question, or of the order, that was asked.
        request_ids: headers whose value was another in each answer, and whose name says that it is an id.
        connection: None where it was not looked at.
        limits: by currency code.
    """

    version: int = VERSION
    levels: tuple[int, ...] = ()
    answers: Mapping[str, SeenAnswer] = field(factory=dict)
    request_ids: tuple[str, ...] = field(default=(), validator=_checked_names)
    connection: SeenConnection | None = None
    limits: Mapping[str, SeenLimits] = field(factory=dict)

    def to_json(self) -> bytes:
        """Write it, for people to read and to compare, too."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        part = path.with_name(f"{path.name}.part")
        try:
            with part.open("wb") as out:
                out.write(self.to_json())
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def load_profile(path: str | Path) -> ServiceProfile:
    """Read a profile that `transfer-async probe` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else.
    """
    document = Path(path).read_bytes()
    try:
        known: Any = msgspec.json.decode(document)
        version = known.get("version") if isinstance(known, dict) else None
        if version != VERSION:
            raise ValueError(f"profile: is not of version {VERSION}, the one that is read here")
        return msgspec.json.decode(document, type=ServiceProfile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"profile: {error}") from error


def rung(seconds: float) -> float:
    """The least of `WITHIN` that is not less."""
    return next((step for step in WITHIN if seconds <= step), WITHIN[-1])


def amid(step: float, ladder: tuple[float, ...]) -> float:
    """Seconds that lie between a step of a ladder and the one below it."""
    below = next((low for low, high in pairwise((0.0, *ladder)) if high == step), 0.0)
    return (below + step) / 2
