"""The tree of errors. Each error says what is certain, and none contains a secret."""

import copy
import logging
import pickle
import re
import traceback

import aiohttp
import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async._models import errors
from transfer_async._models.errors import Attempt, MatchResult, Outcome, TransferError
from transfer_async._models.requests import NewOrder
from transfer_async._models.responses import Order, User

SECRET = "s3cr3t-of-somebody"
BODY = SECRET.encode()
ANSWER = Order.from_json(samples.encode(samples.order_json(user_id=SECRET)))
COMMON = {
    "outcome": Outcome.UNKNOWN,
    "order_may_exist": True,
    "key": "payment-8731",
    "attempts": [
        Attempt(number=1, seconds=0.25, outcome=Outcome.NOT_SENT, error="TimeoutError"),
        Attempt(number=2, seconds=1.5, outcome=Outcome.UNKNOWN, status=502, request_id="req-7"),
    ],
    "receipts": {"hold": SECRET, "held": None},
}
REPLY = {"status": 418, "request_id": "req-7"}
NO = REPLY | {"message": SECRET, "body": BODY, "retry_after": 2.5}
EVERY = {
    errors.TransferError: {},
    errors.InvalidOrder: {
        "problems": [("poster_amount", "is a float"), ("poster_country", "is not a string")]
    },
    errors.PreflightFailed: {"refused": False, "hook": "sanctions"},
    errors.HoldFailed: {"refused": False, "hook": "hold"},
    errors.HoldRequired: {"refused": True, "hook": None},
    errors.BeneficiaryNotVerified: {
        "result": MatchResult.CLOSE_MATCH,
        "reason": errors.NotVerifiedReason.DECLINED,
        "hook": "beneficiary",
        "refused": False,
    },
    errors.ConnectionFailed: {},
    errors.TokenUnavailable: {},
    errors.Expired: {"limit": "deadline"},
    errors.Refused: NO,
    errors.Unauthorized: NO,
    errors.RateLimited: NO,
    errors.Refuted: NO,
    errors.OutcomeUnknown: REPLY | {"raw": BODY},
    errors.UnreadableOrder: REPLY | {"raw": BODY, "order_id": "tx-abc123"},
    errors.AlreadyCreated: {"order_id": "tx-abc123"},
    errors.KeyConflict: {},
    errors.KeyBusy: {"retry_after": 2.5},
    errors.JournalFailed: {"order": ANSWER},
    errors.ClientClosed: {},
    errors.WrongEventLoop: {},
    errors.ServiceFailed: REPLY | {"body": BODY},
}
EACH = each("kind", list(EVERY))


def full(kind):
    return kind(**EVERY[kind], **COMMON)


def bare(kind):
    needed = {"problems", "result"} | ({"order_id"} if kind is errors.AlreadyCreated else set())
    return kind(**{name: value for name, value in EVERY[kind].items() if name in needed})


def drawn():
    """Yield each class in the docstring's tree: its name, its parent, and the outcome next to it."""
    parents = []
    for line in errors.__doc__.splitlines():
        if found := re.match(r"    ([│├└─ ]*)(\w+)(?: \(also \w+\))?(?: +(\S+) {2,}.*)?$", line):
            branches, name, word = found.groups()
            if name != "TransferError" and not branches:
                continue
            depth = len(branches) // 4
            parents[depth:] = [name]
            yield name, parents[depth - 1] if depth else None, word


def real(kind=TransferError):
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from real(child)


def test_the_tree_in_the_docstring_has_the_classes_and_their_outcomes():
    tree = list(drawn())

    assert set(EVERY) == set(real())
    assert {(name, parent) for name, parent, _ in tree} == {
        (kind.__name__, kind.__base__.__name__ if kind is not TransferError else None) for kind in EVERY
    }
    assert {name: word for name, _, word in tree if word and word != "(varies)"} == {
        kind.__name__: kind.default_outcome.name
        for kind in EVERY
        if kind not in (TransferError, errors.JournalFailed)
    }


@EACH
def test_unset_details_have_defaults_and_the_outcome_can_be_set(kind):
    """An invalid order cannot exist, and a read creates none. Other errors must set ``order_may_exist``."""
    error, never = bare(kind), kind in (errors.InvalidOrder, errors.ServiceFailed)
    refusal = kind(**EVERY[kind], **COMMON | {"outcome": Outcome.REFUSED, "order_may_exist": False})

    assert (error.key, error.attempts, error.receipts) == (None, (), {})
    assert error.order_may_exist is not never
    assert (refusal.outcome, refusal.order_may_exist) == (Outcome.REFUSED, False)


@EACH
@each("again", {"pickle": lambda error: pickle.loads(pickle.dumps(error)), "copy": copy.copy})
def test_every_error_keeps_its_attributes_through_pickle_and_copy(kind, again):
    error, attributes = full(kind), EVERY[kind] | COMMON
    error.add_note("seen on worker 3")
    twin = again(error)

    assert {name: getattr(twin, name) for name in attributes} == attributes | {
        "attempts": tuple(COMMON["attempts"]),
        **({"problems": tuple(attributes["problems"])} if "problems" in attributes else {}),
    }
    assert (type(twin), twin.args, str(twin), repr(twin)) == (kind, error.args, str(error), repr(error))
    assert vars(twin) == vars(error)


def test_a_pickled_replacement_of_an_earlier_version_still_loads():
    pickled = (
        b"ctransfer_async._models.errors\n_made\n(caiohttp.client_exceptions\nClientPayloadError\n"
        b"Vstatus 502\n(dVstatus\nI502\nstR."
    )
    error = pickle.loads(pickled)

    assert isinstance(error, aiohttp.ClientPayloadError)
    assert repr(error) == "ClientPayloadError('status 502')"
    assert error.status == 502


@EACH
@each("make", [full, bare])
def test_no_error_shows_a_message_a_body_a_receipt_or_an_order(kind, make, caplog):
    error = make(kind)
    logging.getLogger("bank").error("failed: %s %r", error, error, exc_info=error)
    shown = f"{error} {error!r} {''.join(traceback.format_exception(error))} {caplog.text}"

    assert SECRET not in shown
    assert "example.org" not in shown


@EACH
def test_the_status_and_the_request_id_are_shown_where_there_is_an_answer(kind):
    shown = str(full(kind))
    answered = "status" in EVERY[kind] and kind is not errors.Refuted

    assert ("418" in shown and "req-7" in shown) is answered


def test_only_an_invalid_order_is_a_value_error_and_it_lists_each_field_and_its_fault():
    assert [kind for kind in EVERY if issubclass(kind, ValueError)] == [errors.InvalidOrder]
    assert str(full(errors.InvalidOrder)) == "poster_amount: is a float; poster_country: is not a string"


@pytest.mark.parametrize(
    ("result", "refused"),
    [(MatchResult.CLOSE_MATCH, True), (MatchResult.NO_MATCH, True), (MatchResult.NOT_POSSIBLE, False)],
)
def test_an_impossible_check_is_not_a_refusal(result, refused):
    assert errors.BeneficiaryNotVerified(result=result).refused is refused


def test_changing_the_arguments_of_an_error_later_does_not_change_it():
    attempts, receipts = list(COMMON["attempts"]), {"hold": "h-1"}
    error = errors.Refused(attempts=attempts, receipts=receipts)
    attempts.clear()
    receipts.clear()

    assert len(error.attempts) == 2
    assert error.receipts == {"hold": "h-1"}


@each(
    ("model", "tree"),
    [
        (Order, samples.order_json(poster_amount=SECRET)),
        (Order, samples.order_json(id=SECRET, poster_fee=None)),
        (
            NewOrder,
            samples.new_order_json(poster_username=SECRET, poster_amount=SECRET, matcher_currency=SECRET),
        ),
        (User, [SECRET]),
        (Order, SECRET),
    ],
)
def test_an_unreadable_reply_is_not_shown_even_in_a_full_traceback(model, tree):
    with pytest.raises(TransferError) as caught:
        model.from_json(samples.encode(tree))

    assert SECRET not in "".join(traceback.format_exception(caught.value))
