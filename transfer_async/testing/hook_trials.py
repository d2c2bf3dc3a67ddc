"""Trials for a bank's hooks. Each trial reproduces a situation from production, then releases its holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from decimal import localcontext
from functools import partial
from typing import Any

import attrs
from attrs import define, evolve, field, frozen

import transfer_async.testing.hook_rules as rules  # A "from" import would load all lazy public names first.
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.testing.assertions import standing_holds
from transfer_async.testing.hook_harness import (
    IN_PROCESS,
    KINDS,
    BankUnderTest,
    Cut,
    Factory,
    HookHarness,
    NoSharedLedger,
    RuleBroken,
    call_in_process,
    make_bank,
    summary,
)
from transfer_async.testing.hook_rules import BrokenRule, HookReport, HookRule

CONCURRENT = 6
"""The number of concurrent calls. The ledger needs funds for this number of holds."""

Trial = Callable[[HookHarness], Coroutine[Any, Any, Any]]
CutTrial = Callable[[Cut, HookHarness], Coroutine[Any, Any, bool]]


async def _placed(harness: HookHarness, *, times: int) -> None:
    intent, reference = harness.intent(), ""
    for _ in range(times):
        reference = await harness.place(intent)
    await harness.has_one_hold(intent, rules.ASKED_AGAIN)
    await _release(harness, intent, reference)


async def _twice_and_released_by_the_first(harness: HookHarness) -> None:
    intent = harness.intent()
    reference = await harness.place(intent)
    await harness.place(intent)
    await _release(harness, intent, reference)


async def _two_workers(harness: HookHarness) -> None:
    intent = harness.intent()
    references = await harness.at_once(*[intent] * CONCURRENT)
    await harness.has_one_hold(intent, rules.AT_ONCE)
    await _release(harness, intent, references[0])


async def _two_intents_of_one_key(harness: HookHarness) -> None:
    first = harness.intent()
    second = harness.intent(like=first)
    first_hold = await harness.place(first)
    second_hold = await harness.place(second, rule=rules.BY_INTENT)
    await harness.has_one_hold(first, rules.BY_INTENT)
    await harness.has_one_hold(second, rules.BY_INTENT)
    await _release(harness, first, first_hold)
    await harness.has_one_hold(second, rules.OTHERS)
    await _release(harness, second, second_hold)


async def _the_key_again_after_a_refusal(harness: HookHarness) -> None:
    first = harness.intent()
    first_hold = await harness.place(first)
    await _release(harness, first, first_hold)
    second = harness.intent(like=first)
    second_hold = await harness.place(second, rule=rules.BY_INTENT)
    await harness.has_one_hold(second, rules.BY_INTENT)
    await harness.release(first, first_hold)  # The client may repeat an undo days later.
    await harness.release(first, None)
    await harness.has_one_hold(second, rules.OTHERS)
    await _release(harness, second, second_hold)


async def _no_receipt(harness: HookHarness) -> None:
    intent = harness.intent()
    await harness.place(intent)
    await harness.release(intent, None, rule=rules.NO_RECEIPT)
    await harness.has_no_hold(intent, rules.NO_RECEIPT)


async def _released_twice(harness: HookHarness) -> None:
    intent = harness.intent()
    reference = await harness.place(intent)
    await _release(harness, intent, reference)
    balance = await harness.bank.money()
    for receipt in (reference, None):
        await harness.release(intent, receipt)
        await harness.balance_is(balance)
    await harness.has_no_hold(intent, rules.NOTHING_TO_RELEASE)


async def _never_placed(harness: HookHarness) -> None:
    other, never = harness.intent(), harness.intent()
    reference = await harness.place(other)
    for _ in range(2):
        await harness.release(never, None)
    await harness.has_no_hold(never, rules.NOTHING_TO_RELEASE)
    await harness.has_one_hold(other, rules.OTHERS)
    await _release(harness, other, reference)


async def _killed_and_placed_again(harness: HookHarness) -> None:
    intent = await _killed(harness)
    reference = await harness.place(intent, rule=rules.NEW_WORKER)
    await harness.has_one_hold(intent, rules.NEW_WORKER)
    await _release(harness, intent, reference)


async def _killed_and_released(harness: HookHarness) -> None:
    intent = await _killed(harness)
    await harness.release(intent, None, rule=rules.NEW_WORKER)
    await harness.has_no_hold(intent, rules.NEW_WORKER)


async def _killed(harness: HookHarness) -> OrderIntent:
    intent = harness.intent()
    await harness.place(intent)
    harness.did.append("the response is lost")
    await harness.new_worker()
    return intent


async def _refused(harness: HookHarness) -> None:
    """Try to hold an amount larger than any balance. If the ledger accepts the amount, release the hold."""
    intent = harness.intent(order=_huge(harness.bank.order))
    await harness.place_a_huge_amount(intent)
    await harness.release(intent, None)
    await harness.has_no_hold(intent, rules.NO_RECEIPT)


async def _many(harness: HookHarness) -> None:
    intents = [harness.intent() for _ in range(CONCURRENT)]
    references = await harness.at_once(*intents)
    for intent in intents:
        await harness.has_one_hold(intent, rules.AT_ONCE)
    for intent, reference in zip(intents, references, strict=True):
        await _release(harness, intent, reference)


async def checks(harness: HookHarness) -> None:
    """Call and then undo the hooks that place no hold."""
    intent, never = harness.intent(), harness.intent()
    for check in harness.bank.checks:
        receipt = None
        for _ in range(2):
            receipt = await harness.check_passes(check, intent)
        for known in (receipt, receipt, None):
            await harness.check_is_undone(check, intent, known)
        await harness.check_is_undone(check, never, None)


TRIALS: dict[str, Trial] = {
    "one hold, placed and released": partial(_placed, times=1),
    "place is called twice for one intent": partial(_placed, times=2),
    "place is called twice, and the first reference is released": _twice_and_released_by_the_first,
    "an undo without a receipt": _no_receipt,
    "an undo that is repeated": _released_twice,
    "an undo of a hold that was never placed": _never_placed,
    f"{CONCURRENT} concurrent calls for one intent": _two_workers,
    "two intents with the same key": _two_intents_of_one_key,
    "the key is used again after a refusal, and the old undo is repeated": _the_key_again_after_a_refusal,
    "a worker is killed during place, then place is called again": _killed_and_placed_again,
    "a worker is killed during place, then the undo is called": _killed_and_released,
    "an amount that exceeds every balance": _refused,
    f"{CONCURRENT} concurrent payments": _many,
    "the other hooks, called and undone twice": checks,
}
"""The trials by title, the simplest first."""


async def _cut_and_released(cut: Cut, harness: HookHarness) -> bool:
    intent = harness.intent()
    was_cut = await harness.place_cut(intent, cut)
    await harness.release(intent, None, rule=rules.CUT_OFF)
    if found := await harness.standing(intent):
        await harness.release(intent, None, rule=rules.CUT_OFF)
        await harness.has_no_hold(intent, rules.CUT_OFF)
        raise harness.broken(rules.TOO_LATE, f"holds appeared after the first release: {', '.join(found)}")
    return was_cut


async def _cut_and_asked_again(cut: Cut, harness: HookHarness) -> bool:
    intent = harness.intent()
    was_cut = await harness.place_cut(intent, cut)
    if intent in harness.refused:
        return was_cut
    reference = await harness.place(intent, rule=rules.CUT_OFF)
    await harness.has_one_hold(intent, rules.CUT_OFF)
    await _release(harness, intent, reference)
    return was_cut


async def _release_cut(cut: Cut, harness: HookHarness) -> bool:
    intent, other = harness.intent(), harness.intent()
    reference, beside = await harness.place(intent), await harness.place(other)
    was_cut = await harness.release_cut(intent, reference, cut)
    await harness.release(intent, reference, rule=rules.CUT_OFF)
    await harness.has_no_hold(intent, rules.CUT_OFF)
    await harness.has_one_hold(other, rules.OTHERS)
    await _release(harness, other, beside)
    return was_cut


CUT_TRIALS: dict[str, CutTrial] = {
    "place is interrupted, then release is called at once": _cut_and_released,
    "place is interrupted, then called again": _cut_and_asked_again,
    "release is interrupted, then called again": _release_cut,
}
"""The trials with an interruption, by title.

Each trial runs once for every await of the hook and every kind of interruption. It returns whether the hook
reached the await.
"""


async def _release(
    harness: HookHarness, intent: OrderIntent, reference: str, *, rule: HookRule = rules.RELEASED
) -> None:
    await harness.release(intent, reference, rule=rule)
    await harness.has_no_hold(intent, rule)


def _huge(order: NewOrder) -> NewOrder:
    with localcontext(prec=100):  # The product is exact, because the bank's order may have rounded amounts.
        huge = order.matcher_amount * 10**15
        return attrs.evolve(order, poster_amount=huge * order.exchange_rate, matcher_amount=huge)


# --- sequences ---------------------------------------------------------------------------------------
# Hypothesis draws random sequences of calls for a few intents. It shortens a sequence that fails.


TITLE = "a random sequence"
NEEDED = "no random sequences were tried: pip install 'transfer_async[testing]'"
_INTENTS = 3
_LONGEST = 8
_DEEPEST = 6


@frozen
class Step:
    """One step of a sequence.

    Args:
        intent: the number of the intent. The last two intents have the same key.
        undo: whether to call ``release`` instead of ``place``.
        cut: the interruption of the call, or None.
        knows: whether ``release`` receives the reference.
    """

    intent: int
    undo: bool
    cut: Cut | None
    knows: bool


@define
class _Model:
    """The minimum and maximum numbers of holds that one intent may have."""

    intent: OrderIntent
    least: int = 0
    most: int = 0
    reference: str | None = None
    is_undone: bool = False


async def play(harness: HookHarness, steps: list[Step]) -> None:
    """Run a sequence, check the holds after each step, and then release them. Skip impossible steps.

    Raises:
        RuleBroken: the number of holds is wrong.
    """
    one, two = harness.intent(), harness.intent()
    models = [_Model(one), _Model(two), _Model(harness.intent(like=two))]
    for step in steps:
        model = models[step.intent]
        if step.undo:
            await _undo(harness, model, step)
        elif not model.is_undone:  # A client places no hold for an intent that was undone.
            await _place(harness, model, step)
        for item in models:
            await _look(harness, item)
    for model in models:
        await harness.release(model.intent, model.reference)
        await harness.has_no_hold(model.intent, rules.RELEASED)


async def _place(harness: HookHarness, model: _Model, step: Step) -> None:
    if step.cut is not None and await harness.place_cut(model.intent, step.cut):
        model.is_undone = model.intent in harness.refused
        model.most = int(not model.is_undone)
        model.least = min(model.least, model.most)
        return
    if step.cut is None:
        model.reference = await harness.place(model.intent)
    model.least = model.most = 1


async def _undo(harness: HookHarness, model: _Model, step: Step) -> None:
    model.is_undone = True
    reference = model.reference if step.knows else None
    if step.cut is not None and await harness.release_cut(model.intent, reference, step.cut):
        model.least = 0
        return
    if step.cut is None:
        await harness.release(model.intent, reference)
    model.least = model.most = 0


async def _look(harness: HookHarness, model: _Model) -> None:
    found = await harness.standing(model.intent)
    if model.least <= len(found) <= model.most:
        return
    if model.is_undone:
        rule = rules.RELEASED
    elif not model.most:
        rule = rules.BY_INTENT
    else:
        rule = rules.ASKED_AGAIN if found else rules.OTHERS
    raise harness.broken(rule, harness.saw(model.intent, found))


Run = Callable[[list[Step]], Coroutine[Any, Any, None]]


async def draw(run: Run, *, count: int, seed: int) -> RuleBroken | None:
    """Draw and run random sequences. Return the error of the shortest sequence that fails, or None.

    Args:
        run: a function that runs one sequence on the caller's event loop.
        count: the number of sequences.
        seed: the seed for the sequences; the same seed produces the same sequences.

    Raises:
        ModuleNotFoundError: hypothesis is not installed.
    """
    import hypothesis  # an optional dependency
    from hypothesis import strategies as st

    loop = asyncio.get_running_loop()
    last: list[RuleBroken] = []

    def run_there(steps: list[Step]) -> None:
        try:
            asyncio.run_coroutine_threadsafe(run(steps), loop).result()
        except RuleBroken as broken:
            last.append(broken)
            raise

    kinds = st.sampled_from(KINDS)
    cut = st.builds(lambda at, kind: Cut(at, *kind), st.integers(1, _DEEPEST), kinds)
    undo = st.sampled_from([False, False, True])  # An undone intent is complete.
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
        return last[-1]  # Hypothesis runs the shortest sequence last.
    return None


# --- running all trials -------------------------------------------------------------------------------


MAX_AWAITS = 40
"""The maximum number of awaits at which a hook is interrupted."""

_ALONE = "a restarted worker was not tested: the factory makes an empty ledger each time"
_DEEPER = "a hook has more than {0} awaits: it was interrupted only at the first {0}"
_NO_AWAIT = (
    "{0} has no await, so it was not interrupted, and no lost response was simulated. If it blocks, it stops "
    "all other calls"
)
_MEMORY = "in-memory state of your modules was not tested: no worker could be started in a new process ({0})"
_NOT_YET = "not tried, because a rule above is broken: {0}"
_STOPPED = "no further trial ran after {0!r}"
_DIRTY = ", which left holds that the hooks could not release, or a wrong balance"
_FOLLOWS = "also broken, most likely by the same fault: {0}"
_UNSEEN = "balances were not checked: the factory has no balance()"
_ITERATIONS = 20


async def verify_hooks(
    factory: Factory, *, seed: int = 0, sequences: int = 100, late: float = 0.0, patience: float = 10.0
) -> HookReport:
    """Test a bank's hooks in situations from production, and report which rules they break.

    The trials call the hooks twice in a row, concurrently, and from a restarted worker. At each ``await``,
    the trials cancel the hook, or raise a timeout error or a connection error in it. The trials call ``undo``
    without a receipt, twice in a row, and with nothing to undo. Each trial then checks the ledger (``held``,
    ``balance``) and releases its holds. If one fault breaks several rules, the report names only the most
    basic rule.

    Args:
        factory: a function that makes the hooks of a worker. The factory returns a mapping or an object with
            these names:

            - ``hooks``: the hooks; the last one places the hold.
            - ``held(intent_id)``: the holds of an intent.
            - ``balance()``, optional: the balances of all accounts that the hooks change, as a number, a
              string, or a mapping or list of these.
            - ``order``, optional: the order whose funds are held.
            - ``close()``, optional: closes the resources of the worker.

            All these functions may be async. The factory is called again for each restarted worker, in a new
            process if the factory can be imported there. All hooks that the factory makes must use the same
            ledger. Use a test ledger that has funds for six holds and that no other program uses.
        seed: the seed for the random sequences; the same seed produces the same sequences.
        sequences: the number of random sequences; 0 for none.
        late: how many seconds to wait, once after all trials, for holds that are placed late.
        patience: the timeout of each call to a hook, in seconds.

    Returns:
        The report, whose method ``check()`` raises an `AssertionError` if a rule is broken.

    Raises:
        ValueError: the factory returns an invalid object, or a balance that is too large for exact
            arithmetic.
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
        broken: the broken rules by name, each with the shortest trial that broke it.
        tried: the number of trials.
        ended: the trials that broke no rule; at the end of the run, their intents must have no hold.
        is_stopped: whether to skip the remaining trials, because their results would be meaningless.
    """

    factory: Factory
    patience: float
    broken: dict[str, BrokenRule] = field(factory=dict)
    notes: list[str] = field(factory=list)
    tried: int = 0
    ended: list[HookHarness] = field(factory=list)
    workers: list[BankUnderTest] = field(factory=list)
    is_stopped: bool = False

    async def start(self) -> BankUnderTest:
        self.workers.append(await make_bank(self.factory))
        if self.workers[-1].balance is None:
            self.notes.append(_UNSEEN)
        return self.workers[-1]

    async def start_anew(self, intents: Sequence[OrderIntent]) -> BankUnderTest:
        """Restart a worker, in a new process if possible.

        Raises:
            NoSharedLedger: the new worker does not find the holds of the intents.
        """
        ids = [intent.id for intent in intents]
        standing = [await standing_holds(self.workers[0].held, item) for item in ids]
        there = partial(call_in_process, self.factory)
        try:
            if await there("held", *ids) == standing:
                hold = FundsHold(partial(there, "before"), partial(there, "undo"), name=IN_PROCESS)
                return evolve(self.workers[0], hold=hold)
            why = "the new worker found a different ledger"
        except Exception as error:  # noqa: BLE001 - the bank's modules may work in one process only
            why = summary(error)
        bank = await self.start()
        if [await standing_holds(bank.held, item) for item in ids] != standing:
            raise NoSharedLedger
        self.notes.append(_MEMORY.format(why))
        return bank

    async def close(self) -> None:
        for worker in self.workers:
            await worker.closed()

    async def all_trials(self, *, sequences: int, seed: int) -> None:
        """Run every trial. Each trial may rely on the rules that earlier trials have checked."""
        for title, trial in TRIALS.items():
            if trial is not checks or self.workers[0].checks:
                await self._try(title, trial)
        if self._may_go_on("cancellations, timeouts, lost responses and sequences"):
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
        """Check once more that no hold is left, because an interrupted ``place`` may place its hold late."""
        await _run_pending_tasks()
        await asyncio.sleep(late)
        await self._find_late_holds()

    async def _find_late_holds(self) -> bool:
        """Report and release holds placed after their trial had ended, and return whether any were found."""
        held_before = len(self.ended)
        for harness in [*self.ended]:
            try:
                await _no_late_holds(harness, self.workers[0])
            except RuleBroken as seen:
                self._note(seen.broken)
                self.ended.remove(harness)
                await self._released(harness)
        return len(self.ended) < held_before

    async def _try(self, title: str, trial: Trial) -> object:
        try:
            return await self._made(title, trial)
        except RuleBroken as seen:
            self._note(seen.broken)
        except NoSharedLedger:
            self.notes.append(_ALONE)
        return None

    async def _made(self, title: str, trial: Trial) -> object:
        """Run a trial and return its result.

        If the trial's holds cannot be released, no further trial runs.
        """
        if self.is_stopped:
            return None
        bank = self.workers[0]
        harness = HookHarness(bank, title, patience=self.patience, another=self.start_anew)
        self.tried += 1
        before = await bank.money()
        try:
            result = await trial(harness)
            await _run_pending_tasks()
            if await bank.money() != before:
                await _no_late_holds(harness, bank)
            await harness.balance_is(before)
        except (RuleBroken, NoSharedLedger) as ended:
            rule = ended.broken.rule if isinstance(ended, RuleBroken) else None
            if rule is rules.PAID_BACK and await self._find_late_holds():
                return await self._made(title, trial)  # A late hold moved the money.
            is_clean = await self._released(harness) and await bank.money() == before
            if not is_clean or rule in (rules.PLACES, rules.COMES_BACK):
                self.is_stopped = True
                self.notes.append(_STOPPED.format(title) + _DIRTY * (not is_clean))
            raise
        self.ended.append(harness)
        return result

    async def _released(self, harness: HookHarness) -> bool:
        """Use the hooks to release the holds of the trial's intents. Return whether no hold is left."""
        bank = self.workers[0]

        async def release() -> None:
            for intent in harness.intents:
                for reference in (*await standing_holds(bank.held, intent.id), None):
                    with contextlib.suppress(Exception):
                        await bank.hold.undo(intent, reference)

        with contextlib.suppress(RuleBroken):
            await harness.wait_for(asyncio.ensure_future(release()), "release")
        return not any([await standing_holds(bank.held, intent.id) for intent in harness.intents])

    async def _cut_everywhere(
        self, title: str, trial: CutTrial, kind: tuple[bool, type[BaseException], bool]
    ) -> None:
        for at in range(1, MAX_AWAITS + 1):
            # If the trial breaks a rule, the result is None, and the trial skips later awaits.
            was_cut = await self._try(title, partial(trial, Cut(at, *kind)))
            if was_cut is False and at == 1:
                self.notes.append(_NO_AWAIT.format(title.split(maxsplit=1)[0]))
            if not was_cut:
                return
        self.notes.append(_DEEPER.format(MAX_AWAITS))

    async def _draw(self, *, count: int, seed: int) -> None:
        async def run(steps: list[Step]) -> None:
            await self._made(TITLE, lambda harness: play(harness, steps))

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
        """Return the report. If one mistake breaks several rules, name only the most basic rule."""
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


async def _run_pending_tasks() -> None:
    for _ in range(_ITERATIONS):
        await asyncio.sleep(0)


async def _no_late_holds(harness: HookHarness, bank: BankUnderTest) -> None:
    harness.bank = bank
    for intent in harness.intents:
        await harness.has_no_hold(intent, rules.TOO_LATE)
