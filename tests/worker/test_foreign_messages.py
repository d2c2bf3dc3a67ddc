"""Messages from other programs: FastStream, simple clients, and invalid messages."""

import pytest
from faststream.nats import NatsBroker
from faststream.redis import RedisBroker

from tests.support.cases import each
from tests.worker.case import command
from tests.worker.sides import PATIENCE, on_nats, on_redis
from transfer_async.integrations.faststream.broker import MAX_LENGTH, reason_header, sanitized

KINDS = {"nats": NatsBroker, "redis": RedisBroker}


async def published_by_faststream(case, message, **options):
    kind = KINDS[case.side.NAME]
    commands = case.side.settings.commands
    target = {"nats": {"subject": commands}, "redis": {"stream": commands}}
    if case.side.NAME == "nats":
        options["stream"] = case.side._streams[case.side.settings.commands]
    async with kind(case.side.address) as broker:
        await broker.connect()
        await broker.publish(message, **target[case.side.NAME], **options)


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
async def test_a_command_published_by_faststream_is_carried_out(case, worker, key, options):
    await published_by_faststream(case, command(key).to_json(), **options)

    told = await case.side.outcome()
    assert (told["key"], told["outcome"]) == (key, "created")
    await case.side.gone()


async def test_a_dictionary_encoded_by_faststream_is_a_command(case, worker):
    tree = {"version": 1, "key": "k", "order": "no order"}

    await published_by_faststream(case, tree)

    _, headers = await case.side.dead_letter()
    assert headers["Transfer-Reason"] == "the command is not valid: order: is not an object"


@on_redis
async def test_a_message_with_headers_that_the_broker_rejects_is_still_dead_lettered(case, worker):
    await case.side.send(b"", {"näme": "Ada\r\nOkafor " + "x" * 70_000, b"\xff": b"\x00\xff"})

    _, headers = await case.side.dead_letter()
    assert headers["n\\xe4me"].startswith("Ada  Okafor x")
    assert len(headers["n\\xe4me"]) == MAX_LENGTH


@on_redis
async def test_an_entry_without_a_body_is_dead_lettered(case, worker):
    fields = {"order": "x", "transfer-deliveries": "often"}
    await case.side._client.xadd(case.side.settings.commands, fields)

    body, headers = await case.side.dead_letter()
    assert body == b""
    assert headers["order"] == "x"


@each("status", ["404", "408", "409", "100", "503", "made"])
@on_nats
async def test_a_command_with_a_nats_status_header_is_still_processed(case, worker, status):
    await case.side.send(command(status).to_json(), {"Status": status, "x-origin": "a test"})

    assert (await case.side.outcome())["key"] == status
    assert (await case.handled()).deliveries == 1
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
async def test_server_headers_are_renamed_in_a_dead_letter(case, worker, sent, parked):
    """Without this, a consumer of the dead letters could not fetch them."""
    await case.side.send(b"x", sent)
    _, headers = await case.side.dead_letter()
    so_far = case.side._seen[case.side.settings.dead_letters]
    reader = await case.side._jetstream.pull_subscribe(case.side.settings.dead_letters)

    assert parked.items() <= headers.items()
    assert headers["Nats-Msg-Id"].startswith("parked:")
    assert [one.data for one in await reader.fetch(so_far, timeout=PATIENCE)] == [b"x"] * so_far


@each("room", [0, 1, 200, 1200, 5000])
@on_nats
async def test_a_message_almost_too_large_is_dead_lettered_and_the_worker_continues(case, worker, room):
    """The reason is added only if there is room. Without this, the server closes the connection."""
    body = b"x" * (case.side._connection.max_payload - room)

    await case.side.send(body, {"x-origin": "t" * 1000} if room > 1100 else None)

    parked, headers = await case.side.dead_letter()
    assert parked == body
    assert ("Transfer-Reason" in headers) == (room > 1100)
    assert ("x-origin" in headers) == (room > 3000)
    await case.side.gone()
    await case.side.send(command(f"k-{room}").to_json())
    assert (await case.side.outcome())["outcome"] == "created"


@on_nats
async def test_a_message_that_is_too_large_is_not_sent(case, worker):
    settings, most = case.side.settings, case.side._connection.max_payload

    with pytest.raises(ValueError, match=f"the server accepts at most {most}"):
        await worker.line.send(settings.outcomes, b"x" * (most - 2000), {"a": "b" * 2000})

    assert await worker.line.broker.ping(timeout=5.0)


@each("data", [b'{"data":"x","headers":null}', b'{"data":"x","headers":[1]}', b""])
@on_redis
async def test_a_message_that_only_resembles_faststreams_is_dead_lettered_unchanged(case, worker, data):
    await case.side._client.xadd(case.side.settings.commands, {"__data__": data, "x-origin": "a test"})

    body, headers = await case.side.dead_letter()
    assert body == data
    assert headers["x-origin"] == "a test"
    await case.side.gone()


@on_redis
async def test_fields_of_other_programs_are_dead_lettered_unchanged(case, worker):
    fields = {b"payload": b"\xff\n" * 5000, b"n\xc3\xa4me": b"Ada", b"body": b"{}"}

    await case.side._client.xadd(case.side.settings.commands, {**fields, "transfer-deliveries": 3})
    _, headers = await case.side.dead_letter()

    ((_, parked),) = await case.side._client.xrange(case.side.settings.dead_letters)
    del parked[b"__data__"]
    assert parked.pop(b"Transfer-Reason").decode() == headers["Transfer-Reason"]
    assert parked == fields


async def test_an_outcome_has_a_json_content_type(case, worker):
    await case.side.send(case.body)
    _, headers = await case.side._next(case.side.settings.outcomes)

    assert headers["content-type"] == "application/json"


def test_a_dead_letter_reason_is_one_short_line_of_ascii():
    assert reason_header("néin\nandso")["Transfer-Reason"] == "n\\xe9in andso"
    assert len(reason_header("x" * 5000)["Transfer-Reason"]) == MAX_LENGTH
    assert sanitized({"a": "b"}) == {"a": "b"}
