"""The trials: each does to the hooks what will happen to them, and ends with nothing held."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from decimal import localcontext
from functools import partial
from typing import Any

import attrs
from attrs import define, evolve, field, frozen

import transfer_async.testing.hook_rules as rules  # "from" would load all lazy public names first
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.testing.assertions import standing_holds
from transfer_async.testing.hook_harness import (
    ELSEWHERE,
    KINDS,
    BankOnTrial,
    Bench,
    Cut,
    Factory,
    OneWorkerOnly,
    RuleSeenBroken,
    bank_made_by,
    call_elsewhere,
    in_short,
)
from transfer_async.testing.hook_rules import BrokenRule, HookReport, HookRule

MANY = 6
"""Calls at once, and so the holds for which the ledger needs room."""

Trial = Callable[[Bench], Coroutine[Any, Any, Any]]
CutTrial = Callable[[Bench, Cut], Coroutine[Any, Any, bool]]


async def _once(bench: Bench) -> None:
    intent = bench.intent()
    reference = await bench.place(intent)
    await bench.stands_once(intent, rules.ASKED_AGAIN)
    await _let_go(bench, intent, reference)


async def _twice(bench: Bench) -> None:
    intent = bench.intent()
    await bench.place(intent)
    reference = await bench.place(intent)
    await bench.stands_once(intent, rules.ASKED_AGAIN)
    await _let_go(bench, intent, reference)


async def _twice_and_released_by_the_first(bench: Bench) -> None:
    intent = bench.intent()
    reference = await bench.place(intent)
    await bench.place(intent)
    await _let_go(bench, intent, reference)


async def _two_workers(bench: Bench) -> None:
    intent = bench.intent()
    references = await bench.at_once(*[intent] * MANY)
    await bench.stands_once(intent, rules.AT_ONCE)
    await _let_go(bench, intent, references[0])


async def _two_intents_of_one_key(bench: Bench) -> None:
    one = bench.intent()
    other = bench.intent(like=one)
    first = await bench.place(one)
    second = await bench.place(other, rule=rules.BY_INTENT)
    await bench.stands_once(one, rules.BY_INTENT)
    await bench.stands_once(other, rules.BY_INTENT)
    await _let_go(bench, one, first)
    await bench.stands_once(other, rules.OTHERS)
    await _let_go(bench, other, second)


async def _the_key_again_after_a_no(bench: Bench) -> None:
    one = bench.intent()
    first = await bench.place(one)
    await _let_go(bench, one, first)
    other = bench.intent(like=one)
    second = await bench.place(other, rule=rules.BY_INTENT)
    await bench.stands_once(other, rules.BY_INTENT)
    await bench.release(one, first)  # an undo may come again, days later
    await bench.release(one, None)
    await bench.stands_once(other, rules.OTHERS)
    await _let_go(bench, other, second)


async def _no_receipt(bench: Bench) -> None:
    intent = bench.intent()
    await bench.place(intent)
    await bench.release(intent, None, rule=rules.NO_RECEIPT)
    await bench.stands_none(intent, rules.NO_RECEIPT)


async def _released_twice(bench: Bench) -> None:
    intent = bench.intent()
    reference = await bench.place(intent)
    await _let_go(bench, intent, reference)
    balance = await bench.bank.money()
    for told in (reference, None):
        await bench.release(intent, told)
        await bench.balance_is(balance)
    await bench.stands_none(intent, rules.NOTHING_TO_RELEASE)


async def _never_placed(bench: Bench) -> None:
    other, never = bench.intent(), bench.intent()
    reference = await bench.place(other)
    for _ in range(2):
        await bench.release(never, None)
    await bench.stands_none(never, rules.NOTHING_TO_RELEASE)
    await bench.stands_once(other, rules.OTHERS)
    await _let_go(bench, other, reference)


async def _killed_and_asked_again(bench: Bench) -> None:
    intent = bench.intent()
    await bench.place(intent)
    bench.note("the answer is lost")
    await bench.new_worker()
    reference = await bench.place(intent, rule=rules.NEW_WORKER)
    await bench.stands_once(intent, rules.NEW_WORKER)
    await _let_go(bench, intent, reference)


async def _killed_and_released(bench: Bench) -> None:
    intent = bench.intent()
    await bench.place(intent)
    bench.note("the answer is lost")
    await bench.new_worker()
    await bench.release(intent, None, rule=rules.NEW_WORKER)
    await bench.stands_none(intent, rules.NEW_WORKER)


async def _refused(bench: Bench) -> None:
    """An amount that no customer has; a ledger that holds it all the same is only asked to let go."""
    intent = bench.intent(order=_beyond_all_means(bench.bank.order))
    await bench.place_a_huge_amount(intent)
    await bench.release(intent, None)
    await bench.stands_none(intent, rules.NO_RECEIPT)


async def _many(bench: Bench) -> None:
    intents = [bench.intent() for _ in range(MANY)]
    references = await bench.at_once(*intents)
    for intent in intents:
        await bench.stands_once(intent, rules.AT_ONCE)
    for intent, reference in zip(intents, references, strict=True):
        await _let_go(bench, intent, reference)


async def checks(bench: Bench) -> None:
    """Ask and undo the hooks that place no hold."""
    intent, never = bench.intent(), bench.intent()
    for check in bench.bank.checks:
        receipt = None
        for _ in range(2):
            receipt = await bench.check_passes(check, intent)
        for told in (receipt, receipt, None):
            await bench.check_is_undone(check, intent, told)
        await bench.check_is_undone(check, never, None)


TRIALS: dict[str, Trial] = {
    "one hold, placed and released": _once,
    "asked twice for one intent": _twice,
    "asked twice for one intent, and released by the first answer": _twice_and_released_by_the_first,
    "an undo without a receipt": _no_receipt,
    "an undo that comes twice": _released_twice,
    "an undo of what was never placed": _never_placed,
    f"{MANY} workers ask at once for one intent": _two_workers,
    "two intents of one key": _two_intents_of_one_key,
    "the key is used again after a refusal, and the old undo comes once more": _the_key_again_after_a_no,
    "killed between acting and answering, then asked again": _killed_and_asked_again,
    "killed between acting and answering, then undone": _killed_and_released,
    "an amount that no customer has": _refused,
    f"{MANY} payments at once": _many,
    "the other hooks, asked and undone twice": checks,
}
"""By title, the simplest first."""


async def _cut_and_released(bench: Bench, cut: Cut) -> bool:
    intent = bench.intent()
    was_cut = await bench.place_cut(intent, cut)
    await bench.release(intent, None, rule=rules.CUT_OFF)
    if found := await bench.standing(intent):
        await bench.release(intent, None, rule=rules.CUT_OFF)
        await bench.stands_none(intent, rules.CUT_OFF)
        raise bench.broken(rules.TOO_LATE, f"behind the first release came {', '.join(found)}")
    return was_cut


async def _cut_and_asked_again(bench: Bench, cut: Cut) -> bool:
    intent = bench.intent()
    was_cut = await bench.place_cut(intent, cut)
    if intent in bench.refused:
        return was_cut
    reference = await bench.place(intent, rule=rules.CUT_OFF)
    await bench.stands_once(intent, rules.CUT_OFF)
    await _let_go(bench, intent, reference)
    return was_cut


async def _release_cut(bench: Bench, cut: Cut) -> bool:
    intent, other = bench.intent(), bench.intent()
    reference, beside = await bench.place(intent), await bench.place(other)
    was_cut = await bench.release_cut(intent, reference, cut)
    await bench.release(intent, reference, rule=rules.CUT_OFF)
    await bench.stands_none(intent, rules.CUT_OFF)
    await bench.stands_once(other, rules.OTHERS)
    await _let_go(bench, other, beside)
    return was_cut


CUT_TRIALS: dict[str, CutTrial] = {
    "place is cut off, and the release comes at once": _cut_and_released,
    "place is cut off, and it is asked again": _cut_and_asked_again,
    "release is cut off, and it is asked again": _release_cut,
}
"""By title; each is made for every await of the hook, in every way. They say whether it came that far."""


async def _let_go(
    bench: Bench, intent: OrderIntent, reference: str, *, rule: HookRule = rules.RELEASED
) -> None:
    await bench.release(intent, reference, rule=rule)
    await bench.stands_none(intent, rule)


def _beyond_all_means(order: NewOrder) -> NewOrder:
    with localcontext(prec=100):  # exact: the amounts of the bank's own order may be rounded ones
        huge = order.matcher_amount * 10**15
        return attrs.evolve(order, poster_amount=huge * order.exchange_rate, matcher_amount=huge)


# --- sequences ---------------------------------------------------------------------------------------
# Sequences of what may happen to a few intents: drawn by hypothesis from a seed, shortened if one fails.


TITLE = "a sequence that was drawn"
NEEDED = "sequences were left out: pip install 'transfer_async[testing]'"
_INTENTS = 3
_LONGEST = 8
_DEEPEST = 6


@frozen
class Step:
    """One step of a sequence.

    Args:
        intent: which of the intents; the last two have one key.
        undo: release instead of place.
        cut: where it is cut off, if it is.
        knows: a release that knows the reference, if there is one.
    """

    intent: int
    undo: bool
    cut: Cut | None
    knows: bool


@define
class _Model:
    """What may stand for one intent, as far as anybody can know: between so many holds and so many."""

    intent: OrderIntent
    least: int = 0
    most: int = 0
    reference: str | None = None
    is_undone: bool = False


async def play(bench: Bench, steps: list[Step]) -> None:
    """Do the steps that the client could take in this order, look after each, and let everything go.

    Raises:
        RuleSeenBroken: more stood, or less, than could.
    """
    one, two = bench.intent(), bench.intent()
    models = [_Model(one), _Model(two), _Model(bench.intent(like=two))]
    for step in steps:
        model = models[step.intent]
        if step.undo:
            await _undo(bench, model, step)
        elif not model.is_undone:  # nothing is placed for an intent that was undone
            await _place(bench, model, step)
        for item in models:
            await _look(bench, item)
    for model in models:
        await bench.release(model.intent, model.reference)
        await bench.stands_none(model.intent, rules.RELEASED)


async def _place(bench: Bench, model: _Model, step: Step) -> None:
    if step.cut is not None and await bench.place_cut(model.intent, step.cut):
        model.is_undone = model.intent in bench.refused
        model.most = int(not model.is_undone)
        model.least = min(model.least, model.most)
        return
    if step.cut is None:
        model.reference = await bench.place(model.intent)
    model.least = model.most = 1


async def _undo(bench: Bench, model: _Model, step: Step) -> None:
    model.is_undone = True
    reference = model.reference if step.knows else None
    if step.cut is not None and await bench.release_cut(model.intent, reference, step.cut):
        model.least = 0
        return
    if step.cut is None:
        await bench.release(model.intent, reference)
    model.least = model.most = 0


async def _look(bench: Bench, model: _Model) -> None:
    found = await bench.standing(model.intent)
    if model.least <= len(found) <= model.most:
        return
    if model.is_undone:
        rule = rules.RELEASED
    elif not model.most:
        rule = rules.BY_INTENT
    else:
        rule = rules.ASKED_AGAIN if found else rules.OTHERS
    raise bench.broken(rule, bench.saw(model.intent, found))


Run = Callable[[list[Step]], Coroutine[Any, Any, None]]


async def draw(run: Run, *, count: int, seed: int) -> RuleSeenBroken | None:
    """Draw so many sequences and run each; what the shortest of those that fail raised, if any does.

    Args:
        run: runs one, on the caller's loop.
        count: how many.
        seed: the same gives the same ones.

    Raises:
        ModuleNotFoundError: hypothesis is not installed.
    """
    import hypothesis  # an extra
    from hypothesis import strategies as st

    loop = asyncio.get_running_loop()
    last: list[RuleSeenBroken] = []

    def run_there(steps: list[Step]) -> None:
        try:
            asyncio.run_coroutine_threadsafe(run(steps), loop).result()
        except RuleSeenBroken as broken:
            last.append(broken)
            raise

    kinds = st.sampled_from(KINDS)
    cut = st.builds(lambda at, kind: Cut(at, *kind), st.integers(1, _DEEPEST), kinds)
    undo = st.sampled_from([False, False, True])  # what is undone is at its end
    step = st.builds(
        Step, st.integers(0, _INTENTS - 1), undo, st.none() | st.none() | cut, knows=st.booleans()
    )
    wanted = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    given = hypothesis.given(st.lists(step, min_size=3, max_size=_LONGEST))
    drawn = hypothesis.seed(seed)(wanted(given(run_there)))
    try:
        await asyncio.to_thread(drawn)
    except Exception:
        if not last:
            raise
        return last[-1]  # the shortest comes last
    return None


# --- running all trials -------------------------------------------------------------------------------


DEEPEST = 40
"""Awaits of a hook at which it is cut off, at most."""

_ALONE = "no worker could be started anew: the factory makes an empty ledger each time"
_DEEPER = "a hook has more than {0} awaits: it was cut off at the first {0}"
_NO_AWAIT = (
    "{0} awaits nothing: it was not cut off, and no answer was lost (a call that blocks stops all others)"
)
_MEMORY = (
    "state in the memory of your modules was not tried: no worker was started in a process of its own ({0})"
)
_NOT_YET = "not tried before the rules above are kept: {0}"
_STOPPED = "no trial was made after {0!r}"
_DIRTY = ", which left holds or missing money in the ledger that the hooks could not release"
_FOLLOWS = "broken as well, most likely by the same fault: {0}"
_UNSEEN = "balances were not looked at: the factory gives no balance()"
_TURNS = 20


async def verify_hooks(
    factory: Factory, *, seed: int = 0, sequences: int = 100, late: float = 0.0, patience: float = 10.0
) -> HookReport:
    """Do to a bank's hooks what will happen to them in service, and say which rules they break.

    They are called twice, at once, by a new worker, cancelled at each await, with time-outs and lost
    connections there, and undone without a receipt, twice, and without anything to undo. After each the
    bank's ``held`` is asked. Everything that was held is released again, and the ``balance`` is then what it
    was. Of rules that are broken by one fault the most basic is reported.

    Args:
        factory: makes a worker's ``hooks`` (the last places the hold) and ``held(intent_id)``, by name, in a
            mapping or an object; perhaps also a ``balance()`` of all accounts that they move money on (a
            number, a text, or a mapping or list of these), an ``order`` to hold for, and an async
            ``close()``. It may be async, as ``held`` and ``balance`` may. It is called again for each worker
            that is started anew, in a process of its own if it can be imported there, and finds the same
            ledger. Give it a ledger for tests with room for six holds, on which nobody else moves money.
        seed: the same gives the same sequences.
        sequences: how many sequences hypothesis draws; 0 for none.
        late: seconds to wait, once, for holds that arrive when nobody expects them any more.
        patience: seconds that one hook may take.

    Returns:
        The report: ``report.check()`` fails a test.

    Raises:
        ValueError: the factory does not make what is needed, or a balance is too large to be exact.
    """
    run = _Run(factory, patience=patience)
    try:
        await run.start()
        await run.all_trials(sequences=sequences, seed=seed)
        await run.look_again(late)
    finally:
        await run.close()
    return run.report(seed)


@define(eq=False)
class _Run:
    """One run of all trials.

    Attributes:
        broken: what was seen, by the rule's name: of each the shortest.
        tried: how many trials there were.
        ended: the trials that broke nothing: in the end nothing may stand for their intents.
        is_stopped: whether no further trial would show anything.
    """

    factory: Factory
    patience: float
    broken: dict[str, BrokenRule] = field(factory=dict)
    notes: list[str] = field(factory=list)
    tried: int = 0
    ended: list[Bench] = field(factory=list)
    workers: list[BankOnTrial] = field(factory=list)
    is_stopped: bool = False

    async def start(self) -> BankOnTrial:
        """Start a worker."""
        self.workers.append(await bank_made_by(self.factory))
        if self.workers[-1].balance is None:
            self.notes.append(_UNSEEN)
        return self.workers[-1]

    async def start_anew(self, intents: Sequence[OrderIntent]) -> BankOnTrial:
        """Start a worker that has no memory, in a process of its own if there can be one.

        Raises:
            OneWorkerOnly: it does not find what stands for the intents.
        """
        ids = [intent.id for intent in intents]
        standing = [await standing_holds(self.workers[0].held, item) for item in ids]
        there = partial(call_elsewhere, self.factory)
        try:
            if await there("held", *ids) == standing:
                hold = FundsHold(partial(there, "before"), partial(there, "undo"), name=ELSEWHERE)
                return evolve(self.workers[0], hold=hold)
            why = "it finds another ledger"
        except Exception as error:  # noqa: BLE001 - the bank's modules may bear one process only
            why = in_short(error)
        bank = await self.start()
        if [await standing_holds(bank.held, item) for item in ids] != standing:
            raise OneWorkerOnly
        self.notes.append(_MEMORY.format(why))
        return bank

    async def close(self) -> None:
        """Close what the workers hold open."""
        for worker in self.workers:
            await worker.closed()

    async def all_trials(self, *, sequences: int, seed: int) -> None:
        """Make every trial; later ones build on what earlier ones found right."""
        for title, trial in TRIALS.items():
            if trial is not checks or self.workers[0].checks:
                await self._try(title, trial)
        if self._may_go_on("cancellations, time-outs, lost answers and sequences"):
            for title, cut_trial in CUT_TRIALS.items():
                for kind in KINDS:
                    await self._cut_everywhere(title, cut_trial, kind)
            if sequences and self._may_go_on("sequences"):
                await self._draw(count=sequences, seed=seed)

    def _may_go_on(self, left_out: str) -> bool:
        may = not self.broken.keys() - {rules.CHECKS.name}
        if not may:
            self.notes.append(_NOT_YET.format(left_out))
        return may

    async def look_again(self, late: float) -> None:
        """Look once more whether anything stands: by now what was cut off has arrived, if it ever does."""
        await _let_arrive()
        await asyncio.sleep(late)
        await self._find_late_holds()

    async def _find_late_holds(self) -> bool:
        """Whether holds of earlier trials arrived behind their releases; notes and releases them."""
        held_before = len(self.ended)
        for bench in [*self.ended]:
            try:
                await _nothing_came_late(bench, self.workers[0])
            except RuleSeenBroken as seen:
                self._note(seen.broken)
                self.ended.remove(bench)
                await self._released(bench)
        return len(self.ended) < held_before

    async def _try(self, title: str, trial: Trial) -> object:
        try:
            return await self._made(title, trial)
        except RuleSeenBroken as seen:
            self._note(seen.broken)
        except OneWorkerOnly:
            self.notes.append(_ALONE)
        return None

    async def _made(self, title: str, trial: Trial) -> object:
        """What the trial gives; whatever it ends in, nothing is held afterwards, or no other is made."""
        if self.is_stopped:
            return None
        bank = self.workers[0]
        bench = Bench(bank, title, patience=self.patience, another=self.start_anew)
        self.tried += 1
        before = await bank.money()
        try:
            result = await trial(bench)
            await _let_arrive()
            if await bank.money() != before:
                await _nothing_came_late(bench, bank)
            await bench.balance_is(before)
        except (RuleSeenBroken, OneWorkerOnly) as ended:
            rule = ended.broken.rule if isinstance(ended, RuleSeenBroken) else None
            if rule is rules.PAID_BACK and await self._find_late_holds():
                return await self._made(title, trial)  # what arrived late had moved the money
            is_clean = await self._released(bench) and await bank.money() == before
            if not is_clean or rule in (rules.PLACES, rules.COMES_BACK):
                self.is_stopped = True
                self.notes.append(_STOPPED.format(title) + _DIRTY * (not is_clean))
            raise
        self.ended.append(bench)
        return result

    async def _released(self, bench: Bench) -> bool:
        """Whether nothing stands for the trial's intents, once the hooks have released what did."""
        bank = self.workers[0]

        async def release() -> None:
            for intent in bench.intents:
                for reference in (*await standing_holds(bank.held, intent.id), None):
                    with contextlib.suppress(Exception):
                        await bank.hold.undo(intent, reference)

        with contextlib.suppress(RuleSeenBroken):
            await bench.wait_for(asyncio.ensure_future(release()), "release")
        return not any([await standing_holds(bank.held, intent.id) for intent in bench.intents])

    async def _cut_everywhere(
        self, title: str, trial: CutTrial, kind: tuple[bool, type[BaseException], bool]
    ) -> None:
        for at in range(1, DEEPEST + 1):
            # A trial that broke a rule does not say whether it was cut: it is not made for later awaits.
            was_cut = await self._try(title, partial(_with, trial, Cut(at, *kind)))
            if was_cut is False and at == 1:
                self.notes.append(_NO_AWAIT.format(title.split(maxsplit=1)[0]))
            if not was_cut:
                return
        self.notes.append(_DEEPER.format(DEEPEST))

    async def _draw(self, *, count: int, seed: int) -> None:
        async def run(steps: list[Step]) -> None:
            await self._made(TITLE, lambda bench: play(bench, steps))

        try:
            seen = await draw(run, count=count, seed=seed)
        except ModuleNotFoundError:
            self.notes.append(NEEDED)
            return
        if seen is not None:
            self._note(seen.broken)

    def _note(self, broken: BrokenRule) -> None:
        known = self.broken.get(broken.rule.name)
        if known is None:
            self.broken[broken.rule.name] = broken
            return
        shorter = min(known, broken, key=lambda item: sum(map(len, item.did)))
        self.broken[broken.rule.name] = evolve(shorter, more=known.more + 1)

    def report(self, seed: int) -> HookReport:
        """What was seen; of rules that are broken by one fault the most basic."""
        seen = [item.rule for item in self.broken.values()]
        follows = [
            item for item in seen if set(item.after) & set(seen) or (item is rules.PLACES and seen[1:])
        ]
        if follows:
            self.notes.insert(0, _FOLLOWS.format(", ".join(rule.name for rule in follows)))
        return HookReport(
            broken=tuple(item for item in self.broken.values() if item.rule not in follows),
            tried=self.tried,
            notes=tuple(dict.fromkeys(self.notes)),
            seed=seed,
        )


async def _let_arrive() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _nothing_came_late(bench: Bench, bank: BankOnTrial) -> None:
    bench.bank = bank
    for intent in bench.intents:
        await bench.stands_none(intent, rules.TOO_LATE)


async def _with(trial: CutTrial, cut: Cut, bench: Bench) -> bool:
    return await trial(bench, cut)
