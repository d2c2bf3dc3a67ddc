"""Classification of an exchange: both tables, every status, and the resulting errors."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from tests.support import samples
from tests.support.cases import each
from transfer_async import (
    ConnectionFailed,
    Outcome,
    OutcomeUnknown,
    RateLimited,
    Refused,
    RetryPolicy,
    ServiceFailed,
    Unauthorized,
)
from transfer_async._converters.converter import read_answer
from transfer_async._http.classify import (
    ORDER_ANSWERS,
    READ_ANSWERS,
    RETRYABLE,
    Classification,
    classify_response,
    error_of,
    fields_named,
    other_order,
)
from transfer_async._http.transport import ExchangeResult
from transfer_async._models.errors import CauseKind

EVERY_STATUS = range(100, 600)
DEFAULT = RetryPolicy()
NOW = datetime(2024, 5, 6, 12, tzinfo=UTC)

JSON = b'{"message": "A service\'s own words."}'
HTML = b"<html><body>Blocked by the firewall</body></html>"
UNAUTHORIZED = b'{"message": "Unauthorized"}'


def answered(status, body=JSON, *, intact=True, headers=(), error=None):
    return ExchangeResult(
        sent=True, status=status, body=body, intact=intact, headers=CIMultiDict(headers), error=error
    )


def table_of(rows, body, policy=DEFAULT, *, intact=True):
    """Return every status and its classification."""
    return {
        status: classify_response(answered(status, body, intact=intact), policy, rows)
        for status in EVERY_STATUS
    }


def expected(*sets, otherwise):
    """Return every status and the classification of the first set that contains it."""
    return {
        status: next((classification for statuses, classification in sets if status in statuses), otherwise)
        for status in EVERY_STATUS
    }


# --- the tables ---------------------------------------------------------------------------------

# The tables once more, written from the contract alone, not from the code.
WRONG_TOKEN = ({401}, Classification.WRONG_TOKEN)
ANSWERED = (range(200, 300), Classification.ANSWERED)
NOT_PROCESSED = ({425, 429}, Classification.NOT_PROCESSED)
REFUSES = {*range(400, 408), *range(410, 418), 421, 422, 426, 428, 431, 451}
PASSING = {ORDER_ANSWERS: (), READ_ANSWERS: {408, 500, 502, 503, 504}}


@each(
    ("rows", "body", "intact", "refuses"),
    [
        (ORDER_ANSWERS, JSON, True, REFUSES),
        *((ORDER_ANSWERS, body, True, REFUSES - {403}) for body in (HTML, b"")),
        *((ORDER_ANSWERS, body, False, REFUSES - {403}) for body in (JSON[:9], JSON)),
        *((READ_ANSWERS, body, True, REFUSES) for body in (JSON, HTML, b"")),
        (READ_ANSWERS, JSON, False, REFUSES),
    ],
)
def test_each_status_has_its_row_and_a_403_refuses_an_order_only_with_intact_json(
    rows, body, intact, refuses
):
    refused, passing = (refuses, Classification.REFUSED), (PASSING[rows], Classification.FAILED)

    assert table_of(rows, body, intact=intact) == expected(
        WRONG_TOKEN, ANSWERED, NOT_PROCESSED, refused, passing, otherwise=Classification.UNKNOWN
    )


@each(
    ("not_processed", "refused"),
    [({425, 429, 408, 503}, {400, 422}), ((), {400, 422}), ({422}, {422}), ({401}, ())],
)
def test_a_bank_may_change_all_statuses_of_not_processed_and_refused_but_401(not_processed, refused):
    policy = RetryPolicy(not_processed=not_processed, refused=refused)

    assert table_of(ORDER_ANSWERS, JSON, policy) == expected(
        WRONG_TOKEN,
        ANSWERED,
        (not_processed, Classification.NOT_PROCESSED),
        (refused, Classification.REFUSED),
        otherwise=Classification.UNKNOWN,
    )


@each("rows", [ORDER_ANSWERS, READ_ANSWERS])
def test_the_specifications_body_is_a_wrong_token_with_any_2xx_or_4xx(rows):
    table = table_of(rows, UNAUTHORIZED)

    assert {
        status for status, classification in table.items() if classification is Classification.WRONG_TOKEN
    } == {*range(200, 300), *range(400, 500)}


OTHER_BODIES = [
    *(b'{"message": "unauthorized"}', b'{"message": "Unauthorized."}', b'{"message": ["Unauthorized"]}'),
    *(b'{"message": "Unauthorized", "id": "tx-1"}', b'{"Message": "Unauthorized"}'),
    *(b'{"message": "created", "message": "Unauthorized"}', b'["Unauthorized"]', b'"Unauthorized"'),
    *(b"Unauthorized", b'{"message": "Unauthorized"}}', b"", UNAUTHORIZED.ljust(200)),
]


@each(
    ("status", "body", "intact", "classification"),
    [
        *((403, body, True, Classification.REFUSED) for body in (b"{}", b"[]", b'"no"', b" 1 ")),
        (200, b'{ "message" :\n"Unauthorized" }\n', True, Classification.WRONG_TOKEN),
        (200, b'{"message":"Unauthorized"}', True, Classification.WRONG_TOKEN),
        *((200, body, True, Classification.ANSWERED) for body in OTHER_BODIES),
        (200, UNAUTHORIZED, False, Classification.ANSWERED),
        (401, b"", False, Classification.WRONG_TOKEN),
    ],
)
def test_the_exact_body_of_a_200_or_a_403_decides(status, body, intact, classification):
    result = answered(status, body, intact=intact)

    assert classify_response(result, DEFAULT, ORDER_ANSWERS) is classification


# --- the evidence comes first -------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ORDER_ANSWERS, READ_ANSWERS], ids=["orders", "reads"])
@given(
    st.sampled_from([None, *EVERY_STATUS]), st.sampled_from([JSON, HTML, UNAUTHORIZED, b""]), st.booleans()
)
def test_an_unsent_request_is_not_sent_despite_any_answer(rows, status, body, intact):
    evidence = ExchangeResult(sent=False, status=status, body=body, intact=intact)

    assert classify_response(evidence, DEFAULT, rows) is Classification.NOT_SENT


def test_without_an_answer_an_order_is_in_doubt_and_a_read_fails():
    assert classify_response(ExchangeResult(sent=True), DEFAULT, ORDER_ANSWERS) is Classification.UNKNOWN
    assert classify_response(ExchangeResult(sent=True), DEFAULT, READ_ANSWERS) is Classification.FAILED


def test_only_definite_failures_are_retryable():
    assert {Classification.NOT_SENT, Classification.NOT_PROCESSED} == RETRYABLE


# --- errors -------------------------------------------------------------------------------------


def error(classification, evidence, *, reading=False):
    return error_of(classification, evidence, now=NOW, reading=reading)


@each(
    ("classification", "status", "reading", "kind", "outcome"),
    [
        (Classification.NOT_SENT, None, False, ConnectionFailed, Outcome.NOT_SENT),
        (Classification.NOT_SENT, None, True, ConnectionFailed, Outcome.NOT_SENT),
        (Classification.WRONG_TOKEN, 401, False, Unauthorized, Outcome.REFUSED),
        (Classification.WRONG_TOKEN, 200, True, Unauthorized, Outcome.REFUSED),
        (Classification.NOT_PROCESSED, 429, False, RateLimited, Outcome.REFUSED),
        (Classification.NOT_PROCESSED, 425, False, Refused, Outcome.REFUSED),
        (Classification.NOT_PROCESSED, 503, False, Refused, Outcome.REFUSED),
        (Classification.NOT_PROCESSED, 429, True, RateLimited, Outcome.REFUSED),
        (Classification.REFUSED, 422, False, Refused, Outcome.REFUSED),
        (Classification.REFUSED, 404, True, Refused, Outcome.REFUSED),
        (Classification.UNKNOWN, 503, False, OutcomeUnknown, Outcome.UNKNOWN),
        (Classification.UNKNOWN, None, False, OutcomeUnknown, Outcome.UNKNOWN),
        (Classification.FAILED, 503, True, ServiceFailed, Outcome.NOT_SENT),
        (Classification.FAILED, None, True, ServiceFailed, Outcome.NOT_SENT),
        (Classification.UNKNOWN, 302, True, ServiceFailed, Outcome.NOT_SENT),
    ],
)
def test_each_verdict_has_its_error(classification, status, reading, kind, outcome):
    failure = error(classification, ExchangeResult(sent=True, status=status), reading=reading)

    assert type(failure) is kind
    assert failure.outcome is outcome


@each(
    ("classification", "status", "body", "message"),
    [
        (Classification.REFUSED, 422, JSON, "A service's own words."),
        (Classification.WRONG_TOKEN, 200, UNAUTHORIZED, "Unauthorized"),
        *(
            (Classification.REFUSED, 422, body, None)
            for body in (b"", b"<p>", b"[]", b"{}", b'{"message": 5}', b'{"message": null}', b'{"m')
        ),
    ],
)
def test_a_refusal_carries_the_services_message_if_it_is_a_text(classification, status, body, message):
    failure = error(classification, answered(status, body, headers={"X-Request-Id": "req-7"}))

    assert (failure.status, failure.message, failure.body, failure.request_id) == (
        status,
        message,
        body,
        "req-7",
    )


BAD_GATEWAY = answered(502, HTML, headers={"X-Request-Id": "req-7"})
LOST = ExchangeResult(sent=True, error=ConnectionResetError("s3cr3t"))


@each(
    ("evidence", "doubt", "failed", "raw"),
    [
        (
            BAD_GATEWAY,
            "the request may have been processed (status 502, request req-7)",
            "no usable response (status 502, request req-7)",
            HTML,
        ),
        (ExchangeResult(sent=True), "the request may have been processed", "no usable response", None),
        (
            LOST,
            "the request may have been processed (ConnectionResetError)",
            "no usable response (ConnectionResetError)",
            None,
        ),
    ],
)
def test_a_doubt_and_a_failed_read_carry_the_bytes_and_name_the_failure(evidence, doubt, failed, raw):
    unknown = error(Classification.UNKNOWN, evidence)
    read = error(Classification.FAILED, evidence, reading=True)

    assert (str(unknown), unknown.raw) == (doubt, raw)
    assert (str(read), read.body) == (failed, raw or b"")
    assert (read.status, read.request_id) == (unknown.status, unknown.request_id)
    assert (unknown.status, unknown.request_id) == (evidence.status, evidence.request_id)


@each(
    ("evidence", "kind"),
    [
        (ExchangeResult(sent=True), CauseKind.NO_ANSWER),
        (ExchangeResult(sent=True, status=422, intact=True, alone=False), CauseKind.SECOND_ANSWER),
        (answered(503), CauseKind.STATUS),
        (answered(503, intact=False), CauseKind.CUT_ANSWER),
    ],
)
def test_a_doubt_has_the_kind_of_its_cause(evidence, kind):
    """The kind decides what an operator does first."""
    assert error(Classification.UNKNOWN, evidence).kind is kind


def test_an_error_has_the_exception_beneath_it_as_its_cause_but_no_cancellation():
    lost = ConnectionResetError()

    assert error(Classification.UNKNOWN, ExchangeResult(sent=True, error=lost)).__cause__ is lost
    for none in (None, asyncio.CancelledError()):
        assert error(Classification.UNKNOWN, ExchangeResult(sent=True, error=none)).__cause__ is None


LATER = (NOW + timedelta(seconds=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")


@each(("header", "asked"), [("7", 7.0), (LATER, 90.0), ("soon", None)])
@each(
    ("classification", "status", "reading"),
    [
        (Classification.NOT_PROCESSED, 429, False),
        (Classification.NOT_PROCESSED, 425, False),
        (Classification.NOT_PROCESSED, 429, True),
        (Classification.FAILED, 503, True),
    ],
)
def test_retryable_errors_carry_retry_after(classification, status, reading, header, asked):
    failure = error(classification, answered(status, headers={"retry-after": header}), reading=reading)

    assert failure.retry_after == asked


SECRETS = json.dumps({"message": "s3cr3t-words", "name": "s3cr3t-name"}).encode()


@each("classification", [one for one in Classification if one is not Classification.ANSWERED])
@each("reading", [False, True])
def test_each_error_shows_status_and_request_id_but_no_body_and_a_reads_has_no_order(classification, reading):
    evidence = answered(422, SECRETS, headers={"X-Request-Id": "req-7"}, error=ValueError("s3cr3t-cause"))
    failure = error(classification, evidence, reading=reading)

    assert "422" in str(failure)
    assert "req-7" in str(failure)
    assert "s3cr3t" not in f"{failure} {failure!r}"
    assert not (reading and failure.order_may_exist)


def test_only_field_names_of_the_specification_are_taken_from_a_refusal():
    """A service may put anything there, even personal data. Only known field names are safe to show."""
    named = {"matcher_amount": ["12 of Ada"], "ada.eze@example.com": [], "external_order.transaction_fee": 1}

    assert fields_named(json.dumps({"errors": named}).encode()) == (
        "matcher_amount",
        "external_order.transaction_fee",
    )
    for body in (b"", b"{", b"[]", b'{"errors": ["matcher_amount"]}', b'{"errors": null}'):
        assert fields_named(body) == ()


def test_a_refused_order_has_the_fields_that_the_refusal_names_and_a_refused_read_has_none():
    refusal = answered(422, b'{"errors": {"matcher_amount": ["too high"]}}')

    assert error(Classification.REFUSED, refusal).fields == ("matcher_amount",)
    assert error(Classification.REFUSED, refusal, reading=True).fields == ()


# --- another order ------------------------------------------------------------------------------


SENT = samples.new_order()
FINE = samples.new_order(poster_amount="1.2345", matcher_amount="987.6", exchange_rate="0.00125")
POSTER, BENEFICIARY = SENT.poster_username, SENT.poster_recipient_username


def difference(*, sent=SENT, poster=POSTER, beneficiary=BENEFICIARY, **shown):
    """Return the field in which a response with ``shown`` differs from ``sent``."""
    shown |= {"user": {"username": poster}, "postersBeneficiary": {"username": beneficiary}}
    amounts = {"poster_amount": sent.poster_amount, "matcher_amount": sent.matcher_amount}
    return other_order(sent, read_answer(samples.encode(samples.order_json(**amounts | shown))))


@each(
    ("shown", "field"),
    [
        ({}, None),
        ({"poster_currency": "EUR"}, "poster_currency"),
        ({"matcher_currency": "GHS"}, "matcher_currency"),
        ({"poster_amount": 1250.01}, None),
        ({"poster_amount": 1250.011}, "poster_amount"),
        ({"matcher_amount": 999999.99}, None),
        ({"matcher_amount": 999999.98}, "matcher_amount"),
        ({"sent": FINE, "poster_amount": Decimal("1.2346")}, None),
        ({"sent": FINE, "poster_amount": Decimal("1.23461")}, "poster_amount"),
        ({"poster": "Ada.Okafor@Example.org", "beneficiary": None}, None),
        ({"poster": None, "beneficiary": "BEN.OKRI@EXAMPLE.ORG"}, None),
        ({"poster": BENEFICIARY}, "poster's username"),
        ({"beneficiary": POSTER}, "beneficiary's username"),
    ],
)
def test_a_response_with_another_amount_currency_or_person_is_to_another_order(shown, field):
    assert difference(**shown) == field
