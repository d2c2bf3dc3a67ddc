"""What the command ``verify-hooks`` runs and prints.

It is a module of its own because it imports `transfer_async.testing`, which no other command needs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from transfer_async._cli.output import in_one_line, shown_lines
from transfer_async.testing import HookReport, verify_hooks


async def verified(
    factory: Callable[[], object], *, seed: int, sequences: int, late: float, patience: float
) -> HookReport:
    """The report of all trials.

    Raises:
        ValueError: the factory failed, or does not make what is needed; in one line.
    """

    @functools.wraps(factory)  # a worker in a process of its own imports it by its name
    async def make() -> object:
        try:
            made = factory()
            return await made if inspect.isawaitable(made) else made
        except Exception as error:
            raise ValueError(f"the factory failed ({in_one_line(error)})") from error

    return await verify_hooks(make, seed=seed, sequences=sequences, late=late, patience=patience)


def as_text(report: HookReport) -> str:
    """The report, fit for a terminal: a ledger's own words may be in it."""
    return shown_lines(str(report))
