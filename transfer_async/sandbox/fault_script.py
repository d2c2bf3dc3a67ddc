"""Which request gets which fault: rules in a queue, and a mix that is drawn from a seed."""

import asyncio
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from weakref import WeakKeyDictionary

from attrs import define

from transfer_async.sandbox.accounts import Chance
from transfer_async.sandbox.exchange import Fault, RequestRecord
from transfer_async.sandbox.service import CREATE_ORDER_PATH


class Waiting:
    """Waiters, each for a condition of its own, looked at whenever something has changed."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._closed = False

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true.

        Raises:
            RuntimeError: the sandbox closed before it was.
        """
        if condition():
            return
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, future))
        await future

    def changed(self) -> None:
        """Wake those whose condition has become true."""
        still = []
        for condition, future in self._waiters:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                still.append((condition, future))
        self._waiters = still

    def close(self) -> None:
        """Fail everyone who still waits."""
        self._closed = True
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(RuntimeError("the sandbox closed before it happened"))
        self._waiters = []


EVERY_PATH = "*"


@define(kw_only=True, eq=False)
class Rule:
    """One entry of the queue; `times` counts down, `None` never ends."""

    fault: Fault
    times: int | None = 1
    probability: float = 1.0
    path: str = CREATE_ORDER_PATH
    username: str | None = None
    amount: Decimal | None = None

    @property
    def needs_body(self) -> bool:
        """Whether the rule looks at the poster or the amount."""
        return self.username is not None or self.amount is not None

    def fits(self, record: RequestRecord) -> bool:
        """Tell whether a request is one that the rule speaks of."""
        if self.path not in (EVERY_PATH, record.path):
            return False
        return record.is_for(username=self.username, amount=self.amount)


class Mix:
    """Faults that each have a share of the requests to a path; one draw for each request, on arrival.

    So the nth request gets the same fault for the same seed, whatever else is scripted.
    """

    def __init__(self, shares: Mapping[Fault, float], *, path: str, seed: int) -> None:
        _check_shares(shares)
        self.shares: Mapping[Fault, float] = MappingProxyType(dict(shares))
        self._path = path
        self._random = Chance(f"mix:{seed}")
        self._drawn: WeakKeyDictionary[RequestRecord, Fault | None] = WeakKeyDictionary()

    def fault_for(self, record: RequestRecord) -> Fault | None:
        """Tell which fault a request has drawn, if any; the same one, however often it is asked."""
        if not self.shares or self._path not in (EVERY_PATH, record.path):
            return None
        if record not in self._drawn:
            self._drawn[record] = self._draw()
        return self._drawn[record]

    def _draw(self) -> Fault | None:
        left = self._random.random()
        for fault, share in self.shares.items():
            left -= share
            if left < 0:
                return fault
        return None


class Faults:
    """The queue of faults, the mix of faults behind it, and the requests that a stall holds.

    A request gets the first rule that fits it, and that its probability, where one is given, allows;
    where there is none, it gets what it has drawn from the mix.
    """

    def __init__(self, *, seed: int, waiting: Waiting) -> None:
        self._seed = seed
        self._mix = Mix({}, path=CREATE_ORDER_PATH, seed=seed)
        self._random = Chance(f"faults:{seed}")
        self._waiting = waiting
        self._rules: list[Rule] = []
        self._held: dict[asyncio.Future[None], RequestRecord] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What is still to be played, in order."""
        return tuple(self._rules)

    def add(
        self,
        fault: Fault,
        *,
        times: int | None = 1,
        probability: float = 1.0,
        path: str = CREATE_ORDER_PATH,
        username: str | None = None,
        amount: Decimal | int | str | None = None,
    ) -> None:
        """Put a fault at the end of the queue.

        Args:
            fault: what goes wrong.
            times: for how many requests; `None` for every one until cleared.
            probability: how likely it is for each request, 0 to 1, drawn from the sandbox's seed.
            path: the path it is meant for, order creation by default; `"*"` for every path that is not
                for steering the sandbox.
            username: only for this poster.
            amount: only for this `poster_amount`, compared as a number.

        Raises:
            ValueError: an argument is out of range, or a fault that is played before the body is read
                is restricted by what the body says.
        """
        wanted = None if amount is None else Decimal(amount)
        rule = Rule(
            fault=fault, times=times, probability=probability, path=path, username=username, amount=wanted
        )
        _check(rule)
        self._rules.append(rule)

    @property
    def shares(self) -> Mapping[Fault, float]:
        """The mix: each fault's share of the requests."""
        return self._mix.shares

    def mix(self, shares: Mapping[Fault, float], *, path: str = CREATE_ORDER_PATH) -> None:
        """Give each fault its share of all requests, from now on, in the place of the mix before.

        `{CloseAfterProcessing(): 0.05, Status(429): 0.1}` spoils 15 of 100 requests, each in one way.
        The nth request from now on draws the same for the same seed; requests that come one after the
        other are so reproducible, and of those that come at once the order of arrival decides.

        Args:
            shares: how likely each fault is, 0 to 1, and no more than 1 together.
            path: the path it is meant for, as in `add`.

        Raises:
            ValueError: a share is out of range, or their sum is.
        """
        self._mix = Mix(shares, path=path, seed=self._seed)

    def clear(self) -> None:
        """Forget every rule, and the mix; requests that stall go on stalling."""
        self._rules.clear()
        self.mix({})

    def release(self) -> int:
        """Let every request that stalls go on; return how many there were. Any thread may say so."""
        held = [future for future in self._held if not future.done()]
        for future in held:
            _release(future)
        return len(held)

    @property
    def stalled(self) -> tuple[RequestRecord, ...]:
        """The requests that stall now."""
        return tuple(record for future, record in self._held.items() if not future.done())

    async def hold(self, record: RequestRecord) -> None:
        """Stall until released."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[future] = record
        self._waiting.changed()
        try:
            await future
        finally:
            del self._held[future]

    def take(self, record: RequestRecord, *, before_body: bool) -> Fault | None:
        """Take the fault for a request, if there is one.

        Asked twice: before the body is read, for faults that do not need it, and after.
        """
        drawn = self._mix.fault_for(record)
        for rule in self._rules:
            if (rule.needs_body and before_body) or not rule.fits(record):
                continue
            if before_body and not rule.fault.before_body:
                return None
            if rule.probability < 1 and self._random.random() >= rule.probability:
                continue
            self._use(rule)
            return rule.fault
        return None if drawn is not None and before_body and not drawn.before_body else drawn

    def _use(self, rule: Rule) -> None:
        if rule.times is None:
            return
        rule.times -= 1
        if rule.times == 0:
            self._rules.remove(rule)


def _release(future: asyncio.Future[None]) -> None:
    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:
        future.set_result(None)
    else:  # a loop that waits hears of nothing that another thread does behind its back
        loop.call_soon_threadsafe(_let_go, future)


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _check_shares(shares: Mapping[Fault, float]) -> None:
    for fault, share in shares.items():
        if not isinstance(fault, Fault):
            raise ValueError(f"{fault!r} is no fault: make one, as in CloseAfterProcessing()")  # noqa: TRY004
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {fault.name} must be from 0 to 1, not {share}")
    if (together := math.fsum(shares.values())) > 1 + 1e-9:  # 0.1 is not a tenth to the last bit
        raise ValueError(f"the shares of all faults must be 1 at most together, not {together:g}")


def _check(rule: Rule) -> None:
    if rule.times is not None and rule.times < 1:
        raise ValueError(f"times must be 1 or more, or None, not {rule.times}")
    if not 0 <= rule.probability <= 1:
        raise ValueError(f"probability must be from 0 to 1, not {rule.probability}")
    if rule.fault.before_body and rule.needs_body:
        raise ValueError(f"{rule.fault.name} plays before the body is read: give no username and no amount")
    if rule.amount is not None and not rule.amount.is_finite():
        raise ValueError(f"amount must be finite, not {rule.amount}")
