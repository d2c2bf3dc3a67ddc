"""The disposition of a message: every row of the table, compared with a table written from the design."""

import asyncio

import pytest

from tests.support.cases import each
from transfer_async._models import errors as e
from transfer_async._models.errors import MatchResult, Outcome, TransferError
from transfer_async.worker.handler import RULES, Action, Delays, Disposition, disposition

ACK, RETRY, DEAD_LETTER, LEAVE = Action.ACK, Action.RETRY, Action.DEAD_LETTER, Action.LEAVE


def public(of):
    """Return the class ``of`` and all its public subclasses."""
    found = {of}.union(*map(public, of.__subclasses__()))
    return {kind for kind in found if kind.__module__ == e.__name__}


INACTIVE_BENEFICIARY = e.BeneficiaryNotVerified(
    result=MatchResult.NOT_POSSIBLE, reason=e.NotVerifiedReason.INACTIVE
)

EXPECTED = [
    (e.AlreadyCreated(order_id="tx-1"), ACK, {}),
    (e.OutcomeUnknown(), ACK, {}),
    (e.UnreadableOrder(), ACK, {}),
    (e.Unauthorized(status=401), RETRY, {"ready": False}),
    (e.Unauthorized(status=400), RETRY, {"ready": False}),
    (e.Refused(status=404), RETRY, {"ready": False}),
    (e.Refused(status=405), RETRY, {"ready": False}),
    (e.RateLimited(status=429), RETRY, {}),
    (e.RateLimited(status=429, retry_after=17.0), RETRY, {"after": 17.0}),
    (e.Refused(status=425), RETRY, {}),
    (e.Refused(status=503, retry_after=9.0), RETRY, {"after": 9.0}),
    (e.Refused(status=503, retry_after=0.25), RETRY, {}),  # a delay of ours is never shortened
    (e.Refused(status=503, retry_after=31_536_000.0), RETRY, {"after": 3600.0}),
    (e.Refused(status=422), ACK, {}),
    (e.Refused(status=400), ACK, {}),
    (e.Refused(status=403), ACK, {}),
    (e.Refuted(), ACK, {}),
    (e.BeneficiaryNotVerified(result=MatchResult.NO_MATCH), ACK, {}),
    (e.BeneficiaryNotVerified(result=MatchResult.CLOSE_MATCH), ACK, {}),
    (e.BeneficiaryNotVerified(result=MatchResult.NOT_POSSIBLE), RETRY, {"counts": True}),
    (INACTIVE_BENEFICIARY, ACK, {}),
    (e.BeneficiaryNotVerified(result=MatchResult.NO_MATCH, refused=False), RETRY, {"counts": True}),
    (e.HoldRequired(), DEAD_LETTER, {}),
    (e.HoldFailed(refused=True), ACK, {}),
    (e.HoldFailed(refused=False), RETRY, {"counts": True}),
    (e.PreflightFailed(refused=True), ACK, {}),
    (e.PreflightFailed(refused=False), RETRY, {"counts": True}),
    (e.Expired(), ACK, {}),
    (e.KeyBusy(retry_after=42.0), RETRY, {"after": 42.0}),
    (e.KeyBusy(retry_after=0.25), RETRY, {"after": 0.25}),
    (e.KeyBusy(retry_after=3e8), RETRY, {"after": 3600.0}),
    (e.KeyBusy(retry_after=float("inf")), RETRY, {"after": 3600.0}),
    (e.KeyBusy(), RETRY, {}),
    (e.TokenUnavailable(), RETRY, {"ready": False}),
    (e.ConnectionFailed(), RETRY, {"counts": True, "ready": False}),
    (e.JournalFailed(outcome=Outcome.NOT_SENT), RETRY, {}),
    (e.JournalFailed(outcome=Outcome.UNKNOWN), LEAVE, {}),
    (e.JournalFailed(outcome=Outcome.CREATED), LEAVE, {}),
    (e.JournalFailed(outcome=Outcome.REFUSED), LEAVE, {}),
    (e.InvalidOrder([("key", "is missing")]), DEAD_LETTER, {}),
    (e.KeyConflict(), DEAD_LETTER, {}),
    (e.ClientClosed(), LEAVE, {}),
    (e.WrongEventLoop(), LEAVE, {}),
    (e.ServiceFailed(), LEAVE, {}),
    (asyncio.CancelledError(), LEAVE, {}),
    (RuntimeError("ours"), LEAVE, {}),
]


@each(("result", "action", "more"), EXPECTED)
def test_each_result_has_the_expected_disposition(result, action, more):
    what = disposition(result)

    expected = {"after": 1.0 if action is RETRY else 0.0, **more}
    assert what == Disposition(action=action, reason=what.reason, **expected)
    assert what.reason


def test_every_public_error_has_an_expected_disposition():
    thought_of = {type(result) for result, _, _ in EXPECTED}

    assert public(TransferError) - thought_of == {TransferError}


def test_every_row_of_the_table_is_met_by_an_expected_case():
    results = [result for result, _, _ in EXPECTED]
    met = {next(row for row in RULES if row.fits(result)) for result in results}

    assert [row.reason for row in RULES if row not in met] == ["the order exists"]


def test_a_value_that_is_no_result_raises_type_error():
    with pytest.raises(TypeError):
        disposition("created")  # type: ignore[arg-type] # on purpose


def test_the_reason_for_dead_lettering_an_invalid_command_names_its_fields():
    what = disposition(e.InvalidOrder([("order.exchange_rate", "is missing")]))

    assert what.reason == "the command is not valid: order.exchange_rate: is missing"


def test_the_delay_doubles_with_each_delivery_up_to_a_limit():
    waits = [disposition(e.ConnectionFailed(), deliveries=number).after for number in (0, 1, 2, 3, 7, 999)]

    assert waits == [1.0, 1.0, 2.0, 4.0, 60.0, 60.0]


@each(("first", "longest"), [(0, 1), (-1, 1), (2, 1), (1, float("inf"))])
def test_delays_are_checked(first, longest):
    with pytest.raises(ValueError, match="first and longest"):
        Delays(first, longest)
