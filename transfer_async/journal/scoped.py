"""The journal as the package uses it: one scope of it, and whatever its store raises is a `JournalFailed`."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import TypeVar

from transfer_async._models.causes import bare
from transfer_async._models.errors import JournalFailed, Outcome
from transfer_async._models.responses import Order
from transfer_async._support.state import Fixed
from transfer_async.journal.entries import Denial, Entry, Step, Verdict
from transfer_async.journal.moves import Move
from transfer_async.journal.protocol import Journal, NotToBeForgotten

T = TypeVar("T")


class ScopedJournal(Fixed, frozen=True):
    """A journal's methods, for one scope of it; each raises `JournalFailed` where the store raised.

    Args:
        store: the journal itself.
        scope: names the service whose keys these are.
    """

    store: Journal
    scope: str

    async def open(self) -> None:
        """Open it, so that what is wrong with it shows now; one of the bank's own may have no such step."""
        enter = getattr(self.store, "__aenter__", None)
        if enter is not None:
            await _read(enter(), doing="opened")

    async def write(self, key: str, move: Move, *, certain: Outcome, order: Order | None = None) -> Verdict:
        """Make a move.

        Args:
            key: the key.
            move: the move.
            certain: what is certain of the call, should the journal fail now.
            order: the order that would then be known to nobody else.

        Raises:
            JournalFailed: the store raised, lost the key, or cannot read what it holds of it.
        """
        cause: BaseException | None = None
        verdict: Verdict | None = None
        try:
            verdict = await self.store.move(self.scope, key, move)
        except JournalFailed as error:  # a back end's own, which cannot know what is certain
            error.outcome, error.order, error.key = certain, order, key
            bare(error)
            raise
        except Exception as error:  # noqa: BLE001 - told below, where it is no context of what is raised
            cause = bare(error)
        if cause is not None:
            why = f"the journal failed on {move.name} ({type(cause).__name__})"
            raise JournalFailed(why, outcome=certain, order=order, key=key) from cause
        if verdict is None:
            raise JournalFailed("the journal has lost the key", outcome=certain, order=order, key=key)
        if verdict.denial is Denial.UNREAD:
            unread = verdict.entry.unread
            why = "what the journal holds of the key cannot be read: it is bound until an operator ends it"
            if unread is not None and unread.is_sealed:
                why = "what the journal holds of the key is sealed, and does not open here: it is bound"
            raise JournalFailed(why, outcome=certain, order=order, key=key)
        return verdict

    async def now(self) -> float:
        """See `Journal.now`."""
        return await _read(self.store.now())

    async def read(self, key: str) -> Entry | None:
        """See `Journal.read`."""
        return await _read(self.store.read(self.scope, key), key=key)

    async def work(self, *, limit: int, after: str = "") -> list[tuple[str, Entry]]:
        """See `Journal.work`."""
        return await _read(self.store.work(self.scope, limit=limit, after=after))

    async def in_doubt(self) -> list[tuple[str, Entry]]:
        """See `Journal.in_doubt`."""
        return await _read(self.store.in_doubt(self.scope))

    async def count_in_doubt(self) -> int:
        """See `Journal.count_in_doubt`."""
        return await _read(self.store.count_in_doubt(self.scope))

    async def orders(self, *, limit: int, after: str = "") -> list[tuple[str, str, float | None]]:
        """See `Journal`.

        Raises:
            ValueError: it is a journal that cannot tell.
        """
        orders = getattr(self.store, "orders", None)
        if orders is None:
            raise ValueError(f"journal: a {type(self.store).__name__} cannot list its orders")
        return await _read(orders(self.scope, limit=limit, after=after))

    async def refuted(self, *, after: str = "") -> tuple[list[str], str]:
        """See `Journal`.

        Raises:
            ValueError: it is a journal that cannot tell.
        """
        refuted = getattr(self.store, "refuted", None)
        if refuted is None:
            raise ValueError(f"journal: a {type(self.store).__name__} cannot list its refuted keys")
        return await _read(refuted(self.scope, after=after))

    async def history(self, key: str) -> tuple[Step, ...]:
        """See `Journal.history`."""
        return await _read(self.store.history(self.scope, key), key=key)

    async def prune(self, *, before: datetime) -> int:
        """See `Journal.prune`; a time that is no good is the caller's fault, and told as it is."""
        pruning = self.store.prune(self.scope, before=before)
        return await _read(pruning, doing="pruned", wrong_use=(NotToBeForgotten,))


async def _read(
    reading: Awaitable[T],
    *,
    key: str | None = None,
    doing: str = "read",
    wrong_use: tuple[type[Exception], ...] = (),
) -> T:
    """What ``reading`` gives; ``doing`` is the word for what could not be done."""
    try:
        return await reading
    except Exception as error:
        cause = bare(error)
        if isinstance(error, (JournalFailed, *wrong_use)):
            raise
    raise JournalFailed(f"the journal could not be {doing} ({type(cause).__name__})", key=key) from cause
