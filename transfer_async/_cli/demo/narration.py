"""The demo's lines: what an observer hears from the client, and everybody else says, in plain words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transfer_async._cli.console.output import Say
from transfer_async._models.errors import Outcome
from transfer_async._models.events import (
    AttemptFailed,
    AttemptStarted,
    Claimed,
    DuplicateSuspected,
    Event,
    HookUndone,
    NotSent,
    OrderCreated,
    OrderRefused,
    OrderUnrecorded,
    Resolved,
    RetryScheduled,
    TurnCame,
    UndoOwed,
    WentInDoubt,
)


class Surprise(Exception):
    """Something is not as the demo would claim."""


def expect(claim: str, truth: bool, *, key: str = "") -> None:
    """Go on if ``claim`` is true.

    Raises:
        Surprise: it is not.
    """
    if not truth:
        raise Surprise(f"{key or 'the demo'}: it is not so that {claim}")


class Narration:
    """Lines in columns: seconds since the first, who says it, the key it is about, and what.

    Args:
        say: writes one line.
        now: seconds.
    """

    def __init__(self, say: Say, *, now: Callable[[], float] = time.monotonic) -> None:
        self._say, self._now, self._began = say, now, now()

    def title(self, text: str) -> None:
        """Begin a part of the story."""
        self._say("")
        self._say(text)

    def tell(self, who: str, key: str, text: str) -> None:
        """Tell one thing."""
        self._say(f"{self._now() - self._began:7.3f} s  {who:<8} {key:<9}  {text}")

    def check(self, key: str, claim: str, truth: bool) -> None:
        """Tell ``claim``, if it is true."""
        expect(claim, truth, key=key)
        self.tell("checked", key, claim)

    def plain(self, text: str) -> None:
        """Write a line as it is."""
        self._say(text)

    def observe(self, event: Event) -> None:
        """Tell what the client says happened; an observer."""
        sentence = SENTENCES.get(type(event))
        if sentence is not None:
            self.tell("client", event.key, sentence(event))


def _failed(event: AttemptFailed) -> str:
    status = "" if event.status is None else f", status {event.status}"
    outcome = event.outcome.value.replace("_", " ")
    return f"attempt {event.attempt} ended: {outcome} ({event.error}{status})"


def _resolved(event: Resolved) -> str:
    if event.outcome is Outcome.CREATED:
        return f"resolved: created, {event.order_id}"
    return "refuted: there is no order, and none to come"


SENTENCES: dict[type[Event], Callable[[Any], str]] = {
    Claimed: lambda _: "key claimed: nobody else can work on it now",
    TurnCame: lambda event: f"its turn has come, after {event.waited:.3f} s",
    AttemptStarted: lambda event: f"attempt {event.attempt} begins",
    AttemptFailed: _failed,
    RetryScheduled: lambda event: f"another attempt in {event.pause:.3f} s",
    OrderCreated: lambda event: f"created: {event.order_id}",
    OrderUnrecorded: lambda event: f"the journal could not be told of {event.order_id}",
    OrderRefused: lambda _: "refused: there is no order",
    NotSent: lambda event: f"not sent ({event.error})",
    WentInDoubt: lambda _: "in doubt: the order may exist, so nothing is undone and nothing is sent again",
    Resolved: _resolved,
    HookUndone: lambda event: f"{event.hook} undone",
    UndoOwed: lambda event: f"{event.hook} could not be undone ({event.error}): it is owed",
    DuplicateSuspected: lambda event: f"a duplicate is suspected: {event.order_id}",
}
"""The words for each event; what is not here (a hook that passed) is told by the bank itself."""
