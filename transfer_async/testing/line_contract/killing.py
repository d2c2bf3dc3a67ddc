"""Workers in processes of their own are killed, and what they had in hand is carried out by others."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection

import attrs
import pytest

from transfer_async.testing.line_contract.crew import Crew
from transfer_async.testing.line_contract.line_trial import PATIENCE
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
        """In the queue or among the parked, or both: no message is acknowledged before its copy is there."""
        if not self.kills:
            pytest.skip("kills = 0")
        place = _picklable(place_of(line_crew, [PARKING]))
        bodies = [b"put aside %d" % number for number in range(len(PAUSES))]
        for body in bodies:
            await line_crew.trial.send(body)
        await asyncio.to_thread(_live_and_die, place, put_aside_until_killed)

        assert await line_crew.trial.lost(bodies) == set()


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
    assert reader.poll(PATIENCE), f"a worker has not come to {sorted(keys)} within {PATIENCE:g} s"
    try:
        return str(reader.recv())
    except EOFError:
        raise AssertionError("a worker of its own process ended by itself: see what it wrote") from None
