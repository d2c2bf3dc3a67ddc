"""Banks with a list of rows, whose hooks have one fault each. Each class names the rule that it breaks.

The rows are ``[intent_id, key, reference]``. Each ``await`` stands for a statement of a real ledger.
"""

import asyncio

from transfer_async import FundsHold, HoldFailed

MOST = 10**9
"""The customer's funds."""


async def statement():
    await asyncio.sleep(0)


class Wrong:
    """The correct base class of the wrong ledgers."""

    def __init__(self):
        self.rows = []
        self.count = 0

    @property
    def hooks(self):
        return [FundsHold(self.place, self.release)]

    def insert(self, intent):
        self.count += 1
        self.rows.append([intent.id, intent.key, f"hold-{self.count}"])
        return self.rows[-1][2]

    def find(self, intent_id):
        return next((ref for known, _, ref in self.rows if known == intent_id), None)

    async def place(self, intent):
        await statement()
        return self.find(intent.id) or self.insert(intent)

    async def release(self, intent, reference):
        await statement()
        self.rows = [row for row in self.rows if row[0] != intent.id]

    def held(self, intent_id):
        return [ref for known, _, ref in self.rows if known == intent_id]


class HoldsEachTime(Wrong):
    breaks = "asked-again"

    async def place(self, intent):
        await statement()
        return self.insert(intent)


class FailsTheSecondTime(Wrong):
    """Raises the error of its unique key."""

    breaks = "asked-again"

    async def place(self, intent):
        await statement()
        if self.find(intent.id):
            raise RuntimeError("duplicate key value violates unique constraint")
        return self.insert(intent)


class LooksThenWrites(Wrong):
    breaks = "at-once"

    async def place(self, intent):
        found = self.find(intent.id)
        await statement()
        return found or self.insert(intent)


class OneHoldAKey(Wrong):
    breaks = "by-intent"

    async def place(self, intent):
        await statement()
        return next((ref for _, key, ref in self.rows if key == intent.key), None) or self.insert(intent)


class ReleasesTheKey(Wrong):
    """Its undo of a refused attempt releases the hold of the next attempt."""

    breaks = "others"

    async def release(self, intent, reference):
        await statement()
        self.rows = [row for row in self.rows if row[1] != intent.key]


class ReleasesTheOldest(Wrong):
    """Without a reference, releases any hold of the customer."""

    breaks = "others"

    async def release(self, intent, reference):
        await statement()
        mine = self.find(intent.id)
        self.rows = [row for row in self.rows if row[2] != mine] if mine else self.rows[1:]


class NeedsTheReference(Wrong):
    breaks = "no-receipt"

    async def release(self, intent, reference):
        await statement()
        self.rows = [row for row in self.rows if row[2] != reference]


class FailsWithoutReference(Wrong):
    breaks = "no-receipt"

    async def release(self, intent, reference):
        if reference is None:
            raise ValueError("no reference")
        await super().release(intent, reference)


class FailsIfThereIsNone(Wrong):
    breaks = "nothing-to-release"

    async def release(self, intent, reference):
        await statement()
        if not self.find(intent.id):
            raise LookupError("no such hold")
        await super().release(intent, reference)


class RenamesTheHold(Wrong):
    """The second call renames the hold, which then can only be released by its new name."""

    breaks = "released"

    async def place(self, intent):
        await statement()
        for row in self.rows:
            if row[0] == intent.id:
                row[2] += "-again"
                return row[2]
        return self.insert(intent)

    async def release(self, intent, reference):
        await statement()
        self.rows = [row for row in self.rows if row[0] != intent.id or row[2] != (reference or row[2])]


class RemembersInMemory(Wrong):
    """A restarted worker does not know its earlier holds."""

    breaks = "new-worker"
    ledger: list

    def __init__(self):
        super().__init__()
        self.rows = self.ledger
        self.known = {}

    async def place(self, intent):
        await statement()
        if intent.id not in self.known:
            self.known[intent.id] = self.insert(intent)
        return self.known[intent.id]

    async def release(self, intent, reference):
        await statement()
        self.known.pop(intent.id, None)
        self.rows[:] = [row for row in self.rows if row[0] != intent.id]


class HoldsThenNames(Wrong):
    """Uses two statements: the first stores the hold, the second its owner."""

    breaks = "cut-off"

    def __init__(self):
        super().__init__()
        self.named = {}
        self.lock = asyncio.Lock()

    async def place(self, intent):
        async with self.lock:
            if intent.id not in self.named:
                reference = self.insert(intent)
                await statement()
                self.named[intent.id] = reference
            return self.named[intent.id]

    async def release(self, intent, reference):
        await statement()
        reference = self.named.pop(intent.id, None)
        self.rows = [row for row in self.rows if row[2] != reference]


class ForgetsTheUnanswered(Wrong):
    """Books again if the response to the first booking was lost."""

    breaks = "cut-off"

    def __init__(self):
        super().__init__()
        self.known = {}
        self.lock = asyncio.Lock()

    async def place(self, intent):
        async with self.lock:
            if intent.id not in self.known:
                booked = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(self._book, intent, booked)
                self.known[intent.id] = await booked
            return self.known[intent.id]

    def _book(self, intent, booked):
        if not booked.done():  # a cancelled caller gets no result
            booked.set_result(self.insert(intent))

    async def release(self, intent, reference):
        await super().release(intent, reference)
        self.known.pop(intent.id, None)


class ForgetsThenReleases(Wrong):
    """If a release is interrupted, the next one finds nothing to release."""

    breaks = "cut-off"

    def __init__(self):
        super().__init__()
        self.named = {}

    async def place(self, intent):
        await statement()
        self.named.setdefault(intent.id, self.find(intent.id) or self.insert(intent))
        return self.named[intent.id]

    async def release(self, intent, reference):
        reference = self.named.pop(intent.id, None)
        await statement()
        self.rows = [row for row in self.rows if row[2] != reference]


class ArrivesLate(Wrong):
    """The ledger finishes a call whose caller was cancelled."""

    breaks = "too-late"

    async def place(self, intent):
        return await asyncio.shield(self._place(intent))

    async def _place(self, intent):
        for _ in range(8):
            await statement()
        return self.find(intent.id) or self.insert(intent)


class VouchesAfterHolding(Wrong):
    """Checks the limit after it has placed the hold."""

    breaks = "vouched"

    async def place(self, intent):
        reference = await super().place(intent)
        if intent.order.poster_amount > MOST:
            raise HoldFailed("over the limit")
        return reference

    async def release(self, intent, reference):
        await super().release(intent, reference)


class VouchesWhenCutOff(Wrong):
    """Reports every error as a refusal."""

    breaks = "vouched"

    async def place(self, intent):
        try:
            reference = await super().place(intent)
            await statement()
        except BaseException as error:
            raise HoldFailed("the ledger did not answer") from error
        return reference


class NamesNothing(Wrong):
    breaks = "reference"

    async def place(self, intent):
        await super().place(intent)
        return " "


class AnswersBeforeItWrites(Wrong):
    breaks = "held"

    async def place(self, intent):
        self.count += 1
        return f"hold-{self.count}"


class KeepsItsLock(Wrong):
    """A cancelled hook does not release its lock."""

    breaks = "comes-back"

    def __init__(self):
        super().__init__()
        self.lock = asyncio.Lock()

    async def place(self, intent):
        await self.lock.acquire()
        reference = await super().place(intent)
        self.lock.release()
        return reference


class WaitsForEver(Wrong):
    breaks = "comes-back"

    async def place(self, intent):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.count > 5:
                    raise
                self.count += 1


class KnowsTheLastOne(Wrong):
    """The fault appears only after three steps: A, B, and A again."""

    breaks = "asked-again"
    last = None

    async def place(self, intent):
        await statement()
        if self.last != intent.id:
            self.last = intent.id
            return self.insert(intent)
        return self.find(intent.id)


class CheckOnce(Wrong):
    """Another hook, which counts the customer's orders of today."""

    breaks = "checks"
    name = "daily_limit"

    def __init__(self):
        super().__init__()
        self.seen = set()

    @property
    def hooks(self):
        return [self, FundsHold(self.place, self.release)]

    async def before(self, intent):
        if intent.id in self.seen:
            raise RuntimeError("counted already")
        self.seen.add(intent.id)

    async def undo(self, intent, receipt):
        self.seen.discard(intent.id)


class CheckUndoneOnce(CheckOnce):
    async def before(self, intent):
        self.seen.add(intent.id)

    async def undo(self, intent, receipt):
        self.seen.remove(intent.id)


class PaysBackEachTime(Wrong):
    """Its release pays back even if there is no hold."""

    breaks = "paid-back"

    def __init__(self):
        super().__init__()
        self.accounts = {"available": 100 * MOST}

    async def place(self, intent):
        await statement()
        if not self.find(intent.id):
            self.insert(intent)
            self.accounts["available"] -= intent.order.poster_amount
        return self.find(intent.id)

    async def release(self, intent, reference):
        await super().release(intent, reference)
        self.accounts["available"] += intent.order.poster_amount

    def balance(self):
        return self.accounts["available"]


BY_SEQUENCE = (KnowsTheLastOne,)
"""The ledgers whose faults only sequences of calls find."""

WRONG = tuple(
    kind
    for kind in globals().copy().values()
    if isinstance(kind, type) and issubclass(kind, Wrong) and kind not in (Wrong, *BY_SEQUENCE)
)
