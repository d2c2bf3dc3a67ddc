"""Three banks whose hooks keep the rules: a dict, a ledger behind HTTP, and one with a natural key."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from transfer_async import FundsHold, HoldFailed, PreflightFailed

MOST = 10**9
"""What a customer has."""


class Ledger:
    """The holds, in a dict, and what is left of the money: one step of the loop is one transaction."""

    def __init__(self):
        self.rows = {}
        self.available = 100 * MOST

    @property
    def hooks(self):
        return [FundsHold(self.place, self.release)]

    async def place(self, intent):
        await asyncio.sleep(0)
        if intent.order.poster_amount > MOST:
            raise HoldFailed("not enough funds")
        if intent.id not in self.rows:
            self.rows[intent.id] = f"hold-{len(self.rows)}"
            self.available -= intent.order.poster_amount
        return self.rows[intent.id]

    async def release(self, intent, reference):
        await asyncio.sleep(0)
        if self.rows.pop(intent.id, None) is not None:
            self.available += intent.order.poster_amount

    async def held(self, intent_id):
        return self.rows.get(intent_id)

    async def balance(self):
        return self.available


class HttpLedger:
    """A service of the bank's own: requests may be lost, and may arrive behind the release."""

    def __init__(self, address):
        self.session = aiohttp.ClientSession(address)
        self.hooks = [sanctions, FundsHold(self.place, self.release)]

    async def place(self, intent):
        async with self.session.put(f"/holds/{intent.id}") as answer:
            if answer.status == 409:  # it was released meanwhile
                raise HoldFailed("this hold was released")
            return (await answer.json())["reference"]

    async def release(self, intent, reference):
        async with self.session.delete(f"/holds/{intent.id}"):
            pass

    async def held(self, intent_id):
        async with self.session.get(f"/holds/{intent_id}") as answer:
            return await answer.json()

    async def close(self):
        await self.session.close()


async def sanctions(intent):
    if "nobody" in intent.order.poster_username:
        raise PreflightFailed("on the list")


@asynccontextmanager
async def http_ledger() -> AsyncIterator[str]:
    """The service's side: a release leaves a mark, which a place that arrives later obeys."""
    holds, released = {}, set()

    async def place(request):
        intent = request.match_info["intent"]
        if intent in released:
            return web.json_response({}, status=409)
        return web.json_response({"reference": holds.setdefault(intent, f"hold-{len(holds)}")})

    async def release(request):
        released.add(request.match_info["intent"])
        holds.pop(request.match_info["intent"], None)
        return web.json_response({})

    async def held(request):
        found = holds.get(request.match_info["intent"])
        return web.json_response([] if found is None else [found])

    app = web.Application()
    for method, handler in {"PUT": place, "DELETE": release, "GET": held}.items():
        app.router.add_route(method, "/holds/{intent}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


class KeyedLedger:
    """A core system that takes an idempotency key with each booking: the intent's id."""

    def __init__(self, core):
        self.core = core
        self.hooks = [FundsHold(self.place, self.release)]

    async def place(self, intent):
        return await self.core.book("hold", key=intent.id)

    async def release(self, intent, reference):
        await self.core.book("cancel", key=intent.id)

    def held(self, intent_id):
        return f"hold-{intent_id}" if self.core.bookings.get(intent_id) == "hold" else None


class Core:
    """Books in order, once for each key; what is cancelled stays so."""

    def __init__(self):
        self.bookings = {}

    async def book(self, what, *, key):
        await asyncio.sleep(0)
        if what == "cancel" or key not in self.bookings:
            self.bookings[key] = what
        await asyncio.sleep(0)
        return f"hold-{key}"
