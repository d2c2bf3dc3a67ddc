"""How each broker delivers, acknowledges, delays and parks; each module needs an extra of its own."""

from __future__ import annotations

import contextlib
import errno
import importlib
import re
import socket
from collections.abc import Iterator
from typing import Any

from transfer_async.integrations.faststream.line import Line, WorkerSettings

__all__ = ["LINES", "Line", "WorkerSettings", "line_at", "reason"]

LINES: dict[str, tuple[str, str, str]] = {
    "nats": ("transfer_async.integrations.faststream.nats", "NatsLine", "nats"),
    "tls": ("transfer_async.integrations.faststream.nats", "NatsLine", "nats"),
    "redis": ("transfer_async.integrations.faststream.redis", "RedisLine", "redis"),
    "rediss": ("transfer_async.integrations.faststream.redis", "RedisLine", "redis"),
}
"""By an address's scheme: the module and the class of its line, and the extra that it needs."""


def line_at(address: str, settings: WorkerSettings | None = None, **options: Any) -> Line:
    """The line of the broker at ``address``: ``nats://``, ``tls://``, ``redis://`` or ``rediss://``.

    Args:
        address: several servers of one NATS cluster are separated by commas.
        settings: see `WorkerSettings`.
        options: whatever else FastStream's broker takes.

    Raises:
        ValueError: it names no broker that is known, or what it needs is not installed.
    """
    scheme = address.partition(":")[0].lower()
    if scheme not in LINES:
        known = ", ".join(f"{one}://" for one in LINES)
        raise ValueError(f"broker: must be an address that begins with one of {known}")
    module, name, extra = LINES[scheme]
    try:
        line: type[Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        needed = f'pip install "transfer_async[{extra}]"'
        raise ValueError(f"broker: {scheme}:// needs an extra: {needed}") from error
    made: Line | None = None
    with contextlib.suppress(ValueError):  # its text may have a part of the password
        made = line.at(address, settings or WorkerSettings(), **options)
    if made is None:
        raise ValueError(f"broker: {scheme}:// is followed by what is no address")
    return made


def reason(error: BaseException) -> str:
    """Why a broker cannot be used, in a few words; of an ``error`` without any, its class alone."""
    if isinstance(error, TimeoutError):
        own = type(error) is TimeoutError and str(error)  # not a driver's, which says nothing more
        return own or "no answer in time"
    for one in _chain(error):
        if isinstance(one, socket.gaierror):
            return "its name is not known"
        if isinstance(one, OSError) and _is_refused(one):
            return "connection refused"
    # By name, and told from a cluster that has no leader yet, whose answer has a code.
    if type(error).__name__ in _NO_JETSTREAM and getattr(error, "err_code", None) in _NOT_ENABLED:
        return "has no JetStream (nats-server -js)"
    return type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, and what it came from: a driver's own has the address in its text, and no number."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_refused(error: OSError) -> bool:
    if isinstance(error, ConnectionRefusedError):
        return True
    # Of a name with several addresses asyncio has one error, with the numbers of all in its text.
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return bool(numbers) and set(numbers) == {str(errno.ECONNREFUSED)}


_NO_JETSTREAM = frozenset({"ServiceUnavailableError", "NoRespondersError"})
_NOT_ENABLED = frozenset({None, 10039, 10076})  # nobody answers; it is not enabled for the account, or at all
