"""Sequences of what may happen to a few intents: drawn by hypothesis from a seed, shortened if one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from attrs import define, frozen

from transfer_async._models.requests import OrderIntent
from transfer_async.testing.hook_trials import rules
from transfer_async.testing.hook_trials.bench import Bench, RuleSeenBroken
from transfer_async.testing.hook_trials.cutting import Cut

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
        for each in models:
            await _look(bench, each)
    for model in models:
        await bench.release(model.intent, model.reference)
        await bench.stands_none(model.intent, rules.RELEASED)


async def _place(bench: Bench, model: _Model, step: Step) -> None:
    if step.cut is not None and await bench.place_cut(model.intent, step.cut):
        model.most = 1
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

    cut = st.builds(Cut, st.integers(1, _DEEPEST), st.booleans())
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
