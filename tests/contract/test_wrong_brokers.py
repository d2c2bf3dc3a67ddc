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
from tests.support.trials import mostly_in_trials
from transfer_async.testing.broker_contract import BrokerContract
from transfer_async.testing.broker_contract.broker_harness import BrokerHarness, WorkerGroup

NEVER = 1e12


class WrongBroker(TableBroker):
    """A broker with slots, deliveries and a connection that subclasses replace by wrong ones."""

    Slot, Delivery, Connection = TableSlot, TableDelivery, TableConnection

    def __init__(self, path, settings):
        super().__init__(path, settings)
        self.broker = self.Connection(path)

    def subscriber(self):
        return self.Slot(self)

    def delivery(self, message):
        return self.Delivery(self, message)


# --- how messages are delivered ---------------------------------------------------------------------


class AcknowledgesWhatItTakes(WrongBroker):
    """Behaves like a consumer with automatic acknowledgement."""

    class Slot(TableSlot):
        async def taken(self):
            found = await super().taken()
            for number, *_ in found:
                await self.broker.broker.run(("DELETE FROM messages WHERE id = ?", (number,)))
            return found


class DeliversEachMessageOnce(WrongBroker):
    class Slot(TableSlot):
        async def taken(self):
            found = await super().taken()
            for number, *_ in found:
                await self.broker.broker.run(("UPDATE messages SET due = ? WHERE id = ?", (NEVER, number)))
            return found


class DeliversAMessageTwice(WrongBroker):
    class Slot(TableSlot):
        async def taken(self):
            found = await super().taken()
            for number, *_, deliveries in found:
                if deliveries == 1:
                    await self.broker.broker.run(("UPDATE messages SET due = 0 WHERE id = ?", (number,)))
            return found


class FetchesAhead(WrongBroker):
    """Behaves like a consumer with its own prefetch count."""

    class Slot(TableSlot):
        ahead = ()

        async def taken(self):
            if not self.ahead:
                self.ahead = [*await super().taken(), *await super().taken()]
            found, self.ahead = self.ahead[:1], self.ahead[1:]
            return found


class ReturnsBeforeTheTimeout(WrongBroker):
    class Slot(TableSlot):
        async def get_one(self, *, timeout):  # noqa: ASYNC109 - as it is called
            return next(iter(await self.taken()), None)


class DeliversOnlyToCurrentSubscribers(WrongBroker):
    """Behaves like a subscription without a queue."""

    async def prepare(self, *, only_to_send=False):
        await super().prepare()
        if not only_to_send:
            await self.broker.run(("DELETE FROM messages WHERE deliveries = 0", ()))


class RecreatesItsQueue(WrongBroker):
    prepared = 0

    async def prepare(self, *, only_to_send=False):
        await super().prepare()
        self.prepared += 1
        if self.prepared > 1:
            await self.broker.run(("UPDATE messages SET due = 0", ()))


class SendsOnlyText(WrongBroker):
    async def send(self, subject, body, headers):
        await super().send(subject, body.decode(errors="replace").encode(), headers)


class DropsHeaders(WrongBroker):
    async def send(self, subject, body, headers):
        await super().send(subject, body, {})


class CountsNoDeliveries(WrongBroker):
    def delivery(self, message):
        made = TableDelivery(self, message)
        made.deliveries = 1
        return made


class GivesUpAfterFive(WrongBroker):
    """Behaves like a broker with a maximum number of deliveries."""

    class Slot(TableSlot):
        async def taken(self):
            return [one for one in await super().taken() if one[3] <= 5]


class LosesAMessageWhenCancelled(WrongBroker):
    """After a cancellation, its consumer still takes a message, which is neither handled nor released."""

    class Slot(TableSlot):
        async def get_one(self, *, timeout):  # noqa: ASYNC109 - as it is called
            asking = asyncio.create_task(super().get_one(timeout=timeout))
            try:
                return await asyncio.shield(asking)
            except asyncio.CancelledError:
                for number, *_ in filter(None, [await asking]):
                    await self.broker.broker.run(("DELETE FROM messages WHERE id = ?", (number,)))
                raise


# --- how messages are acknowledged ---------------------------------------------------------------------


class NeverAcknowledges(WrongBroker):
    class Delivery(TableDelivery):
        async def ack(self):
            pass


class NeverBeats(WrongBroker):
    class Delivery(TableDelivery):
        async def beat(self):
            pass


class ForgetsTheDelay(WrongBroker):
    class Delivery(TableDelivery):
        async def retry(self, after):
            await super().retry(0.0)


class SleepsDuringTheDelay(WrongBroker):
    class Delivery(TableDelivery):
        async def retry(self, after):
            await asyncio.sleep(after)
            await super().retry(0.0)


class DelaysInItsProcess(WrongBroker):
    """Sends the message again later, but its process may have ended by then."""

    class Delivery(TableDelivery):
        async def retry(self, after):
            await self.ack()


class DeadLettersWithoutTheBody(WrongBroker):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            self.body = b""
            await super().dead_letter(reason)


class DeadLettersWithoutTheHeaders(WrongBroker):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            self.headers = {}
            await super().dead_letter(reason)


class DeadLettersWithoutAReason(WrongBroker):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            copy = (SEND, (self.broker.settings.dead_letters, self.body, "{}"))
            await self.broker.broker.run(copy, (f"DELETE FROM messages WHERE {MINE}", self.mine))


class RejectsWithoutACopy(WrongBroker):
    """Has no dead-letter queue."""

    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            await self.ack()


class AcknowledgesThenDeadLetters(WrongBroker):
    """Loses the message if it is cancelled between the two steps."""

    class Delivery(TableDelivery):
        async def ack(self):
            # The request is already sent, even if the caller is cancelled.
            await asyncio.shield(super().ack())

        async def dead_letter(self, reason):
            await self.ack()
            headers = {**self.headers, "Transfer-Reason": reason}
            await self.broker.send(self.broker.settings.dead_letters, self.body, headers)


class FinishesDeadLetteringWhenCancelled(AcknowledgesThenDeadLetters):
    """Finishes dead-lettering when it is cancelled, but not when its process is killed."""

    class Delivery(AcknowledgesThenDeadLetters.Delivery):
        async def dead_letter(self, reason):
            await asyncio.shield(super().dead_letter(reason))


async def distance(broker):
    """Simulate a slow broker: each step takes many round trips."""
    for _ in range(10):
        await broker.run(("SELECT 1", ()))


class DeletesWaitsThenDeadLetters(WrongBroker):
    """Because the broker is slow, a cancellation mostly comes before anything is done."""

    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            await distance(self.broker.broker)
            await self.ack()
            await distance(self.broker.broker)
            headers = {**self.headers, "Transfer-Reason": reason}
            await self.broker.send(self.broker.settings.dead_letters, self.body, headers)


AGAIN = "INSERT INTO messages (subject, body, headers, deliveries, due) VALUES (?, ?, ?, ?, ?)"


class DeletesThenRetries(WrongBroker):
    """Behaves like a broker without delayed delivery: it acknowledges the message, then sends a copy."""

    class Delivery(TableDelivery):
        async def ack(self):
            # The request is already sent, even if the caller is cancelled.
            await asyncio.shield(super().ack())

        async def retry(self, after):
            await self.ack()
            copy = json.dumps(dict(self.headers)), self.deliveries, time.time() + after
            await self.broker.broker.run((AGAIN, (self.broker.settings.commands, self.body, *copy)))


class DeletesWaitsThenRetries(DeletesThenRetries):
    class Delivery(DeletesThenRetries.Delivery):
        async def ack(self):
            await distance(self.broker.broker)
            await super().ack()
            await distance(self.broker.broker)


class DeadLettersAndKeeps(WrongBroker):
    class Delivery(TableDelivery):
        async def ack(self):
            await super().ack()

        async def dead_letter(self, reason):
            await self.broker.send(
                self.broker.settings.dead_letters, self.body, {"Transfer-Reason": reason, **self.headers}
            )


class AcceptsOnlyASCIIReasons(WrongBroker):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            assert reason.isascii(), "a header is ASCII"
            await super().dead_letter(reason)


# --- publishing, and lost connections --------------------------------------------------------


class PublishesWithoutAQueue(WrongBroker):
    async def publish(self, outcome, headers):
        pass


class PublishesOneOutcomePerIntent(WrongBroker):
    """Behaves like a broker that uses the intent's id as the message id."""

    async def publish(self, outcome, headers):
        there = "SELECT 1 FROM messages WHERE subject = ? AND instr(body, ?)"
        if not await self.broker.run((there, (self.settings.outcomes, outcome.intent_id.encode()))):
            await super().publish(outcome, headers)


class SwallowsPublishErrors(WrongBroker):
    async def publish(self, outcome, headers):
        with contextlib.suppress(sqlite3.OperationalError):
            await super().publish(outcome, headers)


class AcknowledgesWithoutAConfirmation(WrongBroker):
    class Delivery(TableDelivery):
        async def ack(self):
            with contextlib.suppress(sqlite3.OperationalError):
                await super().ack()


class SwallowsDeadLetterErrors(WrongBroker):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            with contextlib.suppress(sqlite3.OperationalError):
                await super().dead_letter(reason)


class NeverReconnects(WrongBroker):
    """Never reconnects, and does not report its connection as closed."""

    class Connection(TableConnection):
        is_broken = False

        async def run(self, *statements):
            if self.is_broken:
                raise ConnectionError
            try:
                return await super().run(*statements)
            except sqlite3.OperationalError:
                self.is_broken = True
                raise


class AlwaysRespondsToPing(WrongBroker):
    """Reports a connection for ever once it was connected."""

    class Connection(TableConnection):
        async def ping(self, timeout):  # noqa: ASYNC109 - likewise
            return True


class NeverRespondsToPing(WrongBroker):
    class Connection(TableConnection):
        async def ping(self, timeout):  # noqa: ASYNC109 - likewise
            return None


DEAD_LETTERED = "test_a_message_is_dead_lettered_unchanged_with_its_reason"
CANCELLED = "test_a_message_survives_a_cancelled_dead_letter_or_retry"

WRONG = {
    AcknowledgesWhatItTakes: "test_an_unacknowledged_message_is_delivered_again_unchanged_and_counted",
    DeliversEachMessageOnce: "test_an_unacknowledged_message_is_delivered_again_unchanged_and_counted",
    DeliversAMessageTwice: "test_no_message_is_fetched_ahead",
    FetchesAhead: "test_no_message_is_fetched_ahead",
    ReturnsBeforeTheTimeout: "test_waiting_without_a_message_ends_at_its_timeout",
    DeliversOnlyToCurrentSubscribers: "test_a_message_is_delivered_as_it_was_sent",
    RecreatesItsQueue: "test_preparing_the_broker_again_changes_nothing",
    SendsOnlyText: "test_a_message_is_delivered_as_it_was_sent",
    DropsHeaders: "test_a_message_is_delivered_as_it_was_sent",
    CountsNoDeliveries: "test_deliveries_are_counted_and_not_limited",
    GivesUpAfterFive: "test_deliveries_are_counted_and_not_limited",
    LosesAMessageWhenCancelled: "test_a_cancelled_wait_loses_no_message",
    NeverAcknowledges: "test_an_acknowledged_message_is_never_delivered_again",
    NeverBeats: "test_a_slow_hook_is_not_run_twice",
    ForgetsTheDelay: "test_a_retried_message_is_delivered_unchanged_and_not_before_its_delay",
    SleepsDuringTheDelay: "test_a_delayed_message_holds_up_no_other",
    DelaysInItsProcess: "test_a_delayed_message_waits_in_the_broker_and_not_in_the_worker",
    DeadLettersWithoutTheBody: DEAD_LETTERED,
    DeadLettersWithoutTheHeaders: DEAD_LETTERED,
    DeadLettersWithoutAReason: DEAD_LETTERED,
    RejectsWithoutACopy: DEAD_LETTERED,
    AcknowledgesThenDeadLetters: f"{CANCELLED}[dead_letter]",
    FinishesDeadLetteringWhenCancelled: "test_a_message_survives_a_worker_killed_while_dead_lettering_it",
    DeletesWaitsThenDeadLetters: f"{CANCELLED}[dead_letter]",
    DeletesThenRetries: f"{CANCELLED}[retry]",
    DeletesWaitsThenRetries: f"{CANCELLED}[retry]",
    DeadLettersAndKeeps: DEAD_LETTERED,
    AcceptsOnlyASCIIReasons: "test_a_message_is_dead_lettered_whatever_the_reason",
    PublishesWithoutAQueue: "test_a_published_outcome_is_stored_with_its_headers",
    PublishesOneOutcomePerIntent: "test_a_later_outcome_of_an_intent_is_not_taken_for_a_duplicate",
    SwallowsPublishErrors: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    AcknowledgesWithoutAConfirmation: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    SwallowsDeadLetterErrors: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    NeverReconnects: "test_workers_lose_nothing_while_the_broker_restarts",
    AlwaysRespondsToPing: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    NeverRespondsToPing: "test_a_command_is_carried_out_and_its_outcome_published",
}
"""Each wrong broker, with a test that detects it."""

OFTEN = (AcknowledgesWhatItTakes, DropsHeaders, DeadLettersWithoutAReason, DeletesThenRetries)
"""The wrong brokers that run by default."""


KILLED = WRONG[FinishesDeadLetteringWhenCancelled]
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
    is_lost = name.startswith((CANCELLED, KILLED))
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


REDELIVERED = (f"{CANCELLED}[dead_letter]", f"{CANCELLED}[retry]", KILLED)


@pytest.mark.parametrize("name", mostly_in_trials(REDELIVERED, often=REDELIVERED[:1]))
async def test_a_right_broker_passes_when_messages_are_redelivered_to_the_next_consumer(name, tmp_path):
    assert await passes(TableBroker, name, tmp_path)


def test_every_wrong_broker_is_tested():
    assert set(WRONG) == {
        *WrongBroker.__subclasses__(),
        *AcknowledgesThenDeadLetters.__subclasses__(),
        *DeletesThenRetries.__subclasses__(),
    }


@pytest.mark.parametrize("kind", mostly_in_trials(WRONG, often=OFTEN), ids=lambda kind: kind.__name__)
async def test_the_contract_finds_each_wrong_broker(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("transfer_async.testing.broker_contract.broker_harness.TIMEOUT", 0.4)

    assert not await passes(kind, WRONG[kind], tmp_path)
