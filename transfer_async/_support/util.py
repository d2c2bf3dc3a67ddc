"""Small helpers for the whole package: its logger, structs, addresses, callables and validators."""

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


# --- structs -----------------------------------------------------------------------------------------
# These are the base classes of internal objects. Creating a struct takes less time than creating an attrs
# object, and importing its class takes less time too.


class _ShowsNothing:
    """A base class whose ``repr`` shows no field, because fields may be secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return object.__repr__(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return no fields, because the ``rich`` library would otherwise show all fields of a struct."""
        return []


class MutableStruct(_ShowsNothing, msgspec.Struct, eq=False):
    """Base class of mutable objects. Creating an instance takes a third as long as creating an attrs object.

    An object is equal only to itself, and its ``repr`` shows no field.
    """


class FrozenStruct(_ShowsNothing, msgspec.Struct, eq=False, frozen=True):
    """Base class of immutable objects, such as the parts of a client or the rows of a table.

    `FrozenStruct` is not an attrs class, because each attrs class adds 0.2 ms to the import time.
    """


# --- addresses ---------------------------------------------------------------------------------------
# Addresses of databases and servers are checked, and shown without user name, password or other secrets.


_ENCODED = r"(?:[^@/?#%\s\[\]\\]|%[0-9A-Fa-f]{2})*"
_SERVER = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]*)(?::[0-9]{1,5})?"
_DATABASE = re.compile(
    rf"postgres(?:ql)?://(?:{_ENCODED}@)?{_SERVER}(?:,{_SERVER})*(?:/{_ENCODED})?"
    r"(?:\?(?!(?:.*&)?port=(?![0-9,]+(?:&|$)))(?:[\w.-]+=[^&@#\s]*(?:&|$))*)?"
)


def checked_database(dsn: str) -> str:
    """Return ``dsn`` if it is an unambiguous address of a PostgreSQL database.

    If a password contains an unencoded ``/`` or ``@``, a driver mistakes the rest of the password for a host
    or a port. The driver would then show the rest of the password in errors, and send it to a name server.

    Raises:
        ValueError: ``dsn`` is not an unambiguous PostgreSQL address; the message does not quote ``dsn``.
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
    """Return one or more comma-separated addresses without user names, passwords or other secrets."""
    if not _SCHEME.match(address.strip()):
        return "..." if _LIKE_A_LOGIN.search(address) else address  # The address is a file.
    first, *others = (item.strip() for item in address.split(","))
    # Of several addresses, only the first one needs a scheme.
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
        shown = "..."  # It may be part of a password that was not percent-encoded.
    return f"{scheme}//{shown}"


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LIKE_A_LOGIN = re.compile(r":.*@|\bpass\w*\s*=|\bpwd\s*=", re.DOTALL | re.IGNORECASE)
_SERVER_AND_PORT = re.compile(r"([^:\[\]]*|\[.*\])(:[0-9]*)?")


# --- callables ---------------------------------------------------------------------------------------
# A bank's callables are checked when a client is created, not when the first order needs them.
#
# They may raise anything, so `try_call` returns an error as a value. Otherwise a context manager, timer or
# future of another package would have to handle errors that refuse attributes, end generators or are chained
# in a circle.


T = TypeVar("T")

ENDS_THE_PROGRAM = (KeyboardInterrupt, SystemExit)
"""The errors that end the program; no call converts them to an error of this package."""


@final
class Raised:
    """The error that a bank's own code raised, returned in place of a result.

    Args:
        error: an error of any class; inspect it only with the functions in `transfer_async._models.errors`.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: Final = error


async def try_call(function: Callable[..., Awaitable[T]], *args: Any) -> T | Raised:
    """Call a bank's async ``function``.

    Returns:
        The function's result, or a `Raised` that contains its error.

    Raises:
        BaseException: an error for which `must_propagate` is true.
    """
    try:
        return await function(*args)
    except BaseException as error:
        if must_propagate(error):
            raise
        return Raised(error)


def must_propagate(error: BaseException) -> bool:
    """Return whether ``error`` must be raised again, because it does not come from the bank's code.

    An error that ends the program or closes the coroutine must be raised again, and so must a
    `CancelledError` if the running task is being cancelled. If the running task is not being cancelled, a
    `CancelledError` comes from the bank's code.
    """
    if not issubclass(type(error), asyncio.CancelledError):
        return is_end(error)
    task = _running_task()
    return task is None or task.cancelling() > 0


def is_end(error: BaseException) -> bool:
    """Return whether ``error`` ends the program, or closes a coroutine that no task runs."""
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
    """Return whether ``given``, or a function that it wraps, is declared as async."""
    if isinstance(given, functools.partial):
        return is_async(given.func)
    called = getattr(type(given), "__call__", None)  # noqa: B004 - its class is needed, not whether it is callable
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(called) or _is_marked(given):
        return True
    decorated = getattr(given, "__wrapped__", None)
    return decorated is not None and is_async(decorated)


def _is_marked(given: object) -> bool:
    """Return whether ``given`` has asyncio's marker for async functions, which Cython and `mock` set."""
    mark = getattr(asyncio.coroutines, "_is_coroutine", None)  # `asyncio.iscoroutinefunction` is deprecated.
    return mark is not None and getattr(given, "_is_coroutine", None) is mark


def refuse_class(given: object, *, name: str) -> None:
    """Refuse a class that was passed in place of an instance.

    Raises:
        ValueError: ``given`` is a class.
    """
    if isinstance(given, type):
        raise ValueError(f"{name}: is the class {given.__name__}: pass an instance of it")  # noqa: TRY004 - as every wrong setting


def checked_async(given: T, signature: str, *, name: str, kind: str) -> T:
    """Return ``given`` if it is an async callable.

    Args:
        given: a callable.
        signature: the signature that the callable must have, for example ``place(intent)``.
        name: the name of the argument.
        kind: a description of the required value, for the error.

    Raises:
        ValueError: ``given`` is not an async callable; the message shows what to write instead.
    """
    refuse_class(given, name=name)
    if not callable(given):
        raise ValueError(f"{name}: must be {kind}")  # noqa: TRY004 - as every wrong setting
    if not is_async(given):
        raise ValueError(
            f"{name}: must be async, because it is awaited: write 'async def {signature}', "
            "with 'await asyncio.to_thread(...)' around blocking code"
        )
    return given


# --- validators --------------------------------------------------------------------------------------
# The rules of settings, for arguments and for fields of attrs classes. Each raises a `ValueError` that begins
# with the name of the setting.


Validator = Callable[[Any, "Attribute[Any]", Any], None]
"""The type of an attrs validator, which is called with the object, the field and the value."""

POSITIVE = "must be more than 0 seconds, and finite"


def is_positive(seconds: object) -> bool:
    """Return whether ``seconds`` is a finite float greater than 0."""
    return isinstance(seconds, float) and 0 < seconds < math.inf


def positive_seconds(name: str, value: Duration) -> float:
    """Convert ``value``, which was passed as the argument ``name``, to seconds.

    Raises:
        ValueError: ``value`` is not a duration, is not finite, or is not greater than 0.
    """
    found = duration(name, value)
    if not is_positive(found):
        raise ValueError(f"{name}: {POSITIVE}")
    return found


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Check that the argument ``name`` is a whole number of at least ``least``.

    Raises:
        ValueError: ``value`` is not a whole number, or is less than ``least``.
    """
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: must be a whole number, {least} or more")


def positive(rule: str = POSITIVE) -> Validator:
    """Return a validator that requires a finite float greater than 0.

    The validator's error message contains ``rule``.
    """

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not is_positive(value):
            raise ValueError(f"{attribute.name}: {rule}")

    return check


def at_least(low: float) -> Validator:
    """Return a validator that requires a finite number of seconds, at least ``low``."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not (isinstance(value, float) and low <= value < math.inf):
            raise ValueError(f"{attribute.name}: must be a finite number of seconds, {low:g} or more")

    return check


def a_duration(_: object, attribute: Attribute[Any], value: Duration) -> None:
    """Check that a field is a duration."""
    duration(attribute.name, value)


def count(least: int = 1) -> Validator:
    """Return a validator that requires a whole number, at least ``least``."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        check_count(attribute.name, value, least=least)

    return check


def instance_of(kind: type) -> Validator:
    """Return a validator that requires an instance of ``kind``."""

    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if not isinstance(value, kind):
            raise ValueError(f"{attribute.name}: must be a {kind.__name__}")  # noqa: TRY004 - as every wrong setting

    return check


# --- version -----------------------------------------------------------------------------------------
# The build reads the version from here.


VERSION = "0.1.0"
