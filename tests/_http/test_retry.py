"""Retries: exact delays, as many as the settings allow, and never after the deadline."""

import asyncio
import email.utils
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bank import NOON, Time, World, failure, new_order
from tests.support.cases import each
from tests.support.ids import stable_repr
from tests.support.strategies import CHARACTERS
from transfer_async import (
    Clock,
    ConnectionFailed,
    RateLimited,
    Refused,
    RetryBudget,
    RetryPolicy,
    ServiceFailed,
    Timeouts,
    TransferClient,
    Unauthorized,
)
from transfer_async._http.retry import Pause, TokenBucket, retry_after, run_retries
from transfer_async._http.urls import CREATE_ORDER, WHO_AM_I
from transfer_async.sandbox import CloseAfterProcessing, GarbageBody, Status, StatusAfterProcessing

# --- settings -----------------------------------------------------------------------------------

REFUSING = {*range(400, 408), *range(410, 418), 421, 422, 426, 428, 431, 451}


DEFAULTS = {
    RetryPolicy: {
        "attempts": 4,
        "first_delay": 0.05,
        "max_delay": 5.0,
        "deadline": 30.0,
        "not_processed": frozenset({425, 429}),
        "refused": frozenset(REFUSING),
        "budget": RetryBudget(),
    },
    RetryBudget: {"capacity": 500, "cost": 14, "throttle_cost": 5, "refund": 1},
    Timeouts: {"connect": 5.0, "sock_connect": 5.0, "sock_read": 20.0, "total": 25.0, "hook": 120.0},
}


@each("kind", list(DEFAULTS))
def test_settings_have_these_defaults_and_are_frozen_and_keyword_only(kind):
    assert attrs.asdict(kind(), recurse=False) == DEFAULTS[kind]
    assert kind() == kind()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(kind(), next(iter(DEFAULTS[kind])), 1)
    with pytest.raises(TypeError):
        kind(1)


def test_durations_may_be_timedeltas():
    seconds = timedelta(seconds=2)
    policy = RetryPolicy(first_delay=timedelta(milliseconds=20), max_delay=seconds, deadline=30 * seconds)
    timeouts = Timeouts(connect=seconds, sock_connect=2, sock_read=3, total=2 * seconds, hook=5)

    assert (policy.first_delay, policy.max_delay, policy.deadline) == (0.02, 2.0, 60.0)
    assert attrs.astuple(timeouts) == (2.0, 2.0, 3.0, 4.0, 5.0)


WHOLE = "must be a whole number, {} or more"
SECONDS = "must be a finite number of seconds, {} or more"
STATUSES = "must contain only HTTP statuses from 100 to 599"


@each(
    ("kind", "wrong", "rule"),
    [
        *[(RetryPolicy, {"attempts": value}, WHOLE.format(1)) for value in (0, -1, 1.0, True, "4", None)],
        *[
            (RetryPolicy, {name: value}, SECONDS.format("0"))
            for name in ("first_delay", "max_delay")
            for value in (-0.1, float("nan"), float("inf"), "1", None, True, timedelta(seconds=-1))
        ],
        *[
            (RetryPolicy, {"deadline": value}, SECONDS.format("0.001"))
            for value in (0, -1, float("inf"), "30", 10**400)
        ],
        *[
            (RetryPolicy, {name: value}, STATUSES)
            for name in ("not_processed", "refused")
            for value in ({99}, {600}, {"429"}, {429.0}, {True}, 429, None, [[429]])
        ],
        *[
            (RetryPolicy, {name: {200}}, "must not contain a 2xx status, which is never a refusal")
            for name in ("not_processed", "refused")
        ],
        *[
            (RetryPolicy, {"budget": value}, "must be a RetryBudget")
            for value in (None, 500, {"capacity": 500})
        ],
        (RetryPolicy, {"max_delay": 1, "first_delay": 2}, "must not be less than first_delay"),
        *[
            (RetryBudget, {name: value}, WHOLE.format(0))
            for name in DEFAULTS[RetryBudget]
            for value in (-1, 0.5, True, "5", None)
        ],
        *[
            (Timeouts, {name: value}, "must be more than 0 seconds, and finite")
            for name in DEFAULTS[Timeouts]
            for value in (
                *(0, -1, float("nan"), float("inf"), True, "5", None),
                *(timedelta(0), timedelta(seconds=-1)),
            )
        ],
    ],
)
def test_an_invalid_setting_is_refused_by_name_and_rule(kind, wrong, rule):
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: {rule}$"):
        kind(**wrong)


@each("name", ["not_processed", "refused"])
def test_any_http_status_but_a_success_may_be_configured(name):
    statuses = frozenset({100, 199, 300, 599})

    assert getattr(RetryPolicy(**{name: statuses}), name) == statuses
    for success in (200, 299):
        with pytest.raises(ValueError, match=f"^{name}: must not contain a 2xx status"):
            RetryPolicy(**{name: {success}})


# --- one delay ----------------------------------------------------------------------------------

CHANCES = st.floats(0, 1, exclude_max=True)
POLICIES = st.tuples(st.floats(0, 10), st.floats(0, 10)).map(
    lambda two: RetryPolicy(first_delay=min(two), max_delay=max(two))
)


@given(POLICIES, st.integers(1, 200), CHANCES)
def test_a_delay_is_a_random_part_of_a_bound_that_doubles_up_to_the_maximum(policy, failures, chance):
    delay = policy.delay(failures, chance=chance)

    assert 0 <= delay <= min(policy.max_delay, policy.first_delay * 2.0 ** (failures - 1))


@given(POLICIES, st.integers(1, 200), CHANCES, st.floats(0, 1e6))
def test_a_delay_is_never_shorter_than_retry_after(policy, failures, chance, asked):
    delay = policy.delay(failures, chance=chance, retry_after=asked)

    assert delay == max(asked, policy.delay(failures, chance=chance))


# --- Retry-After --------------------------------------------------------------------------------

NOW = datetime(1994, 11, 6, 8, 49, 7, tzinfo=UTC)
DATES = ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
INVALID = [
    *(None, "", " ", "soon", "-1", "+5", "1.5", "1e3", "0x10", "5 seconds", "٣", "NaN", "inf"),
    *("Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT", "1994-11-06T08:49:37Z"),
    *("Sun, 06 Nov 1994", ", ,"),
]


@each(
    ("header", "asked"),
    [
        *(("0", 0.0), ("7", 7.0), (" 120 ", 120.0), ("007", 7.0)),
        *(("9999999999", 9999999999.0), ("9" * 5000, 1e11)),  # huge, but finite
        *((date, 30.0) for date in DATES),
        *((header, None) for header in INVALID),
    ],
)
def test_retry_after_is_seconds_or_a_date_in_any_http_form_and_ignored_if_it_is_invalid(header, asked):
    assert retry_after(header, now=NOW) == asked


@given(
    st.text(CHARACTERS, max_size=40)
    | st.from_regex(r"\w{3}, \d{1,3}[ -]\w{3}[ -]\d{1,6} \d{1,3}:\d\d:\d\d [+-]?\w{1,6}", alphabet=CHARACTERS)
)
def test_any_retry_after_header_gives_none_or_a_bounded_delay(header):
    asked = retry_after(header, now=NOW)

    assert asked is None or 0 <= asked < 1e12


@given(st.integers(0, 250_000_000_000))
def test_a_written_date_is_read_back(stamp):
    date = datetime.fromtimestamp(stamp, UTC)
    header = email.utils.format_datetime(date, usegmt=True)

    assert retry_after(header, now=NOW) == max(0.0, (date - NOW).total_seconds())


# --- the token bucket ---------------------------------------------------------------------------

LIMITED, LOST = RateLimited(status=429), ConnectionFailed("no byte left")


def earned():
    """Return a full retry budget, as after many successful requests."""
    bucket = TokenBucket(RetryBudget())
    for _ in range(500):
        bucket.refund()
    return bucket


def test_a_full_bucket_pays_for_35_retries_and_a_429_or_a_new_bearer_token_costs_less():
    bucket = earned()

    assert [bucket.take(Unauthorized(status=401)), bucket.left] == [True, 500]
    assert [bucket.take(LIMITED), bucket.left] == [True, 500 - 5]
    assert [bucket.take(LOST) for _ in range(37)] == [True] * 35 + [False] * 2
    assert bucket.left == 500 - 5 - 35 * 14


@given(st.lists(st.sampled_from(["lost", "limited", "refund"])), st.integers(0, 60))
def test_a_bucket_stays_within_its_bounds(steps, capacity):
    bucket = TokenBucket(RetryBudget(capacity=capacity))
    for step in steps:
        if step == "refund":
            bucket.refund()
        else:
            bucket.take(LOST if step == "lost" else LIMITED)

        assert 0 <= bucket.left <= capacity


@each(
    ("attempts", "settings", "left"),
    [
        *((1, {}, 42), (4, {}, 42), (5, {}, 56), (37, {}, 504), (40, {}, 546), (40, {"cost": 20}, 780)),
        *((40, {"capacity": 100}, 100), (40, {"capacity": 0}, 0), (40, {"capacity": 600}, 546)),
    ],
)
def test_a_configured_capacity_is_a_bound_and_the_default_is_not(attempts, settings, left):
    bucket = TokenBucket(RetryBudget(**settings), attempts=attempts)
    before = bucket.left
    bucket.take(LOST)
    for _ in range(1_000):
        bucket.refund()

    assert before == left
    assert bucket.left == max(left, settings.get("capacity", 500))


def test_a_new_client_may_spend_a_third_of_its_budget_after_429():
    bucket = TokenBucket(RetryBudget(), attempts=40)

    assert sum(bucket.take(LIMITED) for _ in range(100)) == 546 // 3 // 5
    assert sum(bucket.take(LOST) for _ in range(100)) == (546 - 180) // 14


# --- the loop -----------------------------------------------------------------------------------


class Loop:
    """One run of the retry loop. Each entry of ``script`` is raised if it is an error, else returned."""

    def __init__(self, *script, **settings):
        self.script = list(script)
        self.policy = RetryPolicy(**settings)
        self.bucket = TokenBucket(self.policy.budget)
        self.chances = iter([0.5, 0.25, 0.75, 0.125])
        self.pauses = []

    async def attempt(self):
        one = self.script.pop(0)
        if isinstance(one, BaseException):
            raise one
        return one

    async def pause(self, pause: Pause):
        self.pauses.append((pause.error, pause.seconds))

    async def run(self, first):
        return await run_retries(
            self.attempt,
            first,
            policy=self.policy,
            bucket=self.bucket,
            clock=Clock(chance=lambda: next(self.chances)),
            until=lambda ahead: ahead < 10.0,
            may=lambda error: type(error) is not Refused,
            pause=self.pause,
        )


async def test_each_pause_matches_the_policy_and_reports_its_cause():
    first, second, third = errors = [ConnectionFailed(f"lost {number}") for number in range(3)]
    loop = Loop(second, third, "answer")

    assert await loop.run(first) == "answer"
    assert loop.pauses == [
        (error, pytest.approx(wait)) for error, wait in zip(errors, [0.025, 0.025, 0.15], strict=True)
    ]


async def test_the_last_error_itself_is_raised():
    first, *_, last = errors = [ConnectionFailed(f"lost {number}") for number in range(4)]
    loop = Loop(*errors[1:])
    loop.bucket = earned()  # the retry policy ends the loop, not the budget

    assert await failure(loop.run(first), ConnectionFailed) is last
    assert len(loop.pauses) == 3


@each("error", [Refused(status=422), asyncio.CancelledError(), ZeroDivisionError()])
async def test_an_error_that_is_not_retryable_ends_the_loop_at_once(error):
    loop = Loop(error, "never")
    with pytest.raises(type(error)) as caught:
        await loop.run(LOST)

    assert caught.value is error
    assert loop.script == ["never"]


@each(
    ("first", "settings"),
    {
        "the last attempt": (LOST, {"attempts": 1}),
        "an empty bucket": (LOST, {"budget": RetryBudget(capacity=13)}),
        "a pause past the time left": (RateLimited(status=429, retry_after=10.0), {}),
    },
)
async def test_a_loop_that_may_not_retry_raises_the_original_error_and_is_not_charged(first, settings):
    loop = Loop("never", **settings)
    left = loop.bucket.left

    assert await failure(loop.run(first)) is first
    assert (loop.script, loop.pauses, loop.bucket.left) == (["never"], [], left)


# --- through a client ---------------------------------------------------------------------------


IN_TWO_SECONDS = NOON + timedelta(seconds=2)


async def created(client):
    await client.create_order(new_order())


async def read(client):
    await client.who_am_i()


@pytest.mark.parametrize(
    ("call", "status", "path", "headers", "pauses"),
    [
        (created, 425, CREATE_ORDER, {}, [0.025, 0.025, 0.15]),
        (created, 429, CREATE_ORDER, {"Retry-After": "2"}, [2.0, 2.0]),
        (read, 502, WHO_AM_I, {}, [0.025, 0.025, 0.15]),
        (read, 503, WHO_AM_I, {"Retry-After": f"{IN_TWO_SECONDS:%a, %d %b %Y %H:%M:%S} GMT"}, [2.0, 0.025]),
    ],
)
async def test_orders_and_reads_wait_exactly_as_the_policy_or_retry_after_says(
    world: World, call, status, path, headers, pauses
):
    world.time.chances = [0.5, 0.25, 0.75]
    world.sandbox.faults.add(Status(status, headers=headers), times=len(pauses), path=path)
    async with world.client() as client:
        await call(client)

    assert world.time.slept == [pytest.approx(pause) for pause in pauses]


@pytest.mark.parametrize(
    ("call", "status", "path", "kind"),
    [(created, 429, CREATE_ORDER, RateLimited), (read, 503, WHO_AM_I, ServiceFailed)],
)
async def test_the_deadline_covers_all_attempts_and_no_pause_past_it_is_started(
    world: World, call, status, path, kind
):
    world.sandbox.faults.add(Status(status, headers={"Retry-After": "12"}), times=4, path=path)
    async with world.client() as client:
        error = await failure(call(client), kind)

    assert world.time.slept == [12.0, 12.0]
    assert [attempt.status for attempt in error.attempts] == [status] * 3


@pytest.mark.parametrize("attempts", [1, 5, 40])
async def test_a_new_client_can_pay_for_all_retries_of_one_order(closed_port: int, attempts: int):
    """Without this, a bank that allows 40 attempts gives up after four."""
    policy, address = RetryPolicy(attempts=attempts, max_delay=0.05), f"http://127.0.0.1:{closed_port}"
    async with TransferClient(address, "abc", retry=policy, clock=Time().clock) as client:
        refused = await failure(client.create_order(new_order(), held="h-1"), ConnectionFailed)

    assert len(refused.attempts) == attempts


async def test_an_outage_empties_the_budget_for_all_calls_of_the_client(world: World):
    world.sandbox.faults.add(Status(503), times=None, path=WHO_AM_I)
    async with world.client(retry=RetryPolicy(budget=RetryBudget(capacity=2 * 14))) as client:
        errors = [await failure(client.who_am_i(), ServiceFailed) for _ in range(4)]

    assert [len(error.attempts) for error in errors] == [3, 1, 1, 1]


@pytest.mark.parametrize(
    "fault",
    [
        *(Status(429), Status(425), Status(422), Status(401), Status(503), Status(302)),
        *(StatusAfterProcessing(500), CloseAfterProcessing(), GarbageBody()),
    ],
    ids=stable_repr,
)
async def test_no_caller_ever_sees_a_tenacity_type(world: World, fault):
    world.sandbox.faults.add(fault, times=None, path="*")
    async with world.client() as client:
        for call in (created, read):
            error, seen = await failure(call(client)), []
            while error is not None and error not in seen:
                seen.append(error)
                error = error.__cause__ or error.__context__

            assert [one for one in seen if type(one).__module__.startswith("tenacity")] == []
