"""The sandbox's responses conform to its OpenAPI document.

Schemathesis generates valid and invalid requests and checks the responses; the size is the number of requests
for each operation. Its pytest plug-in is not loaded: it would slow every test run by seconds.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, Decimal
from typing import Any

import jsonschema_rs as jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks as openapi

from tests.sandbox.wire_client import CREATE, order_body
from transfer_async.sandbox import DEFAULT_ACCOUNTS, Sandbox, wire
from transfer_async.sandbox.accounts import CURRENCY_LIMITS, default_payment_types
from transfer_async.sandbox.control import DOCUMENT
from transfer_async.testing import RunningSandbox

TIMEOUT = 10.0  # the timeout of one response
DOCUMENTED = json.loads(DOCUMENT)
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENTED).get_all_operations()]

pytestmark = [pytest.mark.trial(ci=40, long=5_000), pytest.mark.timeout(3600)]
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)

CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
    openapi.negative_data_rejection,
    openapi.ignored_auth,
    openapi.unsupported_method,
]


class Service:
    """A sandbox that counts its responses by status."""

    def __init__(self, sandbox: Sandbox, session: requests.Session) -> None:
        self.sandbox, self.session = sandbox, session
        self.answered: Counter[int] = Counter()
        self.options = {"base_url": sandbox.base_url, "session": session, "timeout": TIMEOUT}

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.sandbox.token}"}

    def count(self, response: Any) -> Any:
        self.answered[response.status_code] += 1
        return response

    def create(self, body: bytes) -> Any:
        headers = self.headers | {"Content-Type": "application/json", "Accept": "application/json"}
        url = self.sandbox.base_url + CREATE
        return self.count(self.session.post(url, data=body, headers=headers, timeout=TIMEOUT))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with RunningSandbox(keep_requests=10) as sandbox, requests.Session() as session:
        service = Service(sandbox, session)
        yield service
    print(f"answered: {sum(service.answered.values())} requests, by status {dict(service.answered)}")  # noqa: T201


def many(size: int, cases: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Run this number of cases."""

    @given(cases)
    @settings(max_examples=size, deadline=None, suppress_health_check=list(HealthCheck))
    def each(case: Any) -> None:
        check(case)

    each()


@each_operation
def test_every_response_conforms_to_the_document(operation: Any, service: Service, size: int):
    def check(case: Any) -> None:
        service.count(case.call_and_validate(headers=service.headers, checks=CHECKS, **service.options))

    many(size, operation.as_strategy(), check)


@each_operation
def test_every_request_without_the_token_is_refused(operation: Any, service: Service, size: int):
    def check(case: Any) -> None:
        before = len(service.sandbox.orders)
        response = service.count(case.call(**service.options))

        assert response.status_code in (400, 401, 405)
        assert response.status_code != 401 or response.json() == {"message": "Unauthorized"}
        assert len(service.sandbox.orders) == before

    many(size, operation.as_strategy(), check)


# --- good orders ----------------------------------------------------------------------------------


def fits(schema: str, value: Any) -> bool:
    """Return whether a value conforms to a schema of the document."""
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENTED["components"]}
    return bool(jsonschema.validator_for(wanted, validate_formats=True).is_valid(value))


RECIPIENTS = [
    account for account in DEFAULT_ACCOUNTS if account.payable and account.active and not account.is_bank
]
TRADES = [
    (recipient, held, CURRENCY_LIMITS[code.upper()])
    for recipient in RECIPIENTS
    for held in recipient.currencies
    for code in held.can_trade_with
]


def grid(draw: st.DrawFn, low: Decimal, high: Decimal, step: Decimal) -> Decimal:
    """Draw a multiple of `step` between two amounts."""
    least = int((low / step).to_integral_value(ROUND_CEILING))
    return draw(st.integers(least, int(high // step))) * step


@st.composite
def good_orders(draw: st.DrawFn) -> dict[str, Any]:
    """Generate valid orders of new and known customers."""
    recipient, wanted, paid = draw(st.sampled_from(TRADES))
    whole = max(Decimal(1), wanted.steps)
    amount = grid(draw, wanted.min_amount, min(wanted.max_amount, paid.max_amount / paid.steps), whole)
    rate = grid(draw, paid.min_amount / amount, paid.max_amount / amount, paid.steps)
    written = draw(st.sampled_from([str, Decimal]))
    name = draw(st.from_regex(r"[a-z]{1,20}(\.[a-z]{1,20})?[0-9]{3}", fullmatch=True))
    customer = f"{name}@{paid.code.lower()}.example"  # a customer keeps the currency of the first order
    return order_body(
        poster_username=customer,
        poster_recipient_username=recipient.username,
        poster_currency=paid.code,
        poster_amount=written(amount * rate),
        poster_payment_method_type=draw(
            st.sampled_from(sorted(default_payment_types(paid.code, name="-", email=customer)))
        ),
        matcher_currency=wanted.code,
        matcher_amount=written(amount),
        exchange_rate=str(rate),
    )


def test_a_valid_order_is_created_as_sent(service: Service, size: int):
    sent = ("poster_currency", "poster_payment_method_type", "matcher_currency", "matcher_country")

    def check(order: dict[str, Any]) -> None:
        body = wire.write(order)
        response = service.create(body)
        answer = wire.read(response.content)

        assert response.status_code == 200, response.text
        assert answer["id"] in service.sandbox.orders
        assert answer["poster_amount"] == Decimal(order["poster_amount"])
        assert answer["matcher_amount"] * answer["exchange_rate"] == answer["poster_amount"]
        assert {name: answer[name] for name in sent} == {name: order[name] for name in sent}
        assert answer["poster_fee"] == answer["external_order"]["transaction_fee"] == 250
        assert fits("NewOrder", json.loads(body))
        assert fits("Order", response.json())

    many(size, good_orders(), check)


def test_the_documents_example_creates_an_order(service: Service):
    operation = DOCUMENTED["paths"][CREATE]["post"]
    (example,) = operation["requestBody"]["content"]["application/json"]["examples"].values()
    before = len(service.sandbox.orders)

    assert fits("NewOrder", example["value"])
    assert service.create(wire.write(example["value"])).status_code == 200
    assert len(service.sandbox.orders) == before + 1
