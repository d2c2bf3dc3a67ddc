"""Service profiles as files, and sandboxes that imitate them."""

import json
from decimal import Decimal

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

from .wire_client import connected, order_body

PROFILE = ServiceProfile(
    levels=(0, 2),
    answers={"order": SeenAnswer(status=200, body="json", headers={"via": "1.1 x"}, within=0.1, order="new")},
    request_ids=("x-request-id",),
    connection=SeenConnection(asked=20, requests=7, open_after=4.0, closed_by=5.0),
    limits={"NGN": SeenLimits(least=Decimal("1000.50"), greatest=Decimal(10**15))},
)


def test_a_saved_profile_can_be_loaded(tmp_path):
    PROFILE.save(tmp_path / "profile.json")

    assert load_profile(tmp_path / "profile.json") == PROFILE
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_a_failed_save_keeps_the_previous_profile(tmp_path, monkeypatch):
    PROFILE.save(tmp_path / "profile.json")

    def full(_):
        raise OSError("disk full")

    monkeypatch.setattr("transfer_async.sandbox.profile.os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        ServiceProfile().save(tmp_path / "profile.json")

    assert load_profile(tmp_path / "profile.json") == PROFILE
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


@each(
    ("changes", "message"),
    [
        ({"version": 2}, "profile: must have version 1"),
        ({"levels": "all"}, "profile: Expected `array`"),
        ({"answers": {"order": {"status": 99}}}, "status: must be from 200 to 599, not 99"),
        ({"answers": {"order": {"status": 100}}}, "status: must be from 200 to 599, not 100"),
        (
            {"answers": {"order": {"headers": {"via": "a\r\nb"}}}},
            "headers: must have lower-case names and printable ASCII values",
        ),
        (
            {"answers": {"order": {"headers": {"content-length": "9"}}}},
            "headers: must have lower-case names and printable ASCII values",
        ),
        (
            {"answers": {"order": {"headers": {"a b": ""}}}},
            "headers: must have lower-case names and printable ASCII values",
        ),
        ({"answers": {"order": {"fields": ["Ada Eze"]}}}, "fields: must be names of fields"),
        ({"answers": {"order": {"unreadable": "a\nb"}}}, "unreadable: must be one line of text"),
        ({"request_ids": ["a b"]}, "request_ids: must be names of headers"),
        *((text, "profile: ") for text in ("", "[]", "no json")),
    ],
)
def test_an_invalid_profile_is_refused_with_the_field(tmp_path, changes, message):
    text = changes if isinstance(changes, str) else json.dumps({"version": 1, **changes})
    (tmp_path / "p.json").write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match=message):
        load_profile(tmp_path / "p.json")


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


# --- the sandbox -----------------------------------------------------------------------------------------


async def test_a_field_that_the_service_does_not_need_may_be_missing():
    answers = {f"without-{name}": SeenAnswer(status=200, body="json", order="new") for name in order_body()}
    answers["without-external_order.transaction_fee"] = SeenAnswer(status=201, body="json", order="new")
    async with Sandbox(profile=ServiceProfile(answers=answers)) as sandbox, connected(sandbox) as client:
        for name in [field for field in order_body() if field != "external_order"]:
            body = order_body()
            del body[name]
            assert (await client.ask(body)).json["id"] in sandbox.orders
        body = order_body()
        del body["external_order"]["transaction_fee"]
        answer = await client.ask(body)

        assert (answer.status, answer.json["id"]) == (201, [*sandbox.orders][-1])
        assert answer.json["poster_currency"] == "NGN"


async def test_the_sandbox_creates_the_orders_that_the_profile_says_are_created():
    taken = SeenAnswer(status=200, body="json", order="new")
    names = ("not-json", "empty-object", "unknown-beneficiary", "negative-amount", "order", "above-greatest")
    limits = {"NGN": SeenLimits(least=Decimal(1000), greatest=Decimal(155_025))}
    profile = ServiceProfile(answers=dict.fromkeys(names, taken), limits=limits)
    nobody = "nobody.is.called.so@example.com"
    async with Sandbox(profile=profile) as sandbox, connected(sandbox) as client:
        for body in (
            b"garbage",
            {},
            order_body(poster_recipient_username=nobody),
            order_body(poster_amount="-1"),
            order_body(),
            order_body(poster_amount="310050.00", matcher_amount="200"),
        ):
            assert (await client.ask(body)).status == 200
        assert len(sandbox.orders) == 6
        assert [*sandbox.orders.values()][-1].poster_amount == Decimal("310050.00")


def without(*paths: str) -> dict:
    body = order_body()
    for path in paths:
        outer, _, inner = path.rpartition(".")
        (body[outer] if outer else body).pop(inner)
    return body


OTHERWISE = {"poster_amount": "310050.00", "matcher_amount": "200"}


@each(
    "body",
    [
        order_body(poster_recipient_username="somebody.else@example.com"),
        order_body(poster_recipient_username="noah.lind@example.com"),
        order_body(poster_currency="KES"),
        order_body(matcher_currency="XYZ"),
        order_body(matcher_currency="JPY"),
        order_body(**OTHERWISE),  # above the limit in the profile
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
    taken = SeenAnswer(status=200, body="json", order="new")
    names = (
        "order",
        "without-poster_country",
        "without-matcher_country",
        "without-external_order.transaction_fee",
        "without-external_order.current_account_balance",
    )
    limits = {"NGN": SeenLimits(least=Decimal(1000), greatest=Decimal(200_000))}
    profile = ServiceProfile(answers=dict.fromkeys(names, taken), limits=limits)
    async with Sandbox(profile=profile) as sandbox, connected(sandbox) as client:
        assert (await client.ask(body)).status == 422
        assert (await client.ask(order_body(), headers={"Accept": "text/html"})).status == 406
        assert (await client.ask(order_body(), headers={"Content-Type": "text/plain"})).status == 415
        assert not sandbox.orders
        assert (await client.ask(order_body())).status == 200


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_close_is_announced_only_if_the_service_announces_it(is_announced):
    """After an unannounced close, a client's next order may end in doubt."""
    seen = SeenConnection(asked=9, requests=2, announced=is_announced)
    async with Sandbox(profile=ServiceProfile(connection=seen)) as sandbox, connected(sandbox) as client:
        announced = [(await client.ask(order_body())).headers.get("Connection", "") for _ in range(2)]

        assert announced == ["", "close" if is_announced else ""]
        assert await client.rest() == b""


async def test_who_am_i_has_the_recorded_success_status():
    profile = ServiceProfile(answers={"who-am-i": SeenAnswer(status=203, body="json")})
    async with Sandbox(profile=profile) as sandbox, connected(sandbox) as client:
        answer = await client.ask(method="GET", path="/api/api/v1/user/who-am-i")

        assert (answer.status, answer.json["username"]) == (203, "lagoon-bank")


async def test_an_order_exists_after_a_response_that_does_not_show_it():
    """A client must treat such a response as an unknown outcome."""
    seen = SeenAnswer(status=503, body="text", order="unknown")
    profile = ServiceProfile(answers={"order": seen})
    async with Sandbox(profile=profile) as sandbox, connected(sandbox) as client:
        answer = await client.ask(order_body())

        assert (answer.status, answer.headers["Content-Type"]) == (503, "text/plain")
        assert len(sandbox.orders) == 1


async def test_requests_outside_the_profile_get_the_sandboxs_own_response():
    async with Sandbox(profile=ServiceProfile()) as sandbox, connected(sandbox) as client:
        assert (await client.ask(order_body())).status == 200
        assert (await client.ask({})).status == 422
        assert (await client.ask(method="GET", path="/nowhere")).status == 404


async def test_any_body_is_answered_with_a_refusal():
    answers = {"without-poster_amount": SeenAnswer(status=400), "order": SeenAnswer(status=200, order="new")}
    limits = {"NGN": SeenLimits(least=Decimal(1000), greatest=Decimal(2000))}
    profile = ServiceProfile(answers=answers, limits=limits)
    async with Sandbox(profile=profile) as sandbox, connected(sandbox) as client:
        for name in order_body():
            for odd in (None, [], {}, [[]], 7, True, "", "XXX", "-0", 1e300):
                assert (await client.ask(order_body(**{name: odd}))).status in (400, 422)
        for body in (b"null", b"[]", b"7", b'"x"', b"{", b""):
            assert (await client.ask(body)).status in (400, 422)


async def test_a_recorded_close_of_the_connection_is_imitated():
    seen = SeenAnswer(status=404, headers={"connection": "close"})
    profile = ServiceProfile(answers={"unknown-path": seen})
    async with Sandbox(profile=profile) as sandbox, connected(sandbox) as client:
        assert (await client.ask(method="GET", path="/nowhere")).status == 404
        assert await client.rest() == b""


async def test_a_profile_does_not_change_control_paths():
    answers = {"unknown-path": SeenAnswer(status=500, body="html"), "wrong-token": SeenAnswer(status=500)}
    async with Sandbox(profile=ServiceProfile(answers=answers)) as sandbox, connected(sandbox) as client:
        assert (await client.ask(method="GET", path="/sandbox/orders")).status == 200
        assert (await client.ask(method="GET", path="/nowhere")).status == 500
