"""HTTP responses with which a bank's payment service reports the outcomes of ``create_order``.

This module needs no web framework and no extra. Pass ``status``, ``body`` and ``headers`` to your framework.

======  ==================================================  =======================================
status  when                                                what the caller may do
======  ==================================================  =======================================
201     the order exists                                    continue
202     unknown: the order may exist                        request the URL in ``ask``; never pay
                                                            again with another key
409     another call is using this key                      request the URL in ``ask``, or retry
                                                            after ``Retry-After`` seconds
422     refused, also on a retry; there is no order         correct the payment
500     never sent: the payment service is misconfigured    report it to the bank
503     never sent, or refused for a temporary reason       repeat the request with the same key
======  ==================================================  =======================================

The status of an unknown outcome is 202, not 500 or 504. Programs, proxies and people would treat 500 and 504
as failures, and pay again.

If the transfer service refuses the bank's token (401), the status is 503: there is no order, and the caller's
request may succeed once the bank has corrected its token.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

from attrs import Factory, frozen

from transfer_async._models.errors import (
    BeneficiaryNotVerified,
    Expired,
    HoldRequired,
    InvalidOrder,
    KeyBusy,
    KeyConflict,
    Outcome,
    PreflightFailed,
    Refused,
    TransferError,
    WrongEventLoop,
)
from transfer_async._models.responses import Order
from transfer_async.journal import KeyRecord, KeyState

__all__ = ["HTTPResponse", "http_status", "response_for_record", "response_to"]

RETRY_AFTER = 5
"""The default value of ``Retry-After``, in seconds, if the error contains no time."""


@frozen
class HTTPResponse:
    """An HTTP response, for any framework.

    Args:
        status: the status code.
        body: the JSON object, which contains no personal data and no text from the transfer service.
        headers: ``Retry-After`` for the statuses 202, 409 and 503, otherwise none.
    """

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = Factory(dict)


def response_to(result: Order | TransferError, *, key: str, ask: str = "/payments/{key}") -> HTTPResponse:
    """Return the response to a caller that requested the payment ``key``.

    Args:
        result: the order that ``create_order`` returned, or the error that it raised.
        key: the payment's key.
        ask: the path or URL at which your service returns `response_for_record`. The percent-encoded key
            replaces ``{key}``.
    """
    if isinstance(result, Order):
        body = {"key": key, "outcome": "created", "order_may_exist": True, "order_id": result.id}
        return HTTPResponse(201, body)
    status = http_status(result)
    body = {
        "key": key,
        "outcome": "unknown" if status == 202 else result.outcome.value,
        "order_may_exist": result.order_may_exist,
    }
    url = ask.replace("{key}", quote(key, safe=""))
    return HTTPResponse(status, body | _details(result, status, url), _headers(result, status))


def http_status(error: TransferError) -> int:
    """Return the HTTP status for an error: 201, 202, 409, 422, 500 or 503."""
    if error.outcome is Outcome.CREATED:
        return 201
    if error.outcome is Outcome.UNKNOWN or _is_refusal_of_this_call_only(error):
        return 202
    if isinstance(error, KeyBusy):
        return 409
    if isinstance(error, (HoldRequired, WrongEventLoop)):
        return 500
    return 422 if _fails_until_changed(error) else 503


def response_for_record(record: KeyRecord | None, *, key: str) -> HTTPResponse:
    """Return the response to a caller that requests the state of the payment ``key``.

    Args:
        record: the result of ``await client.known(key)``.
        key: the payment's key.
    """
    if record is None:
        return HTTPResponse(404, {"key": key, "state": "no_record", "order_may_exist": False})
    body: dict[str, Any] = {"key": key, "state": record.state.value}
    if record.state is KeyState.CREATED:
        return HTTPResponse(200, body | {"order_may_exist": True, "order_id": record.order_id})
    if record.state is KeyState.FREE and record.readable:  # The last call ended in a definite failure.
        return HTTPResponse(200, body | {"order_may_exist": False})
    return HTTPResponse(202, body | {"order_may_exist": True}, {"Retry-After": str(RETRY_AFTER)})


def _is_refusal_of_this_call_only(error: TransferError) -> bool:
    """Return whether only this call was refused, and an order for the key may still exist."""
    return error.outcome is Outcome.REFUSED and error.order_may_exist


def _fails_until_changed(error: TransferError) -> bool:
    """Return whether the request cannot succeed unless the caller changes it."""
    if isinstance(error, (InvalidOrder, KeyConflict)):  # in every state of the key
        return True
    if error.order_may_exist:
        return False
    if isinstance(error, PreflightFailed):
        return error.refused
    if isinstance(error, Refused):
        return error.is_final
    if isinstance(error, Expired):  # Only a call's deadline allows a retry; the quote's does not.
        return error.limit == "send_before"
    return False


def _details(error: TransferError, status: int, ask: str) -> dict[str, Any]:
    if status == 201:
        order = getattr(error, "order", None)
        return {"order_id": getattr(error, "order_id", None) or getattr(order, "id", None)}
    details: dict[str, Any] = {"error": type(error).__name__}  # The error's text is for the bank's log only.
    if status in (202, 409):
        return details | {"ask": ask}
    if isinstance(error, BeneficiaryNotVerified):
        reason = None if error.reason is None else error.reason.value
        return details | {"beneficiary": error.result.code, "reason": reason}
    if isinstance(error, InvalidOrder):
        return details | {"problems": [{"field": name, "why": why} for name, why in error.problems]}
    if isinstance(error, Refused) and error.fields:
        return details | {"fields": list(error.fields)}
    return details


def _headers(error: TransferError, status: int) -> dict[str, str]:
    if status not in (202, 409, 503):
        return {}
    requested: float | None = getattr(error, "retry_after", None)
    return {"Retry-After": str(RETRY_AFTER if requested is None else math.ceil(requested))}
