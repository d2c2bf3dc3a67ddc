"""The harness that calls a bank's hooks, records the calls, and checks the holds in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import inspect
import operator
import pickle
import reprlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from decimal import Decimal, InvalidOperation, getcontext
from typing import Any, Generic, TypeVar

from attrs import define, field, frozen

import transfer_async.testing.hook_rules as rules  # A "from" import would load all lazy public names first.
from transfer_async._models.errors import HoldFailed, PreflightFailed
from transfer_async._models.requests import NewOrder, OrderIntent
from transfer_async._pipeline.call import fresh_id
from transfer_async._pipeline.hooks import PreflightHook, checked_hooks, checked_receipt, is_hold
from transfer_async.testing.assertions import Held, make_intent, make_new_order, standing_holds
from transfer_async.testing.hook_rules import BrokenRule, HookRule

T = TypeVar("T")
_CANCELLATIONS = 20  # the maximum number of cancellations of a hook that does not end
IN_PROCESS = "the hold hook in a separate process"
_STARTS = 60.0  # the maximum seconds in which a process starts
_SHORT = reprlib.Repr()
_SHORT.maxstring = 200
Factory = Callable[[], object]


class RuleBroken(Exception):
    """Raised when a hook breaks a rule, to end the trial."""

    def __init__(self, broken: BrokenRule) -> None:
        super().__init__(broken.rule.name)
        self.broken = broken


class NoSharedLedger(Exception):
    """Raised when a restarted worker finds no holds, because the factory makes a new ledger each time."""


@frozen(kw_only=True)
class BankUnderTest:
    """The result of a bank's factory: the hooks of a worker, and functions that read its ledger.

    Args:
        hold: the hook that places the hold.
        checks: the hooks that place no hold.
        held: a function that returns the holds placed for an ``intent.id``.
        balance: a function that returns the balance of the accounts that the hooks change, or None.
        order: the order whose funds are held.
        close: a function that releases the worker's resources.
    """

    hold: PreflightHook
    checks: tuple[PreflightHook, ...]
    held: Held
    balance: Callable[[], object] | None
    order: NewOrder
    close: Callable[[], Any] | None

    async def money(self) -> Any:
        """Return the balance as exact numbers, or None if the factory provides no ``balance``.

        Raises:
            ValueError: a number has so many digits that arithmetic would not be exact.
        """
        found = None if self.balance is None else self.balance()
        if inspect.isawaitable(found):
            found = await found
        places = max(0, -int(self.order.poster_amount.as_tuple().exponent))
        return _exact(found, places)

    async def closed(self) -> None:
        """Close the worker's resources."""
        if self.close is not None and inspect.isawaitable(closed := self.close()):
            await closed


async def make_bank(factory: Factory) -> BankUnderTest:
    """Call ``factory``, and await the result if it is async.

    Raises:
        ValueError: the factory's result is invalid, or lacks something that the trials need.
    """
    made = factory()
    if inspect.isawaitable(made):
        made = await made
    hooks, held, balance, order = (_part(made, name) for name in ("hooks", "held", "balance", "order"))
    if not isinstance(hooks, Sequence) or not callable(held):
        raise ValueError(  # noqa: TRY004 - every wrong result of a factory is a ValueError
            "the factory must return hooks and held by name: {'hooks': [...], 'held': held}, where "
            "held(intent_id) returns the references of the placed holds"
        )
    if balance is not None and not callable(balance):
        raise ValueError("balance must be a callable that returns the balance of the accounts")
    *checks, last = checked_hooks(hooks) or (None,)
    if last is None or not is_hold(last):
        raise ValueError("the last hook must be the one that places the hold: a FundsHold")
    return BankUnderTest(
        hold=last,
        checks=tuple(check for check in checks if check is not None),
        held=held,
        balance=balance,
        order=order or make_new_order(matcher_amount="99.37", exchange_rate="1499.83"),  # with cents
        close=_part(made, "close"),
    )


def _part(made: object, name: str) -> Any:
    return made.get(name) if isinstance(made, Mapping) else getattr(made, name, None)


def _exact(found: Any, places: int) -> Any:
    if isinstance(found, Mapping):
        return {name: _exact(each, places) for name, each in found.items()}
    if isinstance(found, list | tuple):
        return [_exact(item, places) for item in found]
    try:
        number = Decimal(found)
    except (TypeError, ValueError, InvalidOperation):
        return copy.deepcopy(found)  # Copied, because the ledger may change the object later.
    if not number.is_finite():
        return number
    if number.adjusted() + 1 + places > getcontext().prec:
        raise ValueError(
            f"balance() returned {_SHORT.repr(found)}: too large for exact arithmetic in the "
            f"{getcontext().prec} digits of a Decimal. Use smaller balances in your test ledger"
        )
    return number


async def call_in_process(factory: Factory, method: str, *given: object) -> Any:
    """Call the hold hook in a new process, whose modules have no state from earlier calls.

    Args:
        factory: the bank's factory, which the new process imports by name.
        method: a method of the hook, or ``"held"`` to read the holds.
        given: the arguments of the method.

    Raises:
        ValueError: the factory cannot be imported by name.
        RuntimeError: the bank's code raised an error, which the message contains.
    """
    made, found = inspect.unwrap(factory), None
    module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    with contextlib.suppress(AttributeError):
        found = operator.attrgetter(name)(sys.modules.get(module))
    if found is not made or module == "__main__":
        raise ValueError("the factory cannot be imported by name")
    paths = [*map(str, sys.path)]
    start = f"import sys; sys.path[:] = {paths}; import {__name__} as harness; harness.answer_call()"
    call = pickle.dumps((module, name, method, given))
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", start], input=call, stdout=subprocess.PIPE, check=True
    )
    answer, error = pickle.loads(ended.stdout)  # noqa: S301 - our own process wrote it
    if error is not None:
        raise RuntimeError(error)
    return answer


def answer_call() -> None:  # pragma: no cover - it runs in a process of its own
    """Run a call that `call_in_process` wrote to standard input, and write the result to standard output."""
    module, name, method, given = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own process wrote it
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # Hooks print to stderr.

    async def work() -> object:
        bank = await make_bank(operator.attrgetter(name)(importlib.import_module(module)))
        try:
            if method == "held":
                return [await standing_holds(bank.held, intent_id) for intent_id in given], None
            return await getattr(bank.hold, method)(*given), None
        except Exception as error:  # noqa: BLE001 - the bank's error may not be picklable
            return None, summary(error)
        finally:
            await bank.closed()

    answers.write(pickle.dumps(asyncio.run(work())))


@define(eq=False)
class HookHarness:
    """Calls the hooks for one trial and records each call.

    The record represents each intent by a letter.

    Args:
        bank: the current worker's hooks and ledger.
        trial: the title of the trial.
        patience: the timeout of each call to a hook, in seconds.
        another: a function that starts another worker, and checks that this worker finds the intents' holds.

    Attributes:
        asked: the intents for which ``place`` was called.
        refused: the intents for which ``place`` reported that it placed no hold.
    """

    bank: BankUnderTest
    trial: str
    patience: float
    another: Callable[[Sequence[OrderIntent]], Awaitable[BankUnderTest]]
    did: list[str] = field(factory=list)
    intents: list[OrderIntent] = field(factory=list)
    asked: list[OrderIntent] = field(factory=list)
    refused: list[OrderIntent] = field(factory=list)

    def intent(self, *, like: OrderIntent | None = None, order: NewOrder | None = None) -> OrderIntent:
        """Make a new intent, with a new key or with the key of the intent ``like``."""
        key = f"verify-{fresh_id()}" if like is None else like.key
        made = make_intent(order or self.bank.order, key=key)
        self.intents.append(made)
        if like is not None:
            self.did.append(f"{self.named(made)} has the same key as {self.named(like)}")
        return made

    async def new_worker(self) -> None:
        """Replace the worker with a restarted one.

        Raises:
            NoSharedLedger: the factory makes a new ledger each time.
        """
        self.bank = await self.another(self.intents)
        self.did.append("the worker is killed, and another is started")

    def named(self, intent: OrderIntent) -> str:
        """Return the letter that stands for the intent in the report, such as "A"."""
        return chr(ord("A") + self.intents.index(intent))

    def broken(self, rule: HookRule, saw: str) -> RuleBroken:
        """Return the exception that ends the trial and names the broken rule."""
        return RuleBroken(BrokenRule(rule=rule, trial=self.trial, did=tuple(self.did), saw=saw))

    # --- calls --------------------------------------------------------------------------------------

    async def place(self, intent: OrderIntent, *, rule: HookRule | None = None) -> str:
        """Place a hold, and report ``rule`` as broken if ``place`` raises."""
        call = f"place({self.named(intent)})"
        rule = rule or (rules.ASKED_AGAIN if intent in self.asked else rules.PLACES)
        self.asked.append(intent)
        returned = await self._must_end(call, self.bank.hold.before(intent), rule)
        self.did.append(f"{call} -> {_SHORT.repr(returned)}")
        return self._reference(returned)

    def _reference(self, returned: object, hook: PreflightHook | None = None) -> str:
        try:
            return checked_receipt(hook or self.bank.hold, returned) or ""
        except (TypeError, ValueError, HoldFailed) as error:
            raise self.broken(
                rules.REFERENCE, f"the call returned {_SHORT.repr(returned)}: {error}"
            ) from error

    async def place_a_huge_amount(self, intent: OrderIntent) -> None:
        """Try to place a very large hold, and check that the ledger agrees with the result."""
        call = f"place({self.named(intent)}) with a huge amount"
        task = asyncio.ensure_future(_run(self.bank.hold.before(intent)))
        await self.wait_for(task, call)
        await self._check_ledger(intent, self._note_end(call, task))

    async def _check_ledger(self, intent: OrderIntent, task: asyncio.Task[Any]) -> None:
        """Check that the ledger agrees with the result of an interrupted or refused ``place``."""
        error = _error_of(task)
        if isinstance(error, PreflightFailed):
            self.refused.append(intent)
            await self.has_no_hold(intent, rules.VOUCHED)
        elif error is None:
            self._reference(task.result())
            await self.has_one_hold(intent, rules.RETRIES)
        elif len(found := await self.standing(intent)) > 1:
            raise self.broken(rules.RETRIES, self.saw(intent, found))

    def _note_end(self, call: str, task: asyncio.Task[T]) -> asyncio.Task[T]:
        error = _error_of(task)
        ends = f"returned {_SHORT.repr(task.result())}" if error is None else f"raised {summary(error)}"
        self.did.append(f"{call} {ends}")
        return task

    async def release(
        self, intent: OrderIntent, reference: str | None, *, rule: HookRule = rules.NOTHING_TO_RELEASE
    ) -> None:
        """Release a hold, and report ``rule`` as broken if ``release`` raises."""
        call = f"release({self.named(intent)}, {reference!r})"
        await self._must_end(call, self.bank.hold.undo(intent, reference), rule)
        self.did.append(call)

    async def place_cut(self, intent: OrderIntent, cut: Cut) -> bool:
        """Call ``place`` and interrupt it at ``cut``.

        Return whether the call reached the await at which ``cut`` interrupts it.
        """
        self.asked.append(intent)
        was_cut, task = await self._cut_off(
            f"place({self.named(intent)})", self.bank.hold.before(intent), cut
        )
        await self._check_ledger(intent, task)
        return was_cut

    async def release_cut(self, intent: OrderIntent, reference: str | None, cut: Cut) -> bool:
        """Call ``release`` and interrupt it at ``cut``.

        Return whether the call reached the await at which ``cut`` interrupts it.
        """
        call = f"release({self.named(intent)}, {reference!r})"
        was_cut, task = await self._cut_off(call, self.bank.hold.undo(intent, reference), cut)
        if _error_of(task) is None:
            await self.has_no_hold(intent, rules.RELEASED)
        return was_cut

    async def check_passes(self, check: PreflightHook, intent: OrderIntent) -> str | None:
        """Call a hook that places no hold, and return its receipt. The hook may refuse."""
        call = f"{check.name}.before({self.named(intent)})"
        receipt = await self._must_end(call, _unless_refused(check.before(intent)), rules.CHECKS)
        self.did.append(call)
        return self._reference(receipt, check) or None

    async def check_is_undone(self, check: PreflightHook, intent: OrderIntent, receipt: str | None) -> None:
        """Undo a hook that places no hold."""
        call = f"{check.name}.undo({self.named(intent)}, {receipt!r})"
        await self._must_end(call, check.undo(intent, receipt), rules.CHECKS)
        self.did.append(call)

    async def at_once(self, *places: OrderIntent) -> list[str]:
        """Place a hold for each intent concurrently, and return the references."""
        call = f"place({'), place('.join(map(self.named, places))}) concurrently"
        work = asyncio.gather(*(self.bank.hold.before(intent) for intent in places), return_exceptions=True)
        found = await self._must_end(call, work, rules.AT_ONCE)
        self.did.append(f"{call} -> {', '.join(map(_SHORT.repr, found))}")
        for error in found:
            if isinstance(error, BaseException):
                raise self.broken(rules.AT_ONCE, f"one of the calls raised {summary(error)}")
        return [self._reference(item) for item in found]

    async def _must_end(self, call: str, work: Awaitable[T], rule: HookRule) -> T:
        task = asyncio.ensure_future(_run(work))
        await self.wait_for(task, call)
        try:
            return task.result()
        except (Exception, asyncio.CancelledError) as error:
            self.did.append(call)
            raise self.broken(rule, f"it raised {summary(error)}") from error

    async def wait_for(self, task: asyncio.Task[Any], call: str) -> None:
        """Wait until the call to a hook ends.

        Raises:
            RuleBroken: the call takes too long.
        """
        await asyncio.wait({task}, timeout=self.patience + _STARTS * (self.bank.hold.name == IN_PROCESS))
        if task.done():
            return
        for _ in range(_CANCELLATIONS):  # a hook may swallow a cancellation
            task.cancel()
            await asyncio.wait({task}, timeout=0)
        self.did.append(call)
        raise self.broken(rules.COMES_BACK, f"the call did not end within {self.patience:g} s")

    async def _cut_off(self, call: str, work: Awaitable[T], cut: Cut) -> tuple[bool, asyncio.Task[T]]:
        cuttable = Cuttable(work, cut)
        task = asyncio.create_task(_run(cuttable))
        await asyncio.wait({task}, timeout=self.patience)
        if cuttable.was_cut and not task.done():
            task.cancel()  # The hook is still retrying. Cancel it, as the client's timeout does.
        if not task.done():
            await self.wait_for(task, f"{call}, {cut}")
        self._note_end(f"{call}, {cut}," if cuttable.was_cut else call, task)
        return cuttable.was_cut, task

    # --- checks -------------------------------------------------------------------------------------

    async def standing(self, intent: OrderIntent) -> tuple[str, ...]:
        """Return the holds that are placed for an intent."""
        return await standing_holds(self.bank.held, intent.id)

    async def balance_is(self, before: object) -> None:
        """Check that the balance has not changed."""
        found = await self.bank.money()
        if found != before:
            raise self.broken(rules.PAID_BACK, f"the balance was {before} and is now {found}")

    async def has_one_hold(self, intent: OrderIntent, rule: HookRule) -> None:
        """Check that exactly one hold is placed for the intent."""
        found = await self.standing(intent)
        if not found and rule not in (rules.OTHERS, rules.BY_INTENT, rules.AT_ONCE):
            rule = rules.HELD
        if len(found) != 1:
            raise self.broken(rule, self.saw(intent, found))

    async def has_no_hold(self, intent: OrderIntent, rule: HookRule) -> None:
        """Check that no hold is placed for the intent."""
        if found := await self.standing(intent):
            raise self.broken(rule, self.saw(intent, found))

    def saw(self, intent: OrderIntent, found: tuple[str, ...]) -> str:
        """Describe the holds of an intent."""
        count = {0: "no hold is", 1: "one hold is"}.get(len(found), f"{len(found)} holds are")
        return f"{count} placed for {self.named(intent)}" + (f": {', '.join(found)}" if found else "")


async def _run(work: Awaitable[T]) -> T:
    return await work


async def _unless_refused(work: Awaitable[T]) -> T | None:
    with contextlib.suppress(PreflightFailed):
        return await work
    return None


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def summary(error: BaseException) -> str:
    """Return the type and the message of an error."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


# --- cutting -----------------------------------------------------------------------------------------
# At an await, a coroutine is cancelled, or receives an error instead of the response.


@frozen
class Cut:
    """The ``await`` at which a hook is interrupted, and the effect of the interruption.

    Args:
        at: the number of the interrupted await, counted from 1.
        acted: whether the awaited step still completes, so that only its response is lost. If ``acted`` is
            false, the step does not run.
        error: the exception that the hook receives instead of the response.
        again: whether later awaits at the same place also raise ``error``, so that retries fail.
    """

    at: int
    acted: bool
    error: type[BaseException] = asyncio.CancelledError
    again: bool = False

    def __str__(self) -> str:
        is_cancelled = self.error is asyncio.CancelledError
        how = "cancelled" if is_cancelled else f"{self.error.__name__} instead of the response"
        when = "after" if self.acted else "before"
        return f"{how} at await {self.at}, {when} its step ran{', and at each retry' * self.again}"


KINDS: tuple[tuple[bool, type[BaseException], bool], ...] = tuple(
    (acted, error, again)
    for again in (False, True)
    for error in (asyncio.CancelledError, TimeoutError, ConnectionResetError)
    for acted in (False, True)
    if not (again and error is asyncio.CancelledError)
)
"""The ways to interrupt a hook: the ``acted``, ``error`` and ``again`` of a `Cut`."""

_MAX_LOST = 5  # the maximum number of lost responses in one call, because a hook may retry endlessly


class Cuttable(Generic[T]):
    """An awaitable that runs ``work`` and interrupts it at ``cut``.

    Await a `Cuttable` only once, and in a separate task.

    Attributes:
        awaits: the number of awaits so far.
    """

    def __init__(self, work: Awaitable[T], cut: Cut) -> None:
        self._work, self._cut = work, cut
        self.awaits: int = 0
        self._lost, self._place = 0, _waits_at(None)

    @property
    def was_cut(self) -> bool:
        """Return whether ``work`` reached the await at which ``cut`` interrupts it."""
        return self.awaits >= self._cut.at

    def __await__(self) -> Generator[Any, Any, T]:
        """Run ``work`` step by step, and interrupt it at ``cut``."""
        steps = self._work.__await__()
        answer, error = None, None
        while True:
            try:
                waits_for = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # a generator's value is not typed
            self.awaits += 1
            here = self._is_cut_here()
            answer, error = None, None
            if here and not self._cut.acted:
                if self._cut.error is not asyncio.CancelledError:
                    _give_up(waits_for)
                    error = self._cut.error()
                    continue
                _this_task().cancel()
            try:
                answer = yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - ``work`` must receive every error, even a cancellation
                error = thrown
            if here and self._cut.acted and not isinstance(error, asyncio.CancelledError):
                error = self._cut.error()

    def _is_cut_here(self) -> bool:
        if self.awaits == self._cut.at:
            self._place = _waits_at(self._work)
            return True
        if not (self._cut.again and self.was_cut and self._lost < _MAX_LOST):
            return False
        again = _waits_at(self._work) == self._place != ()
        self._lost += again
        return again


def _waits_at(work: object) -> tuple[tuple[object, int], ...]:
    """Return the positions in the code at which ``work`` waits. The positions are the same in each retry."""
    lines = []
    while work is not None:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None)
        if frame is not None:
            lines.append((frame.f_code, frame.f_lasti))
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None)
    return tuple(lines)


def _give_up(waits_for: object) -> None:
    """Cancel the future that a hook awaits, so that the hook's request is not sent."""
    if asyncio.isfuture(waits_for):
        waits_for._asyncio_future_blocking = False
        waits_for.cancel()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    return task
