"""Level 0: what is not seen by asking a sandbox with a habit."""

import itertools
import json
from typing import Any

import pytest

from tests.faults.servers import Connection, Script, serving
from tests.support import samples
from tests.support.cases import each
from tests.support.loop_time import LoopTime
from transfer_async._cli.probe_http import RawAnswer, Service, Stopped
from transfer_async._cli.probe_run import ReadLimits, _limits, _requests_on_one, proposed, run
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


async def test_a_connection_that_is_lost_without_a_word_took_one_request_less():
    async with Sandbox() as sandbox:
        sandbox.faults.add(StatusAfterProcessing(200), times=2, path=WHO_AM_I_PATH)
        sandbox.faults.add(CloseAfterProcessing(), path=WHO_AM_I_PATH)
        service = Service(base_url=sandbox.base_url, token=sandbox.token, patience=30.0)

        question = service.question("GET", WHO_AM_I_PATH)
        assert await _requests_on_one(service, question, 9) == SeenConnection(asked=9, requests=2)


async def test_a_limit_of_requests_is_no_end_of_the_connection_and_none_of_the_probe(loop_time: LoopTime):
    watch = Watch(loop_time)
    async with Sandbox(sleep=watch.sleep) as sandbox:
        service = service_at(sandbox.base_url, token=sandbox.token, clock=watch.clock)
        sandbox.faults.add(StatusAfterProcessing(200), times=2, path=WHO_AM_I_PATH)
        sandbox.faults.add(Status(429, headers={"Retry-After": "86400"}), path=WHO_AM_I_PATH)

        question = service.question("GET", WHO_AM_I_PATH)
        assert await _requests_on_one(service, question, 9) == SeenConnection(asked=3)


def of(*currencies: object) -> RawAnswer:
    return RawAnswer(status=200, body=json.dumps({"currencies": currencies}).encode())


def currency(code: object, least: object = 1, greatest: object = 2) -> dict[str, object]:
    return {"currency_code": code, "min_amount": least, "max_amount": greatest}


def test_limits_are_exact():
    found = _limits(
        RawAnswer(body=json.dumps({"currencies": [currency("NGN")]}).encode().replace(b"2", b"0.10"))
    )

    assert str(found["NGN"].greatest) == "0.10"


@each(
    "raw",
    [
        RawAnswer(body=b""),
        RawAnswer(body=b"[]"),
        RawAnswer(body=b"{}"),
        of(7),
        of({}),
        of(currency(["NGN"])),
        of(currency("Ada Eze")),
        of(currency("NGN", "1")),
        of(currency("NGN", 1, None)),
        of(currency("NGN", 1, float("inf"))),
        RawAnswer(body=b"[" * 100_000),
    ],
)
def test_what_who_am_i_does_not_show_as_the_specification_does_is_no_limit(raw: RawAnswer):
    assert _limits(raw) == {}


def test_an_idle_connection_is_watched_no_longer_than_wanted():
    assert ReadLimits(idle=5.0).steps == (1.0, 2.0, 4.0, 5.0)
    assert ReadLimits(idle=0.0).steps == ()


# --- a service that is none, or has no time ---------------------------------------------------------


def service_at(url: str, **changes: Any) -> Service:
    return Service(**{"base_url": url, "token": "token", "patience": 30.0, **changes})


async def run_at(url: str, **changes: Any) -> ServiceProfile:
    return await run(service_at(url, **changes), ReadLimits(requests=3, idle=1.0))


def saying(*answers: bytes, closes: bool = False) -> Script:
    """Answers each request of a connection so: the last, over and over."""

    async def script(connection: Connection) -> None:
        for answer in itertools.chain(answers, itertools.repeat(answers[-1])):
            if await connection.request() is None:
                return
            connection.send(answer)
            if closes:
                return

    return script


def answer(status: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    head = "\r\n".join([f"HTTP/{version} {status}", f"Content-Length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


ME = samples.encode(samples.user_json())
GOOD = answer("200 OK", ME)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "no answer came"),
        (answer("401 No", b"{}"), "does not know the token \\(status 401\\)"),
        (answer("200 OK", b'{"message": "Unauthorized"}'), "does not know the token \\(status 200\\)"),
        (answer("404 Not Found", b"<html>"), "who-am-i was answered with 404"),
        (answer("302 Found", b"", "Location: /login"), "who-am-i was answered with 302"),
        (answer("500 Oh", b"{}"), "who-am-i was answered with 500"),
        (answer("200 OK", b"<html>"), "the client cannot read the answer to who-am-i"),
        (answer("503 Busy", b""), "answered with 503 5 times in a row"),
        (answer("429 Slower", b"", "Retry-After: 86400"), "answered with 429: not before 86,400 s"),
    ],
)
async def test_a_service_that_gives_nothing_is_not_asked_on(said: bytes, why: str, loop_time: LoopTime):
    """Else its silence becomes a profile, and a bank tries its code with a sandbox that answers nothing."""
    watch = Watch(loop_time)
    async with serving(saying(said, closes=not said)) as server:
        with pytest.raises(Stopped, match=why):
            await run_at(server.url, clock=watch.clock)

    assert len(server.requests) == (6 if "times in a row" in why else 1)


async def test_an_answer_that_asks_to_wait_is_waited_for(loop_time: LoopTime):
    watch = Watch(loop_time)
    async with Sandbox(sleep=watch.sleep) as sandbox:
        sandbox.faults.add(Status(429, headers={"Retry-After": "7"}), times=2, path=WHO_AM_I_PATH)
        profile = await run_at(sandbox.base_url, token=sandbox.token, clock=watch.clock)

    assert profile.answers["who-am-i"].status == 200
    assert profile.answers["turned-away"].headers["retry-after"] == "7"
    assert watch.seconds == 15.0  # and a second of idleness


@pytest.mark.parametrize(
    ("said", "closes", "seen"),
    [
        (GOOD, False, (None, False)),
        (answer("200 OK", ME, "Connection: close"), True, (1, True)),
        (answer("200 OK", ME, "Connection: close"), False, (1, True)),
        (answer("200 OK", ME, version="1.0"), True, (1, True)),
        (answer("200 OK", ME, version="1.0"), False, (1, True)),
    ],
)
async def test_a_connection_that_is_not_kept_is_not_called_one_that_is_closed_for_its_idleness(
    said: bytes, closes: bool, seen: tuple[int | None, bool], loop_time: LoopTime
):
    """Else the proposal warns of doubts that no client will have."""
    watch = Watch(loop_time)
    async with serving(saying(said, closes=closes)) as server:
        connection = (await run_at(server.url, clock=watch.clock)).connection

    assert (connection.requests, connection.announced) == seen
    assert connection.closed_by is None
    assert "an idle connection" not in str(proposed(ServiceProfile(connection=connection)).notes)


async def test_a_close_that_nobody_announces_is_told_with_what_helps(loop_time: LoopTime):
    watch = Watch(loop_time)
    async with serving(saying(GOOD, closes=True)) as server:
        connection = (await run_at(server.url, clock=watch.clock)).connection

    assert (connection.requests, connection.announced) == (1, False)
    (note,) = proposed(ServiceProfile(connection=connection)).notes
    assert (
        "closed after 1 requests, and no answer says so: an order that is sent just then ends in doubt"
        in note
    )
    assert "force_close=True" in note
