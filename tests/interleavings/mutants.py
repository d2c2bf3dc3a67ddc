"""Wrong rules: some generated from the table of transitions and their classes, some planted by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

from attrs import frozen

from tests.mutation.faults import FAULTS, INTERLEAVINGS
from tests.mutation.in_process import planted
from transfer_async.journal import state_machine, transitions
from transfer_async.journal.model import KeyState
from transfer_async.journal.transitions import Claim, Move

NOT_MODELLED = {
    "Propose": "dual control: tests/journal/test_proposal.py, tests/contract",
    "Withdraw": "dual control: tests/journal/test_proposal.py, tests/contract",
    "Demand": "the scope's own entry, which no order uses: tests/journal/test_proposal.py",
    "Waive": "the scope's own entry, which no order uses: tests/journal/test_proposal.py",
    "Amend": "the model's operator makes no mistakes: tests/journal/test_state_machine.py",
    "TakeBack": "the model's operator makes no mistakes: tests/journal/test_state_machine.py",
    "Look": "it changes the history alone: tests/journal/test_state_machine.py",
    "Note": "as Look",
    "Watch": "as Look",
    "Unwatch": "as Look",
    "Quarantine": "the model's store damages no record: tests/journal/test_unreadable.py",
}
"""The transitions that no actor of the model makes, with the tests that cover them."""


@frozen
class Mutant:
    """One wrong rule.

    Args:
        name: the id of the rule, which says what is wrong.
        planted: a context manager that plants the rule.
        kind: the class of transition that the rule concerns; None if it concerns more than the state machine.
    """

    name: str
    planted: Callable[[], AbstractContextManager[Any]]
    kind: type[Move] | None = Move


def _in_table(changes: dict[Any, KeyState | None]) -> Callable[[], AbstractContextManager[Any]]:
    wrong = {pair: to for pair, to in {**state_machine._TO, **changes}.items() if to is not None}
    return lambda: patch.object(state_machine, "_TO", wrong)


def _modelled() -> list[type[Move]]:
    kinds = {row.move: None for row in state_machine.TRANSITIONS}
    return [kind for kind in kinds if kind.__name__ not in NOT_MODELLED]


def of_table(asked: frozenset[tuple[type, object]]) -> Iterator[Mutant]:
    """Yield the table with each row removed, with each row's target replaced, and with each missing row
    added.

    Args:
        asked: the pairs of transition and state that occur in the exploration; other pairs are skipped.
    """
    for kind in _modelled():
        if kind is Claim:  # `Claim` does not use the table; `of_list` covers it
            continue
        usual = next(row.to for row in state_machine.TRANSITIONS if row.move is kind)
        for state in KeyState:
            if (kind, state) not in asked:
                continue
            to, name = state_machine._TO.get((kind, state)), f"{kind.__name__}-{state.value}"
            if to is None:
                for wrong in dict.fromkeys((state, usual)):
                    yield Mutant(f"{name}-allowed-to-{wrong.value}", _in_table({(kind, state): wrong}), kind)
                continue
            yield Mutant(f"{name}-removed", _in_table({(kind, state): None}), kind)
            for wrong in KeyState:
                if wrong is not to:
                    yield Mutant(f"{name}-to-{wrong.value}", _in_table({(kind, state): wrong}), kind)


def _patched(kind: type, attribute: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(kind, attribute, value)


def of_classes() -> Iterator[Mutant]:
    """Yield each class with its guard replaced by that of a base class, and each class without its effect."""
    made = [kind for kind in vars(transitions).values() if isinstance(kind, type) and issubclass(kind, Move)]
    assert made
    for kind in made:
        if kind is Move or kind.__name__ in NOT_MODELLED:
            continue
        if "denial" in vars(kind):
            for above in kind.__mro__[1:]:
                if "denial" in vars(above):
                    name = f"{kind.__name__}-guarded-as-{above.__name__}"
                    yield Mutant(name, _patched(kind, "denial", vars(above)["denial"]), kind)
        if "apply" in vars(kind):
            yield Mutant(f"{kind.__name__}-without-effect", _patched(kind, "apply", Move.apply), kind)


def of_list() -> Iterator[Mutant]:
    """Yield the faults of `tests.mutation` that an exploration must detect."""
    for fault in FAULTS:
        if INTERLEAVINGS in fault.worlds:
            yield Mutant(fault.name, partial(planted, fault.name), None)
