"""What a bank hands over to be called: whether it is async is told when it is given, not when money waits."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TypeVar

T = TypeVar("T")


def is_async(given: object) -> bool:
    """Whether a call of ``given`` can be waited for, as far as it shows: also behind decorators."""
    if isinstance(given, functools.partial):
        return is_async(given.func)
    called = getattr(type(given), "__call__", None)  # noqa: B004 - an object's own, not whether it has one
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(called) or _is_marked(given):
        return True
    decorated = getattr(given, "__wrapped__", None)
    return decorated is not None and is_async(decorated)


def _is_marked(given: object) -> bool:
    """Whether it says so itself, as what Cython compiles and `unittest.mock.create_autospec` makes do."""
    mark = getattr(
        asyncio.coroutines, "_is_coroutine", None
    )  # `asyncio.iscoroutinefunction` is on its way out
    return mark is not None and getattr(given, "_is_coroutine", None) is mark


def refuse_class(given: object, *, name: str) -> None:
    """Refuse a class where one of its instances is meant.

    Raises:
        ValueError: it is one.
    """
    if isinstance(given, type):
        raise ValueError(f"{name}: is the class {given.__name__}: make one of it first")  # noqa: TRY004 - as every wrong setting


def checked_async(given: T, signature: str, *, name: str, kind: str) -> T:
    """``given``, if it is async.

    Args:
        given: what is to be called.
        signature: of such a function, as ``place(intent)``.
        name: what it is given as.
        kind: what it must be, in words.

    Raises:
        ValueError: it is not; says what to write instead.
    """
    refuse_class(given, name=name)
    if not callable(given):
        raise ValueError(f"{name}: must be {kind}")  # noqa: TRY004 - as every wrong setting
    if not is_async(given):
        raise ValueError(
            f"{name}: must be async, for it is waited for: write 'async def {signature}', "
            "with 'await asyncio.to_thread(...)' around whatever blocks"
        )
    return given
