"""The bank's own hooks, found by name: ``module:factory``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from transfer_async._cli.console.output import in_one_line, shown
from transfer_async._pipeline.hooks import Hook, checked_hooks, is_hold
from transfer_async._pipeline.resolution import Resolver

SETTINGS = ("token", "retry", "timeouts", "observers", "ssl", "proxy", "max_connections", "rate")
"""What else of a client's settings a factory may return by name."""


@frozen(kw_only=True)
class BankSide:
    """What a bank brings to a client.

    Args:
        hooks: what runs before an order is sent.
        resolve: the bank's means to end a doubt.
        settings: those of `SETTINGS` that it chose, as `TransferClient` takes them.
    """

    hooks: Sequence[Hook]
    resolve: Resolver | None = None
    settings: Mapping[str, Any] = field(factory=dict, repr=False)

    @property
    def places_hold(self) -> bool:
        """Whether one of the hooks holds the funds.

        Raises:
            ValueError: one of them is no hook.
        """
        return any(map(is_hold, checked_hooks(self.hooks)))


def factory_named(spec: str, *, option: str = "--hooks") -> Callable[[], object]:
    """The factory that ``module:factory`` names; installed modules come before the caller's files.

    Args:
        spec: what was written.
        option: where; begins what an error says.

    Raises:
        ValueError: there is none, or its module cannot be imported; in one line.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"{option}: must be module:factory, as in our_bank.hooks:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: what lies about there must not stand for a library
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{option}: cannot import {shown(module_name)} ({in_one_line(error)})") from error
    factory: Callable[[], object] | None = getattr(module, name, None)
    if factory is None or not callable(factory):
        raise ValueError(f"{option}: there is no function {shown(name)} in {shown(module_name)}")
    return factory


async def made_by(factory: Callable[[], object] | None) -> BankSide:
    """What ``factory`` makes, awaited if it is async; without one, nothing.

    It returns a sequence of hooks; or a mapping, or an object, with ``hooks``, and perhaps ``resolve`` and
    any of `SETTINGS`.

    Raises:
        ValueError: it failed, or made none of these; in one line.
    """
    if factory is None:
        return BankSide(hooks=())
    try:
        made = factory()
        if inspect.isawaitable(made):
            made = await made
    except Exception as error:
        raise ValueError(f"--hooks: the factory failed ({in_one_line(error)})") from error
    parts = _parts(made)
    hooks, resolve = parts.pop("hooks", None), parts.pop("resolve", None)
    has_hooks = isinstance(hooks, Sequence) and not isinstance(hooks, str | bytes)
    if not has_hooks:
        raise ValueError("--hooks: the factory must return a sequence of hooks, or hooks and resolve by name")
    if unknown := parts.keys() - set(SETTINGS):
        raise ValueError(f"--hooks: the factory returned {shown(min(unknown))}, which is no setting of these")
    return BankSide(hooks=hooks, resolve=resolve, settings=parts)


def _parts(made: Any) -> dict[str, Any]:
    if isinstance(made, Mapping):
        return {str(name): value for name, value in made.items() if value is not None}
    if hasattr(made, "hooks"):
        found = {name: getattr(made, name, None) for name in ("hooks", "resolve", *SETTINGS)}
        return {name: value for name, value in found.items() if value is not None}
    return {"hooks": made}
