import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.cases import each
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CurrencyAccount, wire
from transfer_async.sandbox.service import Call, Reply, Service

from .wire_client import CREATE, WHO_AM_I, order_body

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
HEADERS = {"Authorization": "Bearer secret", "Accept": "application/json", "Content-Type": "application/json"}


NO_PAYMENT_TYPES = (CurrencyAccount(code="USD"),)
BARE = Account(username="bare@example.com", firstname="X", lastname="Y", currencies=NO_PAYMENT_TYPES)
BANK = Account(username="bank@example.com", firstname="A", lastname="Bank", is_bank=True)
ACCOUNTS = [BANK, BARE, *(account for account in DEFAULT_ACCOUNTS if not account.is_bank)]


def make_service(*, seed: int = 0) -> Service:
    return Service(accounts=Accounts(ACCOUNTS), token="secret", seed=seed, now=lambda: NOON)


@pytest.fixture
def service() -> Service:
    return make_service()


def create(service: Service, body: object, headers: dict[str, str] | None = None) -> Reply:
    raw = body if isinstance(body, bytes | None) else wire.write(body)
    return service.answer(Call(method="POST", path=CREATE, headers=HEADERS | (headers or {}), body=raw))


def errors(reply: Reply) -> dict[str, list[str]]:
    assert reply.status == 422
    document = json.loads(reply.body)
    assert document["message"] == "The order was refused."
    return document["errors"]


def test_ids_have_the_specifications_format_and_depend_on_the_seed():
    one, again, other = make_service(seed=1), make_service(seed=1), make_service(seed=2)
    ids = [one.new_id() for _ in range(100)]

    assert all(re.fullmatch(r"tx-[a-z0-9]+", order_id) for order_id in ids)
    assert len(set(ids)) == 100
    assert again.new_id() == ids[0]
    assert other.new_id() not in ids


@each(
    "authorization",
    [
        "",
        "secret",
        "Bearer",
        "Bearer wrong",
        "bearer secret",
        "Bearer secret ",
        "Basic secret",
        "Bearer s\udcff",
    ],
)
@each(("method", "path"), [("POST", CREATE), ("GET", WHO_AM_I)])
def test_a_wrong_token_is_unauthorized(service: Service, method: str, path: str, authorization: str):
    headers = HEADERS | {"Authorization": authorization}
    reply = service.answer(Call(method=method, path=path, headers=headers, body=wire.write(order_body())))

    assert (reply.status, json.loads(reply.body)) == (401, {"message": "Unauthorized"})
    assert not service.orders


@each("path", ["/", "", "*", "/api/api/v1/order/create/", "/api/v1/order/create", "/sandbox"])
def test_an_unknown_path_is_not_found(service: Service, path: str):
    reply = service.answer(Call(method="POST", path=path, headers=HEADERS))

    assert (reply.status, json.loads(reply.body)) == (404, {"message": "Not Found"})


@each(
    ("method", "path", "allowed"),
    [("GET", CREATE, "POST"), ("HEAD", WHO_AM_I, "GET"), ("PUT", CREATE, "POST")],
)
def test_a_wrong_method_is_refused_with_the_right_one(service: Service, method: str, path: str, allowed: str):
    reply = service.answer(Call(method=method, path=path, headers=HEADERS))

    assert (reply.status, reply.headers) == (405, {"Allow": allowed})


@each(
    ("header", "value", "status"),
    [
        ("Accept", "application/json", 200),
        ("Accept", "text/html, application/json;q=0.9", 200),
        ("Accept", "application/*", 200),
        ("Accept", "*/*", 200),
        ("Accept", "", 200),
        ("Accept", "text/html", 406),
        ("Content-Type", "application/json", 200),
        ("Content-Type", "Application/JSON; charset=utf-8", 200),
        ("Content-Type", "text/plain", 415),
        ("Content-Type", "application/x-www-form-urlencoded", 415),
        ("Content-Type", "", 415),
    ],
)
def test_only_json_is_read_and_sent(service: Service, header: str, value: str, status: int):
    assert create(service, order_body(), {header: value}).status == status


def test_the_same_order_sent_twice_is_two_orders(service: Service):
    first, second = create(service, order_body()), create(service, order_body())

    assert [order.number for order in service.orders.values()] == [1, 2]
    assert first.order != second.order


@each(
    ("body", "status", "reason"),
    [(b"", 400, "not valid JSON"), (b'"\xff"', 400, "not UTF-8"), (None, 413, "larger than")],
)
def test_an_unreadable_body_is_refused_with_the_reason(service: Service, body, status: int, reason: str):
    reply = create(service, body)

    assert reply.status == status
    assert reason in json.loads(reply.body)["message"]


NAIRA = {"matcher_currency": "NGN", "matcher_amount": "155025.00", "exchange_rate": "1"}
ZELLE = {"poster_payment_method_type": "zelle_payment"}
NEW, RECIPIENT = "new@example.com", "poster_recipient_username"


@each(
    ("changes", "reason"),
    [
        ({"poster_currency": "ngn"}, "must be an upper-case currency code"),
        ({"poster_currency": "EUR"}, "is not one of the poster's currencies"),
        ({"poster_currency": "XYZ", "poster_username": NEW}, "is not one of the poster's currencies"),
        ({"poster_amount": "155025.01"}, "must equal matcher_amount multiplied by exchange_rate"),
        ({"poster_username": "lucie.moreau@example.com"}, "must be an active customer"),
        ({"poster_username": BANK.username}, "must be an active customer"),
        (ZELLE, "is not one of the poster's payment types in this currency"),
        (NAIRA | {RECIPIENT: "chidi.obi@example.com"}, "cannot be traded with the poster's currency"),
        ({RECIPIENT: "nobody@example.com"}, "is not a registered account"),
        ({RECIPIENT: BANK.username}, "is not a registered account"),
        ({RECIPIENT: BARE.username}, "has no receiving account in this currency"),
        ({RECIPIENT: "noah.lind@example.com"}, "has no valid receiving bank account"),
        ({RECIPIENT: "lucie.moreau@example.com"}, "is not an active account"),
        ({RECIPIENT: "chidi.obi@example.com"}, "has no receiving account in this currency"),
        ({RECIPIENT: "ada.eze@example.com"}, "must not be the poster"),
    ],
)
def test_an_impossible_order_is_refused_with_the_field_and_the_reason(service: Service, changes, reason):
    assert errors(create(service, order_body(**changes))) == {next(iter(changes)): [reason]}
    assert not service.orders
    assert NEW not in service.accounts


def amounts(poster: str, matcher: str, rate: str = "1550.25", **changes: str) -> dict[str, Any]:
    return order_body(poster_amount=poster, matcher_amount=matcher, exchange_rate=rate, **changes)


KENYA = {"matcher_currency": "KES", RECIPIENT: "wanjiru.kamau@example.com"}


@each(
    ("body", "field", "reason"),
    [
        (amounts("775.13", "0.50"), "matcher_amount", "must be between 1 and 50000 USD"),
        (amounts("999.91", "0.645"), "matcher_amount", "must be between 1 and 50000 USD"),
        (amounts("155025000.00", "100000"), "matcher_amount", "must be between 1 and 50000 USD"),
        (amounts("775.125", "0.5"), "poster_amount", "must be between 1000 and 50000000 NGN"),
        (amounts("155025000.00", "100000"), "poster_amount", "must be between 1000 and 50000000 NGN"),
        (amounts("155026.55025", "100.001"), "matcher_amount", "must be a multiple of 0.01 USD"),
        (amounts("155026.55025", "100.001"), "poster_amount", "must be a multiple of 0.01 NGN"),
        (amounts("1562.5", "125", "12.5", **KENYA), "matcher_amount", "must be a multiple of 50 KES"),
    ],
)
def test_amounts_outside_the_limits_or_steps_are_refused(service: Service, body, field: str, reason: str):
    assert errors(create(service, body))[field] == [reason]


@each(
    "body",
    {
        "exactly the maximum amount": amounts("50000000", "50000", "1000"),
        "a multiple of a step above one unit": amounts("1875", "150", "12.5", **KENYA),
        "a username in another case": order_body(poster_recipient_username="Ben.Okri@Example.com"),
    },
)
def test_a_possible_order_is_created(service: Service, body: dict[str, Any]):
    assert create(service, body).status == 200


def test_the_first_order_registers_an_unknown_poster(service: Service):
    body = order_body(poster_username="new.customer@example.com")
    first, second = create(service, body), create(service, body)
    poster = service.accounts["new.customer@example.com"]

    assert (first.status, second.status) == (200, 200)
    assert (poster.firstname, poster.lastname) == ("New", "Customer")
    assert (poster.country, poster.country_abbreviation) == ("Nigeria", "NG")
    assert json.loads(first.body)["user_id"] == json.loads(second.body)["user_id"] == poster.id
