"""How long the oldest of what waits has waited: noted while `recover` reads through all of it."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from transfer_async._support.clock import is_a_time
from transfer_async.journal.entries import Entry, KeyState


@define
class Oldest:
    """Since when the oldest doubt, undo and untold end have waited, in the journal's seconds; None: none."""

    doubt: float | None = None
    undo: float | None = None
    untold: float | None = None

    def note(self, entry: Entry) -> None:
        """Take ``entry`` into account; what did not keep its time yet counts from the intent's beginning."""
        if entry.state is KeyState.IN_DOUBT:
            self.doubt = _earlier(self.doubt, [entry.sent_until])
        self.undo = _earlier(self.undo, [_since(one.since, entry) for one in entry.owed])
        self.untold = _earlier(self.untold, [_since(one.since, entry) for one in entry.untold])

    def ages(self, now: float) -> dict[str, float]:
        """Their ages in seconds; 0 where nothing waits."""
        since = {"doubt": self.doubt, "undo": self.undo, "untold": self.untold}
        return {name: 0.0 if time is None else max(0.0, now - time) for name, time in since.items()}


def _since(since: float | None, entry: Entry) -> float:
    return entry.claimed_at if since is None else since


def _earlier(known: float | None, times: Iterable[float]) -> float | None:
    told = [time for time in times if is_a_time(time)]  # a damaged one says nothing, and would hide others
    return min(told if known is None else [known, *told], default=None)
