"""Level 0: properties of a service that the sandboxes with quirks do not cover."""

import json
from typing import Any

import pytest

from tests.faults.servers import http, replies, serving, then_closes
from tests.support import samples
from tests.support.cases import each
from transfer_async._cli.probe_http import Response, Service, Stopped
from transfer_async._cli.probe_run import (
    ReadLimits,
    _count_requests,
    _currency_limits,
    proposed,
    read_service,
)
from transfer_async.sandbox import (
    CloseAfterProcessing,
    Sandbox,
    SeenConnection,
    ServiceProfile,
    Status,
    StatusAfterProcessing,
)
from transfer_async.sandbox.service import WHO_AM_I_PATH

BUSY = {"Retry-After": "86400"}


@each(
    ("last", "seen"),
    {
        "lost without a response": (CloseAfterProcessing(), SeenConnection(asked=9, requests=2)),
        "busy: this limits no connection": (
            Status(429, headers=BUSY),
            SeenConnection(asked=3),
        ),
    },
)
async def test_the_requests_of_a_connection_are_counted_until_the_last_one(watch, last, seen):
    async with Sandbox(sleep=watch.sleep) as sandbox:
        service = service_at(sandbox.base_url, token=sandbox.token, clock=watch.clock)
        sandbox.faults.add(StatusAfterProcessing(200), times=2, path=WHO_AM_I_PATH)
        sandbox.faults.add(last, path=WHO_AM_I_PATH)

        assert await _count_requests(service, service.request("GET", WHO_AM_I_PATH), 9) == seen


def who_am_i(*currencies: object) -> Response:
    return Response(status=200, body=json.dumps({"currencies": currencies}).encode())


def currency(code: object, least: object = 1, greatest: object = 2) -> dict[str, object]:
    return {"currency_code": code, "min_amount": least, "max_amount": greatest}


def test_limits_are_exact():
    body = who_am_i(currency("NGN")).body.replace(b"2", b"0.10")

    assert str(_currency_limits(Response(body=body))["NGN"].greatest) == "0.10"


@each(
    "response",
    [
        Response(body=b""),
        Response(body=b"[]"),
        Response(body=b"{}"),
        who_am_i(7),
        who_am_i({}),
        who_am_i(currency(["NGN"])),
        who_am_i(currency("Ada Eze")),
        who_am_i(currency("NGN", "1")),
        who_am_i(currency("NGN", 1, None)),
        who_am_i(currency("NGN", 1, float("inf"))),
        Response(body=b"[" * 100_000),
    ],
)
def test_limits_in_another_form_than_the_specification_shows_are_ignored(response):
    assert _currency_limits(response) == {}


def test_an_idle_connection_is_watched_up_to_the_limit():
    assert ReadLimits(idle=5.0).steps == (1.0, 2.0, 4.0, 5.0)
    assert ReadLimits(idle=0.0).steps == ()


# --- a service that is unusable or busy ---------------------------------------------------------------


def service_at(url: str, **changes: Any) -> Service:
    return Service(**{"base_url": url, "token": "token", "timeout": 30.0, **changes})


async def profile_of(url: str, **changes: Any) -> ServiceProfile:
    return await read_service(service_at(url, **changes), ReadLimits(requests=3, idle=1.0))


USER = samples.encode(samples.user_json())
GOOD = http(200, USER)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "no response arrived"),
        (http(401, b"{}"), "rejected the token \\(status 401\\)"),
        (http(200, b'{"message": "Unauthorized"}'), "rejected the token \\(status 200\\)"),
        (http(404, b"<html>"), "responded to who-am-i with 404"),
        (http(302, headers={"Location": "/login"}), "responded to who-am-i with 302"),
        (http(500, b"{}"), "responded to who-am-i with 500"),
        (http(200, b"<html>"), "the client cannot read the response to who-am-i"),
        (http(503), "responded to 5 consecutive requests with 503"),
        (http(429, headers=BUSY), "429 and a Retry-After of 86,400 s"),
    ],
)
async def test_an_unusable_service_gets_no_further_requests(sent, why, watch):
    """Without this, its silence becomes a profile, and a bank tests against that."""
    async with serving(replies(sent) if sent else then_closes()) as server:
        with pytest.raises(Stopped, match=why):
            await profile_of(server.url, clock=watch.clock)

    assert len(server.requests) == (6 if "consecutive" in why else 1)


async def test_the_probe_waits_as_retry_after_asks(watch):
    async with Sandbox(sleep=watch.sleep) as sandbox:
        sandbox.faults.add(Status(429, headers={"Retry-After": "7"}), times=2, path=WHO_AM_I_PATH)
        profile = await profile_of(sandbox.base_url, token=sandbox.token, clock=watch.clock)

    assert profile.answers["who-am-i"].status == 200
    assert profile.answers["turned-away"].headers["retry-after"] == "7"
    assert watch.seconds == 15.0  # this includes one idle second


CLOSING = http(200, USER, headers={"Connection": "close"})
AFTER_ONE = "closes a connection after 1 requests without announcing this: an order sent at that"


@each(
    ("sent", "closes", "seen", "notes"),
    [
        (GOOD, False, (None, False), []),
        (CLOSING, True, (1, True), []),
        (CLOSING, False, (1, True), []),
        (GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"), False, (1, True), []),
        (GOOD, True, (1, False), [AFTER_ONE, "force_close=True"]),
    ],
)
async def test_only_an_unannounced_close_is_noted_with_what_helps(sent, closes, seen, notes, watch):
    """Without this, the proposal warns of doubts that no client will ever have."""
    async with serving(then_closes(sent) if closes else replies(sent)) as server:
        connection = (await profile_of(server.url, clock=watch.clock)).connection
    noted = proposed(ServiceProfile(connection=connection)).notes

    assert (connection.requests, connection.announced, connection.closed_by) == (*seen, None)
    assert len(noted) == bool(notes)
    assert all(note in noted[0] for note in notes)
