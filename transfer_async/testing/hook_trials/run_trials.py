"""All trials of one bank's hooks, one after the other, and the report of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from attrs import define, evolve, field

from transfer_async._models.requests import OrderIntent
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.testing.assertions import standing_holds
from transfer_async.testing.hook_trials import rules, scenarios
from transfer_async.testing.hook_trials.harness import (
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
from transfer_async.testing.hook_trials.rules import BrokenRule, HookReport

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

Trial = Callable[[Bench], Coroutine[Any, Any, Any]]


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
        for title, trial in scenarios.TRIALS.items():
            if trial is not scenarios.checks or self.workers[0].checks:
                await self._try(title, trial)
        if self._may_go_on("cancellations, time-outs, lost answers and sequences"):
            for title, cut_trial in scenarios.CUT_TRIALS.items():
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
        self, title: str, trial: scenarios.CutTrial, kind: tuple[bool, type[BaseException], bool]
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
        async def run(steps: list[scenarios.Step]) -> None:
            await self._made(scenarios.TITLE, lambda bench: scenarios.play(bench, steps))

        try:
            seen = await scenarios.draw(run, count=count, seed=seed)
        except ModuleNotFoundError:
            self.notes.append(scenarios.NEEDED)
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


async def _with(trial: scenarios.CutTrial, cut: Cut, bench: Bench) -> bool:
    return await trial(bench, cut)
