"""All requests except create-order: retries, results and errors."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest

from tests.support import bank as banks
from tests.support.answering import Answering, answering
from tests.support.bank import NOON, Time, connects_slowly
from tests.support.cases import each
from tests.support.ids import stable_repr
from transfer_async import (
    ClientClosed,
    ConnectionFailed,
    Expired,
    Outcome,
    OutcomeUnknown,
    RateLimited,
    ServiceFailed,
    TokenUnavailable,
    TransferClient,
    TransferError,
    Unauthorized,
    User,
)
from transfer_async._http.request import checked_method, encoded


@pytest.fixture
async def service():
    async with answering() as made:
        yield made


@pytest.fixture
def time():
    return Time()


@pytest.fixture
async def client(service, time):
    async with TransferClient(service.base_url, "abc", clock=time.clock) as made:
        yield made


async def failure(call, kind=TransferError) -> Any:
    error = await banks.failure(call, kind)
    assert error.order_may_exist is False
    return error


# --- what may be asked --------------------------------------------------------------------------


@each("method", ["get", "Post", "PUT", "patch", "DELETE", "head", "OPTIONS"])
def test_methods_may_be_in_any_case_and_get_and_head_are_safe(method):
    assert checked_method(method, safe=False) == method.upper()
    if method in ("get", "head"):
        assert checked_method(method, safe=True) == method.upper()


NO_METHODS = ["", "FETCH", "GET ", "G\nT", "CONNECT", "TRACE", None, 5]


@each(
    ("method", "safe", "why"),
    [
        *((method, False, "method: must be one of DELETE, GET, HEAD") for method in NO_METHODS),
        *(
            (method, True, "safe: is allowed for GET and HEAD")
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "delete")
        ),
    ],
)
def test_any_other_method_is_refused_and_no_other_may_be_marked_safe(method, safe, why):
    with pytest.raises(ValueError, match=f"^{why}"):
        checked_method(method, safe=safe)


ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@each(
    "json",
    [
        *(object(), {1, object()}, {(1, 2): 3}, "\ud800", Decimal("NaN"), {"amount": Decimal("Infinity")}),
        *([Decimal("-sNaN")], float("nan"), {"a": [float("inf")]}, [{"b": (float("-inf"),)}], ITSELF),
    ],
)
def test_a_value_that_is_not_json_is_refused_by_name(json):
    with pytest.raises(ValueError, match=r"^json: cannot be written as JSON"):
        encoded(json)


@each(
    ("value", "written"),
    [
        ({"amount": Decimal("12345678901234567.89")}, b'{"amount":12345678901234567.89}'),
        ([Decimal("0.10"), 1, "a", True, None], b'[0.10,1,"a",true,null]'),
        ({}, b"{}"),
        (0, b"0"),
    ],
)
def test_json_is_written_exactly(value, written):
    assert encoded(value) == written


@pytest.mark.parametrize(
    "wrong",
    [
        *({"method": "FETCH"}, {"path": "https://evil.com/"}, {"path": "/api/api/v1/order/create"}),
        *({"method": "POST", "safe": True}, {"json": object()}),
        *({"deadline": wrong} for wrong in (5.0, "2024-05-06", NOON.replace(tzinfo=None))),
    ],
    ids=stable_repr,
)
async def test_nothing_is_sent_for_an_invalid_argument(client, service, wrong):
    call = {"method": "GET", "path": "/a", **wrong}

    with pytest.raises(ValueError, match=rf"^({'|'.join(wrong)}): "):
        await client.request(**call)
    assert service.came == []


# --- what is on the wire ------------------------------------------------------------------------

TARGETS = [
    *("/a", "/", "/a/", "/a%2Fb/c%20d", "/a%252Fb", "/a//b", "/Users/Ada%40example.com"),
    *("/q?a=1&b=%20c+d&e", "/q?path=/../x", "/semi;v=1", "/~!$&'()*+,=:@-._", "/%e2%82%ac", "/100%"),
]


async def test_a_path_is_appended_unchanged_to_the_prefix_of_the_base_url(service):
    async with TransferClient(f"{service.base_url}/bank/", "abc") as client:
        for path in TARGETS:
            await client.request("GET", path, safe=True)

    assert [came.target for came in service.came] == [f"/bank{path}" for path in TARGETS]


async def test_a_body_is_sent_as_exact_json(client, service):
    await client.request("POST", "/a", json={"amount": Decimal("12345678901234567.890")})

    assert service.came[0].body == b'{"amount":12345678901234567.890}'
    assert service.came[0].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_request_without_a_body_has_no_body_headers(client, service, method):
    await client.request(method, "/a", safe=True)

    headers = service.came[0].headers
    assert not {"Content-Type", "Content-Length", "Transfer-Encoding"} & set(headers)
    assert service.came[0].body == b""


# --- what an answer becomes ---------------------------------------------------------------------


@attrs.frozen
class Account:
    iban: str
    balance: Decimal
    owner: User


async def test_without_a_model_the_answer_is_exact_json(client, service):
    service.answer(body=b'{"a": 12345678901234567.89, "b": [0.1, 1e2, 7], "c": {"d": null}}')

    assert await client.request("GET", "/a") == {
        "a": Decimal("12345678901234567.89"),
        "b": [Decimal("0.1"), Decimal("1e2"), 7],
        "c": {"d": None},
    }


async def test_an_empty_answer_and_an_answer_to_head_are_none(client, service):
    for status in (200, 201, 202, 204):
        service.answer(status, b"")
        assert await client.request("DELETE", "/a") is None
    for safe in (True, False):
        assert await client.request("HEAD", "/a", safe=safe) is None


@pytest.mark.parametrize(
    ("into", "body"),
    [
        *((None, b"<html>"), (None, b'{"a": '), (User, b""), (list[User], b"[5]"), (object, b'"s3cr3t"')),
        (Account, b'{"iban": 5, "balance": "s3cr3t", "owner": {}}'),
    ],
)
@pytest.mark.parametrize(("method", "kind"), [("GET", ServiceFailed), ("POST", OutcomeUnknown)])
async def test_after_an_unreadable_answer_a_read_fails_and_a_change_is_unknown(
    client, service, method, kind, into, body
):
    service.answer(body=body, headers={"X-Request-Id": "req-7"})
    error = await failure(client.request(method, "/a", into=into, safe=method == "GET"), kind)

    assert (error.status, error.request_id) == (200, "req-7")
    assert (error.body if method == "GET" else error.raw) == body
    assert "s3cr3t" not in f"{error} {error!r} {error.__cause__!r}"
    assert len(service.came) == 1


# --- what is sent again -------------------------------------------------------------------------

CUT = {"body": b'{"a": 1}', "cut": True}
"""A truncated response, although what arrives is valid JSON."""


@pytest.mark.parametrize(
    ("method", "answer", "times"),
    [
        *(("GET", {"status": 503}, 3), ("GET", {"status": 425}, 3), ("GET", {"status": 429}, 2)),
        *(("GET", {"lost": True}, 3), ("GET", CUT, 3)),
        *(("HEAD", {"status": 503}, 3), ("HEAD", {"lost": True}, 3)),  # its response has no body to cut
    ],
    ids=stable_repr,
)
async def test_a_read_is_retried_after_a_temporary_failure(client, service, method, answer, times):
    service.answer(times=times, **answer)
    await client.request(method, "/a", safe=True)

    assert len(service.came) == times + 1


@pytest.mark.parametrize(("answer", "status"), [({"lost": True}, None), (CUT, 200)], ids=stable_repr)
async def test_a_read_that_never_gets_a_complete_answer_fails(client, service, answer, status):
    service.answer(times=4, **answer)
    error = await failure(client.request("GET", "/a", safe=True), ServiceFailed)

    assert error.status == status
    assert isinstance(error.__cause__, Exception)
    assert [attempt.number for attempt in error.attempts] == [1, 2, 3, 4]
    assert len(service.came) == 4


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        *(("PUT", CUT), ("GET", CUT), ("POST", {"status": 409})),
        *(("POST", {"status": status, "headers": {"Retry-After": "0"}}) for status in (408, 503)),
        ("POST", {"status": 302, "headers": {"Location": "/elsewhere"}}),
    ],
    ids=stable_repr,
)
async def test_a_change_with_an_unclear_answer_is_unknown_and_not_retried(client, service, method, answer):
    service.answer(**answer)
    error = await failure(client.request(method, "/a"), OutcomeUnknown)

    assert error.status == answer.get("status", 200)
    assert len(service.came) == 1


@pytest.mark.parametrize(("status", "times"), [(425, 3), (429, 2)])
async def test_a_change_that_was_not_processed_is_retried(client, service, status, times):
    service.answer(status, times=times)

    assert await client.request("POST", "/a", json={"a": 1}) == {"a": 1}
    assert [came.body for came in service.came] == [b'{"a":1}'] * (times + 1)


@pytest.mark.parametrize("safe", [True, False])
async def test_a_request_that_cannot_be_sent_is_retried_and_then_fails(time, closed_port, safe):
    async with TransferClient(f"http://127.0.0.1:{closed_port}", "abc", clock=time.clock) as client:
        error = await failure(client.request("GET", "/a", safe=safe), ConnectionFailed)

    assert len(error.attempts) == 4
    assert isinstance(error.__cause__, OSError)


# --- the token ----------------------------------------------------------------------------------


class Issuer:
    """Issues ``token-1``, ``token-2``, …, and fails from number ``fails_at`` on."""

    def __init__(self, *, fails_at=100):
        self.calls = 0
        self.fails_at = fails_at

    async def __call__(self):
        self.calls += 1
        if self.calls >= self.fails_at:
            raise OSError("s3cr3t")
        return f"token-{self.calls}"


@pytest.mark.parametrize("safe", [True, False])
async def test_after_a_401_the_request_is_sent_once_more_with_a_new_token(service, time, safe):
    service.answer(401)
    async with TransferClient(service.base_url, Issuer(), clock=time.clock) as client:
        await client.request("GET", "/a", safe=safe)

    assert [came.headers["Authorization"] for came in service.came] == ["Bearer token-1", "Bearer token-2"]


@pytest.mark.parametrize(
    ("fails_at", "kinds", "attempts", "calls"),
    [
        pytest.param(100, (Unauthorized,), 2, 2, id="a second 401"),
        pytest.param(1, (TokenUnavailable,), 0, 1, id="no token"),
        pytest.param(2, (TokenUnavailable, Unauthorized), 1, 2, id="no new token"),
    ],
)
async def test_without_a_new_token_a_request_is_not_repeated(service, time, fails_at, kinds, attempts, calls):
    service.answer(401, times=2)
    issuer = Issuer(fails_at=fails_at)
    async with TransferClient(service.base_url, issuer, clock=time.clock) as client:
        error = await failure(client.request("POST", "/a"))

    assert isinstance(error, kinds)
    assert [attempt.status for attempt in error.attempts] == [401] * attempts
    assert len(service.came) == attempts
    assert issuer.calls == calls


# --- closing ------------------------------------------------------------------------------------


async def begun(service: Answering, time: Time, **how: Any) -> tuple[Any, Any, asyncio.Event]:
    """Return a client, the task of its request, and the gate for which the response waits."""
    gate = asyncio.Event()
    service.answer(body=b'{"a": 1}', gate=gate)
    client = TransferClient(service.base_url, "abc", clock=time.clock)
    asked = asyncio.create_task(client.request("GET", "/a", **how))
    await service.arrived.wait()
    return client, asked, gate


async def test_closing_waits_for_a_request_in_flight(service, time):
    client, asked, gate = await begun(service, time)
    closing = asyncio.create_task(client.close())
    await banks.turns(20)
    is_waiting = not closing.done()
    gate.set()

    assert is_waiting
    assert await asked == {"a": 1}
    async with asyncio.timeout(5.0):  # far below the grace period
        await closing


@pytest.mark.parametrize(("safe", "kind"), [(True, (ServiceFailed, ClientClosed)), (False, OutcomeUnknown)])
async def test_a_request_that_outlasts_the_grace_period_is_not_retried(service, time, safe, kind):
    client, asked, gate = await begun(service, time, safe=safe)
    await client.close(timeout=0)
    error = await failure(asked)
    gate.set()

    assert isinstance(error, kind)
    assert len(service.came) == 1


async def test_a_retry_pause_that_outlasts_the_grace_period_ends_the_request(service, time):
    gate = time.on_sleep = banks.Gate()
    service.answer(503)
    client = TransferClient(service.base_url, "abc", clock=time.clock)
    asked = await gate.catches(client.request("GET", "/a", safe=True))
    await client.close(timeout=0)
    gate.open()
    await failure(asked, ClientClosed)

    assert len(service.came) == 1


async def test_concurrent_requests_each_get_their_own_answer(client):
    asked = [{"number": number} for number in range(40)]
    answers = await asyncio.gather(*(client.request("POST", "/a", json=one) for one in asked))

    assert answers == asked


# --- a call's deadline --------------------------------------------------------------------------

NOW_FIVE = NOON + timedelta(seconds=5)


async def test_a_request_past_its_deadline_is_not_sent(client, service):
    expired = await failure(client.request("POST", "/a", json={}, deadline=NOON))
    again = await failure(client.who_am_i(deadline=NOON))

    assert type(expired) is type(again) is Expired
    assert expired.outcome is Outcome.NOT_SENT
    assert service.came == []


@pytest.mark.parametrize(("seconds", "slept"), [(5, [2.0, 2.0]), (4, [2.0]), (2, [])])
async def test_a_retry_pause_that_would_reach_the_deadline_is_not_started(
    client, service, time, seconds, slept
):
    service.answer(429, headers={"Retry-After": "2"}, times=9)
    deadline = NOON + timedelta(seconds=seconds)
    await failure(client.request("POST", "/a", json={}, deadline=deadline), RateLimited)

    assert time.slept == slept


async def test_no_attempt_follows_a_pause_that_outlasted_the_deadline(client, service, time):
    async def oversleep():
        time.pass_(5.0)

    time.on_sleep = oversleep
    service.answer(503)
    failed = await failure(client.request("GET", "/a", safe=True, deadline=NOW_FIVE), ServiceFailed)

    assert len(service.came) == len(failed.attempts) == 1


@pytest.mark.parametrize(("method", "kind"), [("GET", ServiceFailed), ("POST", OutcomeUnknown)])
async def test_a_sent_request_cut_off_by_its_deadline_ends_as_one_without_an_answer(
    client, service, time, loop_time, method, kind
):
    service.answer(gate=asyncio.Event())
    call = asyncio.ensure_future(client.request(method, "/a", safe=method == "GET", deadline=NOW_FIVE))
    await service.arrived.wait()
    time.pass_(5.0)
    await loop_time.pass_(5.0)

    async with asyncio.timeout(10.0):  # far below the timeout that applies without a deadline
        assert type(await failure(call)) is kind
    assert len(service.came) == 1


async def test_a_connection_opened_after_the_deadline_is_not_used(client, service, time):
    connects_slowly(client, time, 5.0)
    service.answer(429, headers={"Retry-After": "1"})
    expired = await failure(client.request("GET", "/a", safe=True, deadline=NOW_FIVE), Expired)

    assert [attempt.outcome for attempt in expired.attempts] == [Outcome.NOT_SENT]
    assert service.came == []


async def test_the_last_attempts_error_is_raised_if_no_time_is_left(client, service, time):
    connects_slowly(client, time, 2.0)
    service.answer(429, headers={"Retry-After": "1"})
    limited = await failure(client.request("GET", "/a", safe=True, deadline=NOW_FIVE), RateLimited)

    assert [attempt.outcome for attempt in limited.attempts] == [Outcome.REFUSED, Outcome.NOT_SENT]
    assert len(service.came) == 1


@pytest.mark.parametrize(("had", "kind"), [((), Expired), (("stale",), Unauthorized)])
async def test_a_token_is_not_awaited_beyond_the_deadline(service, time, loop_time, had, kind):
    gate, tokens = banks.Gate(), [*had]

    async def token():
        if not tokens:
            await gate()
        return tokens.pop()

    service.answer(401)
    async with TransferClient(service.base_url, token, clock=time.clock) as client:
        call = await gate.catches(client.who_am_i(deadline=NOW_FIVE))
        await loop_time.pass_(5.0)

        await failure(call, kind)
