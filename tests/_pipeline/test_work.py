"""The work of a call, that is its attempts, as errors and doubts report it."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from tests.support.bank import new_order
from transfer_async import OrderIntent, Outcome
from transfer_async._http.transport import ExchangeResult
from transfer_async._pipeline.attempt import _note
from transfer_async._pipeline.call import OrderProgress
from transfer_async.testing import ManualClock


def work_with_an_attempt(clock: ManualClock) -> OrderProgress:
    work = OrderProgress(intent=OrderIntent(id="i", key="k", order=new_order()), began=clock.now())
    began = clock.now()
    clock.advance(2)
    context: Any = SimpleNamespace(clock=clock)
    _note(context, work, ExchangeResult(sent=True, status=200), None, began)
    return work


def test_an_attempt_that_is_read_late_keeps_its_start_time():
    clock = ManualClock()
    noon = clock.utc()
    work = work_with_an_attempt(clock)

    clock.advance(timedelta(hours=1))

    (attempt,) = work.attempts
    assert (attempt.began, attempt.seconds, attempt.status) == (noon, 2.0, 200)


def test_an_attempt_is_the_same_object_on_every_read():
    clock = ManualClock()
    work = work_with_an_attempt(clock)
    (first,) = work.attempts

    clock.advance(1)

    assert work.attempts[0] is first


def test_the_outcome_of_the_last_attempt_can_be_corrected():
    work = work_with_an_attempt(ManualClock())

    work.correct_last(Outcome.UNKNOWN)

    assert [attempt.outcome for attempt in work.attempts] == [Outcome.UNKNOWN]
