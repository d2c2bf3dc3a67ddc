"""The broker contract: a test class to subclass for each implementation of `Broker`."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio

from transfer_async import OrderCommand, OrderOutcome, Outcome
from transfer_async.integrations.faststream import Broker
from transfer_async.testing.assertions import make_new_order
from transfer_async.testing.broker_contract.broker_harness import (
    TIMEOUT,
    BrokerHarness,
    NewBroker,
    TakenMessage,
    WorkerGroup,
    soon,
)
from transfer_async.testing.broker_contract.killed_worker import (
    DEAD_LETTERING,
    PAUSES,
    POINTS,
    Workplace,
    dead_letter_until_killed,
    work,
)

__all__ = ["BrokerContract"]

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-origin": "a test"}
REASON = "Transfer-Reason"
CUTS = 12
"""The number of calls that are cancelled at different points, from their first step to near their end."""

UNKNOWN = OrderOutcome(key="k", intent_id="i", outcome=Outcome.UNKNOWN, order_may_exist=True)
CREATED = OrderOutcome(key="k", intent_id="i", outcome=Outcome.CREATED, order_may_exist=True, order_id="tx-1")
REFUSED = OrderOutcome(key="k", intent_id="i", outcome=Outcome.REFUSED, order_may_exist=True)
FREE = OrderOutcome(key="k", intent_id="i", outcome=Outcome.REFUSED, order_may_exist=False)

Away = Callable[[], AbstractAsyncContextManager[object]]
"""A function that returns a context manager. The broker is unreachable while the context is open."""

Work = Callable[[Workplace, Connection], None]
"""The function that a process runs until it is killed."""


@pytest.mark.asyncio
class BrokerContract:
    """Tests that every broker must pass. In your tests, define ``class TestOurBroker(BrokerContract):``.

    Provide one fixture, ``new_line``: a function that creates a `Broker` from settings, without opening it.
    Each broker that ``new_line`` creates belongs to a different worker. All brokers from ``new_line`` use the
    same server::

        class TestOurBroker(BrokerContract):
            @pytest.fixture
            def new_line(self, broker):
                return partial(OurBroker, broker.address)

    A second fixture, ``broker_away``, makes the server unreachable, by stopping and restarting it or by
    cutting its connections. The server must not lose data while it is unreachable. Without ``broker_away``,
    the tests of lost connections are skipped::

            @pytest.fixture
            def broker_away(self, broker):
                @asynccontextmanager
                async def away():
                    await broker.stop()
                    yield
                    await broker.start()

                return away

    The tests need pytest and pytest-asyncio, in strict or auto mode.
    """

    ack_wait: float = 1.0
    """Seconds after which an unacknowledged message is delivered again. Increase it for a slow broker."""

    kills = 1
    """The number of worker processes that are killed; 0 if your broker cannot be pickled."""

    @pytest.fixture
    def new_line(self) -> NewBroker:
        """Your function that creates a broker from settings."""
        raise NotImplementedError("define a fixture new_line in your subclass")

    @pytest.fixture
    def broker_away(self) -> Away | None:
        """Your async context manager that makes the server unreachable; optional."""
        return None

    @pytest_asyncio.fixture
    async def harness(self, new_line: NewBroker) -> AsyncIterator[BrokerHarness]:
        """A harness that sends and takes messages on new subjects."""
        async with BrokerHarness(new_line, ack_wait=self.ack_wait) as harness:
            yield harness

    @pytest_asyncio.fixture
    async def workers(self, harness: BrokerHarness, tmp_path: Path) -> AsyncIterator[WorkerGroup]:
        """A group of workers that use the broker."""
        async with WorkerGroup(harness, tmp_path) as workers:
            yield workers

    # --- delivery -------------------------------------------------------------------------------

    async def test_a_message_is_delivered_as_it_was_sent(self, harness: BrokerHarness) -> None:
        """A message may contain arbitrary bytes, because an invalid message is dead-lettered unchanged."""
        bodies = {b"{}", b"", b"\xff\x00\r\n" * 40, "ü№".encode(), b"x" * 100_000}
        for body in bodies:
            await harness.send(body, HEADERS)
        consumer = await harness.consumer()
        taken = [await consumer.take() for _ in bodies]

        assert {item.body for item in taken} == bodies
        assert [HEADERS.items() <= item.headers.items() for item in taken] == [True] * len(bodies)
        assert [item.deliveries for item in taken] == [1] * len(bodies)

    async def test_an_order_is_sent_as_a_command(self, harness: BrokerHarness) -> None:
        command = OrderCommand(key="k", order=make_new_order())
        async with harness.sender() as broker:
            await broker.order(command, HEADERS)
        taken = await (await harness.consumer()).take()

        assert OrderCommand.from_json(taken.body) == command
        assert HEADERS.items() <= taken.headers.items()

    async def test_no_message_is_fetched_ahead(self, harness: BrokerHarness) -> None:
        """A prefetched message would wait in a busy worker, without heartbeats, while other workers are idle.

        The test also checks that no message is delivered to two workers.
        """
        bodies = {b"%d" % number for number in range(4)}
        for body in bodies:
            await harness.send(body)
        busy, idle = await harness.consumer(), await harness.consumer()
        taken = [await busy.take(), *[await idle.take() for _ in range(3)]]

        assert {item.body for item in taken} == bodies
        assert [item.deliveries for item in taken] == [1] * 4

    async def test_waiting_without_a_message_ends_at_its_timeout(self, harness: BrokerHarness) -> None:
        """If ``get_one`` returns None before the timeout, the worker treats the connection as closed."""
        subscriber = await (await harness.consumer()).subscriber()
        began = time.monotonic()

        assert await subscriber.get_one(timeout=0.4) is None
        assert time.monotonic() - began >= 0.2

    async def test_a_cancelled_wait_loses_no_message(self, harness: BrokerHarness) -> None:
        consumer = await harness.consumer()
        subscriber = await consumer.subscriber()
        waiting = asyncio.create_task(subscriber.get_one(timeout=0.4))
        await asyncio.sleep(0)
        await harness.send(b"meanwhile")
        waiting.cancel()
        await asyncio.wait([waiting])
        await subscriber.stop()

        assert (await consumer.take()).body == b"meanwhile"

    async def test_preparing_the_broker_again_changes_nothing(self, harness: BrokerHarness) -> None:
        """Workers call ``prepare`` every few seconds, so it must not affect messages."""
        for body in (b"in progress", b"waiting"):
            await harness.send(body)
        consumer = await harness.consumer()
        in_progress = await consumer.take()
        for _ in range(2):
            await consumer.broker.prepare()
            await consumer.broker.prepare(only_to_send=True)
        waiting = await consumer.take()
        await in_progress.ack()

        assert {in_progress.body, waiting.body} == {b"in progress", b"waiting"}
        assert waiting.deliveries == 1

    # --- acknowledgement ------------------------------------------------------------------------

    async def test_an_acknowledged_message_is_never_delivered_again(self, harness: BrokerHarness) -> None:
        await harness.send(b"done")
        consumer = await harness.consumer()
        await (await consumer.take()).ack()

        assert await harness.redelivered(consumer) == []

    async def test_an_unacknowledged_message_is_delivered_again_unchanged_and_counted(
        self, harness: BrokerHarness
    ) -> None:
        await harness.send(b"\xff left", HEADERS)
        consumer, other = await harness.consumer(), await harness.consumer()
        first = await consumer.take()
        second = await other.take()

        assert (first.body, second.body) == (b"\xff left", b"\xff left")
        assert HEADERS.items() <= second.headers.items()
        assert (first.deliveries, second.deliveries) == (1, 2)

    async def test_the_message_of_a_worker_that_ends_is_delivered_to_another(
        self, harness: BrokerHarness
    ) -> None:
        await harness.send(b"in progress")
        consumer = await harness.consumer()
        await consumer.take()
        await consumer.close()
        again = await (await harness.consumer()).take()

        assert (again.body, again.deliveries) == (b"in progress", 2)

    async def test_a_retried_message_is_delivered_unchanged_and_not_before_its_delay(
        self, harness: BrokerHarness
    ) -> None:
        await harness.send(b"\xff later", HEADERS)
        consumer = await harness.consumer()
        first = await consumer.take()
        began = time.monotonic()
        await first.retry(0.4)
        second = await consumer.take()

        assert time.monotonic() - began >= 0.4
        assert second.body == b"\xff later"
        assert HEADERS.items() <= second.headers.items()
        assert second.deliveries == 2

    async def test_a_delayed_message_holds_up_no_other(self, harness: BrokerHarness) -> None:
        await harness.send(b"in an hour")
        consumer = await harness.consumer()
        await (await consumer.take()).retry(3600.0)
        await harness.send(b"now")
        taken = await consumer.take()

        assert (taken.body, taken.deliveries) == (b"now", 1)

    async def test_a_delayed_message_waits_in_the_broker_and_not_in_the_worker(
        self, harness: BrokerHarness
    ) -> None:
        await harness.send(b"retried")
        consumer = await harness.consumer()
        await (await consumer.take()).retry(0.1)
        await consumer.close()
        again = await (await harness.consumer()).take()

        assert (again.body, again.deliveries) == (b"retried", 2)

    async def test_deliveries_are_counted_and_not_limited(self, harness: BrokerHarness) -> None:
        """Only the worker decides when to stop retrying a message.

        If a broker limited the number of deliveries, orders would be lost.
        """
        await harness.send(b"again and again")
        consumer, counted = await harness.consumer(), []
        for _ in range(8):
            taken = await consumer.take()
            counted.append(taken.deliveries)
            await taken.retry(0.0)

        assert counted == [1, 2, 3, 4, 5, 6, 7, 8]

    async def test_heartbeats_prevent_another_delivery(self, harness: BrokerHarness) -> None:
        await harness.send(b"takes long")
        consumer = await harness.consumer()
        taken = await consumer.take()
        async with taken.heartbeats(every=harness.settings.ack_wait / 5):
            assert await harness.redelivered(consumer) == []
        await taken.ack()

    # --- dead letters ---------------------------------------------------------------------------

    async def test_a_message_is_dead_lettered_unchanged_with_its_reason(self, harness: BrokerHarness) -> None:
        await harness.send(b"\xff no command", HEADERS)
        consumer = await harness.consumer()
        await (await consumer.take()).dead_letter("the command is not valid: $: is not an object")
        found = await harness.dead_lettered()

        assert found.body == b"\xff no command"
        assert HEADERS.items() <= found.headers.items()
        assert found.headers[REASON] == "the command is not valid: $: is not an object"
        assert await harness.redelivered(consumer) == []

    async def test_a_message_is_dead_lettered_whatever_the_reason(self, harness: BrokerHarness) -> None:
        """The reason may contain any text, because it quotes a field name from the message."""
        await harness.send(b"odd")
        consumer = await harness.consumer()
        await (await consumer.take()).dead_letter("not valid: nä\r\nme\x00: " + "№" * 5000)
        found = await harness.dead_lettered()

        assert found.body == b"odd"
        assert found.headers[REASON].startswith("not valid: n")

    @pytest.mark.parametrize("answer", ["dead_letter", "retry"])
    async def test_a_message_survives_a_cancelled_dead_letter_or_retry(
        self, harness: BrokerHarness, answer: str
    ) -> None:
        """After the cancellation, the queue or the dead letters must contain the message.

        If the message is lost, so is its order.
        """

        def answered(taken: TakenMessage) -> Coroutine[Any, Any, None]:
            if answer == "retry":
                return taken.delivery.retry(0.01)
            return taken.delivery.dead_letter("not valid")

        await harness.send(b"not cancelled")
        consumer = await harness.consumer()
        taken, began = await consumer.take(), time.monotonic()
        await soon(answered(taken), "the broker confirmed")
        took = time.monotonic() - began  # Measured, because a distant broker takes longer.
        bodies = [b"cancelled after %d of %d" % (part, CUTS) for part in range(CUTS)]
        for part, body in enumerate(bodies):
            await harness.send(body)
            taken = await consumer.take()  # This may also be an earlier message, delivered again.
            answering = asyncio.create_task(answered(taken))
            await asyncio.sleep(0)
            await asyncio.wait([answering], timeout=took * part / CUTS)
            answering.cancel()
            await soon(asyncio.wait([answering]), "a cancelled call has ended")
        await consumer.close()

        assert await harness.lost(bodies) == set()

    # --- confirmation ---------------------------------------------------------------------------

    async def test_a_published_outcome_is_stored_with_its_headers(self, harness: BrokerHarness) -> None:
        consumer = await harness.consumer()
        await consumer.broker.publish(CREATED, HEADERS)
        await consumer.close()
        tree, headers = await harness.published()

        assert (tree["key"], tree["outcome"], tree["order_id"]) == ("k", "created", "tx-1")
        assert HEADERS.items() <= headers.items()

    async def test_a_later_outcome_of_an_intent_is_not_taken_for_a_duplicate(
        self, harness: BrokerHarness
    ) -> None:
        consumer = await harness.consumer()
        outcomes = (UNKNOWN, CREATED, REFUSED, FREE)
        for outcome in outcomes:
            await consumer.broker.publish(outcome, {})
        found = [await harness.outcome() for _ in outcomes]

        assert {(item["outcome"], item["order_may_exist"]) for item in found} == {
            (item.outcome.value, item.order_may_exist) for item in outcomes
        }

    async def test_everything_that_the_broker_does_not_confirm_is_an_error(
        self, harness: BrokerHarness, broker_away: Away | None
    ) -> None:
        away = given(broker_away)
        for body in (b"done", b"no command"):
            await harness.send(body)
        consumer = await harness.consumer()
        taken: dict[bytes, TakenMessage] = {}
        while len(taken) < 2:  # On a busy machine, the first message may be redelivered before the second.
            item = await consumer.take()
            taken[item.body] = item
        async with away():
            wanted = {
                "publish": consumer.broker.publish(CREATED, {}),
                "send": consumer.broker.send(harness.settings.outcomes, CREATED.to_json(), {}),
                "ack": taken[b"done"].delivery.ack(),
                "dead_letter": taken[b"no command"].delivery.dead_letter("not valid"),
                "ping": consumer.broker.broker.ping(timeout=1.0),  # It may also return False.
            }
            everything = asyncio.gather(*wanted.values(), return_exceptions=True)
            ended = await soon(everything, "the calls that the broker cannot confirm have ended")
        ends = dict(zip(wanted, ended, strict=True))
        if not isinstance(ends["ping"], Exception) and not ends["ping"]:
            ends["ping"] = ConnectionError()

        assert [name for name, end in ends.items() if not isinstance(end, Exception)] == []
        other = await harness.consumer()
        while (await other.take()).body != b"no command":
            pass

    async def test_everything_that_the_broker_confirmed_outlives_its_restart(
        self, harness: BrokerHarness, broker_away: Away | None
    ) -> None:
        away = given(broker_away)
        consumer = await harness.consumer()
        for body in (b"dead", b"retried", b"left"):
            await harness.send(body)
        taken = {item.body: item for item in [await consumer.take() for _ in range(3)]}
        await taken[b"dead"].dead_letter("not valid")
        await taken[b"retried"].retry(0.1)
        await consumer.broker.publish(CREATED, {})
        await harness.send(b"waiting")
        await consumer.close()
        async with away():
            pass
        other = await harness.consumer()
        found = {(await other.take()).body for _ in range(3)}

        assert found == {b"retried", b"left", b"waiting"}
        assert (await harness.dead_lettered()).body == b"dead"
        assert (await harness.outcome())["order_id"] == "tx-1"

    async def test_workers_lose_nothing_while_the_broker_restarts(
        self, workers: WorkerGroup, broker_away: Away | None
    ) -> None:
        away, harness, bank = given(broker_away), workers.harness, workers.bank
        worker = await workers.start()
        await workers.order("before")
        keys = {outcome["key"] for outcome in [await harness.outcome()]}
        bank.block()
        for number in range(4):
            await workers.order(f"k{number}")
        await bank.requested(3)
        await harness.close_readers()
        async with away():
            bank.unblock()
            await worker.is_ready(expected=False)
        while len(keys) < 5:
            outcome = await harness.outcome()
            assert outcome["outcome"] == "created"
            keys.add(outcome["key"])

        assert keys == {"before", "k0", "k1", "k2", "k3"}
        assert len(workers.sandbox.orders) == 5
        await worker.is_ready()

    async def test_a_worker_waits_for_a_broker_that_is_down_at_first(
        self, workers: WorkerGroup, broker_away: Away | None
    ) -> None:
        away, failed = given(broker_away), asyncio.Event()
        async with away():
            worker = await workers.start(change=_reports_failures(failed), is_awaited=False)
            await soon(failed.wait(), "the broker could not be opened")
        await worker.is_ready()  # so that the worker, and not the reader of outcomes, creates what it needs
        await workers.order("k")

        assert (await workers.harness.outcome())["outcome"] == "created"

    # --- workers --------------------------------------------------------------------------------

    async def test_a_command_is_carried_out_and_its_outcome_published(self, workers: WorkerGroup) -> None:
        worker = await workers.start()
        await workers.order("k")
        outcome = await workers.harness.outcome()

        assert (outcome["key"], outcome["outcome"]) == ("k", "created")
        assert [outcome["order_id"]] == list(workers.sandbox.orders)
        await worker.is_ready()

    async def test_a_message_whose_outcome_could_not_be_published_is_delivered_again(
        self, workers: WorkerGroup
    ) -> None:
        errors = [OSError("the disk is full")]

        def change(broker: Broker) -> None:
            publish = broker.publish

            async def failing(outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
                if errors:
                    raise errors.pop()
                await publish(outcome, headers)

            broker.publish = failing  # type: ignore[method-assign] # for this one broker

        await workers.start(change=change)
        await workers.order("k")

        assert (await workers.harness.outcome())["outcome"] == "created"
        assert max(deliveries for _, deliveries in workers.seen) > 1
        assert len(workers.sandbox.orders) == 1

    async def test_a_slow_hook_is_not_run_twice(self, workers: WorkerGroup) -> None:
        workers.bank.block()
        await workers.start(slots=1)
        await workers.order("k")
        await workers.bank.requested()
        idle = await workers.harness.consumer()

        assert await workers.harness.redelivered(idle) == []
        workers.bank.unblock()
        assert (await workers.harness.outcome())["outcome"] == "created"
        assert len(workers.bank.placed) == 1

    async def test_a_worker_that_is_stopped_finishes_its_messages_and_leaves_the_others(
        self, workers: WorkerGroup
    ) -> None:
        workers.bank.block()
        worker = await workers.start()
        for number in range(3):
            await workers.order(f"k{number}")
        await workers.bank.requested(2)
        workers.bank.unblock()
        await worker.stop()
        outcomes = [await workers.harness.outcome() for _ in range(2)]
        await workers.start()
        outcomes.append(await workers.harness.outcome())

        assert {item["key"] for item in outcomes} == {"k0", "k1", "k2"}
        assert len(workers.bank.placed) == 3

    # --- killed workers -------------------------------------------------------------------------

    async def test_the_messages_of_a_killed_worker_are_carried_out_by_another(
        self, workers: WorkerGroup
    ) -> None:
        """Workers are killed in the hook, before publishing, before acknowledging, and after a retry."""
        if not self.kills:
            pytest.skip("kills = 0")
        wanted = {f"{point}-{number}" for number in range(self.kills) for point in POINTS}
        for number in range(self.kills):
            keys = [f"{point}-{number}" for point in POINTS]
            place = _workplace(workers, keys)
            for key in keys:
                await workers.order(key)
            await asyncio.to_thread(_run_and_kill, place, work)
        await workers.start()
        found: set[str] = set()
        while found != wanted:
            outcome = await workers.harness.outcome()
            assert outcome["outcome"] == "created"
            found.add(outcome["key"])

        assert len(workers.sandbox.orders) == len(wanted)
        assert min(deliveries for _, deliveries in workers.seen) > 1

    async def test_a_message_survives_a_worker_killed_while_dead_lettering_it(
        self, workers: WorkerGroup
    ) -> None:
        """A broker must copy the message to the dead letters before it acknowledges the message."""
        if not self.kills:
            pytest.skip("kills = 0")
        place = _workplace(workers, [DEAD_LETTERING])
        bodies = [b"dead letter %d" % number for number in range(len(PAUSES))]
        for body in bodies:
            await workers.harness.send(body)
        await asyncio.to_thread(_run_and_kill, place, dead_letter_until_killed)

        assert await workers.harness.lost(bodies) == set()


def given(broker_away: Away | None) -> Away:
    """Return the ``broker_away`` function, or skip the test if there is none."""
    if broker_away is None:
        pytest.skip("define a fixture broker_away in your subclass to run this test")
    return broker_away


def _reports_failures(failed: asyncio.Event) -> Callable[[Broker], None]:
    """Return a function that patches a broker to set ``failed`` if its ``open`` fails or is cancelled."""

    def change(broker: Broker) -> None:
        opened = broker.open

        async def open_(*, only_to_send: bool = False) -> None:
            try:
                await opened(only_to_send=only_to_send)
            except BaseException:
                failed.set()
                raise

        broker.open = open_  # type: ignore[method-assign] # for this one broker

    return change


# --- worker processes --------------------------------------------------------------------------------


def _workplace(workers: WorkerGroup, keys: Iterable[str]) -> Workplace:
    """Return the settings of a worker process that stops at the points named by ``keys``."""
    keys = frozenset(keys)
    place = Workplace(
        new_line=workers.harness.new_line,
        settings=attrs.evolve(workers.harness.settings, concurrency=len(keys)),
        journal=workers.path,
        base_url=workers.sandbox.base_url,
        token=workers.sandbox.token,
        keys=keys,
    )
    try:
        pickle.dumps(place)
    except Exception as error:
        why = "new_line must return a function that can be pickled, such as a partial; or set kills = 0"
        raise AssertionError(why) from error
    return place


def _run_and_kill(place: Workplace, do: Work) -> None:
    """Run a worker process until the command of each key has stopped at its point, then kill it."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=do, args=(place, writer), daemon=True)
    process.start()
    writer.close()
    keys = set(place.keys)
    try:
        while keys:
            keys -= {next_reached(reader, keys)}
    finally:
        process.kill()
        process.join()
        process.close()
        reader.close()


def next_reached(reader: Connection, keys: set[str]) -> str:
    """Wait until a worker process reports that the command of one of ``keys`` has stopped. Return the key."""
    if not reader.poll(TIMEOUT):
        raise AssertionError(f"a worker process did not start {sorted(keys)} within {TIMEOUT:g} s")
    try:
        return str(reader.recv())
    except EOFError:
        raise AssertionError("a worker process ended by itself: see its output") from None
