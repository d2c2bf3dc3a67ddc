"""The process of one contender: it reports that it is ready, then runs the request on each input line."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from typing import Any

import attrs

from benchmarks.contenders import PLACES, Contender, Terms
from benchmarks.contenders.sampling import sampled
from benchmarks.measuring import machine
from benchmarks.measuring.samples import drive
from benchmarks.measuring.services import HELD_AFTER

WITHOUT_END = 1 << 62
LOOK_EVERY = 0.02


class Child:
    """The requests that a contender's process accepts.

    Args:
        contender: the contender, opened.
    """

    def __init__(self, contender: Contender) -> None:
        self._contender = contender

    async def turn(self, *, at_once: int, seconds: float, count: int = WITHOUT_END) -> dict[str, Any]:
        """Create orders for so many seconds, after a warm-up that opens all connections."""
        await drive(self._contender.create, count=2 * at_once, at_once=at_once)
        return attrs.asdict(
            await drive(self._contender.create, count=count, at_once=at_once, seconds=seconds)
        )

    async def profile(self, *, at_once: int, seconds: float) -> dict[str, Any]:
        """Create orders as above, and sample where the time goes."""
        await drive(self._contender.create, count=2 * at_once, at_once=at_once)
        with sampled() as seen:
            await drive(self._contender.create, count=WITHOUT_END, at_once=at_once, seconds=seconds)
        return seen

    async def crowd(self, *, count: int) -> dict[str, Any]:
        """Return the memory of so many orders in flight; the service responds only after it has all."""
        await drive(self._contender.create, count=HELD_AFTER, at_once=8)
        before = peak = machine.settled_memory()
        tasks = [asyncio.ensure_future(self._contender.create(number)) for number in range(count)]
        while not any(task.done() for task in tasks):
            peak = max(peak, machine.memory())
            await asyncio.sleep(LOOK_EVERY)
        await asyncio.gather(*tasks)
        return {"bytes": (peak - before) / count}

    async def endure(self, *, at_once: int, done: list[int], seconds: float) -> list[dict[str, float]]:
        """Return cost and memory after so many orders and after so many more; fewer if the time is up."""
        found, so_far, end = [], 0, time.perf_counter() + seconds
        for number in done:
            left = max(0.0, end - time.perf_counter())
            sample = await drive(self._contender.create, count=number - so_far, at_once=at_once, seconds=left)
            so_far += sample.count
            found.append({"done": so_far, "cpu": sample.cpu_cost, "bytes": machine.settled_memory()})
            if so_far < number:
                break
        return found


def main() -> None:
    """Run the contender of the first argument with the settings of the second, until the input ends."""
    name, told = sys.argv[1], json.loads(sys.argv[2])
    machine.pin(told.pop("core"))
    machine.descriptors()
    module, _, kind = PLACES[name].partition(":")
    terms = Terms(**told)
    try:
        loops = importlib.import_module("uvloop").new_event_loop if terms.uvloop else None
        made = getattr(importlib.import_module(f"benchmarks.contenders.{module}"), kind)
    except ImportError as error:
        _say({"left_out": str(error)})
        return
    with asyncio.Runner(loop_factory=loops) as runner:
        contender = runner.run(_enter(made, terms))
        child = Child(contender)
        _say({"ready": True})
        for line in sys.stdin:
            question = json.loads(line)
            _say(runner.run(getattr(child, question.pop("do"))(**question)))
        runner.run(contender.__aexit__(None, None, None))


async def _enter(made: type[Contender], terms: Terms) -> Contender:
    return await made(terms).__aenter__()  # some want a running loop when they are made


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
