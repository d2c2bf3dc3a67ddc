"""All trials of one bank's hooks, one after the other, and the report of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from attrs import define, evolve, field

from transfer_async.testing.hook_trials import rules, scenarios, sequences
from transfer_async.testing.hook_trials.bench import (
    BankOnTrial,
    Bench,
    Factory,
    OneWorkerOnly,
    RuleSeenBroken,
    bank_made_by,
)
from transfer_async.testing.hook_trials.cutting import Cut
from transfer_async.testing.hook_trials.rules import BrokenRule, HookReport

DEEPEST = 40
"""Awaits of a hook at which it is cut off, at most."""

_ALONE = "no worker could be started anew: the factory makes an empty ledger each time"
_DEEPER = "a hook has more than {0} awaits: it was cut off at the first {0}"
_UNSEEN = "balances were not looked at: the factory gives no balance()"
_TURNS = 20


async def verify_hooks(
    factory: Factory, *, seed: int = 0, sequences: int = 100, late: float = 0.0, patience: float = 10.0
) -> HookReport:
    """Do to a bank's hooks what will happen to them in service, and say which rules they break.

    They are called twice, at once, again after a time-out that acted, cancelled at each await, by a new
    worker, and undone without a receipt, twice, and without anything to undo. After each the bank's
    ``held`` is asked. Everything that was held is released again, and the ``balance`` is then what it was.

    Args:
        factory: makes a worker's ``hooks`` (the last places the hold) and ``held(intent_id)``, by name, in a
            mapping or an object; perhaps also a ``balance()`` of all accounts that they move money on, in
            whatever can be compared, an ``order`` to hold for, and an async ``close()``. It may be async, as
            ``held`` and ``balance`` may. It is called again for each worker that is started anew, which finds
            the same ledger. Give it a ledger for tests, on which nobody else moves money meanwhile.
        seed: the same gives the same sequences.
        sequences: how many sequences hypothesis draws; 0 for none.
        late: seconds to wait, once, for holds that arrive when nobody expects them any more.
        patience: seconds that one hook may take.

    Returns:
        The report: ``report.check()`` fails a test.

    Raises:
        ValueError: the factory does not make what is needed.
    """
    run = _Run(factory, patience=patience)
    try:
        await run.start()
        await run.all_trials(sequences=sequences, seed=seed)
        await run.look_again(late)
    finally:
        await run.close()
    return HookReport(
        broken=tuple(run.broken.values()), tried=run.tried, notes=tuple(dict.fromkeys(run.notes)), seed=seed
    )


@define(eq=False)
class _Run:
    """One run of all trials.

    Attributes:
        broken: what was seen, by the rule's name: of each the shortest.
        tried: how many trials there were.
        ended: the trials that broke nothing: in the end nothing may stand for their intents.
    """

    factory: Factory
    patience: float
    broken: dict[str, BrokenRule] = field(factory=dict)
    notes: list[str] = field(factory=list)
    tried: int = 0
    ended: list[Bench] = field(factory=list)
    workers: list[BankOnTrial] = field(factory=list)

    async def start(self) -> BankOnTrial:
        """Start a worker."""
        self.workers.append(await bank_made_by(self.factory))
        if self.workers[-1].balance is None:
            self.notes.append(_UNSEEN)
        return self.workers[-1]

    async def close(self) -> None:
        """Let go what the workers hold open."""
        for worker in self.workers:
            if worker.close is not None and inspect.isawaitable(closing := worker.close()):
                await closing

    async def all_trials(self, *, sequences: int, seed: int) -> None:
        """Make every trial."""
        for title, trial in scenarios.TRIALS.items():
            await self._try(title, trial)
        for title, cut_trial in scenarios.CUT_TRIALS.items():
            for acted in (False, True):
                await self._cut_everywhere(title, cut_trial, acted=acted)
        if sequences:
            await self._draw(count=sequences, seed=seed)

    async def look_again(self, late: float) -> None:
        """Look once more whether anything stands: by now what was cut off has arrived, if it ever does."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await asyncio.sleep(late)
        for bench in self.ended:
            bench.bank = self.workers[0]
            for intent in bench.intents:
                try:
                    await bench.stands_none(intent, rules.TOO_LATE)
                except RuleSeenBroken as seen:
                    self._note(seen.broken)

    async def _try(self, title: str, trial: Callable[[Bench], Coroutine[Any, Any, Any]]) -> object:
        bench = Bench(self.workers[0], title, patience=self.patience, another=self.start)
        self.tried += 1
        try:
            result = await _with_its_balance(bench, trial)
        except RuleSeenBroken as seen:
            self._note(seen.broken)
            return None
        except OneWorkerOnly:
            self.notes.append(_ALONE)
            return None
        self.ended.append(bench)
        return result

    async def _cut_everywhere(self, title: str, trial: scenarios.CutTrial, *, acted: bool) -> None:
        for at in range(1, DEEPEST + 1):
            # A trial that broke a rule does not say whether it was cut: it is not made for later awaits.
            if not await self._try(title, partial(_with, trial, Cut(at, acted))):
                return
        self.notes.append(_DEEPER.format(DEEPEST))

    async def _draw(self, *, count: int, seed: int) -> None:
        async def run(steps: list[sequences.Step]) -> None:
            bench = Bench(self.workers[0], sequences.TITLE, patience=self.patience, another=self.start)
            self.tried += 1
            await _with_its_balance(bench, lambda one: sequences.play(one, steps))
            self.ended.append(bench)

        try:
            seen = await sequences.draw(run, count=count, seed=seed)
        except ModuleNotFoundError:
            self.notes.append(sequences.NEEDED)
            return
        if seen is not None:
            self._note(seen.broken)

    def _note(self, broken: BrokenRule) -> None:
        known = self.broken.get(broken.rule.name)
        if known is None:
            self.broken[broken.rule.name] = broken
            return
        shorter = min(known, broken, key=lambda one: sum(map(len, one.did)))
        self.broken[broken.rule.name] = evolve(shorter, more=known.more + 1)


async def _with_its_balance(bench: Bench, trial: Callable[[Bench], Coroutine[Any, Any, Any]]) -> Any:
    """What the trial gives; it ends with nothing held, so that the accounts have what they had."""
    before = await bench.balance()
    result = await trial(bench)
    await bench.balance_is(before)
    return result


async def _with(trial: scenarios.CutTrial, cut: Cut, bench: Bench) -> bool:
    return await trial(bench, cut)
