"""The bench: a bank's hooks, what is done to them and written down, and a look at what stands afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import define, field, frozen

from transfer_async._models.errors import PreflightFailed
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._pipeline.call import fresh_id
from transfer_async._pipeline.hooks import PreflightHook, checked_hooks, is_hold
from transfer_async.testing.holds import Held, standing_holds
from transfer_async.testing.hook_trials import rules
from transfer_async.testing.hook_trials.cutting import Cut, Cuttable
from transfer_async.testing.hook_trials.rules import BrokenRule, HookRule
from transfer_async.testing.makers import make_intent, make_new_order

T = TypeVar("T")
_FEW = 4  # that are told one by one
_STUBBORN = 20  # times that a hook is cancelled that does not end
Factory = Callable[[], object]


class RuleSeenBroken(Exception):
    """Ends a trial."""

    def __init__(self, broken: BrokenRule) -> None:
        super().__init__(broken.rule.name)
        self.broken = broken


class OneWorkerOnly(Exception):
    """A worker that is started anew finds an empty ledger: the factory makes one of its own each time."""


@frozen(kw_only=True)
class BankOnTrial:
    """What a bank's factory makes: one worker's hooks, and the way to look at its ledger.

    Args:
        hold: the hook that places the hold.
        checks: the other hooks.
        held: which holds stand for an ``intent.id``.
        balance: what the accounts have that the hooks move money on, or None if nobody can say.
        order: what is held for.
        close: lets go what the worker holds open.
    """

    hold: PreflightHook
    checks: tuple[PreflightHook, ...]
    held: Held
    balance: Callable[[], object] | None
    order: NewOrder
    close: Callable[[], Any] | None


async def bank_made_by(factory: Factory) -> BankOnTrial:
    """What ``factory`` makes, awaited if it is async.

    Raises:
        ValueError: it is not what a trial needs; says what is missing.
    """
    made = factory()
    if inspect.isawaitable(made):
        made = await made
    hooks, held, balance, order = (_part(made, name) for name in ("hooks", "held", "balance", "order"))
    if not isinstance(hooks, Sequence) or not callable(held):
        raise ValueError(  # noqa: TRY004 - one kind of error for a factory that will not do
            "the factory must return hooks and held by name: {'hooks': [...], 'held': held}, where "
            "held(intent_id) gives the references of the holds that stand for it"
        )
    if balance is not None and not callable(balance):
        raise ValueError("balance must be a callable, which gives what the accounts have")
    *checks, last = checked_hooks(hooks) or (None,)
    if last is None or not is_hold(last):
        raise ValueError("the last of the hooks must be the one that places the hold: a FundsHold")
    return BankOnTrial(
        hold=last,
        checks=tuple(check for check in checks if check is not None),
        held=held,
        balance=balance,
        order=order or make_new_order(),
        close=_part(made, "close"),
    )


def _part(made: object, name: str) -> Any:
    return made.get(name) if isinstance(made, Mapping) else getattr(made, name, None)


@define(eq=False)
class Bench:
    """One trial's hand on the hooks: each step is written down, and the intents have letters.

    Args:
        bank: the worker at work.
        trial: its title.
        patience: seconds that a hook may take.
        another: starts a worker anew.
    """

    bank: BankOnTrial
    trial: str
    patience: float
    another: Callable[[], Awaitable[BankOnTrial]]
    did: list[str] = field(factory=list)
    intents: list[OrderIntent] = field(factory=list)

    def intent(self, *, like: OrderIntent | None = None, order: NewOrder | None = None) -> OrderIntent:
        """Another wish, with a key of its own, or with that of another intent."""
        key = f"verify-{fresh_id()}" if like is None else like.key
        made = make_intent(order or self.bank.order, key=key)
        self.intents.append(made)
        if like is not None:
            self.note(f"{self.named(made)} has the key of {self.named(like)}")
        return made

    async def new_worker(self) -> None:
        """Go on as a worker that was started anew: with what the factory makes now, and nothing else.

        Raises:
            OneWorkerOnly: the factory makes another ledger each time.
        """
        seen = {intent.id: await self.standing(intent) for intent in self.intents}
        bank = await self.another()
        for intent in self.intents:
            if await standing_holds(bank.held, intent.id) != seen[intent.id]:
                raise OneWorkerOnly
        self.bank = bank
        self.note("the worker is killed, and another is started")

    def note(self, step: str) -> None:
        """Write down what was done."""
        self.did.append(step)

    def named(self, intent: OrderIntent) -> str:
        """The intent's letter."""
        return chr(ord("A") + self.intents.index(intent))

    def broken(self, rule: HookRule, saw: str) -> RuleSeenBroken:
        """What ends the trial."""
        return RuleSeenBroken(BrokenRule(rule=rule, trial=self.trial, did=tuple(self.did), saw=saw))

    # --- what is done -------------------------------------------------------------------------------

    async def place(self, intent: OrderIntent, *, rule: HookRule = rules.ASKED_AGAIN) -> str:
        """Place a hold, which must succeed; ``rule`` is broken where it raises."""
        said = f"place({self.named(intent)})"
        reference = await self._must_end(said, self.bank.hold.before(intent), rule)
        self.note(f"{said} -> {reference!r}")
        if not isinstance(reference, str) or not reference.strip():
            raise self.broken(rules.REFERENCE, f"it returned {reference!r}")
        return reference

    async def asked(self, intent: OrderIntent) -> object:
        """Place a hold, or hear why not."""
        task = asyncio.ensure_future(_run(self.bank.hold.before(intent)))
        said = f"place({self.named(intent)})"
        await self._wait_for(task, said)
        error = task.exception()
        self.note(f"{said}, of a huge amount, {'placed' if error is None else f'raised {_told(error)}'}")
        return task.result() if error is None else error

    async def release(
        self, intent: OrderIntent, reference: str | None, *, rule: HookRule = rules.NOTHING_TO_RELEASE
    ) -> None:
        """Release, which must succeed; ``rule`` is broken where it raises."""
        said = f"release({self.named(intent)}, {reference!r})"
        await self._must_end(said, self.bank.hold.undo(intent, reference), rule)
        self.note(said)

    async def place_cut(self, intent: OrderIntent, cut: Cut) -> bool:
        """Begin to place, and cut it off; whether it came as far as that."""
        was_cut, error = await self._cut_off(
            f"place({self.named(intent)})", self.bank.hold.before(intent), cut
        )
        if isinstance(error, PreflightFailed):
            self.note(f"it raised {type(error).__name__}")
            await self.stands_none(intent, rules.VOUCHED)
        return was_cut

    async def release_cut(self, intent: OrderIntent, reference: str | None, cut: Cut) -> bool:
        """Begin to release, and cut it off; whether it came as far as that."""
        said = f"release({self.named(intent)}, {reference!r})"
        was_cut, _ = await self._cut_off(said, self.bank.hold.undo(intent, reference), cut)
        return was_cut

    async def check_passes(self, check: PreflightHook, intent: OrderIntent) -> str | None:
        """Ask one of the other hooks; that it refuses is an answer, too."""
        said = f"{check.name}.before({self.named(intent)})"
        receipt = await self._must_end(said, _unless_refused(check.before(intent)), rules.CHECKS)
        self.note(said)
        return receipt

    async def check_is_undone(self, check: PreflightHook, intent: OrderIntent, receipt: str | None) -> None:
        """Undo one of the other hooks."""
        said = f"{check.name}.undo({self.named(intent)}, {receipt!r})"
        await self._must_end(said, check.undo(intent, receipt), rules.CHECKS)
        self.note(said)

    async def at_once(self, *places: OrderIntent) -> list[str]:
        """Place holds at once."""
        names = [self.named(intent) for intent in places]
        said = (
            f"place({'), place('.join(names if len(names) < _FEW else [names[0], '...', names[-1]])}) at once"
        )
        work = asyncio.gather(*(self.bank.hold.before(intent) for intent in places), return_exceptions=True)
        found = await self._must_end(said, work, rules.AT_ONCE)
        self.note(f"{said} -> {', '.join(map(repr, found[:_FEW]))}")
        for one in found:
            if not isinstance(one, str):
                raise self.broken(rules.AT_ONCE, f"one of them raised {_told(one)}")
        return [str(one) for one in found]

    async def _must_end(self, said: str, work: Awaitable[T], rule: HookRule) -> T:
        task = asyncio.ensure_future(_run(work))
        await self._wait_for(task, said)
        try:
            return task.result()
        except (Exception, asyncio.CancelledError) as error:
            self.note(said)
            raise self.broken(rule, f"it raised {_told(error)}") from error

    async def _wait_for(self, task: asyncio.Task[Any], said: str) -> None:
        await asyncio.wait({task}, timeout=self.patience)
        if task.done():
            return
        for _ in range(_STUBBORN):  # it may take a cancellation for an answer
            task.cancel()
            await asyncio.wait({task}, timeout=0)
        self.note(said)
        raise self.broken(rules.COMES_BACK, f"it had not ended after {self.patience:g} s")

    async def _cut_off(
        self, said: str, work: Awaitable[object], cut: Cut
    ) -> tuple[bool, BaseException | None]:
        cuttable = Cuttable(work, cut)
        task = asyncio.create_task(_run(cuttable))
        await self._wait_for(task, f"{said}, {cut}")
        self.note(f"{said}, {cut if cuttable.was_cut else 'which ended first'}")
        return cuttable.was_cut, None if task.cancelled() else task.exception()

    # --- what is seen -------------------------------------------------------------------------------

    async def standing(self, intent: OrderIntent) -> tuple[str, ...]:
        """The holds that stand for an intent."""
        return await standing_holds(self.bank.held, intent.id)

    async def balance(self) -> object:
        """What the accounts have now; None if nobody can say."""
        if self.bank.balance is None:
            return None
        found = self.bank.balance()
        if inspect.isawaitable(found):
            found = await found
        return copy.deepcopy(found)  # it may be the ledger's own, which goes on

    async def balance_is(self, before: object) -> None:
        """Look whether the accounts have what they had."""
        found = await self.balance()
        if found != before:
            raise self.broken(rules.PAID_BACK, f"the balance was {before}, and is {found}")

    async def stands_once(self, intent: OrderIntent, rule: HookRule) -> None:
        """Look whether exactly one hold stands."""
        found = await self.standing(intent)
        if not found and rule is not rules.OTHERS and rule is not rules.BY_INTENT:
            rule = rules.HELD
        if len(found) != 1:
            raise self.broken(rule, self.saw(intent, found))

    async def stands_none(self, intent: OrderIntent, rule: HookRule) -> None:
        """Look whether no hold stands."""
        if found := await self.standing(intent):
            raise self.broken(rule, self.saw(intent, found))

    def saw(self, intent: OrderIntent, found: tuple[str, ...]) -> str:
        """In words, what stands for an intent."""
        many = {0: "nothing stands", 1: "one hold stands"}.get(len(found), f"{len(found)} holds stand")
        return f"{many} for {self.named(intent)}" + (f": {', '.join(found)}" if found else "")


async def _run(work: Awaitable[T]) -> T:
    return await work


async def _unless_refused(work: Awaitable[T]) -> T | None:
    with contextlib.suppress(PreflightFailed):
        return await work
    return None


def _told(error: object) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else repr(error)
