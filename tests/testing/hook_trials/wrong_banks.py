"""Banks whose hooks have one fault each. Each is marked with the rule that it breaks; its base is correct."""

import asyncio
import contextlib
import sqlite3
import uuid
from decimal import Decimal

import aiohttp

from tests.support.cases import lists
from tests.testing.hook_trials.right_banks import (
    Bank,
    HookBank,
    HttpBank,
    InsufficientFunds,
    LockingBank,
    SqlBank,
)
from transfer_async import HoldFailed, PreflightFailed

LOST = (TimeoutError, ConnectionError)

WRONG = {}
"""Each wrong bank, with the name of the rule that it breaks."""

breaks = lists(WRONG)


# --- the result of place -----------------------------------------------------------------------------


class Returns(Bank):
    """Returns something else than the reference of its hold."""

    async def place(self, intent):
        await super().place(intent)
        return self.returned


for name, returned in {
    "ReturnsNothing": None,
    "ReturnsBlanks": " ",
    "ReturnsANumber": 4711,
    "ReturnsBytes": b"hold-1",
    "ReturnsAWholeDocument": "x" * 10_001,
    "ReturnsHalfACharacter": b"hold-\xe9".decode(errors="surrogateescape"),  # as from a mainframe
}.items():
    breaks("reference")(type(name, (Returns,), {"returned": returned}))


@breaks("reference")
class ReturnsNothingWhenRefused(Bank):
    async def place(self, intent):
        with contextlib.suppress(HoldFailed):
            return await super().place(intent)


@breaks("reference")
class IsCancelledAndSaysNothing(Bank):
    async def place(self, intent):
        with contextlib.suppress(asyncio.CancelledError):
            return await super().place(intent)


@breaks("held")
class IsCancelledAndSaysDone(Bank):
    async def place(self, intent):
        try:
            return await super().place(intent)
        except asyncio.CancelledError:
            return f"hold-{intent.id}"


@breaks("held")
class InventsAReferenceWhenRefused(Bank):
    async def place(self, intent):
        try:
            return await super().place(intent)
        except HoldFailed:
            return f"pending-{intent.id}"


@breaks("held")
class HoldsInTheBackground(Bank):
    async def place(self, intent):
        self.task = asyncio.create_task(self.slowly(intent))
        return f"hold-{intent.id}"

    async def slowly(self, intent):
        await asyncio.sleep(0.01)
        with contextlib.suppress(HoldFailed):
            await super().place(intent)


@breaks("held")
class ForgetsToCommit(SqlBank):
    commits = "ROLLBACK"


# --- refusals and lost responses -----------------------------------------------------------------------


class Refuses(Bank):
    """Reports a lost response as a refusal."""

    async def place(self, intent):
        try:
            return await super().place(intent)
        except self.lost as error:
            raise self.refusal("the ledger does not answer") from error


for name, lost, refusal in (
    ("ATimeOutIsARefusal", TimeoutError, HoldFailed),
    ("ALostConnectionIsARefusal", OSError, PreflightFailed),
    ("AnyErrorIsARefusal", BaseException, HoldFailed),
):
    breaks("vouched")(type(name, (Refuses,), {"lost": lost, "refusal": refusal}))


@breaks("vouched")
class HttpErrorsAreRefusals(HttpBank):
    async def place(self, intent):
        try:
            return await self.ask("PUT", intent)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise HoldFailed("the ledger does not answer") from error


@breaks("vouched")
class GivesUpWithARefusal(Bank):
    """Reports a refusal after three lost responses."""

    async def place(self, intent):
        for _ in range(3):
            with contextlib.suppress(*LOST):
                return await super().place(intent)
        raise HoldFailed("the ledger does not answer")


@breaks("vouched")
class TakesTheSecondAnswerForARefusal(Bank):
    """Retries, finds its own hold, and reports it as a refused duplicate."""

    async def place(self, intent):
        if known := await self.core.holds_of(intent.id):
            return known[0]
        try:
            return await super().place(intent)
        except LOST as error:
            if await self.core.holds_of(intent.id):
                raise HoldFailed("duplicate") from error
            raise


@breaks("vouched")
class HoldsUpToItsLimit(Bank):
    """Checks the limit after it has placed the hold."""

    LIMIT = 150_000

    def amount(self, intent):
        return min(super().amount(intent), self.LIMIT)

    async def place(self, intent):
        reference = await super().place(intent)
        if intent.order.poster_amount > self.LIMIT:
            raise HoldFailed("over the limit")
        return reference


@breaks("retries")
class TriesAgainWithANewKey(Bank):
    async def place(self, intent):
        key = intent.id
        for _ in range(3):
            try:
                return await self.core.hold(intent.id, self.amount(intent), key=key)
            except InsufficientFunds as error:
                raise HoldFailed("not enough funds") from error
            except LOST:
                key = str(uuid.uuid4())
        raise ConnectionError("the ledger does not answer")


@breaks("retries")
class HttpKeyAnewForEachTry(HttpBank):
    async def place(self, intent):
        try:
            return await self.ask("PUT", intent)
        except (aiohttp.ClientError, TimeoutError):
            return await self.ask("PUT", intent, hold=f"{intent.id}~again")


# --- a second call ---------------------------------------------------------------------------------------


@breaks("asked-again")
class HasNoUniqueKey(SqlBank):
    table = "CREATE TABLE hold (intent TEXT, key TEXT, reference TEXT)"


@breaks("asked-again")
class LetsTheUniqueKeyThrough(SqlBank):
    insert = "INSERT INTO hold VALUES (?, ?, ?)"


@breaks("asked-again")
class TakesTheUniqueKeyForARefusal(LetsTheUniqueKeyThrough):
    async def place(self, intent):
        try:
            return await super().place(intent)
        except sqlite3.IntegrityError as error:
            raise HoldFailed("held already") from error


@breaks("asked-again")
class HoldsInTwoHalves(Bank):
    async def place(self, intent):
        half = self.amount(intent) / 2
        await self.core.hold(intent.id, half, key=f"{intent.id}-1")
        return await self.core.hold(intent.id, half, key=f"{intent.id}-2")


class KnowsTheLastOne(Bank):
    """The fault appears only after three steps: A, B, and A again. Only random sequences find it."""

    last, count = None, 0

    async def place(self, intent):
        if self.last != intent.id:
            self.last = intent.id
            self.count += 1
        return await self.core.hold(intent.id, self.amount(intent), key=f"{intent.id}-{self.count}")


@breaks("new-worker")
class RemembersInMemory(Bank):
    """A restarted worker does not know its earlier holds."""

    @property
    def hooks(self):
        self.known = {}  # each worker reads its hooks once
        return super().hooks

    async def place(self, intent):
        if intent.id not in self.known:
            booking = self.core.hold(intent.id, self.amount(intent), key=str(uuid.uuid4()))
            self.known[intent.id] = asyncio.ensure_future(booking)
        return await self.known[intent.id]

    async def release(self, intent, reference):
        await super().release(intent, reference)
        self.known.pop(intent.id, None)


@breaks("cut-off")
class ForgetsTheUnanswered(Bank):
    """Books again if the response to the first booking was lost."""

    def __init__(self):
        super().__init__()
        self.core.available = Decimal("Infinity")
        self.known, self.lock = {}, asyncio.Lock()

    async def place(self, intent):
        async with self.lock:
            if intent.id not in self.known:
                booked = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(self.book, intent, booked)
                self.known[intent.id] = await booked
            return self.known[intent.id]

    def book(self, intent, booked):
        if not booked.done():  # if the caller was cancelled, the ledger books nothing
            booked.set_result(self.core.book(intent.id, self.amount(intent), key=str(uuid.uuid4())))

    async def release(self, intent, reference):
        await super().release(intent, reference)
        self.known.pop(intent.id, None)


@breaks("cut-off")
class ReleasesOnlyTheAnswered(ForgetsTheUnanswered):
    async def release(self, intent, reference):
        if intent.id in self.known:
            await self.core.cancel(self.known[intent.id])
            del self.known[intent.id]


# --- release -------------------------------------------------------------------------------------------


@breaks("released")
class ReleaseLogsAndGoesOn(Bank):
    async def release(self, intent, reference):
        with contextlib.suppress(Exception):
            await super().release(intent, reference)


@breaks("released")
class ReleaseGivesUpInSilence(Bank):
    async def release(self, intent, reference):
        for _ in range(3):
            with contextlib.suppress(*LOST):
                await super().release(intent, reference)
                return


@breaks("released")
class ReleaseSwallowsTheCancellation(Bank):
    async def release(self, intent, reference):
        with contextlib.suppress(asyncio.CancelledError):
            await super().release(intent, reference)


@breaks("released")
class ReleasesInTheBackground(Bank):
    async def release(self, intent, reference):
        self.task = asyncio.create_task(self.slowly(intent))

    async def slowly(self, intent):
        await asyncio.sleep(0.01)
        await super().release(intent, None)


@breaks("released")
class RenamesTheHold(SqlBank):
    """The second call renames the hold, which then can only be released by its new name."""

    delete = "DELETE FROM hold WHERE intent = ? AND reference = ifnull(?2, reference)"

    async def place(self, intent):
        self.db.execute("UPDATE hold SET reference = reference || '-again' WHERE intent = ?", [intent.id])
        return await super().place(intent)


@breaks("cut-off")
class ReleaseMarksItselfDoneFirst(Bank):
    def __init__(self):
        super().__init__()
        self.done = set()

    async def release(self, intent, reference):
        if intent.id not in self.done:
            self.done.add(intent.id)
            await super().release(intent, reference)


@breaks("no-receipt")
class NeedsTheReference(Bank):
    async def release(self, intent, reference):
        await self.core.cancel(reference)


@breaks("no-receipt")
class FailsWithoutReference(Bank):
    async def release(self, intent, reference):
        if reference is None:
            raise ValueError("no reference")
        await super().release(intent, reference)


@breaks("nothing-to-release")
class InsistsOnARow(SqlBank):
    async def release(self, intent, reference):
        if not self.find(intent):
            raise LookupError("no such hold")
        await super().release(intent, reference)


@breaks("too-late")
class ArrivesLate(Bank):
    """The ledger finishes a call whose caller was cancelled."""

    delay = 0.0

    async def place(self, intent):
        return await asyncio.shield(self.slowly(intent))

    async def slowly(self, intent):
        for _ in range(8):
            await asyncio.sleep(self.delay)
        return await super().place(intent)


# --- holds of other intents -------------------------------------------------------------------------------


@breaks("held")
class OneKeyACustomer(Bank):
    """The second payment gets the reference of the first payment's hold, which is released."""

    async def place(self, intent):
        return await self.core.hold(intent.id, self.amount(intent), key=intent.order.poster_username)


@breaks("by-intent")
class HasTheKeyForUnique(SqlBank):
    table = "CREATE TABLE hold (intent TEXT, key TEXT UNIQUE, reference TEXT)"


@breaks("by-intent")
class RefusesASecondIntentOfAKey(Bank):
    def __init__(self):
        super().__init__()
        self.keys = {}

    async def place(self, intent):
        if self.keys.setdefault(intent.key, intent.id) != intent.id:
            raise HoldFailed("a duplicate payment")
        return await super().place(intent)


@breaks("others")
class ReleasesTheKey(SqlBank):
    """Its undo of a refused attempt releases the hold of the next attempt."""

    async def release(self, intent, reference):
        self.moved("DELETE FROM hold WHERE key = ?", [intent.key], self.cents(intent))


@breaks("others")
class ReleasesAllOfTheAmount(Bank):
    async def release(self, intent, reference):
        for hold, (_, amount) in [*self.core.holds.items()]:
            if amount == self.amount(intent):
                await self.core.cancel(hold)


@breaks("others")
class ReleasesTheLast(Bank):
    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id) or [*self.core.holds][-1:]:
            await self.core.cancel(hold)


# --- concurrent calls ---------------------------------------------------------------------------------


@breaks("at-once")
class SelectsThenInserts(HasNoUniqueKey):
    async def place(self, intent):
        known = self.find(intent)
        await asyncio.sleep(0)
        return known or await super().place(intent)


@breaks("at-once")
class SharesAVariable(Bank):
    async def place(self, intent):
        self.intent = intent
        if known := await self.core.holds_of(intent.id):
            return known[0]
        return await super().place(self.intent)


@breaks("at-once")
class IsBusy(Bank):
    lock = False

    async def place(self, intent):
        if self.lock:
            raise ConnectionError("another booking is at work")
        self.lock = True
        try:
            return await super().place(intent)
        finally:
            self.lock = False


@breaks("comes-back")
class GivesNoSlotBack(Bank):
    """A cancelled hook keeps its slot."""

    def __init__(self):
        super().__init__()
        self.slots = asyncio.Semaphore(1)

    async def place(self, intent):
        await self.slots.acquire()
        reference = await super().place(intent)
        self.slots.release()
        return reference


@breaks("comes-back")
class WaitsForEver(Bank):
    """Ends only after several cancellations."""

    cancellations = 0

    async def place(self, intent):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancellations += 1
                if self.cancellations > 6:
                    raise


# --- money ------------------------------------------------------------------------------------------


@breaks("paid-back")
class TakesTheMoneyEachTime(Bank):
    async def place(self, intent):
        if known := await self.core.holds_of(intent.id):
            self.core.available -= self.amount(intent)
            return known[0]
        return await super().place(intent)


@breaks("paid-back")
class PaysBackEachTime(LockingBank):
    """Its release pays back even if there is no hold."""

    async def release(self, intent, reference):
        if intent.id not in self.rows:
            self.move(-intent.order.poster_amount)
        await super().release(intent, reference)


@breaks("paid-back")
class TakesTheFeeAndKeepsIt(Bank):
    async def place(self, intent):
        is_new = not await self.core.holds_of(intent.id)
        reference = await super().place(intent)
        if is_new:
            self.core.available -= intent.order.external_order.transaction_fee
        return reference


@breaks("paid-back")
class PaysBackTheOtherCurrency(Bank):
    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            self.core.available += intent.order.matcher_amount - self.amount(intent)
            await self.core.cancel(hold)


@breaks("paid-back")
class PaysBackWholeUnits(Bank):
    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            self.core.available -= self.amount(intent) % 1
            await self.core.cancel(hold)


@breaks("paid-back")
class CountsInFloat(Bank):
    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            await self.core.cancel(hold)
            self.core.available = Decimal(float(self.core.available) + 1e-7)


@breaks("paid-back")
class TakesMoneyThenHolds(SqlBank):
    """Uses two transactions: a worker that is interrupted between them has taken money without a hold."""

    async def place(self, intent):
        if known := self.find(intent):
            return known
        self.db.execute("UPDATE account SET cents = cents - ?", [self.cents(intent)])
        await asyncio.sleep(0)
        self.db.execute("INSERT OR IGNORE INTO hold VALUES (?, ?, ?)", self.row(intent))
        return self.find(intent)


@breaks("paid-back")
class PaysBackThenDeletes(SqlBank):
    async def release(self, intent, reference):
        if self.find(intent):
            self.db.execute("UPDATE account SET cents = cents + ?", [self.cents(intent)])
            await asyncio.sleep(0)
            self.db.execute("DELETE FROM hold WHERE intent = ?", [intent.id])


# --- hooks that place no hold -----------------------------------------------------------------------------


class Checks(HookBank):
    """Also counts the customer's orders of today."""

    name = "orders_of_today"

    def __init__(self):
        super().__init__()
        self.hooks = [self, *self.hooks]
        self.seen = set()

    async def before(self, intent):
        self.seen.add(intent.id)

    async def undo(self, intent, receipt):
        self.seen.discard(intent.id)


@breaks("checks")
class ChecksOnce(Checks):
    async def before(self, intent):
        if intent.id in self.seen:
            raise RuntimeError("counted already")
        await super().before(intent)


@breaks("checks")
class UndoesItsCheckOnce(Checks):
    async def undo(self, intent, receipt):
        self.seen.remove(intent.id)


SLOW = {kind for kind in WRONG if issubclass(kind, HttpBank)}
"""The wrong banks that run only in the trials."""
