"""What the evidence of an exchange means: is it an answer, a refusal, nothing at all, or a doubt?

Pure. Two tables, one for orders and one for everything else; the first row that fits decides.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs

from transfer_async._converters.order import Answer
from transfer_async._converters.wire_format import Unreadable, decode, has_twins
from transfer_async._http.retry import RetryPolicy, retry_after
from transfer_async._http.transport import SHORT, Evidence
from transfer_async._models import amounts
from transfer_async._models.errors import (
    CauseKind,
    ConnectionFailed,
    OutcomeUnknown,
    RateLimited,
    Refused,
    ServiceFailed,
    TransferError,
    Unauthorized,
)
from transfer_async._models.requests import NewExternalOrder, NewOrder
from transfer_async._support.state import Fixed

WRONG_TOKEN = {"message": "Unauthorized"}
"""The one error body that the specification shows (section 7)."""


class Judgement(enum.Enum):
    """What is certain of one exchange."""

    NOT_SENT = "not sent"
    NOT_PROCESSED = "not processed"
    WRONG_TOKEN = "wrong token"  # noqa: S105 - a judgement
    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


MAY_GO_AGAIN = frozenset({Judgement.NOT_SENT, Judgement.NOT_PROCESSED})
"""What certainly did nothing: an order may be sent again after these, and after nothing else."""


SAID_NO = frozenset({Judgement.NOT_PROCESSED, Judgement.WRONG_TOKEN, Judgement.REFUSED})
"""What a service says to a request that it will not carry out; the connection it says it on is good."""


class Row(Fixed, frozen=True):
    """One row of a table: does it fit, what is certain then, and why."""

    fits: Callable[[Evidence, RetryPolicy], bool]
    judgement: Judgement
    reason: str


def _status(evidence: Evidence) -> int:
    return evidence.status or 0


def _json(body: bytes) -> object:
    try:
        return decode(body)
    except Unreadable:
        return None


def _says_wrong_token(evidence: Evidence) -> bool:
    # 16 MB of JSON need not be read to know that it is not 27 bytes of it.
    short = len(evidence.body) < SHORT and evidence.intact
    return short and _json(evidence.body) == WRONG_TOKEN and not has_twins(evidence.body)


_NEVER_SENT = Row(
    lambda e, _: not e.sent,
    Judgement.NOT_SENT,
    "no byte of the body left us: the service cannot have it",
)
_TOKEN_REFUSED = Row(
    lambda e, _: _status(e) == 401 or (_status(e) // 100 in (2, 4) and _says_wrong_token(e)),
    Judgement.WRONG_TOKEN,
    "the caller was not known, so nothing was done in its name (specification, section 7)",
)
_SUCCESS = Row(
    lambda e, _: 200 <= _status(e) <= 299,
    Judgement.ANSWERED,
    "an order, if it reads as ours; otherwise one may exist that we cannot read",
)
_PROMISED = Row(
    lambda e, policy: _status(e) in policy.not_processed,
    Judgement.NOT_PROCESSED,
    "425 and 429 are given before the work begins; others by the bank's contract with the service",
)

_NOT_ALONE = "somebody else's answer was on the connection: ours is another, or still to come"

ORDER_ANSWERS: tuple[Row, ...] = (
    _NEVER_SENT,
    Row(
        lambda e, _: e.status is None,
        Judgement.UNKNOWN,
        "the body left and nothing came back: 96 % of such orders turned out to be processed",
    ),
    Row(lambda e, _: not e.alone, Judgement.UNKNOWN, _NOT_ALONE),
    _TOKEN_REFUSED,
    _SUCCESS,
    _PROMISED,
    Row(
        lambda e, _: _status(e) == 403 and not (e.intact and _json(e.body) is not None),
        Judgement.UNKNOWN,
        "a firewall may put its own page over the answer to an order that was processed",
    ),
    Row(
        lambda e, policy: _status(e) in policy.refused,
        Judgement.REFUSED,
        "the request itself was found wanting; a cut or foreign body does not change that",
    ),
    Row(
        lambda _, __: True,
        Judgement.UNKNOWN,
        "5xx, 408, 409, 3xx and 1xx are said by proxies and services that may have the order already",
    ),
)

READ_ANSWERS: tuple[Row, ...] = (
    _NEVER_SENT,
    Row(
        lambda e, _: e.status is None, Judgement.FAILED, "the answer was lost, and asking again does no harm"
    ),
    Row(lambda e, _: not e.alone, Judgement.FAILED, _NOT_ALONE),
    _TOKEN_REFUSED,
    _SUCCESS,
    _PROMISED,
    Row(
        lambda e, policy: _status(e) in policy.refused,
        Judgement.REFUSED,
        "the request itself was found wanting; asking again changes nothing",
    ),
    Row(
        lambda e, _: _status(e) in (408, 500, 502, 503, 504),
        Judgement.FAILED,
        "a passing trouble of the service or of a proxy before it; asking again does no harm",
    ),
    Row(lambda _, __: True, Judgement.UNKNOWN, "not an answer, and no reason to think that the next one is"),
)


def judge(evidence: Evidence, policy: RetryPolicy, table: tuple[Row, ...]) -> Judgement:
    """The judgement of the first row of ``table`` that fits."""
    for row in table:
        if row.fits(evidence, policy):
            break
    return row.judgement  # the last one fits anything


_CENT = Decimal("0.01")
"""No amount is answered further than this from the one sent, even where its last place is whole units."""


def other_order(sent: NewOrder, answer: Answer) -> str | None:
    """The first field that shows ``answer`` to be to another order than the one sent; None if none does."""
    order = answer.order
    for name in ("poster_currency", "matcher_currency"):
        if getattr(order, name).casefold() != getattr(sent, name).casefold():
            return name
    for name in ("poster_amount", "matcher_amount"):
        shown, wanted = getattr(order, name), getattr(sent, name)
        if shown != wanted and amounts.differ(shown, wanted, by_more_than=min(amounts.unit(wanted), _CENT)):
            return name
    if _is_other(answer.poster_username, sent.poster_username):
        return "poster's username"
    if _is_other(answer.beneficiary_username, sent.poster_recipient_username):
        return "beneficiary's username"
    return None


def _is_other(shown: str | None, sent: str) -> bool:
    return shown is not None and shown.casefold() != sent.casefold()


def error_of(judgement: Judgement, evidence: Evidence, *, now: datetime, reading: bool) -> TransferError:
    """The error that says what ``judgement`` says; ``reading`` where no order is at stake."""
    common: dict[str, Any] = {"status": evidence.status, "request_id": evidence.request_id}
    wait = retry_after(evidence.headers.get("Retry-After"), now=now)
    if judgement is Judgement.NOT_SENT:
        error: TransferError = ConnectionFailed(_why(evidence, "no byte of the request left"))
    elif judgement is Judgement.WRONG_TOKEN:
        error = Unauthorized(message=_message(evidence), body=evidence.body, **common)
    elif judgement in (Judgement.NOT_PROCESSED, Judgement.REFUSED):
        kind = RateLimited if evidence.status == 429 else Refused
        common["fields"] = () if reading else fields_named(evidence.body)
        error = kind(message=_message(evidence), body=evidence.body, retry_after=wait, **common)
    elif reading:
        why = _why(evidence, "no usable answer")
        error = ServiceFailed(why, body=evidence.body, retry_after=wait, **common)
    else:
        raw = evidence.body if evidence.status is not None else None
        why = _why(evidence, "the request may have been processed")
        error = OutcomeUnknown(why, raw=raw, kind=_kind(evidence), **common)
    error.__cause__ = evidence.error if isinstance(evidence.error, Exception) else None
    if reading:
        error.order_may_exist = False
    return error


def _kind(evidence: Evidence) -> CauseKind:
    if evidence.status is None:
        return CauseKind.NO_ANSWER
    if not evidence.alone:
        return CauseKind.SECOND_ANSWER
    return CauseKind.STATUS if evidence.intact else CauseKind.CUT_ANSWER


_FIELDS = (
    *(one.name for one in attrs.fields(NewOrder)),
    *(f"external_order.{one.name}" for one in attrs.fields(NewExternalOrder)),
)


def fields_named(body: bytes) -> tuple[str, ...]:
    """The fields of the request that a refusal's ``errors`` name, by the specification's names alone."""
    said = _json(body)
    errors = said.get("errors") if isinstance(said, dict) else None
    return tuple(name for name in _FIELDS if name in errors) if isinstance(errors, dict) else ()


def _message(evidence: Evidence) -> str | None:
    body = _json(evidence.body)
    said = body.get("message") if isinstance(body, dict) else None
    return said if isinstance(said, str) else None


def _why(evidence: Evidence, what: str) -> str:
    told = [f"status {evidence.status}"] if evidence.status is not None else []
    if evidence.request_id is not None:
        told.append(f"request {evidence.request_id}")
    if evidence.error is not None:
        told.append(type(evidence.error).__name__)
    return f"{what} ({', '.join(told)})" if told else what
