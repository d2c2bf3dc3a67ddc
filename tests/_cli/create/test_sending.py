"""Sending the orders of a file: retries of busy keys, giving up, stopping, and the outcomes written."""

import asyncio
import signal
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.support.bank import Gate, World
from tests.support.cases import each
from tests.support.order_files import outcomes_in, row
from transfer_async._cli import create_command, create_input
from transfer_async._cli.create_command import AT_LEAST, NOT_READY, BulkRun, CircuitBreaker, request_of
from transfer_async._cli.create_input import COLUMNS, Changed, Record
from transfer_async._cli.create_outcomes import OutcomeFile, Tally
from transfer_async._cli.process import Stopping
from transfer_async._models.errors import (
    ConnectionFailed,
    JournalFailed,
    KeyBusy,
    OutcomeUnknown,
    PreflightFailed,
    RateLimited,
    Refused,
    TokenUnavailable,
    Unauthorized,
)
from transfer_async._pipeline.batch import Batch, OrderResult
from transfer_async.journal.transitions import Claim, Create, MarkSending
from transfer_async.sandbox import StallAfterProcessing, Status


def records(*numbers: int, **changes: str) -> Iterator[Record]:
    for number in numbers:
        cells = row(number, **changes)
        row_cells = [cells.get(name, "") for name in COLUMNS]
        yield create_input._csv_record(number + 1, row_cells, list(COLUMNS))


class Heard:
    """A progress display that records its calls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.on_show: Any = lambda: None

    def show(self, what: str, done: int, total: int | None, counts: str) -> None:
        self.on_show()

    def say(self, line: str) -> None:
        self.lines.append(line)


class Desk:
    """The objects that a run needs."""

    def __init__(self, world: World, outcomes: OutcomeFile) -> None:
        self.world, self.outcomes = world, outcomes
        self.progress, self.stopping, self.tally = Heard(), Stopping(), Tally()
        self.made: BulkRun

    def bulk(self, client: Any, *, total: int, concurrency: int = 4) -> BulkRun:
        self.made = BulkRun(
            client,
            outcomes=self.outcomes,
            progress=self.progress,
            stopping=self.stopping,
            tally=self.tally,
            total=total,
            concurrency=concurrency,
            clock=self.world.time.clock,
        )
        return self.made

    async def run(self, *numbers: int, client: Any = None, concurrency: int = 4, **changes: str) -> None:
        """Create the orders with these numbers. Use a new client unless one is given."""
        async with self.world.client() as own:
            made = self.bulk(client or own, total=len(numbers), concurrency=concurrency)
            await made.run(records(*numbers, **changes))

    async def outcome_lines(self) -> dict[int, dict[str, Any]]:
        return {one["line"]: one for one in await asyncio.to_thread(outcomes_in, self.outcomes.part)}


@pytest.fixture
def outcomes(tmp_path):
    made = OutcomeFile(tmp_path / "outcomes")
    yield made
    made.close()


@pytest.fixture
def desk(world, outcomes, monkeypatch):
    monkeypatch.setattr(create_command, "CUT_OFF", 0.01)
    return Desk(world, outcomes)


# --- results --------------------------------------------------------------------------------------


def test_a_line_with_new_faults_is_not_sent():
    with pytest.raises(Changed, match="line 7 of FILE was changed"):
        request_of(Record(line=7, faults=(("key", "is missing"),)))


async def test_a_changed_input_ends_the_run_after_the_orders_in_flight(desk, monkeypatch):
    monkeypatch.setattr(create_command, "AHEAD", 8)

    def changing() -> Iterator[Record]:
        yield from records(*range(1, 30))
        raise Changed("the file has changed since it was checked")

    async with desk.world.client() as client:
        with pytest.raises(Changed):
            await desk.bulk(client, total=500).run(changing())

    # The lines that had been read ahead.
    assert len(await desk.outcome_lines()) == len(desk.world.sandbox.orders) == 24


# --- other workers' leases ------------------------------------------------------------------------


async def test_lines_of_a_killed_run_wait_for_its_lease_and_are_retried(desk):
    await killed(desk, 3)
    await killed(desk, 5, at=Create)  # its order had been sent
    await desk.run(*range(1, 9))

    assert desk.progress.lines == ["waiting up to 1 min 0 s for another worker's lease to expire: 2 lines"]
    assert sum(desk.world.time.slept) == pytest.approx(60.0, abs=1)
    assert desk.made.is_complete
    outcomes = await desk.outcome_lines()
    assert [outcomes[line]["outcome"] for line in (4, 6)] == ["created", "unknown"]


async def killed(desk: Desk, *numbers: int, at: type = MarkSending) -> None:
    """Simulate a run that is killed just before a transition of these orders' keys."""
    for request in map(request_of, records(*numbers)):
        await desk.world.crash(at, key=request.key, order=request.order, held=request.held)


async def test_a_line_is_retried_soon_after_a_live_worker_has_finished_its_key(desk):
    in_hook = Gate()
    desk.world.bank.on_place = in_hook
    (request,) = map(request_of, records(2, held=""))
    async with desk.world.client() as other:
        busy = await in_hook.catches(other.create_order(request.order, key=request.key))
        desk.world.time.on_sleep = partial(finished, in_hook, busy)
        await desk.run(1, 2)

    assert desk.world.time.slept == [create_command.FIRST_WAIT]
    assert (await desk.outcome_lines())[3]["order_id"] == busy.result().id
    assert desk.made.is_complete


async def finished(gate: Gate, busy: asyncio.Future) -> None:
    gate.open()
    await asyncio.wait([busy])


async def test_a_line_is_not_sent_while_another_worker_keeps_its_key(desk):
    class Busy:
        asked = 0

        async def create_orders(self, requests, **_):
            async for request in requests:
                Busy.asked += 1
                yield OrderResult(request=request, error=KeyBusy(retry_after=10.0, key=request.key))

    await desk.run(1, client=Busy())

    assert Busy.asked == 1 + 4
    assert desk.world.time.slept == pytest.approx([1.0, 2.0, 4.0, 3.0 + create_command.MARGIN])
    assert (desk.made.is_complete, desk.made.gave_up) == (True, None)
    assert (await desk.outcome_lines())[2]["error"] == "KeyBusy"
    assert desk.tally.exit_code == 4


async def test_the_number_of_postponed_lines_is_limited(desk, monkeypatch):
    monkeypatch.setattr(create_command, "MOST_POSTPONED", 2)
    await killed(desk, 1, 2, 3)
    await desk.run(1, 2, 3, concurrency=1)

    outcomes = await desk.outcome_lines()
    assert [outcomes[line]["outcome"] for line in (2, 3, 4)] == ["created", "created", "not_sent"]


async def test_a_stopped_run_does_not_wait_for_a_lease(desk):
    await killed(desk, 1)

    async def asked() -> None:
        desk.stopping.ask(signal.SIGINT)
        await asyncio.Event().wait()

    desk.world.time.on_sleep = asked
    await desk.run(1)

    assert not desk.made.is_complete
    assert (await desk.outcome_lines()) == {}


async def test_a_run_stopped_while_busy_lines_are_retried_starts_no_further_line(desk):
    await killed(desk, 1, 2, 3)
    # Send only one signal.
    desk.progress.on_show = lambda: desk.stopping.by or desk.stopping.ask(signal.SIGINT)
    await desk.run(1, 2, 3, concurrency=1)

    assert 1 <= len(await desk.outcome_lines()) == len(desk.world.sandbox.orders) < 3
    assert not desk.made.is_complete


# --- giving up ------------------------------------------------------------------------------------


def first_to_give_up(concurrency: int, results: list) -> int | None:
    breaker = CircuitBreaker(concurrency=concurrency)
    return next((number for number, result in enumerate(results, 1) if breaker.count(result)), None)


@each("error", [Unauthorized(status=401), Refused(status=404), Refused(status=405), TokenUnavailable()])
def test_a_wrong_token_or_base_url_ends_the_run_soon(error):
    assert first_to_give_up(64, [error] * 100) == NOT_READY


SENT = OutcomeUnknown(attempts=[object()])
BUSY = RateLimited(status=429)


@each(
    "error", [ConnectionFailed(), SENT, JournalFailed(), BUSY, PreflightFailed(refused=False), RuntimeError()]
)
@each(("concurrency", "after"), [(1, AT_LEAST), (16, 32), (200, 400)])
def test_other_failures_not_caused_by_orders_end_the_run_later(error, concurrency, after):
    assert first_to_give_up(concurrency, [error] * 1000) == after


def test_failures_caused_by_orders_never_end_the_run_and_reset_the_count():
    no = Refused(status=422)

    for results in ([no], [ConnectionFailed()] * 19 + [no], [PreflightFailed(refused=True)], [KeyBusy()]):
        assert first_to_give_up(1, results * 100) is None, results


async def test_doubts_of_an_earlier_run_do_not_end_the_run(desk):
    desk.world.sandbox.faults.add(Status(503), times=AT_LEAST + 10)
    for _ in range(2):  # each run stops after several doubts, so two runs are needed
        desk.tally = Tally()
        await desk.run(*range(1, 51), concurrency=1)

    assert desk.made.gave_up is None
    assert desk.tally.counted() == "20 created, 30 unknown"
    assert len(desk.world.sandbox.requests) == 50  # no order was sent again


async def test_a_wrong_token_places_few_holds_and_ends_the_run(desk):
    async with desk.world.client(token="wrong") as client:
        await desk.run(*range(1, 1001), held="", client=client)

    why = "10 consecutive orders failed with Unauthorized: the service does not accept the token"
    assert (desk.made.gave_up or "").startswith(why)
    assert desk.progress.lines[-1].endswith("finishing the orders in flight")
    assert len(desk.world.bank.placed) < 10 + 2 * 4
    assert desk.world.bank.open == {}
    assert not desk.made.is_complete
    assert len(await desk.outcome_lines()) == desk.tally.done


async def test_a_journal_that_fails_in_the_middle_ends_the_run(desk):
    def fail_after_50() -> None:
        desk.world.journal.fail_on = Claim if desk.tally.done >= 50 else None

    desk.progress.on_show = fail_after_50
    await desk.run(*range(1, 1001))

    assert "JournalFailed" in (desk.made.gave_up or "")
    assert 50 <= len(desk.world.sandbox.orders) <= desk.tally.done < 50 + AT_LEAST + 2 * 4
    assert desk.progress.lines[-1].endswith("finishing the orders in flight")


# --- stopping -------------------------------------------------------------------------------------


async def test_a_stopped_run_writes_the_outcomes_of_orders_in_flight(desk):
    desk.progress.on_show = lambda: desk.tally.done == 10 and desk.stopping.ask(signal.SIGINT)
    await desk.run(*range(1, 1001))

    assert 10 <= desk.tally.done <= 10 + 4 + 1
    assert {one["order_id"] for one in (await desk.outcome_lines()).values()} == set(
        desk.world.sandbox.orders
    )
    assert not desk.made.is_complete


async def test_a_second_signal_cuts_off_the_orders_in_flight(desk):
    desk.world.sandbox.faults.add(StallAfterProcessing(), times=2)
    running = asyncio.create_task(desk.run(*range(1, 1001), concurrency=2))
    await desk.world.sandbox.stalled(2)
    for _ in range(2):
        desk.stopping.ask(signal.SIGINT)
    await running

    assert [one["outcome"] for one in (await desk.outcome_lines()).values()] == ["unknown", "unknown"]
    assert desk.progress.lines[0].startswith("stopping:")


async def test_an_order_cut_off_before_it_is_sent_has_no_outcome(desk):
    async def never(_: object) -> None:
        desk.stopping.ask(signal.SIGINT)
        desk.stopping.ask(signal.SIGINT)
        await asyncio.Event().wait()

    desk.world.bank.on_place = never
    await desk.run(1, held="")

    assert (await desk.outcome_lines()) == {}
    assert not desk.made.is_complete
    assert desk.world.bank.open == {}


async def test_memory_does_not_grow_with_the_file(desk, tmp_path):
    alive: set[int] = set()
    most = 0

    def counted() -> Iterator[Record]:
        for record in records(*range(1, 501)):
            alive.add(id(record.command.order))
            weakref.finalize(record.command.order, alive.discard, id(record.command.order))
            yield record

    def look() -> None:
        nonlocal most
        most = max(most, len(alive))

    class Quick:
        async def create_orders(self, requests, *, concurrency, once):
            async def create(request):
                await asyncio.sleep(0)
                raise Refused(status=422, key=request.key)

            async for result in Batch(create, requests, concurrency=concurrency).results():
                yield result

    desk.progress.on_show = look
    # Use one thread, or another would start the next lines before the last one has released its own.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    await desk.bulk(Quick(), total=500, concurrency=16).run(counted())

    assert desk.made.is_complete
    assert most < 2 * create_command.AHEAD + 2 * 16
