"""The trace's context in a message's headers: taken from the command, and put into the outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, propagate


@contextmanager
def context_from(headers: Mapping[str, str]) -> Iterator[None]:
    """Within it, what is traced is a part of the trace that a message's headers name.

    Headers that name none, or are broken, change nothing.

    Args:
        headers: the message's; their names may be written in any case.
    """
    # Proxies and brokers write the names as they like, and propagators look for theirs in lower case.
    carrier = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
    # What is current is handed over, or else headers without a trace would end the one there is.
    token = context.attach(propagate.extract(carrier, context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def headers_of_context() -> dict[str, str]:
    """The headers that carry the current context on: for a message that belongs to the same trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
