"""The contract finds wrong journals: each is the one that a bank might write, but for one thing."""

import asyncio
import copy
import inspect
import json
from itertools import product

import pytest

from tests.contract.own_journal import OwnJournal
from transfer_async.journal import KeyState, forgettable
from transfer_async.testing.journal_contract import JournalContract, JournalTime


class SharesOrderIds(OwnJournal):
    def _is_taken(self, scope, key, move):
        return False


class OneScopeForAll(OwnJournal):
    async def move(self, scope, key, move):
        return await super().move("", key, move)

    async def read(self, scope, key):
        return await super().read("", key)


class FoldsKeys(OwnJournal):
    async def move(self, scope, key, move):
        return await super().move(scope, key.casefold(), move)

    async def read(self, scope, key):
        return await super().read(scope, key.casefold())


class KeepsNoHistory(OwnJournal):
    async def history(self, scope, key):
        return ()


class TellsTheHistoryBackwards(OwnJournal):
    async def history(self, scope, key):
        return (await super().history(scope, key))[::-1]


class GivesMoreThanIsAskedFor(OwnJournal):
    async def work(self, scope, *, limit, after=""):
        return await super().work(scope, limit=limit + 1, after=after)


class BeginsEveryPageAnew(OwnJournal):
    async def work(self, scope, *, limit, after=""):
        return await super().work(scope, limit=limit)


class WorksForAllScopes(OwnJournal):
    def _of(self, scope):
        return (one for at in {at for at, _ in self._rows} for one in super(WorksForAllScopes, self)._of(at))


class TellsDoubtsByKey(OwnJournal):
    async def in_doubt(self, scope):
        return sorted(await super().in_doubt(scope))


class CountsAllThatIsThere(OwnJournal):
    async def count_in_doubt(self, scope):
        return sum(entry.state is KeyState.IN_DOUBT for at, _ in self._rows for _, entry in self._of(at))


class ForgetsWhatIsAtWork(OwnJournal):
    async def prune(self, scope, *, before):
        forgettable(before, now=await self.now())
        old = [place for place in self._rows if place[0] == scope]
        for place in old:
            del self._rows[place]
        return len(old)


class ForgetsWhateverIsAsked(OwnJournal):
    async def prune(self, scope, *, before):
        until = before.timestamp()
        old = [at for at, row in self._rows.items() if row.ended_at is not None and row.ended_at <= until]
        for place in old:
            del self._rows[place]
        return len(old)


class LooksThenWrites(OwnJournal):
    async def read(self, scope, key):
        found = await super().read(scope, key)
        await asyncio.sleep(0)
        return found


class ForgetsWhenClosed(OwnJournal):
    async def close(self):
        self._rows.clear()


class StopsWhenItsCallerDoes(OwnJournal):
    async def move(self, scope, key, move):
        await asyncio.sleep(0)
        return await super().move(scope, key, move)


class HasATimeOfItsOwn(OwnJournal):
    async def now(self):
        return 1_700_000_000.0


class WritesTheReplyAnew(OwnJournal):
    async def read(self, scope, key):
        entry = await super().read(scope, key)
        if entry is None or entry.reply is None:
            return entry
        return entry.but(reply=json.dumps(json.loads(entry.reply)).encode())


class LosesReceipts(OwnJournal):
    async def read(self, scope, key):
        entry = await super().read(scope, key)
        return None if entry is None else entry.but(receipts={})


class ListsOrdersOfAllScopes(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        pages = [await super(ListsOrdersOfAllScopes, self).orders(at, limit=99) for at, _ in self._rows]
        return sorted(one for page in pages for one in page if one[0] > after)[:limit]


class ListsTheFirstOrdersAgain(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        return await super().orders(scope, limit=limit)


class ListsEveryOrderAsOver(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        found = await super().orders(scope, limit=limit, after=after)
        return [(order_id, key, since or await self.now()) for order_id, key, since in found]


# --- what a cancelled caller does to them --------------------------------------------------------------


class OneByOne(OwnJournal):
    """This one is right: a move waits for its turn, and is a task of its own."""

    def __init__(self, utc, beside=None):
        super().__init__(utc, beside)
        self.turn = asyncio.Lock()

    async def move(self, scope, key, move):
        return await asyncio.shield(self.in_turn(scope, key, move))

    async def in_turn(self, scope, key, move):
        async with self.turn:
            return await self.moved(scope, key, move)

    async def moved(self, scope, key, move):
        await asyncio.sleep(0)  # the way to the store
        return await super().move(scope, key, move)


class LosesWhatWaitsForItsTurn(OneByOne):
    """Who is cancelled in front of the lock has done nothing."""

    async def move(self, scope, key, move):
        async with self.turn:
            return await asyncio.shield(self.moved(scope, key, move))


class WritesTheHistoryAfterwards(OwnJournal):
    """In a second transaction, which a caller that was cancelled meanwhile does not begin."""

    async def move(self, scope, key, move):
        verdict, told = await asyncio.shield(self._moved(scope, key, move))
        self._steps.setdefault((scope, key), []).extend(told)
        return verdict

    async def _moved(self, scope, key, move):
        await asyncio.sleep(0)
        before = len(self._steps.get((scope, key), ()))
        verdict = await super().move(scope, key, move)
        steps = self._steps.get((scope, key), [])
        told, steps[before:] = steps[before:], []
        return verdict, told


# --- what another one on the same store finds ----------------------------------------------------------


class KeepsAllToItself(OwnJournal):
    def __init__(self, utc, beside=None):
        super().__init__(utc)


class AnswersBeforeItWrites(OwnJournal):
    """The others see what it wrote a moment later."""

    def __init__(self, utc, beside=None):
        super().__init__(utc, beside)
        self._stored = self._rows, self._steps

    async def move(self, scope, key, move):
        if self._rows is self._stored[0]:
            self._rows, self._steps = copy.deepcopy(self._stored)
            asyncio.get_running_loop().call_soon(self._write)
        return await super().move(scope, key, move)

    def _write(self):
        rows, steps = self._stored
        rows.update(self._rows)
        steps.update(self._steps)
        self._rows, self._steps = self._stored


class LocksOnlyItself(OneByOne):
    """Two of them look at once, and both write."""

    async def read(self, scope, key):
        found = await super().read(scope, key)
        await asyncio.sleep(0)
        return found


class BindsWhatItFoundFree(OneByOne):
    """Nobody else writes its key meanwhile; but another key may get the order's id."""

    async def moved(self, scope, key, move):
        self.taken = super()._is_taken(scope, key, move)
        return await super().moved(scope, key, move)

    def _is_taken(self, scope, key, move):
        return self.taken


class RemembersWhatItWrote(OwnJournal):
    """What it has written itself it does not look at again."""

    def __init__(self, utc, beside=None):
        super().__init__(utc, beside)
        self._known = {}

    async def read(self, scope, key):
        return self._known.get((scope, key)) or await super().read(scope, key)

    async def move(self, scope, key, move):
        verdict = await super().move(scope, key, move)
        if verdict is not None:
            self._known[scope, key] = verdict.entry
        return verdict

    async def prune(self, scope, *, before):
        self._known.clear()
        return await super().prune(scope, before=before)


RIGHT = [OwnJournal, OneByOne]
KINDS = [*OwnJournal.__subclasses__(), *OneByOne.__subclasses__()]
WRONG = [kind for kind in KINDS if kind.__module__ == __name__ and kind not in RIGHT]


def asked_by(contract):
    """Every test of the contract, each row of its tables for itself."""
    for name, test in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            tables = [[(mark.args[0], row) for row in mark.args[1]] for mark in marks]
            for rows in product(*tables):
                given = {}
                for names, row in rows:
                    several = isinstance(names, (list, tuple)) or "," in names
                    words = names.replace(" ", "").split(",") if isinstance(names, str) else names
                    given |= dict(zip(words, row if several else (row,), strict=True))
                yield test, given


async def passes(contract, kind, test, given):
    time = JournalTime()
    journal = kind(time.utc)
    fixtures = {
        "journal": journal,
        "new_journal": journal,
        "beside": kind(time.utc, journal),
        "journal_time": time,
        "pass_time": time.pass_,
    }
    wanted = inspect.signature(test).parameters
    words = {name: value for name, value in (fixtures | given).items() if name in wanted}
    try:
        await test(contract, **words)
    except (AssertionError, TimeoutError, pytest.fail.Exception):
        return False
    return True


async def first_failure(kind):
    contract = JournalContract()
    contract.stories = 1
    for test, given in asked_by(JournalContract):
        if not await passes(contract, kind, test, given):
            return test.__name__
    return None


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
async def test_the_journals_that_they_are_made_of_are_right(kind):
    assert await first_failure(kind) is None


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
async def test_a_wrong_journal_is_found(kind, monkeypatch):
    monkeypatch.setattr("transfer_async.testing.journal_contract.cancelling.PATIENCE", 0.02)

    assert await first_failure(kind)
