"""The package's journals fulfil the public contract and the package's further requirements."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from tests.contract.conftest import TimedPostgresJournal
from tests.contract.own_journal import OwnJournal
from tests.support import journalling as j
from tests.support.journalling import SCOPE, WAYS, judged, made
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import JournalFailed, KeyState, MemoryJournal, SQLiteJournal
from transfer_async.journal import (
    FOUR_EYES,
    LONGEST_LEASE,
    Demand,
    Entry,
    Journal,
    Rejection,
    model,
    postgres,
    sqlite,
)
from transfer_async.journal.protocol import ScopedJournal
from transfer_async.testing.journal_contract import JournalContract, JournalTime
from transfer_async.testing.journal_contract.journal_moves import of_key
from transfer_async.testing.journal_contract.journal_scenarios import FULL

LetPass = Callable[[float], None]
OTHER_SCOPE = "https://other.example"
IN_DOUBT = WAYS[KeyState.IN_DOUBT]


def in_another_loop(work: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    """Return the result of ``work``, run in its own thread and event loop."""

    async def done() -> Any:
        return await work()

    return asyncio.to_thread(lambda: asyncio.run(done()))


class OurContract(JournalContract):
    """The requirements for the package's journals beyond the contract."""

    @pytest.fixture(autouse=True)
    def short_pages(self, monkeypatch: pytest.MonkeyPatch):
        """Make pages so short that a few keys need more than one."""
        monkeypatch.setattr(sqlite, "HISTORY_PAGE", 2)
        monkeypatch.setattr(postgres, "HISTORY_PAGE", 5)

    async def test_a_journal_with_keys_of_other_scopes_only_warns_once(
        self, journal: Journal, caplog: pytest.LogCaptureFixture
    ):
        """After a change of the base URL, every key is free, so each old order could be paid again."""
        await made(journal, j.claim(), j.release(None))
        await made(journal, j.claim(), key="k2")
        quiet = list(caplog.messages)
        for key in ("k", "k2"):
            await journal.move("https://new.example", key, j.claim())
        await made(journal, j.claim(), key="k3")

        assert quiet == []
        assert len(caplog.messages) == journal.durable
        for message in caplog.messages:
            assert f"keys in the scope {SCOPE!r}, but none in 'https://new.example'" in message
            assert f"pass scope={SCOPE!r}" in message

    async def test_scopes_lists_every_scope_that_has_keys(self, journal: Any):
        """With a wrong scope, an operator sees no pending keys."""
        if not hasattr(journal, "scopes"):
            pytest.skip("a journal without scopes(): nobody is warned of a wrong one")
        none = await journal.scopes()
        for scope, key in (("b", "k"), ("a", "k"), ("a", "\x01"), ("b", "z"), ("c é", "k")):
            await journal.move(scope, key, j.claim())
        await journal.move("rule", FOUR_EYES, Demand(by="ada", reason="from now on"))

        assert (none, await journal.scopes()) == ([], ["a", "b", "c é"])

    async def test_event_loops_may_use_a_journal_one_after_another(self, new_journal: Journal):
        async def used() -> None:
            async with new_journal:
                await judged(new_journal, j.claim())

        await in_another_loop(used)
        await in_another_loop(used)
        async with new_journal:
            assert await new_journal.read(SCOPE, "k") is not None

    async def test_a_clock_set_back_a_little_does_not_end_the_longest_lease(
        self, journal: Journal, pass_time: LetPass
    ):
        """A lease that ends even later must not hide its key, because its clock was ahead."""
        await made(journal, j.claim(lease=LONGEST_LEASE))
        await made(journal, j.claim(lease=1e9), key="too long")
        pass_time(-59.0)

        assert [key for key, _ in await journal.work(SCOPE, limit=9)] == ["too long"]
        assert (await judged(journal, j.claim(2))).denial is Rejection.BUSY

    async def test_dual_control_of_one_scope_does_not_bind_another(self, journal: Journal):
        await made(journal, j.demand(), key=FOUR_EYES)
        verdicts = [await journal.move(OTHER_SCOPE, "k", move) for move in (*IN_DOUBT, j.resolve())]

        assert [verdict and verdict.denial for verdict in verdicts] == [None] * 4

    async def test_a_stored_response_keeps_every_byte(self, journal: Journal):
        await made(journal, j.claim(), j.mark(), j.create(reply=bytes(range(256))))
        read = await journal.read(SCOPE, "k")

        assert read is not None
        assert read.reply == bytes(range(256))


class OurDurableContract(OurContract):
    """Further requirements for durable journals."""

    @pytest.mark.parametrize(
        "other",
        ["Live", "live ", "li\u200bve", "\uff4cive", "live/"],
        ids=["case", "blank", "unseen", "width", "slash"],
    )
    async def test_a_new_scope_that_looks_like_a_known_one_is_refused(self, journal: Journal, other: str):
        """Its keys would be free, and each payment of the known scope could be made again."""
        await journal.move("live", "k", j.claim())
        with pytest.raises(JournalFailed, match="pass scope='live'; otherwise"):
            await journal.move(other, "k", j.claim())
        await journal.move("live2", "k", j.claim())
        await journal.move("live", "k2", j.claim())

        assert await journal.read(other, "k") is None

    async def test_of_new_scopes_that_look_the_same_the_first_is_accepted(self, journal: Any, beside: Any):
        """Each process sees no keys when it opens the journal. Both would make the same payment."""
        moves = [one.move(scope, "k", j.claim()) for one in (journal, beside) for scope in ("live", "Live")]
        results = await asyncio.gather(*moves, return_exceptions=True)

        assert len(await journal.scopes()) == 1
        assert [type(result) for result in results].count(JournalFailed) == 2

    async def test_of_new_scopes_in_one_batch_that_look_the_same_the_first_is_accepted(self, journal: Any):
        scopes = ("live", "Live", "test", "LIVE", "live")
        moves = [journal.move(scope, f"k{number}", j.claim()) for number, scope in enumerate(scopes)]
        results = await asyncio.gather(*moves, return_exceptions=True)

        assert [isinstance(result, JournalFailed) for result in results] == [False, True, False, True, False]

    async def test_two_scopes_on_record_that_look_the_same_remain_usable(self, journal: Journal):
        """An earlier version accepted both, and their doubts must not become unreachable."""
        for scope in ("live", "LIVE"):
            with mock.patch.object(model, "scope_as_seen", str):
                await journal.move(scope, "k", j.claim())
        for scope in ("live", "LIVE"):
            assert await journal.move(scope, "k2", j.claim()) is not None

    async def test_a_journal_open_in_one_event_loop_fails_at_once_in_another(self, journal: Journal):
        """Without this, a call waits forever for the other event loop."""
        await made(journal, j.claim())
        for call in (
            lambda: journal.move(SCOPE, "k", j.mark()),
            lambda: journal.read(SCOPE, "k"),
            lambda: journal.work(SCOPE, limit=1),
            lambda: journal.prune(SCOPE, before=JournalTime().utc()),
            journal.__aenter__,
            journal.close,
        ):
            with pytest.raises(JournalFailed, match="event loop"):
                await in_another_loop(call)

        assert (await journal.read(SCOPE, "k")) is not None

    async def test_a_text_that_cannot_be_encoded_fails_without_affecting_others(self, journal: Journal):
        holds = {**{f"k-{number}": "fine" for number in range(8)}, "bad": "\ud800"}
        await asyncio.gather(*(made(journal, j.claim(), key=key) for key in holds))
        verdicts = await asyncio.gather(
            *(judged(journal, j.mark(hold=hold), key=key) for key, hold in holds.items()),
            return_exceptions=True,
        )
        with pytest.raises(JournalFailed, match="Error"):
            await judged(journal, j.claim(), key="\ud800")
        entry = await journal.read(SCOPE, "bad")

        assert [getattr(one, "denial", type(one)) for one in verdicts] == [None] * 8 + [JournalFailed]
        assert entry is not None
        assert entry.state is KeyState.CLAIMED


class TestMemory(OurContract):
    stories = 10

    @pytest.fixture
    def new_journal(self, journal_time):
        return MemoryJournal(clock=journal_time.clock)


class TestSQLite(OurDurableContract):
    stories = 3

    @pytest.fixture
    def new_journal(self, journal_time, tmp_path):
        return SQLiteJournal(tmp_path / "journal.db", clock=journal_time.clock)

    @pytest.fixture
    def another_journal(self, journal_time, tmp_path):
        return SQLiteJournal(tmp_path / "journal.db", clock=journal_time.clock)


@ONLY_IN_TRIALS  # the base of the wrong journals; some of them run by default
class TestOwn(OurContract):
    stories = 3

    @pytest.fixture
    def new_journal(self, journal_time):
        return OwnJournal(journal_time.utc)

    @pytest.fixture
    def another_journal(self, new_journal, journal_time):
        return OwnJournal(journal_time.utc, new_journal)


class TestPostgres(OurDurableContract):
    stories = 1

    @pytest.fixture
    def new_journal(self, journal_time, postgres):
        return TimedPostgresJournal(postgres.dsn, journal_time)

    @pytest.fixture
    def another_journal(self, new_journal, journal_time, postgres):
        return TimedPostgresJournal(postgres.dsn, journal_time, schema=new_journal.schema)


async def test_a_missing_new_journal_fixture_is_named():
    with pytest.raises(NotImplementedError, match="define a fixture new_journal"):
        JournalContract.new_journal.__wrapped__(JournalContract(), JournalTime())


def test_a_test_without_its_fixture_is_skipped_with_the_reason():
    with pytest.raises(pytest.skip.Exception, match="define another_journal, a second journal"):
        JournalContract.another_journal.__wrapped__(JournalContract())


class WithoutOrders:
    durable = False


async def test_a_journal_need_not_list_its_orders_or_refuted_keys():
    with pytest.raises(pytest.skip.Exception, match=r"the journal has no orders\(\)"):
        await JournalContract().test_orders_are_listed_by_their_ids_page_by_page(WithoutOrders(), None)
    with pytest.raises(ValueError, match="WithoutOrders cannot list its orders"):
        await ScopedJournal(WithoutOrders(), SCOPE).orders(limit=1)
    with pytest.raises(ValueError, match="WithoutOrders cannot list its refuted keys"):
        await ScopedJournal(WithoutOrders(), SCOPE).refuted()


async def test_without_a_list_of_resolved_keys_every_key_with_an_order_counts():
    """Reconciliation needs all of them, because an order id that an operator entered may be wrong."""
    journal = OwnJournal(JournalTime().utc)
    for number in range(2):
        await made(journal, *IN_DOUBT, j.resolve(order_id=f"tx-{number}"), key=f"k{number}")
    scoped = ScopedJournal(journal, SCOPE)
    found, after = await scoped.resolved()

    assert (found, after) == (["k0", "k1"], "tx-1")
    assert await scoped.resolved(after=after) == ([], "")


async def test_the_contract_sets_every_field_of_an_entry():
    """Without this, a journal could lose a field that is added later."""
    journal, filled = (
        MemoryJournal(),
        {"unread", "quarantined", "four_eyes", "reply", "pending_notifications", "unknown_members"},
    )  # tried elsewhere
    empty = (None, 0, 0.0, False, (), {})
    for key, moves in FULL.items():
        entry = None
        for move in moves:
            verdict = await journal.move(SCOPE, key, of_key(move, key))
            entry = verdict.entry
            filled |= {name for name in entry.__struct_fields__ if getattr(entry, name) not in empty}

    assert filled == set(Entry.__struct_fields__)
