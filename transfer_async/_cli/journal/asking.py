"""What the commands that look after a journal share: whose word it is, which journal, and what is told."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeVar

import typer
from attrs import frozen

from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import FAILED, USAGE
from transfer_async._cli.console.output import fail, failing, shown, somebody_is_there, tell
from transfer_async._cli.journal import tables, terminal
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.key_views import KeyView
from transfer_async._pipeline.refusals import checked_text
from transfer_async.journal.entries import KeyState
from transfer_async.journal.protocol import Journal, KeyRecord

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
By = Annotated[str | None, typer.Option(help="Who says so; the login name by default.")]
Reason = Annotated[str | None, typer.Option(help="How they know; kept in the key's history.")]
Undone = Annotated[
    bool, typer.Option("--undone", help="Of a record that cannot be read: its hooks are undone by hand.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@frozen(kw_only=True)
class Place:
    """A journal that was named, and the scope of it that is meant."""

    scope: str
    address: str

    @property
    def journal(self) -> Journal:
        """The journal, not yet opened; whoever asks opens one of its own."""
        return terminal.journal_named(self.address)

    def at_desk(
        self,
        do: Callable[[terminal.OpenJournal], Awaitable[T]],
        *,
        settle_after: float = 300.0,
        says_no: int = FAILED,
    ) -> T:
        """What ``do`` gives, at the desk of the journal, which is closed then."""

        store = self.journal  # it looks for the file

        async def work() -> T:
            async with terminal.opened(store, self.scope, settle_after=settle_after) as at:
                return await do(at)

        return done(work(), says_no=says_no)

    def view(self, key: str) -> KeyView:
        """What is on record of ``key``; ends the command if nothing is, before anything else is asked."""
        return self.at_desk(lambda at: at.operators.view(key))


def named(address: str, scope: str | None, base_url: str | None) -> Place:
    """The journal and its scope; ends the command if they are no good."""
    with usage():
        place = Place(scope=terminal.scope_of(scope, base_url), address=address)
        assert place.journal  # noqa: S101 - or the address is no good
        return place


def usage(option: str | None = None) -> AbstractContextManager[None]:
    """What is checked within is a wrong use, or as it should be; ``option`` is what it is about."""
    return failing("journal", {ValueError: USAGE}, words=lambda error: _as_option(str(error), option))


def _as_option(why: str, option: str | None) -> str:
    """``why``, which begins with an argument's name, with the option's in its place."""
    return why if option is None else f"{option}:{why.partition(':')[2]}"


def said(by: str | None, reason: str | None) -> tuple[str, str]:
    """Who says so, and why; asked for where somebody can be asked."""
    by = who(by)
    if reason is None:
        if not somebody_is_there():
            fail("journal: --reason: must say how you know; nobody can be asked here", USAGE)
        reason = str(typer.prompt("How do you know", err=True))
    with usage():
        return by, checked_text("--reason", reason)


def who(by: str | None) -> str:
    """Who says so: the login name, unless another is given."""
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError, ImportError):
            fail("journal: --by: must say who you are; there is no login name here", USAGE)
    with usage():
        return checked_text("--by", by)


def confirmed(question: str, *, yes: bool) -> None:
    """Ask, and end the command unless somebody says yes."""
    if yes:
        return
    if not somebody_is_there():
        fail("journal: --yes: must be given where nobody can be asked", USAGE)
    if not typer.confirm(question, err=True):
        fail("journal: nothing was changed", FAILED)


def done(work: Coroutine[Any, Any, T], *, says_no: int = FAILED) -> T:
    """Do ``work``; what speaks against it is told in one line."""
    # In this order: some of the client's errors are ValueErrors, too.
    with failing("journal", {TransferError: FAILED, ValueError: says_no}, words=terminal.explained):
        return run(work)


_FREE = (
    "the next recovery undoes what is owed. The same message or line of a file is answered from the record: "
    "what is still to be paid needs another key"
)

_ENDS = {KeyState.FREE: _FREE, KeyState.IN_DOUBT: "find out what became of its order, and say so"}


def tell_record(key: str, record: KeyRecord, *, as_json: bool) -> None:
    """What has become of the key."""
    if as_json:
        told = {"key": key, "state": record.state.value, "intent_id": record.intent_id}
        tell(tables.as_json(told | {"order_id": record.order_id}))
    else:
        order = f"its order is {record.order_id}" if record.order_id else _ENDS[record.state]
        tell(f"{shown(key)}: {record.state.value.replace('_', ' ')}; {order}")
