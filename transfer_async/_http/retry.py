"""How often and when a request is sent again: the settings, the delays, and the loop, which is tenacity's.

*What* may be sent again is decided by the evidence, in `classify`. This module never sees a status.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from attrs import field, frozen

from transfer_async._models.base import ByValue
from transfer_async._models.errors import RateLimited, TransferError, Unauthorized
from transfer_async._support.clock import Clock, in_seconds
from transfer_async._support.state import Fixed
from transfer_async._support.validators import at_least, count, instance_of

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")

REFUSED = frozenset({*range(400, 408), *range(410, 418), 421, 422, 426, 428, 431, 451})
"""The statuses that say no by default: see the rows of `classify`."""

AT_START = 3
"""How many retries a new client can pay for: those of one call, by default."""

_SECONDS = re.compile(r"[0-9]+")


def _statuses(_: Any, attribute: attrs.Attribute[frozenset[int]], value: frozenset[int]) -> None:
    if not isinstance(value, frozenset) or not all(type(one) is int and 100 <= one <= 599 for one in value):
        raise ValueError(f"{attribute.name}: must hold HTTP statuses, 100 to 599")
    if any(200 <= status <= 299 for status in value):
        raise ValueError(f"{attribute.name}: must not hold a 2xx, which is an answer to be read")


def _as_a_set(value: Iterable[int]) -> frozenset[int]:
    try:
        return frozenset(value)
    except TypeError:  # the validator will name it
        return cast("frozenset[int]", value)


@frozen(kw_only=True, eq=False, repr=False)
class RetryBudget(ByValue):
    """The settings of a token bucket, one a client, so that an outage does not become a storm.

    A new client has tokens for `AT_START` retries, and of these, one ``cost`` is all that may be spent after
    a 429: two retries, by default. More must be earned by exchanges that end well, for thousands of clients
    that send little are a storm, too.

    Args:
        capacity: tokens at most.
        cost: what going again costs.
        throttle_cost: what it costs after a 429, which comes from a service that is alive.
        refund: what an exchange that ends well gives back.
    """

    capacity: int = field(default=500, validator=count(0))
    cost: int = field(default=14, validator=count(0))
    throttle_cost: int = field(default=5, validator=count(0))
    refund: int = field(default=1, validator=count(0))


@frozen(kw_only=True, eq=False, repr=False)
class RetryPolicy(ByValue):
    """What may be sent again, how often, and until when; settings only.

    Args:
        attempts: HTTP attempts of one call at most, the first included.
        first_delay: seconds; the first pause is a random part of it, each further bound doubles.
        max_delay: seconds; the bound grows no further.
        deadline: seconds from just before the mark, for all attempts together; hooks do not count.
        not_processed: statuses that promise, by your contract with the service, that the order
            was not processed: they are sent again.
        refused: statuses that say no.
        budget: see `RetryBudget`.
    """

    attempts: int = field(default=4, validator=count(1))
    first_delay: float = field(default=0.05, converter=in_seconds, validator=at_least(0))
    max_delay: float = field(default=5.0, converter=in_seconds, validator=at_least(0))
    deadline: float = field(default=30.0, converter=in_seconds, validator=at_least(0.001))
    not_processed: frozenset[int] = field(
        default=frozenset({425, 429}),
        converter=_as_a_set,
        validator=_statuses,
    )
    refused: frozenset[int] = field(default=REFUSED, converter=_as_a_set, validator=_statuses)
    budget: RetryBudget = field(factory=RetryBudget, validator=instance_of(RetryBudget))

    def __attrs_post_init__(self) -> None:
        if self.max_delay < self.first_delay:
            raise ValueError("max_delay: must not be less than first_delay")

    def delay(self, failures: int, *, chance: float, retry_after: float | None = None) -> float:
        """Seconds to wait after so many failures: exponential, full jitter, never before ``Retry-After``."""
        bound = min(self.max_delay, self.first_delay * 2.0 ** min(failures - 1, 60))
        return max(chance * bound, retry_after or 0.0)


class TokenBucket:
    """A client's retry budget, as it stands."""

    def __init__(self, settings: RetryBudget) -> None:
        self._settings = settings
        self.left: int = min(AT_START * settings.cost, settings.capacity)
        # Who is told to send less is not to spend what is there for connections that get lost.
        self._kept = max(0, self.left - settings.cost)

    def take(self, error: BaseException) -> bool:
        """Pay for going again after ``error``; false, and nothing paid, if too little is left."""
        if isinstance(error, Unauthorized):  # with another token, once a call: no outage makes a storm of it
            return True
        throttled = isinstance(error, RateLimited)
        cost = self._settings.throttle_cost if throttled else self._settings.cost
        if cost > self.left - (self._kept if throttled else 0):
            return False
        self.left -= cost
        return True

    def refund(self) -> None:
        """An exchange ended well."""
        self.left = min(self._settings.capacity, self.left + self._settings.refund)


class Pause(Fixed, frozen=True):
    """What is about to be waited for: after which error, and how many seconds."""

    error: TransferError
    seconds: float


async def go_again(
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
    """Send again after a first failure, as often as the policy lets us.

    The happy path never comes here: entering tenacity costs as much as an eighth of a request.

    Args:
        attempt: one more attempt.
        first: how the first attempt failed; told to tenacity as if it had seen it.
        policy: how often, and the delays.
        bucket: pays for each further attempt.
        clock: the randomness.
        until: whether there is still time for an attempt in that many seconds.
        may: whether an error allows for another attempt.
        pause: waits, and tells of it.

    Raises:
        TransferError: the last attempt's own.
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
    """The pause is made before, by ``before_sleep``, which knows the error."""


def prepare() -> None:
    """Import tenacity now, 9 ms, and not while an order waits that has to go again."""
    import tenacity  # noqa: F401


def _error(state: tenacity.RetryCallState) -> TransferError:
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, TransferError):
        raise TypeError("tenacity waits only after our own errors")
    return error


def retry_after(header: str | None, *, now: datetime) -> float | None:
    """The seconds that a ``Retry-After`` asks for: a number, or an HTTP date; None if it is neither."""
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds())
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
