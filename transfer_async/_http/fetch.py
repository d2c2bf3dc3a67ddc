"""Every request but create-order: the same retries and evidence, and no key, hold or journal."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import msgspec
from multidict import CIMultiDict

from transfer_async._converters import converter
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._http import classify, retry
from transfer_async._http.access import Access
from transfer_async._http.classify import Judgement
from transfer_async._http.transport import Evidence
from transfer_async._models.causes import bare
from transfer_async._models.errors import (
    Attempt,
    ClientClosed,
    Expired,
    Outcome,
    OutcomeUnknown,
    ServiceFailed,
    TokenUnavailable,
    TransferError,
)
from transfer_async._support.deadlines import NEVER, is_over, seconds_left
from transfer_async._support.state import State

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Wanted(State, kw_only=True):
    """A request as it was asked for."""

    method: str
    path: str
    content: bytes | None
    into: type[Any] | None
    safe: bool
    deadline: float

    @property
    def table(self) -> tuple[classify.Row, ...]:
        """What its answers mean."""
        return classify.READ_ANSWERS if self.safe else classify.ORDER_ANSWERS


class _Reading(State, kw_only=True):
    """How far one request has come."""

    headers: CIMultiDict[str]
    cut: Callable[[], bool]
    deadline: float = NEVER
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    judgement: Judgement | None = None
    last: TransferError | None = None
    token_renewed: bool = False


def checked_method(method: str, *, safe: bool) -> str:
    """``method`` in upper case.

    Raises:
        ValueError: it is none, or ``safe`` is claimed for one that changes something.
    """
    name = method.upper() if isinstance(method, str) else ""
    if name not in _METHODS:
        raise ValueError(f"method: must be one of {', '.join(sorted(_METHODS))}")
    if safe and name not in ("GET", "HEAD"):
        raise ValueError("safe: is for GET and HEAD; nothing else may be done twice")
    return name


def encoded(json: Any) -> bytes | None:
    """``json`` as bytes; None if there is none.

    Raises:
        ValueError: it cannot be written as JSON.
    """
    if json is None:
        return None
    try:
        if _holds_no_number(json):
            raise ValueError("NaN and infinities are no JSON")  # noqa: TRY301 - told like any other
        content = converter.encode(json)
        decode(content)  # a Decimal may be NaN, which is no JSON
        return content
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"json: cannot be written as JSON ({type(error).__name__})") from None


class UnderWay:
    """The requests that a client has under way: how many, and when the last has ended."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self.cut: bool = False

    def __enter__(self) -> Self:
        self._count += 1
        self._none.clear()
        return self

    def __exit__(self, *exc: object) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    async def finish(self, *, patience: float) -> None:
        """Wait for all; those that last longer send nothing more."""
        if self._count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._none.wait()
        self.cut = True


def _holds_no_number(json: Any) -> bool:
    """Whether there is a float in ``json`` that would silently become null."""
    if isinstance(json, float):
        return not math.isfinite(json)
    inner = json.values() if isinstance(json, dict) else json if isinstance(json, (list, tuple)) else ()
    return any(map(_holds_no_number, inner))


async def fetch(access: Access, wanted: Wanted, *, cut: Callable[[], bool] = lambda: False) -> Any:
    """Send ``wanted``, again after what may be sent again, and read the answer.

    Args:
        access: what it takes to speak with the service.
        wanted: the request.
        cut: whether the client is closed, so that nothing may be sent any more.
    """
    try:
        # In no variable of this frame: tracebacks are drawn with what those hold.
        reading = _Reading(headers=access.tokens.current or await _headers(access, wanted), cut=cut)
    except (TokenUnavailable, Expired) as error:
        error.order_may_exist = False
        raise
    reading.deadline = min(access.clock.now() + access.policy.deadline, wanted.deadline)
    attempt = partial(_attempt, access, wanted, reading)
    try:
        try:
            answer = await attempt()
        except TransferError as error:
            if not _may_go_again(access, reading, error):
                raise
            answer = await retry.go_again(
                attempt,
                error,
                policy=access.policy,
                bucket=access.bucket,
                clock=access.clock,
                until=lambda ahead: access.clock.now() + ahead < reading.deadline,
                may=partial(_may_go_again, access, reading),
                pause=lambda pause: access.clock.sleep(pause.seconds),
            )
    except TransferError as error:
        bare(error)
        error.attempts = tuple(reading.attempts)
        error.order_may_exist = False
        raise
    access.bucket.refund()
    return answer


async def _attempt(access: Access, wanted: Wanted, reading: _Reading) -> Any:
    if reading.judgement is Judgement.WRONG_TOKEN:
        reading.token_renewed = True
        reading.headers = await _headers(access, wanted, reading)
    _refuse_late(access, wanted, reading)
    if reading.cut():
        raise ClientClosed("the client was closed before the request was sent")
    began = access.clock.now()
    evidence = await access.transport.send(
        wanted.method,
        wanted.path,
        content=wanted.content,
        headers=reading.headers if wanted.content is not None else _of_no_body(reading.headers),
        left=reading.deadline - began,
        in_time=lambda: not is_over(access.clock, wanted.deadline),
    )
    error: TransferError | None = None
    try:
        return _answer(access, wanted, reading, evidence)
    except TransferError as raised:
        error = reading.last = raised
        raise
    finally:
        reading.attempts.append(
            Attempt(
                number=len(reading.attempts) + 1,
                seconds=access.clock.now() - began,
                outcome=Outcome.NOT_SENT if error is None or not evidence.sent else error.outcome,
                status=evidence.status,
                error=None if error is None else type(error).__name__,
                request_id=evidence.request_id,
            )
        )


async def _headers(access: Access, wanted: Wanted, reading: _Reading | None = None) -> CIMultiDict[str]:
    """With the token; with another one, if that of ``reading`` was not good."""
    try:
        async with asyncio.timeout(seconds_left(access.clock, wanted.deadline)):
            return await access.tokens.headers(instead_of=reading.headers if reading else None)
    except TimeoutError:
        raise _expired(reading) from None


def _refuse_late(access: Access, wanted: Wanted, reading: _Reading) -> None:
    if is_over(access.clock, wanted.deadline):
        raise _expired(reading)


def _expired(reading: _Reading | None) -> TransferError:
    """What is certain when the caller waits no longer: what the last attempt ended in, if there was one."""
    last = None if reading is None else reading.last
    return last or Expired("the call's deadline passed before the request could be sent", limit="deadline")


def _answer(access: Access, wanted: Wanted, reading: _Reading, evidence: Evidence) -> Any:
    if not evidence.sent:
        _refuse_late(access, wanted, reading)
    reading.judgement = classify.judge(evidence, access.policy, wanted.table)
    if reading.judgement is Judgement.WRONG_TOKEN:
        access.tokens.distrust(reading.headers)
    if reading.judgement is not Judgement.ANSWERED:
        raise classify.error_of(reading.judgement, evidence, now=access.clock.utc(), reading=wanted.safe)
    common: dict[str, Any] = {"status": evidence.status, "request_id": evidence.request_id}
    try:
        if evidence.error is not None:
            reading.judgement = Judgement.FAILED if wanted.safe else Judgement.UNKNOWN
            raise Unreadable("$", f"the body was cut ({type(evidence.error).__name__})")  # noqa: TRY301
        return converter.read_into(wanted.into, evidence.body)
    except Exception as error:  # noqa: BLE001 - the caller's own model may raise anything, and the request is out
        # Only told: it has parts of the body in it.
        told = str(error) if isinstance(error, Unreadable) else type(error).__name__
    why = f"the answer cannot be read: {told}"
    if wanted.safe:
        raise ServiceFailed(why, body=evidence.body, **common) from evidence.error
    raise OutcomeUnknown(why, raw=evidence.body, **common) from evidence.error


def _may_go_again(access: Access, reading: _Reading, error: TransferError) -> bool:
    if isinstance(error, (TokenUnavailable, ClientClosed)):
        return False
    if reading.judgement is Judgement.WRONG_TOKEN:
        return access.tokens.renewable and not reading.token_renewed
    return reading.judgement in classify.MAY_GO_AGAIN or reading.judgement is Judgement.FAILED


def _of_no_body(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """``headers`` without what speaks of a body (specification 4.2 shows none)."""
    without = headers.copy()
    del without["Content-Type"]
    return without
