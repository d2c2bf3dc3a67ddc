"""Messages from other programs: FastStream, simple clients, and invalid messages."""

import json

import pytest
from faststream.nats import NatsBroker
from faststream.redis import RedisBroker

from tests.support.cases import each
from tests.worker.case import command
from tests.worker.sides import PATIENCE, on_nats, on_redis
from transfer_async.integrations.faststream.broker import MAX_LENGTH


@pytest.fixture(autouse=True)
async def worker(case):
    return await case.worker()


async def published_by_faststream(side, message, **options):
    commands = side.settings.commands
    if side.NAME == "nats":
        broker, to = NatsBroker, {"subject": commands, "stream": side.stream(commands)}
    else:
        broker, to = RedisBroker, {"stream": commands}
    async with broker(side.address) as connected:
        await connected.connect()
        await connected.publish(message, **to, **options)


@each(
    ("key", "options"),
    {
        "plain": {},
        "json": {"headers": {"content-type": "application/json"}},
        "text": {"headers": {"content-type": "text/plain"}},
        "nonsense": {"headers": {"content-type": "nonsense"}, "correlation_id": "c"},
        "reply": {"reply_to": "somewhere.else"},
    }.items(),
)
async def test_a_command_published_by_faststream_is_carried_out(case, key, options):
    await published_by_faststream(case.side, command(key).to_json(), **options)

    body, headers = await case.side.next(case.side.settings.outcomes)
    outcome = json.loads(body)
    assert (outcome["key"], outcome["outcome"]) == (key, "created")
    assert headers["content-type"] == "application/json"
    await case.side.gone()


async def test_a_dictionary_encoded_by_faststream_is_a_command(case):
    tree = {"version": 1, "key": "k", "order": "no order"}

    await published_by_faststream(case.side, tree)

    _, headers = await case.side.dead_letter()
    assert headers["Transfer-Reason"] == "the command is not valid: order: is not an object"


# --- Redis ------------------------------------------------------------------------------------------


@on_redis
async def test_a_message_with_headers_that_the_broker_rejects_is_still_dead_lettered(case):
    await case.side.send(b"", {"näme": "Ada\r\nOkafor " + "x" * 70_000, b"\xff": b"\x00\xff"})

    _, headers = await case.side.dead_letter()
    assert headers["n\\xe4me"].startswith("Ada  Okafor x")
    assert len(headers["n\\xe4me"]) == MAX_LENGTH


@each(
    ("fields", "body"),
    [
        ({}, b""),
        ({b"body": b"{}", b"payload": b"\xff\n" * 5000, b"n\xc3\xa4me": b"Ada"}, b"{}"),
        # fields that only resemble FastStream's
        ({b"__data__": b""}, b""),
        ({b"__data__": b'{"data":"x","headers":null}'}, b'{"data":"x","headers":null}'),
        ({b"__data__": b'{"data":"x","headers":[1]}'}, b'{"data":"x","headers":[1]}'),
    ],
)
@on_redis
async def test_an_entry_of_another_program_is_dead_lettered_with_all_its_fields(case, fields, body):
    side, sent = case.side, fields | {b"x-origin": b"a test"}
    await side.client.xadd(side.settings.commands, {**sent, "transfer-deliveries": "often"})

    found, headers = await side.dead_letter()

    assert (found, headers["x-origin"]) == (body, "a test")
    entries = await side.client.xrange(side.settings.dead_letters)
    assert len(entries) == side.read[side.settings.dead_letters]
    _, parked = entries[-1]
    assert parked.pop(b"Transfer-Reason").decode() == headers["Transfer-Reason"]
    assert parked.pop(b"__data__")  # the envelope of FastStream, which replaces the field of that name
    sent.pop(b"__data__", None)
    assert parked == sent
    await side.gone()


# --- NATS -------------------------------------------------------------------------------------------


@each("status", ["404", "408", "409", "100", "503", "made"])
@on_nats
async def test_a_command_with_a_nats_status_header_is_still_processed(case, status):
    outcome = await case.order(status, {"Status": status, "x-origin": "a test"})

    assert (outcome["key"], case.deliveries[-1]) == (status, 1)
    await case.side.gone()


@each(
    ("sent", "parked"),
    [
        ({"Nats-Msg-Id": "mine", "x-origin": "a test"}, {"x-origin": "a test"}),
        ({"Status": "404", "x-origin": "a test"}, {"x-origin": "a test", "X-Status": "404"}),
        ({"Status": "404", "X-Status": "shipped"}, {"X-Status": "shipped"}),
    ],
)
@on_nats
async def test_server_headers_are_renamed_in_a_dead_letter(case, sent, parked):
    """Without this, a consumer of the dead letters could not fetch them."""
    await case.side.send(b"x", sent)
    _, headers = await case.side.dead_letter()
    so_far = case.side.read[case.side.settings.dead_letters]
    reader = await case.side.jetstream.pull_subscribe(case.side.settings.dead_letters)

    assert parked.items() <= headers.items()
    assert headers["Nats-Msg-Id"].startswith("parked:")
    assert [one.data for one in await reader.fetch(so_far, timeout=PATIENCE)] == [b"x"] * so_far


@each("room", [0, 1, 200, 1200, 5000])
@on_nats
async def test_a_message_almost_too_large_is_dead_lettered_and_the_worker_continues(case, room):
    """The reason is added only if there is room. Without this, the server closes the connection."""
    body = b"x" * (case.side.max_payload - room)

    await case.side.send(body, {"x-origin": "t" * 1000} if room > 1100 else None)

    parked, headers = await case.side.dead_letter()
    assert parked == body
    assert ("Transfer-Reason" in headers, "x-origin" in headers) == (room > 1100, room > 3000)
    await case.side.gone()
    assert (await case.order(f"k-{room}"))["outcome"] == "created"
