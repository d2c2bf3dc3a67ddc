"""What the commands that look after a journal share: whose word it is, which journal, and what is told."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeVar

import typer

from transfer_async._cli.console.event_loop import run
from transfer_async._cli.console.exit_codes import FAILED, USAGE
from transfer_async._cli.console.output import fail, failing, shown, somebody_is_there, tell
from transfer_async._cli.journal import desk, tables
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.refusals import checked_text
from transfer_async.journal.protocol import Journal, KeyRecord

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Key = Annotated[str, typer.Argument(help="The key.")]
By = Annotated[str | None, typer.Option(help="Who says so; the login name by default.")]
Reason = Annotated[str | None, typer.Option(help="How they know; kept in the key's history.")]
Undone = Annotated[
    bool, typer.Option("--undone", help="Of a record that cannot be read: its hooks are undone by hand.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def named(address: str, scope: str | None, base_url: str | None) -> tuple[str, Journal]:
    with usage():
        return desk.scope_of(scope, base_url), desk.journal_named(address)


def usage(option: str | None = None) -> AbstractContextManager[None]:
    """What is checked within is a wrong use, or as it should be; ``option`` is what it is about."""
    return failing("journal", {ValueError: USAGE}, words=lambda error: _as_option(str(error), option))


def _as_option(why: str, option: str | None) -> str:
    """``why``, which begins with an argument's name, with the option's in its place."""
    return why if option is None else f"{option}:{why.partition(':')[2]}"


def said(by: str | None, reason: str | None) -> tuple[str, str]:
    """Who says so, and why; asked for where somebody can be asked."""
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError, ImportError):
            fail("journal: --by: must say who you are; there is no login name here", USAGE)
    if reason is None:
        if not somebody_is_there():
            fail("journal: --reason: must say how you know; nobody can be asked here", USAGE)
        reason = str(typer.prompt("How do you know", err=True))
    with usage():
        return checked_text("--by", by), checked_text("--reason", reason)


def confirmed(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not somebody_is_there():
        fail("journal: --yes: must be given where nobody can be asked", USAGE)
    if not typer.confirm(question, err=True):
        fail("journal: nothing was changed", FAILED)


def at_desk(
    store: Journal,
    scope: str,
    do: Callable[[desk.Desk], Awaitable[T]],
    *,
    settle_after: float = 300.0,
    says_no: int = FAILED,
) -> T:
    async def work() -> T:
        async with desk.opened(store, scope, settle_after=settle_after) as at:
            return await do(at)

    return done(work(), says_no=says_no)


def done(work: Coroutine[Any, Any, T], *, says_no: int = FAILED) -> T:
    """Do ``work``; what speaks against it is told in one line."""
    # In this order: some of the client's errors are ValueErrors, too.
    with failing("journal", {TransferError: FAILED, ValueError: says_no}, words=desk.explained):
        return run(work)


_REFUTED = (
    "the next recovery undoes what is owed. The same message or line of a file is answered from the record: "
    "what is still to be paid needs another key"
)


def tell_record(key: str, record: KeyRecord, *, as_json: bool) -> None:
    if as_json:
        told = {"key": key, "state": record.state.value, "intent_id": record.intent_id}
        tell(tables.as_json(told | {"order_id": record.order_id}))
    else:
        order = f"its order is {record.order_id}" if record.order_id else _REFUTED
        tell(f"{shown(key)}: {record.state.value}; {order}")
