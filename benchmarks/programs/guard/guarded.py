"""The work that the guard counts, in its own process: orders with a stubbed transport, and decodes.

``python -m benchmarks.programs.guard.guarded --orders 120 --decodes 20`` only does the work, so that valgrind
can count instructions. With ``--count``, it counts calls and memory blocks and prints them.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import json
import sys
from typing import Any

from benchmarks.contenders import ContenderSettings
from benchmarks.contenders.ours import Ours, StubTransport, response_to
from benchmarks.measuring.samples import drive
from benchmarks.measuring.workload import new_orders
from transfer_async._converters import converter
from transfer_async._http.transport import ExchangeResult
from transfer_async._models.responses import Order
from transfer_async._pipeline import create_order
from transfer_async._pipeline.call import ClientCore, OrderCall

CONCURRENCY = 8
WARM_UP = 40
COUNTED_ORDERS = 200


async def work(*, orders: int, decodes: int) -> None:
    """Create orders, then decode responses."""
    async with Ours(ContenderSettings(stub_transport=True)) as ours:
        await drive(ours.create, count=orders, concurrency=CONCURRENCY)
    answer = response_to(new_orders(1)[0])
    for _ in range(decodes):
        converter.read_answer(answer)


async def calls() -> float:
    """Count the function calls per order, in Python and in C."""
    total = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal total
        total += event in ("call", "c_call")

    async with Ours(ContenderSettings(stub_transport=True)) as ours:
        await drive(ours.create, count=WARM_UP, concurrency=CONCURRENCY)
        sys.setprofile(count)
        await drive(ours.create, count=COUNTED_ORDERS, concurrency=CONCURRENCY)
        sys.setprofile(None)
    return total / COUNTED_ORDERS


async def blocks() -> float:
    """Count the memory blocks that are allocated per order in flight."""
    async with Ours(ContenderSettings(stub_transport=True)) as ours:
        await drive(ours.create, count=WARM_UP, concurrency=CONCURRENCY)
        gate = GatedTransport(ours)
        gc.collect()
        before = sys.getallocatedblocks()
        tasks = [asyncio.ensure_future(ours.create(0)) for _ in range(COUNTED_ORDERS)]
        await gate.all_sent.wait()
        gc.collect()
        held = sys.getallocatedblocks() - before
        gate.released.set()
        await asyncio.gather(*tasks)
    return held / COUNTED_ORDERS


class GatedTransport(StubTransport):
    """A stubbed transport that responds only after all requests have been sent."""

    def __init__(self, ours: Ours) -> None:
        super().__init__(new_orders(1)[0])
        self.all_sent, self.released = asyncio.Event(), asyncio.Event()
        self._sent = 0
        self.install(ours.client)

    async def post_order(self, *arguments: Any, **options: Any) -> ExchangeResult:
        self._sent += 1
        if self._sent == COUNTED_ORDERS:
            self.all_sent.set()
        await self.released.wait()
        return await super().post_order(*arguments, **options)


def add_waste() -> None:
    """Add waste that the guard must detect: each call copies its intent and allocates 20 more objects."""
    run = create_order.create_order

    async def wasteful(context: ClientCore, call: OrderCall) -> Order:
        extra = [copy.deepcopy(call.work.intent), *(object() for _ in range(20))]
        try:
            return await run(context, call)
        finally:
            extra.clear()

    create_order.create_order = wasteful


def main() -> None:
    """Run or count the work."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--orders", type=int, default=0)
    parser.add_argument("--decodes", type=int, default=0)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--waste", action="store_true")
    options = parser.parse_args()
    if options.waste:
        add_waste()
    if options.count:
        print(json.dumps({"calls": asyncio.run(calls()), "blocks": asyncio.run(blocks())}))
    else:
        asyncio.run(work(orders=options.orders, decodes=options.decodes))


if __name__ == "__main__":
    main()
