"""The HTTP responses of a bank to its own callers, as the example web services use them."""

from __future__ import annotations

import transfer_async
from tests.support.cases import each
from transfer_async import (
    AlreadyCreated,
    BeneficiaryNotVerified,
    ClientClosed,
    ConnectionFailed,
    Expired,
    HoldFailed,
    HoldRequired,
    InvalidOrder,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    KeyRecord,
    KeyState,
    MatchResult,
    NotVerifiedReason,
    Order,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    RateLimited,
    Refused,
    Refuted,
    ServiceFailed,
    TokenUnavailable,
    TransferError,
    Unauthorized,
    UnreadableOrder,
    WrongEventLoop,
)
from transfer_async.integrations.http import response_for_record, response_to
from transfer_async.testing import make_order

NO, MAY = {"order_may_exist": False}, {"order_may_exist": True}

INACTIVE_BENEFICIARY = BeneficiaryNotVerified(
    result=MatchResult.NOT_POSSIBLE, reason=NotVerifiedReason.INACTIVE, **NO
)

STATUSES: list[tuple[TransferError, int]] = [
    (InvalidOrder([("matcher_amount", "is missing")]), 422),
    (PreflightFailed("over the limit", **NO), 422),
    (PreflightFailed("it broke", refused=False, **NO), 503),
    (HoldFailed("too little on the account", **NO), 422),
    (HoldRequired("no hold", **NO), 500),
    (BeneficiaryNotVerified("another name", result=MatchResult.NO_MATCH, **NO), 422),
    (BeneficiaryNotVerified("no look-up", result=MatchResult.NOT_POSSIBLE, **NO), 503),
    (INACTIVE_BENEFICIARY, 422),
    (ConnectionFailed("refused", **NO), 503),
    (TokenUnavailable("none", **NO), 503),
    (Expired("too late", **NO), 422),
    (Expired("too late", limit="deadline", **NO), 503),
    (Refused(status=422, fields=["poster_amount"], **NO), 422),
    (Refused(status=404, **NO), 503),
    (Refused(status=422, **MAY), 202),  # another worker has taken the key over
    (PreflightFailed("over the limit", **MAY), 503),
    (Unauthorized(status=401, **NO), 503),
    (RateLimited(status=429, retry_after=6.2, **NO), 503),
    (Refuted(**NO), 422),
    (OutcomeUnknown("lost"), 202),
    (UnreadableOrder("odd", order_id="tx-1"), 202),
    (AlreadyCreated(order_id="tx-1"), 201),
    (KeyConflict("another order"), 422),
    (KeyBusy(retry_after=41.5), 409),
    (JournalFailed("locked"), 503),
    (JournalFailed("the disk is full", outcome=Outcome.UNKNOWN), 202),
    (JournalFailed("the disk is full", outcome=Outcome.REFUSED), 202),
    (JournalFailed("the disk is full", outcome=Outcome.CREATED), 201),
    (ClientClosed("closing"), 503),
    (WrongEventLoop("another loop"), 500),
    (ServiceFailed("a read failed"), 503),
]


def kinds(of: type[TransferError]) -> set[type[TransferError]]:
    return {of} | {kind for sub in of.__subclasses__() for kind in kinds(sub)}


def test_every_public_error_has_an_expected_response() -> None:
    public = {kind for kind in kinds(TransferError) if getattr(transfer_async, kind.__name__, None) is kind}

    assert public - {type(error) for error, _ in STATUSES} == {TransferError}


@each(("error", "status"), STATUSES)
def test_each_error_gets_its_status_and_retry_after_header(error: TransferError, status: int) -> None:
    response = response_to(error, key="a/b")

    assert response.status == status
    assert response.body["order_may_exist"] is error.order_may_exist
    if error.outcome is Outcome.UNKNOWN:
        assert (response.status, response.body["ask"]) == (202, "/payments/a%2Fb")
    if error.order_may_exist:
        assert response.status in (201, 202, 409, 500, 503) or isinstance(error, KeyConflict)
    assert ("Retry-After" in response.headers) == (response.status in (202, 409, 503))


@each(("error", "seconds"), [(KeyBusy(retry_after=41.5), "42"), (ConnectionFailed(), "5")])
def test_the_response_says_when_to_retry(error: TransferError, seconds: str) -> None:
    assert response_to(error, key="k").headers == {"Retry-After": seconds}


@each("state", KeyState)
def test_an_unreadable_record_is_never_reported_as_free(state: KeyState) -> None:
    response = response_for_record(KeyRecord(state=state, intent_id="1", readable=False), key="k")

    assert response.body["order_may_exist"]


@each("state", [KeyState.CLAIMED, KeyState.SENDING, KeyState.IN_DOUBT])
def test_a_key_in_progress_or_in_doubt_is_202(state: KeyState) -> None:
    response = response_for_record(KeyRecord(state=state, intent_id="1"), key="k")

    assert (response.status, response.headers) == (202, {"Retry-After": "5"})
    assert response.body == {"key": "k", "state": state.value, "order_may_exist": True}


def test_created_and_free_keys_get_200_and_an_unknown_key_404() -> None:
    created = KeyRecord(state=KeyState.CREATED, intent_id="1", order_id="tx-1")
    free = KeyRecord(state=KeyState.FREE, intent_id="1")
    responses = [response_for_record(record, key="k") for record in (created, free, None)]

    assert [response.status for response in responses] == [200, 200, 404]
    assert [response.body["order_may_exist"] for response in responses] == [True, False, False]
    assert responses[0].body["order_id"] == "tx-1"


@each(
    "result",
    [
        make_order(id="tx-1"),
        AlreadyCreated(order_id="tx-1"),
        JournalFailed(order=make_order(id="tx-1"), outcome=Outcome.CREATED),
    ],
)
def test_an_order_that_exists_is_201_with_its_id(result: Order | TransferError) -> None:
    response = response_to(result, key="k")

    assert (response.status, response.headers) == (201, {})
    assert response.body == {"key": "k", "outcome": "created", "order_may_exist": True, "order_id": "tx-1"}


def test_the_response_contains_the_given_status_url() -> None:
    response = response_to(OutcomeUnknown(), key="a b", ask="https://bank.example/v2/{key}/state")

    assert response.body["ask"] == "https://bank.example/v2/a%20b/state"


def test_the_body_names_the_fields_to_correct_and_holds_no_text_of_an_error() -> None:
    inactive = response_to(INACTIVE_BENEFICIARY, key="k").body
    invalid = response_to(InvalidOrder([("matcher_amount", "is missing")]), key="k").body
    refused = response_to(Refused("secret", status=422, fields=["poster_amount"], **NO), key="k").body

    assert (inactive["beneficiary"], inactive["reason"]) == ("NOAP", "inactive")
    assert invalid["problems"] == [{"field": "matcher_amount", "why": "is missing"}]
    assert refused == {"key": "k", "outcome": "refused", "order_may_exist": False} | {
        "error": "Refused",
        "fields": ["poster_amount"],
    }
