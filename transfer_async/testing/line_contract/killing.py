"""Workers in processes of their own are killed, and what they had in hand is carried out by others."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection

import attrs
import pytest

from transfer_async import OrderOutcome
from transfer_async.integrations.faststream import Broker
from transfer_async.testing.line_contract.line_trial import PATIENCE, Crew
from transfer_async.testing.line_contract.mortal_worker import (
    PARKING,
    PAUSES,
    POINTS,
    Place,
    put_aside_until_killed,
    work,
)

Work = Callable[[Place, Connection], None]
"""What a process of its own does, until it is killed."""


class Killing:
    """Workers in processes of their own are killed, and what they had in hand is carried out by others."""

    kills: int

    async def test_what_a_killed_worker_had_in_hand_is_carried_out_by_another(self, line_crew: Crew) -> None:
        """In the hook; before the outcome is published; before it is acknowledged; given back."""
        if not self.kills:
            pytest.skip("kills = 0")
        wanted = {f"{point}-{number}" for number in range(self.kills) for point in POINTS}
        for number in range(self.kills):
            await _killed(line_crew, [f"{point}-{number}" for point in POINTS])
        await line_crew.worker()
        told: set[str] = set()
        while told != wanted:
            outcome = await line_crew.trial.outcome()
            assert outcome["outcome"] == "created"
            told.add(outcome["key"])

        assert len(line_crew.sandbox.orders) == len(wanted)
        assert min(deliveries for _, deliveries in line_crew.seen) > 1

    async def test_what_a_killed_worker_was_putting_aside_is_still_there(self, line_crew: Crew) -> None:
        """In the queue or among the dead letters, or both: none is acknowledged before its copy is there."""
        if not self.kills:
            pytest.skip("kills = 0")
        place = _picklable(place_of(line_crew, [PARKING]))
        bodies = [b"put aside %d" % number for number in range(len(PAUSES))]
        for body in bodies:
            await line_crew.trial.send(body)
        await asyncio.to_thread(_live_and_die, place, put_aside_until_killed)

        assert await line_crew.trial.lost(bodies) == set()


def counted(crew: Crew) -> list[int]:
    """The deliveries of the one message that was handled, each counted; a busy machine has more of them."""
    deliveries = [number for _, number in crew.seen]
    assert deliveries == sorted(set(deliveries))
    assert deliveries[0] == 1
    return deliveries


def place_of(crew: Crew, keys: Iterable[str]) -> Place:
    """Where a worker of another process works, and the keys that leave it at their points."""
    keys = frozenset(keys)
    return Place(
        new_line=crew.trial.new_line,
        settings=attrs.evolve(crew.trial.settings, concurrency=len(keys)),
        journal=crew.path,
        base_url=crew.sandbox.base_url,
        token=crew.sandbox.token,
        keys=keys,
    )


async def _killed(crew: Crew, keys: list[str]) -> None:
    """Let a worker of its own process come to where each of ``keys`` leaves it, and kill it there."""
    place = _picklable(place_of(crew, keys))
    for key in keys:
        await crew.order(key)
    await asyncio.to_thread(_live_and_die, place, work)


def _picklable(place: Place) -> Place:
    try:
        pickle.dumps(place)
    except Exception as error:
        why = "new_line must give what can be pickled, as a partial of a class can; or say kills = 0"
        raise AssertionError(why) from error
    return place


def _live_and_die(place: Place, do: Work) -> None:
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=do, args=(place, writer), daemon=True)
    process.start()
    writer.close()
    keys = set(place.keys)
    try:
        while keys:
            keys -= {reached_in(reader, keys)}
    finally:
        process.kill()
        process.join()
        process.close()
        reader.close()


def reached_in(reader: Connection, keys: set[str]) -> str:
    """The next of ``keys`` whose point a worker of its own process has come to."""
    if not reader.poll(PATIENCE):
        raise AssertionError(f"a worker has not come to {sorted(keys)} within {PATIENCE:g} s")
    try:
        return str(reader.recv())
    except EOFError:
        raise AssertionError("a worker of its own process ended by itself: see what it wrote") from None


# --- working -----------------------------------------------------------------------------------------
# What workers make of a line: each command is carried out once, and its outcome told, whatever happens.


class Working:
    """What workers make of a line: each command is carried out once, and its outcome told."""

    async def test_a_command_is_carried_out_and_its_outcome_published(self, line_crew: Crew) -> None:
        at_work = await line_crew.worker()
        await line_crew.order("k")
        outcome = await line_crew.trial.outcome()

        assert (outcome["key"], outcome["outcome"]) == ("k", "created")
        assert [outcome["order_id"]] == list(line_crew.sandbox.orders)
        await at_work.is_ready()

    async def test_a_command_that_comes_twice_is_one_order_with_one_outcome(self, line_crew: Crew) -> None:
        await line_crew.worker()
        for _ in range(2):
            await line_crew.order("k")
        told = [await line_crew.trial.outcome()]
        await line_crew.order("another")
        while told[-1]["key"] == "k":
            told.append(await line_crew.trial.outcome())

        assert [item for item in told if item != told[0]] == told[-1:]
        assert len(line_crew.sandbox.orders) == 2

    async def test_a_trace_goes_from_a_message_into_its_outcome(self, line_crew: Crew) -> None:
        seen: list[str] = []

        @contextmanager
        def around(headers: Mapping[str, str]) -> Iterator[None]:
            seen.append(headers["traceparent"])
            yield

        await line_crew.worker(around=around, inject=lambda: {"traceparent": "00-child"})
        await line_crew.order("k", {"traceparent": "00-parent"})
        _, headers = await line_crew.trial.published()

        assert (seen, headers["traceparent"]) == (["00-parent"], "00-child")

    async def test_what_can_never_be_carried_out_is_parked_and_the_next_goes_on(
        self, line_crew: Crew
    ) -> None:
        await line_crew.worker()
        await line_crew.trial.send(b'{"version": 1, \xff')
        await line_crew.order("k")
        parked, outcome = await line_crew.trial.parked(), await line_crew.trial.outcome()

        assert parked.body == b'{"version": 1, \xff'
        assert parked.headers["Transfer-Reason"].startswith("the command is not valid: ")
        assert (outcome["key"], outcome["outcome"]) == ("k", "created")

    async def test_what_could_not_be_carried_out_now_is_tried_again(self, line_crew: Crew) -> None:
        line_crew.bank.breaks = 2
        await line_crew.worker()
        await line_crew.order("k")

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(counted(line_crew)) >= 3

    async def test_a_message_whose_outcome_could_not_be_published_comes_again(self, line_crew: Crew) -> None:
        errors = [OSError("the disk is full")]

        def spoil(line: Broker) -> None:
            publish = line.publish

            async def failing(outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
                if errors:
                    raise errors.pop()
                await publish(outcome, headers)

            line.publish = failing  # type: ignore[method-assign] # for this one line

        await line_crew.worker(spoil=spoil)
        await line_crew.order("k")

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(counted(line_crew)) >= 2
        assert len(line_crew.sandbox.orders) == 1

    async def test_a_hook_that_takes_long_is_not_run_twice(self, line_crew: Crew) -> None:
        line_crew.bank.hold_up()
        await line_crew.worker(lanes=1)
        await line_crew.order("k")
        await line_crew.bank.has_come()
        idle = await line_crew.trial.hand()

        assert await line_crew.trial.come_again(idle) == []
        line_crew.bank.let_through()
        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(line_crew.bank.placed) == 1

    async def test_workers_share_what_is_there(self, line_crew: Crew) -> None:
        """Each has as many in hand as it has lanes, and leaves the others to the others."""
        line_crew.bank.hold_up()
        for number in range(5):
            await line_crew.order(f"k{number}")
        for _ in range(2):
            await line_crew.worker()
            await line_crew.bank.has_come(line_crew.trial.settings.concurrency)
        line_crew.bank.let_through()
        told = [await line_crew.trial.outcome() for _ in range(5)]

        assert {item["key"] for item in told} == {f"k{number}" for number in range(5)}
        assert len(line_crew.sandbox.orders) == 5

    async def test_a_worker_that_is_stopped_finishes_what_it_has_and_leaves_the_rest(
        self, line_crew: Crew
    ) -> None:
        line_crew.bank.hold_up()
        at_work = await line_crew.worker()
        for number in range(3):
            await line_crew.order(f"k{number}")
        await line_crew.bank.has_come(2)
        line_crew.bank.let_through()
        await at_work.stop()
        told = [await line_crew.trial.outcome() for _ in range(2)]
        await line_crew.worker()
        told.append(await line_crew.trial.outcome())

        assert {item["key"] for item in told} == {"k0", "k1", "k2"}
        assert len(line_crew.bank.placed) == 3

    async def test_what_a_worker_had_in_hand_when_it_was_cut_off_comes_to_another(
        self, line_crew: Crew
    ) -> None:
        line_crew.bank.hold_up()
        at_work = await line_crew.worker()
        await line_crew.order("k")
        await line_crew.bank.has_come()
        await at_work.cut_off()
        line_crew.bank.let_through()
        await line_crew.worker()

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(line_crew.sandbox.orders) == 1
        assert [key for key, deliveries in line_crew.seen if deliveries > 1]
