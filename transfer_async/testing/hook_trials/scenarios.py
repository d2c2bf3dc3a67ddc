"""The trials: each does to the hooks what will happen to them, and ends with nothing held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from decimal import localcontext
from typing import Any

import attrs
from attrs import define, frozen

from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async.testing.hook_trials import rules
from transfer_async.testing.hook_trials.harness import KINDS, Bench, Cut, RuleSeenBroken
from transfer_async.testing.hook_trials.rules import HookRule

MANY = 6
"""Calls at once, and so the holds for which the ledger needs room."""

Trial = Callable[[Bench], Coroutine[Any, Any, None]]
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
