"""Retries and the rate limiter: their settings, the delays, and the retry loop, which uses tenacity.

`classify` decides *whether* a request may be retried; this module decides when and how often.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from attrs import field, frozen

from transfer_async._models.errors import RateLimited, TransferError, Unauthorized
from transfer_async._support.clock import Clock, in_seconds
from transfer_async._support.util import FrozenStruct, at_least, count, instance_of, is_positive, positive

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")

REFUSED = frozenset({*range(400, 408), *range(410, 418), 421, 422, 426, 428, 431, 451})
"""The statuses that count as a refusal by default. See the table in `classify`."""

AT_START = 3
"""The minimum number of retries that a new client's budget allows. This is one call's default maximum."""

CAPACITY = 500
"""The default maximum number of tokens of a `RetryBudget`."""

_SECONDS = re.compile(r"[0-9]+")
_LONGEST = 1e11  # the maximum of a Retry-After in seconds; thousands of digits would become infinity


def _statuses(_: Any, attribute: attrs.Attribute[frozenset[int]], value: frozenset[int]) -> None:
    if not isinstance(value, frozenset) or not all(type(item) is int and 100 <= item < 600 for item in value):
        raise ValueError(f"{attribute.name}: must contain only HTTP statuses from 100 to 599")
    if any(200 <= status <= 299 for status in value):
        raise ValueError(f"{attribute.name}: must not contain a 2xx status, which is never a refusal")


def _as_a_set(value: Iterable[int]) -> frozenset[int]:
    try:
        return frozenset(value)
    except TypeError:  # The validator reports the wrong type.
        return cast("frozenset[int]", value)


@frozen(kw_only=True)
class RetryBudget:
    """The settings of a client's token bucket, which limits retries so that they do not prolong an outage.

    A new client has enough tokens to retry one order ``attempts - 1`` times, but at least three times. A new
    client may spend only a third of its initial tokens on retries after a 429, which allows two retries by
    default. Successful exchanges add tokens. A new client starts with few tokens, because thousands of
    clients that start together could overload the service.

    Args:
        capacity: the maximum number of tokens, even for a new client. The default grows to the number of
            tokens that one order may need; a capacity that you set is never changed.
        cost: the number of tokens that a retry costs.
        throttle_cost: the number of tokens that a retry after a 429 costs. A retry after a 429 costs less
            than other retries, because a 429 shows that the service is responding.
        refund: the number of tokens that a successful exchange adds.
    """

    capacity: int = field(default=CAPACITY, validator=count(0))
    cost: int = field(default=14, validator=count(0))
    throttle_cost: int = field(default=5, validator=count(0))
    refund: int = field(default=1, validator=count(0))


@frozen(kw_only=True)
class RetryPolicy:
    """The retry settings: which statuses are retried, how often, and for how long.

    Args:
        attempts: the maximum number of HTTP attempts of one call, including the first.
        first_delay: the upper bound of the first pause, in seconds. Each pause is random, between zero and
            its upper bound. The upper bound doubles with each pause, until it reaches ``max_delay``.
        max_delay: the longest pause, in seconds, unless the service's ``Retry-After`` is longer.
        deadline: the time limit for all attempts together, in seconds. The time limit starts once the hooks
            have run, just before the first attempt.
        not_processed: the statuses after which an order may be sent again. Your contract with the service
            must guarantee that an order answered with one of these statuses was not processed.
        refused: the statuses that count as a refusal.
        budget: see `RetryBudget`.

    Raises:
        ValueError: a setting is invalid; the message names the setting and the rule.
    """

    attempts: int = field(default=4, validator=count(1))
    first_delay: float = field(default=0.05, converter=in_seconds, validator=at_least(0))
    max_delay: float = field(default=5.0, converter=in_seconds, validator=at_least(0))
    deadline: float = field(default=30.0, converter=in_seconds, validator=at_least(0.001))
    not_processed: frozenset[int] = field(
        default=frozenset({425, 429}), converter=_as_a_set, validator=_statuses
    )
    refused: frozenset[int] = field(default=REFUSED, converter=_as_a_set, validator=_statuses)
    budget: RetryBudget = field(factory=RetryBudget, validator=instance_of(RetryBudget))

    def __attrs_post_init__(self) -> None:
        if self.max_delay < self.first_delay:
            raise ValueError("max_delay: must not be less than first_delay")

    def delay(self, failures: int, *, chance: float, retry_after: float | None = None) -> float:
        """Return the delay in seconds after ``failures`` failures, with exponential backoff and full jitter.

        Args:
            failures: the number of failed attempts, 1 or more.
            chance: a random number from 0 to 1.
            retry_after: the seconds from the service's ``Retry-After`` header. The delay is never shorter
                than ``retry_after``.
        """
        bound = min(self.max_delay, self.first_delay * 2.0 ** min(failures - 1, 60))
        return max(chance * bound, retry_after or 0.0)


class TokenBucket:
    """The tokens left in a client's retry budget."""

    def __init__(self, settings: RetryBudget, *, attempts: int = AT_START + 1) -> None:
        self._settings = settings
        start = max(AT_START, attempts - 1) * settings.cost
        # A capacity that the caller set is a strict limit. Only the default may increase.
        self._capacity = max(start, CAPACITY) if settings.capacity == CAPACITY else settings.capacity
        self.left: int = min(start, self._capacity)
        # These tokens are reserved for retries after lost connections. Retries after a 429 cannot spend them.
        self._kept = max(0, self.left - max(settings.cost, self.left // AT_START))

    def take(self, error: BaseException) -> bool:
        """Take the tokens for a retry after ``error``, or return False if too few are left."""
        if isinstance(error, Unauthorized):  # Each call retries it only once, with a new token.
            return True
        throttled = isinstance(error, RateLimited)
        cost = self._settings.throttle_cost if throttled else self._settings.cost
        if cost > self.left - (self._kept if throttled else 0):
            return False
        self.left -= cost
        return True

    def refund(self) -> None:
        """Add the tokens for a successful exchange, up to the capacity."""
        self.left = min(self._capacity, self.left + self._settings.refund)


class Pause(FrozenStruct, frozen=True):
    """A pause before a retry, and the error that caused the retry."""

    error: TransferError
    seconds: float


async def run_retries(
    attempt: Callable[[], Awaitable[T]],
    first: TransferError,
    *,
    policy: RetryPolicy,
    bucket: TokenBucket,
    clock: Clock,
    until: Callable[[float], bool],
    may: Callable[[TransferError], bool],
    pause: Callable[[Pause], Awaitable[None]],
) -> T:
    """After the failure ``first``, retry as often as the policy allows, and return the result.

    Call `run_retries` only after a failure, because starting tenacity takes an eighth of a request's time.
    ``until`` returns whether an attempt may still begin in a given number of seconds.
    """
    import tenacity

    failed: list[TransferError] = [first]

    async def next_attempt() -> T:
        if failed:
            raise failed.pop()
        return await attempt()

    def wait(state: tenacity.RetryCallState) -> float:
        asked = getattr(_error(state), "retry_after", None)
        return policy.delay(state.attempt_number, chance=clock.chance(), retry_after=asked)

    def stop(state: tenacity.RetryCallState) -> bool:
        return (
            state.attempt_number >= policy.attempts
            or not until(state.upcoming_sleep)
            or not bucket.take(_error(state))
        )

    async def sleep(state: tenacity.RetryCallState) -> None:
        await pause(Pause(error=_error(state), seconds=state.upcoming_sleep))

    retrying = tenacity.AsyncRetrying(
        stop=stop,
        wait=wait,
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, TransferError) and may(error)),
        before_sleep=sleep,
        sleep=_slept,
        reraise=True,
    )
    return await retrying(next_attempt)


async def _slept(_: float) -> None:
    """Do nothing, because ``before_sleep``, which receives the error, has already waited."""


def prepare() -> None:
    """Import tenacity in advance, so that an order's first retry does not wait 9 ms for the import."""
    import tenacity  # noqa: F401


def _error(state: tenacity.RetryCallState) -> TransferError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, TransferError):
        raise TypeError("tenacity must retry only after this package's own errors")
    return error


def retry_after(header: str | None, *, now: datetime) -> float | None:
    """Return the delay in a ``Retry-After`` header, in seconds; None if the header is missing or invalid."""
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), _LONGEST)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds())
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


# --- rate limiter ------------------------------------------------------------------------------------
# A client may limit its requests per second. Orders beyond the limit wait in a queue. The aiolimiter library
# is not sufficient. It cannot predict how long a wait will be, so orders could not be rejected early. It lets
# new orders overtake waiting ones. It always uses the event loop's clock.


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value


@frozen
class Rate:
    """The maximum rate of a client's create-order requests. Every HTTP attempt counts, including retries.

    In any ``w`` seconds the client sends at most ``burst + per_second * w`` requests. The limit applies to
    one client. Divide the service's limit among your clients, processes and machines.

    Args:
        per_second: the average number of requests per second; 0.2 means one every five seconds.
        burst: the number of requests that may be sent at once after a period without requests.
    """

    per_second: float = field(
        converter=_as_float, validator=positive("must be a finite number of orders per second, more than 0")
    )
    burst: int = field(default=1, validator=count(), kw_only=True)

    def __attrs_post_init__(self) -> None:
        try:
            seconds = self.burst / self.per_second
        except OverflowError:
            seconds = float("inf")
        if not is_positive(seconds):  # Sums of such times would be infinite or zero.
            raise ValueError("per_second and burst: burst / per_second must be a finite number of seconds")


class RateLimitQueue:
    """A queue that lets orders proceed in order of arrival, at no more than a given rate."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self._clock = clock
        self._interval = 1.0 / rate.per_second
        self._slack = (rate.burst - 1) * self._interval
        self._due = float("-inf")  # the time when the next request is due at an even rate
        # With an ordered dictionary, any waiter can leave the queue in O(1).
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def ahead(self) -> float:
        """The seconds that a new order would wait if none of the waiting orders were cancelled."""
        return max(0.0, self._due - self._slack + len(self._waiters) * self._interval - self._clock.now())

    async def wait(self, *, within: float | None = None) -> float:
        """Wait at most ``within`` seconds for a slot, take it, and return the waiting time in seconds."""
        began, ahead = self._clock.now(), self.ahead
        if not self._waiters and ahead == 0.0:
            self.take_slot()
            return 0.0
        if within is not None and ahead >= within:
            raise TimeoutError
        async with asyncio.timeout(within):
            await self._wait_in_order()
        return self._clock.now() - began

    def take_slot(self) -> None:
        """Take a slot without waiting. Orders in the queue wait longer as a result."""
        self._due = max(self._due, self._clock.now()) + self._interval

    def return_slot(self) -> None:
        """Return a slot that was taken but not used."""
        self._due -= self._interval

    async def _wait_in_order(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[place] = None
        try:
            if self._first is not place:
                await place  # Only the first waiter needs a timer.
            while (wait := self._due - self._slack - self._clock.now()) > 0.0:
                await self._clock.sleep(wait)
            self.take_slot()
        finally:
            was_first = self._first is place
            del self._waiters[place]
            if was_first and self._waiters and not self._first.done():
                self._first.set_result(None)

    @property
    def _first(self) -> asyncio.Future[None]:
        return next(iter(self._waiters))


class RateLimiter:
    """A client's rate limiter, with one queue before the hooks and one after them.

    Orders wait in ``before_hooks``, before any funds are held. The slow hooks of many orders may finish at
    the same time, so ``before_request`` limits the rate again. Most orders do not wait in ``before_request``.
    """

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self.before_hooks = RateLimitQueue(rate, clock)
        self.before_request = RateLimitQueue(rate, clock)
