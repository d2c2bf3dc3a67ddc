"""Which keys may have sent an order, and when the service may have recorded it."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.support import samples
from tests.support.cases import each
from tests.support.journalling import SCOPE, claim, doubt, intent, made, mark
from transfer_async import MemoryJournal, Operators
from transfer_async._cli.reconcile_comparison import (
    Ambiguous,
    Comparison,
    ExportedOrder,
    PostingTime,
    Sender,
    _other_senders,
    _time_difference,
    add_journal,
    content_of,
    order_content,
)
from transfer_async.journal import journal_at
from transfer_async.journal.model import Entry, HistoryEvent, KeyState, PendingUndo, Unread
from transfer_async.journal.protocol import ScopedJournal

TIMES = PostingTime(slack=5.0, settle_after=300.0, since_1970=lambda seconds: seconds + 10_000.0)
CONTENT = content_of(intent().order)
CORRUPT = Unread(why="DecodeError", kept="", hooks=(), earlier_hooks=())


def entry(**changes: Any) -> Entry:
    """Return a key whose doubt was refuted."""
    values: dict[str, Any] = {
        "state": KeyState.FREE,
        "fingerprint": "",
        "intent_id": "intent-1",
        "intent": None,
        "claimed_at": 90.0,
        "attempt": "a",
        "sent_until": 130.0,
    }
    return Entry(**values | changes)


def step(move: str, at: float, attempt: str | None = "a") -> HistoryEvent:
    state = KeyState.SENDING if move == "mark" else KeyState.FREE
    return HistoryEvent(at=at, move=move, state=state, intent_id="intent-1", epoch=1, attempt=attempt)


STEPS = (step("claim", 10_090.0, None), step("mark", 10_100.0), step("refute", 20_000.0))


@each(
    ("entry", "steps", "since", "until"),
    [
        (entry(), STEPS, 10_095.0, 10_435.0),
        (entry(attempt="b", sent_until=9_000.0), STEPS, 10_095.0, 20_305.0),  # the key has been claimed again
        (entry(unread=CORRUPT, sent_until=0.0), STEPS, 10_095.0, 20_305.0),
        (entry(), STEPS[2:], -math.inf, 10_435.0),
        (entry(attempt="b"), [step("mark", math.nan), step("refute", math.nan)], -math.inf, math.inf),
    ],
)
def test_the_order_of_a_refuted_attempt_was_posted_while_its_requests_could_take_effect(
    entry, steps, since, until
):
    (sender,) = TIMES.refuted("k", entry, steps)

    assert sender == Sender("k", None, since, until, is_in_doubt=False, was_refuted=True)


def test_the_content_of_a_refuted_attempt_is_known_while_its_undos_are_pending():
    (sender,) = TIMES.refuted(
        "k", entry(pending_undos=(PendingUndo(intent=intent(), hook="h", receipt=None),)), STEPS
    )

    assert sender.content == CONTENT


@each(
    ("posted_at", "steps", "difference"),
    [
        (10_090.0, (STEPS[1], step("create", 10_105.0)), 10.0),
        (10_103.0, (STEPS[1], step("create", 10_105.0)), -2.0),
        (13_705.0, (STEPS[1], step("create", 10_105.0)), 3_600.0),
        (10_103.0, (step("create", 10_105.0),), 2.0),
        (10_103.0, STEPS, None),  # A person entered its order id.
    ],
)
def test_posting_is_compared_with_sending_unless_a_person_gave_the_id(posted_at, steps, difference):
    named = [msgspec.structs.replace(one, order_id="tx-1") for one in steps]

    assert _time_difference("tx-1", posted_at, named) == difference


def test_a_key_without_a_refutation_has_no_refuted_attempt():
    assert list(TIMES.refuted("k", entry(), STEPS[:2])) == []


@pytest.mark.parametrize(
    ("is_sealed", "since", "until"), [(True, 10_085.0, 10_435.0), (False, -math.inf, math.inf)]
)
def test_a_corrupt_doubt_may_have_sent_any_order(is_sealed, since, until):
    corrupt = Unread(why="DecodeError", kept="", hooks=(), earlier_hooks=(), is_sealed=is_sealed)
    sender = TIMES.sender("k", entry(state=KeyState.IN_DOUBT, unread=corrupt))

    assert sender == Sender("k", None, since, until, is_in_doubt=True)


OTHER = intent(order=samples.new_order(poster_username="ben@example.com"))
UNDO = PendingUndo(intent=OTHER, hook="h", receipt=None)


@each(
    ("entry", "contents"),
    [
        (entry(state=KeyState.SENDING, intent=intent()), [CONTENT]),
        (entry(state=KeyState.IN_DOUBT, intent=intent()), [CONTENT]),
        (entry(state=KeyState.CREATED, intent=intent()), []),  # The export contains its order under its id.
        (entry(state=KeyState.SENDING), []),
        (entry(pending_undos=(UNDO,)), [content_of(OTHER.order)]),
        (entry(pending_undos=(UNDO, UNDO), unread=CORRUPT), [None]),
    ],
)
def test_a_key_that_was_not_in_doubt_may_have_sent_its_intents(entry, contents):
    """Without this, the order of a key that is being sent is assigned to another key in doubt."""
    senders = [Sender("k", content, -math.inf, math.inf, is_in_doubt=False) for content in contents]

    assert list(_other_senders("k", entry)) == senders


class StaleDoubts(MemoryJournal):
    """A journal whose list of doubts is outdated: it was read while the doubtful keys were still sending."""

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        return []


@each(("sent", "exported"), samples.TWO_PEOPLE)
def test_orders_of_two_people_have_different_contents(sent, exported):
    """Without this, a doubt is resolved with an order that pays somebody else."""
    sums = (Decimal(1), "USD"), (Decimal(2), "NGN")

    assert order_content(sent, "ben@example.com", *sums) != order_content(exported, "ben@example.com", *sums)
    assert order_content("ada@example.com", sent, *sums) != order_content("ada@example.com", exported, *sums)


async def add_keys(comparison: Comparison, journal: Any, *moves: Any) -> None:
    """Add the keys of a journal after these transitions of one key."""
    await made(journal, *moves)
    scoped, operators = ScopedJournal(journal, SCOPE), Operators(journal, SCOPE)
    await add_journal(comparison, scoped, operators, slack=0.0, settle_after=300.0)
    await journal.close()


def assert_another_key_may_have_sent(add: Callable[[Comparison], Coroutine[Any, Any, None]]) -> None:
    """Check that the only match of a doubt becomes ambiguous when ``add`` has added another key."""
    with Comparison() as comparison:
        comparison.add_order(ExportedOrder("tx-1", CONTENT, 50.0))
        comparison.add_senders([Sender("lost", CONTENT, 0.0, 100.0, is_in_doubt=True)])
        asyncio.run(add(comparison))
        comparison.compare()

        assert Ambiguous("lost", ("tx-1",)) in list(comparison.findings())


def test_a_key_that_becomes_doubtful_during_the_reading_may_have_sent_its_order():
    assert_another_key_may_have_sent(
        lambda comparison: add_keys(comparison, StaleDoubts(), claim(), mark(), doubt())
    )


@pytest.mark.parametrize("kind", ["memory", "file", "database"])
def test_a_key_that_is_being_sent_may_have_sent_its_order(kind, tmp_path, request):
    """Without this, a doubt is resolved with the order of a sender that is about to record it."""
    database = request.getfixturevalue("database") if kind == "database" else ""

    async def add(comparison: Comparison) -> None:
        file = tmp_path / "journal.db"
        journal: Any = MemoryJournal() if kind == "memory" else journal_at(database or str(file))
        await add_keys(comparison, journal, claim(), mark())  # The lease of the key has not expired.

    assert_another_key_may_have_sent(add)
