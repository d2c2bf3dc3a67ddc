"""The package's brokers, and one that a bank might write, fulfil the public contract."""

import asyncio
import multiprocessing
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.contract.own_broker import TableBroker
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import ClientClosed
from transfer_async.integrations.faststream.nats import JetStreamBroker
from transfer_async.integrations.faststream.redis import RedisStreamsBroker
from transfer_async.testing import broker_contract
from transfer_async.testing.broker_contract import BrokerContract, broker_harness, given
from transfer_async.testing.broker_contract.broker_harness import BrokerHarness, WorkerGroup


def stopping(server):
    """Return a context manager that stops a server at once and starts it again."""

    @asynccontextmanager
    async def away():
        await asyncio.to_thread(server.stop_at_once)
        yield
        await asyncio.to_thread(server.start)

    return away


def moving(directory):
    """Return a context manager that moves a directory away, and back at the end."""

    @asynccontextmanager
    async def away():
        elsewhere = directory.with_name("elsewhere")
        await asyncio.to_thread(directory.rename, elsewhere)
        yield
        await asyncio.to_thread(elsewhere.rename, directory)

    return away


class OurContract(BrokerContract):
    """The contract, with many kills instead of one."""

    @pytest.mark.timeout(3000)
    @pytest.mark.trial(ci=3, long=300)
    async def test_workers_killed_one_after_another_lose_nothing(self, size, workers):
        self.kills = size
        await self.test_the_messages_of_a_killed_worker_are_carried_out_by_another(workers)


class TestNats(OurContract):
    @pytest.fixture
    def new_line(self, nats):
        return partial(JetStreamBroker.at, nats.address)

    @pytest.fixture
    def broker_away(self, nats):
        return stopping(nats)


class TestRedis(OurContract):
    @ONLY_IN_TRIALS
    async def test_the_messages_of_a_killed_worker_are_carried_out_by_another(self, workers):
        await super().test_the_messages_of_a_killed_worker_are_carried_out_by_another(workers)

    @ONLY_IN_TRIALS
    async def test_a_message_survives_a_worker_killed_while_dead_lettering_it(self, workers):
        await super().test_a_message_survives_a_worker_killed_while_dead_lettering_it(workers)

    @pytest.fixture
    def new_line(self, redis):
        return partial(RedisStreamsBroker.at, redis.address)

    @pytest.fixture
    def broker_away(self, redis):
        return stopping(redis)


@ONLY_IN_TRIALS  # the base of the wrong brokers; some of them run by default
class TestTable(OurContract):
    kills = 0  # the tests of wrong brokers already kill workers of a table

    @pytest.fixture
    def new_line(self, tmp_path):
        (tmp_path / "broker").mkdir()
        return partial(TableBroker, tmp_path / "broker/messages.db")

    @pytest.fixture
    def broker_away(self, tmp_path):
        return moving(tmp_path / "broker")


# --- the suite itself -----------------------------------------------------------------------------------


def test_a_missing_new_line_fixture_is_named():
    with pytest.raises(NotImplementedError, match="define a fixture new_line in your subclass"):
        BrokerContract.new_line.__wrapped__(BrokerContract())


async def test_a_test_without_its_fixture_is_skipped_with_the_reason():
    contract = BrokerContract()
    contract.kills = 0
    for killed in (
        contract.test_the_messages_of_a_killed_worker_are_carried_out_by_another,
        contract.test_a_message_survives_a_worker_killed_while_dead_lettering_it,
    ):
        with pytest.raises(pytest.skip.Exception, match="kills = 0"):
            await killed(None)
    with pytest.raises(pytest.skip.Exception, match="define a fixture broker_away in your subclass"):
        given(BrokerContract.broker_away.__wrapped__(contract))


@pytest.fixture
async def workers(tmp_path):
    async with (
        BrokerHarness(partial(TableBroker, tmp_path / "messages.db"), ack_wait=0.5) as harness,
        WorkerGroup(harness, tmp_path) as workers,
    ):
        yield workers


async def test_a_broker_that_cannot_be_pickled_is_reported(workers):
    workers.harness.new_line = lambda settings: None

    with pytest.raises(AssertionError, match="such as a partial; or set kills = 0"):
        await BrokerContract().test_the_messages_of_a_killed_worker_are_carried_out_by_another(workers)


async def test_a_worker_that_does_not_stop_is_cancelled_and_its_client_closed(workers, monkeypatch):
    worker = await workers.start(is_awaited=False)
    monkeypatch.setattr(worker.worker, "run", lambda _: asyncio.Event().wait())  # a worker that never stops
    await asyncio.sleep(0)  # it begins
    monkeypatch.setattr(broker_harness, "TIMEOUT", 0.1)  # this timeout must expire

    with pytest.raises(AssertionError, match="waiting until the worker has stopped"):
        await worker.stop()

    with pytest.raises(ClientClosed):
        await worker.client.who_am_i()


async def test_a_worker_whose_connection_is_closed_for_good_is_restarted(workers, tmp_path):
    made = []

    class ClosedAtFirst(TableBroker):
        is_closed = property(lambda self: self is made[0])

        def __init__(self, settings):
            super().__init__(tmp_path / "messages.db", settings)
            made.append(self)

    workers.harness.new_line = ClosedAtFirst
    await workers.start(is_awaited=False)
    await workers.order("k")

    assert (await workers.harness.outcome())["outcome"] == "created"


def test_a_process_that_misses_its_points_or_ends_by_itself_is_reported(monkeypatch):
    monkeypatch.setattr(broker_contract, "TIMEOUT", 0.0)
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader:
        with pytest.raises(AssertionError, match=r"did not start \['holding-0'\] within 0 s"):
            broker_contract.next_reached(reader, {"holding-0"})
        writer.close()
        with pytest.raises(AssertionError, match="a worker process ended by itself"):
            broker_contract.next_reached(reader, {"holding-0"})
