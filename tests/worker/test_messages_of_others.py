"""What others send: messages of FastStream, of plain clients, and of nobody's making."""

import pytest
from faststream.nats import NatsBroker
from faststream.redis import RedisBroker

from tests.worker.case import Case, command
from tests.worker.sides import NatsSide, RedisSide
from transfer_async.integrations.brokers.headers import LONGEST, fitting, reason_header

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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"headers": {"content-type": "application/json"}},
        {"headers": {"content-type": "text/plain"}},
        {"headers": {"content-type": "nonsense"}, "correlation_id": "c"},
        {"reply_to": "somewhere.else"},
    ],
    ids=["plain", "json", "text", "nonsense", "reply"],
)
async def test_what_faststream_publishes_is_carried_out_as_it_is(case, options):
    await case.worker()

    await published_by_faststream(case, command().to_json(), **options)

    assert (await case.side.outcome())["outcome"] == "created"
    await case.side.gone()


async def test_a_tree_that_faststream_encodes_is_a_command_too(case):
    await case.worker()
    tree = {"version": 1, "key": "k", "order": "no order"}

    await published_by_faststream(case, tree)

    _, headers = await case.side.parked()
    assert headers["Transfer-Reason"] == "the command is not valid: order: is not an object"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b'{"data": "x"}', b"\x89BIN\r\n\x1a\n", b"\xff" * 40, b"{" * 5000]
)
async def test_what_is_no_command_is_parked_byte_for_byte(case, body):
    await case.worker()

    await case.side.send(body)

    parked, headers = await case.side.parked()
    assert parked == body
    assert headers["Transfer-Reason"].startswith("the command is not valid: ")
    await case.side.gone()


async def test_headers_that_no_broker_would_take_do_not_keep_a_message_from_being_parked(redis, tmp_path):
    async with Case(RedisSide(redis), tmp_path) as case:
        await case.worker()

        await case.side.send(b"", {"näme": "Ada\r\nOkafor " + "x" * 70_000, b"\xff": b"\x00\xff"})

        _, headers = await case.side.parked()
        assert headers["n\\xe4me"].startswith("Ada  Okafor x")
        assert len(headers["n\\xe4me"]) == LONGEST


async def test_an_entry_without_a_body_is_parked(redis, tmp_path):
    async with Case(RedisSide(redis), tmp_path) as case:
        await case.worker()

        fields = {"order": "x", "transfer-deliveries": "often"}
        await case.side._client.xadd(case.side.settings.commands, fields)

        body, headers = await case.side.parked()
        assert body == b""
        assert headers["order"] == "x"


async def test_the_servers_own_headers_are_not_carried_on(nats, tmp_path):
    async with Case(NatsSide(nats), tmp_path) as case:
        await case.worker()

        await case.side.send(b"x", {"Nats-Msg-Id": "mine", "x-origin": "a test"})

        _, headers = await case.side.parked()
        assert headers["x-origin"] == "a test"
        assert headers["Nats-Msg-Id"].startswith("parked:")


async def test_a_trace_goes_through_the_broker(case):
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def around(headers):
        seen.append(headers["traceparent"])
        yield

    run = await case.worker()
    run.worker._worker._around = around
    run.worker._worker._inject = lambda: {"traceparent": "00-child"}

    await case.side.send(case.body, {"traceparent": "00-parent"})
    _, headers = await case.side._next(case.side.settings.outcomes)

    assert seen == ["00-parent"]
    assert headers["traceparent"] == "00-child"
    assert headers["content-type"] == "application/json"


def test_a_reason_is_one_line_of_ascii_and_not_too_long():
    assert reason_header("néin\nandso")["Transfer-Reason"] == "n\\xe9in andso"
    assert len(reason_header("x" * 5000)["Transfer-Reason"]) == LONGEST
    assert fitting({"a": "b"}) == {"a": "b"}
