"""Service profiles as files, and sandboxes that imitate them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import each
from transfer_async.sandbox import (
    Sandbox,
    SeenAnswer,
    SeenConnection,
    SeenLimits,
    ServiceProfile,
    load_profile,
)
from transfer_async.sandbox.profile import IDLE, TIME_STEPS, keep_alive_of, midpoint, time_step

from .wire_client import WHO_AM_I, WireClient, connected, order_body

PROFILE = ServiceProfile(
    levels=(0, 2),
    answers={"order": SeenAnswer(status=200, body="json", headers={"via": "1.1 x"}, within=0.1, order="new")},
    request_ids=("x-request-id",),
    connection=SeenConnection(asked=20, requests=7, open_after=4.0, closed_by=5.0),
    limits={"NGN": SeenLimits(least=Decimal("1000.50"), greatest=Decimal(10**15))},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


def test_a_saved_profile_can_be_loaded_and_a_failed_save_keeps_it(path, monkeypatch):
    def full(_):
        raise OSError("disk full")

    PROFILE.save(path)
    monkeypatch.setattr("transfer_async.sandbox.profile.os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        ServiceProfile().save(path)

    assert load_profile(path) == PROFILE
    assert [*path.parent.iterdir()] == [path]


HEADER_RULE = "headers: must have lower-case names and printable ASCII values"


@each(
    ("changes", "message"),
    [
        ({"version": 2}, "profile: must have version 1"),
        ({"levels": "all"}, "profile: Expected `array`"),
        ({"answers": {"order": {"status": 99}}}, "status: must be from 200 to 599, not 99"),
        ({"answers": {"order": {"status": 100}}}, "status: must be from 200 to 599, not 100"),
        ({"answers": {"order": {"headers": {"via": "a\r\nb"}}}}, HEADER_RULE),
        ({"answers": {"order": {"headers": {"content-length": "9"}}}}, HEADER_RULE),
        ({"answers": {"order": {"headers": {"a b": ""}}}}, HEADER_RULE),
        ({"answers": {"order": {"fields": ["Ada Eze"]}}}, "fields: must be names of fields"),
        ({"answers": {"order": {"unreadable": "a\nb"}}}, "unreadable: must be one line of text"),
        ({"request_ids": ["a b"]}, "request_ids: must be names of headers"),
        *((text, "profile: ") for text in ("", "[]", "no json")),
    ],
)
def test_an_invalid_profile_is_refused_with_the_field(path, changes, message):
    text = changes if isinstance(changes, str) else json.dumps({"version": 1, **changes})
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match=message):
        load_profile(path)


def test_seconds_are_rounded_up_to_a_step_and_its_mean_has_the_same_step():
    assert [time_step(seconds) for seconds in (0.0, 0.1, 0.11, 3.0, 10_000.0)] == [0.1, 0.1, 0.25, 5.0, 120.0]
    assert all(time_step(midpoint(step, TIME_STEPS)) == step for step in TIME_STEPS)


@each(
    ("seen", "kept"),
    [
        (None, 75.0),
        (SeenConnection(asked=1, open_after=60.0), 120.0),
        (SeenConnection(asked=1, open_after=2.0), 75.0),
        (SeenConnection(asked=1, open_after=4.0, closed_by=5.0), 4.5),
    ],
)
def test_a_profile_decides_how_long_an_idle_connection_is_kept(seen, kept):
    assert keep_alive_of(seen, 75.0) == kept
    assert tuple(sorted(IDLE)) == IDLE


# --- the sandbox --------------------------------------------------------------------------------

CREATED = SeenAnswer(status=200, body="json", order="new")


@asynccontextmanager
async def imitating(**profile: Any) -> AsyncIterator[WireClient]:
    async with Sandbox(profile=ServiceProfile(**profile)) as sandbox, connected(sandbox) as client:
        yield client


def limited(greatest: int) -> dict[str, SeenLimits]:
    return {"NGN": SeenLimits(least=Decimal(1000), greatest=Decimal(greatest))}


def get(path: str) -> dict[str, str]:
    return {"method": "GET", "path": path}


ORDER = {"body": order_body()}
LOST = {"order": SeenAnswer(status=503, body="text", order="unknown")}
BROKEN = {"unknown-path": SeenAnswer(status=500, body="html"), "wrong-token": SeenAnswer(status=500)}
JSON = "application/json"


@each(
    ("answers", "asks", "status", "kind", "orders"),
    {
        "an order exists although the response does not show it": (LOST, ORDER, 503, "text/plain", 1),
        "an unknown path": (BROKEN, get("/nowhere"), 500, "text/html", 0),
        "control paths stay": (BROKEN, get("/sandbox/orders"), 200, JSON, 0),
        "an order that is not recorded": ({}, ORDER, 200, JSON, 1),
        "a refusal that is not recorded": ({}, {"body": {}}, 422, JSON, 0),
        "a path that is not recorded": ({}, get("/nowhere"), 404, JSON, 0),
    },
)
async def test_a_recorded_response_is_imitated_and_others_are_the_sandboxs_own(
    answers, asks, status: int, kind: str, orders: int
):
    async with imitating(answers=answers) as client:
        answer = await client.ask(**asks)

        assert (answer.status, answer.headers["Content-Type"]) == (status, kind)
        assert len(client.sandbox.orders) == orders


async def test_who_am_i_has_the_recorded_success_status():
    async with imitating(answers={"who-am-i": SeenAnswer(status=203, body="json")}) as client:
        answer = await client.get(WHO_AM_I)

        assert (answer.status, answer.json["username"]) == (203, "lagoon-bank")


async def test_a_recorded_close_of_the_connection_is_imitated():
    seen = SeenAnswer(status=404, headers={"connection": "close"})
    async with imitating(answers={"unknown-path": seen}) as client:
        assert (await client.get("/nowhere")).status == 404
        assert await client.rest() == b""


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_close_is_announced_only_if_the_service_announces_it(is_announced):
    """After an unannounced close, a client's next order may end in doubt."""
    seen = SeenConnection(asked=9, requests=2, announced=is_announced)
    async with imitating(connection=seen) as client:
        announced = [(await client.ask(order_body())).headers.get("Connection", "") for _ in range(2)]

        assert announced == ["", "close" if is_announced else ""]
        assert await client.rest() == b""


def without(*paths: str) -> dict:
    body = order_body()
    for path in paths:
        outer, _, inner = path.rpartition(".")
        (body[outer] if outer else body).pop(inner)
    return body


FEE = "external_order.transaction_fee"


async def test_a_field_that_the_service_does_not_need_may_be_missing():
    names = [*(name for name in order_body() if name != "external_order"), FEE]
    answers = {f"without-{name}": CREATED for name in names}
    answers[f"without-{FEE}"] = SeenAnswer(status=201, body="json", order="new")
    async with imitating(answers=answers) as client:
        seen = [await client.ask(without(name)) for name in names]

        assert [answer.json["id"] for answer in seen] == [*client.sandbox.orders]
        assert (seen[-1].status, seen[-1].json["poster_currency"]) == (201, "NGN")


NOBODY = order_body(poster_recipient_username="nobody.is.called.so@example.com")
LARGER = order_body(poster_amount="310050.00", matcher_amount="200")


async def test_the_sandbox_creates_the_orders_that_the_profile_says_are_created():
    names = ("not-json", "empty-object", "unknown-beneficiary", "negative-amount", "order", "above-greatest")
    async with imitating(answers=dict.fromkeys(names, CREATED), limits=limited(155_025)) as client:
        again = [order_body()] * 2  # the profile does not say that an order is recognized
        for body in (b"garbage", {}, NOBODY, order_body(poster_amount="-1"), *again, LARGER):
            assert (await client.ask(body)).status == 200
        orders = [*client.sandbox.orders.values()]

        assert (len(orders), orders[-1].poster_amount) == (7, Decimal("310050.00"))


NOT_NEEDED = ("poster_country", "matcher_country", FEE, "external_order.current_account_balance")


@each(
    "body",
    [
        order_body(poster_recipient_username="somebody.else@example.com"),
        order_body(poster_recipient_username="noah.lind@example.com"),
        order_body(poster_currency="KES"),
        order_body(matcher_currency="XYZ"),
        order_body(matcher_currency="JPY"),
        LARGER,  # above the limit in the profile
        order_body(poster_amount="155025000.00", matcher_amount="100000"),
        order_body(poster_amount="200000.00"),  # not equal to matcher_amount times exchange_rate
        order_body(poster_payment_method_type="cash"),
        order_body(external_order=7),
        without("external_order"),
        without("poster_country", "matcher_country"),
        without("external_order.transaction_fee", "external_order.current_account_balance"),
        without("poster_country") | {"poster_recipient_username": "somebody.else@example.com"},
        b'{"matcher_amount": "100.00"}',
    ],
)
async def test_a_profile_skips_no_other_check_of_the_sandbox(body):
    """Without this, a bank's tests pass with orders that the service refuses."""
    names = ("order", *(f"without-{name}" for name in NOT_NEEDED))
    async with imitating(answers=dict.fromkeys(names, CREATED), limits=limited(200_000)) as client:
        assert (await client.ask(body)).status == 422
        assert (await client.ask(order_body(), headers={"Accept": "text/html"})).status == 406
        assert (await client.ask(order_body(), headers={"Content-Type": "text/plain"})).status == 415
        assert not client.sandbox.orders
        assert (await client.ask(order_body())).status == 200


async def test_any_body_is_answered_with_a_refusal():
    answers = {"without-poster_amount": SeenAnswer(status=400), "order": SeenAnswer(status=200, order="new")}
    odd = (None, [], {}, [[]], 7, True, "", "XXX", "-0", 1e300)
    bodies = [order_body(**{name: value}) for name in order_body() for value in odd]
    async with imitating(answers=answers, limits=limited(2000)) as client:
        for body in (*bodies, b"null", b"[]", b"7", b'"x"', b"{", b""):
            assert (await client.ask(body)).status in (400, 422), body
