"""The package's one logger."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, final
from urllib.parse import urlsplit

import msgspec
from attrs import Attribute

from transfer_async._support.clock import Duration, duration

log: logging.Logger = logging.getLogger("transfer_async")


# --- state -------------------------------------------------------------------------------------------
# What is known of something that is under way, or once and for all.


class _ShowsNothing:
    """What it holds may be secret: neither its text nor rich's drawing of it has any of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return object.__repr__(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Nothing, for whoever draws it with rich: a struct's own would show all."""
        return []


class MutableStruct(_ShowsNothing, msgspec.Struct, eq=False):
    """What its owner writes down while something is under way: made in a third of the time of an attrs class.

    Each is equal to itself alone, and shows nothing of what it holds, which may be secret.
    """


class FrozenStruct(_ShowsNothing, msgspec.Struct, eq=False, frozen=True):
    """What is written down once: a client's parts, a row of a table.

    As `MutableStruct` no class of attrs: each of those costs an import a fifth of a millisecond.
    """


# --- addresses ---------------------------------------------------------------------------------------
# Addresses as they may be told: without a name, a password or other secrets.


_ENCODED = r"(?:[^@/?#%\s\[\]\\]|%[0-9A-Fa-f]{2})*"
_SERVER = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]*)(?::[0-9]{1,5})?"
_DATABASE = re.compile(
    rf"postgres(?:ql)?://(?:{_ENCODED}@)?{_SERVER}(?:,{_SERVER})*(?:/{_ENCODED})?"
    r"(?:\?(?!(?:.*&)?port=(?![0-9,]+(?:&|$)))(?:[\w.-]+=[^&@#\s]*(?:&|$))*)?"
)


def checked_database(dsn: str) -> str:
    """``dsn``, if it is the address of a PostgreSQL database of which every part is where it seems to be.

    A driver would take the rest of a password with a ``/`` or an ``@`` for a port or a host, show it in
    its errors, and ask the name service for it.

    Raises:
        ValueError: it is not; the message does not show it.
    """
    if not isinstance(dsn, str) or not dsn.startswith(("postgresql://", "postgres://")):
        raise ValueError("dsn: must begin with postgresql://")
    if not _DATABASE.fullmatch(dsn):
        raise ValueError(
            "dsn: must be postgresql://user:password@host:port/database, "
            "with the password's special characters percent-encoded ('/' is %2F, '@' is %40)"
        )
    return dsn


def public(address: str) -> str:
    """``address``, or several with commas between them, without a name, a password or other secrets."""
    if not _SCHEME.match(address.strip()):
        return "..." if _LIKE_A_LOGIN.search(address) else address  # a file
    first, *others = (item.strip() for item in address.split(","))
    # Of several, only the first need say how it is spoken to.
    return ",".join(
        [
            _public(first),
            *(
                _public(other if _SCHEME.match(other) else f"//{other}").removeprefix("//")
                for other in others
            ),
        ]
    )


def _public(address: str) -> str:
    scheme = address.partition("//")[0]
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{scheme}//..."
    where = parts.netloc.rpartition("@")[2]
    shown = f"{where}{parts.path}"
    if "@" in f"{shown}{parts.query}{parts.fragment}" or not _SERVER_AND_PORT.fullmatch(where):
        shown = "..."  # a password with characters that should have been escaped
    return f"{scheme}//{shown}"


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LIKE_A_LOGIN = re.compile(r":.*@|\bpass\w*\s*=|\bpwd\s*=", re.DOTALL | re.IGNORECASE)
_SERVER_AND_PORT = re.compile(r"([^:\[\]]*|\[.*\])(:[0-9]*)?")


# --- callables ---------------------------------------------------------------------------------------
# What a bank hands over to be called: whether it is async is checked when it is given, not when money
# waits.
#
# It may raise anything, so `tried` returns what it raised as a value: no context manager, timer or future
# of another package ever handles an error that refuses attributes, ends generators or is chained in a
# circle.


T = TypeVar("T")

ENDS_THE_PROGRAM = (KeyboardInterrupt, SystemExit)
"""What no call turns into an error of its own: the program ends by it."""


@final
class Raised:
    """What a call of a bank's own code raised, in place of a result.

    Args:
        error: as it was raised, of any class: handle it with the functions of `causes` alone.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: Final = error


async def tried(function: Callable[..., Awaitable[T]], *args: Any) -> T | Raised:
    """Call a bank's ``function``, and wait for what it returns.

    Returns:
        The result, or what was raised, by the call itself or later.

    Raises:
        BaseException: see `passes`.
    """
    try:
        return await function(*args)
    except BaseException as error:
        if passes(error):
            raise
        return Raised(error)


def passes(error: BaseException) -> bool:
    """Whether ``error`` is not the bank's: the program or the coroutine ends, or the task was cancelled.

    A cancellation that nobody asked the running task for is the bank's.
    """
    if not issubclass(type(error), asyncio.CancelledError):
        return is_end(error)
    task = _running_task()
    return task is None or task.cancelling() > 0


def is_end(error: BaseException) -> bool:
    """Whether the program ends by ``error``, or the coroutine, which then runs in no task."""
    kind = type(error)
    return issubclass(kind, ENDS_THE_PROGRAM) or (issubclass(kind, GeneratorExit) and _running_task() is None)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Read the exception of a task that has ended, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


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


# --- validators --------------------------------------------------------------------------------------
# What a setting must be: each rule once, for an argument and for a field of an attrs class alike.
#
# Every refusal is a `ValueError` that begins with the name of what was set, so that whoever set it finds
# it.


Validator = Callable[[Any, "Attribute[Any]", Any], None]
"""As attrs calls one: with the object, the field, and the value."""

POSITIVE = "must be more than 0 seconds, and finite"


def is_positive(seconds: object) -> bool:
    """Whether so many seconds can be waited for, and pass: more than 0, and finite."""
    return isinstance(seconds, float) and 0 < seconds < math.inf


def positive_seconds(name: str, value: Duration) -> float:
    """``value`` in seconds, as the argument ``name``.

    Raises:
        ValueError: it is no duration, or not more than 0 seconds and finite.
    """
    found = duration(name, value)
    if not is_positive(found):
        raise ValueError(f"{name}: {POSITIVE}")
    return found


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Check the number of things that is the argument ``name``.

    Raises:
        ValueError: it is not a whole number, ``least`` or more.
    """
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: must be a whole number, {least} or more")


# --- for fields ---------------------------------------------------------------------------------


def positive(rule: str = POSITIVE) -> Validator:
    """The field is seconds, more than 0 and finite; otherwise ``rule`` is told."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not is_positive(value):
            raise ValueError(f"{attribute.name}: {rule}")

    return check


def at_least(low: float) -> Validator:
    """The field is seconds, ``low`` or more, and finite."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not (isinstance(value, float) and low <= value < math.inf):
            raise ValueError(f"{attribute.name}: must be a finite number of seconds, {low:g} or more")

    return check


def a_duration(_: object, attribute: Attribute[Any], value: Duration) -> None:
    """The field is seconds, however many."""
    duration(attribute.name, value)


def count(least: int = 1) -> Validator:
    """The field is a whole number, ``least`` or more."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        check_count(attribute.name, value, least=least)

    return check


def instance_of(kind: type) -> Validator:
    """The field is a ``kind``."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise ValueError(f"{attribute.name}: must be a {kind.__name__}")  # noqa: TRY004 - as every wrong setting

    return check


# --- version -----------------------------------------------------------------------------------------
# Which version this is: said here alone, and read from here when the package is built.


VERSION = "0.1.0"
