"""Callables that a bank passes: awaitable ones are accepted, others are refused with a correction."""

from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest

from tests.support.cases import each
from transfer_async import (
    BeneficiaryVerification,
    FundsHold,
    MemoryJournal,
    Operators,
    SQLiteJournal,
    TransferClient,
    UserLookup,
)

BASE = "https://bank.example"


async def nothing(*_: object) -> Any:
    """Return an awaitable that does nothing."""


def sync(*_: object) -> Any:
    """Do nothing, and return nothing that can be awaited."""


class Screening:
    """A hook with methods that each test sets."""

    name = "screening"

    async def before(self, intent: object) -> None: ...

    async def undo(self, intent: object, receipt: object) -> None: ...


def screening(**parts: Any) -> Any:
    hook: Any = Screening()
    hook.__dict__.update(parts)
    return hook


@each(
    ("make", "message"),
    [
        (lambda: {"token": sync}, r"token: must be async, .* write 'async def token\(\)'"),
        (lambda: {"token": Screening}, "token: is the class Screening: pass an instance of it"),
        (lambda: {"resolve": sync}, r"resolve: must be async, .* write 'async def resolve\(intent, error\)'"),
        (lambda: {"hooks": [sync]}, r"hooks: sync: must be async, .* write 'async def sync\(intent\)'"),
        (lambda: {"hooks": [lambda _: None]}, r"hooks: <lambda>: must be async, .* def check\(intent\)'"),
        (lambda: {"hooks": [FundsHold]}, "hooks: is the class FundsHold: pass an instance of it"),
        (lambda: {"hooks": [screening(before=sync)]}, r"hooks: screening\.before: must be async"),
        (lambda: {"hooks": [screening(undo=sync)]}, r"hooks: screening\.undo: must be async"),
        (
            lambda: {"hooks": [screening(places_hold=True, nothing_to_undo=True)]},
            "hooks: screening: a hold hook needs an undo: do not set nothing_to_undo",
        ),
        (
            lambda: {"hooks": [FundsHold(sync, nothing)]},
            r"place: must be async, .*'async def place\(intent\)'",
        ),
        (lambda: {"hooks": [FundsHold(nothing, sync)]}, "release: must be async"),
        (lambda: {"hooks": [BeneficiaryVerification(sync)]}, "lookup: must be async"),
        (lambda: {"hooks": [BeneficiaryVerification(UserLookup)]}, "lookup: is the class UserLookup"),
        (lambda: {"hooks": [BeneficiaryVerification(nothing, sync)]}, "accept_close: must be async"),
        (lambda: {"journal": Path("x.db")}, r"journal: .* SQLiteJournal\(path\)"),
        (lambda: {"journal": SQLiteJournal}, "journal: is the class SQLiteJournal: pass an instance of it"),
        (lambda: {"journal": "postgresql://u:hunter2@h"}, r"journal: .* PostgresJournal\(dsn\)"),
        (lambda: {"observers": [partial(nothing)]}, "observers: must be plain functions"),
        (lambda: {"observers": [AsyncMock()]}, "observers: must be plain functions"),
        (lambda: {"observers": [Screening]}, "observers: must be a sequence of callables, not a class"),
    ],
)
async def test_a_callable_that_is_not_awaitable_is_refused_with_a_correction(make: Any, message: str):
    """Without this, a blocking release runs again at every recovery and never counts as done."""
    with pytest.raises(ValueError, match=message) as refused:
        TransferClient(BASE, **{"token": "abc"} | make())

    assert "hunter2" not in str(refused.value)


class Called:
    """An object that is called like an async function."""

    async def __call__(self, *_: object) -> None: ...


@wraps(nothing)
def logged(*args: Any) -> Any:
    """Wrap a function so that it is not async, but returns an awaitable."""
    return nothing(*args)


@each(
    "given",
    [
        *(nothing, Called(), Called().__call__, partial(nothing), partial(Called())),
        *(AsyncMock(spec=nothing), create_autospec(nothing), logged, partial(logged)),
    ],
)
async def test_every_awaitable_callable_is_accepted(given: Any):
    verification = BeneficiaryVerification(given, given)
    TransferClient(BASE, given, hooks=[verification, FundsHold(given, given)], resolve=given)
    TransferClient(BASE, given, hooks=[screening(before=given, undo=given)])


@each(
    ("journal", "settings", "message"),
    [
        ("x.db", {}, r"journal: .* SQLiteJournal\(path\)"),
        (MemoryJournal(), {"observers": [nothing]}, "observers: must be plain functions"),
    ],
)
def test_operators_check_callables_in_the_same_way(journal: Any, settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Operators(journal, "live", **settings)
