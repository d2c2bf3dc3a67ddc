"""Banks in several styles whose hooks keep the rules. Each account has room for exactly six holds."""

import asyncio
import contextlib
import inspect
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import aiohttp
from aiohttp import web

from transfer_async import FundsHold, HoldFailed, PreflightFailed
from transfer_async.testing import make_new_order

ROOM = 6 * make_new_order().poster_amount


class InsufficientFunds(Exception):
    """The ledger refuses a hold."""


class CoreSystem:
    """A core banking system with idempotency keys. It yields to the loop before and after each step."""

    def __init__(self):
        self.holds, self.keys, self.available = {}, {}, ROOM

    def book(self, owner, amount, *, key):
        if key not in self.keys:
            if amount > self.available:
                raise InsufficientFunds
            self.keys[key] = f"hold-{len(self.keys)}"
            self.holds[self.keys[key]] = owner, amount
            self.available -= amount
        return self.keys[key]

    async def hold(self, owner, amount, *, key):
        await asyncio.sleep(0)
        hold = self.book(owner, amount, key=key)
        await asyncio.sleep(0)
        return hold

    async def cancel(self, hold):
        await asyncio.sleep(0)
        _, amount = self.holds.pop(hold, (None, 0))
        self.available += amount
        await asyncio.sleep(0)

    async def holds_of(self, owner):
        await asyncio.sleep(0)
        return [hold for hold, (whose, _) in self.holds.items() if whose == owner]


class Bank:
    """Uses an API with idempotency keys."""

    def __init__(self, core=None):
        self.core = core or CoreSystem()

    @property
    def hooks(self):
        return [FundsHold(self.place, self.release)]

    @staticmethod
    def amount(intent):
        return intent.order.poster_amount

    async def place(self, intent):
        try:
            return await self.core.hold(intent.id, self.amount(intent), key=intent.id)
        except InsufficientFunds as error:
            raise HoldFailed("not enough funds") from error

    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            await self.core.cancel(hold)

    async def held(self, intent_id):
        return await self.core.holds_of(intent_id)

    def balance(self):
        return self.core.available


class RetryingBank(Bank):
    """Retries with the same key. Its balances are strings with a varying number of digits."""

    async def place(self, intent):
        for _ in range(2):
            with contextlib.suppress(TimeoutError, ConnectionError):
                return await super().place(intent)
        return await super().place(intent)

    async def release(self, intent, reference):
        for _ in range(2):
            with contextlib.suppress(TimeoutError, ConnectionError):
                await super().release(intent, reference)
                return
        await super().release(intent, reference)

    def balance(self):
        self.looks = getattr(self, "looks", 0) + 1
        return {"NGN": f"{self.core.available:.{2 + self.looks % 3}f}", "as of": "today"}


class CompensatingBank(Bank):
    """After a lost response, releases the hold and then reports that there is none."""

    async def place(self, intent):
        try:
            return await super().place(intent)
        except (TimeoutError, ConnectionError) as error:
            await self.release(intent, None)
            raise HoldFailed("taken back") from error


class FinishingBank:
    """Uses closures over a core system, which finish each call even if its caller was cancelled."""

    def __init__(self):
        bank = Bank()

        async def finished(work):
            task = asyncio.ensure_future(work)
            try:
                return await asyncio.shield(task)
            except BaseException:
                await asyncio.wait([task])
                raise

        async def place(intent):
            return await finished(bank.place(intent))

        async def release(intent, reference):
            await finished(bank.release(intent, reference))

        async def balance():
            return [bank.core.available]

        self.hooks = [FundsHold(place, release)]
        self.held, self.balance = bank.held, balance


class LockingBank:
    """Uses a dict, protected by a lock."""

    def __init__(self):
        self.lock, self.rows, self.money = asyncio.Lock(), {}, {"available": ROOM, "held": Decimal(0)}
        self.hooks = [FundsHold(self.place, self.release)]

    async def place(self, intent):
        async with self.lock:
            await asyncio.sleep(0)
            if intent.id not in self.rows:
                self.move(intent.order.poster_amount)
                self.rows[intent.id] = f"row-{len(self.rows)}"
            return self.rows[intent.id]

    async def release(self, intent, reference):
        async with self.lock:
            await asyncio.sleep(0)
            if self.rows.pop(intent.id, None):
                self.move(-intent.order.poster_amount)

    def move(self, amount):
        if amount > self.money["available"]:
            raise HoldFailed("not enough funds")
        self.money["available"] -= amount
        self.money["held"] += amount

    def held(self, intent_id):
        return self.rows.get(intent_id)

    def balance(self):
        return self.money


class SqlBank:
    """Uses a table with a unique key and an account in cents, changed in one transaction."""

    table = "CREATE TABLE hold (intent TEXT PRIMARY KEY, key TEXT, reference TEXT)"
    insert = "INSERT OR IGNORE INTO hold VALUES (?, ?, ?)"
    delete = "DELETE FROM hold WHERE intent = ? AND ?2 IS ?2"
    commits = "COMMIT"

    def __init__(self):
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.db.execute(self.table)
        self.db.execute("CREATE TABLE account (cents INTEGER CHECK (cents >= 0))")
        self.db.execute("INSERT INTO account VALUES (?)", [int(ROOM * 100)])
        self.count = 0
        self.hooks = [FundsHold(self.place, self.release)]

    @staticmethod
    def cents(intent):
        return int(intent.order.poster_amount * 100)

    def row(self, intent):
        self.count += 1
        return intent.id, intent.key, f"hold-{self.count}"

    def find(self, intent):
        row = self.db.execute("SELECT reference FROM hold WHERE intent = ?", [intent.id]).fetchone()
        return row and row[0]

    def moved(self, statement, values, cents):
        self.db.execute("BEGIN IMMEDIATE")
        try:
            changed = self.db.execute(statement, values).rowcount
            self.db.execute("UPDATE account SET cents = cents + ?", [changed * cents])
            self.db.execute(self.commits)
        except BaseException:
            self.db.execute("ROLLBACK")
            raise

    async def place(self, intent):
        await asyncio.sleep(0)
        if self.cents(intent) > self.db.execute("SELECT cents FROM account").fetchone()[0]:
            if not self.find(intent):
                raise HoldFailed("not enough funds")
        else:
            self.moved(self.insert, self.row(intent), -self.cents(intent))
        await asyncio.sleep(0)
        return self.find(intent) or "none"

    async def release(self, intent, reference):
        await asyncio.sleep(0)
        self.moved(self.delete, [intent.id, reference], self.cents(intent))

    def held(self, intent_id):
        return [one for (one,) in self.db.execute("SELECT reference FROM hold WHERE intent = ?", [intent_id])]

    def balance(self):
        return dict(self.db.execute("SELECT 'cents', cents FROM account"))

    def close(self):
        self.db.close()


class ThreadedSqlBank(SqlBank):
    """Uses a blocking driver in a single thread, so that a release runs after its place."""

    def __init__(self):
        super().__init__()
        self.thread = ThreadPoolExecutor(1)

    def there(self, function, *given):
        return asyncio.get_running_loop().run_in_executor(self.thread, function, *given)

    async def place(self, intent):
        return await self.there(lambda: asyncio.run(super(ThreadedSqlBank, self).place(intent)))

    async def release(self, intent, reference):
        await self.there(lambda: asyncio.run(super(ThreadedSqlBank, self).release(intent, reference)))

    async def held(self, intent_id):
        return await self.there(super().held, intent_id)

    async def balance(self):
        return await self.there(super().balance)

    async def close(self):
        await self.there(super().close)
        self.thread.shutdown()


class HookBank:
    """Uses one class for the daily limit, and one for the hold."""

    def __init__(self):
        self.bank = Bank()
        self.held, self.balance = self.bank.held, self.bank.balance
        self.hooks = [DailyLimit(), Hold(self.bank)]


class DailyLimit:
    name = "daily_limit"

    def __init__(self):
        self.spent = {}

    async def before(self, intent):
        if sum(self.spent.values()) > 10**12:
            raise PreflightFailed("over the daily limit")
        self.spent[intent.id] = intent.order.poster_amount
        return str(intent.order.poster_amount)

    async def undo(self, intent, receipt):
        self.spent.pop(intent.id, None)


class Hold:
    """Looks for an existing hold first, and again after a lost response."""

    name = "core_hold"
    places_hold = True

    def __init__(self, bank):
        self.bank = bank

    async def before(self, intent):
        if known := await self.bank.held(intent.id):
            return known[0]
        try:
            return await self.bank.place(intent)
        except (TimeoutError, ConnectionError):
            if known := await self.bank.held(intent.id):
                return known[0]
            raise

    async def undo(self, intent, receipt):
        await self.bank.release(intent, receipt)


class HttpBank:
    """Uses an HTTP service of the bank (see `http_bank`), and asks it again after a lost response."""

    def __init__(self, address):
        self.session = aiohttp.ClientSession(address)
        self.hooks = [FundsHold(self.place, self.release)]

    async def ask(self, method, intent, *, hold=None):
        amount = str(intent.order.poster_amount)
        async with self.session.request(method, f"/holds/{hold or intent.id}", json=amount) as response:
            if response.status == 409:
                raise HoldFailed("the ledger refused")
            response.raise_for_status()
            return await response.json()

    async def place(self, intent):
        try:
            return await self.ask("PUT", intent)
        except (aiohttp.ClientError, TimeoutError):
            return await self.ask("PUT", intent)

    async def release(self, intent, reference):
        await self.ask("DELETE", intent)

    async def held(self, intent_id):
        async with self.session.get(f"/holds/{intent_id}") as response:
            return await response.json()

    async def balance(self):
        async with self.session.get("/balance") as response:
            return await response.json()

    async def close(self):
        await self.session.close()


@contextlib.asynccontextmanager
async def http_bank():
    """Serve the ledger over HTTP. After a release, a late place of the same intent is refused."""
    holds, released, money = {}, set(), [ROOM]

    async def place(request):
        hold, amount = request.match_info["hold"], Decimal(await request.json())
        if hold in released or (hold not in holds and amount > money[0]):
            return web.json_response({}, status=409)
        if hold not in holds:
            holds[hold] = amount
            money[0] -= amount
        return web.json_response(f"hold-{hold}")

    async def release(request):
        intent = request.match_info["hold"]
        released.add(intent)
        for hold in [one for one in holds if one.partition("~")[0] == intent]:
            money[0] += holds.pop(hold)
        return web.json_response({})

    async def held(request):
        intent = request.match_info["hold"]
        return web.json_response([f"hold-{one}" for one in holds if one.partition("~")[0] == intent])

    async def balance(request):
        return web.json_response({"NGN": str(money[0])})

    app = web.Application()
    for method, handler in {"PUT": place, "DELETE": release, "GET": held}.items():
        app.router.add_route(method, "/holds/{hold}", handler)
    app.router.add_get("/balance", balance)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class SimpleBank:
    """Uses a plain dict, and never awaits anything."""

    def __init__(self):
        self.rows, self.available = {}, ROOM
        self.hooks = [FundsHold(self.place, self.release)]
        self.held = self.rows.get

    async def place(self, intent):
        if intent.id not in self.rows:
            if self.available < intent.order.poster_amount:
                raise HoldFailed("not enough funds")
            self.available -= intent.order.poster_amount
            self.rows[intent.id] = f"H{intent.id}"
        return self.rows[intent.id]

    async def release(self, intent, reference):
        if self.rows.pop(intent.id, None):
            self.available += intent.order.poster_amount

    def balance(self):
        return str(self.available)


RIGHT = (
    SimpleBank,
    LockingBank,
    SqlBank,
    ThreadedSqlBank,
    HttpBank,
    HookBank,
    FinishingBank,
    Bank,
    RetryingBank,
    CompensatingBank,
)
"""Banks of each style: a dict, SQLite, HTTP, classes of hooks, closures, idempotency keys."""


@contextlib.asynccontextmanager
async def factory_of(kind):
    """Yield a factory for ``verify_hooks``. All workers share the ledger."""
    if issubclass(kind, HttpBank):
        async with http_bank() as address:

            async def make():
                return kind(address)

            yield make
    else:
        one = kind()
        yield lambda: {name: getattr(one, name) for name in ("hooks", "held", "balance")}
        if closing := getattr(one, "close", None):
            ended = closing()
            if inspect.isawaitable(ended):
                await ended
