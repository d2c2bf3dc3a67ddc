"""Typed events about a call. Logs, metrics, traces and progress displays are built from these events.

An observer is any callable that takes an event. An observer runs in the client's own task, so it must return
immediately. If an observer raises an error, the error is logged and does not affect the call. Events contain
no order, no body and no personal data.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from transfer_async._models.errors import Outcome, name_of
from transfer_async._support.util import ENDS_THE_PROGRAM, is_async

_log = logging.getLogger("transfer_async")


@frozen(kw_only=True)
class Event:
    """Base class of the events. Each event belongs to one intent.

    Args:
        intent_id: the intent's id, or an empty string if the intent has no id yet.
        attempt: the number of HTTP attempts that the call has begun so far.
        seconds: the seconds since the call began.
        attempt_id: the journal's id for the call's attempt to send the order, shared by all HTTP attempts of
            the call; None before the call begins to send. See the client's ``request_id_header``.
    """

    key: str
    intent_id: str
    attempt: int
    seconds: float
    attempt_id: str | None = None


@frozen(kw_only=True)
class Claimed(Event):
    """A call claimed its key. ``taken_over`` is true if another worker had claimed and abandoned the key."""

    taken_over: bool = False


@frozen(kw_only=True)
class RateLimitWaited(Event):
    """The rate limiter let the order continue after ``waited`` seconds; see `Rate`.

    Most orders wait before their hold is placed. An order may also wait before a request, after slow hooks
    or a failed attempt.
    """

    waited: float


@frozen(kw_only=True)
class HookPassed(Event):
    """A hook accepted the order after ``took`` seconds."""

    hook: str
    took: float


@frozen(kw_only=True)
class HookUndone(Event):
    """A hook was undone."""

    hook: str


@frozen(kw_only=True)
class UndoPending(Event):
    """Undoing a hook failed. The undo stays pending, and `TransferClient.recover` retries it."""

    hook: str
    error: str


@frozen(kw_only=True)
class AttemptStarted(Event):
    """An HTTP attempt begins."""


@frozen(kw_only=True)
class AttemptFailed(Event):
    """An HTTP attempt failed. ``outcome`` is what the attempt alone proves about the order."""

    outcome: Outcome
    error: str
    status: int | None = None
    request_id: str | None = None


@frozen(kw_only=True)
class RetryScheduled(Event):
    """Another attempt follows in ``pause`` seconds."""

    pause: float


@frozen(kw_only=True)
class OrderCreated(Event):
    """The order exists and is recorded. The successful HTTP attempt took ``took`` seconds.

    ``request_id`` is the service's id for the request, if the response contains one.
    """

    order_id: str
    status: int | None = None
    took: float | None = None
    request_id: str | None = None


@frozen(kw_only=True)
class OrderUnrecorded(Event):
    """The journal could not record the service's response. Record the order's id yourself.

    The outcome ``CREATED`` means that the order exists. ``UNKNOWN`` means that the response contains the id,
    but cannot be read as the order that was sent.
    """

    outcome: Outcome
    order_id: str


@frozen(kw_only=True)
class OrderRefused(Event):
    """The service refused the order, and the journal recorded the refusal."""

    error: str
    status: int | None = None


@frozen(kw_only=True)
class NotSent(Event):
    """The journal recorded that nothing was sent."""

    error: str


@frozen(kw_only=True)
class OrderInDoubt(Event):
    """The order may exist. The hold is kept until the doubt is resolved."""

    error: str
    status: int | None = None


@frozen(kw_only=True)
class Resolved(Event):
    """An order in doubt was resolved (``CREATED``, with the order's id) or refuted (``REFUSED``)."""

    outcome: Outcome
    order_id: str | None = None


@frozen(kw_only=True)
class DuplicateSuspected(Event):
    """Two orders may exist for one key. An operator must check the key immediately.

    After an order in doubt was resolved or refuted, the worker that had sent it, or ``resolve``, reported a
    result that contradicts the record. ``order_id`` is the id in this result; None if it contains no id.
    """

    order_id: str | None


Observer = Callable[[Event], Any]

HeaderSource = Callable[[str | None], Mapping[str, str]]
"""The type of an observer's method ``request_headers``, which adds headers, such as a trace context."""


class Observers:
    """All observers of one client.

    Raises:
        ValueError: ``observers`` is not a sequence of callables, or one of them is async or a class.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        if not isinstance(observers, Sequence) or not all(map(callable, observers)):
            raise ValueError("observers: must be a sequence of callables")
        if any(isinstance(observer, type) for observer in observers):
            raise ValueError("observers: must be a sequence of callables, not a class")
        if any(map(is_async, observers)):
            raise ValueError("observers: must be plain functions: the client does not await async ones")
        self.all: tuple[Observer, ...] = tuple(observers)
        found = [getattr(observer, "request_headers", None) for observer in observers]
        self.header_sources: tuple[HeaderSource, ...] = tuple(
            source for source in found if inspect.isroutine(source)
        )

    def request_headers(self, intent_id: str | None) -> dict[str, str]:
        """Return the headers that observers add to a request.

        Args:
            intent_id: the id of the intent; None for a request that creates no order.
        """
        headers: dict[str, str] = {}
        for source in self.header_sources:
            try:
                headers |= source(intent_id)
            except Exception as error:  # noqa: BLE001 - an observer must not affect the call
                _log.warning("an observer could not add headers to a request (%s)", name_of(error))
        return headers

    def publish(self, event: Event) -> None:
        """Call every observer with ``event``, even if some of them raise."""
        for observer in self.all:
            try:
                observer(event)
            except ENDS_THE_PROGRAM:
                raise
            except BaseException as error:  # noqa: BLE001 - an observer must not affect the call
                # The error's text and traceback are not logged: they may contain personal data.
                _log.warning("an observer failed on %s (%s)", type(event).__name__, name_of(error))


_LEVELS: dict[type[Event], int] = {
    UndoPending: logging.WARNING,
    AttemptFailed: logging.WARNING,
    OrderInDoubt: logging.WARNING,
    DuplicateSuspected: logging.ERROR,
    OrderUnrecorded: logging.ERROR,
    AttemptStarted: logging.DEBUG,
    HookPassed: logging.DEBUG,
    RateLimitWaited: logging.DEBUG,
}

_IDS = ("key", "intent_id", "attempt", "attempt_id")


def log_events(event: Event) -> None:
    """Log one line for ``event`` to the logger ``transfer_async``. Pass `log_events` as an observer.

    The log record's ``extra`` contains ``key``, ``intent_id``, ``attempt`` and ``attempt_id``. ``extra`` also
    contains every other field of the event, with the prefix ``transfer_``, and the name of the event's class
    as ``transfer_event``.
    """
    level = _LEVELS.get(type(event), logging.INFO)
    if not _log.isEnabledFor(level):
        return
    extra: dict[str, Any] = {name: getattr(event, name) for name in _IDS}
    extra["transfer_event"] = type(event).__name__
    parts = []
    for attribute in attrs.fields(type(event)):
        if attribute.name not in extra:
            value = getattr(event, attribute.name)
            extra[f"transfer_{attribute.name}"] = value
            if value is not None:
                parts.append(f"{attribute.name}={_plain(value)}")
    _log.log(level, "%s key=%s %s", type(event).__name__, event.key, " ".join(parts), extra=extra)


def _plain(value: object) -> object:
    if isinstance(value, Outcome):
        return value.value
    return f"{value:.3f}" if isinstance(value, float) else value
