"""The journal interface, a journal limited to one scope, and the record of a key for callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, Self, TypeVar, cast

from attrs import field, frozen

from transfer_async._models.errors import (
    JournalFailed,
    Outcome,
    UnreadableOrder,
    is_a,
    is_ours,
    name_of,
    sanitize_exception,
)
from transfer_async._models.responses import Order
from transfer_async._support.util import (
    FrozenStruct,
    Raised,
    is_async,
    must_propagate,
    refuse_class,
    try_call,
)
from transfer_async.journal.model import Entry, HistoryEvent, KeyState, Rejection, TransitionResult
from transfer_async.journal.transitions import Move

AuditLine = tuple[str, HistoryEvent, HistoryEvent | None]
"""A key, one line of its history, and the line of the proposal that was pending before it, or None.

A proposal is pending until the key changes. The transitions in `WITHOUT_CHANGE` do not change it.
"""


class Journal(Protocol):
    """The interface of a journal, which stores intents and their outcomes.

    The function `decide` accepts or rejects transitions.

    Methods raise the errors of the underlying store unchanged. A transition is atomic, and its history line
    is written in the same transaction. If ``durable`` is true, a transition is durable when `move` returns. A
    transition completes even if its caller is cancelled.

    Your own journal can be any class with the methods of `Journal`. For every transition, the journal must
    load the entry under a lock, call `decide`, and write the changed entry, in one transaction::

        async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
            async with self.transaction(scope, key) as stored:  # no other writer holds the key
                taken = move.order_bound is not None and await stored.is_of_another_key(move.order_bound)
                rule = await stored.locked(FOUR_EYES) if move.is_by_one_person else None
                verdict = decide(stored.entry, move, now=stored.now, id_taken=taken, four_eyes=rule)
                if verdict is not None and verdict.entry is not stored.entry:
                    await stored.write(row_of(verdict.entry, token=new_token(), now=stored.now))
                    if is_told(move, verdict):
                        await stored.add(step_values(history_step(verdict.entry, move, now=stored.now)))
            return verdict

    After a `Demand` for dual control has returned, a transition that one person makes alone may commit only
    if `decide` received the new rule. The requirement also applies to the first `Demand`, when no row exists
    to lock.

    `row_of` converts an entry to a few columns and JSON, and `entry_of` converts it back; `step_values` and
    `step_of` do the same for the history. `is_waiting` determines which keys `work` returns. `prune` may
    delete only keys on which work ended before the time that `forgettable` returns. All times come from the
    store's clock, which all workers share. If the reply to a commit is lost, the journal may look up the
    row's token to find out the result. If the journal cannot find out the result, `move` raises an error, and
    the transition may or may not have been made. Use `JournalContract` (in
    `transfer_async.testing.journal_contract`) to test a journal.

    Seven more methods are optional:

    * ``async scopes()`` returns a list of the scopes that have keys besides `FOUR_EYES`. Without ``scopes``,
      no warning is logged for a wrong scope. The methods ``orders``, ``refuted`` and ``resolved`` are for
      comparing the journal with the service.
    * ``async orders(scope, *, limit, after="")`` returns at most ``limit`` of the orders that keys are bound
      to, sorted by id, with ids greater than ``after``. Each order is a tuple of its id, its key, and the
      time at which work on the key ended (or None).
    * ``async refuted(scope, *, after="")`` returns one page of the keys that have ever been refuted, and the
      ``after`` for the next call, which is empty at the end. A page may be empty even if more pages
      follow.
    * ``async resolved(scope, *, after="")`` works like ``refuted``, for the keys that have ever been
      resolved. Without ``resolved``, all keys that have an order are read.
    * ``async audit(scope, *, limit, after="", by=None, since=None, until=None)`` returns history lines of all
      keys, newest first, and the ``after`` for the next call, which is empty at the end. ``audit`` returns
      only lines that name a person, each as an `AuditLine`. ``by`` selects one person's lines; ``since`` and
      ``until`` (exclusive) select a time range in seconds since 1970. To stay fast, a call may search only
      part of the history and return fewer lines than ``limit``, or none, although more exist. Without
      ``audit``, the operators' page cannot list decisions.
    * ``async pending_undos(scope, *, limit, after="")`` does the same as `work`, but only for keys with a
      pending undo. With ``pending_undos``, ``recover`` starts the pending undos before it reads other keys.
    * ``async unfinished(scope, *, limit, after="")`` does the same as `work`, and also returns the keys that
      workers are using. Without ``unfinished``, compare the journal with the service only while no worker
      runs.
    """

    durable: bool
    """Whether a transition that has returned survives a crash of the process."""

    async def __aenter__(self) -> Self:
        """Open the journal. Opening is optional, because the journal opens itself on first use."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Close the journal."""
        ...

    async def close(self) -> None:
        """Close the journal; its contents are kept."""
        ...

    async def now(self) -> float:
        """Return the time on the journal's clock, in seconds since an arbitrary time."""
        ...

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """Make a transition, and return the result of `decide`.

        Return None if the transition needs an entry and the key has none.
        """
        ...

    async def read(self, scope: str, key: str) -> Entry | None:
        """Return the key's entry, or None. If the record is corrupt, ``unread`` is set in the entry."""
        ...

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """Return the keys that were abandoned, are in doubt, or have a pending undo or notification.

        Args:
            scope: the scope of the keys.
            limit: the maximum number of keys.
            after: return only keys that follow this one in the journal's fixed order.
        """
        ...

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        """Return all keys in doubt, oldest first."""
        ...

    async def count_in_doubt(self, scope: str) -> int:
        """Return the number of keys in doubt."""
        ...

    async def history(self, scope: str, key: str) -> tuple[HistoryEvent, ...]:
        """Return the key's history, oldest first, with ``at`` in seconds since 1970."""
        ...

    async def prune(self, scope: str, *, before: datetime) -> int:
        """Delete the keys on which work ended before the time that `forgettable` returns for ``before``.

        A key that is in doubt or in use, or has a pending undo or notification, is never deleted.

        Returns:
            The number of deleted keys.
        """
        ...


KEPT = 86_400.0
"""The seconds for which an ended key is always kept, because its message or file may be delivered again."""


class NotToBeForgotten(ValueError):
    """Raised if the time passed to `Journal.prune` is invalid."""


def forgettable(before: datetime, *, now: float) -> float:
    """Return the time before which work on a key must have ended for the key to be deleted.

    Args:
        before: the requested time, which is returned if it is at least a day before ``now``.
        now: the journal's time in seconds since 1970.

    Returns:
        The time in seconds since 1970.

    Raises:
        NotToBeForgotten: ``before`` is not an aware ``datetime``, or is in the future.
    """
    if not isinstance(before, datetime) or before.utcoffset() is None:
        raise NotToBeForgotten("before: must be an aware datetime")
    if before.timestamp() > now:
        raise NotToBeForgotten(
            "before: must not be in the future. A deleted key is free, so if its message were "
            "delivered again, the payment would be made again"
        )
    return min(before.timestamp(), now - KEPT)


def checked_journal(given: object) -> Journal:
    """Return ``given``, which must be a journal.

    Raises:
        ValueError: ``given`` is not a journal; the message names what to pass instead, without the URL or
            path.
    """
    refuse_class(given, name="journal")
    if not is_async(getattr(given, "move", None)):
        raise ValueError(
            f"journal: must be a journal, but is a {type(given).__name__}: pass SQLiteJournal(path), "
            "PostgresJournal(dsn) or MemoryJournal()"
        )
    return cast("Journal", given)


@frozen(kw_only=True)
class KeyRecord:
    """A key's record, as returned to callers.

    If you place holds yourself, read a key's record before you place a hold for it.

    Args:
        state: the state of the key.
        order: the order, if the service's response was recorded and can be read as an order.
        order_id: the order's id, if the order exists.
        receipts: the receipts that the hooks returned, by hook name, and the value of ``held=`` as
            ``"held"``.
        held: the reference that was passed as ``held=``.
        intent_id: the id of the current or last intent.
        last_outcome: `Outcome.CREATED` for a key in the created state, `Outcome.UNKNOWN` for a key in doubt,
            and the last call's outcome for a free key: `Outcome.NOT_SENT` or `Outcome.REFUSED`. While a call
            is using the key, ``last_outcome`` is None.
        readable: false if the stored record is corrupt. The other fields of a corrupt record contain only its
            readable part, and its key is not free.
    """

    state: KeyState
    order: Order | None = None
    order_id: str | None = None
    receipts: dict[str, str | None] = field(factory=dict, repr=False)
    held: str | None = field(default=None, repr=False)
    intent_id: str
    last_outcome: Outcome | None = None
    readable: bool = True


def record_of(entry: Entry) -> KeyRecord:
    """Return the part of an entry that callers may see."""
    return KeyRecord(
        state=entry.state,
        order=order_on_record(entry),
        order_id=entry.order_id,
        receipts=entry.all_receipts,
        held=entry.held,
        intent_id=entry.intent_id,
        last_outcome=_last_outcome(entry),
        readable=entry.is_readable,
    )


def _last_outcome(entry: Entry) -> Outcome | None:
    if entry.state is KeyState.FREE:
        return None if entry.ending is None else entry.ending.outcome
    return {KeyState.CREATED: Outcome.CREATED, KeyState.IN_DOUBT: Outcome.UNKNOWN}.get(entry.state)


def order_on_record(entry: Entry) -> Order | None:
    """Return the order in the recorded response, or None if there is no readable response."""
    if entry.reply is None:
        return None
    try:
        return Order.from_json(entry.reply)
    except UnreadableOrder:  # The order exists anyway, so the key is not in doubt.
        return None


# --- one scope ---------------------------------------------------------------------------------------
# The package uses a journal through this class, which converts the store's errors to `JournalFailed`.


T = TypeVar("T")


class KeyForgotten(JournalFailed):
    """Raised if the journal no longer contains the record of a key that this process wrote."""


class ScopedJournal(FrozenStruct, frozen=True):
    """A journal limited to one scope, which converts the store's errors to `JournalFailed`.

    Args:
        store: the journal itself.
        scope: the name of the service to which the keys belong.
    """

    store: Journal
    scope: str

    async def open(self) -> None:
        """Open the journal immediately, and raise any error here rather than on first use.

        Do nothing if the journal has no ``__aenter__``.
        """
        enter = getattr(self.store, "__aenter__", None)
        if enter is not None:
            await _read(enter, failure="the journal could not be opened")

    async def write(
        self, key: str, move: Move, *, certain: Outcome, order: Order | None = None
    ) -> TransitionResult:
        """Make a transition and return its result.

        Args:
            key: the key.
            move: the transition.
            certain: the call's outcome so far, for the `JournalFailed` error.
            order: the order to attach to the `JournalFailed` error, so that the caller does not lose it.

        Raises:
            JournalFailed: the store raised an error, or the key's record is missing or corrupt.
        """
        try:
            verdict = await self.store.move(self.scope, key, move)
        except BaseException as error:
            if must_propagate(error):
                raise
            failed = _failed(error, f"the journal failed on {move.name}")
        else:
            if verdict is not None and verdict.denial is not Rejection.UNREAD:
                return verdict
            failed = _without_record(verdict)
        failed.outcome, failed.order, failed.key = certain, order, key  # The store cannot know these.
        raise failed  # Not in the handler above, so that the store's error is not its context.

    async def now(self) -> float:
        """See `Journal.now`."""
        return await _read(self.store.now)

    async def read(self, key: str) -> Entry | None:
        """See `Journal.read`."""
        return await _read(self.store.read, self.scope, key, key=key)

    async def sent(self, keys: Sequence[str]) -> set[str]:
        """Return those of ``keys`` whose orders exist, are in doubt, or are being sent.

        A durable journal reads all keys at once. Other journals return no keys.
        """
        sent = getattr(self.store, "_sent", None)
        return set() if sent is None else await _read(sent, self.scope, keys)

    async def work(self, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal.work`."""
        return await _read(partial(self.store.work, self.scope, limit=limit, after=after))

    async def unfinished(self, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """Return one page of `Journal.work` and, if the journal has ``unfinished``, of the keys in use."""
        listed = getattr(self.store, "unfinished", self.store.work)
        return await _read(partial(listed, self.scope, limit=limit, after=after))

    async def pending_undos(self, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """Return one page of the keys with a pending undo; empty if ``pending_undos`` is not implemented."""
        listed = getattr(self.store, "pending_undos", None)
        return [] if listed is None else await _read(partial(listed, self.scope, limit=limit, after=after))

    async def in_doubt(self) -> list[tuple[str, Entry]]:
        """See `Journal.in_doubt`."""
        return await _read(self.store.in_doubt, self.scope)

    async def count_in_doubt(self) -> int:
        """See `Journal.count_in_doubt`."""
        return await _read(self.store.count_in_doubt, self.scope)

    async def other_scopes(self) -> tuple[str, ...]:
        """If this scope has no keys, return the scopes that do.

        The result is empty if the journal does not implement ``scopes``.
        """
        scopes = getattr(self.store, "scopes", None)
        found = [] if scopes is None else await _read(scopes)
        return () if self.scope in found else tuple(found)

    async def orders(self, *, limit: int, after: str = "") -> list[tuple[str, str, float | None]]:
        """Return one page of the orders to which keys are bound; see `Journal`.

        Raises:
            ValueError: the journal does not implement ``orders``.
        """
        orders = getattr(self.store, "orders", None)
        if orders is None:
            raise ValueError(f"journal: a {type(self.store).__name__} cannot list its orders")
        return await _read(partial(orders, self.scope, limit=limit, after=after))

    async def refuted(self, *, after: str = "") -> tuple[list[str], str]:
        """Return one page of the keys that have ever been refuted; see `Journal`.

        Raises:
            ValueError: the journal does not implement ``refuted``.
        """
        refuted = getattr(self.store, "refuted", None)
        if refuted is None:
            raise ValueError(f"journal: a {type(self.store).__name__} cannot list its refuted keys")
        return await _read(partial(refuted, self.scope, after=after))

    async def resolved(self, *, after: str = "") -> tuple[list[str], str]:
        """Return one page of the keys that have ever been resolved; see `Journal`.

        If the journal does not implement ``resolved``, return all keys that have an order.
        """
        resolved = getattr(self.store, "resolved", None)
        if resolved is not None:
            return await _read(partial(resolved, self.scope, after=after))
        orders = await self.orders(limit=500, after=after)
        return [key for _, key, _ in orders], orders[-1][0] if orders else ""

    async def history(self, key: str) -> tuple[HistoryEvent, ...]:
        """See `Journal.history`."""
        return await _read(self.store.history, self.scope, key, key=key)

    async def audit(
        self, *, limit: int, after: str, by: str | None, since: float | None, until: float | None
    ) -> tuple[list[AuditLine], str]:
        """Return one page of the history lines that name a person, newest first; see `Journal`.

        Raises:
            ValueError: the journal does not implement ``audit``.
        """
        audit = getattr(self.store, "audit", None)
        if audit is None:
            raise ValueError(f"journal: a {type(self.store).__name__} cannot list the histories of all keys")
        wanted = {"limit": limit, "after": after, "by": by, "since": since, "until": until}
        return await _read(partial(audit, self.scope, **wanted))

    async def prune(self, *, before: datetime) -> int:
        """See `Journal.prune`. An invalid time raises `NotToBeForgotten`, not `JournalFailed`."""
        pruning = partial(self.store.prune, self.scope, before=before)
        return await _read(pruning, failure="the journal could not be pruned", wrong_use=(NotToBeForgotten,))


async def _read(
    reading: Callable[..., Awaitable[T]],
    *given: object,
    key: str | None = None,
    failure: str = "the journal could not be read",
    wrong_use: tuple[type[Exception], ...] = (),
) -> T:
    """Call ``reading`` and return its result. ``failure`` is the message for unexpected errors."""
    found = await try_call(reading, *given)
    if type(found) is not Raised:
        return found
    if is_a(found.error, wrong_use):
        raise sanitize_exception(found.error)
    error = _failed(found.error, failure)
    error.key = error.key or key
    raise error


def _without_record(verdict: TransitionResult | None) -> JournalFailed:
    """Return the error for a key whose record is missing or unreadable."""
    if verdict is None:
        return KeyForgotten("the journal no longer has a record of the key")
    unread = verdict.entry.unread
    why = "the journal's record of the key cannot be read: an operator must resolve the key first"
    if unread is not None and unread.is_sealed:
        why = "the journal's record of the key cannot be decrypted: configure its encryption key"
    return JournalFailed(why)


def _failed(error: BaseException, failure: str) -> JournalFailed:
    """Return ``error`` without secrets if it is a `JournalFailed`, else a `JournalFailed` caused by it."""
    cause = sanitize_exception(error)
    if is_ours(cause) and isinstance(cause, JournalFailed):
        return cause
    failed = JournalFailed(f"{failure} ({name_of(cause)})")
    failed.__cause__ = cause
    return failed
