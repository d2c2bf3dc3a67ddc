"""Code shared by the journal commands: the journal, the person, confirmations and the output of decisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypeVar

import typer
from attrs import frozen

from transfer_async._cli import journal_output
from transfer_async._cli.options import as_typed
from transfer_async._cli.output import complain, fail, failing, is_interactive, login_name, shown, tell
from transfer_async._cli.process import FAILED, OTHER_SCOPE, USAGE, run
from transfer_async._models.errors import TransferError
from transfer_async._pipeline.decisions import DecisionRow, effects_of, pending
from transfer_async._pipeline.hooks import USUAL_HOLD
from transfer_async._pipeline.key_views import KeyView, checked_name, checked_text, only_scopes
from transfer_async._pipeline.operators import Operators
from transfer_async.journal.model import SETTLE_AFTER, KeyState
from transfer_async.journal.protocol import Journal, KeyRecord

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
By = Annotated[str | None, typer.Option(help="Your name in the history; by default, your login name.")]
Reason = Annotated[
    str | None, typer.Option(help="Your evidence for the decision, recorded in the key's history.")
]
Undone = Annotated[
    bool,
    typer.Option("--undone", help="For a corrupt record, confirm that you have undone its hooks manually."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@frozen(kw_only=True)
class JournalTarget:
    """The journal and the scope that the options name."""

    scope: str
    address: str

    @property
    def journal(self) -> Journal:
        """A new, unopened journal object."""
        return journal_output.journal_named(self.address)

    def with_journal(
        self,
        work: Callable[[Operators], Awaitable[T]],
        *,
        settle_after: float = SETTLE_AFTER,
        refusal_code: int = FAILED,
        in_any_scope: bool = False,
        wrap: Callable[[Journal], Any] | None = None,
    ) -> T:
        """Open the journal, return the result of ``work``, and close the journal.

        End the command if the journal contains only keys in other scopes, because empty output would look as
        if there were no doubts.

        Args:
            work: receives the operators' interface to the journal.
            settle_after: seconds until a refutation is accepted; see `Operators`.
            refusal_code: the exit code if ``work`` raises a ValueError.
            in_any_scope: whether to accept a journal that contains only keys in other scopes.
            wrap: a function that takes the journal, and returns the journal to use instead.
        """
        store = self.journal
        store = store if wrap is None else wrap(store)

        async def opened() -> T:
            async with journal_output.opened(store, self.scope, settle_after=settle_after) as operators:
                other_scopes = () if in_any_scope else await operators.other_scopes()
                if other_scopes:
                    names = only_scopes(other_scopes).shown(str)
                    advice = "pass the right scope with --scope or --base-url"
                    fail(f"journal: the journal has no keys in {self.scope}, {names}: {advice}", OTHER_SCOPE)
                return await work(operators)

        return run_journal(opened(), refusal_code=refusal_code)

    def checked(self) -> None:
        """End the command if the journal contains only keys in other scopes."""

        async def nothing(_: Operators) -> None:
            return None

        self.with_journal(nothing)

    def view(self, key: str) -> KeyView:
        """Return the record of ``key``, or end the command if there is none."""
        return self.with_journal(lambda operators: operators.view(key))


def target_of(address: str, scope: str | None, base_url: str | None) -> JournalTarget:
    """Return the journal and its scope, or end the command if they are invalid."""
    with usage():
        target = JournalTarget(scope=journal_output.scope_of(scope, base_url), address=address)
        journal_output.journal_named(address)  # raises if the address is invalid
        return target


def usage() -> AbstractContextManager[None]:
    """Report a ValueError in the block as a usage error. The message names the option, not the argument."""
    return failing("journal", {ValueError: USAGE}, words=lambda error: as_typed(str(error)))


@frozen
class Person:
    """The person who runs the command, and their reason: the options ``--by`` and ``--reason``."""

    by: str | None
    reason: str | None

    @property
    def name(self) -> str:
        """The person's name; by default, the login name."""
        by = login_name("journal") if self.by is None else self.by
        with usage():
            return checked_name("--by", by)

    def attribution(self) -> dict[str, Any]:
        """Return the ``by`` and ``reason`` arguments for `Operators`.

        If the reason is missing, prompt for it.
        """
        by, reason = self.name, self.reason
        if reason is None:
            if not is_interactive():
                fail("journal: --reason is required when not interactive: give your evidence", USAGE)
            reason = str(typer.prompt("Your evidence", err=True))
        with usage():
            return {"by": by, "reason": checked_text("--reason", reason)}


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, and end the command unless the answer is yes."""
    if yes:
        return
    if not is_interactive():
        fail("journal: --yes is required when not interactive", USAGE)
    if not typer.confirm(question, err=True):
        fail("journal: nothing was changed", FAILED)


def warn_of_sender(view: KeyView) -> None:
    """Warn if a key's sender never reported a result, because the sender may still send the order."""
    if view.state in (KeyState.SENDING, KeyState.IN_DOUBT) and not view.sender_reported:
        complain(
            f"journal: {shown(view.key)}: the sender never reported how its attempt ended. "
            "Make sure that the sender's process has ended: a suspended process may still "
            "send the order."
        )


def run_journal(work: Coroutine[Any, Any, T], *, refusal_code: int = FAILED) -> T:
    """Run ``work``. If ``work`` fails, print the error in one line and end the command."""
    # TransferError comes first, because some of its subclasses are also ValueErrors.
    with failing(
        "journal", {TransferError: FAILED, ValueError: refusal_code}, words=journal_output.explained
    ):
        return run(work)


HOLDS = frozenset({USUAL_HOLD})
"""The names of hooks that place a hold. These commands load no hooks, so they assume the usual name."""


def effects_text(view: KeyView, row: DecisionRow, *, order_id: str | None = None) -> str:
    """Describe the effects of a decision about a key, for the person to confirm."""
    effects = effects_of(view, row, verb="this", holds=HOLDS, order_id=order_id)
    return f"{shown(view.key)}: {' '.join(effect.shown(shown) for effect in effects)}"


def _pending_text(target: JournalTarget, key: str) -> str:
    """Describe the pending undos.

    If the journal fails, only explain how to list the undos, because the decision is already saved.
    """

    async def view(store: Journal) -> KeyView:
        async with journal_output.opened(store, target.scope) as operators:
            return await operators.view(key)

    try:
        return pending(run(view(target.journal)), holds=HOLDS).shown(shown)
    except (TransferError, ValueError):
        return "to list the pending undos, run transfer-async journal show"


def print_record(target: JournalTarget, key: str, record: KeyRecord, *, as_json: bool) -> None:
    """Print the key's new state, and what the next recovery will undo."""
    if as_json:
        names = ("state", "intent_id", "order_id")
        tell(journal_output.as_json({"key": key, **{name: getattr(record, name) for name in names}}))
        return
    if record.order_id:
        end = f"its order is {shown(record.order_id)}"
    elif record.state is KeyState.FREE:
        end = (
            f"{_pending_text(target, key)}. If the same message or line is processed again, "
            "the recorded result is returned. If the payment is still due, use another key"
        )
    else:
        end = "find out whether its order exists, then resolve or refute the order"
    tell(f"{shown(key)}: {record.state.value.replace('_', ' ')}; {end}")
