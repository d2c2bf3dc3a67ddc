"""Moves and entries for tests of the journal, and short ways to make them."""

from typing import Any

from tests.support.bank import new_order
from transfer_async._models.errors import Outcome
from transfer_async._models.requests import OrderIntent
from transfer_async.journal import entries
from transfer_async.journal.entries import Entry, KeyState, Verdict
from transfer_async.journal.fingerprint import fingerprint
from transfer_async.journal.protocol import Journal

SCOPE = "https://service.example"
LEASE = 60.0
WINDOW = 30.0
SETTLE_AFTER = 300.0
MAX_AGE = 900.0
REPLY = b'{"id": "tx-1"}'


def intent(number: int = 1, **changes: Any) -> OrderIntent:
    fields: dict[str, Any] = {"id": f"intent-{number}", "key": "k", "order": new_order()}
    return OrderIntent(**{"beneficiary": None, "held": None, "send_before": None, **fields, **changes})


def claim(number: int = 1, **changes: Any) -> entries.Claim:
    wish = changes.pop("intent", None) or intent(number)
    fields: dict[str, Any] = {
        "intent": wish,
        "fingerprint": fingerprint(wish.order),
        "client_made": False,
        "lease": LEASE,
        "max_claim_age": MAX_AGE,
        "hooks": ("hold", "check"),
    }
    return entries.Claim(**fields | changes)


def keep(epoch: int = 1, *, number: int = 1, **receipts: str) -> entries.Keep:
    return entries.Keep(intent_id=f"intent-{number}", epoch=epoch, lease=LEASE, receipts=dict(receipts))


def mark(attempt: str = "a", *, epoch: int = 1, number: int = 1, **receipts: str) -> entries.Mark:
    return entries.Mark(
        intent_id=f"intent-{number}",
        epoch=epoch,
        attempt=attempt,
        receipts=dict(receipts),
        lease=LEASE,
        window=WINDOW,
    )


def create(attempt: str = "a", order_id: str = "tx-1", reply: bytes = REPLY) -> entries.Create:
    return entries.Create(attempt=attempt, order_id=order_id, reply=reply)


def free(
    attempt: str | None = "a",
    *,
    epoch: int = 1,
    number: int = 1,
    owed: tuple[entries.Owed, ...] = (),
    lease: float = LEASE,
) -> entries.Free:
    ending = entries.Ending(outcome=Outcome.REFUSED, error="Refused", status=422)
    return entries.Free(
        intent_id=f"intent-{number}", epoch=epoch, attempt=attempt, ending=ending, owed=owed, lease=lease
    )


def doubt(attempt: str = "a") -> entries.GoInDoubt:
    return entries.GoInDoubt(attempt=attempt)


def expire(attempt: str = "a") -> entries.Expire:
    return entries.Expire(attempt=attempt)


def resolve(attempt: str = "a", order_id: str = "tx-1") -> entries.Resolve:
    return entries.Resolve(attempt=attempt, order_id=order_id, reply=None, by="operator", reason="seen")


def refute(attempt: str = "a", *, owed: tuple[entries.Owed, ...] = ()) -> entries.Refute:
    return entries.Refute(
        attempt=attempt, settle_after=SETTLE_AFTER, by="operator", reason="sure", owed=owed, lease=LEASE
    )


def take_over(epoch: int = 1, *, number: int = 1) -> entries.TakeOver:
    return entries.TakeOver(intent_id=f"intent-{number}", epoch=epoch, lease=LEASE)


def lay_aside() -> entries.LayAside:
    return entries.LayAside(by="operator", reason="cannot be read")


def attend(lease: float = LEASE) -> entries.Attend:
    return entries.Attend(lease=lease)


def paid(*hooks: str, number: int = 1, lease_until: float = 0.0) -> entries.Paid:
    return entries.Paid(intent_id=f"intent-{number}", hooks=hooks, lease_until=lease_until)


def owe(*hooks: str, number: int = 1) -> entries.Owe:
    return entries.Owe(owed=owing(*hooks, number=number), lease=LEASE)


def suspect(order_id: str = "tx-2") -> entries.Suspect:
    return entries.Suspect(order_id=order_id, reason="answered late")


def promise(number: int = 1) -> entries.Promise:
    return entries.Promise(intent_id=f"intent-{number}")


def told(untold: entries.Untold | None = None) -> entries.Told:
    return entries.Told(untold=untold or created_later())


def created_later(number: int = 1, order_id: str = "tx-1") -> entries.Untold:
    return entries.Untold(intent_id=f"intent-{number}", outcome=Outcome.CREATED, order_id=order_id)


def refuted_later(number: int = 1) -> entries.Untold:
    return entries.Untold(intent_id=f"intent-{number}", outcome=Outcome.REFUSED, error="Refuted")


def owing(*hooks: str, number: int = 1) -> tuple[entries.Owed, ...]:
    return tuple(entries.Owed(intent=intent(number), hook=hook, receipt=f"r-{hook}") for hook in hooks)


WAYS: dict[KeyState, tuple[entries.Move, ...]] = {
    KeyState.FREE: (claim(), free(None)),
    KeyState.CLAIMED: (claim(),),
    KeyState.SENDING: (claim(), mark()),
    KeyState.IN_DOUBT: (claim(), mark(), doubt()),
    KeyState.CREATED: (claim(), mark(), create()),
}
"""The shortest way to each state."""


async def made(journal: Journal, *wanted: entries.Move, key: str = "k") -> Entry:
    """Make moves that are all allowed; the entry after them."""
    entry = None
    for move in wanted:
        verdict = await judged(journal, move, key=key)
        assert verdict.denial is None, move
        entry = verdict.entry
    assert entry is not None
    return entry


async def judged(journal: Journal, move: entries.Move, *, key: str = "k") -> Verdict:
    verdict = await journal.move(SCOPE, key, move)
    assert verdict is not None
    return verdict
