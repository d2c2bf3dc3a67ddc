"""Requests that create no order: they are retried like orders, but need no key, hold or journal."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import msgspec
from multidict import CIMultiDict

from transfer_async._converters import converter
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._http import classify, retry, transport
from transfer_async._http.classify import Classification
from transfer_async._http.retry import RetryPolicy, TokenBucket
from transfer_async._http.transport import ExchangeResult, Transport
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
from transfer_async._models.events import Observers
from transfer_async._support.clock import NEVER, Clock, is_over, seconds_left
from transfer_async._support.util import (
    MutableStruct,
    checked_async,
    must_propagate,
    retrieve_exception,
)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ServiceRequest(MutableStruct, kw_only=True):
    """A request that creates no order, with the arguments that the caller passed."""

    method: str
    path: str
    content: bytes | None
    into: type[Any] | None
    safe: bool
    deadline: float


class _RequestState(MutableStruct, kw_only=True):
    """The progress of one request across all its attempts."""

    headers: CIMultiDict[str]
    deadline: float = NEVER
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    classification: Classification | None = None
    last_failure: TransferError | None = None
    token_renewed: bool = False


def checked_method(method: str, *, safe: bool) -> str:
    """Return ``method`` in upper case. If ``safe`` is true, it must be GET or HEAD."""
    name = method.upper() if isinstance(method, str) else ""
    if name not in _METHODS:
        raise ValueError(f"method: must be one of {', '.join(sorted(_METHODS))}")
    if safe and name not in ("GET", "HEAD"):
        raise ValueError("safe: is allowed for GET and HEAD only; other methods must not be sent twice")
    return name


def encoded(json: Any) -> bytes | None:
    """Return ``json`` encoded as bytes, or None if ``json`` is None."""
    if json is None:
        return None
    try:
        if _holds_no_number(json):
            raise ValueError("NaN and infinities are not JSON")  # noqa: TRY301 - handled below
        content = converter.encode(json)
        decode(content)  # This detects a Decimal that is NaN.
        return content
    except BaseException as error:  # The caller's objects may raise any error.
        if must_propagate(error):
            raise
        why = f"json: cannot be written as JSON ({name_of(error)})"
    raise ValueError(why)


def _holds_no_number(json: Any) -> bool:
    """Return whether ``json`` contains NaN or infinity, which would silently become null."""
    if isinstance(json, float):
        return not math.isfinite(json)
    inner = json.values() if isinstance(json, dict) else json if isinstance(json, (list, tuple)) else ()
    return any(map(_holds_no_number, inner))


class OtherRequests:
    """Sends all requests of a client except orders, and counts the requests in progress."""

    def __init__(
        self,
        *,
        transport: Transport,
        tokens: TokenSource,
        policy: RetryPolicy,
        bucket: TokenBucket,
        clock: Clock,
        observers: Observers,
    ) -> None:
        self._transport, self._tokens, self._observers = transport, tokens, observers
        self._policy, self._bucket, self._clock = policy, bucket, clock
        self._count = 0
        self._none_left = asyncio.Event()
        self._is_cut = False

    async def send(self, request: ServiceRequest) -> Any:
        """Send ``request``, retry it if necessary, and return the decoded response."""
        self._count += 1
        self._none_left.clear()
        try:
            return await self._send(request)
        finally:
            self._count -= 1
            if not self._count:
                self._none_left.set()

    async def finish(self, *, wait: float) -> None:
        """Wait at most ``wait`` seconds for the requests in progress, then prevent further attempts."""
        if self._count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._none_left.wait()
        self.cut_off()

    def cut_off(self) -> None:
        """Prevent further attempts, because the client no longer waits for requests."""
        self._is_cut = True

    async def _send(self, request: ServiceRequest) -> Any:
        try:
            # No local variable holds the token, because error trackers record the variables of each frame.
            state = _RequestState(headers=self._tokens.current or await self._headers(request))
        except (TokenUnavailable, Expired) as error:
            error.order_may_exist = False
            raise
        state.deadline = min(self._clock.now() + self._policy.deadline, request.deadline)
        attempt = partial(self._attempt, request, state)
        try:
            try:
                answer = await attempt()
            except TransferError as error:
                if not self._may_retry(state, error):
                    raise
                answer = await retry.run_retries(
                    attempt,
                    error,
                    policy=self._policy,
                    bucket=self._bucket,
                    clock=self._clock,
                    until=lambda ahead: self._clock.now() + ahead < state.deadline,
                    may=partial(self._may_retry, state),
                    pause=lambda pause: self._clock.sleep(pause.seconds),
                )
        except TransferError as error:
            sanitize_exception(error)
            error.attempts = tuple(state.attempts)
            error.order_may_exist = False
            raise
        self._bucket.refund()
        return answer

    async def _attempt(self, request: ServiceRequest, state: _RequestState) -> Any:
        if state.classification is Classification.WRONG_TOKEN:
            state.token_renewed = True
            state.headers = await self._headers(request, state)
        if is_over(self._clock, request.deadline):
            raise _expired(state)
        if self._is_cut:
            raise ClientClosed("the client was closed before the request was sent")
        began = self._clock.now()
        result = await self._transport.send(
            request.method,
            request.path,
            content=request.content,
            headers=self._request_headers(request, state),
            left=state.deadline - began,
            in_time=lambda: not is_over(self._clock, request.deadline),
        )
        error: TransferError | None = None
        try:
            return self._answer(request, state, result)
        except TransferError as raised:
            error = state.last_failure = raised
            raise
        finally:
            state.attempts.append(
                Attempt(
                    number=len(state.attempts) + 1,
                    seconds=self._clock.now() - began,
                    outcome=Outcome.NOT_SENT if error is None or not result.sent else error.outcome,
                    status=result.status,
                    error=None if error is None else type(error).__name__,
                    request_id=result.request_id,
                )
            )

    def _request_headers(self, request: ServiceRequest, state: _RequestState) -> CIMultiDict[str]:
        headers = with_added(state.headers, self._observers.request_headers(None))
        if request.content is None:
            del headers["Content-Type"]  # The request has no body (specification 4.2).
        return headers

    async def _headers(self, request: ServiceRequest, state: _RequestState | None = None) -> CIMultiDict[str]:
        """Return the headers, with a new token if the service rejected the one in ``state``."""
        try:
            async with asyncio.timeout(seconds_left(self._clock, request.deadline)):
                return await self._tokens.headers(instead_of=state.headers if state else None)
        except TimeoutError:
            raise _expired(state) from None

    def _answer(self, request: ServiceRequest, state: _RequestState, result: ExchangeResult) -> Any:
        if not result.sent and is_over(self._clock, request.deadline):
            raise _expired(state)
        table = classify.READ_ANSWERS if request.safe else classify.ORDER_ANSWERS
        state.classification = classify.classify_response(result, self._policy, table)
        if state.classification is Classification.WRONG_TOKEN:
            self._tokens.distrust(state.headers)
        if state.classification is not Classification.ANSWERED:
            raise classify.error_of(state.classification, result, now=self._clock.utc(), reading=request.safe)
        return _read(request, state, result)

    def _may_retry(self, state: _RequestState, error: TransferError) -> bool:
        if isinstance(error, (TokenUnavailable, ClientClosed)):
            return False
        if state.classification is Classification.WRONG_TOKEN:
            return self._tokens.renewable and not state.token_renewed
        return state.classification in classify.RETRYABLE or state.classification is Classification.FAILED


def _read(request: ServiceRequest, state: _RequestState, result: ExchangeResult) -> Any:
    common: dict[str, Any] = {"status": result.status, "request_id": result.request_id}
    try:
        if result.error is not None:
            state.classification = Classification.FAILED if request.safe else Classification.UNKNOWN
            raise Unreadable("$", f"the body was truncated ({name_of(result.error)})")  # noqa: TRY301
        return converter.read_into(request.into, result.body)
    except Unreadable as error:
        problem = str(error)
    except BaseException as error:  # The caller's own model may raise any error.
        if must_propagate(error):
            raise
        problem = name_of(error)  # The error's text could show parts of the body.
    why = f"the response cannot be read: {problem}"
    if request.safe:
        raise ServiceFailed(why, body=result.body, **common) from result.error
    raise OutcomeUnknown(why, raw=result.body, **common) from result.error


def _expired(state: _RequestState | None) -> TransferError:
    """Return the error to raise after the deadline: the last attempt's error, or else `Expired`."""
    last = None if state is None else state.last_failure
    return last or Expired("the call's deadline passed before the request could be sent", limit="deadline")


# --- header names and values -------------------------------------------------------------------------
# Callers may add their own headers to requests, but not headers that the client or HTTP itself sets.


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_RESERVED = frozenset(
    {
        *("accept", "accept-encoding", "authorization", "connection", "cookie", "expect", "host"),
        *("keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    }
)
_OF_ONE_REQUEST = re.compile(r"(?i).*idempoten.*|(x-)?request-id")  # headers that must differ for each order


def checked_name(setting: str, name: object) -> str:
    """Return ``name``, which must be a valid header name. Error messages start with ``setting``."""
    if not _is_header_name(name):
        raise ValueError(f"{setting}: must be 1 to 100 letters, digits or hyphens, for example X-Request-Id")
    return name


def _is_header_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and _HEADER_NAME.fullmatch(name) is not None


def _is_reserved(name: str) -> bool:
    return name.lower() in _RESERVED or name.lower().startswith(("content-", "proxy-"))


def checked_header_name(setting: str, name: object) -> str:
    """Return ``name`` if callers may add a header with this name. Error messages start with ``setting``."""
    if _is_reserved(checked := checked_name(setting, name)):
        raise ValueError(
            f"{setting}: {checked} is set by the client or by HTTP itself; choose another header"
        )
    return checked


def checked_headers(headers: Mapping[str, str] | None, *, request_id_header: str | None) -> dict[str, str]:
    """Return a checked copy of the caller's own ``headers``. Error messages contain no header value."""
    names = set()
    if request_id_header is not None:
        names.add(checked_header_name("request_id_header", request_id_header).lower())
    if headers is not None and not isinstance(headers, Mapping):
        raise ValueError("headers: must be a mapping of header names to values")
    checked: dict[str, str] = {}
    for name, value in dict(headers or {}).items():
        checked[checked_header_name("headers", name)] = value
        if name.lower() in names:
            raise ValueError(f"headers: {name} occurs twice or is the request_id_header; remove it")
        if _OF_ONE_REQUEST.fullmatch(name):
            raise ValueError(
                f"headers: {name} would have the same value for every order, so a gateway that detects "
                "duplicates by this header could drop all orders but the first; remove it, or pass its name "
                "as request_id_header"
            )
        if not _is_header_value(value):
            raise ValueError(
                f"headers: the value of {name} must be non-empty printable ASCII without spaces at either end"
            )
        names.add(name.lower())
    return checked


def with_added(headers: CIMultiDict[str], added: Mapping[str, str]) -> CIMultiDict[str]:
    """Return a copy of ``headers``, with the headers from ``added`` that are allowed and not yet set."""
    merged = headers.copy()
    for name, value in added.items():
        if _is_header_name(name) and not _is_reserved(name) and _is_header_value(value):
            merged.setdefault(name, value)
    return merged


def _is_header_value(value: object) -> bool:
    """Return whether ``value`` can be sent unchanged. aiohttp would encode non-ASCII characters as UTF-8."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and value == value.strip() != ""


# --- bearer token ------------------------------------------------------------------------------------
# The bearer token (specification section 5) is a fixed string, or is returned by the bank's callable.


Token = str | Callable[[], Awaitable[str]]


def checked(token: object) -> str:
    """Return ``token`` if it can be sent in a header. Error messages do not contain the token."""
    if not isinstance(token, str) or not token:
        why = "token: must be a non-empty string"
    elif not token.isascii() or not token.isprintable() or " " in token:
        why = "token: must not contain spaces, control characters or non-ASCII characters"
    else:
        return token
    del token  # Error trackers record the variables of each frame.
    raise ValueError(why)


class TokenSource:
    """The token of one client: a string or a callable. Concurrent calls share one request for a new token."""

    def __init__(
        self, token: Token, *, timeout: float, user_agent: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._timeout, self._user_agent, self._own_headers = timeout, user_agent, headers or {}
        self._asking: asyncio.Task[CIMultiDict[str]] | None = None
        self._ask: Callable[[], Awaitable[str]] | None = None
        self.current: CIMultiDict[str] | None = None
        """The headers to send with every request, or None until the token has been obtained."""
        if isinstance(token, str):
            self.current = self._headers_for(checked(token))
        else:
            kind = "a string, or an async callable that returns one"
            self._ask = checked_async(token, "token()", name="token", kind=kind)

    @property
    def renewable(self) -> bool:
        """Whether the token is a callable, from which a new token can be requested."""
        return self._ask is not None

    async def headers(self, *, instead_of: CIMultiDict[str] | None = None) -> CIMultiDict[str]:
        """Return the headers to send with every request: the same dictionary until the token changes.

        After a 401, pass the rejected request's headers as ``instead_of``; a new token is requested unless
        another call has already replaced these headers.
        """
        if self.current is not None and self.current is not instead_of:
            return self.current
        del instead_of  # An error tracker would record the old token.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
            self._asking.add_done_callback(retrieve_exception)
        asking = self._asking
        try:
            return await asyncio.shield(asking)  # Other callers may be waiting for the same task.
        except TokenUnavailable as error:
            # Each call needs its own copy, because it sets its key on the error.
            raise copy.copy(error) from error.__cause__
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if not asking.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise TokenUnavailable("the token callable was cancelled") from error

    def distrust(self, headers: CIMultiDict[str] | None) -> None:
        """Discard the token in ``headers`` after a 401, so that the next caller requests a new one."""
        if self.renewable and self.current is headers:
            self.current = None

    def close(self) -> None:
        """Cancel a running call to the token callable. Requests that are waiting for the token then fail."""
        if self._asking is not None:
            self._asking.cancel()

    async def _renew(self) -> CIMultiDict[str]:
        """Request a token and set the headers. Tracebacks never contain the token."""
        try:
            if self._ask is None:
                raise ValueError("the token is not a callable")  # noqa: TRY301 - handled below
            async with asyncio.timeout(self._timeout):
                self.current = self._headers_for(checked(await self._ask()))
            return self.current
        except BaseException as error:
            if must_propagate(error):
                raise
            cause = sanitize_exception(error)
        raise TokenUnavailable(f"the token callable failed ({name_of(cause)})") from cause

    def _headers_for(self, token: str) -> CIMultiDict[str]:
        return CIMultiDict(
            {
                **self._own_headers,
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                "Content-Type": "application/json",
                "Accept-Encoding": transport.ACCEPTED,
                "User-Agent": self._user_agent,
            }
        )
