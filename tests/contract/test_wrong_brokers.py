"""The contract tests detect each wrong broker: one that a bank might write, with a single fault."""

import asyncio
import contextlib
import inspect
import json
import sqlite3
import time
from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.contract.own_broker import MINE, SEND, TableBroker, TableConnection, TableDelivery, TableSlot
from tests.contract.test_brokers import moving
from tests.support.cases import lists
from tests.support.trials import mostly_in_trials
from transfer_async.testing.broker_contract import BrokerContract
from transfer_async.testing.broker_contract.broker_harness import BrokerHarness, WorkerGroup

DEAD_LETTERED = "test_a_message_is_dead_lettered_unchanged_with_its_reason"
LEFT_TO_OTHERS = "test_a_message_survives_a_cancelled_dead_letter_or_retry"
CANCELLED_DEAD_LETTER, CANCELLED_RETRY = f"{LEFT_TO_OTHERS}[dead_letter]", f"{LEFT_TO_OTHERS}[retry]"
KILLED = "test_a_message_survives_a_worker_killed_while_dead_lettering_it"

WRONG = {}
"""Each wrong broker, or its wrong slot, delivery or connection, with a test that detects it."""

found_by = lists(WRONG)


class WrongBroker(TableBroker):
    """A broker with one wrong part: its slots, its deliveries or its connection."""

    def __init__(self, path, part, settings):
        super().__init__(path, settings)
        self.part = part
        if issubclass(part, TableConnection):
            self.broker = part(path)

    def subscriber(self):
        return self.part(self) if issubclass(self.part, TableSlot) else super().subscriber()

    def delivery(self, message):
        if issubclass(self.part, TableDelivery):
            return self.part(self, message)
        return super().delivery(message)


# --- how messages are delivered ---------------------------------------------------------------------


class Takes(TableSlot):
    """Runs the statement ``then`` on each message that it takes."""

    async def taken(self):
        found = await super().taken()
        for number, *_ in found:
            await self.broker.broker.run((self.then, (number,)))
        return found


@found_by("test_an_unacknowledged_message_is_delivered_again_unchanged_and_counted")
class AcknowledgesWhatItTakes(Takes):
    """Behaves like a consumer with automatic acknowledgement."""

    then = "DELETE FROM messages WHERE id = ?"


@found_by("test_an_unacknowledged_message_is_delivered_again_unchanged_and_counted")
class DeliversEachMessageOnce(Takes):
    then = "UPDATE messages SET due = 1e12 WHERE id = ?"


@found_by("test_no_message_is_fetched_ahead")
class DeliversAMessageTwice(Takes):
    then = "UPDATE messages SET due = 0 WHERE id = ? AND deliveries = 1"


@found_by("test_no_message_is_fetched_ahead")
class FetchesAhead(TableSlot):
    """Behaves like a consumer with its own prefetch count."""

    ahead = ()

    async def taken(self):
        if not self.ahead:
            self.ahead = [*await super().taken(), *await super().taken()]
        found, self.ahead = self.ahead[:1], self.ahead[1:]
        return found


@found_by("test_waiting_without_a_message_ends_at_its_timeout")
class ReturnsBeforeTheTimeout(TableSlot):
    async def get_one(self, *, timeout):  # noqa: ASYNC109 - as it is called
        return next(iter(await self.taken()), None)


@found_by("test_a_message_is_delivered_as_it_was_sent")
class DeliversOnlyToCurrentSubscribers(TableBroker):
    """Behaves like a subscription without a queue."""

    async def prepare(self, *, only_to_send=False):
        await super().prepare()
        if not only_to_send:
            await self.broker.run(("DELETE FROM messages WHERE deliveries = 0", ()))


@found_by("test_preparing_the_broker_again_changes_nothing")
class RecreatesItsQueue(TableBroker):
    prepared = 0

    async def prepare(self, *, only_to_send=False):
        await super().prepare()
        self.prepared += 1
        if self.prepared > 1:
            await self.broker.run(("UPDATE messages SET due = 0", ()))


@found_by("test_a_message_is_delivered_as_it_was_sent")
class SendsOnlyText(TableBroker):
    async def send(self, subject, body, headers):
        await super().send(subject, body.decode(errors="replace").encode(), headers)


@found_by("test_a_message_is_delivered_as_it_was_sent")
class DropsHeaders(TableBroker):
    async def send(self, subject, body, headers):
        await super().send(subject, body, {})


@found_by("test_deliveries_are_counted_and_not_limited")
class CountsNoDeliveries(TableBroker):
    def delivery(self, message):
        made = TableDelivery(self, message)
        made.deliveries = 1
        return made


@found_by("test_deliveries_are_counted_and_not_limited")
class GivesUpAfterFive(TableSlot):
    """Behaves like a broker with a maximum number of deliveries."""

    async def taken(self):
        return [one for one in await super().taken() if one[3] <= 5]


@found_by("test_a_cancelled_wait_loses_no_message")
class LosesAMessageWhenCancelled(TableSlot):
    """After a cancellation, its consumer still takes a message, which is neither handled nor released."""

    async def get_one(self, *, timeout):  # noqa: ASYNC109 - as it is called
        asking = asyncio.create_task(super().get_one(timeout=timeout))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            for number, *_ in filter(None, [await asking]):
                await self.broker.broker.run(("DELETE FROM messages WHERE id = ?", (number,)))
            raise


# --- how messages are acknowledged ---------------------------------------------------------------------


@found_by("test_an_acknowledged_message_is_never_delivered_again")
class NeverAcknowledges(TableDelivery):
    async def ack(self):
        pass


@found_by("test_a_slow_hook_is_not_run_twice")
class NeverBeats(TableDelivery):
    async def beat(self):
        pass


@found_by("test_a_retried_message_is_delivered_unchanged_and_not_before_its_delay")
class ForgetsTheDelay(TableDelivery):
    async def retry(self, after):
        await super().retry(0.0)


@found_by("test_a_delayed_message_holds_up_no_other")
class SleepsDuringTheDelay(TableDelivery):
    async def retry(self, after):
        await asyncio.sleep(after)
        await super().retry(0.0)


@found_by("test_a_delayed_message_waits_in_the_broker_and_not_in_the_worker")
class DelaysInItsProcess(TableDelivery):
    """Sends the message again later, but its process may have ended by then."""

    async def retry(self, after):
        await self.ack()


@found_by(DEAD_LETTERED)
class DeadLettersWithoutTheBody(TableDelivery):
    async def dead_letter(self, reason):
        self.body = b""
        await super().dead_letter(reason)


@found_by(DEAD_LETTERED)
class DeadLettersWithoutTheHeaders(TableDelivery):
    async def dead_letter(self, reason):
        self.headers = {}
        await super().dead_letter(reason)


@found_by(DEAD_LETTERED)
class DeadLettersWithoutAReason(TableDelivery):
    async def dead_letter(self, reason):
        copy = (SEND, (self.broker.settings.dead_letters, self.body, "{}"))
        await self.broker.broker.run(copy, (f"DELETE FROM messages WHERE {MINE}", self.mine))


@found_by(DEAD_LETTERED)
class RejectsWithoutACopy(TableDelivery):
    """Has no dead-letter queue."""

    async def dead_letter(self, reason):
        await self.ack()


@found_by(CANCELLED_DEAD_LETTER)
class AcknowledgesThenDeadLetters(TableDelivery):
    """Loses the message if it is cancelled between the two steps."""

    async def ack(self):
        # The request is already sent, even if the caller is cancelled.
        await asyncio.shield(super().ack())

    async def dead_letter(self, reason):
        await self.ack()
        headers = {**self.headers, "Transfer-Reason": reason}
        await self.broker.send(self.broker.settings.dead_letters, self.body, headers)


@found_by(KILLED)
class FinishesDeadLetteringWhenCancelled(AcknowledgesThenDeadLetters):
    """Finishes dead-lettering when it is cancelled, but not when its process is killed."""

    async def dead_letter(self, reason):
        await asyncio.shield(super().dead_letter(reason))


class Distant(TableDelivery):
    """Waits for many round trips before and after it deletes, so a cancellation mostly comes meanwhile."""

    async def ack(self):
        await self.distance()
        await super().ack()
        await self.distance()

    async def distance(self):
        for _ in range(10):
            await self.broker.broker.run(("SELECT 1", ()))


@found_by(CANCELLED_DEAD_LETTER)
class DeletesWaitsThenDeadLetters(Distant, AcknowledgesThenDeadLetters):
    pass


AGAIN = "INSERT INTO messages (subject, body, headers, deliveries, due) VALUES (?, ?, ?, ?, ?)"


@found_by(CANCELLED_RETRY)
class DeletesThenRetries(TableDelivery):
    """Behaves like a broker without delayed delivery: it acknowledges the message, then sends a copy."""

    async def ack(self):
        # The request is already sent, even if the caller is cancelled.
        await asyncio.shield(super().ack())

    async def retry(self, after):
        await self.ack()
        copy = json.dumps(dict(self.headers)), self.deliveries, time.time() + after
        await self.broker.broker.run((AGAIN, (self.broker.settings.commands, self.body, *copy)))


@found_by(CANCELLED_RETRY)
class DeletesWaitsThenRetries(Distant, DeletesThenRetries):
    pass


@found_by(DEAD_LETTERED)
class DeadLettersAndKeeps(TableDelivery):
    async def dead_letter(self, reason):
        await self.broker.send(
            self.broker.settings.dead_letters, self.body, {"Transfer-Reason": reason, **self.headers}
        )


@found_by("test_a_message_is_dead_lettered_whatever_the_reason")
class AcceptsOnlyASCIIReasons(TableDelivery):
    async def dead_letter(self, reason):
        assert reason.isascii(), "a header is ASCII"
        await super().dead_letter(reason)


# --- publishing, and lost connections --------------------------------------------------------


@found_by("test_a_published_outcome_is_stored_with_its_headers")
class PublishesWithoutAQueue(TableBroker):
    async def publish(self, outcome, headers):
        pass


@found_by("test_a_later_outcome_of_an_intent_is_not_taken_for_a_duplicate")
class PublishesOneOutcomePerIntent(TableBroker):
    """Behaves like a broker that uses the intent's id as the message id."""

    async def publish(self, outcome, headers):
        there = "SELECT 1 FROM messages WHERE subject = ? AND instr(body, ?)"
        if not await self.broker.run((there, (self.settings.outcomes, outcome.intent_id.encode()))):
            await super().publish(outcome, headers)


@found_by("test_everything_that_the_broker_does_not_confirm_is_an_error")
class SwallowsPublishErrors(TableBroker):
    async def publish(self, outcome, headers):
        with contextlib.suppress(sqlite3.OperationalError):
            await super().publish(outcome, headers)


@found_by("test_everything_that_the_broker_does_not_confirm_is_an_error")
class AcknowledgesWithoutAConfirmation(TableDelivery):
    async def ack(self):
        with contextlib.suppress(sqlite3.OperationalError):
            await super().ack()


@found_by("test_everything_that_the_broker_does_not_confirm_is_an_error")
class SwallowsDeadLetterErrors(TableDelivery):
    async def dead_letter(self, reason):
        with contextlib.suppress(sqlite3.OperationalError):
            await super().dead_letter(reason)


@found_by("test_workers_lose_nothing_while_the_broker_restarts")
class NeverReconnects(TableConnection):
    """Never reconnects, and does not report its connection as closed."""

    is_broken = False

    async def run(self, *statements):
        if self.is_broken:
            raise ConnectionError
        try:
            return await super().run(*statements)
        except sqlite3.OperationalError:
            self.is_broken = True
            raise


@found_by("test_everything_that_the_broker_does_not_confirm_is_an_error")
class AlwaysRespondsToPing(TableConnection):
    """Reports a connection for ever once it was connected."""

    async def ping(self, timeout):  # noqa: ASYNC109 - likewise
        return True


@found_by("test_a_command_is_carried_out_and_its_outcome_published")
class NeverRespondsToPing(TableConnection):
    async def ping(self, timeout):  # noqa: ASYNC109 - likewise
        return None


OFTEN = (AcknowledgesWhatItTakes, DropsHeaders, DeadLettersWithoutAReason, DeletesThenRetries)
"""The wrong brokers that run by default."""


EXPIRE = "UPDATE messages SET due = 0 WHERE deliveries > 0 AND due > ?"


class ExpiringHarness(BrokerHarness):
    """Redelivers every pending message when the next consumer starts, and never by time.

    If messages were redelivered by time, few would be pending when their worker is cancelled or killed.
    """

    def __init__(self, new_line):
        super().__init__(new_line, ack_wait=3600.0)

    async def consumer(self, **changes):
        made = await super().consumer(**changes)
        await made.broker.broker.run((EXPIRE, (time.time() + 1800.0,)))
        return made


async def passes(kind, name, directory):
    """Return whether a broker passes one test of the contract."""
    contract, here = BrokerContract(), directory / "broker"
    await asyncio.to_thread(here.mkdir)
    new_line = partial(kind, here / "messages.db")
    if not issubclass(kind, TableBroker):
        new_line = partial(WrongBroker, here / "messages.db", kind)
    is_lost = name.startswith((LEFT_TO_OTHERS, KILLED))
    name, _, row = name.partition("[")
    test = getattr(contract, name)
    async with AsyncExitStack() as stack:
        harness = ExpiringHarness(new_line) if is_lost else BrokerHarness(new_line, ack_wait=0.1)
        fixtures = {
            "answer": row.rstrip("]"),
            "harness": await stack.enter_async_context(harness),
            "broker_away": moving(here),
        }
        if "workers" in inspect.signature(test).parameters:
            fixtures["workers"] = await stack.enter_async_context(WorkerGroup(harness, directory))
        try:
            await test(**{name: fixtures[name] for name in inspect.signature(test).parameters})
        except (AssertionError, pytest.fail.Exception):
            return False
    return True


REDELIVERED = (CANCELLED_DEAD_LETTER, CANCELLED_RETRY, KILLED)


@pytest.mark.parametrize("name", mostly_in_trials(REDELIVERED, often=REDELIVERED[:1]))
async def test_a_right_broker_passes_when_messages_are_redelivered_to_the_next_consumer(name, tmp_path):
    assert await passes(TableBroker, name, tmp_path)


def test_every_wrong_broker_is_tested():
    """A class without `found_by` would not be tested."""
    parts = (TableBroker, TableSlot, TableDelivery, TableConnection)
    defined = {kind for kind in globals().values() if inspect.isclass(kind) and kind.__module__ == __name__}

    assert {kind for kind in defined if issubclass(kind, parts)} == {*WRONG, WrongBroker, Takes, Distant}


@pytest.mark.parametrize("kind", mostly_in_trials(WRONG, often=OFTEN), ids=lambda kind: kind.__name__)
async def test_the_contract_finds_each_wrong_broker(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("transfer_async.testing.broker_contract.broker_harness.TIMEOUT", 0.4)

    assert not await passes(kind, WRONG[kind], tmp_path)
