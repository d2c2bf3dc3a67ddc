"""Banks whose hooks have one fault each. Each class names the rule that it breaks; its base is correct."""

import asyncio
import contextlib
import sqlite3
import uuid
from decimal import Decimal

import aiohttp

from tests.testing.hook_trials.right_banks import Bank, ClosureBank, HttpBank, InsufficientFunds, SqlBank
from transfer_async import HoldFailed, PreflightFailed

LOST = (TimeoutError, ConnectionError)


# --- the result of place -----------------------------------------------------------------------------


class InventsAReferenceWhenRefused(Bank):
    breaks = "held"

    async def place(self, intent):
        try:
            return await self.core.hold(intent.id, self.amount(intent), key=intent.id)
        except InsufficientFunds:
            return f"pending-{intent.id}"


class CallsEveryErrorAHold(Bank):
    breaks = "held"

    async def place(self, intent):
        with contextlib.suppress(Exception):
            await super().place(intent)
        return intent.id


class ReturnsNothingWhenRefused(Bank):
    breaks = "reference"

    async def place(self, intent):
        with contextlib.suppress(HoldFailed):
            return await super().place(intent)


class ReturnsNothing(Bank):
    breaks = "reference"

    async def place(self, intent):
        await super().place(intent)


class ReturnsANumber(Bank):
    breaks = "reference"

    async def place(self, intent):
        await super().place(intent)
        return 4711


class ReturnsBytes(Bank):
    breaks = "reference"

    async def place(self, intent):
        return (await super().place(intent)).encode()


class ReturnsAWholeDocument(Bank):
    """Returns the service's complete response."""

    breaks = "reference"

    async def place(self, intent):
        return (await super().place(intent)).ljust(10_001, "x")


class ReturnsHalfACharacter(Bank):
    """Decodes a mainframe's bytes with ``surrogateescape``."""

    breaks = "reference"

    async def place(self, intent):
        await super().place(intent)
        return b"hold-\xe9".decode(errors="surrogateescape")


class HoldsInTheBackground(Bank):
    breaks = "held"

    async def place(self, intent):
        self.task = asyncio.create_task(self.slowly(intent))
        return f"hold-{intent.id}"

    async def slowly(self, intent):
        await asyncio.sleep(0.01)
        with contextlib.suppress(HoldFailed):
            await super().place(intent)


class IsCancelledAndSaysDone(Bank):
    breaks = "held"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except asyncio.CancelledError:
            return f"hold-{intent.id}"


class IsCancelledAndSaysNothing(Bank):
    breaks = "reference"

    async def place(self, intent):
        with contextlib.suppress(asyncio.CancelledError):
            return await super().place(intent)


# --- lost responses -------------------------------------------------------------------------


class ATimeOutIsARefusal(Bank):
    breaks = "vouched"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except TimeoutError as error:
            raise HoldFailed("the ledger took too long") from error


class ALostConnectionIsARefusal(Bank):
    breaks = "vouched"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except OSError as error:
            raise PreflightFailed("the ledger is away") from error


class AnyErrorIsARefusal(Bank):
    breaks = "vouched"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except Exception as error:
            raise HoldFailed("no hold") from error


class GivesUpWithARefusal(Bank):
    """Reports a refusal after three lost responses."""

    breaks = "vouched"

    async def place(self, intent):
        for _ in range(3):
            with contextlib.suppress(*LOST):
                return await super().place(intent)
        raise HoldFailed("the ledger does not answer")


class TakesTheSecondAnswerForARefusal(Bank):
    """Retries, finds its own hold, and reports it as a refused duplicate."""

    breaks = "vouched"

    async def place(self, intent):
        if known := await self.core.holds_of(intent.id):
            return known[0]
        try:
            return await super().place(intent)
        except LOST as error:
            if await self.core.holds_of(intent.id):
                raise HoldFailed("duplicate") from error
            raise


class TriesAgainWithANewKey(Bank):
    breaks = "retries"

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


class TriesAgainWithANewKeyAfterATimeOut(Bank):
    breaks = "retries"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except TimeoutError:
            return await self.core.hold(intent.id, self.amount(intent), key=f"{intent.id}-2")


class ReleaseLogsAndGoesOn(Bank):
    breaks = "released"

    async def release(self, intent, reference):
        with contextlib.suppress(Exception):
            await super().release(intent, reference)


class ReleaseGivesUpInSilence(Bank):
    breaks = "released"

    async def release(self, intent, reference):
        for _ in range(3):
            with contextlib.suppress(*LOST):
                await super().release(intent, reference)
                return


class ReleaseSwallowsTheCancellation(Bank):
    breaks = "released"

    async def release(self, intent, reference):
        with contextlib.suppress(asyncio.CancelledError):
            await super().release(intent, reference)


class ReleaseHasATimeOutOfItsOwn(Bank):
    """Gives up after its own timeout, and reports success."""

    breaks = "released"

    async def release(self, intent, reference):
        try:
            async with asyncio.timeout(5):
                await super().release(intent, reference)
        except TimeoutError:
            return


class ReleasesInTheBackground(Bank):
    breaks = "released"

    async def release(self, intent, reference):
        self.task = asyncio.create_task(self.slowly(intent))

    async def slowly(self, intent):
        await asyncio.sleep(0.01)
        await super().release(intent, None)


class ReleaseMarksItselfDoneFirst(Bank):
    breaks = "cut-off"

    def __init__(self, core=None):
        super().__init__(core)
        self.done = set()

    async def release(self, intent, reference):
        if intent.id in self.done:
            return
        self.done.add(intent.id)
        await super().release(intent, reference)


# --- holds of other intents -------------------------------------------------------------------------------


class OneKeyACustomer(Bank):
    """The second payment gets the reference of the first payment's hold, which is released."""

    breaks = "held"

    async def place(self, intent):
        return await self.core.hold(intent.id, self.amount(intent), key=intent.order.poster_username)


class AnswersFromACacheOfOrders(Bank):
    """Has the same fault, with a cache in the worker."""

    breaks = "held"

    def __init__(self, core=None):
        super().__init__(core)
        self.cache = {}

    async def place(self, intent):
        known = intent.order.poster_username, intent.order.poster_amount
        if known not in self.cache:
            self.cache[known] = asyncio.ensure_future(super().place(intent))
        try:
            return await self.cache[known]
        except BaseException:
            self.cache.pop(known, None)
            raise


class RefusesASecondIntentOfAKey(Bank):
    breaks = "by-intent"

    def __init__(self, core=None):
        super().__init__(core)
        self.keys = {}

    async def place(self, intent):
        if self.keys.setdefault(intent.key, intent.id) != intent.id:
            raise HoldFailed("a duplicate payment")
        return await super().place(intent)


class HoldsInTwoHalves(Bank):
    breaks = "asked-again"

    async def place(self, intent):
        half = self.amount(intent) / 2
        await self.core.hold(intent.id, half, key=f"{intent.id}-1")
        return await self.core.hold(intent.id, half, key=f"{intent.id}-2")


class ReleasesAllOfTheAmount(Bank):
    breaks = "others"

    async def release(self, intent, reference):
        for hold, (_, amount) in [*self.core.holds.items()]:
            if amount == self.amount(intent):
                await self.core.cancel(hold)


class ReleasesTheLast(Bank):
    breaks = "others"

    async def release(self, intent, reference):
        known = await self.core.holds_of(intent.id) or [*self.core.holds][-1:]
        for hold in known:
            await self.core.cancel(hold)


class SharesAVariable(Bank):
    breaks = "at-once"

    async def place(self, intent):
        self.intent = intent
        if known := await self.core.holds_of(intent.id):
            return known[0]
        return await super().place(self.intent)


class IsBusy(Bank):
    breaks = "at-once"
    lock = False

    async def place(self, intent):
        if self.lock:
            raise ConnectionError("another booking is at work")
        self.lock = True
        try:
            return await super().place(intent)
        finally:
            self.lock = False


class GivesNoSlotBack(Bank):
    breaks = "comes-back"

    def __init__(self, core=None):
        super().__init__(core)
        self.slots = asyncio.Semaphore(1)

    async def place(self, intent):
        await self.slots.acquire()
        reference = await super().place(intent)
        self.slots.release()
        return reference


# --- money ------------------------------------------------------------------------------------------


class TakesTheFeeAndKeepsIt(Bank):
    breaks = "paid-back"

    async def place(self, intent):
        is_new = not await self.core.holds_of(intent.id)
        reference = await super().place(intent)
        if is_new:
            self.core.available -= intent.order.external_order.transaction_fee
        return reference


class PaysBackWholeUnits(Bank):
    breaks = "paid-back"

    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            self.core.available -= self.amount(intent) % 1
            await self.core.cancel(hold)


class PaysBackTheOtherCurrency(Bank):
    breaks = "paid-back"

    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            self.core.available += intent.order.matcher_amount - self.amount(intent)
            await self.core.cancel(hold)


class TakesTheMoneyEachTime(Bank):
    breaks = "paid-back"

    async def place(self, intent):
        if known := await self.core.holds_of(intent.id):
            self.core.available -= self.amount(intent)
            return known[0]
        return await super().place(intent)


class CountsInFloat(Bank):
    breaks = "paid-back"

    async def release(self, intent, reference):
        for hold in await self.core.holds_of(intent.id):
            await self.core.cancel(hold)
            self.core.available = Decimal(float(self.core.available) + 1e-7)


class TakesMoneyThenHolds(SqlBank):
    """Uses two transactions: a worker that is interrupted between them has taken money without a hold."""

    breaks = "paid-back"

    async def place(self, intent):
        if known := self.find(intent):
            return known
        self.db.execute("UPDATE account SET cents = cents - ?", [self.cents(intent)])
        await asyncio.sleep(0)
        self.db.execute("INSERT OR IGNORE INTO hold VALUES (?, ?, ?)", self.row(intent))
        return self.find(intent)


class PaysBackThenDeletes(SqlBank):
    breaks = "paid-back"

    async def release(self, intent, reference):
        if self.find(intent):
            self.db.execute("UPDATE account SET cents = cents + ?", [self.cents(intent)])
            await asyncio.sleep(0)
            self.db.execute("DELETE FROM hold WHERE intent = ?", [intent.id])


# --- a database -------------------------------------------------------------------------------------


class LetsTheUniqueKeyThrough(SqlBank):
    breaks = "asked-again"
    insert = "INSERT INTO hold VALUES (?, ?, ?)"


class TakesTheUniqueKeyForARefusal(SqlBank):
    breaks = "asked-again"
    insert = "INSERT INTO hold VALUES (?, ?, ?)"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except sqlite3.IntegrityError as error:
            raise HoldFailed("held already") from error


class HasNoUniqueKey(SqlBank):
    breaks = "asked-again"
    table = "CREATE TABLE hold (intent TEXT, key TEXT, reference TEXT)"


class HasTheKeyForUnique(SqlBank):
    breaks = "by-intent"
    table = "CREATE TABLE hold (intent TEXT, key TEXT UNIQUE, reference TEXT)"


class SelectsThenInserts(SqlBank):
    breaks = "at-once"
    table = HasNoUniqueKey.table

    async def place(self, intent):
        known = self.find(intent)
        await asyncio.sleep(0)
        return known or await super().place(intent)


class ForgetsToCommit(SqlBank):
    breaks = "held"
    commits = "ROLLBACK"


class DeletesByReference(SqlBank):
    breaks = "no-receipt"
    delete = "DELETE FROM hold WHERE intent = ? AND reference = ?"


class DeletesByKey(SqlBank):
    breaks = "others"
    delete = "DELETE FROM hold WHERE key = (SELECT key FROM hold WHERE intent = ? OR reference = ?)"


class InsistsOnARow(SqlBank):
    breaks = "nothing-to-release"

    async def release(self, intent, reference):
        if not self.find(intent):
            raise LookupError("no such hold")
        await super().release(intent, reference)


# --- a service behind HTTP --------------------------------------------------------------------------


class HttpErrorsAreRefusals(HttpBank):
    breaks = "vouched"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise HoldFailed("the ledger does not answer") from error


class HttpKeyAnewForEachTry(HttpBank):
    breaks = "retries"

    async def place(self, intent):
        try:
            return await super().place(intent)
        except (aiohttp.ClientError, TimeoutError):
            return await self.ask("PUT", intent, hold=f"{intent.id}~again")


class HttpReleaseIgnoresWhatWentWrong(HttpBank):
    breaks = "released"

    async def release(self, intent, reference):
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            await super().release(intent, reference)


class HttpNotFoundIsAnError(HttpBank):
    breaks = "nothing-to-release"

    async def release(self, intent, reference):
        async with self.session.get(f"/holds/{intent.id}") as response:
            if not await response.json():
                raise LookupError("404")
        await super().release(intent, reference)


class ClosesOverTheLastReference(ClosureBank):
    """Uses one variable for all intents, so the release cancels the last hold."""

    breaks = "others"

    def closures(self):
        place, _ = super().closures()
        last = []

        async def remember(intent):
            last[:] = [await place(intent)]
            return last[0]

        async def release(intent, reference):
            for hold in {reference or (last or [""])[0], *await self.core.holds_of(intent.id)}:
                await self.core.cancel(hold)

        return remember, release


WRONG = tuple(
    kind for kind in globals().copy().values() if isinstance(kind, type) and hasattr(kind, "breaks")
)
