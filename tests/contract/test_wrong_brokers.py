"""The contract finds wrong lines: each is the one that a bank might write, but for one thing."""

import asyncio
import contextlib
import inspect
import json
import sqlite3
import time
from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.contract.own_broker import MINE, SEND, TableBroker, TableDelivery, TableLane, TableLine
from tests.contract.test_brokers import moving
from transfer_async.testing.broker_contract import BrokerContract
from transfer_async.testing.broker_contract.broker_harness import BrokerHarness, WorkerGroup

NEVER = 1e12


class WrongLine(TableLine):
    """A line whose lanes, deliveries and broker may be others."""

    Lane, Delivery, Broker = TableLane, TableDelivery, TableBroker

    def __init__(self, path, settings):
        super().__init__(path, settings)
        self.broker = self.Broker(path)

    def subscriber(self):
        return self.Lane(self)

    def delivery(self, message):
        return self.Delivery(self, message)


# --- how messages come ------------------------------------------------------------------------------


class AcknowledgesWhatItTakes(WrongLine):
    """As a consumer with automatic acknowledgement."""

    class Lane(TableLane):
        async def taken(self):
            found = await super().taken()
            for number, *_ in found:
                await self.line.broker.run(("DELETE FROM messages WHERE id = ?", (number,)))
            return found


class GivesEachMessageOnlyOnce(WrongLine):
    class Lane(TableLane):
        async def taken(self):
            found = await super().taken()
            for number, *_ in found:
                await self.line.broker.run(("UPDATE messages SET due = ? WHERE id = ?", (NEVER, number)))
            return found


class GivesAMessageToTwo(WrongLine):
    class Lane(TableLane):
        async def taken(self):
            found = await super().taken()
            for number, *_, deliveries in found:
                if deliveries == 1:
                    await self.line.broker.run(("UPDATE messages SET due = 0 WHERE id = ?", (number,)))
            return found


class FetchesAhead(WrongLine):
    """As a consumer with a prefetch count of its own."""

    class Lane(TableLane):
        ahead = ()

        async def taken(self):
            if not self.ahead:
                self.ahead = [*await super().taken(), *await super().taken()]
            found, self.ahead = self.ahead[:1], self.ahead[1:]
            return found


class TellsNobodyThatItWaited(WrongLine):
    class Lane(TableLane):
        async def get_one(self, *, timeout):  # noqa: ASYNC109 - as it is called
            return next(iter(await self.taken()), None)


class HearsOnlyWhatIsSentWhileItListens(WrongLine):
    """As a subscription without a queue."""

    async def prepare(self, *, only_to_send=False):
        await super().prepare()
        if not only_to_send:
            await self.broker.run(("DELETE FROM messages WHERE deliveries = 0", ()))


class MakesItsQueueAnew(WrongLine):
    prepared = 0

    async def prepare(self, *, only_to_send=False):
        await super().prepare()
        self.prepared += 1
        if self.prepared > 1:
            await self.broker.run(("UPDATE messages SET due = 0", ()))


class CarriesTextOnly(WrongLine):
    async def send(self, subject, body, headers):
        await super().send(subject, body.decode(errors="replace").encode(), headers)


class DropsHeaders(WrongLine):
    async def send(self, subject, body, headers):
        await super().send(subject, body, {})


class CountsNoDeliveries(WrongLine):
    def delivery(self, message):
        made = TableDelivery(self, message)
        made.deliveries = 1
        return made


class GivesUpAfterFive(WrongLine):
    """As a broker with a largest number of deliveries."""

    class Lane(TableLane):
        async def taken(self):
            return [one for one in await super().taken() if one[3] <= 5]


class TakesAMessageAlong(WrongLine):
    """Whoever is cancelled has asked for a message, which nobody will ever answer, nor leave alone."""

    class Lane(TableLane):
        async def get_one(self, *, timeout):  # noqa: ASYNC109 - as it is called
            asking = asyncio.create_task(super().get_one(timeout=timeout))
            try:
                return await asyncio.shield(asking)
            except asyncio.CancelledError:
                for number, *_ in filter(None, [await asking]):
                    await self.line.broker.run(("DELETE FROM messages WHERE id = ?", (number,)))
                raise


# --- what is said of them -----------------------------------------------------------------------------


class SaysThatItAcknowledged(WrongLine):
    class Delivery(TableDelivery):
        async def ack(self):
            pass


class NeverBeats(WrongLine):
    class Delivery(TableDelivery):
        async def beat(self):
            pass


class ForgetsTheDelay(WrongLine):
    class Delivery(TableDelivery):
        async def retry(self, after):
            await super().retry(0.0)


class SleepsThroughTheDelay(WrongLine):
    class Delivery(TableDelivery):
        async def retry(self, after):
            await asyncio.sleep(after)
            await super().retry(0.0)


class KeepsTheDelayInMind(WrongLine):
    """It sends the message anew, later; its process may be gone by then."""

    class Delivery(TableDelivery):
        async def retry(self, after):
            await self.ack()


class LosesTheBodyOfWhatIsParked(WrongLine):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            self.body = b""
            await super().dead_letter(reason)


class LosesTheHeadersOfWhatIsParked(WrongLine):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            self.headers = {}
            await super().dead_letter(reason)


class ParksWithoutAReason(WrongLine):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            copy = (SEND, (self.line.settings.dead_letters, self.body, "{}"))
            await self.line.broker.run(copy, (f"DELETE FROM messages WHERE {MINE}", self.mine))


class RejectsWithoutACopy(WrongLine):
    """Its broker has no queue for dead letters."""

    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            await self.ack()


class AcknowledgesThenParks(WrongLine):
    """Cut off in between, it leaves the message nowhere."""

    class Delivery(TableDelivery):
        async def ack(self):
            await asyncio.shield(super().ack())  # it is on its way, even where this is cut off

        async def dead_letter(self, reason):
            await self.ack()
            headers = {**self.headers, "Transfer-Reason": reason}
            await self.line.send(self.line.settings.dead_letters, self.body, headers)


class FinishesWhatItParks(AcknowledgesThenParks):
    """It does so even when it is cut off; but whoever is killed finishes nothing."""

    class Delivery(AcknowledgesThenParks.Delivery):
        async def dead_letter(self, reason):
            await asyncio.shield(super().dead_letter(reason))


async def distance(broker):
    """Make a broker distant: each of its steps takes many round trips."""
    for _ in range(10):
        await broker.run(("SELECT 1", ()))


class DeletesWaitsThenParks(WrongLine):
    """Its broker is some way off: whoever is cut off is, mostly, not where anything has been done yet."""

    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            await distance(self.line.broker)
            await self.ack()
            await distance(self.line.broker)
            headers = {**self.headers, "Transfer-Reason": reason}
            await self.line.send(self.line.settings.dead_letters, self.body, headers)


AGAIN = "INSERT INTO messages (subject, body, headers, deliveries, due) VALUES (?, ?, ?, ?, ?)"


class DeletesThenGivesBack(WrongLine):
    """As a broker without a delay of its own: a copy is sent, once the message has been acknowledged."""

    class Delivery(TableDelivery):
        async def ack(self):
            await asyncio.shield(super().ack())  # it is on its way, even where this is cut off

        async def retry(self, after):
            await self.ack()
            copy = json.dumps(dict(self.headers)), self.deliveries, time.time() + after
            await self.line.broker.run((AGAIN, (self.line.settings.commands, self.body, *copy)))


class DeletesWaitsThenGivesBack(DeletesThenGivesBack):
    class Delivery(DeletesThenGivesBack.Delivery):
        async def ack(self):
            await distance(self.line.broker)
            await super().ack()
            await distance(self.line.broker)


class ParksAndKeeps(WrongLine):
    class Delivery(TableDelivery):
        async def ack(self):
            await super().ack()

        async def dead_letter(self, reason):
            await self.line.send(
                self.line.settings.dead_letters, self.body, {"Transfer-Reason": reason, **self.headers}
            )


class TakesAReasonForAHeader(WrongLine):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            assert reason.isascii(), "a header is ASCII"
            await super().dead_letter(reason)


# --- what is published, and a broker that goes --------------------------------------------------------


class PublishesWithoutAQueue(WrongLine):
    async def publish(self, outcome, headers):
        pass


class TellsOneOutcomeOfAnIntent(WrongLine):
    """As a broker that takes the intent's id for the message's."""

    async def publish(self, outcome, headers):
        there = "SELECT 1 FROM messages WHERE subject = ? AND instr(body, ?)"
        if not await self.broker.run((there, (self.settings.outcomes, outcome.intent_id.encode()))):
            await super().publish(outcome, headers)


class SwallowsWhatCouldNotBePublished(WrongLine):
    async def publish(self, outcome, headers):
        with contextlib.suppress(sqlite3.OperationalError):
            await super().publish(outcome, headers)


class AcknowledgesWithoutAConfirmation(WrongLine):
    class Delivery(TableDelivery):
        async def ack(self):
            with contextlib.suppress(sqlite3.OperationalError):
                await super().ack()


class KeepsWhatItParksInMemory(WrongLine):
    class Delivery(TableDelivery):
        async def dead_letter(self, reason):
            with contextlib.suppress(sqlite3.OperationalError):
                await super().dead_letter(reason)


class StaysBrokenOnce(WrongLine):
    """Its connection is never made again, and it does not say that it is closed."""

    class Broker(TableBroker):
        is_broken = False

        async def run(self, *statements):
            if self.is_broken:
                raise ConnectionError
            try:
                return await super().run(*statements)
            except sqlite3.OperationalError:
                self.is_broken = True
                raise


class SaysThatItIsThere(WrongLine):
    """It knows that it was connected once."""

    class Broker(TableBroker):
        async def ping(self, timeout):  # noqa: ASYNC109 - likewise
            return True


class CannotBeLookedAt(WrongLine):
    class Broker(TableBroker):
        async def ping(self, timeout):  # noqa: ASYNC109 - likewise
            return None


PARKED = "test_a_message_is_dead_lettered_unchanged_with_its_reason"
CUT_OFF = "test_a_message_survives_a_cancelled_dead_letter_or_retry"

WRONG = {
    AcknowledgesWhatItTakes: "test_an_unacknowledged_message_is_delivered_again_unchanged_and_counted",
    GivesEachMessageOnlyOnce: "test_the_message_of_a_worker_that_ends_is_delivered_to_another",
    GivesAMessageToTwo: "test_each_message_is_delivered_to_one_worker",
    FetchesAhead: "test_no_message_is_fetched_ahead",
    TellsNobodyThatItWaited: "test_waiting_without_a_message_ends_at_its_timeout",
    HearsOnlyWhatIsSentWhileItListens: "test_a_message_that_was_sent_before_any_worker_is_delivered",
    MakesItsQueueAnew: "test_preparing_the_broker_again_changes_nothing",
    CarriesTextOnly: "test_a_message_is_delivered_as_it_was_sent",
    DropsHeaders: "test_a_trace_continues_from_a_message_to_its_outcome",
    CountsNoDeliveries: "test_a_command_that_failed_for_now_is_tried_again",
    GivesUpAfterFive: "test_deliveries_are_counted_and_not_limited",
    TakesAMessageAlong: "test_a_cancelled_wait_loses_no_message",
    SaysThatItAcknowledged: "test_an_acknowledged_message_is_never_delivered_again",
    NeverBeats: "test_a_slow_hook_is_not_run_twice",
    ForgetsTheDelay: "test_a_retried_message_is_delivered_unchanged_and_not_before_its_delay",
    SleepsThroughTheDelay: "test_a_delayed_message_holds_up_no_other",
    KeepsTheDelayInMind: "test_a_delayed_message_waits_in_the_broker_and_not_in_the_worker",
    LosesTheBodyOfWhatIsParked: "test_an_invalid_command_is_dead_lettered_and_the_next_is_carried_out",
    LosesTheHeadersOfWhatIsParked: PARKED,
    ParksWithoutAReason: PARKED,
    RejectsWithoutACopy: "test_an_invalid_command_is_dead_lettered_and_the_next_is_carried_out",
    AcknowledgesThenParks: f"{CUT_OFF}[dead_letter]",
    FinishesWhatItParks: "test_a_message_survives_a_worker_killed_while_dead_lettering_it",
    DeletesWaitsThenParks: f"{CUT_OFF}[dead_letter]",
    DeletesThenGivesBack: f"{CUT_OFF}[retry]",
    DeletesWaitsThenGivesBack: f"{CUT_OFF}[retry]",
    ParksAndKeeps: PARKED,
    TakesAReasonForAHeader: "test_a_message_is_dead_lettered_whatever_the_reason",
    PublishesWithoutAQueue: "test_a_published_outcome_is_stored_with_its_headers",
    TellsOneOutcomeOfAnIntent: "test_a_later_outcome_of_an_intent_is_not_taken_for_a_duplicate",
    SwallowsWhatCouldNotBePublished: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    AcknowledgesWithoutAConfirmation: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    KeepsWhatItParksInMemory: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    StaysBrokenOnce: "test_workers_lose_nothing_while_the_broker_restarts",
    SaysThatItIsThere: "test_everything_that_the_broker_does_not_confirm_is_an_error",
    CannotBeLookedAt: "test_a_command_is_carried_out_and_its_outcome_published",
}
"""By each wrong line, a test that finds it."""


KILLED = WRONG[FinishesWhatItParks]
EXPIRE = "UPDATE messages SET due = 0 WHERE deliveries > 0 AND due > ?"


class ExpiringHarness(BrokerHarness):
    """Whatever is in hand comes again with the next hand, however slow the machine is; by the clock, never.

    Where messages come again meanwhile, few are in hand when their worker is cut off or killed.
    """

    def __init__(self, new_line):
        super().__init__(new_line, ack_wait=3600.0)

    async def consumer(self, **changes):
        made = await super().consumer(**changes)
        await made.broker.broker.run((EXPIRE, (time.time() + 1800.0,)))
        return made


async def passes(kind, name, directory):
    """Whether a line passes one test of the contract."""
    contract, here = BrokerContract(), directory / "broker"
    await asyncio.to_thread(here.mkdir)
    new_line = partial(kind, here / "messages.db")
    is_lost = name.startswith((CUT_OFF, KILLED))
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


@pytest.mark.parametrize("name", [f"{CUT_OFF}[dead_letter]", f"{CUT_OFF}[retry]", KILLED])
async def test_a_right_broker_passes_when_messages_are_redelivered_to_the_next_consumer(name, tmp_path):
    assert await passes(TableLine, name, tmp_path)


def test_every_wrong_broker_is_tested():
    assert set(WRONG) == {
        *WrongLine.__subclasses__(),
        *AcknowledgesThenParks.__subclasses__(),
        *DeletesThenGivesBack.__subclasses__(),
    }


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
async def test_the_contract_finds_each_wrong_broker(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("transfer_async.testing.broker_contract.broker_harness.TIMEOUT", 0.4)

    assert not await passes(kind, WRONG[kind], tmp_path)
