"""Every request, however unusual, gets a response with a status other than 5xx."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import each
from tests.support.strategies import CHARACTERS
from transfer_async.sandbox import Sandbox, wire

from .test_service import create, make_service
from .wire_client import WHO_AM_I, WireClient, connected, order_body

ODD_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text(CHARACTERS)
    | st.sampled_from([Decimal("1e999999999"), Decimal("-1e-999999999")])
    | st.sampled_from(["1e999999999", "sNaN", "\x00", "9" * 5000, "-0", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [*order_body(), "poster", "external_order.transaction_fee", "external_order.current_account_balance"]


def with_changes(changes: dict[str, Any]) -> bytes:
    body = order_body()
    # Set "external_order" last, because it may stop being an object.
    for path in sorted(changes, key="external_order".__eq__):
        parent, _, name = path.rpartition(".")
        (body["external_order"] if parent else body)[name] = changes[path]
    return wire.write(body)


ODD_BODIES = (
    st.binary(max_size=300)
    | st.dictionaries(st.sampled_from(FIELDS[::-1]), ODD_VALUES, min_size=1, max_size=3).map(with_changes)
    | ODD_VALUES.map(wire.write)
    | st.integers(0, 400).map(lambda cut: json.dumps(order_body()).encode()[:cut])
)


@given(ODD_BODIES)
def test_any_body_creates_an_order_or_is_refused_in_json(body: bytes):
    service = make_service()
    reply = create(service, body)

    assert reply.status in (200, 400, 422)
    assert len(service.orders) == (reply.status == 200)
    assert reply.status == 200 or json.loads(reply.body)["message"]


@each("path", ["/", "/%00", "/%ff%fe", "/" + "a" * 4000, "//x//y", "/sandbox/users/%ed%a0%80", "/ü"])
async def test_an_unusual_path_is_not_found(sandbox: Sandbox, path: str):
    async with connected(sandbox) as client:
        answer = await client.ask(path=path)

    assert answer.status in (400, 404, 405)
    assert answer.json["message"]


@each(
    "headers",
    [
        {"Authorization": "Bearer \x01"},
        {"Authorization": "Bearer ü" * 100},
        {"Content-Type": "ü/ß; ;;="},
        {"Content-Type": None},
        {"Accept": ";;;,"},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "nonsense"},
        {"Expect": "the unexpected"},
        {"X-Long": "x" * 20_000},
        {"Content-Length": "-1"},
        {"Content-Length": "many"},
        {"Content-Length": None, "Transfer-Encoding": "chunked"},
        {"Host": None},
    ],
)
async def test_unusual_headers_are_answered_in_json(sandbox: Sandbox, headers: dict[str, str | None]):
    async with connected(sandbox) as client:
        answer = await client.ask(order_body(), headers=headers)

    assert answer.status < 500
    assert isinstance(answer.json, dict)


async def test_a_head_request_gets_no_body(client: WireClient):
    client.send(method="HEAD", path=WHO_AM_I)
    status, _ = await client.head()
    after = await client.ask(order_body())

    assert (status, after.status) == (405, 200)


@pytest.mark.parametrize(
    "raw", [b"\r\n\r\n\r\n\x00\r\n\r\n", b"GET\r\n\r\n", b"hello there\r\n\r\n", b"\x16\x03\x01\x00\r\n\r\n"]
)
async def test_invalid_http_is_refused(client: WireClient, raw: bytes):
    client.writer.write(raw)
    answer = await client.answer()

    assert (answer.status, answer.json) == (400, {"message": "The request is not valid HTTP."})
    assert await client.rest() == b""


@pytest.mark.parametrize("chunks", [b"zz\r\n", b"2\r\n{}zz", b"2\r\n{}\r\nzz\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_broken_chunks_are_refused(sandbox: Sandbox, client: WireClient, chunks: bytes, at_once: bool):
    expect = None if at_once else "100-continue"
    client.send(headers={"Content-Length": None, "Transfer-Encoding": "chunked", "Expect": expect})
    if not at_once:
        await client.head()  # now the server waits for the body
    client.writer.write(chunks)
    answer = await client.answer()

    assert answer.status == 400
    assert answer.json["message"]
    assert await client.rest() == b""
    assert not sandbox.orders


async def test_an_exception_of_the_sandbox_is_logged(
    sandbox: Sandbox, client: WireClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sandbox._service, "orders", None)
    answer = await client.ask(order_body())

    assert answer.status == 500
    assert "Error handling request" in caplog.text
