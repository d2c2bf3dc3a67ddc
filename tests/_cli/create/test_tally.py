"""The counts of outcomes, and the exit code and the advice that follow from them."""

from tests.support.cases import each
from tests.support.samples import encode, order_json
from transfer_async._cli.create_outcomes import Tally, code_of, outcome_of
from transfer_async._models.errors import (
    AlreadyCreated,
    BeneficiaryNotVerified,
    ConnectionFailed,
    Expired,
    HoldFailed,
    HoldRequired,
    InvalidOrder,
    JournalFailed,
    KeyBusy,
    KeyConflict,
    MatchResult,
    Outcome,
    OutcomeUnknown,
    RateLimited,
    Refused,
    Refuted,
    TokenUnavailable,
    TransferError,
    Unauthorized,
    UnreadableOrder,
    WrongEventLoop,
)
from transfer_async._models.responses import Order

ORDER = Order.from_json(encode(order_json()))
CASES = [
    (ORDER, Outcome.CREATED, 0),
    (AlreadyCreated(order_id="tx-1"), Outcome.CREATED, 0),
    (Refused(status=422), Outcome.REFUSED, 3),
    (Refuted(), Outcome.REFUSED, 3),
    (RateLimited(status=429), Outcome.REFUSED, 4),
    (Unauthorized(status=401), Outcome.REFUSED, 4),
    (Refused(status=404), Outcome.REFUSED, 4),
    (ConnectionFailed(), Outcome.NOT_SENT, 4),
    (TokenUnavailable(), Outcome.NOT_SENT, 4),
    (HoldFailed(refused=True), Outcome.NOT_SENT, 4),
    (BeneficiaryNotVerified(result=MatchResult.NO_MATCH), Outcome.NOT_SENT, 4),
    (Expired(), Outcome.NOT_SENT, 4),
    (KeyConflict(), Outcome.NOT_SENT, 4),
    (KeyBusy(), Outcome.NOT_SENT, 4),
    (JournalFailed(), Outcome.NOT_SENT, 4),
    (OutcomeUnknown(), Outcome.UNKNOWN, 5),
    (UnreadableOrder(), Outcome.UNKNOWN, 5),
    (JournalFailed(outcome=Outcome.CREATED, order=ORDER), Outcome.CREATED, 5),
    (JournalFailed(outcome=Outcome.REFUSED), Outcome.REFUSED, 5),
    (JournalFailed(outcome=Outcome.UNKNOWN), Outcome.UNKNOWN, 5),
    (RuntimeError(), Outcome.UNKNOWN, 5),
]


@each(("result", "outcome", "code"), CASES)
def test_every_result_has_its_outcome_and_exit_code(result, outcome, code):
    assert (outcome_of(result), code_of(result)) == (outcome, code)


def tally_of(*results) -> Tally:
    tally = Tally()
    for result in results:
        tally.add(result)
    return tally


def test_the_highest_exit_code_counts():
    results = (ORDER, Refused(status=422), ConnectionFailed(), OutcomeUnknown(), ORDER)
    tally = tally_of(*results)

    assert [tally_of(*results[:count]).exit_code for count in range(1, 6)] == [0, 3, 4, 5, 5]
    assert tally.done == 5
    assert tally.counted() == "2 created, 1 refused, 1 not sent, 1 unknown"


AGAIN = "The same command may send these orders: run it again, and do not pay them by other means"
CORRECT = "Correct these lines, keep their keys, and run the same command again"
USE_OTHERS = "They are not sent again: to make the payments, use other keys"


def test_the_advice_says_what_to_do():
    tally = tally_of(OutcomeUnknown(), RateLimited(status=429), KeyBusy(), ORDER, ORDER, ORDER)
    tally.undos_pending, tally.made = 3, 1
    made, doubt, again, owed = tally.advice()

    assert list(Tally().advice()) == []
    assert made == "already created before this run: 2. To make one of these payments again, use another key"
    assert doubt.startswith("in doubt: 1.")
    assert "transfer-async journal list" in doubt
    assert again == f"may succeed later: 2 (RateLimited 1, KeyBusy 1). {AGAIN}"
    assert owed == "failed undos, now pending: 3. Run: transfer-async journal recover"


def test_a_final_refusal_does_not_advise_to_run_the_command_again():
    assert list(tally_of(Refused(status=422), Refuted(), Refused(status=400)).advice()) == [
        f"would be refused again: 2 (Refused 2). {CORRECT}",
        f"refuted: 1. These orders were in doubt and do not exist. {USE_OTHERS}",
    ]


def test_the_most_frequent_reasons_are_named_and_the_others_counted():
    errors = [JournalFailed, Unauthorized, KeyBusy, ConnectionFailed, TokenUnavailable, TokenUnavailable]
    (again,) = tally_of(*(error() for error in errors[1:] + errors * 2)).advice()

    named = "TokenUnavailable 6, Unauthorized 3, KeyBusy 3, others 5"
    assert again == f"may succeed later: 17 ({named}). {AGAIN}"


def test_a_lasting_reason_does_not_advise_to_run_the_command_again():
    """A changed line whose key has an order conflicts in every run, and another key would pay it twice."""
    results = KeyConflict(), HoldRequired(), KeyConflict(), InvalidOrder([("key", "is bad")]), KeyBusy()
    reasons = "KeyConflict 2, HoldRequired 1, InvalidOrder 1"
    read = "Read the reasons in the outcomes before you change these lines"

    assert list(tally_of(*results).advice()) == [
        f"not sent, and the same command would not send them: 4 ({reasons}). {read}",
        "KeyConflict: 2. This key already has another order; a new key makes a second payment",
        f"may succeed later: 1 (KeyBusy 1). {AGAIN}",
    ]


@each("result", [HoldFailed(refused=True), Expired(), WrongEventLoop(), TransferError()])
def test_any_other_order_that_was_not_sent_may_be_sent_by_the_same_command(result):
    """If the operator paid it by other means, the next run would pay it again."""
    (again,) = tally_of(result).advice()

    assert again == f"may succeed later: 1 ({type(result).__name__} 1). {AGAIN}"
