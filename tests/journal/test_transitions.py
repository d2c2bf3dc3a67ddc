"""The result of every transition in every situation of a key: `decide` compared with `transitions.txt`.

Review the changes of that file line by line. After a change of the state machine, write it anew with `python
-m tests.journal.test_transitions`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec
from msgspec.structs import replace

from tests.support import journalling as j
from transfer_async._models.errors import Attempt, Cause, CauseKind, Outcome
from transfer_async._models.requests import OrderIntent, fingerprint
from transfer_async.journal import Decision, Ending, Quarantine, state_machine
from transfer_async.journal.model import (
    BELIEVED,
    SUSPECTED,
    Entry,
    KeyState,
    OutboxEntry,
    PendingUndo,
    Rejection,
    TransitionResult,
    Unread,
)
from transfer_async.journal.transitions import Move, due_at, history_step, is_ended, is_told, is_waiting
from transfer_async.testing.assertions import make_new_order

LIST = Path(__file__).with_name("transitions.txt")
START = 100_000.0
DAY = 86_400.0
LATER = (1.0, 60.0, 300.0, 900.0, DAY)
"""The seconds after a situation's start at which transitions are tried. Limits are 60, 300 and 900 s."""

OTHER_ORDER = make_new_order()
OTHER = OrderIntent(id="intent-9", key="k", order=OTHER_ORDER, beneficiary=None, held=None, send_before=None)
FAILED = Ending(outcome=Outcome.NOT_SENT, error="HoldFailed")
FINAL = Ending(outcome=Outcome.REFUSED, error="Refused", status=422)
BY_HOOK = Ending(outcome=Outcome.NOT_SENT, error="PreflightFailed", refused=True)
TRIED = Attempt(number=1, seconds=0.1, outcome=Outcome.UNKNOWN)
CUT = Cause(kind=CauseKind.CUT_ANSWER, attempts=(TRIED,))
HELD = j.intent(held="their-hold")
LIMIT = datetime(2030, 1, 1, tzinfo=UTC)
NEXT_HELD = j.intent(2, held="their-hold")

# --- the situations -----------------------------------------------------------------------------


def after(*way: Move, entry: Entry | None = None) -> Entry:
    """Return the entry after these transitions, all at the same time."""
    for move in way:
        result = state_machine.decide(entry, move, now=START)
        assert result is not None
        assert result.denial is None or result.found_doubt, (move, result.denial)
        entry = result.entry
    assert entry is not None
    return entry


def unread(entry: Entry, **how: Any) -> Entry:
    hooks = {"hooks": ("hold",), "earlier_hooks": ("check",)}
    return replace(entry, unread=Unread(**{"why": "DecodeError", "kept": "{", **hooks, **how}))


CLAIMED = after(j.claim())
SENDING = after(j.mark(hold="r-hold"), entry=CLAIMED)
DOUBT = after(j.doubt(cause=CUT, candidate="tx-8"), entry=SENDING)
PROMISED = after(j.request_notification(), entry=DOUBT)
RESOLVED = after(j.resolve(), entry=PROMISED)
RELEASED = after(j.release(pending_undos=j.undos("hold", "check"), ending=FINAL), entry=SENDING)
REFUTED = after(j.refute(pending_undos=j.undos("hold", "check")), entry=replace(PROMISED, sent_until=0.0))
REFUTED_BEFORE = replace(REFUTED, pending_undos=())
DEMANDED = after(j.demand())
PROPOSED = after(j.propose(Decision.WAIVE, None, None), entry=DEMANDED)
FAR = START + LATER[0] + BELIEVED
"""The latest time that the journal believes, one second after the start of a situation."""
FAR_UNDOS = tuple(attrs.evolve(undo, lease_until=FAR) for undo in j.undos("hold", number=7))

SITUATIONS: dict[str, Entry | None] = {
    "no record": None,
    "claimed": CLAIMED,
    "claimed, and another key has the order's id": CLAIMED,
    "claimed, with a hold of the bank's own and a receipt": after(
        j.claim(intent=HELD), j.renew(hold="r-hold")
    ),
    "claimed anew, while an undo of an earlier intent is pending": after(
        j.claim(2), entry=after(j.release(None, pending_undos=j.undos("hold")), entry=CLAIMED)
    ),
    "claimed anew, and an order of the earlier intent may exist": after(
        j.claim(2), j.suspect(), entry=REFUTED_BEFORE
    ),
    "sending": SENDING,
    "sending anew, and an order of the earlier intent may exist": after(
        j.claim(2), j.mark("b", number=2), j.suspect(), entry=REFUTED_BEFORE
    ),
    "in doubt: the sender reported it": DOUBT,
    "in doubt: the sender is gone": after(j.expire(), entry=replace(SENDING, lease_until=START)),
    "in doubt, and an operator's proposal waits": after(j.propose(), entry=PROMISED),
    "in doubt, and a refutation is proposed": after(
        j.propose(Decision.REFUTE), entry=replace(DOUBT, sent_until=0.0)
    ),
    "in doubt under a lease, with the end of an earlier intent to publish": after(
        j.acquire_lease(), entry=replace(PROMISED, pending_notifications=(j.refuted_later(7),))
    ),
    "in doubt: the sender's order came after a refutation": after(j.suspect(None), entry=REFUTED),
    "in doubt, under dual control": DOUBT,
    "in doubt, and another key has the order's id": DOUBT,
    "in doubt: its id was taken back": after(j.take_back(), entry=RESOLVED),
    "free: a claim ended without an order": replace(
        after(j.release(None, ending=FAILED), entry=after(j.claim(intent=HELD))),
        quarantined=("{",),
        unknown_members={"newer": b"1"},
    ),
    "free: a hook refused, without a hold of the bank's own": after(
        j.release(None, ending=BY_HOOK), entry=CLAIMED
    ),
    "free: a hook refused": after(j.release(None, ending=BY_HOOK), entry=after(j.claim(intent=HELD))),
    "free: the service refused, and undos are pending": RELEASED,
    "free: refuted, with undos and a notification pending": REFUTED,
    "created by the service's answer": after(j.create(), entry=SENDING),
    "created by the service's answer, although it had been refuted": after(j.create(), entry=REFUTED),
    "created by an operator, with a notification pending": RESOLVED,
    "created by an operator, though an order of another intent may exist": after(
        j.resolve(), entry=after(j.suspect(None), entry=REFUTED)
    ),
    "created by an operator, and an amendment is proposed": after(
        j.propose(Decision.AMEND, "tx-2"), entry=RESOLVED
    ),
    "corrupt, claimed": unread(CLAIMED),
    "corrupt, sending": unread(SENDING),
    "corrupt, in doubt without a time of the last send": unread(replace(DOUBT, sent_until=0.0, attempt=None)),
    "corrupt, free with undos pending": unread(REFUTED),
    "corrupt, free with undos that cannot be read": unread(REFUTED_BEFORE),
    "corrupt, created": unread(RESOLVED),
    "corrupt: of its record only the undos and notifications are left": unread(
        replace(
            RELEASED,
            fingerprint="",
            intent_id="",
            pending_undos=(*j.undos("hold", "check", number=7), *RELEASED.pending_undos[:1]),
            pending_notifications=(
                j.refuted_later(7),
                j.refuted_later(),
                attrs.evolve(j.refuted_later(), error=SUSPECTED),
            ),
        )
    ),
    "corrupt: of its record only the intent's id is left": unread(replace(RELEASED, fingerprint="")),
    "encrypted with another key": unread(DOUBT, is_sealed=True),
    "the scope's rule: dual control": DEMANDED,
    "the scope's rule: dual control, and its end is proposed": PROPOSED,
    "the scope's rule: no dual control": replace(PROPOSED, four_eyes=False),
    "the scope's rule, corrupt": unread(
        replace(DEMANDED, quarantined=("earlier",), unknown_members={"newer": b"1"}), hooks=()
    ),
    "under a lease of a clock that was far ahead": replace(
        after(j.claim(2), entry=RELEASED),
        lease_until=START + 400 * DAY,
        pending_undos=tuple(
            attrs.evolve(undo, lease_until=START + days * DAY)
            for undo, days in zip(RELEASED.pending_undos, (400, 0), strict=True)
        ),
    ),
    "claimed, with the latest times that are believed": replace(
        CLAIMED, lease_until=FAR, pending_undos=FAR_UNDOS
    ),
    "sending, with the latest times that are believed": replace(
        SENDING, sent_until=FAR, pending_undos=FAR_UNDOS
    ),
    "in doubt, last sent by a clock that was far ahead": replace(DOUBT, sent_until=START + 400 * DAY),
}

RULES: dict[str, Entry] = {"in doubt, under dual control": DEMANDED}
"""The entry of the scope in a situation, if it has one."""

TAKEN = {f"{state}, and another key has the order's id" for state in ("claimed", "in doubt")}
"""The situations in which another key already has the order id of a transition."""

MOVES: dict[str, Move] = {
    "claim": j.claim(2),
    "claim once, with a time limit": j.claim(2, once=True, intent=j.intent(2, send_before=LIMIT)),
    "claim once, with the same hold": j.claim(2, once=True, intent=NEXT_HELD),
    "claim with fewer hooks": j.claim(2, hooks=("check",), client_made=True),
    "claim another order": j.claim(intent=OTHER, fingerprint=fingerprint(OTHER_ORDER)),
    "claim another order, once": j.claim(intent=OTHER, fingerprint=fingerprint(OTHER_ORDER), once=True),
    "renew": j.renew(check="r-check"),
    "renew, of the next intent": j.renew(number=2),
    "take over": j.take_over(),
    "mark": j.mark(hold="r-2"),
    "mark, of the next intent": j.mark("b", number=2),
    "create, of the next intent": j.create("b", "tx-b"),
    "release after it is marked, of the next intent": j.release("b", number=2, ending=FINAL),
    "doubt, of the next intent": j.doubt("b", cause=CUT),
    "expire, of the next intent": j.expire("b"),
    "renew, of an earlier claim": j.renew(epoch=0),
    "create": j.create(),
    "create another id, to publish": replace(j.create(order_id="tx-9"), publish=True),
    "release before it is marked": j.release(None, ending=FAILED, pending_undos=j.undos("hold")),
    "release": j.release(
        pending_undos=tuple(attrs.evolve(undo, since=START - 1) for undo in j.undos("hold"))
    ),
    "release, of another attempt": j.release("z"),
    "release, of an earlier claim": j.release(None, epoch=0),
    "release, of the next intent": j.release(None, number=2, pending_undos=j.undos("hold", number=2)),
    "doubt": j.doubt(),
    "doubt, with a candidate": j.doubt(candidate="tx-8", cause=CUT),
    "doubt, with another candidate": j.doubt(candidate="tx-9"),
    "expire": j.expire(),
    "resolve": j.resolve(),
    "resolve, approving": j.resolve(proposal="proposal-1"),
    "resolve, approving another id": j.resolve(order_id="tx-9", proposal="proposal-1"),
    "resolve, approved by who proposed it": j.resolve(by="ADA", proposal="proposal-1"),
    "resolve, having seen the first version": j.resolve(seen=1),
    "refute": j.refute(pending_undos=j.undos("hold", "check")),
    "refute by a program": j.refute(by="resolve", by_program=True, abandoned_settle_after=DAY),
    "refute, approving": j.refute(proposal="proposal-1"),
    "amend": j.amend(),
    "amend, approving": j.amend(proposal="proposal-1"),
    "amend another id": j.amend("tx-9"),
    "take back": j.take_back(),
    "mark undone": j.mark_undone("hold", lease_until=RELEASED.pending_undos[0].lease_until),
    "mark undone, under another lease": j.mark_undone("hold"),
    "add undos": j.add_undos("hold", "late"),
    "add undos without receipts": replace(
        j.add_undos(),
        pending_undos=tuple(attrs.evolve(undo, receipt=None) for undo in j.undos("hold", "late")),
    ),
    "take the lease": j.acquire_lease(),
    "release the lease": j.acquire_lease(0.0),
    "release a lease that is over": replace(j.acquire_lease(0.0), ends=1.0),
    "suspect": j.suspect(),
    "suspect without an id, to publish": replace(
        j.suspect(None), publish=True, outcome=Outcome.UNKNOWN
    ),
    "suspect, of another intent": replace(
        j.suspect("tx-7"), intent=attrs.evolve(OTHER, held="h"), fingerprint=fingerprint(OTHER_ORDER)
    ),
    "quarantine": j.quarantine(),
    "quarantine, for a proposal": Quarantine(by="ada", reason="bad", proposing=True, order_may_exist=True),
    "request a notification": j.request_notification(),
    "request a notification, of the next intent": j.request_notification(2),
    "mark notified": j.mark_notified(),
    "mark notified, as read": j.mark_notified(OutboxEntry(
        intent_id="intent-1", outcome=Outcome.CREATED, order_id="tx-1", since=START
    )),
    "mark notified, as read before": j.mark_notified(
        OutboxEntry(intent_id="intent-1", outcome=Outcome.CREATED, order_id="tx-1", since=START - 1)
    ),
    "propose to resolve": j.propose(number=2, undone=True),
    "propose to refute": j.propose(Decision.REFUTE, number=2),
    "propose to amend": j.propose(Decision.AMEND, "tx-2", number=2),
    "propose to waive": j.propose(Decision.WAIVE, None, None, number=2),
    "propose, having seen the first version": j.propose(seen=1),
    "withdraw": j.withdraw(),
    "withdraw another proposal": j.withdraw(2),
    "demand": j.demand(),
    "waive": j.waive(),
    "waive, as the person who proposed it": j.waive(by="ada"),
    "look": j.look(),
    "note": j.note(),
    "watch": j.watch(),
    "unwatch": j.unwatch(),
}  # fmt: skip

# --- how they are shown -------------------------------------------------------------------------


def shown(value: object, now: float) -> str:
    """Return a value of an entry as one line. Times are relative to ``now``, in seconds."""
    match value:
        case OrderIntent():
            same = "" if value.order == j.intent().order else " of another order"
            more = {"held": value.held, "send_before": value.send_before}
            return " ".join([value.id + same, *(f"{name}={one}" for name, one in more.items() if one)])
        case PendingUndo():
            lease, since = clock(value.lease_until, now), clock_of_start(value.since, now)
            return f"{value.intent.id}.{value.hook} receipt={value.receipt} lease={lease} since={since}"
        case OutboxEntry():
            since = clock_of_start(value.since, now)
            facts = (value.outcome.value, value.order_id, value.error, value.status, since)
            return f"{value.intent_id}: " + " ".join(map(str, facts))
        case Cause():
            return f"{value.kind.value} with {len(value.attempts)} attempts"
        case Ending():
            facts = (value.outcome.value, value.error, value.status, "refused" if value.refused else "")
            return " ".join(str(fact) for fact in facts if fact)
        case tuple():
            return f"({', '.join(shown(one, now) for one in value)})"
        case KeyState():
            return value.value
        case str() if value in PRINTS:
            return PRINTS[value]
        case _ if attrs.has(kind := type(value)) or isinstance(value, msgspec.Struct):
            fields = attrs.fields_dict(kind) if attrs.has(kind) else msgspec.structs.asdict(value)
            return " ".join(f"{name}={field_shown(name, getattr(value, name), now)}" for name in fields)
        case _:
            return str(value)


PRINTS = {fingerprint(j.intent().order): "the order's", fingerprint(OTHER_ORDER): "another's", "": "''"}
TIMES = {"claimed_at", "lease_until", "sent_until", "at"}


def clock(time: float | None, now: float) -> str:
    return str(time) if not time else f"now{time - now:+.0f}" if time != now else "now"


def clock_of_start(time: float | None, now: float) -> str:
    """Return a time relative to the situation's start, so that the text does not change with time."""
    return clock(time, now) if time in (None, now) else f"start{time - START:+.0f}"


def field_shown(name: str, value: Any, now: float) -> str:
    return clock(value, now) if name in TIMES else shown(value, now)


def difference(before: Entry | None, entry: Entry, now: float) -> str:
    """Return the fields of ``entry`` that differ from ``before`` or, without it, from an empty entry."""
    base = before or Entry(state=KeyState.FREE, fingerprint="", intent_id="", intent=None, claimed_at=0.0)
    return "; ".join(
        f"{name}={field_shown(name, getattr(entry, name), now)}"
        for name in Entry.__struct_fields__
        if getattr(entry, name) != getattr(base, name) or (before is None and name == "state")
    )


def history_line(entry: Entry, move: Move, now: float) -> str:
    step = history_step(entry, move, now=now)
    epoch = f"epoch {step.epoch}" if step.epoch > 1 else None
    facts = (step.move, step.order_id, epoch, step.ending and shown(step.ending, now), step.by, step.reason)
    return " | ".join(str(fact) for fact in facts if fact is not None)


def decided(situation: str, move: Move, now: float) -> TransitionResult | None:
    rule, is_taken = RULES.get(situation), situation in TAKEN
    return state_machine.decide(SITUATIONS[situation], move, now=now, id_taken=is_taken, four_eyes=rule)


def result_of(situation: str, move: Move, now: float) -> str:
    """Return the changes of the entry, and the history line if it has more than the transition's name."""
    entry, result = SITUATIONS[situation], decided(situation, move, now)
    if result is None:
        return "needs a record"
    assert result.now == now
    denied = "" if result.denial is None else f"rejected: {result.denial.value}. "
    changes = difference(entry, result.entry, now) or ("" if denied else "no change")
    step = history_line(result.entry, move, now) if is_told(move, result) else ""
    return f"{denied}{changes}" + (f" | history: {step}" if " | " in step else "")


def situation_lines(name: str) -> Iterator[str]:
    entry = SITUATIONS[name]
    yield f"=== {name}"
    if entry is not None:
        waits = [f"{later:.0f}" for later in LATER if is_waiting(entry, START + later)]
        ended = ", ended" if is_ended(entry) else ""
        due = due_at(entry)
        yield f"    {difference(None, entry, START)}"
        yield f"    (work is due: {clock(due, START)}; waits after: {', '.join(waits) or 'no time'}{ended})"
    names: dict[str, list[str]] = {}  # situations, grouped by the resulting entry
    for move_name, move in MOVES.items():
        found: dict[str, list[str]] = {}
        for later in LATER:
            found.setdefault(result_of(name, move, START + later), []).append(f"{later:.0f}")
        for result, times in found.items():
            when = "" if len(found) == 1 else f" [{', '.join(times)} s]"
            names.setdefault(result, []).append(move_name + when)
    for result, moves in sorted(names.items(), key=lambda one: one[0].startswith(("rejected", "needs"))):
        yield f"  {'; '.join(moves)}"
        yield f"      {result}"


def text() -> str:
    lines = [line for name in SITUATIONS for line in (*situation_lines(name), "")]
    return "\n".join(lines)


def test_every_transition_does_what_the_list_says():
    assert text().splitlines() == LIST.read_text(encoding="utf-8").splitlines()


def test_the_list_has_every_row_of_the_table_and_every_reason_for_a_rejection():
    lines = LIST.read_text(encoding="utf-8")
    made = {
        (type(move), entry.state, result.entry.state)
        for name, entry in SITUATIONS.items()
        for move in MOVES.values()
        for later in LATER
        if entry is not None and (result := decided(name, move, START + later)) and result.denial is None
    }
    rows = {(row.move, row.source, row.to) for row in state_machine.TRANSITIONS}

    assert made == rows | {(Quarantine, KeyState.FREE, KeyState.IN_DOUBT)}  # see `order_may_exist`
    assert [reason for reason in Rejection if f"rejected: {reason.value}" not in lines] == []


if __name__ == "__main__":
    LIST.write_text(text(), encoding="utf-8")
