"""What has been spent, by the journal: which orders were, or may have been, sent; and who may send now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from transfer_async._cli.probe.order_plan import NAMES, PlannedOrder, key_of
from transfer_async.journal.entries import AT_WORK, Entry, KeyState
from transfer_async.journal.fingerprint import fingerprint
from transfer_async.journal.protocol import Journal
from transfer_async.sandbox import SeenAnswer

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: there nobody may start two probes on one journal
    fcntl = None  # type: ignore[assignment]


class OtherPlan(ValueError):
    """The journal is of a probe with another order, or another way to size it."""


@frozen
class Ledger:
    """The probe's part of a journal.

    Args:
        journal: a durable one: what it says is there after a kill.
        scope: of the service.
    """

    journal: Journal
    scope: str

    async def spent(self, plan: Collection[PlannedOrder]) -> frozenset[str]:
        """The names of the orders that were, or may have been, sent.

        Raises:
            OtherPlan: an order of that name is, but not as the plan has it: nothing adds up.
        """
        wanted = {one.name: fingerprint(one.order) for one in plan}
        found = set()
        for name in NAMES:
            entry = await self.journal.read(self.scope, key_of(name))
            if entry is None or not await self._was_sent(key_of(name), entry):
                continue
            if wanted.get(name) != entry.fingerprint:
                raise OtherPlan(
                    "--journal: has orders of another --order or --apart, or with other limits; with these, "
                    "a journal of its own is needed (whose cap counts anew)"
                )
            found.add(name)
        return frozenset(found)

    async def _was_sent(self, key: str, entry: Entry) -> bool:
        """Whether it was ever marked: one that was refused is free again, and is spent all the same."""
        if entry.state is KeyState.CREATED or (
            entry.state in AT_WORK and entry.state is not KeyState.CLAIMED
        ):
            return True
        return any(step.state is KeyState.SENDING for step in await self.journal.history(self.scope, key))

    async def recorded(self, names: Collection[str]) -> Mapping[str, SeenAnswer]:
        """What the journal says of orders whose answer no profile has."""
        entries = [(name, await self.journal.read(self.scope, key_of(name))) for name in names]
        return {name: _answer_of(entry) for name, entry in entries if entry is not None}

    async def ids(self) -> frozenset[str]:
        """The ids of the orders that exist."""
        entries = [await self.journal.read(self.scope, key_of(name)) for name in NAMES]
        return frozenset(one.order_id for one in entries if one is not None and one.order_id is not None)


def _answer_of(entry: Entry) -> SeenAnswer:
    if entry.state is KeyState.CREATED:
        return SeenAnswer(status=200, body="json", order="new")
    if entry.state is KeyState.FREE and entry.ending is not None:
        return SeenAnswer(status=entry.ending.status, order="none")
    return SeenAnswer(order="unknown")


@contextmanager
def alone(journal: Path) -> Iterator[None]:
    """For as long as this lasts, nobody else probes with this journal; a process that is killed lets go.

    Raises:
        ValueError: somebody does.
    """
    path = journal.with_name(journal.name + ".probe")
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:  # pragma: no branch - as above
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError("--journal: another probe is at work with it") from None
        yield
    finally:
        os.close(file)
