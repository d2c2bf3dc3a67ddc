"""The bank's own hooks, found by name: ``module:factory``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from transfer_async._cli.running import shown
from transfer_async.context import Resolve
from transfer_async.preflight import Hook


@frozen(kw_only=True)
class BankSide:
    """What a bank brings to a client: its hooks, and its means to end a doubt."""

    hooks: Sequence[Hook]
    resolve: Resolve | None = None


def factory_named(spec: str) -> Callable[[], object]:
    """The factory that ``module:factory`` names; the module is looked for beside the caller's files too.

    Raises:
        ValueError: there is none, or its module cannot be imported; in one line.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise ValueError("--hooks: must be module:factory, as in our_bank.hooks:make")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"--hooks: cannot import {shown(module_name)} ({_told(error)})") from error
    factory: Callable[[], object] | None = getattr(module, name, None)
    if factory is None or not callable(factory):
        raise ValueError(f"--hooks: there is no function {shown(name)} in {shown(module_name)}")
    return factory


async def made_by(factory: Callable[[], object]) -> BankSide:
    """What ``factory`` makes, awaited if it is async.

    It returns a sequence of hooks; or a mapping, or an object, with ``hooks`` and perhaps ``resolve``.

    Raises:
        ValueError: it failed, or made none of these; in one line.
    """
    try:
        made = factory()
        if inspect.isawaitable(made):
            made = await made
    except Exception as error:
        raise ValueError(f"--hooks: the factory failed ({_told(error)})") from error
    hooks, resolve = _parts(made)
    if isinstance(hooks, Sequence) and not isinstance(hooks, str | bytes):
        return BankSide(hooks=hooks, resolve=resolve)
    raise ValueError("--hooks: the factory must return a sequence of hooks, or hooks and resolve by name")


def _parts(made: Any) -> tuple[Any, Any]:
    if isinstance(made, Mapping):
        return made.get("hooks"), made.get("resolve")
    if hasattr(made, "hooks"):
        return made.hooks, getattr(made, "resolve", None)
    return made, None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(str(error))}"
