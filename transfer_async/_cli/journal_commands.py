"""The ``journal`` commands: their options, questions and exit codes."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import attrs
import typer

from transfer_async._cli import journal_output, options
from transfer_async._cli.create_input import Format
from transfer_async._cli.journal_file import decide_file
from transfer_async._cli.journal_session import (
    AsJson,
    By,
    JournalTarget,
    Key,
    Person,
    Reason,
    Undone,
    Yes,
    confirm,
    effects_text,
    print_record,
    run_journal,
    target_of,
    usage,
    warn_of_sender,
)
from transfer_async._cli.output import PlainUsage, complain, fail, is_interactive, show_table, shown, tell
from transfer_async._cli.process import FAILED, OWED, USAGE
from transfer_async._pipeline.call import RECOVER_CONCURRENCY, checked_settle_after
from transfer_async._pipeline.decisions import DECISIONS, approval, proposed_row, row_of, rows_of
from transfer_async._pipeline.key_views import (
    KeyChanged,
    KeyView,
    checked_order_id,
    checked_text,
)
from transfer_async._pipeline.operators import Operators
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async.journal.durable import DurableJournal
from transfer_async.journal.model import FOUR_EYES, SETTLE_AFTER, Decision, HistoryEvent, KeyState, Proposal
from transfer_async.journal.operator_transitions import WITHOUT_CHANGE
from transfer_async.journal.protocol import KEPT, AuditLine, KeyRecord
from transfer_async.journal.rows import Upgrade

app = typer.Typer(
    help=(
        "Manage a journal: list keys in doubt and pending undos, and resolve or refute "
        "orders in doubt. Exit codes: 0 done; 1 the journal failed or refused the "
        "decision, or you answered no; 2 usage error; 3 some rows of --from were "
        "refused; 4 the journal contains only keys in other scopes."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

# --- options that several commands share --------------------------------------------------------------

_GROUPS: dict[str, tuple[Callable[..., Any], options.Options]] = {
    "target": (
        target_of,
        {
            "journal": (options.JournalNeeded, Parameter.empty),
            "scope": (options.Scope, None),
            "base_url": (options.BaseUrl, None),
        },
    ),
    "person": (Person, {"by": (By, None), "reason": (Reason, None)}),
}
"""The parameters that stand for several options; see `options.expanded`."""

OrderId = Annotated[str | None, typer.Option(help="The order's id, tx-…")]
Candidate = Annotated[
    bool, typer.Option("--candidate", help="Use the order id found in the unreadable response.")
]
InDoubt = Annotated[
    bool, typer.Option("--in-doubt", help="Put the key in doubt again, because the right order is unknown.")
]
ProposalId = Annotated[
    str | None,
    typer.Option(
        "--proposal",
        help=(
            "The proposal's id; by default, the command shows the current proposal and asks for confirmation."
        ),
    ),
]


From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="A CSV or JSON Lines file of decisions: key, decision, order_id, reason, seen.",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="With --from, the file to write the results to; FILE.results.jsonl by default."
    ),
]
FileFormat = Annotated[
    Format | None,
    typer.Option(
        "--format", help="With --from, the format of FILE; by default, determined by the file's suffix."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="With --from, show what each row would do, without recording any decision."
    ),
]

_FROM: options.Options = {
    "path": (From, None),
    "results": (Results, None),
    "form": (FileFormat, None),
    "dry_run": (DryRun, False),
}
"""The options of a decision file."""

_BESIDE_FROM = frozenset({*_FROM, "journal", "scope", "base_url", "by", "yes", "settle_after"})
"""The options that are allowed with ``--from``."""


def _command(
    work: Callable[..., None],
    name: str | None = None,
    *,
    cls: Any = None,
    more: options.Options | None = None,
    from_file: Sequence[Decision] = (),
) -> None:
    """Register ``work`` as a command.

    Args:
        work: the command's function. A parameter that is not annotated for Typer becomes an option only if
            ``more`` contains it.
        name: the command's name; by default, the function's name.
        cls: the Typer class of the command; `PlainUsage` if the command has an argument.
        more: further options.
        from_file: the decisions that the command can also read from a file.
    """
    command = options.expanded(work, _GROUPS)
    parameters = [
        item for item in signature(command).parameters.values() if get_origin(item.annotation) is Annotated
    ]
    parameters += options.parameters_of({**(more or {}), **(_FROM if from_file else {})})
    if from_file:
        parameters = [_optional(parameter) for parameter in parameters]

    def run(**given: Any) -> None:
        if not (from_file and _decide_from_file(name or work.__name__, from_file, parameters, given)):
            command(**given)

    run.__doc__ = work.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # as `inspect.signature` reads it
    app.command(name or work.__name__, cls=cls)(run)


def _optional(parameter: Parameter) -> Parameter:
    """Make an argument such as KEY optional. Return an option unchanged."""
    if parameter.kind is Parameter.KEYWORD_ONLY:
        return parameter
    kind, *rest = get_args(parameter.annotation)
    return parameter.replace(annotation=Annotated[(kind | None, *rest)], default=None)


def _decide_from_file(
    command: str, allowed: Sequence[Decision], parameters: Sequence[Parameter], given: dict[str, Any]
) -> bool:
    """Record the decisions in the ``--from`` file and return true; without ``--from``, return false."""
    typed = {item.name: options.option_of(item.name) for item in parameters} | {"form": "--format"}
    arguments = [item.name for item in parameters if item.kind is not Parameter.KEYWORD_ONLY]
    typed |= {name: name.upper() for name in arguments}
    wanted = {name: given.pop(name) for name in _FROM}
    if wanted["path"] is None:
        if alone := [typed[name] for name in _FROM if wanted[name]]:
            fail(f"journal: {alone[0]}: needs --from", USAGE)
        if missing := [typed[name] for name in arguments if given[name] is None]:
            fail(f"journal: {missing[0]} or --from FILE is required", USAGE)
        return False
    for item in parameters:
        if item.name not in _BESIDE_FROM and given[item.name] != item.default:
            fail(f"journal: {typed[item.name]} cannot be used with --from", USAGE)
    settle_after = given.get("settle_after", SETTLE_AFTER)
    _check_settle_after(settle_after)
    target, by = (
        target_of(given["journal"], given["scope"], given["base_url"]),
        Person(given["by"], None).name,
    )
    yes = given.get("yes", True)  # Without an option --yes, never ask about the file.
    decide_file(command, allowed, target, **wanted, by=by, yes=yes, settle_after=settle_after)
    return True


# --- upgrade ----------------------------------------------------------------------------------------


def upgrade(*, journal: options.JournalNeeded, yes: Yes = False, as_json: AsJson = False) -> None:
    """Upgrade the journal to this version's format.

    First stop every program that uses the journal. After the upgrade, programs of an earlier version can no
    longer use the journal. All scopes are upgraded in place, in one transaction. If the command is
    interrupted, run it again. The command shows what the journal contains, and asks for confirmation before
    it changes anything. If the format is up to date, the command does nothing.
    """
    plan = _with_store(journal, lambda store: store.planned_upgrade())
    is_needed = plan.found != plan.version
    if is_needed:
        complain(_plan_text(plan))
        confirm(
            (
                "After the upgrade, programs of an earlier version, including running ones, can no "
                "longer use the journal. The upgrade cannot be undone. Have you stopped all these programs, "
                "and do you want to upgrade the journal now?"
            ),
            yes=yes,
        )
    done = _with_store(journal, lambda store: store.upgrade(plan)) if is_needed else plan
    is_upgraded = done.found != done.version  # False if another process upgraded the journal first.
    if as_json:
        values: dict[str, Any] = {"upgraded": is_upgraded, "found": done.found, "version": done.version}
        if is_upgraded:
            values |= {"keys": done.keys, "states": dict(done.states), "unreadable": done.unreadable}
        tell(journal_output.as_json(values))
    elif is_upgraded:
        keys = journal_output.counted(done.keys, "key")
        tell(f"the journal's format is now {done.version}; {keys} unchanged")
    else:
        tell(f"the journal already has format {done.version}: there is nothing to upgrade")


def _with_store(address: str, do: Callable[[DurableJournal], Awaitable[Upgrade]]) -> Upgrade:
    with usage():
        store = journal_output.journal_named(address)

    async def work() -> Upgrade:
        try:
            return await do(store)
        finally:
            await store.close()

    return run_journal(work())


def _plan_text(found: Upgrade) -> str:
    states = ", ".join(
        f"{count} {shown(state.replace('_', ' '))}" for state, count in sorted(found.states.items())
    )
    keys = journal_output.counted(found.keys, "key")
    text = f"journal: will be upgraded from format {found.found} to format {found.version}; {keys}"
    text += f": {states}" if states else ""
    if found.unreadable:
        text += f"; {journal_output.counted(found.unreadable, 'corrupt record')} will not be repaired"
    return "\n".join([text, *(f"connected to the database: {shown(user)}" for user in found.users)])


# --- list and show ------------------------------------------------------------------------------------


def list_waiting(*, target: JournalTarget, as_json: AsJson = False) -> None:
    """List the keys that need attention.

    The command lists keys in doubt, keys that a dead worker left claimed or sending, and keys with a pending
    undo, a pending notification or a proposal to approve.
    """
    views = target.with_journal(lambda operators: operators.waiting())
    totals = journal_output.totals(views)
    if as_json:
        keys = [journal_output.view_json(view) for view in views]
        tell(journal_output.as_json({"scope": target.scope, "keys": keys, "totals": totals}))
        return
    if views:
        show_table(journal_output.WAITING, views)
    tell(f"{shown(target.scope)}: {journal_output.totals_text(totals)}")


def show(
    key: Key,
    *,
    target: JournalTarget,
    with_order: Annotated[
        bool,
        typer.Option(
            "--with-order", help="Also show the parties. The key's history records that you viewed them."
        ),
    ] = False,
    person: Person,
    as_json: AsJson = False,
) -> None:
    """Show a key's record, why it is in doubt, and its history."""
    parties: dict[str, str | None] = {}
    if with_order:
        by, why = person.name, person.reason or "journal show --with-order"
        seen = target.with_journal(lambda operators: operators.look(key, by=by, reason=why))
        parties = journal_output.parties(seen)
    view, steps = target.with_journal(lambda operators: _record(operators, key))
    if as_json:
        record = {
            "scope": target.scope,
            **journal_output.view_json(view),
            "receipts": view.entry.all_receipts,
            **({"parties": parties} if with_order else {}),
            "history": [journal_output.step_json(step) for step in steps],
        }
        tell(journal_output.as_json(record))
        return
    tell(f"{'scope':<12}{shown(target.scope)}")
    for text in journal_output.record_lines(view, parties):
        tell(text)
    tell("")
    show_table(journal_output.HISTORY, steps)


async def _record(operators: Operators, key: str) -> tuple[KeyView, tuple[HistoryEvent, ...]]:
    return await operators.view(key), await operators.history(key)


def note(
    key: Key,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The note, as a single line. Do not mention customers' names."),
    ],
    *,
    target: JournalTarget,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Add a note to a key's history. The key does not change, and any proposal stays valid."""
    with usage():
        person, reason = Person(by, None).name, checked_text("TEXT", text)
    target.with_journal(lambda operators: operators.note(key, by=person, reason=reason))
    if as_json:
        tell(journal_output.as_json({"key": key, "by": person, "note": reason}))
    else:
        tell(f"{shown(key)}: your note was added to the history")


def audit(
    *,
    target: JournalTarget,
    by: Annotated[str | None, typer.Option(help="List only what this person did.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help=("List only entries from this date or time on, such as 2026-01-01; UTC by default.")
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="List only entries before this date or time; UTC by default.")
    ] = None,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="List only decisions and proposals, not notes or look-ups.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List each person's actions on all keys, newest first. Deleted keys are not included."""
    with usage():
        wanted: dict[str, Any] = {
            "by": by,
            "since": None if since is None else journal_output.time_given("--since", since),
            "until": None if until is None else journal_output.time_given("--until", until),
        }

    async def read(operators: Operators) -> list[AuditLine]:
        lines, after = await operators.audit(**wanted)
        while after:
            more, after = await operators.audit(after=after, **wanted)
            lines += more
        return [line for line in lines if not (decisions and line[1].move in WITHOUT_CHANGE)]

    lines = target.with_journal(read)
    if as_json:
        found = [journal_output.audit_json(line) for line in lines]
        tell(journal_output.as_json({"scope": target.scope, "lines": found}))
        return
    if lines:
        show_table(journal_output.AUDIT, lines)
    tell(f"{shown(target.scope)}: {journal_output.counted(len(lines), 'line')}")


# --- decisions --------------------------------------------------------------------------------------


def _register_decision(decision: Decision) -> None:
    def decide(
        key: Key,
        *,
        target: JournalTarget,
        person: Person,
        as_json: AsJson = False,
        undone: bool = False,
        settle_after: float = SETTLE_AFTER,
        yes: bool = False,
        **order: Any,
    ) -> None:
        _check_settle_after(settle_after)
        view = target.view(key)
        order_id = _order_named(view, decision, **order)
        row = row_of(decision, order_id)
        attribution = person.attribution()
        if row.frees_key:
            if yes:
                warn_of_sender(view)  # Without --yes, the question contains this warning.
            confirm(f"{effects_text(view, row)} Are you certain?", yes=yes)
        record = target.with_journal(
            lambda operators: operators.decide(
                key, decision, order_id=order_id, undone=undone, seen=view.version, **attribution
            ),
            settle_after=settle_after,
        )
        print_record(target, key, record, as_json=as_json)

    decide.__doc__ = rows_of(decision)[0].help
    found = _options_of(decision)
    if any(row.frees_key for row in rows_of(decision)):
        found["yes"] = (Yes, False)
    from_file = [decision] if decision in _FROM_FILE else []
    _command(decide, decision.value, cls=PlainUsage, more=found, from_file=from_file)


def _options_of(*decisions: Decision) -> dict[str, tuple[Any, Any]]:
    rows = [row for row in DECISIONS if row.decision in decisions]
    in_doubt = [row for row in rows if row.applies_to is KeyState.IN_DOUBT]
    needed = {
        "order_id": (OrderId, None, any(row.names_order for row in rows)),
        "candidate": (Candidate, False, any(row.names_order for row in in_doubt)),
        "in_doubt": (InDoubt, False, any(len(rows_of(decision)) > 1 for decision in decisions)),
        "undone": (Undone, False, bool(in_doubt)),
        "settle_after": (options.SettleAfter, SETTLE_AFTER, any(row.frees_key for row in rows)),
    }
    return {name: (kind, default) for name, (kind, default, is_needed) in needed.items() if is_needed}


def _check_settle_after(settle_after: float) -> None:
    with usage():
        checked_settle_after(settle_after)


def _order_named(
    view: KeyView,
    decision: Decision,
    *,
    order_id: str | None = None,
    candidate: bool = False,
    in_doubt: bool = False,
) -> str | None:
    """Return the order id from the options, or None if the decision needs no order id."""
    rows = rows_of(decision)
    if not any(row.names_order for row in rows):
        if order_id is not None:
            fail(f"journal: --order-id cannot be used with {decision.value}", USAGE)
        return None
    if len(rows) > 1:  # one kind of the decision names an order, the other none
        if (order_id is None) is not in_doubt:
            fail("journal: pass either --order-id or --in-doubt", USAGE)
        if order_id is None:
            return None
    elif order_id is None:
        return _candidate(view, take_it=candidate)
    with usage():
        return checked_order_id(order_id)


def _candidate(view: KeyView, *, take_it: bool) -> str:
    """Return the candidate order id of a key in doubt, if there is only one and the person confirms it."""
    candidates = view.candidates
    if len(candidates) != 1:
        found = f"several candidate orders: {', '.join(candidates)}" if candidates else "no candidate order"
        fail(f"journal: --order-id is required: the service's responses contain {found}", USAGE)
    if not take_it:
        if not is_interactive():
            fail("journal: --order-id or --candidate is required when not interactive", USAGE)
        order_id = candidates[0]
        question = f"An unreadable response contains {order_id}. Does this order belong to {shown(view.key)}?"
        confirm(question, yes=False)
    return candidates[0]


# --- dual control -----------------------------------------------------------------------------------

_FROM_FILE = (Decision.RESOLVE, Decision.REFUTE)
"""The decisions whose own commands accept ``--from``."""

_PROPOSABLE = tuple(dict.fromkeys(row.decision for row in DECISIONS if row.title))
_NAMES = [decision.value for decision in _PROPOSABLE]
_NAMED = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"


def _check_decision(name: str | None) -> str | None:
    if name is not None and name not in _NAMES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, _NAMES))}.")
    return name


def propose(
    key: Key,
    decision: Annotated[
        str,
        typer.Argument(
            metavar="DECISION", help=f"{_NAMED}; each is also a command.", callback=_check_decision
        ),
    ],
    *,
    target: JournalTarget,
    person: Person,
    settle_after: float = SETTLE_AFTER,
    undone: bool = False,
    as_json: AsJson = False,
    **order: Any,
) -> None:
    """Propose a decision about a key, for another person to approve.

    The key does not change until the proposal is approved. Any change to the key voids the proposal.
    """
    _check_settle_after(settle_after)
    view, wanted = target.view(key), Decision(decision)
    order_id = _order_named(view, wanted, **order)
    if row_of(wanted, order_id).frees_key:
        warn_of_sender(view)
    attribution = person.attribution()
    proposal = target.with_journal(
        lambda operators: operators.propose(
            key, wanted, order_id=order_id, undone=undone, seen=view.version, **attribution
        ),
        settle_after=settle_after,
    )
    if as_json:
        tell(journal_output.as_json({"key": key, "proposal": journal_output.proposal_json(proposal)}))
        return
    what = journal_output.proposed(proposal)
    tell(f"{shown(key)}: proposed: {what}; another person must approve proposal {proposal.id}")


def approve(
    key: Key,
    *,
    proposal: ProposalId = None,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    target: JournalTarget,
    person: Person,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Approve another person's proposal, so that the decision takes effect.

    The command shows the proposal and asks for confirmation, unless --proposal and --yes are given.
    """
    _check_settle_after(settle_after)
    view = target.view(key)
    seen = _current_proposal(target, view, proposal)
    row = proposed_row(seen)
    if yes and row.frees_key:
        warn_of_sender(view)
    attribution = person.attribution()
    effects = effects_text(view, row, order_id=seen.order_id)
    confirm(f"{effects}\n{_proposal_text(key, seen)} Do you approve?", yes=yes)
    record = target.with_journal(
        lambda operators: _approve(operators, key, seen, attribution), settle_after=settle_after
    )
    print_record(target, key, record, as_json=as_json)


def withdraw(
    key: Key,
    *,
    proposal: ProposalId = None,
    target: JournalTarget,
    person: Person,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Withdraw your proposal, or reject another person's. The key does not change."""
    seen = _current_proposal(target, target.view(key), proposal)
    attribution = person.attribution()
    confirm(f"{_proposal_text(key, seen)} Withdraw or reject it?", yes=yes)
    record = target.with_journal(lambda operators: operators.withdraw(key, proposal=seen.id, **attribution))
    if as_json:
        print_record(target, key, record, as_json=True)
    else:
        tell(f"{shown(key)}: {record.state.value.replace('_', ' ')}; the proposal is withdrawn")


class Action(enum.Enum):
    """The actions of ``journal four-eyes``."""

    SHOW = "show"
    DEMAND = "demand"
    WAIVE = "waive"
    APPROVE = "approve"
    WITHDRAW = "withdraw"


def four_eyes(
    action: Annotated[
        Action,
        typer.Argument(metavar="ACTION", help="show, demand or waive; or approve or withdraw a waiver."),
    ] = Action.SHOW,
    *,
    target: JournalTarget,
    person: Person,
    as_json: AsJson = False,
) -> None:
    """Show whether dual control (four eyes) is required in this scope; demand it, or waive it.

    Under dual control, one person proposes a decision and another person approves it. Any one person can
    demand dual control. To waive it, one person must propose the waiver and another must approve it.
    """
    if action in (Action.APPROVE, Action.WITHDRAW):
        _end_waiver(target, action, person)
    elif action is not Action.SHOW:
        attribution = person.attribution()
        if action is Action.DEMAND:  # allowed before the scope has any key
            target.with_journal(
                lambda operators: operators.demand_four_eyes(**attribution), in_any_scope=True
            )
        else:
            target.with_journal(lambda operators: operators.propose(FOUR_EYES, Decision.WAIVE, **attribution))
    is_new = action is Action.DEMAND
    found = target.with_journal(lambda operators: operators.four_eyes(), in_any_scope=is_new)
    scope, waiver = target.scope, found.proposal
    if as_json:
        proposal = None if waiver is None else journal_output.proposal_json(waiver)
        tell(journal_output.as_json({"scope": scope, "demanded": found.demanded, "proposal": proposal}))
        return
    tell(f"{shown(scope)}: {'dual control is required' if found.demanded else 'one person is enough'}")
    if waiver is not None:
        by, why = shown(waiver.by), shown(waiver.reason)
        tell(f"{by} proposes to waive dual control: {why}; another person must approve it")


def _end_waiver(target: JournalTarget, action: Action, person: Person) -> None:
    waiver = target.with_journal(lambda operators: operators.four_eyes()).proposal
    if waiver is None:
        fail("journal: four-eyes: nobody has proposed to waive dual control", FAILED)
    attribution = person.attribution()
    if action is Action.APPROVE:
        target.with_journal(lambda operators: _approve(operators, FOUR_EYES, waiver, attribution))
    else:
        target.with_journal(
            lambda operators: operators.withdraw(FOUR_EYES, proposal=waiver.id, **attribution)
        )


async def _approve(
    operators: Operators, key: str, proposal: Proposal, attribution: dict[str, str]
) -> KeyRecord:
    """Approve a proposal.

    If another person has already approved the proposal, the error names the person and the time.
    """
    try:
        return await operators.approve(key, proposal=proposal.id, **attribution)
    except KeyChanged as changed:
        raise ValueError(f"{changed}{await _approval_text(operators, key)}") from None


async def _approval_text(operators: Operators, key: str) -> str:
    """Describe the approval of the key's last proposal.

    Return an empty string if the proposal was not approved.
    """
    step = approval(await operators.history(key))
    return (
        ""
        if step is None
        else f"; {shown(step.by)} approved the proposal at {journal_output.step_time(step)}"
    )


def _current_proposal(target: JournalTarget, view: KeyView, named_id: str | None) -> Proposal:
    """Return the key's proposal, or end the command.

    The command ends if there is no proposal, if its id is not ``named_id``, or if no id is given and the
    command is not interactive.
    """
    key, proposal = view.key, view.proposal
    if proposal is None:
        already = target.with_journal(lambda operators: _approval_text(operators, key))
        fail(f"journal: {shown(key)}: has no proposal, or has changed since the proposal{already}", FAILED)
    if named_id is None and not is_interactive():
        fail("journal: --proposal is required when not interactive", USAGE)
    if named_id not in (None, proposal.id):
        fail(
            (f"journal: {shown(key)}: the proposal that you named was replaced by {proposal.id}"),
            FAILED,
        )
    return proposal


def _proposal_text(key: str, proposal: Proposal) -> str:
    by, what, why = shown(proposal.by), journal_output.proposed(proposal), shown(proposal.reason)
    return f"{shown(key)}: {by} proposes: {what} ({why})."


# --- recover and prune ------------------------------------------------------------------------------


def recover(
    *,
    journal: options.JournalNeeded,
    hooks: options.HooksNeeded,
    base_url: options.BaseUrlNeeded,
    token: options.Token = None,
    scope: options.Scope = None,
    settle_after: options.SettleAfter = SETTLE_AFTER,
    abandoned_settle_after: options.AbandonedSettleAfter = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum concurrent calls of resolve.")
    ] = RECOVER_CONCURRENCY,
    network: options.Network,
    as_json: AsJson = False,
) -> None:
    """Process abandoned claims, orders in doubt and pending undos.

    FACTORY returns a sequence of hooks, or a mapping or an object that contains hooks and, optionally,
    resolve (which finds out whether an order in doubt exists). FACTORY may be async.

    Exit codes: as for the other journal commands, and 3 if an undo is still pending or a record is corrupt.
    """
    target = target_of(journal, scope, base_url)
    with usage():
        factory, settings = options.factory_named(hooks), network()
    target.checked()
    store = target.journal
    settings |= {
        "scope": target.scope,
        "settle_after": settle_after,
        "abandoned_settle_after": abandoned_settle_after,
        "recover_concurrency": concurrency,
    }

    async def work() -> RecoveryReport:
        try:
            async with (
                await options.made_by(factory) as side,
                options.client_of(base_url, token or None, side, journal=store, **settings) as client,
            ):
                return await client.recover()
        finally:
            await store.close()

    report = run_journal(work(), refusal_code=USAGE)  # A ValueError comes from hooks or settings.
    if as_json:
        tell(journal_output.as_json(attrs.asdict(report)))
    else:
        tell(f"{'scope':<12} {shown(target.scope)}")
        for name, count in attrs.asdict(report).items():
            tell(f"{name.replace('_', ' '):<13}{count:>5}")
    if report.undos_pending or report.unreadable:
        raise typer.Exit(OWED)


def prune(
    *,
    target: JournalTarget,
    before: Annotated[
        str | None,
        typer.Option(
            help="Delete keys whose outcome was recorded before this date or time in UTC, such as 2026-01-01."
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Delete keys whose outcome is older than this duration, such as 90d, 12h or 2w."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete old keys.

    The command never deletes a key that is in doubt or in use, or that has a pending undo. Keys whose outcome
    was recorded within the last day are kept, because their message or file may be processed again. The
    command asks for confirmation, because the next call with a deleted key creates another order.
    """
    now = datetime.now(UTC)
    with usage():
        time = journal_output.time_named(before, older_than, now=now)
    if (now - time).total_seconds() < KEPT:
        complain(
            "journal: keys whose outcome was recorded within the last day are kept, because their message or "
            "file may be processed again"
        )
    confirm(
        (
            f"This deletes every key of {shown(target.scope)} whose outcome was recorded before "
            f"{journal_output.iso(time)} and more than a day ago. A call with a deleted key "
            "creates another order. Delete these keys?"
        ),
        yes=yes,
    )
    # An invalid time causes a ValueError.
    deleted = target.with_journal(lambda operators: operators.prune(before=time), refusal_code=USAGE)
    tell(
        journal_output.as_json({"forgotten": deleted})
        if as_json
        else f"{shown(target.scope)}: {journal_output.counted(deleted, 'key')} deleted"
    )


# --- the commands, in the order of the help ---------------------------------------------------------

_command(list_waiting, "list")
_command(show, cls=PlainUsage)
_command(note, cls=PlainUsage)
_command(audit)
for _decision in _PROPOSABLE:
    _register_decision(_decision)
_command(propose, cls=PlainUsage, more=_options_of(*_PROPOSABLE), from_file=_PROPOSABLE)
_command(approve, cls=PlainUsage, from_file=_PROPOSABLE)
_command(withdraw, cls=PlainUsage)
_command(four_eyes, "four-eyes", cls=PlainUsage)
_command(upgrade)
_command(options.with_network(recover))
_command(prune)
