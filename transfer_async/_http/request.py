"""All requests except create-order: they use the same retries, but no key, hold or journal."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

import msgspec
from multidict import CIMultiDict

from transfer_async._converters import converter
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._http import classify, retry, transport
from transfer_async._http.classify import Classification
from transfer_async._http.retry import RetryPolicy, TokenBucket
from transfer_async._http.transport import ExchangeResult, Timeouts, Transport
from transfer_async._models.errors import (
    Attempt,
    ClientClosed,
    Expired,
    Outcome,
    OutcomeUnknown,
    ServiceFailed,
    TokenUnavailable,
    TransferError,
    name_of,
    sanitize_exception,
)
from transfer_async._support.clock import NEVER, Clock, is_over, seconds_left
from transfer_async._support.util import FrozenStruct, MutableStruct, checked_async, passes

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Wanted(MutableStruct, kw_only=True):
    """A request as the caller described it."""

    method: str
    path: str
    content: bytes | None
    into: type[Any] | None
    safe: bool
    deadline: float

    @property
    def table(self) -> tuple[classify.Rule, ...]:
        """The table that classifies its responses."""
        return classify.READ_ANSWERS if self.safe else classify.ORDER_ANSWERS


class _Reading(MutableStruct, kw_only=True):
    """The state of one request while it is sent."""

    headers: CIMultiDict[str]
    cut: Callable[[], bool]
    deadline: float = NEVER
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    classification: Classification | None = None
    last: TransferError | None = None
    token_renewed: bool = False


def checked_method(method: str, *, safe: bool) -> str:
    """Return ``method`` in upper case.

    Raises:
        ValueError: ``method`` is not an HTTP method, or ``safe`` is given for one other than GET and HEAD.
    """
    name = method.upper() if isinstance(method, str) else ""
    if name not in _METHODS:
        raise ValueError(f"method: must be one of {', '.join(sorted(_METHODS))}")
    if safe and name not in ("GET", "HEAD"):
        raise ValueError("safe: is for GET and HEAD only; other methods must not be sent twice")
    return name


def encoded(json: Any) -> bytes | None:
    """Return ``json`` as bytes, or None without a value.

    Raises:
        ValueError: ``json`` cannot be written as JSON.
    """
    if json is None:
        return None
    try:
        if _holds_no_number(json):
            raise ValueError("NaN and infinities are no JSON")  # noqa: TRY301 - handled like any other
        content = converter.encode(json)
        decode(content)  # This detects a Decimal that is NaN.
        return content
    except BaseException as error:  # the caller's objects may raise anything
        if passes(error):
            raise
        why = f"json: cannot be written as JSON ({name_of(error)})"
    raise ValueError(why)


class UnderWay:
    """A count of the client's requests in progress."""

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
        """Wait at most ``patience`` seconds for the requests; after that they send nothing more."""
        if self._count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._none.wait()
        self.cut = True


def _holds_no_number(json: Any) -> bool:
    """Return whether ``json`` holds a NaN or infinity, which would silently become null."""
    if isinstance(json, float):
        return not math.isfinite(json)
    inner = json.values() if isinstance(json, dict) else json if isinstance(json, (list, tuple)) else ()
    return any(map(_holds_no_number, inner))


async def fetch(access: Access, wanted: Wanted, *, cut: Callable[[], bool] = lambda: False) -> Any:
    """Send ``wanted`` with its retries, and return the response that was read.

    Args:
        access: the client's connections, token and limits.
        wanted: the request.
        cut: returns whether the client has stopped waiting, so that nothing may be sent any more.

    Raises:
        TransferError: there is no usable response.
    """
    try:
        # The token is in no local variable, because error trackers record the variables of each frame.
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
            if not _may_retry(access, reading, error):
                raise
            answer = await retry.run_retries(
                attempt,
                error,
                policy=access.policy,
                bucket=access.bucket,
                clock=access.clock,
                until=lambda ahead: access.clock.now() + ahead < reading.deadline,
                may=partial(_may_retry, access, reading),
                pause=lambda pause: access.clock.sleep(pause.seconds),
            )
    except TransferError as error:
        sanitize_exception(error)
        error.attempts = tuple(reading.attempts)
        error.order_may_exist = False
        raise
    access.bucket.refund()
    return answer


async def _attempt(access: Access, wanted: Wanted, reading: _Reading) -> Any:
    if reading.classification is Classification.WRONG_TOKEN:
        reading.token_renewed = True
        reading.headers = await _headers(access, wanted, reading)
    _refuse_late(access, wanted, reading)
    if reading.cut():
        raise ClientClosed("the client was closed before the request was sent")
    began = access.clock.now()
    result = await access.transport.send(
        wanted.method,
        wanted.path,
        content=wanted.content,
        headers=reading.headers if wanted.content is not None else _of_no_body(reading.headers),
        left=reading.deadline - began,
        in_time=lambda: not is_over(access.clock, wanted.deadline),
    )
    error: TransferError | None = None
    try:
        return _answer(access, wanted, reading, result)
    except TransferError as raised:
        error = reading.last = raised
        raise
    finally:
        reading.attempts.append(
            Attempt(
                number=len(reading.attempts) + 1,
                seconds=access.clock.now() - began,
                outcome=Outcome.NOT_SENT if error is None or not result.sent else error.outcome,
                status=result.status,
                error=None if error is None else type(error).__name__,
                request_id=result.request_id,
            )
        )


async def _headers(access: Access, wanted: Wanted, reading: _Reading | None = None) -> CIMultiDict[str]:
    """Return the headers with the token; with a new one if the service did not accept that of ``reading``."""
    try:
        async with asyncio.timeout(seconds_left(access.clock, wanted.deadline)):
            return await access.tokens.headers(instead_of=reading.headers if reading else None)
    except TimeoutError:
        raise _expired(reading) from None


def _refuse_late(access: Access, wanted: Wanted, reading: _Reading) -> None:
    if is_over(access.clock, wanted.deadline):
        raise _expired(reading)


def _expired(reading: _Reading | None) -> TransferError:
    """Create the error for a deadline that passed: the error of the last attempt, or else `Expired`."""
    last = None if reading is None else reading.last
    return last or Expired("the call's deadline passed before the request could be sent", limit="deadline")


def _answer(access: Access, wanted: Wanted, reading: _Reading, result: ExchangeResult) -> Any:
    if not result.sent:
        _refuse_late(access, wanted, reading)
    reading.classification = classify.classify_response(result, access.policy, wanted.table)
    if reading.classification is Classification.WRONG_TOKEN:
        access.tokens.distrust(reading.headers)
    if reading.classification is not Classification.ANSWERED:
        raise classify.error_of(reading.classification, result, now=access.clock.utc(), reading=wanted.safe)
    common: dict[str, Any] = {"status": result.status, "request_id": result.request_id}
    try:
        if result.error is not None:
            reading.classification = Classification.FAILED if wanted.safe else Classification.UNKNOWN
            raise Unreadable("$", f"the body was cut ({name_of(result.error)})")  # noqa: TRY301
        return converter.read_into(wanted.into, result.body)
    except Unreadable as error:
        problem = str(error)
    except BaseException as error:  # the caller's own model may raise anything
        if passes(error):
            raise
        problem = name_of(error)  # Its text would show parts of the body.
    why = f"the answer cannot be read: {problem}"
    if wanted.safe:
        raise ServiceFailed(why, body=result.body, **common) from result.error
    raise OutcomeUnknown(why, raw=result.body, **common) from result.error


def _may_retry(access: Access, reading: _Reading, error: TransferError) -> bool:
    if isinstance(error, (TokenUnavailable, ClientClosed)):
        return False
    if reading.classification is Classification.WRONG_TOKEN:
        return access.tokens.renewable and not reading.token_renewed
    return reading.classification in classify.RETRYABLE or reading.classification is Classification.FAILED


def _of_no_body(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Return ``headers`` without those about a body (specification 4.2 shows none)."""
    without = headers.copy()
    del without["Content-Type"]
    return without


# --- access ------------------------------------------------------------------------------------------
# Every request needs these parts of a client.


class Access(FrozenStruct, frozen=True, kw_only=True):
    """The parts of one client for sending requests: connections, token, retries, timeouts and clock."""

    transport: Transport
    tokens: TokenSource
    policy: RetryPolicy
    bucket: TokenBucket
    timeouts: Timeouts
    clock: Clock


# --- bearer token ------------------------------------------------------------------------------------
# The bearer token (specification section 5) is a fixed string, or comes from the bank's callable.


Token = str | Callable[[], Awaitable[str]]


def checked(token: object) -> str:
    """Return ``token`` if it can be sent in a header.

    Raises:
        ValueError: it cannot; the text does not show it.
    """
    if not isinstance(token, str) or not token:
        why = "token: is not a non-empty string"
    elif not token.isascii() or not token.isprintable() or " " in token:
        why = "token: holds a space, a control character or a character beyond ASCII"
    else:
        return token
    del token  # Error trackers record the variables of each frame.
    raise ValueError(why)


def _checked_callable(token: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    return checked_async(
        token, "token()", name="token", kind="a string, or an async callable that returns one"
    )


class TokenSource:
    """The token of one client; concurrent callers share one renewal.

    Args:
        token: the token, or an async callable that returns one.
        timeout: the maximum seconds for one call of the callable.
        user_agent: the ``User-Agent`` of every request.
    """

    def __init__(self, token: Token, *, timeout: float, user_agent: str) -> None:
        self._ask = None if isinstance(token, str) else _checked_callable(token)
        self._timeout = timeout
        self._user_agent = user_agent
        self._asking: asyncio.Task[CIMultiDict[str]] | None = None
        self.current: CIMultiDict[str] | None = (
            self._headers_for(checked(token)) if isinstance(token, str) else None
        )
        """The headers of every request, or None while the token is not known."""

    @property
    def renewable(self) -> bool:
        """Whether a new token can be requested, because the token is a callable."""
        return self._ask is not None

    async def headers(self, *, instead_of: CIMultiDict[str] | None = None) -> CIMultiDict[str]:
        """Return the headers of every request; the same object until the token changes.

        Args:
            instead_of: the headers that the service answered with 401. A new token is requested, unless
                another caller has done so already.

        Raises:
            TokenUnavailable: the callable failed, took too long, or returned something that is not a token.
        """
        if self.current is not None and self.current is not instead_of:
            return self.current
        del instead_of  # An error tracker would record the old token.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
            self._asking.add_done_callback(_noted)
        asking = self._asking
        try:
            return await asyncio.shield(asking)  # Other callers may wait for it too.
        except TokenUnavailable as error:
            # Each call needs a copy, because it sets its own key on the error.
            raise copy.copy(error) from error.__cause__
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if not asking.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise TokenUnavailable("the token callable was cancelled") from error

    def distrust(self, headers: CIMultiDict[str] | None) -> None:
        """Discard the token of ``headers`` after a 401, so that the next caller requests a new one."""
        if self.renewable and self.current is headers:
            self.current = None

    def close(self) -> None:
        """Cancel the call of the token callable; callers that wait for it get no token."""
        if self._asking is not None:
            self._asking.cancel()

    async def _renew(self) -> CIMultiDict[str]:
        try:
            async with asyncio.timeout(self._timeout):
                cause = await self._keep_another()
        except TimeoutError as error:
            cause = sanitize_exception(error)
        if cause is not None:
            raise TokenUnavailable(f"the token callable failed ({name_of(cause)})") from cause
        assert self.current is not None  # noqa: S101 - it was kept just now
        return self.current

    async def _keep_another(self) -> BaseException | None:
        """Request a token and set the headers; return an error as a value: no frame may hold the token."""
        try:
            if self._ask is None:
                raise ValueError("the token is not a callable")  # noqa: TRY301 - as any other failure
            self.current = self._headers_for(checked(await self._ask()))
        except BaseException as error:
            if passes(error):
                raise
            return sanitize_exception(error)
        return None

    def _headers_for(self, token: str) -> CIMultiDict[str]:
        return CIMultiDict(
            {
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                "Content-Type": "application/json",
                "Accept-Encoding": transport.ACCEPTED,
                "User-Agent": self._user_agent,
            }
        )


def _noted(task: asyncio.Task[Any]) -> None:
    """Read the task's exception, so that asyncio does not log it if every caller was cancelled."""
    if not task.cancelled():
        task.exception()
