"""What happened, as typed events: the one seam for logs, metrics, traces and progress.

An observer is any callable that takes an event. It is called in the client's own task, so it
must return at once; one that raises is logged, and never touches the call.
No event carries the order, a body or anything about a person.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from attrs import frozen

from transfer_async._models.base import ByValue
from transfer_async._models.errors import Outcome
from transfer_async._support.callables import is_async

_log = logging.getLogger("transfer_async")


@frozen(kw_only=True, eq=False, repr=False)
class Event(ByValue):
    """Something that happened to an intent.

    Args:
        key: the key.
        intent_id: the intent's id; empty for what happens before there is one.
        attempt: the number of HTTP attempts begun in this call so far.
        seconds: since the call began.
    """

    key: str
    intent_id: str
    attempt: int
    seconds: float


@frozen(kw_only=True, eq=False, repr=False)
class Claimed(Event):
    """The key is taken by this call; ``taken_over`` if from a worker that was gone."""

    taken_over: bool = False


@frozen(kw_only=True, eq=False, repr=False)
class TurnCame(Event):
    """The order may go on at the client's `Rate`, for which it waited ``waited`` seconds.

    Before its hold most often; or before a request, after slow hooks or an attempt that failed.
    """

    waited: float


@frozen(kw_only=True, eq=False, repr=False)
class HookPassed(Event):
    """A hook let the order pass; ``took`` seconds."""

    hook: str
    took: float


@frozen(kw_only=True, eq=False, repr=False)
class HookUndone(Event):
    """A hook was undone."""

    hook: str


@frozen(kw_only=True, eq=False, repr=False)
class UndoOwed(Event):
    """Undoing a hook failed: it is owed, and `TransferClient.recover` tries again."""

    hook: str
    error: str


@frozen(kw_only=True, eq=False, repr=False)
class AttemptStarted(Event):
    """An HTTP attempt begins."""


@frozen(kw_only=True, eq=False, repr=False)
class AttemptFailed(Event):
    """An HTTP attempt did not create the order."""

    outcome: Outcome
    error: str
    status: int | None = None
    request_id: str | None = None


@frozen(kw_only=True, eq=False, repr=False)
class RetryScheduled(Event):
    """Another attempt follows in ``pause`` seconds."""

    pause: float


@frozen(kw_only=True, eq=False, repr=False)
class OrderCreated(Event):
    """The order exists, and the journal knows; the HTTP attempt that was answered with it took ``took`` s."""

    order_id: str
    status: int | None = None
    took: float | None = None


@frozen(kw_only=True, eq=False, repr=False)
class OrderUnrecorded(Event):
    """The service answered, and the journal could not be told: write the order's id down yourself.

    ``CREATED``: the order exists. ``UNKNOWN``: an answer that is not readably ours names it.
    """

    outcome: Outcome
    order_id: str


@frozen(kw_only=True, eq=False, repr=False)
class OrderRefused(Event):
    """The service said no, and the journal knows."""

    error: str
    status: int | None = None


@frozen(kw_only=True, eq=False, repr=False)
class NotSent(Event):
    """Nothing was sent, and the journal knows."""

    error: str


@frozen(kw_only=True, eq=False, repr=False)
class WentInDoubt(Event):
    """The order may exist: the hold is kept until this is resolved."""

    error: str
    status: int | None = None


@frozen(kw_only=True, eq=False, repr=False)
class Resolved(Event):
    """A doubt ended: ``CREATED`` with the order's id, or ``REFUSED``: none exists, and none will."""

    outcome: Outcome
    order_id: str | None = None


@frozen(kw_only=True, eq=False, repr=False)
class DuplicateSuspected(Event):
    """An order was answered for a key whose doubt had been refuted: see to it at once."""

    order_id: str


Observer = Callable[[Event], Any]


class Observers:
    """All observers of one client.

    Raises:
        ValueError: they are not a sequence of plain functions.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        if not isinstance(observers, Sequence) or not all(map(callable, observers)):
            raise ValueError("observers: must be a sequence of callables")
        if any(isinstance(observer, type) for observer in observers):
            raise ValueError("observers: must be a sequence of callables, not a class")
        if any(map(is_async, observers)):
            raise ValueError("observers: must be plain functions: nobody would wait for an async one")
        self.all: tuple[Observer, ...] = tuple(observers)

    def tell(self, event: Event) -> None:
        """Tell every observer, whatever the others do."""
        for observer in self.all:
            try:
                observer(event)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it never hurts the call
                # Without its text or a traceback: both are the observer's own, and may tell of people.
                _log.warning("an observer failed on %s (%s)", type(event).__name__, type(error).__name__)


_LEVELS: dict[type[Event], int] = {
    UndoOwed: logging.WARNING,
    AttemptFailed: logging.WARNING,
    WentInDoubt: logging.WARNING,
    DuplicateSuspected: logging.ERROR,
    OrderUnrecorded: logging.ERROR,
    AttemptStarted: logging.DEBUG,
    HookPassed: logging.DEBUG,
    TurnCame: logging.DEBUG,
}


def log_events(event: Event) -> None:
    """An observer that writes one line an event to the logger ``transfer_async``.

    Key, intent id and attempt are in the record's ``extra`` (``key``, ``intent_id``, ``attempt``);
    every other field of the event is too, under ``transfer_`` and its name.
    """
    level = _LEVELS.get(type(event), logging.INFO)
    if not _log.isEnabledFor(level):
        return
    extra: dict[str, Any] = {"key": event.key, "intent_id": event.intent_id, "attempt": event.attempt}
    told = []
    for attribute in attrs.fields(type(event)):
        if attribute.name not in extra:
            value = getattr(event, attribute.name)
            extra[f"transfer_{attribute.name}"] = value
            if value is not None:
                told.append(f"{attribute.name}={_plain(value)}")
    _log.log(level, "%s key=%s %s", type(event).__name__, event.key, " ".join(told), extra=extra)


def _plain(value: object) -> object:
    if isinstance(value, Outcome):
        return value.value
    return f"{value:.3f}" if isinstance(value, float) else value
