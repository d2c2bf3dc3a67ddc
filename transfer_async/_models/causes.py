"""What went wrong beneath, as it may be chained to our own errors: its kind, and only what is safe to tell.

An error of aiohttp's carries its request, with the token in a header, or the key of its connection, with
a proxy's password; one of asyncpg's has the values of a row in its detail. Whoever prints a cause, its
``vars`` or its ``args``, sends it to an error tracker or pickles it would pass them on. So such an error
is replaced by one of the very same kind that never saw them.

An error that a bank's own hook or callable raises is its own, and stays as it is; but what it has of
aiohttp's and asyncpg's in its chain is replaced, too.
"""

from __future__ import annotations

import functools
import sqlite3
from typing import Any, cast

from transfer_async._models.errors import TransferError

_CARRIERS = frozenset({"aiohttp", "asyncpg"})

_FACTS = ("status", "errno", "strerror", "sqlstate")

_OF_THE_SERVER = frozenset({"08", "0A", "25", "3D", "3F", "42", "53", "54", "55", "57", "58"})
"""Classes of PostgreSQL's states whose messages tell of the server and its tables: not of rows or users."""


class _Bare:
    """The part of a replaced error that is ours: its kind, a text, and facts."""

    kind: type[BaseException]
    told: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return self.told

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.told!r})" if self.told else f"{type(self).__name__}()"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.kind, self.told, self.facts)


def bare(error: BaseException) -> BaseException:
    """``error`` if it may be chained as it is, or else one of its kind; and so what it is chained to."""
    return _bare(error, {})


def said(error: BaseException) -> str:
    """The first line of what ``error`` says, if it is one whose words are known to be safe; else nothing.

    Of a ``ValueError``, say, they may be the value: of an address that is none, a part of its password.
    """
    is_known = isinstance(error, (_Bare, OSError, sqlite3.Error, TransferError))
    return str(error).partition("\n")[0] if is_known else ""


def _bare(error: BaseException, seen: dict[int, BaseException]) -> BaseException:
    if id(error) in seen:
        return seen[id(error)]
    made = seen[id(error)] = _replaced(error) if _carries(error) else _kept(error)
    is_suppressed = error.__suppress_context__
    cause, context = error.__cause__, None if is_suppressed else error.__context__
    made.__cause__ = None if cause is None else _bare(cause, seen)
    made.__context__ = None if context is None else _bare(context, seen)
    made.__suppress_context__ = is_suppressed
    return made


def _carries(error: BaseException) -> bool:
    if type(error).__module__.startswith("transfer_async."):
        return False
    return any(kind.__module__.partition(".")[0] in _CARRIERS for kind in type(error).__mro__)


def _kept(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return error.derive([bare(one) for one in error.exceptions])
    return error


def _replaced(error: BaseException) -> BaseException:
    facts = {name: getattr(error, name, None) for name in _FACTS}
    known = {name: value for name, value in facts.items() if type(value) in (int, str)}
    return _made(type(error), _told(error, known), known)


def _told(error: BaseException, facts: dict[str, Any]) -> str:
    if {"errno", "strerror"} <= facts.keys():
        return f"[Errno {facts['errno']}] {facts['strerror']}"
    if "sqlstate" in facts:
        of_the_server = facts["sqlstate"][:2] in _OF_THE_SERVER
        said = str(error.args[0]).partition("\n")[0] if error.args and of_the_server else ""
        return f"{said} (state {facts['sqlstate']})".strip()
    return f"status {facts['status']}" if "status" in facts else ""


def _made(kind: type[BaseException], told: str, facts: dict[str, Any]) -> BaseException:
    own = _class_of(cast("Any", kind))
    made = own.__new__(own)
    made.args = (told,) if told else ()
    made.told, made.facts = told, facts
    for name, value in facts.items():
        setattr(made, name, value)
    return cast("BaseException", made)


@functools.cache
def _class_of(kind: Any) -> Any:
    return type(kind)(kind.__name__, (_Bare, kind), {"kind": kind, "__module__": __name__})
