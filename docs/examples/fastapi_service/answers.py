"""Build the HTTP responses of a payment service to its own callers, for every outcome of ``create_order``.

| status | when | what the caller may do |
| ---: | --- | --- |
| 201 | the order exists | continue |
| 202 | unknown: the order may exist | ask at the URL in ``ask``; never pay under another key |
| 409 | another call is using this key | ask at that URL, or repeat the request after ``Retry-After`` |
| 422 | refused, and a retry would be refused too; there is no order | correct the payment |
| 500 | never sent, because this service is configured wrongly | report it to us |
| 503 | never sent, or refused for a temporary reason | repeat the request with the same key |

An unknown outcome is 202, not 500 or 504: programs, proxies and people read those two as "failed", and pay
again. 202 is true: we have the payment, its outcome is not known yet, ask at that URL.

A token that the service refused (401) is 503: our caller cannot correct it, there is no order, and the same
request may succeed after we fix the token.
"""

import math
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from transfer_async import (
    Expired,
    HoldRequired,
    InvalidOrder,
    KeyBusy,
    KeyConflict,
    KeyRecord,
    KeyState,
    Order,
    Outcome,
    PreflightFailed,
    Refused,
    TransferError,
    WrongEventLoop,
)

PATIENCE = 5
"""Seconds until a caller should ask again, if the error gives no time."""


@dataclass(frozen=True)
class Answer:
    """An HTTP response, for any framework."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def answer(result: Order | TransferError, *, key: str) -> Answer:
    """Return the response to the caller that asked for the payment ``key``."""
    if isinstance(result, Order):
        return Answer(201, {"key": key, "outcome": "created", "order_may_exist": True, "order_id": result.id})
    status = status_of(result)
    body = {
        "key": key,
        "outcome": "unknown" if status == 202 else result.outcome.value,
        "order_may_exist": result.order_may_exist,
    }
    return Answer(status, body | _more(result, status, key), _headers(result, status))


def status_of(error: TransferError) -> int:
    """Return the HTTP status for an error: see the table above."""
    if error.outcome is Outcome.CREATED:
        return 201
    if error.outcome is Outcome.UNKNOWN or _is_no_for_this_call_only(error):
        return 202
    if isinstance(error, KeyBusy):
        return 409
    if isinstance(error, (HoldRequired, WrongEventLoop)):
        return 500
    return 422 if _is_the_callers(error) else 503


def answer_of_record(record: KeyRecord | None, *, key: str) -> Answer:
    """Return the response to a caller that asks for the state of the payment ``key``."""
    if record is None:
        return Answer(404, {"key": key, "state": "never heard of", "order_may_exist": False})
    body: dict[str, Any] = {"key": key, "state": record.state.value}
    if record.state is KeyState.CREATED:
        return Answer(200, body | {"order_may_exist": True, "order_id": record.order_id})
    if record.state is KeyState.FREE and record.readable:  # it ended in a definite failure
        return Answer(200, body | {"order_may_exist": False})
    return Answer(202, body | {"order_may_exist": True}, {"Retry-After": str(PATIENCE)})


def _is_no_for_this_call_only(error: TransferError) -> bool:
    """Return whether this call was refused, but the key may have an order, for example an unrecorded one."""
    return error.outcome is Outcome.REFUSED and error.order_may_exist


def _is_the_callers(error: TransferError) -> bool:
    """Return whether the same request would fail again until the caller changes it."""
    if isinstance(error, (InvalidOrder, KeyConflict)):  # whatever the state of the key
        return True
    if error.order_may_exist:
        return False
    if isinstance(error, PreflightFailed):
        return error.refused
    if isinstance(error, Refused):
        return error.is_final
    if isinstance(error, Expired):  # the quote expired; a deadline says nothing about a retry
        return error.limit == "send_before"
    return False


def _more(error: TransferError, status: int, key: str) -> dict[str, Any]:
    if status == 201:
        order = getattr(error, "order", None)
        return {"order_id": getattr(error, "order_id", None) or getattr(order, "id", None)}
    more: dict[str, Any] = {"error": type(error).__name__}  # never its text, which is for your log only
    if status in (202, 409):
        return more | {"ask": f"/payments/{quote(key, safe='')}"}
    if isinstance(error, InvalidOrder):
        return more | {"problems": [{"field": name, "why": why} for name, why in error.problems]}
    if isinstance(error, Refused) and error.fields:
        return more | {"fields": list(error.fields)}
    return more


def _headers(error: TransferError, status: int) -> dict[str, str]:
    if status not in (202, 409, 503):
        return {}
    asked_for: float | None = getattr(error, "retry_after", None)
    return {"Retry-After": str(PATIENCE if asked_for is None else math.ceil(asked_for))}
