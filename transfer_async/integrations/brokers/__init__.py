"""How each broker delivers, acknowledges, delays and parks; each module needs an extra of its own."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

from transfer_async.integrations.brokers.line import Line, WorkerSettings

__all__ = ["LINES", "Line", "WorkerSettings", "line_at"]

LINES: dict[str, tuple[str, str, str]] = {
    "nats": ("transfer_async.integrations.brokers.nats", "NatsLine", "nats"),
    "tls": ("transfer_async.integrations.brokers.nats", "NatsLine", "nats"),
    "redis": ("transfer_async.integrations.brokers.redis", "RedisLine", "redis"),
    "rediss": ("transfer_async.integrations.brokers.redis", "RedisLine", "redis"),
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
    scheme = urlsplit(address.partition(",")[0]).scheme
    if scheme not in LINES:
        known = ", ".join(f"{one}://" for one in LINES)
        raise ValueError(f"broker: must be an address that begins with one of {known}")
    module, name, extra = LINES[scheme]
    try:
        line: type[Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        needed = f'pip install "transfer_async[{extra}]"'
        raise ValueError(f"broker: {scheme}:// needs an extra: {needed} ({error})") from error
    made: Line = line.at(address, settings or WorkerSettings(), **options)
    return made
