"""Which keys may have sent an order, and when."""

import asyncio
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.support import samples
from tests.support.cases import each
from tests.support.journalling import SCOPE, claim, doubt, intent, made, mark
from transfer_async import MemoryJournal, Operators
from transfer_async._cli.reconcile_comparison import (
    EVER,
    Ambiguous,
    Books,
    ExportedOrder,
    Sender,
    Span,
    _apart,
    add_journal,
    wish,
    wish_of,
)
from transfer_async.journal.model import Entry, HistoryEvent, KeyState, PendingUndo, Unread
from transfer_async.journal.protocol import ScopedJournal

SPAN = Span(slack=5.0, settle_after=300.0, since_1970=lambda seconds: seconds + 10_000.0)
WISH = wish_of(intent().order)
SHUT = Unread(why="DecodeError", kept="", hooks=(), earlier_hooks=())


def entry(**changes: Any) -> Entry:
    """A key whose doubt was refuted."""
    told: dict[str, Any] = {
        "state": KeyState.FREE,
        "fingerprint": "",
        "intent_id": "intent-1",
        "intent": None,
        "claimed_at": 90.0,
        "attempt": "a",
        "sent_until": 130.0,
    }
    return Entry(**told | changes)


def step(move: str, at: float, attempt: str | None = "a") -> HistoryEvent:
    state = KeyState.SENDING if move == "mark" else KeyState.FREE
    return HistoryEvent(at=at, move=move, state=state, intent_id="intent-1", epoch=1, attempt=attempt)


STEPS = (step("claim", 10_090.0, None), step("mark", 10_100.0), step("refute", 20_000.0))


@each(
    ("entry", "steps", "since", "until"),
    [
        (entry(), STEPS, 10_095.0, 10_435.0),
        (entry(attempt="b", sent_until=9_000.0), STEPS, 10_095.0, 20_305.0),  # it was claimed again
        (entry(unread=SHUT, sent_until=0.0), STEPS, 10_095.0, 20_305.0),
        (entry(), STEPS[2:], -EVER, 10_435.0),
        (entry(attempt="b"), [step("mark", math.nan), step("refute", math.nan)], -EVER, EVER),
    ],
)
def test_an_order_of_a_refuted_attempt_was_posted_while_its_requests_could_take_effect(
    entry: Entry, steps: tuple[HistoryEvent, ...], since: float, until: float
):
    (sender,) = SPAN.refuted("k", entry, steps)

    assert sender == Sender("k", None, since, until, is_in_doubt=False, was_refuted=True)


def test_what_a_refuted_key_wished_for_is_known_while_its_undos_are_owed():
    (sender,) = SPAN.refuted(
        "k", entry(pending_undos=(PendingUndo(intent=intent(), hook="h", receipt=None),)), STEPS
    )

    assert sender.wish == WISH


@each(
    ("posted_at", "steps", "apart"),
    [
        (10_090.0, (STEPS[1], step("create", 10_105.0)), 10.0),
        (10_103.0, (STEPS[1], step("create", 10_105.0)), -2.0),
        (13_705.0, (STEPS[1], step("create", 10_105.0)), 3_600.0),
        (10_103.0, (step("create", 10_105.0),), 2.0),
        (10_103.0, STEPS, None),  # somebody gave its id
    ],
)
def test_an_order_that_the_service_answered_with_was_posted_while_it_was_sent(posted_at, steps, apart):
    named = [msgspec.structs.replace(one, order_id="tx-1") for one in steps]

    assert _apart("tx-1", posted_at, named) == apart


def test_a_key_of_which_nothing_was_refuted_has_no_such_attempt():
    assert list(SPAN.refuted("k", entry(), STEPS[:2])) == []


@pytest.mark.parametrize(("is_sealed", "since", "until"), [(True, 10_085.0, 10_435.0), (False, -EVER, EVER)])
def test_a_doubt_that_cannot_be_read_may_have_sent_any_order(is_sealed: bool, since: float, until: float):
    shut = Unread(why="DecodeError", kept="", hooks=(), earlier_hooks=(), is_sealed=is_sealed)
    sender = SPAN.sender("k", entry(state=KeyState.IN_DOUBT, unread=shut))

    assert sender == Sender("k", None, since, until, is_in_doubt=True)


class AskedAMomentAgo(MemoryJournal):
    """What is in doubt now was being sent when it was asked what is in doubt."""

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        return []


@each(("sent", "exported"), samples.TWO_PEOPLE)
def test_the_order_of_another_person_is_not_the_order_of_a_doubt(sent: str, exported: str):
    """Else the doubt would be ended with an order that pays somebody else."""
    sums = (Decimal(1), "USD"), (Decimal(2), "NGN")

    assert wish(sent, "ben@example.com", *sums) != wish(exported, "ben@example.com", *sums)
    assert wish("ada@example.com", sent, *sums) != wish("ada@example.com", exported, *sums)


def test_what_goes_in_doubt_while_the_journal_is_read_may_have_sent_its_order():
    async def take_in(books: Books) -> None:
        journal = AskedAMomentAgo()
        await made(journal, claim(), mark(), doubt())
        scoped, operators = ScopedJournal(journal, SCOPE), Operators(journal, SCOPE)
        await add_journal(books, scoped, operators, slack=0.0, settle_after=300.0)

    with Books() as books:
        books.add_order(ExportedOrder("tx-1", WISH, 50.0))
        books.all_orders_added()
        books.add_senders([Sender("lost", WISH, 0.0, 100.0, is_in_doubt=True)])
        asyncio.run(take_in(books))
        books.compare()

        assert Ambiguous("lost", ("tx-1",)) in list(books.findings())
