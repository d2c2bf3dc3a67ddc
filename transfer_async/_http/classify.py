"""Classifies responses: whether a request may have had an effect, and whether it may be sent again.

The functions have no side effects. One table covers orders and other unsafe requests, and another covers
reads. The first row that matches a response determines its classification.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs

from transfer_async._converters.converter import Answer
from transfer_async._converters.wire_format import Unreadable, decode, has_duplicate_fields
from transfer_async._http.retry import RetryPolicy, retry_after
from transfer_async._http.transport import SHORT, ExchangeResult
from transfer_async._models import requests
from transfer_async._models.errors import (
    CauseKind,
    ConnectionFailed,
    OutcomeUnknown,
    RateLimited,
    Refused,
    ServiceFailed,
    TransferError,
    Unauthorized,
    is_a,
    name_of,
)
from transfer_async._models.requests import NewExternalOrder, NewOrder, ascii_lower
from transfer_async._support.util import FrozenStruct

_CENT = Decimal("0.01")  # the largest allowed difference between the amounts in an order and its response

WRONG_TOKEN = {"message": "Unauthorized"}
"""The only error body that the specification defines (section 7)."""


class Classification(enum.Enum):
    """The result of an HTTP exchange: whether its request was sent, processed or refused."""

    NOT_SENT = "not sent"
    NOT_PROCESSED = "not processed"
    WRONG_TOKEN = "wrong token"  # noqa: S105 - no password
    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


RETRYABLE = frozenset({Classification.NOT_SENT, Classification.NOT_PROCESSED})
"""The classifications after which an order may be sent again, because the request had no effect."""

SERVICE_REFUSALS = frozenset(
    {Classification.NOT_PROCESSED, Classification.WRONG_TOKEN, Classification.REFUSED}
)
"""The classifications of a refusal by the service. After a refusal, the connection can be reused."""


class Rule(FrozenStruct, frozen=True):
    """One row of a classification table: a condition, the resulting classification, and the reason."""

    fits: Callable[[ExchangeResult, RetryPolicy], bool]
    classification: Classification
    reason: str


def _status(result: ExchangeResult) -> int:
    return result.status or 0


def _json(body: bytes) -> object:
    try:
        return decode(body)
    except Unreadable:
        return None


def _says_wrong_token(result: ExchangeResult) -> bool:
    # A long body cannot equal `WRONG_TOKEN`, so it is not parsed.
    short = len(result.body) < SHORT and result.intact
    return short and _json(result.body) == WRONG_TOKEN and not has_duplicate_fields(result.body)


_NEVER_SENT = Rule(
    lambda e, _: not e.sent,
    Classification.NOT_SENT,
    "no byte of the body was sent, so the service cannot have received the request",
)
_TOKEN_REFUSED = Rule(
    lambda e, _: _status(e) == 401 or (_status(e) // 100 in (2, 4) and _says_wrong_token(e)),
    Classification.WRONG_TOKEN,
    "the service rejected the token and did nothing (specification, section 7)",
)
_SUCCESS = Rule(
    lambda e, _: 200 <= _status(e) <= 299,
    Classification.ANSWERED,
    "the status means success, but the returned order must still match the order that was sent",
)
_PROMISED = Rule(
    lambda e, policy: _status(e) in policy.not_processed,
    Classification.NOT_PROCESSED,
    "a service sends 425 and 429 before it processes a request; a bank's contract may add other statuses",
)

_NOT_ALONE = "a second response was on the connection, so the first may belong to another request"

ORDER_ANSWERS: tuple[Rule, ...] = (
    _NEVER_SENT,
    Rule(
        lambda e, _: e.status is None,
        Classification.UNKNOWN,
        "the body was sent, but no response arrived: in a trial, 96 % of such orders had been processed",
    ),
    Rule(lambda e, _: not e.alone, Classification.UNKNOWN, _NOT_ALONE),
    _TOKEN_REFUSED,
    _SUCCESS,
    _PROMISED,
    Rule(
        lambda e, _: _status(e) == 403 and not (e.intact and _json(e.body) is not None),
        Classification.UNKNOWN,
        "a firewall may replace the response to a processed order with its own page",
    ),
    Rule(
        lambda e, policy: _status(e) in policy.refused,
        Classification.REFUSED,
        "the service refused the request; a truncated or unexpected body does not change that",
    ),
    Rule(
        lambda _, __: True,
        Classification.UNKNOWN,
        "proxies and services may send 5xx, 408, 409, 3xx and 1xx after they have received the order",
    ),
)

READ_ANSWERS: tuple[Rule, ...] = (
    _NEVER_SENT,
    Rule(
        lambda e, _: e.status is None,
        Classification.FAILED,
        "no response arrived, and sending a read again does no harm",
    ),
    Rule(lambda e, _: not e.alone, Classification.FAILED, _NOT_ALONE),
    _TOKEN_REFUSED,
    _SUCCESS,
    _PROMISED,
    Rule(
        lambda e, policy: _status(e) in policy.refused,
        Classification.REFUSED,
        "the service refused the request; a retry would have the same result",
    ),
    Rule(
        lambda e, _: _status(e) in (408, 500, 502, 503, 504),
        Classification.FAILED,
        "a temporary failure of the service or of a proxy; sending again does no harm",
    ),
    Rule(
        lambda _, __: True,
        Classification.UNKNOWN,
        "no usable response, and a retry is unlikely to get one",
    ),
)


def classify_response(result: ExchangeResult, policy: RetryPolicy, table: tuple[Rule, ...]) -> Classification:
    """Return the classification of the first matching row of ``table``."""
    row = next(row for row in table if row.fits(result, policy))
    return row.classification  # The last row always matches.


def other_order(sent: NewOrder, answer: Answer) -> str | None:
    """Return the name of the first field that differs between ``answer`` and the order sent, or None."""
    order = answer.order
    for name in ("poster_currency", "matcher_currency"):
        if _is_other(getattr(order, name), getattr(sent, name)):
            return name
    for name in ("poster_amount", "matcher_amount"):
        shown, wanted = getattr(order, name), getattr(sent, name)
        if shown != wanted and requests.differ(shown, wanted, by_more_than=min(requests.unit(wanted), _CENT)):
            return name
    if _is_other(answer.poster_username, sent.poster_username):
        return "poster's username"
    if _is_other(answer.beneficiary_username, sent.poster_recipient_username):
        return "beneficiary's username"
    return None


def _is_other(shown: str | None, sent: str) -> bool:
    return shown not in (None, sent) and ascii_lower(shown) != ascii_lower(sent)


def error_of(
    classification: Classification, result: ExchangeResult, *, now: datetime, reading: bool
) -> TransferError:
    """Create the error for a classification. Pass ``reading=True`` if the request only reads data."""
    common: dict[str, Any] = {"status": result.status, "request_id": result.request_id}
    wait = retry_after(result.headers.get("Retry-After"), now=now)
    if classification is Classification.NOT_SENT:
        error: TransferError = ConnectionFailed(_why(result, "no byte of the request was sent"))
    elif classification is Classification.WRONG_TOKEN:
        error = Unauthorized(message=_message(result), body=result.body, **common)
    elif classification in (Classification.NOT_PROCESSED, Classification.REFUSED):
        kind = RateLimited if result.status == 429 else Refused
        common["fields"] = () if reading else fields_named(result.body)
        error = kind(message=_message(result), body=result.body, retry_after=wait, **common)
    elif reading:
        why = _why(result, "no usable response")
        error = ServiceFailed(why, body=result.body, retry_after=wait, **common)
    else:
        raw = result.body if result.status is not None else None
        why = _why(result, "the request may have been processed")
        error = OutcomeUnknown(why, raw=raw, kind=_kind(result), **common)
    if result.error is not None and is_a(result.error, Exception):
        error.__cause__ = result.error
    if reading:
        error.order_may_exist = False
    return error


def _kind(result: ExchangeResult) -> CauseKind:
    if result.status is None:
        return CauseKind.NO_ANSWER
    if not result.alone:
        return CauseKind.SECOND_ANSWER
    return CauseKind.STATUS if result.intact else CauseKind.CUT_ANSWER


_FIELDS = (
    *(field.name for field in attrs.fields(NewOrder)),
    *(f"external_order.{field.name}" for field in attrs.fields(NewExternalOrder)),
)


def fields_named(body: bytes) -> tuple[str, ...]:
    """Return the names of order fields that a refusal lists in ``errors``; other names are ignored."""
    said = _json(body)
    errors = said.get("errors") if isinstance(said, dict) else None
    return tuple(name for name in _FIELDS if name in errors) if isinstance(errors, dict) else ()


def _message(result: ExchangeResult) -> str | None:
    body = _json(result.body)
    said = body.get("message") if isinstance(body, dict) else None
    return said if isinstance(said, str) else None


def _why(result: ExchangeResult, what: str) -> str:
    facts = [f"status {result.status}"] if result.status is not None else []
    if result.request_id is not None:
        facts.append(f"request {result.request_id}")
    if result.error is not None:
        facts.append(name_of(result.error))
    return f"{what} ({', '.join(facts)})" if facts else what
