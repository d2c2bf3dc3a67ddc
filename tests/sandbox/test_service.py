import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from tests.support.cases import each
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Account, Accounts, CurrencyAccount, wire
from transfer_async.sandbox.service import Call, Reply, Service

from .wire_client import CREATE, WHO_AM_I, order_body

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
HEADERS = {"Authorization": "Bearer secret", "Accept": "application/json", "Content-Type": "application/json"}


def make_service(*more: Account, seed: int = 0) -> Service:
    return Service(accounts=Accounts([*DEFAULT_ACCOUNTS, *more]), token="secret", seed=seed, now=lambda: NOON)


@pytest.fixture
def service() -> Service:
    return make_service()


def create(service: Service, body: object, **headers: str) -> Reply:
    raw = body if isinstance(body, bytes | None) else wire.write(body)
    return service.answer(Call(method="POST", path=CREATE, headers=HEADERS | as_headers(headers), body=raw))


def as_headers(names: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in names.items()}


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


def test_the_same_order_sent_twice_is_two_orders(service: Service):
    first, second = create(service, order_body()), create(service, order_body())

    assert [order.number for order in service.orders.values()] == [1, 2]
    assert first.order != second.order


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
        ("Content_Type", "application/json", 200),
        ("Content_Type", "Application/JSON; charset=utf-8", 200),
        ("Content_Type", "text/plain", 415),
        ("Content_Type", "application/x-www-form-urlencoded", 415),
        ("Content_Type", "", 415),
    ],
)
def test_only_json_is_read_and_sent(service: Service, header: str, value: str, status: int):
    assert create(service, order_body(), **{header: value}).status == status


NAIRA = {"matcher_currency": "NGN", "matcher_amount": "155025.00", "exchange_rate": "1"}
NEW = "new@example.com"


@each(
    ("changes", "reason"),
    [
        ({"poster_currency": "ngn"}, "must be an upper-case currency code"),
        ({"poster_currency": "EUR"}, "is not one of the poster's currencies"),
        ({"poster_currency": "XYZ", "poster_username": NEW}, "is not one of the poster's currencies"),
        ({"poster_amount": "155025.01"}, "must equal matcher_amount multiplied by exchange_rate"),
        ({"poster_username": "lucie.moreau@example.com"}, "must be an active customer"),
        (
            {"poster_payment_method_type": "zelle_payment"},
            "is not one of the poster's payment types in this currency",
        ),
        (
            NAIRA | {"poster_recipient_username": "chidi.obi@example.com"},
            "cannot be traded with the poster's currency",
        ),
        ({"poster_recipient_username": "nobody@example.com"}, "is not a registered account"),
        ({"poster_recipient_username": "noah.lind@example.com"}, "has no valid receiving bank account"),
        ({"poster_recipient_username": "lucie.moreau@example.com"}, "is not an active account"),
        ({"poster_recipient_username": "chidi.obi@example.com"}, "has no receiving account in this currency"),
        ({"poster_recipient_username": "ada.eze@example.com"}, "must not be the poster"),
    ],
)
def test_an_impossible_order_is_refused_with_the_field_and_the_reason(service: Service, changes, reason):
    assert errors(create(service, order_body(**changes))) == {next(iter(changes)): [reason]}
    assert not service.orders
    assert NEW not in service.accounts


def test_a_beneficiary_without_payment_types_in_the_currency_is_refused():
    held = (CurrencyAccount(code="USD"),)
    service = make_service(Account(username="x@example.com", firstname="X", lastname="Y", currencies=held))

    assert "poster_recipient_username" in errors(
        create(service, order_body(poster_recipient_username="x@example.com"))
    )


def test_usernames_are_compared_in_any_case(service: Service):
    reply = create(service, order_body(poster_recipient_username="Ben.Okri@Example.com"))

    assert reply.status == 200


@each(
    ("poster", "matcher", "field", "reason"),
    [
        ("775.13", "0.50", "matcher_amount", "must be between 1 and 50000 USD"),
        ("999.91", "0.645", "matcher_amount", "must be between 1 and 50000 USD"),
        ("155025000.00", "100000", "matcher_amount", "must be between 1 and 50000 USD"),
        ("775.125", "0.5", "poster_amount", "must be between 1000 and 50000000 NGN"),
        ("155025000.00", "100000", "poster_amount", "must be between 1000 and 50000000 NGN"),
        ("155026.55025", "100.001", "matcher_amount", "must be a multiple of 0.01 USD"),
        ("155026.55025", "100.001", "poster_amount", "must be a multiple of 0.01 NGN"),
    ],
)
def test_amounts_outside_the_limits_or_steps_are_refused(
    service: Service, poster: str, matcher: str, field: str, reason: str
):
    reply = create(service, order_body(poster_amount=poster, matcher_amount=matcher))

    assert errors(reply)[field] == [reason]


def test_an_order_of_exactly_the_maximum_amount_is_created(service: Service):
    largest = order_body(matcher_amount="50000", exchange_rate="1000", poster_amount="50000000")

    assert create(service, largest).status == 200


def test_an_amount_step_may_exceed_one_unit(service: Service):
    body = order_body(
        poster_recipient_username="wanjiru.kamau@example.com",
        matcher_currency="KES",
        exchange_rate="12.5",
        poster_amount="1562.5",
        matcher_amount="125",
    )

    assert errors(create(service, body)) == {"matcher_amount": ["must be a multiple of 50 KES"]}
    assert create(service, body | {"matcher_amount": "150", "poster_amount": 1875}).status == 200


def test_the_first_order_registers_an_unknown_poster(service: Service):
    body = order_body(poster_username="new.customer@example.com")
    first, second = create(service, body), create(service, body)
    poster = service.accounts["new.customer@example.com"]

    assert (first.status, second.status) == (200, 200)
    assert (poster.firstname, poster.lastname) == ("New", "Customer")
    assert (poster.country, poster.country_abbreviation) == ("Nigeria", "NG")
    assert json.loads(first.body)["user_id"] == json.loads(second.body)["user_id"] == poster.id


def test_a_bank_is_neither_poster_nor_beneficiary():
    bank = Account(username="bank@example.com", firstname="A", lastname="Bank", is_bank=True)
    people = [account for account in DEFAULT_ACCOUNTS if not account.is_bank]
    service = Service(accounts=Accounts([bank, *people]), token="secret", seed=0, now=lambda: NOON)
    as_poster = create(service, order_body(poster_username="bank@example.com"))
    as_beneficiary = create(service, order_body(poster_recipient_username="bank@example.com"))

    assert errors(as_poster) == {"poster_username": ["must be an active customer"]}
    assert errors(as_beneficiary) == {"poster_recipient_username": ["is not a registered account"]}
