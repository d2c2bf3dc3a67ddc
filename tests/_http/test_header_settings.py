"""The headers that a bank adds to its client's requests, and the request id of each order."""

from contextlib import suppress
from typing import Any

import pytest
from aioresponses import aioresponses

from tests.faults.servers import Connection, Received, Server, http, order_reply, serving, then_closes
from tests.support import samples
from tests.support.bank import World, failure, new_order
from tests.support.cases import each
from transfer_async import (
    JournalFailed,
    MemoryJournal,
    OrderCreated,
    OrderInDoubt,
    OutcomeUnknown,
    RetryPolicy,
    TransferClient,
    TransferError,
)
from transfer_async._http.urls import CREATE_ORDER
from transfer_async._models.events import AttemptFailed, AttemptStarted, Claimed
from transfer_async.journal import transitions
from transfer_async.sandbox import Status
from transfer_async.testing import FakeClient

BASE = "https://bank.example"
NAME = "X-Request-Id"
QUICK = RetryPolicy(attempts=3, first_delay=0.0, max_delay=0.0)


def client_to(server: Server, **settings: Any) -> TransferClient:
    return TransferClient(server.url, "abc", **{"request_id_header": NAME, "retry": QUICK, **settings})


def sent_ids(server: Server) -> list[str | None]:
    return [request.headers.get(NAME.lower()) for request in server.requests]


async def anything(connection: Connection) -> None:
    """Answer a create-order request with its own order, and any other request with an account."""
    while request := await connection.request():
        connection.send(order_reply(request) if request.body else http(200, b'{"id": "usr-1"}'))


async def pay(client: TransferClient, key: str = "k") -> None:
    await client.create_order(new_order(), key=key, held="hold-1")


# --- the request id -----------------------------------------------------------------------------


async def test_an_order_and_its_retries_carry_the_attempt_id_that_its_events_and_the_history_have():
    events: list[Any] = []

    async def script(connection: Connection) -> None:
        while request := await connection.request():
            refused = len(connection.server.requests) in (1, 2)
            connection.send(http(429, b"{}") if refused else order_reply(request))

    async with serving(script) as server, client_to(server, observers=[events.append]) as client:
        await pay(client)
        (mark,) = [step.attempt for step in await client.history("k") if step.move == "mark"]
        claimed, *others = events
        await pay(client, "another")

    assert isinstance(claimed, Claimed)
    assert claimed.attempt_id is None
    assert {type(event) for event in others} >= {AttemptStarted, AttemptFailed, OrderCreated}
    assert {event.attempt_id for event in others} == {mark}
    *of_the_first, of_another = sent_ids(server)
    assert of_the_first == [mark] * 3
    assert of_another not in (mark, None)


async def test_an_order_without_a_response_can_be_asked_about_by_its_id():
    journal, events, asked = MemoryJournal(), [], []

    async def resolve(_: Any, error: OutcomeUnknown) -> None:
        asked.append(error.attempt_id)

    settings = {"journal": journal, "resolve": resolve, "observers": [events.append]}
    async with serving(then_closes()) as server, client_to(server, **settings) as client:
        error = await failure(pay(client), OutcomeUnknown)
        again = await failure(pay(client), OutcomeUnknown)
        (doubt,) = await client.in_doubt()

    (event,) = [event for event in events if isinstance(event, OrderInDoubt)]
    (sent,) = sent_ids(server)
    assert sent
    assert {error.attempt_id, again.attempt_id, doubt.attempt_id, event.attempt_id, *asked} == {sent}


async def test_the_doubt_of_a_dead_worker_is_published_with_its_attempt_id(world: World):
    await world.abandoned(transitions.Create)
    await world.recover()

    (event,) = world.events_of(OrderInDoubt)
    assert event.attempt_id == (await world.entry()).attempt


async def test_an_answer_that_cannot_be_recorded_raises_with_its_attempt_id(world: World):
    world.journal.fail_at = 3
    error = await world.fails(JournalFailed)

    assert error.attempt_id == (await world.entry()).attempt


async def test_an_error_before_the_mark_has_no_attempt_id(world: World):
    error = await world.fails(Exception, held=None, hooks=())

    assert error.attempt_id is None


async def test_the_id_is_sent_with_a_mocked_service(mocked_service: aioresponses):
    sent = new_order()
    names = {"user": sent.poster_username, "postersBeneficiary": sent.poster_recipient_username}
    answer = samples.order_json(**{role: samples.user_json(username=name) for role, name in names.items()})
    fields = ("poster_currency", "matcher_currency")
    answer |= {name: getattr(sent, name) for name in fields}
    answer |= {"poster_amount": 155025, "matcher_amount": 100}
    mocked_service.post(f"{BASE}{CREATE_ORDER}", body=samples.encode(answer))
    async with TransferClient(BASE, "abc", request_id_header=NAME) as client:
        await pay(client)
        (mark,) = [step.attempt for step in await client.history("k") if step.move == "mark"]

    ((call,),) = mocked_service.requests.values()
    assert call.kwargs["headers"][NAME] == mark


# --- the service's id of a request --------------------------------------------------------------


def is_refused(_: Received, **headers: str) -> bytes:
    return http(422, b"{}", headers=headers)


@each("response", [order_reply, is_refused])
@each(
    ("settings", "headers", "expected"),
    [
        ({}, {"X-Request-Id": "r-7"}, "r-7"),
        ({"response_id_header": "X-Correlation"}, {"x-correlation": "c-7", "X-Request-Id": "r-7"}, "c-7"),
        ({}, {"X-Correlation": "c-7"}, None),
        ({}, {"X-Request-Id": "r" * 101}, None),
        ({}, {}, None),
    ],
)
async def test_an_events_request_id_comes_from_the_named_header(
    response: Any, settings: Any, headers: Any, expected: str | None
):
    events: list[Any] = []

    async def script(connection: Connection) -> None:
        connection.send(response(await connection.request(), **headers))

    settings = {"observers": [events.append], **settings}
    async with serving(script) as server, client_to(server, **settings) as client:
        with suppress(TransferError):
            await pay(client)

    ends = [event for event in events if isinstance(event, (OrderCreated, AttemptFailed))]
    assert [event.request_id for event in ends] == [expected]


async def test_a_fake_client_reads_the_services_id_from_the_named_header():
    events: list[Any] = []
    async with FakeClient(observers=[events.append], response_id_header="X-Correlation") as client:
        client.sandbox.faults.add(Status(422, headers={"X-Correlation": "c-7"}))
        with suppress(TransferError):
            await pay(client)

    assert [event.request_id for event in events if isinstance(event, AttemptFailed)] == ["c-7"]


# --- the bank's own headers ---------------------------------------------------------------------

GATEWAY = {"X-Gateway-Key": "s3cr3t", "X-Tenant": "bank 7"}


def own(request: Received) -> dict[str, str]:
    return {name: request.headers.get(name.lower(), "") for name in GATEWAY}


async def test_every_request_carries_the_configured_headers_and_the_clients():
    given = dict(GATEWAY)
    async with serving(anything) as server, client_to(server, headers=given) as client:
        given["X-Tenant"] = "another"
        await pay(client)
        await client.who_am_i()

    assert [own(request) for request in server.requests] == [GATEWAY, GATEWAY]
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer abc"}
    assert [request_id is None for request_id in sent_ids(server)] == [False, True]


async def test_a_renewed_token_is_sent_with_the_configured_headers():
    tokens = iter(("old", "new"))

    async def token() -> str:
        return next(tokens)

    async def script(connection: Connection) -> None:
        while request := await connection.request():
            is_old = request.headers["authorization"] == "Bearer old"
            connection.send(http(401, b"{}") if is_old else order_reply(request))

    async with serving(script) as server, TransferClient(server.url, token, headers=GATEWAY) as client:
        await pay(client)

    assert [own(request) for request in server.requests] == [GATEWAY, GATEWAY]


# --- headers that an observer adds --------------------------------------------------------------


class Adding:
    """An observer that adds headers to requests."""

    def __init__(self, headers: Any) -> None:
        self._headers = headers
        self.asked: list[str | None] = []

    def __call__(self, event: Any) -> None:
        """Ignore the event."""

    def request_headers(self, intent_id: str | None) -> Any:
        self.asked.append(intent_id)
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers


@pytest.mark.parametrize("name", [NAME, None])
async def test_an_observer_adds_headers_to_orders_and_other_requests(name: str | None):
    adding = Adding({"traceparent": "00-1"})
    settings = {"observers": [adding], "request_id_header": name}
    async with serving(anything) as server, client_to(server, **settings) as client:
        await pay(client)
        await client.who_am_i()
        (intent_id,) = {step.intent_id for step in await client.history("k")}

    assert [request.headers["traceparent"] for request in server.requests] == ["00-1", "00-1"]
    assert adding.asked == [intent_id, None]


async def test_an_added_header_replaces_no_other_and_must_be_valid():
    added = {
        **dict.fromkeys(("authorization", "X-request-id", "x-tenant", "Host"), "other"),
        "Content-Length": "1",
        "X-Wrong": "a\r\nb",
        "X Y": "z",
        "X-Number": 7,
        "X-Good": "good",
    }
    settings = {"observers": [Adding(added)], "headers": GATEWAY}
    async with serving(anything) as server, client_to(server, **settings) as client:
        await pay(client)

    (request,) = server.requests
    assert own(request) == GATEWAY
    assert request.headers["authorization"] == "Bearer abc"
    assert "other" not in request.headers.values()
    assert request.headers["x-good"] == "good"
    assert not {"x-wrong", "x y", "x-number"} & request.headers.keys()


@each("headers", [ValueError("s3cr3t"), 5, None])
async def test_an_observer_that_fails_to_add_headers_does_not_affect_the_order(headers: Any, caplog: Any):
    async with serving(anything) as server, client_to(server, observers=[Adding(headers)]) as client:
        await pay(client)

    assert "an observer could not add headers to a request" in caplog.text
    assert "s3cr3t" not in caplog.text


# --- what is refused ----------------------------------------------------------------------------

RESERVED = [
    *("Authorization", "authorization", "HOST", "Content-Type", "content-length", "Content-Digest"),
    *("Accept", "Accept-Encoding", "User-Agent", "Connection", "Transfer-Encoding", "Expect", "Cookie"),
    *("Proxy-Authorization", "TE", "Trailer", "Upgrade", "Keep-Alive"),
]
NO_NAMES = ["", "X Y", "X:Y", "X\r\nY", "Ä", "X\x00", "x" * 101, 5, b"X-Id"]
ONE_PER_ORDER = ["Idempotency-Key", "Idempotency-KEY", "X-IDEMPOTENCY-KEY", "X-Request-Id", "request-id"]
NO_VALUES = [
    *("", " s3cr3t", "s3cr3t\r\nX: y", "s3cr3t\n", "s3cr3t\x00", "s3cr3té", "s3cr3tЖ", 5, None, b"s3cr3t"),
]
TWICE = [("X-Tenant", "x-tenant"), ("x-request-ID",)]


def configured(setting: str, name: Any) -> dict[str, Any]:
    """Return the setting of a client that names a header."""
    return {setting: {name: "s3cr3t"} if setting == "headers" else name}


@each("kind", [TransferClient, FakeClient])
@each(
    ("settings", "why"),
    [
        *(
            (configured(setting, name), f"{setting}: {name} is set by the client or by HTTP itself")
            for setting in ("headers", "request_id_header")
            for name in RESERVED
        ),
        *(
            (configured(setting, name), f"{setting}: must be 1 to 100 letters")
            for setting in ("headers", "request_id_header", "response_id_header")
            for name in NO_NAMES
        ),
        *(
            (configured("headers", name), f"headers: {name} would have the same value for every order")
            for name in ONE_PER_ORDER
        ),
        *(
            (
                {"headers": dict.fromkeys(names, "s3cr3t"), "request_id_header": NAME},
                f"headers: {names[-1]} occurs twice or is the request_id_header",
            )
            for names in TWICE
        ),
        *(
            ({"headers": {"X-Tenant": value}}, "headers: the value of X-Tenant must be non-empty printable")
            for value in NO_VALUES
        ),
        *(({"headers": wrong}, "headers: must be a mapping") for wrong in ("X-Tenant: 7", ["X-Tenant"], 5)),
    ],
)
def test_an_invalid_header_is_refused_by_name_and_its_value_is_not_shown(
    kind: type[TransferClient], settings: dict[str, Any], why: str
):
    with pytest.raises(ValueError, match=f"^{why}") as caught:
        kind(BASE, "abc", **settings)

    assert "s3cr3t" not in str(caught.value)


@each("name", ONE_PER_ORDER)
def test_a_header_that_must_differ_per_order_may_carry_the_request_id(name: str):
    TransferClient(BASE, "abc", request_id_header=name)
