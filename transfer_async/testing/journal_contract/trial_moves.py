"""Moves and entries for the trials of a journal, and short ways to make them."""

from __future__ import annotations

from typing import Any

from transfer_async._models.errors import Outcome
from transfer_async._models.requests import NewExternalOrder, NewOrder, OrderIntent
from transfer_async.journal import (
    Amend,
    Attend,
    Claim,
    Create,
    Decision,
    Demand,
    Ending,
    Entry,
    Expire,
    Free,
    GoInDoubt,
    Journal,
    Keep,
    KeyState,
    LayAside,
    Look,
    Mark,
    Move,
    Owe,
    Owed,
    Paid,
    Promise,
    Propose,
    Refute,
    Resolve,
    Suspect,
    TakeBack,
    TakeOver,
    Told,
    Untold,
    Verdict,
    Waive,
    Withdraw,
)
from transfer_async.journal.fingerprint import fingerprint
from transfer_async.testing.makers import make_new_order


def _order() -> NewOrder:
    external = NewExternalOrder(
        current_account_balance="900000.10", transaction_fee=250, transaction_fee_currency="NGN"
    )
    return make_new_order(exchange_rate="1550.25", external_order=external)


SCOPE = "https://service.example"
LEASE = 60.0
WINDOW = 30.0
SETTLE_AFTER = 300.0
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


def keep(epoch: int = 1, *, number: int = 1, **receipts: str) -> Keep:
    return Keep(intent_id=f"intent-{number}", epoch=epoch, lease=LEASE, receipts=dict(receipts))


def mark(attempt: str = "a", *, epoch: int = 1, number: int = 1, **receipts: str) -> Mark:
    return Mark(
        intent_id=f"intent-{number}",
        epoch=epoch,
        attempt=attempt,
        receipts=dict(receipts),
        lease=LEASE,
        window=WINDOW,
    )


def create(attempt: str = "a", order_id: str = "tx-1", reply: bytes = REPLY) -> Create:
    return Create(attempt=attempt, order_id=order_id, reply=reply)


def free(
    attempt: str | None = "a",
    *,
    epoch: int = 1,
    number: int = 1,
    owed: tuple[Owed, ...] = (),
    lease: float = LEASE,
) -> Free:
    ending = Ending(outcome=Outcome.REFUSED, error="Refused", status=422)
    return Free(
        intent_id=f"intent-{number}", epoch=epoch, attempt=attempt, ending=ending, owed=owed, lease=lease
    )


def doubt(attempt: str = "a") -> GoInDoubt:
    return GoInDoubt(attempt=attempt)


def expire(attempt: str = "a") -> Expire:
    return Expire(attempt=attempt)


def resolve(attempt: str = "a", order_id: str = "tx-1", *, by: str = "operator", **said: Any) -> Resolve:
    return Resolve(attempt=attempt, order_id=order_id, reply=None, by=by, reason="seen", **said)


def refute(attempt: str = "a", *, owed: tuple[Owed, ...] = (), by: str = "operator", **said: Any) -> Refute:
    return Refute(
        attempt=attempt,
        settle_after=SETTLE_AFTER,
        by=by,
        reason="sure",
        owed=owed,
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
    **said: Any,
) -> Propose:
    named = "tx-1" if decision is Decision.RESOLVE and order_id is None else order_id
    return Propose(
        id=f"proposal-{number}",
        decision=decision,
        attempt=attempt,
        order_id=named,
        by=by,
        said="seen",
        settle_after=SETTLE_AFTER,
        **said,
    )


def withdraw(number: int = 1) -> Withdraw:
    return Withdraw(proposal=f"proposal-{number}", by="ben", reason="no")


def demand() -> Demand:
    return Demand(by="ada", reason="the bank's rule")


def waive(number: int = 1, *, by: str = "ben") -> Waive:
    return Waive(proposal=f"proposal-{number}", by=by, reason="the bank's rule")


def look() -> Look:
    return Look(by="ada", reason="a call")


def take_over(epoch: int = 1, *, number: int = 1) -> TakeOver:
    return TakeOver(intent_id=f"intent-{number}", epoch=epoch, lease=LEASE)


def lay_aside() -> LayAside:
    return LayAside(by="operator", reason="cannot be read")


def attend(lease: float = LEASE) -> Attend:
    return Attend(lease=lease)


def paid(*hooks: str, number: int = 1, lease_until: float = 0.0) -> Paid:
    return Paid(intent_id=f"intent-{number}", hooks=hooks, lease_until=lease_until)


def owe(*hooks: str, number: int = 1) -> Owe:
    return Owe(owed=owing(*hooks, number=number), lease=LEASE)


def suspect(order_id: str = "tx-2") -> Suspect:
    return Suspect(order_id=order_id, reason="answered late")


def promise(number: int = 1) -> Promise:
    return Promise(intent_id=f"intent-{number}")


def told(untold: Untold | None = None) -> Told:
    return Told(untold=untold or created_later())


def created_later(number: int = 1, order_id: str = "tx-1") -> Untold:
    return Untold(intent_id=f"intent-{number}", outcome=Outcome.CREATED, order_id=order_id)


def refuted_later(number: int = 1) -> Untold:
    return Untold(intent_id=f"intent-{number}", outcome=Outcome.REFUSED, error="Refuted")


def owing(*hooks: str, number: int = 1) -> tuple[Owed, ...]:
    return tuple(Owed(intent=intent(number), hook=hook, receipt=f"r-{hook}") for hook in hooks)


WAYS: dict[KeyState, tuple[Move, ...]] = {
    KeyState.FREE: (claim(), free(None)),
    KeyState.CLAIMED: (claim(),),
    KeyState.SENDING: (claim(), mark()),
    KeyState.IN_DOUBT: (claim(), mark(), doubt()),
    KeyState.CREATED: (claim(), mark(), create()),
}
"""The shortest way to each state."""


async def made(journal: Journal, *wanted: Move, key: str = "k") -> Entry:
    """Make moves that are all allowed; the entry after them."""
    entry = None
    for move in wanted:
        verdict = await judged(journal, move, key=key)
        assert verdict.denial is None, move
        entry = verdict.entry
    assert entry is not None
    return entry


async def judged(journal: Journal, move: Move, *, key: str = "k") -> Verdict:
    verdict = await journal.move(SCOPE, key, move)
    assert verdict is not None
    return verdict
