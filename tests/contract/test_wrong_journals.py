"""The contract tests detect wrong journals. Each has one fault that a bank's own journal might have."""

import asyncio
import copy
import inspect
import json
import re
from itertools import product
from unicodedata import normalize

import attrs
import pytest
from msgspec.structs import replace

from tests.contract.own_journal import OwnJournal
from tests.support.trials import mostly_in_trials
from transfer_async.journal import (
    FOUR_EYES,
    KeyState,
    due_at,
    entry_of,
    forgettable,
    is_waiting,
    step_of,
)
from transfer_async.testing.journal_contract import JournalContract, JournalTime


class SharesOrderIds(OwnJournal):
    def _is_taken(self, scope, key, move):
        return False


class BindsOrderIdsInAllScopes(OwnJournal):
    def _is_taken(self, scope, key, move):
        return any(super(BindsOrderIdsInAllScopes, self)._is_taken(at, key, move) for at, _ in self._rows)


class Confuses(OwnJournal):
    """Stores a key in the wrong place, as `CONFUSING` describes."""

    async def move(self, scope, key, move):
        return await super().move(*self.place(scope, key), move)

    async def read(self, scope, key):
        return await super().read(*self.place(scope, key))


CONFUSING = {
    "OneScopeForAll": lambda scope, key: ("", key),
    "FoldsKeys": lambda scope, key: (scope, key.casefold()),
    # As a database with a short column that truncates keys.
    "CutsKeysAt64": lambda scope, key: (scope, key[:64]),
    "FoldsKeysToASCII": lambda scope, key: (scope, normalize("NFKD", key).encode("ascii", "ignore").decode()),
    "ReadsKeysAsNumbers": lambda scope, key: (scope, str(float(key)) if key.isdecimal() else key),
    "JoinsScopeAndKey": lambda scope, key: ("", f"{scope}/{key}"),
}


class ChangesHistory(OwnJournal):
    """Returns a changed history, as `HISTORIES` describes."""

    async def history(self, scope, key):
        return tuple(self.changed(await super().history(scope, key)))


HISTORIES = {
    "KeepsNoHistory": lambda steps: (),
    "ReversesTheHistory": lambda steps: steps[::-1],
    "CutsTheHistoryTo50": lambda steps: steps[:50],
    "CutsReasonsAt80": lambda steps: [
        replace(step, reason=step.reason and step.reason[:80]) for step in steps
    ],
    "LosesEndingsOfTheHistory": lambda steps: [replace(step, ending=None) for step in steps],
}


class ComparesKeysAsPatterns(OwnJournal):
    """Searches with ``LIKE``."""

    async def read(self, scope, key):
        like = re.compile(re.escape(key).replace("_", ".").replace("%", ".*"))
        found = [at for at in self._rows if at[0] == scope and like.fullmatch(at[1])]
        return await super().read(*found[0]) if found else None


class ChangesWork(OwnJournal):
    """Returns a wrong page, as `PAGES` describes."""

    async def work(self, scope, *, limit, after=""):
        return await self.page(super().work, scope, limit, after)


PAGES = {
    "ListsMoreThanTheLimit": lambda work, scope, limit, after: work(scope, limit=limit + 1, after=after),
    "BeginsEveryPageAgain": lambda work, scope, limit, after: work(scope, limit=limit),
    "WorksOnTheFirst100": lambda work, scope, limit, after: work(scope, limit=min(limit, 100), after=after),
}


class LimitsBeforeItFilters(OwnJournal):
    """With it, ``recover`` ends at the first page without work."""

    async def work(self, scope, *, limit, after=""):
        now = await self.now()
        page = [one for one in self._of(scope) if one[0] > after][:limit]
        return [one for one in page if is_waiting(one[1], now)]


class LimitsBeforeItLooksAtTheScope(OwnJournal):
    async def work(self, scope, *, limit, after=""):
        now = await self.now()
        rows = sorted((key, at) for at, key in self._rows if key > after)[:limit]
        page = [(key, entry_of(self._rows[at, key])) for key, at in rows if at == scope]
        return [one for one in page if is_waiting(one[1], now)]


class WorksByAge(OwnJournal):
    """Skips a key that is due later than the keys of a page, but sorts before the last of them."""

    async def work(self, scope, *, limit, after=""):
        found = await super().work(scope, limit=999, after=after)
        return sorted(found, key=lambda one: due_at(one[1]))[:limit]


class WorksByAgeFromWhereItWas(OwnJournal):
    """Continues after the last key while that key is pending; otherwise it starts again, or ends."""

    async def work(self, scope, *, limit, after=""):
        found = sorted(await super().work(scope, limit=999), key=lambda one: due_at(one[1]))
        keys = [key for key, _ in found]
        return found[keys.index(after) + 1 if after in keys else len(keys) if after else 0 :][:limit]


class ListsUndosThatAnotherWorkerRuns(OwnJournal):
    """With it, ``recover`` tries to acquire the lease of each of these undos."""

    async def pending_undos(self, scope, *, limit, after=""):
        found = [one for one in self._of(scope) if one[1].pending_undos and one[0] > after]
        return sorted(found, key=lambda one: one[0])[:limit]


class ListsTheFirst100Doubts(OwnJournal):
    async def in_doubt(self, scope):
        return (await super().in_doubt(scope))[:100]

    async def count_in_doubt(self, scope):
        return len(await super().in_doubt(scope))


class LeavesTheIntentOutOfLists(OwnJournal):
    """With it, ``recover`` does not know what to undo."""

    def _of(self, scope):
        return ((key, replace(entry, intent=None)) for key, entry in super()._of(scope))


class LimitsOrdersBeforeItFilters(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        rows = [(row.order_id or "", at, row) for at, row in self._rows.items()]
        page = sorted((one for one in rows if one[0] >= after), key=lambda one: one[0])[: limit + 1]
        found = [(order_id, at[1], row.ended_at) for order_id, at, row in page if at[0] == scope]
        return [one for one in found if one[0] > after][:limit]


class WorksForAllScopes(OwnJournal):
    def _of(self, scope):
        return (one for at in {at for at, _ in self._rows} for one in super(WorksForAllScopes, self)._of(at))


class ListsDoubtsByKey(OwnJournal):
    async def in_doubt(self, scope):
        return sorted(await super().in_doubt(scope))


class CountsAllScopes(OwnJournal):
    async def count_in_doubt(self, scope):
        return sum(entry.state is KeyState.IN_DOUBT for at, _ in self._rows for _, entry in self._of(at))


class DeletesKeysInUse(OwnJournal):
    async def prune(self, scope, *, before):
        forgettable(before, now=await self.now())
        old = [place for place in self._rows if place[0] == scope]
        for place in old:
            del self._rows[place]
        return len(old)


class DeletesKeysOfToday(OwnJournal):
    async def prune(self, scope, *, before):
        until = before.timestamp()
        old = [at for at, row in self._rows.items() if row.ended_at is not None and row.ended_at <= until]
        for place in old:
            del self._rows[place]
        return len(old)


class ReadsWithoutALock(OwnJournal):
    async def read(self, scope, key):
        found = await super().read(scope, key)
        await asyncio.sleep(0)
        return found


class KnowsNoDualControl(OwnJournal):
    """Written before `decide` had the parameter ``four_eyes``."""

    async def _rule(self, scope):
        return None


class ReadsTheRuleTooEarly(OwnJournal):
    """Reads the rule in an earlier transaction than the one that writes."""

    async def _rule(self, scope):
        rule = await super()._rule(scope)
        for _ in range(3):
            await asyncio.sleep(0)
        return rule


class ReadsTheRuleOnce(OwnJournal):
    """Does not read the rule again until it writes the rule itself."""

    async def _rule(self, scope):
        known = self.__dict__.setdefault("_rules", {})
        if scope not in known:
            known[scope] = await super()._rule(scope)
        return known[scope]

    async def move(self, scope, key, move):
        verdict = await super().move(scope, key, move)
        if key == FOUR_EYES and verdict is not None:
            self.__dict__.setdefault("_rules", {})[scope] = verdict.entry
        return verdict


class ForgetsWhenClosed(OwnJournal):
    async def close(self):
        self._rows.clear()


class StopsWithItsCaller(OwnJournal):
    async def move(self, scope, key, move):
        await asyncio.sleep(0)
        return await super().move(scope, key, move)


class HasItsOwnTime(OwnJournal):
    async def now(self):
        return 1_700_000_000.0


class Loses(OwnJournal):
    """Returns an entry without some of its data, as `LOSING` describes."""

    async def read(self, scope, key):
        entry = await super().read(scope, key)
        return None if entry is None else replace(entry, **self.lost(entry))


def changed_intent(**changes):
    """Return a function that changes the intents of an entry and of its pending undos."""

    def lost(entry):
        undos = [
            attrs.evolve(undo, intent=attrs.evolve(undo.intent, **changes)) for undo in entry.pending_undos
        ]
        return {
            "intent": entry.intent and attrs.evolve(entry.intent, **changes),
            "pending_undos": tuple(undos),
        }

    return lost


LOSING = {
    "CutsTheReplyAt64KB": lambda entry: {"reply": entry.reply and entry.reply[:65_535]},
    "EncodesTheReplyAgain": lambda entry: {
        "reply": entry.reply and json.dumps(json.loads(entry.reply)).encode()
    },
    "LosesReceipts": lambda entry: {"receipts": {}},
    "LosesHeld": lambda entry: {"held": None},
    "LosesTheHoldOfTheIntent": changed_intent(held=None),
    "LosesTheBeneficiary": changed_intent(beneficiary=None),
    "LosesTheLastTimeToSend": changed_intent(send_before=None),
    "LosesCandidates": lambda entry: {"candidates": ()},
    "KeepsOneCandidate": lambda entry: {"candidates": entry.candidates[:1]},
    "LosesTheCause": lambda entry: {"cause": None},
    "LosesTheEnding": lambda entry: {"ending": None},
    "ForgetsWhoMadeTheKey": lambda entry: {"client_made": False},
    "LosesHooks": lambda entry: {"hooks": ()},
    "CountsNoTransitions": lambda entry: {"version": 0},
    "CutsReceiptsAt64": lambda entry: {"receipts": {k: v and v[:64] for k, v in entry.receipts.items()}},
    "KeepsThreePendingUndos": lambda entry: {"pending_undos": entry.pending_undos[:3]},
    "LosesTheDueTimesOfUndos": lambda entry: {
        "pending_undos": tuple(attrs.evolve(undo, since=None) for undo in entry.pending_undos)
    },
}


class WritesEnds(OwnJournal):
    """A correct journal that stores when a key has ended."""

    def ended_at(self, before, after, first):
        return after

    async def move(self, scope, key, move):
        first = self.__dict__.setdefault("firsts", {}).setdefault((scope, key), await self.now())
        before = self._rows.get((scope, key))
        verdict = await super().move(scope, key, move)
        if (row := self._rows.get((scope, key))) is not None:
            end = self.ended_at(before and before.ended_at, row.ended_at, first)
            self._rows[scope, key] = replace(row, ended_at=end)
        return verdict


ENDS = {
    # Uses ``COALESCE(excluded.ended_at, ended_at)``: a key in use or in doubt is pruned, then paid again.
    "KeepsAnEarlierEnd": lambda before, after, first: before if after is None else after,
    "PrunesByTheFirstClaim": lambda before, after, first: after and first,
}


class KeepsTheFirstEnd(WritesEnds):
    def ended_at(self, before, after, first):
        self._kept = getattr(self, "_kept", before) or before or after
        return after and self._kept


class ListsRefuted(OwnJournal):
    """A correct journal that lists the keys that were ever refuted or resolved, two at a time."""

    async def refuted(self, scope, *, after=""):
        return self._listed(scope, "refute", after)

    async def resolved(self, scope, *, after=""):
        return self._listed(scope, "resolve", after)

    def _listed(self, scope, move, after):
        keys = sorted(key for at, key in self._rows if at == scope and key > after)
        found = [key for key in keys if self._is_listed(self._rows[scope, key], scope, key, move)][:2]
        return found, found[-1] if found else ""

    def _is_listed(self, row, scope, key, move):
        return any(step_of(values).move == move for values in self._steps.get((scope, key), ()))


class ListsWhatIsStillRefuted(ListsRefuted):
    """Omits a key that was claimed again."""

    def _is_listed(self, row, scope, key, move):
        is_listed = super()._is_listed(row, scope, key, move)
        return is_listed and (move == "resolve" or '"Refuted"' in row.body)


class ListsTheFirstRefuted(ListsRefuted):
    def _listed(self, scope, move, after):
        return super()._listed(scope, move, after)[0], ""


class ListsWhatIsStillResolved(ListsRefuted):
    def _is_listed(self, row, scope, key, move):
        is_listed = super()._is_listed(row, scope, key, move)
        return is_listed and (move == "refute" or row.order_id is not None)


class ListsOrdersOfAllScopes(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        pages = [await super(ListsOrdersOfAllScopes, self).orders(at, limit=99) for at, _ in self._rows]
        return sorted(one for page in pages for one in page if one[0] > after)[:limit]


class ListsTheFirstOrdersAgain(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        return await super().orders(scope, limit=limit)


class ListsEveryOrderAsEnded(OwnJournal):
    async def orders(self, scope, *, limit, after=""):
        found = await super().orders(scope, limit=limit, after=after)
        return [(order_id, key, since or await self.now()) for order_id, key, since in found]


# --- cancelled callers --------------------------------------------------------------


class OneByOne(OwnJournal):
    """A correct journal that runs its transitions as tasks, one at a time."""

    def __init__(self, utc, beside=None):
        super().__init__(utc, beside)
        self.turn = asyncio.Lock()

    async def move(self, scope, key, move):
        return await asyncio.shield(self.in_turn(scope, key, move))

    async def in_turn(self, scope, key, move):
        async with self.turn:
            return await self.moved(scope, key, move)

    async def moved(self, scope, key, move):
        await asyncio.sleep(0)  # stands for the connection to the store
        return await super().move(scope, key, move)


class LosesWaitingTransitions(OneByOne):
    """A caller that is cancelled while it waits for the lock makes no transition."""

    async def move(self, scope, key, move):
        async with self.turn:
            return await asyncio.shield(self.moved(scope, key, move))


class WritesTheHistoryAfterwards(OwnJournal):
    """Writes the history in a second transaction, which a cancelled caller does not begin."""

    async def move(self, scope, key, move):
        verdict, new_steps = await asyncio.shield(self._moved(scope, key, move))
        self._steps.setdefault((scope, key), []).extend(new_steps)
        return verdict

    async def _moved(self, scope, key, move):
        await asyncio.sleep(0)
        before = len(self._steps.get((scope, key), ()))
        verdict = await super().move(scope, key, move)
        steps = self._steps.get((scope, key), [])
        new_steps, steps[before:] = steps[before:], []
        return verdict, new_steps


# --- two journals on one store ----------------------------------------------------------


class SharesNothing(OwnJournal):
    def __init__(self, utc, beside=None):
        super().__init__(utc)


class AnswersBeforeItWrites(OwnJournal):
    """Other journals see its writes a moment later."""

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
    """Two of these journals can read at the same time, and then both write."""

    async def read(self, scope, key):
        found = await super().read(scope, key)
        await asyncio.sleep(0)
        return found


class BindsAnIdThatWasFree(OneByOne):
    """Locks its key, but another key may get the order's id in the meantime."""

    async def moved(self, scope, key, move):
        self.taken = super()._is_taken(scope, key, move)
        return await super().moved(scope, key, move)

    def _is_taken(self, scope, key, move):
        return self.taken


class TrustsItsOwnCache(OwnJournal):
    """Does not read its own writes again."""

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


RIGHT = [OneByOne, WritesEnds, ListsRefuted]
"""Correct bases of wrong journals. `test_journals` tests the other base, `OwnJournal`."""

CHANGED = {
    (Confuses, "place"): CONFUSING,
    (ChangesHistory, "changed"): HISTORIES,
    (ChangesWork, "page"): PAGES,
    (Loses, "lost"): LOSING,
    (WritesEnds, "ended_at"): ENDS,
}
WRONG = [
    kind
    for base in (OwnJournal, *RIGHT)
    for kind in base.__subclasses__()
    if kind.__module__ == __name__ and kind not in [*RIGHT, *(base for base, _ in CHANGED)]
]
WRONG += [
    type(name, (base,), {method: staticmethod(function)})
    for (base, method), functions in CHANGED.items()
    for name, function in functions.items()
]


OFTEN = (
    SharesOrderIds,
    ComparesKeysAsPatterns,
    LimitsBeforeItFilters,
    KnowsNoDualControl,
    LosesWaitingTransitions,
    TrustsItsOwnCache,
    *(kind for kind in WRONG if kind.__name__ in ("OneScopeForAll", "KeepsNoHistory", "LosesTheCause")),
)
"""The wrong journals that run by default: one or two of each kind."""

COSTLY = ("every_scenario", "lists_are_complete", "random_runs")
"""Parts of the names of slow tests, which run last."""


def asked_by(contract, kind):
    """Yield every test of the contract, with the arguments of each row of its tables."""

    def order(found):
        if issubclass(kind, (Loses, ChangesHistory)) and "every_scenario" in found[0]:
            return 0  # The first scenarios already detect a lost field.
        return 2 if any(part in found[0] for part in COSTLY) else 1

    for name, test in sorted(inspect.getmembers(contract, inspect.iscoroutinefunction), key=order):
        if name.startswith("test_"):
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            tables = [[(mark.args[0], row) for row in mark.args[1]] for mark in marks]
            for rows in product(*tables):
                yield test, dict(rows)


async def passes(contract, kind, test, given):
    time = JournalTime()
    journal = kind(time.utc)
    fixtures = {
        "journal": journal,
        "new_journal": journal,
        "beside": kind(time.utc, journal),
        "journal_time": time,
        "pass_time": time.pass_,
        **given,
    }
    try:
        await test(contract, **{name: fixtures[name] for name in [*inspect.signature(test).parameters][1:]})
    except (AssertionError, ExceptionGroup, TimeoutError, pytest.fail.Exception):
        return False
    return True


async def first_failure(kind):
    contract = JournalContract()
    contract.stories = 1
    for test, given in asked_by(JournalContract, kind):
        if not await passes(contract, kind, test, given):
            return test.__name__
    return None


@pytest.mark.parametrize("kind", mostly_in_trials(RIGHT, often=(WritesEnds,)), ids=lambda kind: kind.__name__)
async def test_the_base_journals_keep_the_contract(kind):
    assert await first_failure(kind) is None


@pytest.mark.parametrize("kind", mostly_in_trials(WRONG, often=OFTEN), ids=lambda kind: kind.__name__)
async def test_the_contract_finds_each_wrong_journal(kind, monkeypatch):
    monkeypatch.setattr("transfer_async.testing.journal_contract.TIMEOUT", 0.02)

    assert await first_failure(kind)


async def test_a_failing_scenario_does_not_hide_later_ones():
    time = JournalTime()
    kind = next(kind for kind in WRONG if kind.__name__ == "LosesTheCause")
    with pytest.raises(ExceptionGroup) as failed:
        await JournalContract().test_every_scenario_ends_as_decide_says(kind(time.utc), time.pass_)

    notes = [error.__notes__ for error in failed.value.exceptions]
    assert notes[0] == ["in the scenario 'every field of an order in doubt is stored'"]
    assert len(notes) > 1


@pytest.mark.parametrize("kind", [SharesOrderIds, BindsOrderIdsInAllScopes], ids=lambda kind: kind.__name__)
async def test_the_contract_binds_an_order_id_to_one_key_of_a_scope(kind):
    test = JournalContract.test_an_order_id_is_bound_to_one_key_of_a_scope

    assert not await passes(JournalContract(), kind, test, {})
