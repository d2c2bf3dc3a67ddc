"""The database that all workers share, and each worker's connection, which may lose or delay writes."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tests.simulation.chance import Weighted
from tests.simulation.loop import OUTSIDE, PROCESS
from transfer_async.journal import state_machine
from transfer_async.journal.model import FOUR_EYES, Entry, HistoryEvent, KeyState, TransitionResult
from transfer_async.journal.protocol import Journal
from transfer_async.journal.transitions import Claim, MarkSending, Move, is_waiting

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCH: ContextVar[int] = ContextVar("EPOCH", default=0)
ATTEMPT: ContextVar[str | None] = ContextVar("ATTEMPT", default=None)
"""The claim of the current task, and its requested mark."""

TROUBLE = Weighted((3, "lost"), (3, "unknown"), (2, "unknown, and later"))


class DatabaseGone(Exception):
    """The connection broke, so the result of the commit is unknown."""


class Database:
    """Entries by key. The real state machine decides. The clock may be far ahead and later be set back."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.entries: dict[str, Entry] = {}
        self.ids: dict[str, str] = {}
        self.ahead = 0.0

    def now(self) -> float:
        return self.world.loop.time() + self.ahead

    def set_back(self) -> None:
        self.world.note("the database's clock is set back")
        self.world.saw("clock set back")
        self.ahead = 0.0

    def commit(self, key: str, move: Move) -> TransitionResult | None:
        before = self.entries.get(key)
        taken = move.order_bound is not None and self.ids.get(move.order_bound, key) != key
        rule = self.entries.get(FOUR_EYES)
        verdict = state_machine.decide(before, move, now=self.now(), id_taken=taken, four_eyes=rule)
        self.store(key, before, move, verdict)
        return verdict

    def store(self, key: str, before: Entry | None, move: Move, verdict: TransitionResult | None) -> None:
        if verdict is None:
            return
        entry = verdict.entry
        self.entries[key] = entry
        if entry.state is KeyState.CREATED and entry.order_id is not None:
            self.ids[entry.order_id] = key
        self.world.witness.moved(key, before, move, verdict)


class WorkerJournal(Journal):
    """The journal of one worker, which need not be closed and is never pruned."""

    durable = True

    def __init__(self, world: "World") -> None:
        self.world = world

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        world = self.world
        trouble = TROUBLE.draw(world.chance) if world.trouble("journal") else "none"
        done = world.loop.create_future()
        # The worker sends the write itself: its death loses the write, but a cancelled caller does not.
        world.loop.call_later(self._latency(), self._arrive, key, move, trouble, done)
        PROCESS.get().on_the_way_to(type(move).__name__)
        if isinstance(move, MarkSending):
            ATTEMPT.set(move.attempt)
        try:
            verdict: TransitionResult | None = await done
        except DatabaseGone:
            PROCESS.get().troubled_at = world.loop.time()
            raise
        if isinstance(move, Claim) and verdict is not None and verdict.denial is None:
            EPOCH.set(verdict.entry.epoch)
        return verdict

    def _arrive(self, key: str, move: Move, trouble: str, done: Any) -> None:
        self.world.loop.call_soon(self._commit, key, move, trouble, done, context=OUTSIDE)

    def _commit(self, key: str, move: Move, trouble: str, done: Any) -> None:
        world = self.world
        verdict: TransitionResult | DatabaseGone | None = None
        if trouble != "none":
            world.saw(f"commit {trouble}")
            verdict = DatabaseGone()
        if trouble == "unknown, and later":
            # If a connection breaks during a commit, the database may still make the commit later.
            later = world.chance.random() * world.chance.one_of((0.1, 5.0, 100.0))
            world.loop.call_later(later, world.database.commit, key, move, context=OUTSIDE)
        elif trouble != "lost":
            made = world.database.commit(key, move)
            verdict = verdict or made
        world.loop.call_later(self._latency(), _answer, done, verdict, context=OUTSIDE)

    def _latency(self) -> float:
        chance = self.world.chance
        if not self.world.calm and chance.once_in(self.world.setting.slow):
            self.world.saw("slow commit")
            return 100.0 * chance.random()
        return chance.latency()

    async def read(self, scope: str, key: str) -> Entry | None:
        await self._reading()
        self.world.witness.reads_key()
        return self.world.database.entries.get(key)

    async def work(self, scope: str, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        await self._reading()
        now, entries = self.world.database.now(), self.world.database.entries
        found = [one for one in entries.items() if one[0] > after and is_waiting(one[1], now)]
        return sorted(found, key=lambda one: one[0])[:limit]

    async def count_in_doubt(self, scope: str) -> int:
        return len(await self.in_doubt(scope))

    async def in_doubt(self, scope: str) -> list[tuple[str, Entry]]:
        await self._reading()
        entries = self.world.database.entries.items()
        return [(key, entry) for key, entry in entries if entry.state is KeyState.IN_DOUBT]

    async def history(self, scope: str, key: str) -> tuple[HistoryEvent, ...]:
        await self._reading()
        return ()

    async def now(self) -> float:
        await self._reading()
        return self.world.database.now()

    async def _reading(self) -> None:
        await self.world.sleep(self._latency())
        if self.world.trouble("journal"):
            raise DatabaseGone


def _answer(done: Any, verdict: TransitionResult | DatabaseGone | None) -> None:
    if done.done():
        return
    if isinstance(verdict, DatabaseGone):
        done.set_exception(verdict)
    else:
        done.set_result(verdict)
