"""A key that a call has claimed, and what may have been done under the claim."""

from __future__ import annotations

from transfer_async._support.state import State
from transfer_async.journal.entries import Entry, Owed


class ClaimedKey(State, kw_only=True):
    """What only the worker that has claimed a key knows of it.

    Args:
        epoch: of the claim: one more with each worker that has the intent.
        attempt: the token of the mark: all HTTP attempts of the call are one attempt to the journal;
            None before it.
        inherited: the hooks that a worker that is gone may have entered for this intent.
        entered: the hooks whose ``before`` was entered, and that did not vouch to have done nothing.
        earlier: undos that are owed for earlier intents of the key, until this call has tried them.
    """

    epoch: int
    attempt: str | None = None
    inherited: tuple[str, ...] = ()
    entered: tuple[str, ...] = ()
    earlier: tuple[Owed, ...] = ()


def claimed_key(entry: Entry) -> ClaimedKey:
    """The key whose record is ``entry``, which was claimed just now."""
    claimed = ClaimedKey(epoch=entry.epoch)
    if entry.epoch > 1:  # a worker that is gone may have entered any hook, and left no word of it
        claimed.inherited = entry.hooks
    if entry.owed:
        claimed.earlier = tuple(
            one for one in entry.owed if one.lease_until <= 0.0 and one.intent.id != entry.intent_id
        )
    return claimed
