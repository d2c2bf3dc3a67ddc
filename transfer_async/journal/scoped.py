"""The journal as the package uses it: whatever a store raises comes out as `JournalFailed`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from transfer_async._models.causes import bare
from transfer_async._models.errors import JournalFailed, Outcome
from transfer_async._models.responses import Order
from transfer_async.journal.entries import Denial, Verdict
from transfer_async.journal.moves import Move
from transfer_async.journal.protocol import Journal

T = TypeVar("T")


async def write(
    journal: Journal, scope: str, key: str, move: Move, *, certain: Outcome, order: Order | None = None
) -> Verdict:
    """Make a move in the journal.

    Args:
        journal: the journal.
        scope: the key's.
        key: the key.
        move: the move.
        certain: what is certain of the call, should the journal fail now.
        order: the order that would then be known to nobody else.

    Raises:
        JournalFailed: the journal raised, lost the key, or cannot read what it holds of it.
    """
    cause: BaseException | None = None
    verdict: Verdict | None = None
    try:
        verdict = await journal.move(scope, key, move)
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
        why = "what the journal holds of the key cannot be read: it is bound until an operator ends it"
        raise JournalFailed(why, outcome=certain, order=order, key=key)
    return verdict


async def read(
    reading: Awaitable[T],
    *,
    key: str | None = None,
    doing: str = "read",
    wrong_use: tuple[type[Exception], ...] = (),
) -> T:
    """What ``reading``, of a journal, gives.

    Args:
        reading: a journal's own method, called.
        key: the key that it is about, if it is about one.
        doing: the word for what could not be done.
        wrong_use: what the journal raises where it is the caller who is at fault.

    Raises:
        JournalFailed: the journal raised.
    """
    try:
        return await reading
    except Exception as error:
        cause = bare(error)
        if isinstance(error, (JournalFailed, *wrong_use)):
            raise
    raise JournalFailed(f"the journal could not be {doing} ({type(cause).__name__})", key=key) from cause


async def opened(journal: Journal) -> None:
    """Open ``journal``, so that what is wrong with it shows now; one of the bank's own may have no such step.

    Raises:
        JournalFailed: the journal raised.
    """
    enter = getattr(journal, "__aenter__", None)
    if enter is not None:
        await read(enter(), doing="opened")
