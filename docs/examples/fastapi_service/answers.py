"""What a service of yours answers its own callers, whatever ``create_order`` ends in.

| status | when | what the caller may do |
| ---: | --- | --- |
| 201 | the order exists | go on |
| 202 | unknown: the order may exist | ask at ``ask``; never pay under another key |
| 409 | another call is at work on this key | ask at ``ask``, or repeat the request after ``Retry-After`` |
| 422 | refused, and it would be again; there is no order | correct the payment |
| 500 | never sent, because this service is put together wrongly | tell us |
| 503 | never sent, or not taken for a reason that passes | repeat the request, with the same key |

Why 202, and neither 500 nor 504, for what is unknown: programs, proxies and people read those two as
"failed", and pay again. 202 says what is true: we have the payment, its end is not known yet, ask there.

Why 503 where the service refused our token (401): it is nothing that our caller could correct, there is
no order, and the same request may succeed as soon as we have mended it.
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
    OpenElsewhere,
    Order,
    Outcome,
    PreflightFailed,
    Refused,
    TransferError,
)

PATIENCE = 5
"""Seconds until a caller should ask again, where nobody has said otherwise."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, for any framework."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def answer(result: Order | TransferError, *, key: str) -> Answer:
    """What to tell whoever asked for the payment ``key``."""
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
    """The status for an error: see the table above."""
    if error.outcome is Outcome.CREATED:
        return 201
    if error.outcome is Outcome.UNKNOWN or _is_no_for_this_call_only(error):
        return 202
    if isinstance(error, KeyBusy):
        return 409
    if isinstance(error, (HoldRequired, OpenElsewhere)):
        return 500
    return 422 if _is_the_callers(error) else 503


def answer_of_record(record: KeyRecord | None, *, key: str) -> Answer:
    """What to tell whoever asks what became of the payment ``key``."""
    if record is None:
        return Answer(404, {"key": key, "state": "never heard of", "order_may_exist": False})
    body: dict[str, Any] = {"key": key, "state": record.state.value}
    if record.state is KeyState.CREATED:
        return Answer(200, body | {"order_may_exist": True, "order_id": record.order_id})
    if record.state is KeyState.FREE and record.readable:  # it ended in a certain no
        return Answer(200, body | {"order_may_exist": False})
    return Answer(202, body | {"order_may_exist": True}, {"Retry-After": str(PATIENCE)})


def _is_no_for_this_call_only(error: TransferError) -> bool:
    """The service refused, but the key may have an order all the same: it was not recorded, for example."""
    return error.outcome is Outcome.REFUSED and error.order_may_exist


def _is_the_callers(error: TransferError) -> bool:
    """Whether the same request would fail again until the caller changes it."""
    if isinstance(error, KeyConflict):
        return True
    if error.order_may_exist:
        return False
    if isinstance(error, PreflightFailed):
        return error.refused
    if isinstance(error, Refused):
        return error.is_final
    if isinstance(error, Expired):  # its quote is over; of a deadline of your own it knows nothing
        return error.limit == "send_before"
    return isinstance(error, InvalidOrder)


def _more(error: TransferError, status: int, key: str) -> dict[str, Any]:
    if status == 201:
        order = getattr(error, "order", None)
        return {"order_id": getattr(error, "order_id", None) or getattr(order, "id", None)}
    more: dict[str, Any] = {"error": type(error).__name__}  # never its text: that is for your log
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
