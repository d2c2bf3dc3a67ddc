"""The journal contract: a test class to subclass for each implementation of `Journal`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from transfer_async.journal import (
    FOUR_EYES,
    KEPT,
    Decision,
    Journal,
    KeyState,
    Move,
    Rejection,
    TransitionResult,
)
from transfer_async.journal.model import LEASE, SETTLE_AFTER
from transfer_async.testing.journal_contract.journal_moves import (
    REPLY,
    SCOPE,
    WAYS,
    WINDOW,
    JournalTime,
    LetPass,
    add_undos,
    amend,
    claim,
    create,
    demand,
    doubt,
    judged,
    look,
    made,
    mark,
    of_key,
    propose,
    refute,
    release,
    request_notification,
    resolve,
    take_back,
    take_over,
    undos,
    waive,
    withdraw,
)
from transfer_async.testing.journal_contract.journal_scenarios import SCENARIOS, Model, random_move

__all__ = ["JournalContract", "JournalTime"]

OTHER_SCOPE = "https://other.example"
SIMILAR = (
    *(f"{'w' * (length - 1)}{last}" for length in (32, 64, 128, 200) for last in "12"),
    *("Müller", "MÜLLER", "Muller", "Mller", "Mu ller", "Straße", "Strasse", "№ 1", "No 1", "😀", "😁"),
    *("7", "07", "7.0", "7e0", "٧", "a_b", "axb", "a%b", "a/b", "a:b", "a|b", "a\\b", "a'b", 'a"b', "a b"),
    *("ab", "aB", "k", "K", "a'b\"c;--", " "),
)
"""Keys that a store may confuse, by truncation, case folding, stripping, number parsing or patterns."""

HEAD_STARTS = range(9)
"""The head starts of the first of two concurrent calls, in iterations of the event loop."""

TICKS = (*range(1, 17), 24, 32, 64, 128, 256, 512, 1024)
"""The numbers of event-loop iterations after which a caller is cancelled. A slow store needs many."""

TIMEOUT = 30.0
"""The maximum seconds that a transition may take after its caller was cancelled."""

RIVALS: dict[str, tuple[tuple[Move, ...], list[Move]]] = {
    "claims": ((), [claim(number) for number in range(50)]),
    "settlements": (
        WAYS[KeyState.IN_DOUBT],
        [*(resolve(order_id=f"tx-{number}") for number in range(10)), create(order_id="tx-own")],
    ),
    "approvals": (
        (*WAYS[KeyState.IN_DOUBT], propose()),
        [*(resolve(by=by, proposal="proposal-1") for by in ("ben", "cleo")), create(order_id="tx-own")],
    ),
}
"""The races by title: the transitions that prepare the race, and the transitions that compete."""

RACES: dict[str, tuple[tuple[Move, ...], Move, Move, Rejection]] = {
    "claim": ((), claim(1), claim(2), Rejection.BUSY),
    "mark": ((claim(),), mark("a"), mark("b"), Rejection.LOST),
}
"""The races of two workers by title: the preparation, the two transitions, and the loser's rejection."""


@pytest.mark.asyncio
class JournalContract:
    """Tests that every journal must pass. In your tests, define ``class TestOurJournal(JournalContract):``.

    Provide one fixture, ``new_journal``: an empty, unopened journal that takes its time from the fixture
    ``journal_time``::

        class TestOurJournal(JournalContract):
            @pytest.fixture
            def new_journal(self, journal_time, tmp_path):
                return OurJournal(tmp_path / "journal", utc=journal_time.utc)

    If workers can share your store, provide a second fixture, ``another_journal``: another worker's journal
    on the same store. Without ``another_journal``, the tests with two workers are skipped::

            @pytest.fixture
            def another_journal(self, journal_time, tmp_path):
                return OurJournal(tmp_path / "journal", utc=journal_time.utc)

    The tests need pytest and pytest-asyncio, in strict or auto mode. No test waits in real time.
    """

    stories = 20
    """The number of random runs. Each has a different seed."""

    @pytest.fixture
    def journal_time(self) -> JournalTime:
        """The journal's time, which stands still until a test changes it."""
        return JournalTime()

    @pytest.fixture
    def new_journal(self, journal_time: JournalTime) -> Journal:
        """Your journal: empty, not open yet, and with ``journal_time`` as its clock."""
        raise NotImplementedError("define a fixture new_journal(self, journal_time) in your subclass")

    @pytest.fixture
    def another_journal(self) -> Journal:
        """Your second journal, not open yet, with the store and the clock of ``new_journal``."""
        pytest.skip("this test needs a fixture: define another_journal, a second journal on the same store")

    @pytest_asyncio.fixture
    async def journal(self, new_journal: Journal) -> AsyncIterator[Journal]:
        """Your first journal, already open."""
        async with new_journal as journal:
            yield journal

    @pytest_asyncio.fixture
    async def beside(self, another_journal: Journal) -> AsyncIterator[Journal]:
        """Your second journal, already open."""
        async with another_journal as beside:
            yield beside

    @pytest.fixture
    def pass_time(self, journal_time: JournalTime) -> LetPass:
        """A function that advances the journal's time by a number of seconds."""
        return journal_time.pass_

    # --- one key --------------------------------------------------------------------------------

    async def test_every_scenario_ends_as_decide_says(self, journal: Journal, pass_time: LetPass) -> None:
        """Compare all results, entries, histories and lists, because a lost field could change a decision.

        The test runs all scenarios, and then raises all failures together, each with a note that names its
        scenario.
        """
        failures: list[Exception] = []
        for number, (title, scenario) in enumerate(SCENARIOS.items()):
            model = Model(journal)
            try:
                await model.play(scenario, pass_time, scope=f"{number} {title}")  # some titles look alike
                await model.compare()
            except Exception as error:  # noqa: BLE001 - raised with the other failures
                error.add_note(f"in the scenario {title!r}")
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(SCENARIOS)} scenarios failed", failures)

    async def test_random_runs_end_as_decide_says(self, new_journal: Journal, pass_time: LetPass) -> None:
        """Close and reopen the journal after each run. A failure shows the seed and the last steps."""
        for seed in range(self.stories):
            chance, steps = Random(seed), [f"seed {seed}"]  # noqa: S311 - a seed repeats a run
            model, scopes = Model(new_journal), (f"{SCOPE}/{seed}", f"{OTHER_SCOPE}/{seed}")
            try:
                async with new_journal:
                    for _ in range(60):
                        pass_time(chance.choice((0.0, 0.0, 0.0, 1.0, 59.0, 61.0, 400.0, 1000.0)))
                        scope, key = chance.choice(scopes), f"k{chance.randrange(3)}"
                        move = random_move(chance, f"tx-{chance.randrange(4)}")
                        steps.append(f"{move.name} of {key!r}: {move}")
                        await model.apply(move, scope=scope, key=key)
                    await model.compare()
                async with new_journal:
                    await model.compare()
            except AssertionError as error:
                error.add_note("\n".join(steps[:1] + steps[-15:]))
                raise

    async def test_a_created_key_keeps_its_response_byte_for_byte_and_no_intent(
        self, journal: Journal
    ) -> None:
        reply = b'{"id": "tx-1", "x": "\xc3\xbc\\u0000%s"}' % (b"0123456789abcdef" * 65_536)
        await made(journal, claim(), mark(), create(reply=reply))
        entry = await journal.read(SCOPE, "k")

        assert entry is not None
        assert (entry.reply, entry.order_id, entry.intent) == (reply, "tx-1", None)

    async def test_the_history_has_the_wall_clock_time_of_every_step(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        began = journal_time.utc().timestamp()
        await made(journal, claim())
        pass_time(1.5)
        await made(journal, mark())
        steps = await journal.history(SCOPE, "k")

        assert [step.at for step in steps] == [pytest.approx(began), pytest.approx(began + 1.5)]

    async def test_of_many_transitions_at_once_one_is_made(self, journal: Journal) -> None:
        for (title, (before, rivals)), first in product(RIVALS.items(), range(3)):
            key = f"{title}-{first}"
            for move in before:
                await made(journal, _with_order(move, key), key=key)
            moves = [_with_order(move, key) for move in (*rivals[first:], *rivals[:first])]
            results = await asyncio.gather(*(judged(journal, move, key=key) for move in moves))

            assert sum(result.denial is None for result in results) == 1
            assert len({result.entry.order_id for result in results}) == 1

    async def test_of_many_keys_that_get_an_order_id_at_once_one_keeps_it(self, journal: Journal) -> None:
        for number in range(2):
            keys = [f"k{number}-{worker}" for worker in range(4)]
            for key in keys:
                await made(journal, claim(), mark(), key=key)
            order = create(order_id=f"tx-{number}")
            results = await asyncio.gather(*(judged(journal, order, key=key) for key in keys))

            assert sum(result.denial is None for result in results) == 1

    async def test_a_journal_can_be_closed_twice(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), create(reply=REPLY))
        await journal.close()
        await journal.close()

    # --- keys and scopes ------------------------------------------------------------------------

    async def test_similar_keys_and_order_ids_are_not_confused(self, journal: Journal) -> None:
        """If a journal confuses two keys, one payment receives the order of the other, and is never made."""

        async def use(number: int, key: str) -> list[Rejection | None]:
            moves = (claim(number), mark(number=number), create(order_id=f"tx-{key}"))
            return [(await judged(journal, move, key=key)).denial for move in moves]

        denials = await asyncio.gather(*(use(number, key) for number, key in enumerate(SIMILAR)))
        entries = [await journal.read(SCOPE, key) for key in SIMILAR]

        assert {key: found for key, found in zip(SIMILAR, denials, strict=True) if any(found)} == {}
        assert [(entry.intent_id, entry.order_id) for entry in entries if entry is not None] == [
            (f"intent-{number}", f"tx-{key}") for number, key in enumerate(SIMILAR)
        ]

    async def test_similar_scopes_are_not_confused(self, journal: Journal) -> None:
        long = f"https://{'s' * 240}.example"
        places = [(f"{long}/1", "k"), (f"{long}/2", "k"), (OTHER_SCOPE, "k")]
        for sign in "/:|# ":
            places += [(SCOPE, f"a{sign}b"), (f"{SCOPE}{sign}a", "b")]
        results = [await journal.move(scope, key, of_key(claim(), key)) for scope, key in places]

        assert [place for place, one in zip(places, results, strict=True) if one is None or one.denial] == []
        assert await journal.read(SCOPE, "k") is None

    async def test_an_order_id_is_bound_to_one_key_of_a_scope(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), create(), key="first")
        await made(journal, claim(), mark(), key="second")
        created = await judged(journal, create(), key="second")
        await made(journal, doubt(), key="second")
        resolved = await judged(journal, resolve(), key="second")
        elsewhere = [await judged(journal, move, scope=OTHER_SCOPE) for move in (claim(), mark(), create())]

        assert created.denial is resolved.denial is Rejection.FOREIGN
        assert [result.denial for result in elsewhere] == [None, None, None]

    async def test_an_order_id_that_was_amended_is_free_for_another_key(self, journal: Journal) -> None:
        await made(journal, claim(), mark(), doubt(), resolve(), amend(), key="first")
        await made(journal, claim(), mark(), create(), key="second")
        amended = await judged(journal, amend("tx-2", "tx-1"), key="first")

        assert amended.denial is Rejection.FOREIGN

    # --- lists ----------------------------------------------------------------------------------

    async def test_work_lists_what_no_worker_has(self, journal: Journal, pass_time: LetPass) -> None:
        for key, way in _every_end().items():
            await made(journal, *way, key=key)
        now = await _waiting(journal)
        pass_time(LEASE)
        later = await _waiting(journal)
        two = await journal.work(SCOPE, limit=2)

        assert now == ["doubt", "undo due"]
        assert later == ["claimed", "doubt", "sending", "undo", "undo due"]
        assert (len(two), await journal.work(OTHER_SCOPE, limit=10)) == (2, [])

    async def test_pending_undos_lists_what_work_lists_with_a_pending_undo(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """The optional method ``pending_undos`` lists the undos that `recover` runs first."""
        pending_undos = getattr(journal, "pending_undos", None)
        if pending_undos is None:
            pytest.skip(
                "the journal lacks pending_undos(), so recover finds pending undos only through work()"
            )
        for key, way in _every_end().items():
            await made(journal, *way, key=key)
        now = [key for key, _ in await pending_undos(SCOPE, limit=10)]
        pass_time(LEASE)
        later: list[tuple[str, object]] = []
        while page := await pending_undos(SCOPE, limit=1, after=later[-1][0] if later else ""):
            later += page
            assert len(later) <= 2, "a page repeats the keys of an earlier page"

        assert now == ["undo due"]
        assert dict(later) == {key: await journal.read(SCOPE, key) for key in ("undo", "undo due")}
        assert await pending_undos(OTHER_SCOPE, limit=10) == []

    async def test_unfinished_also_lists_the_keys_that_a_worker_uses(self, journal: Journal) -> None:
        """The optional method ``unfinished`` lists the keys that `work` returns and the keys in use."""
        unfinished = getattr(journal, "unfinished", None)
        if unfinished is None:
            pytest.skip("the journal lacks unfinished(): stop all workers before you run journal reconcile")
        for key, way in _every_end().items():
            await made(journal, *way, key=key)
        listed: list[tuple[str, object]] = []
        while page := await unfinished(SCOPE, limit=2, after=listed[-1][0] if listed else ""):
            listed += page
            assert len(listed) <= 5, "a page repeats the keys of an earlier page"

        expected = ("claimed", "doubt", "sending", "undo", "undo due")
        assert listed == [(key, await journal.read(SCOPE, key)) for key in expected]
        assert await unfinished(OTHER_SCOPE, limit=10) == []

    async def test_work_lists_each_key_once_page_by_page(self, journal: Journal) -> None:
        for key in "cabed":
            await made(journal, claim(), mark(), doubt(), key=key)
        found: list[str] = []
        while page := await journal.work(SCOPE, limit=2, after=found[-1] if found else ""):
            found += [key for key, _ in page]
            assert len(page) <= 2
            assert len(found) <= 5, "a page repeats the keys of an earlier page"

        assert sorted(found) == ["a", "b", "c", "d", "e"]

    async def test_lists_are_complete_among_many_other_keys_and_while_others_work(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """`recover` reads pages until one is empty, and processes only the keys that the pages contain."""
        waiting = [f"k{number:03}" for number in range(110)]
        idle = [*(f"a{number:03}" for number in range(30)), "k050-", "z"]
        # The lease of the last key ends first.
        leases = {key: claim(lease=10.0 - number / 20) for number, key in enumerate(waiting)}
        leases |= {f"{key}-": claim() for key in idle}
        await asyncio.gather(*(made(journal, move, key=key) for key, move in leases.items()))
        for key in idle:
            await journal.move(OTHER_SCOPE, key, of_key(claim(lease=0.0), key))
        pass_time(10.0)
        at_once = await journal.work(SCOPE, limit=1000)
        for key, entry in at_once[::20]:
            assert await journal.read(SCOPE, key) == entry, "a list must contain complete entries"
        found: list[str] = []
        while page := await journal.work(SCOPE, limit=25, after=found[-1] if found else ""):
            found += [key for key, _ in page]
            assert len(found) <= len(waiting), "two pages have the same key"
            for key, _ in page:
                await made(journal, take_over(), key=key)

        assert sorted(found) == sorted(key for key, _ in at_once) == waiting
        await asyncio.gather(*(made(journal, mark(epoch=2), doubt(), key=key) for key in waiting))
        doubts = await journal.in_doubt(SCOPE)
        assert sorted(key for key, _ in doubts) == waiting
        assert await journal.count_in_doubt(SCOPE) == len(waiting)
        assert [entry for _, entry in doubts[::20]] == [
            await journal.read(SCOPE, key) for key, _ in doubts[::20]
        ]

    async def test_doubts_are_listed_oldest_first(self, journal: Journal, pass_time: LetPass) -> None:
        for key in "cab":
            await made(journal, claim(), mark(), doubt(), key=key)
            pass_time(1.0)
        await made(journal, claim(), key="d")

        assert [key for key, _ in await journal.in_doubt(SCOPE)] == ["c", "a", "b"]
        assert await journal.in_doubt(OTHER_SCOPE) == []
        assert await journal.count_in_doubt(SCOPE) == 3
        assert await journal.count_in_doubt(OTHER_SCOPE) == 0

    async def test_orders_are_listed_by_their_ids_page_by_page(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """The journal's method ``orders`` is optional, but `journal reconcile` needs it."""
        orders = getattr(journal, "orders", None)
        if orders is None:
            pytest.skip("the journal has no orders(), so its records cannot be reconciled with the service's")
        began = await journal.now()
        for number, key in enumerate("bac"):
            pass_time(1.0)
            await made(journal, claim(), mark(), create(order_id=f"tx-{number}"), key=key)
        await made(journal, add_undos("hold"), key="c")
        await made(journal, claim(), mark(), key="sending")
        await made(journal, claim(), mark(), release(), key="free")
        await journal.move(OTHER_SCOPE, "k", claim())
        first = await orders(SCOPE, limit=2)

        assert first == [("tx-0", "b", began + 1.0), ("tx-1", "a", began + 2.0)]
        assert await orders(SCOPE, limit=2, after="tx-1") == [("tx-2", "c", None)]
        assert await orders(SCOPE, limit=2, after="tx-2") == []
        assert await orders(OTHER_SCOPE, limit=2) == []

    async def test_keys_that_were_ever_refuted_or_resolved_are_listed(
        self, journal: Journal, pass_time: LetPass
    ) -> None:
        """The journal's methods ``refuted`` and ``resolved`` are optional; `journal reconcile` uses them."""
        lists = {name: getattr(journal, name, None) for name in ("refuted", "resolved")}
        wanted = {
            "refuted": {"free", "claimed again", "created after all", *"abc"},
            "resolved": {*"xyz", "taken back"},
        }
        for key in (*wanted["refuted"], *wanted["resolved"], "in doubt"):
            await made(journal, *WAYS[KeyState.IN_DOUBT], key=key)
        for move in WAYS[KeyState.IN_DOUBT]:
            await journal.move(OTHER_SCOPE, "k", move)
        pass_time(SETTLE_AFTER + WINDOW)
        await journal.move(OTHER_SCOPE, "k", refute())
        for key in wanted["refuted"]:
            await made(journal, refute(), key=key)
        for key in wanted["resolved"]:
            await made(journal, resolve(order_id=f"tx-{key}"), key=key)
        await made(journal, *WAYS[KeyState.CREATED], key="created")
        await made(journal, claim(2), key="claimed again")
        await made(journal, claim(2), mark("b", number=2), create("b", "tx-b"), key="created after all")
        await made(journal, take_back("tx-taken back"), key="taken back")

        for name, listed in lists.items():
            if listed is not None:
                found, after = await listed(SCOPE)
                while after:
                    some, after = await listed(SCOPE, after=after)
                    found = [*found, *some]
                    assert len(found) < 99, "the pages never end"
                assert set(found) == wanted[name]

    async def test_what_people_did_is_listed_over_all_keys(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        """The journal's optional method ``audit`` lists all decisions and proposals, with their authors."""
        audit = getattr(journal, "audit", None)
        if audit is None:
            pytest.skip("the journal has no audit(), so the operators' page has no list of decisions")

        async def lines(**wanted: Any) -> list[tuple[str, str, str, str | None]]:
            found, after = await audit(SCOPE, limit=2, **wanted)
            last, rounds = found, 0
            while after:
                assert len(last) <= 2, "a page has more lines than the limit"
                last, after = await audit(SCOPE, limit=2, after=after, **wanted)
                found, rounds = [*found, *last], rounds + 1
                assert rounds < 99, "the pages never end"
            return [(key, step.move, step.by, proposal and proposal.by) for key, step, proposal in found]

        began = journal_time.utc().timestamp()
        for key in "abc":
            await made(journal, *WAYS[KeyState.IN_DOUBT], key=key)
        for move in (*WAYS[KeyState.IN_DOUBT], resolve(by="ada")):
            await journal.move(OTHER_SCOPE, "k", move)
        proposed = propose(Decision.RESOLVE, "tx-a")
        await made(
            journal, proposed, look(), resolve(order_id="tx-a", by="ben", proposal=proposed.id), key="a"
        )
        pass_time(SETTLE_AFTER + WINDOW)
        await made(journal, refute(by="ada"), key="b")
        await made(journal, demand(), key=FOUR_EYES)
        await made(journal, propose(), withdraw(), key="c")
        everything = [
            ("c", "withdraw", "ben", "ada"),
            ("c", "propose", "ada", None),
            (FOUR_EYES, "demand", "ada", None),
            ("b", "refute", "ada", None),
            ("a", "resolve", "ben", "ada"),
            ("a", "look", "ada", "ada"),
            ("a", "propose", "ada", None),
        ]
        found, _ = await audit(SCOPE, limit=1)
        (_, step, proposal) = found[0]

        assert await lines() == everything
        assert await lines(by="ben") == [everything[0], everything[4]]
        assert await lines(since=began + 1.0) == everything[:4]
        assert await lines(until=began + 1.0) == everything[4:]
        assert await lines(since=began, until=began + 1.0, by="ada") == everything[5:]
        assert await lines(since=began + 999_999.0) == await lines(until=began - 1.0) == []
        assert (step, proposal) == (await journal.history(SCOPE, "c"))[:-3:-1]
        pass_time(2 * KEPT)
        assert await journal.prune(SCOPE, before=journal_time.utc()) == 2
        assert await lines() == everything[:3]

    # --- pruning --------------------------------------------------------------------------------

    async def test_pruning_removes_what_ended_before_and_nothing_that_is_unfinished(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        for key, way in _every_end().items():
            await made(journal, *way, key=key)
        await made(
            journal,
            *WAYS[KeyState.IN_DOUBT],
            request_notification(),
            resolve(order_id="tx-2"),
            key="unpublished",
        )
        corrected = (resolve(order_id="tx-3"), propose(Decision.AMEND, "tx-4"))
        await made(journal, *WAYS[KeyState.IN_DOUBT], *corrected, key="proposed")
        await made(journal, demand(), key=FOUR_EYES)
        for move in (claim(), release(None)):
            await journal.move(OTHER_SCOPE, "k", move)
        pass_time(3600.0)
        await made(journal, claim(), release(None), key="later")
        pass_time(KEPT)
        pruned = await journal.prune(SCOPE, before=journal_time.utc() - timedelta(days=1, minutes=30))
        keys = (*_every_end(), "unpublished", "proposed", FOUR_EYES, "later")

        assert pruned == 2
        assert [key for key in keys if await journal.read(SCOPE, key) is None] == ["created", "free"]
        assert await journal.history(SCOPE, "created") == ()
        assert await journal.read(OTHER_SCOPE, "k") is not None

    async def test_pruning_keeps_a_key_from_its_last_end_and_while_it_is_in_use_again(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        """If a key is deleted while its order is being sent, or soon after, the payment may be made again."""
        again: dict[str, tuple[Move, ...]] = {
            "claimed": (claim(2),),
            "sending": (claim(2), mark(number=2)),
            "doubt": (claim(2), mark(number=2), doubt()),
            "undo": (add_undos("hold"),),
            "freed": (claim(2), release(None, number=2)),
            "created": (claim(2), mark(number=2), create(order_id="tx-2")),
        }
        for key in again:
            await made(journal, claim(), release(None), key=key)
        await made(journal, *WAYS[KeyState.IN_DOUBT], key="resolved")
        pass_time(2 * KEPT)
        for key, moves in again.items():
            await made(journal, *moves, key=key)
        await made(journal, resolve(), key="resolved")
        pass_time(KEPT - 1.0)
        early = await journal.prune(SCOPE, before=journal_time.utc())
        pass_time(2.0)
        late = await journal.prune(SCOPE, before=journal_time.utc())
        left = [key for key in (*again, "resolved") if await journal.read(SCOPE, key) is not None]

        assert (early, late) == (0, 3)
        assert left == ["claimed", "sending", "doubt", "undo"]

    async def test_what_ended_within_a_day_is_kept_and_a_future_date_is_refused(
        self, journal: Journal, journal_time: JournalTime, pass_time: LetPass
    ) -> None:
        """If recent keys could be deleted, a mistaken date could cause recent payments to be made again."""
        await made(journal, claim(), release(None), key="yesterday")
        pass_time(1.0)
        await made(journal, claim(), release(None), key="today")
        pass_time(KEPT - 0.5)
        for ahead in (timedelta(microseconds=1), timedelta(days=1), timedelta(days=3650)):
            with pytest.raises(
                ValueError, match=r"^before: must not be in the future\. .* would be made again"
            ):
                await journal.prune(SCOPE, before=journal_time.utc() + ahead)
        with pytest.raises(ValueError, match=r"^before: must be an aware datetime"):
            await journal.prune(SCOPE, before=journal_time.utc().replace(tzinfo=None))
        assert await journal.read(SCOPE, "yesterday") is not None

        assert await journal.prune(SCOPE, before=journal_time.utc()) == 1
        assert await journal.read(SCOPE, "yesterday") is None
        assert await journal.read(SCOPE, "today") is not None

    # --- cancelled callers ----------------------------------------------------------------------

    async def test_a_transition_is_finished_whenever_its_caller_is_cancelled(self, journal: Journal) -> None:
        """If a cancellation stops a transition, a worker may lose the record of an order just created."""
        for state in WAYS:
            for ticks in TICKS:
                if await _finished_after_cancellation(journal, state, ticks):
                    break

    # --- dual control ---------------------------------------------------------------------------

    async def test_once_dual_control_is_demanded_no_decision_of_one_person_is_written(
        self, journal: Journal
    ) -> None:
        await _decide_while_demanding(journal, journal)

    # --- two workers ----------------------------------------------------------------------------

    async def test_another_workers_demand_counts_from_the_moment_it_returns(
        self, journal: Journal, beside: Journal
    ) -> None:
        await _decide_while_demanding(journal, beside)
        waiver = (demand(), propose(Decision.WAIVE, attempt=None), waive())
        for title, before in {"no rule is known": (), "a waiver is known": waiver}.items():
            scope = f"{SCOPE}/{title}"
            for move in before:
                await made(journal, move, key=FOUR_EYES, scope=scope)
            await made(journal, *WAYS[KeyState.IN_DOUBT], scope=scope)
            await made(beside, demand(), key=FOUR_EYES, scope=scope)

            assert (await judged(journal, resolve(), scope=scope)).denial is Rejection.ALONE, title

    async def test_what_one_worker_wrote_another_reads_at_once(
        self, journal: Journal, beside: Journal
    ) -> None:
        """If another worker cannot read a record at once, the record may be lost when its writer dies."""
        for state, way in WAYS.items():
            assert await beside.read(SCOPE, state.value) is None
            entry = await made(journal, *way, key=state.value)

            assert await beside.read(SCOPE, state.value) == entry
            steps = await beside.history(SCOPE, state.value)
            assert [step.move for step in steps] == [move.name for move in way]
        doubts = [key for key, _ in await beside.in_doubt(SCOPE)]
        assert (await _waiting(beside), doubts) == (["in_doubt"], ["in_doubt"])
        assert await beside.count_in_doubt(SCOPE) == 1

    async def test_a_worker_does_not_rely_on_what_another_has_changed(
        self, journal: Journal, beside: Journal
    ) -> None:
        await made(journal, claim())
        freed = await made(beside, release(None), claim(2))
        for move in (mark(), release(None)):
            assert (await judged(journal, move)).denial is Rejection.LOST
        assert await journal.read(SCOPE, "k") == await beside.read(SCOPE, "k") == freed

        await made(journal, mark(number=2))
        await made(beside, doubt())
        created = await made(journal, create())
        assert await journal.read(SCOPE, "k") == await beside.read(SCOPE, "k") == created
        assert (await judged(beside, claim(3))).denial is Rejection.CREATED

    async def test_of_two_workers_at_one_key_one_succeeds(self, journal: Journal, beside: Journal) -> None:
        for (race, (before, first, second, denial)), start in product(
            RACES.items(), _head_starts(journal, beside)
        ):
            name, one, other, ahead = start
            key = f"{race}-{name}"
            for move in before:
                await made(one, move, key=key)
            results = await _both(judged(one, first, key=key), judged(other, second, key=key), ahead=ahead)

            assert {result.denial for result in results} == {None, denial}
            (entry,) = (result.entry for result in results if result.denial is None)
            for each in (journal, beside):
                assert await each.read(SCOPE, key) == entry

    async def test_of_two_keys_that_two_workers_bind_to_an_order_one_gets_it(
        self, journal: Journal, beside: Journal
    ) -> None:
        for key, one, other, ahead in _head_starts(journal, beside):
            keys, move = (f"{key}-1", f"{key}-2"), create(order_id=f"tx-{key}")
            for item in keys:
                await made(one, claim(), mark(), key=item)
            results = await _both(
                judged(one, move, key=keys[0]), judged(other, move, key=keys[1]), ahead=ahead
            )
            entries = [await beside.read(SCOPE, item) for item in keys]

            assert {result.denial for result in results} == {None, Rejection.FOREIGN}
            assert {entry and entry.order_id for entry in entries} == {None, f"tx-{key}"}


def _every_end() -> dict[str, tuple[Move, ...]]:
    return {
        "claimed": (claim(),),
        "sending": (claim(), mark()),
        "doubt": (claim(), mark(), doubt()),
        "created": (claim(), mark(), create()),
        "free": (claim(), mark(), release()),
        "undo": (claim(), release(None, pending_undos=undos("hold"))),
        "undo due": (claim(), mark(), release(pending_undos=undos("hold"), lease=0.0)),
    }


def _with_order(move: Move, key: str) -> Move:
    """Return ``move`` with an order id that belongs to no other key."""
    order_id = getattr(move, "order_id", None)
    return move if order_id is None else replace(move, order_id=f"{order_id}-{key}")


async def _waiting(journal: Journal) -> list[str]:
    return sorted(key for key, _ in await journal.work(SCOPE, limit=10))


async def _finished_after_cancellation(journal: Journal, state: KeyState, ticks: int) -> bool:
    """Cancel the last transition to ``state`` after ``ticks`` loop iterations, and wait until it is finished.

    Returns:
        Whether the transition was finished before the cancellation.
    """
    key = f"{state.value}-{ticks}"
    *before, last = moves = [_with_order(move, key) for move in WAYS[state]]
    for move in before:
        await judged(journal, move, key=key)
    other = asyncio.create_task(judged(journal, claim(), key=f"other-{key}"))
    caller = asyncio.create_task(journal.move(SCOPE, key, of_key(last, key)))
    for _ in range(ticks):
        await asyncio.sleep(0)
    was_done = not caller.cancel()
    await asyncio.wait([caller])
    await other
    wanted, found = (state, [move.name for move in moves]), None
    try:
        async with asyncio.timeout(TIMEOUT):  # The read may come before the write ends.
            while found != wanted:
                await asyncio.sleep(0)  # A journal has no event to wait for.
                entry = await journal.read(SCOPE, key)
                steps = await journal.history(SCOPE, key)
                found = (entry and entry.state, [step.move for step in steps])
    except TimeoutError:
        raise AssertionError(f"a transition was not finished: found {found}, expected {wanted}") from None
    return was_done


async def _decide_while_demanding(deciding: Journal, demanding: Journal) -> None:
    """Let one person decide while another introduces dual control, with and without an earlier waiver."""
    for ahead, waived in product(HEAD_STARTS, (False, True)):
        scope, key = f"{SCOPE}/{ahead}", f"k-{ahead}-{waived}"
        await made(deciding, *WAYS[KeyState.IN_DOUBT], key=key, scope=scope)
        if waived:
            waiver = (propose(Decision.WAIVE, attempt=None), waive())
            await made(demanding, *waiver, key=FOUR_EYES, scope=scope)
        decision = asyncio.ensure_future(
            judged(deciding, resolve(order_id=f"tx-{waived}"), key=key, scope=scope)
        )
        for _ in range(ahead):
            await asyncio.sleep(0)
        await made(demanding, demand(), key=FOUR_EYES, scope=scope)
        then = await demanding.read(scope, key)
        result, after = await decision, await demanding.read(scope, key)

        assert after == then, "one person's decision was recorded after dual control had been demanded"
        assert after is not None
        expected = ((None, KeyState.CREATED), (Rejection.ALONE, KeyState.IN_DOUBT))
        assert (result.denial, after.state) in expected


def _head_starts(journal: Journal, beside: Journal) -> Iterator[tuple[str, Journal, Journal, int]]:
    """For each race, yield the key, the journal that starts first, the other journal, and the head start."""
    for ahead in HEAD_STARTS:
        yield f"first-{ahead}", journal, beside, ahead
        yield f"second-{ahead}", beside, journal, ahead


async def _both(
    one: Coroutine[Any, Any, TransitionResult], other: Coroutine[Any, Any, TransitionResult], *, ahead: int
) -> tuple[TransitionResult, TransitionResult]:
    first = asyncio.create_task(one)
    for _ in range(ahead):
        await asyncio.sleep(0)
    return await asyncio.gather(first, other)
