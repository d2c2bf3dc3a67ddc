"""Make the decisions in a ``--from`` file, for ``journal resolve``, ``refute``, ``propose`` and ``approve``.

Each row contains a decision about one key. The decision is recorded in a single transition, and only if the
key has not changed since the person saw it. Therefore, a decision is recorded completely or not at all, even
if a run is stopped or killed. The next run reports the rows that are already decided, and refuses rows whose
key has changed since the person saw it.
"""

from __future__ import annotations

import asyncio
import enum
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer
from attrs import define, field, frozen

from transfer_async._cli.create_command import files_of
from transfer_async._cli.create_input import (
    Changed,
    Checking,
    Format,
    Keys,
    Layout,
    OrderFile,
    format_of,
    opened,
)
from transfer_async._cli.create_outcomes import OutcomeFile
from transfer_async._cli.journal_output import counted, explained
from transfer_async._cli.journal_session import JournalTarget, confirm, effects_text, warn_of_sender
from transfer_async._cli.output import complain, failing, shown, tell
from transfer_async._cli.process import DONE, FAILED, ROWS_REFUSED, USAGE, Stopping
from transfer_async._converters.messages import tree_of
from transfer_async._models import requests
from transfer_async._models.errors import InvalidOrder, JournalFailed
from transfer_async._pipeline.decisions import DECISIONS, DecisionRow, row_of
from transfer_async._pipeline.key_views import (
    KeyChanged,
    KeyView,
    checked_decision,
    checked_order_id,
    checked_text,
)
from transfer_async._pipeline.operators import Operators
from transfer_async.journal.model import (
    FOUR_EYES,
    Decision,
    Entry,
    KeyState,
    TransitionResult,
    is_same_person,
)
from transfer_async.journal.protocol import Journal
from transfer_async.journal.state_machine import decide
from transfer_async.journal.transitions import Claim, Move

# --- the rows ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class FileDecision:
    """A decision in a row of the file. ``seen`` is the version of the key that the person saw."""

    key: str
    decision: Decision
    order_id: str | None
    reason: str
    seen: int

    @property
    def row(self) -> DecisionRow:
        """The decision's row in the table of decisions."""
        return row_of(self.decision, self.order_id)


def _seen(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("seen: must be the version that you saw ('moves' in journal list --json)")
    return int(text)


_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "key": lambda value: requests.to_text(value) if isinstance(value, str) else checked_text("key", value),
    "decision": checked_decision,
    "order_id": checked_order_id,
    "reason": partial(checked_text, "reason"),
    "seen": _seen,
}
"""The columns, each with the function that parses a value. Its ValueErrors begin with the column's name."""


def _decision(tree: Any, *, allowed: Sequence[Decision]) -> FileDecision:
    """Read a row. Raise `InvalidOrder` with all faults, if there are any."""
    if not isinstance(tree, dict):
        raise InvalidOrder([("", "is not an object")])
    problems = [
        f"{shown(name[:40])}: is unknown: correct or remove it" for name in tree if name not in _COLUMNS
    ]
    values: dict[str, Any] = {}
    for name, read in _COLUMNS.items():
        value = tree.get(name)
        if value not in (None, ""):
            try:
                values[name] = read(value)
            except ValueError as error:
                problems.append(str(error))
        elif name == "order_id":
            values[name] = None
        else:
            problems.append(f"{name}: is missing")
    if values.get("decision", allowed[0]) not in allowed:
        problems.append(f"decision: must be {' or '.join(item.value for item in allowed)}")
    elif {"decision", "order_id"} <= values.keys():
        try:
            row_of(values["decision"], values["order_id"])
        except ValueError as error:
            problems.append(str(error))
    if problems:
        faults = [(name, why) for name, _, why in (problem.partition(": ") for problem in problems)]
        raise InvalidOrder(faults, key=values.get("key"))
    return FileDecision(**values)


def layout_of(allowed: Sequence[Decision]) -> Layout:
    """Return the layout of a file that may contain the ``allowed`` decisions."""
    read = partial(_decision, allowed=allowed)
    return Layout(
        columns=tuple(_COLUMNS),
        optional=("order_id",),
        from_cells=lambda header, cells: read(dict(zip(header, cells, strict=True))),
        from_json=lambda text: read(tree_of(text)),
    )


class DecisionCheck(Checking):
    """Checks all rows before the first decision is recorded."""

    one_each = "make only one decision per key"
    none_done = "No decision was recorded."

    def _add(self, command: FileDecision) -> None:
        """Do nothing, because decisions have no amounts to add."""


# --- a dry run ---------------------------------------------------------------------------------------


class DryRunJournal:
    """A journal for dry runs, which decides transitions like the real journal but writes nothing.

    A dry run does not detect that an order id already belongs to a key that is not in the file.
    """

    def __init__(self, store: Journal) -> None:
        self._store = store
        self._entries: dict[str, Entry] = {}
        self._bound: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, scope: str, key: str) -> Entry | None:
        """Return the key's entry, including the transitions of this dry run."""
        return self._entries.get(key) or await self._store.read(scope, key)

    async def move(self, scope: str, key: str, move: Move) -> TransitionResult | None:
        """Compute the result of a transition, and keep the resulting entry in memory."""
        order_id = move.order_bound
        result = decide(
            await self.read(scope, key),
            move,
            now=await self._store.now(),
            id_taken=order_id is not None and self._bound.get(order_id, key) != key,
            four_eyes=await self.read(scope, FOUR_EYES),
        )
        if result is not None:
            self._entries[key] = result.entry
            if order_id is not None and result.entry.order_id == order_id:  # A proposal does not bind the id.
                self._bound[order_id] = key
        return result


# --- the run -----------------------------------------------------------------------------------------


class Result(enum.StrEnum):
    """The result of processing one row."""

    DONE = "done"
    BEFORE = "done before"
    REFUSED = "refused"
    UNKNOWN = "unknown"


_MOVES = frozenset(row.name for row in DECISIONS) | {Claim.name}


async def _is_decided(operators: Operators, wanted: FileDecision, view: KeyView) -> bool:
    """Return whether the row's decision is the latest one for the key, and no call has used the key since."""
    row = wanted.row
    if row.names_order:
        return view.readable and view.state is KeyState.CREATED and view.order_id == wanted.order_id
    if view.state is not (KeyState.FREE if row.frees_key else KeyState.IN_DOUBT) or not view.readable:
        return False
    moves = [step.move for step in await operators.history(wanted.key) if step.move in _MOVES]
    return moves[-1:] == [row.name]


@define
class DecisionRun:
    """Records the decisions in a file.

    Args:
        command: ``resolve``, ``refute``, ``propose`` or ``approve``.
        by: the name of the person who decides.
        rows: the file, already checked.
        results: receives the result of each row; None in a dry run.

    Attributes:
        counts: the number of rows with each result.
        is_whole: whether every row has a result.
    """

    command: str
    by: str
    rows: OrderFile
    results: OutcomeFile | None
    counts: Counter[Result] = field(factory=Counter)
    stopping: Stopping = field(factory=Stopping)
    is_whole: bool = False

    async def run(self, operators: Operators) -> None:
        """Record the decisions one by one, until the file ends, a signal arrives, or the journal fails."""
        with self.stopping.by_signals():
            try:
                self.is_whole = await self._decide(operators)
            finally:
                if self.results is not None:
                    await asyncio.to_thread(self.results.write)

    async def _decide(self, operators: Operators) -> bool:
        for record in self.rows.records():
            if record.command is None:
                raise Changed(f"line {record.line} of FILE was changed after it was checked")
            if self.stopping.asked.is_set():
                return False
            ended = await self.stopping.unless_asked(self._result(operators, record.command), twice=True)
            if ended is None:
                return False
            self._record(record.line, record.command, *ended)
            if self.results is not None and self.results.is_due:
                await asyncio.to_thread(self.results.write)
            if ended[0] is Result.UNKNOWN:
                return False
        return True

    async def _result(self, operators: Operators, wanted: FileDecision) -> tuple[Result, str]:
        try:
            view = await operators.view(wanted.key)
            proposal = view.proposal
            is_proposed = proposal is not None and (
                (proposal.decision, proposal.order_id) == (wanted.decision, wanted.order_id)
            )
            is_own = is_proposed and proposal is not None and is_same_person(proposal.by, self.by)
            if (self.command == "propose" and is_own) or await _is_decided(operators, wanted, view):
                return Result.BEFORE, ""
            if self.command == "approve" and not is_proposed:
                raise ValueError("nobody has proposed this decision")  # noqa: TRY301 - like `approve`
            effects = effects_text(view, wanted.row, order_id=wanted.order_id)
            await self._decide_row(operators, wanted, view)
        except JournalFailed as failed:
            return Result.UNKNOWN, explained(failed)
        except ValueError as error:
            return Result.REFUSED, shown(f"{wanted.key}: {error}")
        return Result.DONE, effects

    async def _decide_row(self, operators: Operators, wanted: FileDecision, view: KeyView) -> None:
        by: dict[str, Any] = {"by": self.by, "reason": wanted.reason}
        if wanted.row.frees_key and self.results is not None:
            warn_of_sender(view)
        if self.command != "approve":
            write = operators.propose if self.command == "propose" else operators.decide
            await write(wanted.key, wanted.decision, order_id=wanted.order_id, seen=wanted.seen, **by)
        elif view.version != wanted.seen:
            raise KeyChanged(view.entry)
        elif view.proposal is not None:
            await operators.approve(wanted.key, proposal=view.proposal.id, **by)

    def _record(self, line: int, wanted: FileDecision, result: Result, why: str) -> None:
        self.counts[result] += 1
        if self.results is None or result in (Result.REFUSED, Result.UNKNOWN):
            (tell if self.results is None else complain)(f"line {line}: {result}{why and f': {why}'}")
        if self.results is not None:
            row = {"line": line, "key": wanted.key, "decision": wanted.decision, "order_id": wanted.order_id}
            self.results.add(msgspec.json.encode({**row, "result": result, "why": why}) + b"\n")


# --- the command -------------------------------------------------------------------------------------


def decide_file(
    command: str,
    allowed: Sequence[Decision],
    target: JournalTarget,
    *,
    path: Path,
    results: Path | None,
    form: Format | None,
    dry_run: bool,
    by: str,
    yes: bool,
    settle_after: float,
) -> None:
    """Make the decisions in the file at ``path``, then end the command with its exit code."""
    results = results or path.with_name(path.name + ".results.jsonl")
    codes = {ValueError: USAGE, Changed: FAILED, OSError: FAILED, sqlite3.Error: FAILED}
    with failing("journal", codes, words=_error_text), ExitStack() as files:
        rows = files.enter_context(opened(path, format_of(path, form), layout_of(allowed)))
        count = _checked(rows, target.scope, yes=yes or dry_run)
        target.checked()
        file = None
        if not dry_run:
            file = OutcomeFile(results, protected=(path, *files_of(target.address)), option="--results")
            files.callback(file.close)
        run = DecisionRun(command, by, rows, file)
        target.with_journal(run.run, settle_after=settle_after, wrap=DryRunJournal if dry_run else None)
        if file is not None and run.is_whole:
            file.finish()
    counts = ", ".join(f"{run.counts[result]:,} {result}" for result in Result if run.counts[result])
    tell(f"{counted(count, 'row')}: {counts or 'none was decided'}")
    if file is None:
        tell("this was a dry run: no decision was recorded, and no file was written")
    else:
        tell(shown(f"results: {results}" if run.is_whole else f"results so far: {file.part}"))
    if not run.is_whole:
        tell("run the same command again: it continues where this run stopped, and records no decision twice")
        raise typer.Exit(run.stopping.exit_code or FAILED)
    raise typer.Exit(ROWS_REFUSED if run.counts[Result.REFUSED] else DONE)


def _error_text(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return (
        f"FILE cannot be read, or --results cannot be written ({error.strerror}): run the same command again"
    )


def _checked(rows: OrderFile, scope: str, *, yes: bool) -> int:
    """Check the whole file, ask for confirmation, and return the number of rows."""
    check = DecisionCheck(needs_held=False)
    with Keys() as keys:
        check.run(rows.records(), keys)
    if check.faults:
        for line in check.complaint():
            complain(line)
        raise typer.Exit(USAGE)
    if not check.records:
        raise ValueError("FILE: contains no decisions")
    confirm(
        (
            f"FILE: {counted(check.records, 'decision')} about keys of {shown(scope)}. "
            "Refuting releases holds: if an order exists anyway, the payment may be made "
            "twice. --dry-run shows every row. Record all of these decisions?"
        ),
        yes=yes,
    )
    return check.records
