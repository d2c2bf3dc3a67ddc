"""The trials: each does to the hooks what will happen to them, and ends with nothing held."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from transfer_async._models.errors import PreflightFailed
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async.testing.hook_trials import rules
from transfer_async.testing.hook_trials.bench import Bench
from transfer_async.testing.hook_trials.cutting import Cut
from transfer_async.testing.hook_trials.rules import HookRule

MANY = 20
"""Intents at once."""

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
    reference, _ = await bench.at_once(intent, intent)
    await bench.stands_once(intent, rules.AT_ONCE)
    await _let_go(bench, intent, reference)


async def _two_intents_of_one_key(bench: Bench) -> None:
    one = bench.intent()
    other = bench.intent(like=one)
    references = await bench.at_once(one, other)
    await bench.stands_once(one, rules.BY_INTENT)
    await bench.stands_once(other, rules.BY_INTENT)
    await _let_go(bench, one, references[0])
    await bench.stands_once(other, rules.OTHERS)
    await _let_go(bench, other, references[1])


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
    balance = await bench.balance()
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
    if isinstance(await bench.asked(intent), PreflightFailed):
        await bench.stands_none(intent, rules.VOUCHED)
    await bench.release(intent, None)
    await bench.stands_none(intent, rules.NO_RECEIPT)


async def _many(bench: Bench) -> None:
    intents = [bench.intent() for _ in range(MANY)]
    references = await bench.at_once(*intents)
    for intent in intents:
        await bench.stands_once(intent, rules.OTHERS)
    for intent, reference in zip(intents, references, strict=True):
        await _let_go(bench, intent, reference)


async def _checks(bench: Bench) -> None:
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
    "two workers ask at once for one intent": _two_workers,
    "two intents of one key at once": _two_intents_of_one_key,
    "the key is used again after a no, and the old undo comes once more": _the_key_again_after_a_no,
    "an undo without a receipt": _no_receipt,
    "an undo that comes twice": _released_twice,
    "an undo of what was never placed": _never_placed,
    "killed between acting and answering, then asked again": _killed_and_asked_again,
    "killed between acting and answering, then undone": _killed_and_released,
    "an amount beyond all means": _refused,
    f"{MANY} payments at once": _many,
    "the other hooks, asked and undone twice": _checks,
}
"""By title."""


async def _cut_and_released(bench: Bench, cut: Cut) -> bool:
    intent = bench.intent()
    was_cut = await bench.place_cut(intent, cut)
    await bench.release(intent, None, rule=rules.CUT_OFF)
    await bench.stands_none(intent, rules.CUT_OFF)
    return was_cut


async def _cut_and_asked_again(bench: Bench, cut: Cut) -> bool:
    intent = bench.intent()
    was_cut = await bench.place_cut(intent, cut)
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
    "a time-out cuts place off, and the release comes at once": _cut_and_released,
    "a time-out cuts place off, and it is asked again": _cut_and_asked_again,
    "a time-out cuts release off, and it is asked again": _release_cut,
}
"""By title; each is made for every await of the hook. They say whether it came that far."""


async def _let_go(
    bench: Bench, intent: OrderIntent, reference: str, *, rule: HookRule = rules.RELEASED
) -> None:
    await bench.release(intent, reference, rule=rule)
    await bench.stands_none(intent, rule)


def _beyond_all_means(order: NewOrder) -> NewOrder:
    huge = 10**15
    return attrs.evolve(
        order, poster_amount=order.poster_amount * huge, matcher_amount=order.matcher_amount * huge
    )
