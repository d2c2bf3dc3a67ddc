"""How one commit decides its transitions."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import journalling as j
from tests.support.cases import each
from tests.support.journalling import SCOPE
from transfer_async.journal import rows, state_machine, transitions
from transfer_async.journal.durable import PendingMove, Transaction, WriteCache
from transfer_async.journal.model import Decision, Entry, KeyState, Rejection
from transfer_async.journal.operator_transitions import Propose

PROPOSAL = Propose(id="p", decision=Decision.RESOLVE, attempt="a", order_id="tx-1", by="ada", said="seen")


class Makes:
    """Makes transactions on stored entries that the test sets."""

    def __init__(self) -> None:
        self.cache = WriteCache()
        self.stored: dict[str, tuple[str, Entry]] = {}

    def wanted(
        self, *wishes: tuple[str, transitions.Move], commit_unknown: bool = False
    ) -> list[PendingMove]:
        future = asyncio.get_running_loop().create_future
        return [
            PendingMove((SCOPE, key), move, f"t{n}", future(), commit_unknown=commit_unknown)
            for n, (key, move) in enumerate(wishes)
        ]

    def store(self, key: str, token: str, *way: transitions.Move) -> Entry:
        entry: Any = None
        for move in way:
            verdict = state_machine.decide(entry, move, now=0.0)
            assert verdict is not None
            entry = verdict.entry
        self.stored[key] = (token, entry)
        self.cache.keep((SCOPE, key), token, entry)
        return entry

    def transaction(self, *wishes: tuple[str, transitions.Move], **settings: Any) -> Transaction:
        made = Transaction(self.wanted(*wishes, **settings), self.cache)
        for place in made.places:
            token, _ = self.stored.get(place[1], (None, None))
            made.load(place, token, None)
        return made


@pytest.fixture
def makes() -> Makes:
    return Makes()


def denials(transaction: Transaction) -> list[Rejection | None]:
    return [None if one is None else one.denial for one in transaction.results]


async def test_the_second_transition_of_a_key_in_a_commit_sees_the_first(makes: Makes):
    transaction = makes.transaction(("k", j.claim()), ("k", j.renew(check="r")), ("k", j.mark(check="r")))
    transaction.decide(0.0)

    assert denials(transaction) == [None, None, None]
    assert [(token, values[1]) for _, token, values in transaction.steps] == [
        ("t0", "claim"),
        ("t1", "keep"),
        ("t2", "mark"),
    ]
    assert [(write.known, write.row.state, write.row.token) for write in transaction.writes] == [
        (None, "sending", "t2")
    ]


async def test_a_rejected_transition_writes_nothing(makes: Makes):
    makes.store("k", "old", j.claim(), j.mark())
    transaction = makes.transaction(("k", j.create("another")))
    transaction.decide(0.0)

    assert denials(transaction) == [Rejection.LOST]
    assert (transaction.writes, transaction.steps) == ([], [])


async def test_a_proposal_does_not_bind_its_order_id_to_its_key(makes: Makes):
    """Without this, an order of another key that is created in the same commit becomes a doubt."""
    makes.store("k-1", "a", j.claim(), j.mark(), j.doubt())
    makes.store("k-2", "b", j.claim(), j.mark())
    transaction = makes.transaction(("k-1", PROPOSAL), ("k-2", j.create("a", "tx-1")))
    transaction.decide(0.0)

    assert denials(transaction) == [None, None]


async def test_a_transaction_sorts_its_keys_and_drops_duplicates(makes: Makes):
    transaction = makes.transaction(*((key, j.claim()) for key in ("b", "a", "c", "a")))

    assert transaction.places == [(SCOPE, "a"), (SCOPE, "b"), (SCOPE, "c")]


# --- read back ----------------------------------------------------------------------------------


SENDER_IN_DOUBT = (j.claim(), j.mark(), j.doubt())
UNDO_PENDING = (j.claim(), j.mark(), j.release(pending_undos=j.undos("hold")))
COMMITTED: dict[str, tuple[str, tuple[transitions.Move, ...], transitions.Move, Rejection | None]] = {
    "it is the last one": ("t0", (j.claim(),), j.claim(), None),
    "a claim, and another transition since": ("other", SENDER_IN_DOUBT, j.claim(), Rejection.IN_DOUBT),
    "a mark, and another transition since": ("other", SENDER_IN_DOUBT, j.mark(), Rejection.LOST),
    "a rejected claim that recorded a doubt": ("t0", SENDER_IN_DOUBT, j.claim(2), Rejection.IN_DOUBT),
    "an order, and another transition since": ("other", UNDO_PENDING, j.create(), None),
    "a release, and another transition since": ("other", UNDO_PENDING, j.release(), None),
    "a release of a suspected order, which left a doubt": (
        "t0",
        SENDER_IN_DOUBT,
        j.release(),
        Rejection.LOST,
    ),
    "an undo, and another transition since": ("other", UNDO_PENDING, j.mark_undone("hold"), None),
}
"""The stored token, the transitions to the stored entry, the committed transition, and its rejection."""


@pytest.mark.parametrize(("token", "way", "move", "denial"), COMMITTED.values(), ids=COMMITTED)
async def test_a_transition_whose_token_is_committed_is_not_repeated(
    makes: Makes,
    token: str,
    way: tuple[transitions.Move, ...],
    move: transitions.Move,
    denial: Rejection | None,
):
    entry = makes.store("k", token, *way)
    transaction = makes.transaction(("k", move), commit_unknown=True)
    transaction.decide(0.0, committed=["t0"])

    assert [result and (result.denial, result.entry) for result in transaction.results] == [(denial, entry)]
    assert (transaction.writes, transaction.steps) == ([], [])


async def test_transitions_without_a_stored_entry_are_listed(makes: Makes):
    makes.store("k-1", "a", j.claim())
    transaction = makes.transaction(("k-1", j.mark()), ("k-2", j.claim()))

    assert transaction.tokens_without_entry == {"t1"}


# --- the cache ----------------------------------------------------------------------------------


async def test_a_committed_entry_is_cached_under_its_stored_token(makes: Makes):
    transaction = makes.transaction(("k", j.claim()), ("k", j.renew(check="r")))
    transaction.decide(0.0)
    before = makes.cache.get((SCOPE, "k"))
    transaction.remember()
    known = makes.cache.get((SCOPE, "k"))

    assert before is None
    assert known is not None
    assert (known[0], known[1].receipts) == ("t1", {"check": "r"})


async def test_the_cache_has_a_limit(makes: Makes):
    entry = makes.store("k", "a", j.claim())
    recent = WriteCache(limit=3)
    for number in range(5):
        recent.keep((SCOPE, f"k-{number}"), "t", entry)

    assert [number for number in range(5) if recent.get((SCOPE, f"k-{number}"))] == [2, 3, 4]
    assert entry.state is KeyState.CLAIMED


async def test_another_workers_write_overrides_the_cached_entry(makes: Makes):
    mine = makes.store("k", "mine", j.claim())
    theirs = rows.row_of(replace(mine, epoch=2), token="theirs", now=0.0)
    transaction = Transaction(makes.wanted(("k", j.mark())), makes.cache)
    transaction.load((SCOPE, "k"), "theirs", theirs)
    transaction.decide(0.0)

    assert denials(transaction) == [Rejection.LOST]
    assert transaction.writes == []


# --- optimistic decisions -----------------------------------------------------------------------


def assumed(makes: Makes, *wishes: tuple[str, transitions.Move]) -> Transaction:
    transaction = Transaction(makes.wanted(*wishes), makes.cache)
    transaction.decide_optimistically(0.0)
    return transaction


async def test_an_optimistic_write_replaces_nothing_or_the_cached_entry(makes: Makes):
    makes.store("k", "t", j.claim())
    transaction = assumed(makes, ("k", j.mark()), ("new", j.claim()))

    assert denials(transaction) == [None, None]
    assert [(write.place[1], write.known, write.row.state) for write in transaction.writes] == [
        ("k", "t", "sending"),
        ("new", None, "claimed"),
    ]


UNCERTAIN: dict[str, tuple[transitions.Move, ...]] = {
    "busy": (j.claim(2),),
    "granted, then busy": (j.mark(), j.claim(2)),
    "denied": (j.acquire_lease(0.0), j.renew("another")),
}


@each("wishes", UNCERTAIN)
async def test_no_rejection_is_decided_optimistically(makes: Makes, wishes: tuple[transitions.Move, ...]):
    makes.store("k", "t", j.claim())
    transaction = assumed(makes, *(("k", wish) for wish in wishes))

    assert (transaction.wanted, transaction.results, transaction.writes) == ([], [], [])


async def test_a_proposal_with_an_order_id_is_not_decided_optimistically(makes: Makes):
    """Only stored data can show that another key has the order; no unique index covers proposals."""
    makes.store("k", "t", j.claim(), j.mark(), j.doubt())
    transaction = assumed(makes, ("k", PROPOSAL))

    assert (transaction.wanted, transaction.results, transaction.writes) == ([], [], [])


async def test_other_transitions_of_an_unknown_key_need_the_stored_state(makes: Makes):
    transaction = assumed(makes, ("k", j.mark()), ("new", j.claim()))

    assert [one.place[1] for one in transaction.wanted] == ["new"]


async def test_writes_that_were_not_stored_are_not_cached(makes: Makes):
    makes.store("k", "t", j.claim())
    transaction = assumed(makes, ("k", j.mark()), ("new", j.claim()))
    transaction.restrict_to({(SCOPE, "new")})
    transaction.remember()
    known = makes.cache.get((SCOPE, "k"))

    assert [step[0] for step in transaction.steps] == [(SCOPE, "new")]
    assert [one.place for one in transaction.wanted] == [(SCOPE, "new")]
    assert known is not None
    assert known[0] == "t"
