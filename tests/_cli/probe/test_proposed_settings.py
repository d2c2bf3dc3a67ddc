"""The client settings that a profile suggests, with reasons."""

import pytest

from tests.support.cases import each
from transfer_async import RetryPolicy, Timeouts
from transfer_async._cli.probe_run import as_lines, proposed
from transfer_async._http.retry import REFUSED
from transfer_async.sandbox import SeenAnswer, SeenConnection, ServiceProfile


def proposal_of(connection=None, **answers):
    named = {name.replace("_", "-"): answer for name, answer in answers.items()}
    return proposed(ServiceProfile(answers=named, connection=connection))


REFUSAL = SeenAnswer(status=422, within=0.1)
NEW, REPEATED = SeenAnswer(status=200, order="new"), SeenAnswer(status=409)
DOUBT = SeenAnswer(status=500, order="unknown")
IDLE = SeenConnection(asked=9, open_after=1.0, closed_by=2.0)
AGAIN = ("same_body_again", "cut_again")


def test_the_defaults_stay_unless_a_response_suggests_otherwise():
    proposal = proposal_of(who_am_i=SeenAnswer(status=200, within=0.1), no_users=REFUSAL)

    assert (proposal.retry, proposal.timeouts) == (RetryPolicy(), Timeouts())
    assert proposal.notes == ()


def test_every_proposed_value_has_a_reason_and_the_code_runs():
    proposal = proposal_of(
        who_am_i=SeenAnswer(status=503, within=10.0, headers={"retry-after": "17"}),
        same_body_again=SeenAnswer(status=404, order="same", within=0.1),
    )
    lines = list(as_lines(proposal))

    retried = {"attempts", "first_delay", "max_delay", "deadline", "not_processed", "refused"}
    assert retried < {*proposal.reasons}
    assert all(proposal.reasons.values())
    names = {"RetryPolicy": RetryPolicy, "Timeouts": Timeouts}
    made = eval(f"dict({' '.join(lines[-2:])})", names)
    assert made == {"retry": proposal.retry, "timeouts": proposal.timeouts}
    assert "  max_delay = 17 (default 5): a response contained Retry-After: 17" in lines


def test_a_status_that_came_with_an_order_proves_no_refusal():
    proposal = proposal_of(same_body_again=SeenAnswer(status=422, order="same", within=0.1))

    assert proposal.retry.refused == REFUSED - {422}
    assert "except 422" in proposal.reasons["refused"]


def test_slow_responses_lengthen_the_timeouts():
    proposal = proposal_of(order=SeenAnswer(status=200, within=10.0, order="new"))

    assert (proposal.timeouts.sock_read, proposal.timeouts.total) == (40.0, 45.0)
    assert proposal.retry.deadline == 50.0


@each("asked", ["-1", "NaN", "Infinity", "Wed, 21 Oct 2015 07:28:00 GMT", "999999", ""])
def test_an_unusable_retry_after_changes_nothing(asked):
    answer = SeenAnswer(status=503, within=0.1, headers={"retry-after": asked})

    assert proposal_of(who_am_i=answer).retry == RetryPolicy()


def test_no_status_is_proposed_as_a_guarantee_of_not_processed():
    proposal = proposal_of(order=SeenAnswer(status=503, within=0.1, order="unknown"))

    assert proposal.retry.not_processed == RetryPolicy().not_processed


@each(
    ("seen", "note"),
    [
        ({"connection": IDLE}, "the service closes an idle connection within 2 s"),
        ({"wrong_token": SeenAnswer(status=403)}, "the service responds to a wrong token with 403"),
        ({"not_json": DOUBT}, "such orders end in doubt: not-json"),
        ({"same_body_again": NEW}, "created two orders"),
        ({"same_body_again": SeenAnswer(status=200, order="same")}, "repeated body is the first order"),
        (dict.fromkeys(AGAIN, REPEATED), "exists, because the repeated order was refused"),
        ({"same_body_again": REPEATED, "cut_again": NEW}, "It is not known whether the order"),
        ({"same_body_again": DOUBT, "cut_again": REPEATED}, "the client does not rely on this"),
    ],
)
def test_what_no_setting_can_correct_is_noted(seen, note):
    (found,) = proposal_of(**seen).notes

    assert note in found


@pytest.mark.parametrize("status", [200, 401])
def test_an_answer_to_a_wrong_token_that_the_client_recognises_needs_no_note(status):
    assert proposal_of(wrong_token=SeenAnswer(status=status, unauthorized=True)).notes == ()
