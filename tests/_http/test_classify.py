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


# The tables once more, written from the contract alone, not from the code.
WRONG_TOKEN = ({401}, Classification.WRONG_TOKEN)
ANSWERED = (range(200, 300), Classification.ANSWERED)
NOT_PROCESSED = ({425, 429}, Classification.NOT_PROCESSED)
REFUSES = {*range(400, 408), *range(410, 418), 421, 422, 426, 428, 431, 451}
REFUSED = (REFUSES, Classification.REFUSED)
PASSING = ({408, 500, 502, 503, 504}, Classification.FAILED)

# --- orders -------------------------------------------------------------------------------------


@each(
    ("body", "intact", "page"),
    [
        (JSON, True, {}),
        (HTML, True, {403}),
        (b"", True, {403}),
        (JSON[:9], False, {403}),
        (JSON, False, {403}),
    ],
)
def test_a_403_refuses_an_order_only_with_an_intact_json_body(body, intact, page):
    told = table_of(ORDER_ANSWERS, body, intact=intact)
    refused = (REFUSES - {*page}, Classification.REFUSED)

    assert told == expected(WRONG_TOKEN, ANSWERED, NOT_PROCESSED, refused, otherwise=Classification.UNKNOWN)


@each("body", [b"{}", b"[]", b'"no"', b" 1 ", JSON])
def test_a_403_with_any_json_is_a_refusal(body):
    assert classify_response(answered(403, body), DEFAULT, ORDER_ANSWERS) is Classification.REFUSED


@each("statuses", [{425, 429, 408, 503}, ()])
def test_a_bank_may_change_the_statuses_of_not_processed_and_refused(statuses):
    policy = RetryPolicy(not_processed=statuses, refused={400, 422})

    assert table_of(ORDER_ANSWERS, JSON, policy) == expected(
        WRONG_TOKEN,
        ANSWERED,
        (statuses, Classification.NOT_PROCESSED),
        ({400, 422}, Classification.REFUSED),
        otherwise=Classification.UNKNOWN,
    )


def test_a_status_in_both_sets_was_not_processed():
    policy = RetryPolicy(not_processed={422}, refused={422})

    assert classify_response(answered(422), policy, ORDER_ANSWERS) is Classification.NOT_PROCESSED


# --- reads --------------------------------------------------------------------------------------


@each(("body", "intact"), [(JSON, True), (HTML, True), (b"", True), (JSON, False)])
def test_the_statuses_of_reads_are_classified(body, intact):
    told = table_of(READ_ANSWERS, body, intact=intact)

    assert told == expected(
        WRONG_TOKEN, ANSWERED, NOT_PROCESSED, REFUSED, PASSING, otherwise=Classification.UNKNOWN
    )


# --- the wrong token ----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ORDER_ANSWERS, READ_ANSWERS], ids=["orders", "reads"])
def test_the_specifications_body_is_a_wrong_token_with_any_2xx_or_4xx(rows):
    told = table_of(rows, UNAUTHORIZED)

    assert {
        status for status, classification in told.items() if classification is Classification.WRONG_TOKEN
    } == {*range(200, 300), *range(400, 500)}


@pytest.mark.parametrize("body", [b'{ "message" :\n"Unauthorized" }\n', b'{"message":"Unauthorized"}'])
def test_spaces_in_the_wrong_token_body_do_not_matter(body):
    assert classify_response(answered(200, body), DEFAULT, ORDER_ANSWERS) is Classification.WRONG_TOKEN


@each(
    "body",
    [
        *(b'{"message": "unauthorized"}', b'{"message": "Unauthorized."}', b'{"message": ["Unauthorized"]}'),
        *(b'{"message": "Unauthorized", "id": "tx-1"}', b'{"Message": "Unauthorized"}'),
        *(b'{"message": "created", "message": "Unauthorized"}', b'["Unauthorized"]', b'"Unauthorized"'),
        *(b"Unauthorized", b'{"message": "Unauthorized"}}', b"", UNAUTHORIZED.ljust(200)),
    ],
)
def test_a_200_with_any_other_body_is_not_a_wrong_token(body):
    assert classify_response(answered(200, body), DEFAULT, ORDER_ANSWERS) is Classification.ANSWERED


def test_a_cut_body_is_no_wrong_token_with_a_2xx():
    cut = answered(200, UNAUTHORIZED, intact=False)

    assert classify_response(cut, DEFAULT, ORDER_ANSWERS) is Classification.ANSWERED


def test_a_401_needs_no_body():
    assert (
        classify_response(answered(401, b"", intact=False), DEFAULT, ORDER_ANSWERS)
        is Classification.WRONG_TOKEN
    )


def test_a_401_is_a_wrong_token_whatever_the_policy_says():
    policy = RetryPolicy(refused=(), not_processed={401})

    assert classify_response(answered(401), policy, ORDER_ANSWERS) is Classification.WRONG_TOKEN


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

ERRORS = [
    classification for classification in Classification if classification is not Classification.ANSWERED
]


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
    told = error(classification, ExchangeResult(sent=True, status=status), reading=reading)

    assert type(told) is kind
    assert told.outcome is outcome


@each("classification", ERRORS)
def test_the_error_of_a_read_has_no_order_at_stake(classification):
    assert error(classification, answered(400), reading=True).order_may_exist is False


@each(
    ("classification", "status", "body", "message"),
    [
        (Classification.REFUSED, 422, JSON, "A service's own words."),
        (Classification.WRONG_TOKEN, 200, UNAUTHORIZED, "Unauthorized"),
    ],
)
def test_a_refusal_carries_the_services_message(classification, status, body, message):
    told = error(classification, answered(status, body, headers={"X-Request-Id": "req-7"}))

    assert (told.status, told.message, told.body, told.request_id) == (status, message, body, "req-7")


@each("body", [b"", b"<p>", b"[]", b"{}", b'{"message": 5}', b'{"message": null}', b'{"m'])
def test_a_refusal_without_readable_text_has_no_message(body):
    told = error(Classification.REFUSED, answered(422, body))

    assert told.message is None
    assert told.body == body


def test_a_doubt_and_a_failed_read_carry_the_bytes():
    evidence = answered(502, HTML, headers={"X-Request-Id": "req-7"})
    doubt, failed = (
        error(Classification.UNKNOWN, evidence),
        error(Classification.FAILED, evidence, reading=True),
    )
    lost = error(Classification.UNKNOWN, ExchangeResult(sent=True))

    assert (doubt.status, doubt.raw, doubt.request_id) == (502, HTML, "req-7")
    assert (failed.status, failed.body, failed.request_id) == (502, HTML, "req-7")
    assert str(failed) == "no usable response (status 502, request req-7)"
    assert (lost.status, lost.raw, lost.request_id) == (None, None, None)
    assert str(lost) == "the request may have been processed"


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
    told = error(classification, answered(status, headers={"retry-after": header}), reading=reading)

    assert told.retry_after == asked


SECRETS = json.dumps({"message": "s3cr3t-words", "name": "s3cr3t-name"}).encode()


@each("reading", [False, True])
@each("classification", ERRORS)
def test_no_message_shows_a_body(classification, reading):
    told = error(classification, answered(422, SECRETS, error=ValueError("s3cr3t-cause")), reading=reading)

    assert "s3cr3t" not in f"{told} {told!r}"


@each("reading", [False, True])
@each("classification", ERRORS)
def test_a_message_shows_status_and_request_id(classification, reading):
    told = error(classification, answered(422, headers={"X-Request-Id": "req-7"}), reading=reading)

    assert "422" in str(told)
    assert "req-7" in str(told)


def test_the_error_of_a_lost_answer_names_the_kind_of_failure():
    lost = ExchangeResult(sent=True, error=ConnectionResetError("s3cr3t"))
    doubt, failed = error(Classification.UNKNOWN, lost), error(Classification.FAILED, lost, reading=True)

    assert str(doubt) == "the request may have been processed (ConnectionResetError)"
    assert str(failed) == "no usable response (ConnectionResetError)"


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
        ({"poster": "Ada.Okafor@Example.org", "beneficiary": None}, None),
        ({"poster": None, "beneficiary": "BEN.OKRI@EXAMPLE.ORG"}, None),
        ({"poster": BENEFICIARY}, "poster's username"),
        ({"beneficiary": POSTER}, "beneficiary's username"),
    ],
)
def test_a_response_with_another_amount_currency_or_person_is_to_another_order(shown, field):
    assert difference(**shown) == field


def test_the_amount_in_a_response_may_differ_by_one_unit_of_its_last_place():
    fine = samples.new_order(poster_amount="1.2345", matcher_amount="987.6", exchange_rate="0.00125")

    assert difference(sent=fine, poster_amount=Decimal("1.2346")) is None
    assert difference(sent=fine, poster_amount=Decimal("1.23461")) == "poster_amount"
