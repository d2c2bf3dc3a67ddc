"""Level 0: properties of a service that the sandboxes with quirks do not cover."""

import itertools
import json
from typing import Any

import pytest

from tests.faults.servers import Connection, Script, serving
from tests.support import samples
from tests.support.cases import each
from tests.support.loop_time import LoopTime
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

from .prober import Watch


@pytest.fixture
def watch(loop_time: LoopTime) -> Watch:
    return Watch(loop_time)


@each(
    ("last", "seen"),
    {
        "lost without a response: it took one request less": (
            CloseAfterProcessing(),
            SeenConnection(asked=9, requests=2),
        ),
        "busy: this limits neither the connection nor the probe": (
            Status(429, headers={"Retry-After": "86400"}),
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
def test_limits_in_another_form_than_the_specification_shows_are_ignored(response: Response):
    assert _currency_limits(response) == {}


def test_an_idle_connection_is_watched_up_to_the_limit():
    assert ReadLimits(idle=5.0).steps == (1.0, 2.0, 4.0, 5.0)
    assert ReadLimits(idle=0.0).steps == ()


# --- a service that is unusable or busy ---------------------------------------------------------------


def service_at(url: str, **changes: Any) -> Service:
    return Service(**{"base_url": url, "token": "token", "timeout": 30.0, **changes})


async def profile_of(url: str, **changes: Any) -> ServiceProfile:
    return await read_service(service_at(url, **changes), ReadLimits(requests=3, idle=1.0))


def responding(*responses: bytes, closes: bool = False) -> Script:
    """Send these responses to the requests of a connection, and repeat the last one."""

    async def script(connection: Connection) -> None:
        for response in itertools.chain(responses, itertools.repeat(responses[-1])):
            if await connection.request() is None:
                return
            connection.send(response)
            if closes:
                return

    return script


def response(status: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    head = "\r\n".join([f"HTTP/{version} {status}", f"Content-Length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


USER = samples.encode(samples.user_json())
GOOD = response("200 OK", USER)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "no response arrived"),
        (response("401 No", b"{}"), "rejected the token \\(status 401\\)"),
        (response("200 OK", b'{"message": "Unauthorized"}'), "rejected the token \\(status 200\\)"),
        (response("404 Not Found", b"<html>"), "responded to who-am-i with 404"),
        (response("302 Found", b"", "Location: /login"), "responded to who-am-i with 302"),
        (response("500 Oh", b"{}"), "responded to who-am-i with 500"),
        (response("200 OK", b"<html>"), "the client cannot read the response to who-am-i"),
        (response("503 Busy", b""), "responded to 5 consecutive requests with 503"),
        (
            response("429 Slower", b"", "Retry-After: 86400"),
            "responded with 429 and a Retry-After of 86,400 s",
        ),
    ],
)
async def test_an_unusable_service_gets_no_further_requests(sent: bytes, why: str, watch: Watch):
    """Without this, its silence becomes a profile, and a bank tests against that."""
    async with serving(responding(sent, closes=not sent)) as server:
        with pytest.raises(Stopped, match=why):
            await profile_of(server.url, clock=watch.clock)

    assert len(server.requests) == (6 if "consecutive" in why else 1)


async def test_the_probe_waits_as_retry_after_asks(watch: Watch):
    async with Sandbox(sleep=watch.sleep) as sandbox:
        sandbox.faults.add(Status(429, headers={"Retry-After": "7"}), times=2, path=WHO_AM_I_PATH)
        profile = await profile_of(sandbox.base_url, token=sandbox.token, clock=watch.clock)

    assert profile.answers["who-am-i"].status == 200
    assert profile.answers["turned-away"].headers["retry-after"] == "7"
    assert watch.seconds == 15.0  # this includes one idle second


@each(
    ("sent", "closes", "seen"),
    [
        (GOOD, False, (None, False)),
        (response("200 OK", USER, "Connection: close"), True, (1, True)),
        (response("200 OK", USER, "Connection: close"), False, (1, True)),
        (response("200 OK", USER, version="1.0"), False, (1, True)),
    ],
)
async def test_an_announced_close_is_not_reported_as_an_idle_timeout(
    sent: bytes, closes: bool, seen: tuple[int | None, bool], watch: Watch
):
    """Without this, the proposal warns of doubts that no client will ever have."""
    async with serving(responding(sent, closes=closes)) as server:
        connection = (await profile_of(server.url, clock=watch.clock)).connection

    assert (connection.requests, connection.announced) == seen
    assert connection.closed_by is None
    assert "an idle connection" not in str(proposed(ServiceProfile(connection=connection)).notes)


async def test_an_unannounced_close_is_noted_with_what_helps(watch: Watch):
    async with serving(responding(GOOD, closes=True)) as server:
        connection = (await profile_of(server.url, clock=watch.clock)).connection

    assert (connection.requests, connection.announced) == (1, False)
    (note,) = proposed(ServiceProfile(connection=connection)).notes
    assert "closes a connection after 1 requests without announcing this: an order sent at that" in note
    assert "force_close=True" in note
