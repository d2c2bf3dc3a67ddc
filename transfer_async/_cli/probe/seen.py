"""From what came back to what may be kept of it: nothing that names a person, a token or a machine."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from transfer_async._cli.probe.one_connection import RawAnswer
from transfer_async._http.classify import WRONG_TOKEN
from transfer_async.sandbox import SeenAnswer
from transfer_async.sandbox.profile import NOT_KEPT, BodyKind, OrderSeen, rung

SHOWN_HEADERS = frozenset({"server", "via", "allow", "retry-after", "connection", "keep-alive", "x-cache"})
"""Headers whose value says how the service, or a proxy before it, works; of all others the name is kept."""

FIELDS = frozenset(
    {
        "code",
        "data",
        "detail",
        "details",
        "error",
        "error_code",
        "errors",
        "fields",
        "id",
        "message",
        "reason",
    }
) | {"request_id", "status", "status_code", "statusCode", "success", "title", "trace_id", "type"}
"""Names of fields that many services answer with: they name nobody."""

ORDER_ID = re.compile(rb'"(tx-[a-z0-9]{1,80})"')

_AN_ID = re.compile(r"(^|[-_])(id|ray|trace|traceparent)($|[-_])")
_SHOWABLE = re.compile(r"[\x20-\x7e]{0,200}")
_NAME = re.compile(r"[a-z0-9-]{1,100}")


def seen(raw: RawAnswer, *, seconds: float, known: Collection[str] | None = None) -> SeenAnswer:
    """What is kept of an answer.

    Args:
        raw: it.
        seconds: that it took.
        known: the ids of orders that are known already; None where no order was asked for.
    """
    if raw.status is None:
        return SeenAnswer(order="none" if known is None else "unknown")
    document = _json(raw.body)
    return SeenAnswer(
        status=raw.status,
        body=_kind(raw, document),
        fields=tuple(sorted(FIELDS.intersection(document))) if isinstance(document, dict) else (),
        unauthorized=document == WRONG_TOKEN,
        headers=_headers(raw.headers),
        within=rung(seconds),
        order="none" if known is None else order_in(raw, known),
    )


def ids_in(raw: RawAnswer) -> list[str]:
    """The ids of orders that an answer names."""
    return [found.decode() for found in ORDER_ID.findall(raw.body)]


def order_in(raw: RawAnswer, known: Collection[str]) -> OrderSeen:
    """What an answer to an order says of it."""
    ids = ids_in(raw)
    if ids:
        return "same" if set(ids) & set(known) else "new"
    return "none" if raw.status is not None and 400 <= raw.status <= 499 and raw.status != 408 else "unknown"


def request_ids(answers: Iterable[RawAnswer]) -> tuple[str, ...]:
    """Headers whose name says that they are an id, and whose value was another in each answer."""
    values: dict[str, list[str]] = {}
    for answer in answers:
        for name, value in answer.headers:
            values.setdefault(name.lower(), []).append(value)
    return tuple(
        sorted(
            name
            for name, found in values.items()
            if _NAME.fullmatch(name)
            and _AN_ID.search(name)
            and len(found) > 1
            and len(set(found)) == len(found)
        )
    )


def _headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    names = {name.lower(): value for name, value in headers if _NAME.fullmatch(name.lower())}
    return {
        name: value if name in SHOWN_HEADERS and _SHOWABLE.fullmatch(value) else ""
        for name, value in sorted(names.items())
        if name not in NOT_KEPT
    }


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _kind(raw: RawAnswer, document: object) -> BodyKind:
    if not raw.body:
        return "empty"
    if document is not None:
        return "json"
    return "html" if raw.body.lstrip()[:1] == b"<" else "text"
