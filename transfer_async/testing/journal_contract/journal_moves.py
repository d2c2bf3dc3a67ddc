"""Short functions that create transitions and entries for the tests of a journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import msgspec

from transfer_async._models.errors import Attempt, Cause, CauseKind, Outcome
from transfer_async._models.requests import NewExternalOrder, NewOrder, OrderIntent, fingerprint
from transfer_async._support.clock import Clock
from transfer_async.journal import (
    AcquireLease,
    AddPendingUndos,
    Amend,
    Claim,
    Create,
    Decision,
    Demand,
    Ending,
    Entry,
    Expire,
    GoInDoubt,
    Journal,
    KeyState,
    Look,
    MarkNotified,
    MarkSending,
    MarkUndone,
    Move,
    Note,
    OutboxEntry,
    PendingUndo,
    Propose,
    Quarantine,
    Refute,
    Release,
    RenewLease,
    RequestNotification,
    Resolve,
    Suspect,
    TakeBack,
    TakeOver,
    TransitionResult,
    Unwatch,
    Waive,
    Watch,
    Withdraw,
)
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.testing.assertions import make_new_order


def _order() -> NewOrder:
    external = NewExternalOrder(
        current_account_balance="900000.10", transaction_fee=250, transaction_fee_currency="NGN"
    )
    return make_new_order(exchange_rate="1550.25", external_order=external)


SCOPE = "https://service.example"
WINDOW = 30.0
MAX_AGE = 900.0
REPLY = b'{"id": "tx-1"}'


def intent(number: int = 1, **changes: Any) -> OrderIntent:
    fields: dict[str, Any] = {"id": f"intent-{number}", "key": "k", "order": _order()}
    return OrderIntent(**{"beneficiary": None, "held": None, "send_before": None, **fields, **changes})


def claim(number: int = 1, **changes: Any) -> Claim:
    wish = changes.pop("intent", None) or intent(number)
    fields: dict[str, Any] = {
        "intent": wish,
        "fingerprint": fingerprint(wish.order),
        "client_made": False,
        "lease": LEASE,
        "max_claim_age": MAX_AGE,
        "hooks": ("hold", "check"),
    }
    return Claim(**fields | changes)


def renew(epoch: int = 1, *, number: int = 1, **receipts: str) -> RenewLease:
    return RenewLease(intent_id=f"intent-{number}", epoch=epoch, lease=LEASE, receipts=dict(receipts))


def mark(attempt: str = "a", *, epoch: int = 1, number: int = 1, **receipts: str) -> MarkSending:
    return MarkSending(
        intent_id=f"intent-{number}",
        epoch=epoch,
        attempt=attempt,
        receipts=dict(receipts),
        lease=LEASE,
        window=WINDOW,
    )


def create(attempt: str = "a", order_id: str = "tx-1", reply: bytes | None = None) -> Create:
    reply = REPLY.replace(b"tx-1", order_id.encode()) if reply is None else reply
    return Create(attempt=attempt, order_id=order_id, reply=reply)


def release(
    attempt: str | None = "a",
    *,
    epoch: int = 1,
    number: int = 1,
    pending_undos: tuple[PendingUndo, ...] = (),
    lease: float = LEASE,
    ending: Ending | None = None,
) -> Release:
    ending = ending or Ending(outcome=Outcome.REFUSED, error="Refused", status=422)
    return Release(
        intent_id=f"intent-{number}",
        epoch=epoch,
        attempt=attempt,
        ending=ending,
        pending_undos=pending_undos,
        lease=lease,
    )


def doubt(attempt: str = "a", **said: Any) -> GoInDoubt:
    return GoInDoubt(attempt=attempt, **said)


def expire(attempt: str = "a") -> Expire:
    return Expire(attempt=attempt)


def resolve(attempt: str = "a", order_id: str = "tx-1", *, by: str = "operator", **said: Any) -> Resolve:
    return Resolve(attempt=attempt, order_id=order_id, reply=None, by=by, reason="seen", **said)


def refute(
    attempt: str = "a", *, pending_undos: tuple[PendingUndo, ...] = (), by: str = "operator", **said: Any
) -> Refute:
    return Refute(
        attempt=attempt,
        settle_after=SETTLE_AFTER,
        by=by,
        reason="sure",
        pending_undos=pending_undos,
        lease=LEASE,
        **said,
    )


def amend(
    wrong: str = "tx-1", order_id: str = "tx-2", attempt: str = "a", *, by: str = "operator", **said: Any
) -> Amend:
    return Amend(attempt=attempt, wrong=wrong, order_id=order_id, by=by, reason="a slip", **said)


def take_back(wrong: str = "tx-1", attempt: str = "a", *, by: str = "operator", **said: Any) -> TakeBack:
    return TakeBack(attempt=attempt, wrong=wrong, by=by, reason="a slip", **said)


def propose(
    decision: Decision = Decision.RESOLVE,
    order_id: str | None = None,
    attempt: str | None = "a",
    *,
    by: str = "ada",
    number: int = 1,
    said: str = "seen",
    **more: Any,
) -> Propose:
    named = "tx-1" if decision is Decision.RESOLVE and order_id is None else order_id
    return Propose(
        id=f"proposal-{number}",
        decision=decision,
        attempt=attempt,
        order_id=named,
        by=by,
        said=said,
        settle_after=SETTLE_AFTER,
        **more,
    )


def withdraw(number: int = 1) -> Withdraw:
    return Withdraw(proposal=f"proposal-{number}", by="ben", reason="no")


def demand() -> Demand:
    return Demand(by="ada", reason="the bank's rule")


def waive(number: int = 1, *, by: str = "ben") -> Waive:
    return Waive(proposal=f"proposal-{number}", by=by, reason="the bank's rule")


def look() -> Look:
    return Look(by="ada", reason="a call")


def note() -> Note:
    return Note(by="ada", reason="asked the service")


def watch() -> Watch:
    return Watch(by="ada")


def unwatch() -> Unwatch:
    return Unwatch(by="ben")


def take_over(epoch: int = 1, *, number: int = 1) -> TakeOver:
    return TakeOver(intent_id=f"intent-{number}", epoch=epoch, lease=LEASE)


def quarantine() -> Quarantine:
    return Quarantine(by="operator", reason="cannot be read")


def acquire_lease(lease: float = LEASE) -> AcquireLease:
    return AcquireLease(lease=lease)


RECORDED_LEASE = -1.0
"""A placeholder for the recorded end of an undo's lease. `Model.apply` replaces it."""


def mark_undone(*hooks: str, number: int = 1, lease_until: float = 0.0) -> MarkUndone:
    return MarkUndone(intent_id=f"intent-{number}", hooks=hooks, lease_until=lease_until)


def add_undos(*hooks: str, number: int = 1) -> AddPendingUndos:
    return AddPendingUndos(pending_undos=undos(*hooks, number=number), lease=LEASE)


def suspect(order_id: str | None = "tx-2", *, number: int = 1, reason: str = "answered late") -> Suspect:
    """Return a transition for a response that may contain an order, and arrived after the doubt had ended."""
    wish, attempt = intent(number), Attempt(number=1, seconds=0.1, outcome=Outcome.UNKNOWN)
    return Suspect(
        order_id=order_id,
        reason=reason,
        intent=wish,
        fingerprint=fingerprint(wish.order),
        attempt="a",
        hooks=("hold", "check"),
        receipts={"hold": "receipt"},
        cause=Cause(kind=CauseKind.SUPERSEDED, candidate=order_id, attempts=(attempt,)),
    )


def request_notification(number: int = 1) -> RequestNotification:
    return RequestNotification(intent_id=f"intent-{number}")


def mark_notified(notification: OutboxEntry | None = None) -> MarkNotified:
    return MarkNotified(notification=notification or created_later())


def created_later(number: int = 1, order_id: str = "tx-1") -> OutboxEntry:
    return OutboxEntry(intent_id=f"intent-{number}", outcome=Outcome.CREATED, order_id=order_id)


def refuted_later(number: int = 1) -> OutboxEntry:
    return OutboxEntry(intent_id=f"intent-{number}", outcome=Outcome.REFUSED, error="Refuted")


def undos(*hooks: str, number: int = 1) -> tuple[PendingUndo, ...]:
    return tuple(PendingUndo(intent=intent(number), hook=hook, receipt=f"r-{hook}") for hook in hooks)


WAYS: dict[KeyState, tuple[Move, ...]] = {
    KeyState.FREE: (claim(), release(None)),
    KeyState.CLAIMED: (claim(),),
    KeyState.SENDING: (claim(), mark()),
    KeyState.IN_DOUBT: (claim(), mark(), doubt()),
    KeyState.CREATED: (claim(), mark(), create()),
}
"""The shortest series of transitions to each state."""


async def made(journal: Journal, *wanted: Move, key: str = "k", scope: str = SCOPE) -> Entry:
    """Apply transitions, check that none is rejected, and return the last entry."""
    entry = None
    for move in wanted:
        result = await judged(journal, move, key=key, scope=scope)
        assert result.denial is None, move
        entry = result.entry
    assert entry is not None
    return entry


async def judged(journal: Journal, move: Move, *, key: str = "k", scope: str = SCOPE) -> TransitionResult:
    result = await journal.move(scope, key, of_key(move, key))
    assert result is not None
    return result


def of_key(move: Move, key: str) -> Move:
    """Return a copy of ``move`` with ``key`` in its intents, as a journal requires."""
    if isinstance(move, (Claim, Suspect)):
        return msgspec.structs.replace(move, intent=attrs.evolve(move.intent, key=key))
    pending_undos = tuple(
        attrs.evolve(item, intent=attrs.evolve(item.intent, key=key))
        for item in getattr(move, "pending_undos", ())
    )
    return msgspec.structs.replace(move, pending_undos=pending_undos) if pending_undos else move


# --- journal time ------------------------------------------------------------------------------------
# The time of a journal under test.


LetPass = Callable[[float], None]
"""A function that advances the journal's time by seconds."""

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


class JournalTime:
    """A source of time that a test controls.

    A test may also set the time back, as happens when a machine's clock is corrected.

    Attributes:
        clock: a `Clock` that shows the time of this source.
    """

    def __init__(self) -> None:
        self._passed = 0.0
        self.clock: Clock = Clock(now=self.now, utc=self.utc)

    def now(self) -> float:
        """Return the time of a monotonic clock in seconds."""
        return 1000.0 + self._passed

    def utc(self) -> datetime:
        """Return the wall-clock time as an aware datetime."""
        return NOON + timedelta(seconds=self._passed)

    def pass_(self, seconds: float) -> None:
        """Advance the time by a number of seconds; a negative number sets it back."""
        self._passed += seconds
