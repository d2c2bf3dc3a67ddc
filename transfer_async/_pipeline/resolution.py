"""What ``resolve`` may say of a doubt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from transfer_async._models.errors import OutcomeUnknown
from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order


class _NoOrder:
    """The type of `NO_ORDER`."""

    def __repr__(self) -> str:
        return "NO_ORDER"

    def __reduce__(self) -> str:
        return "NO_ORDER"  # there is one


NO_ORDER: Final = _NoOrder()
"""What ``resolve`` returns when it is certain that no order exists *and none can appear any more*."""

Resolution = Order | str | _NoOrder | None
"""What ``resolve`` may return: the order, its id, `NO_ORDER`, or None where it does not know."""

Resolver = Callable[[OrderIntent, OutcomeUnknown], Awaitable[Resolution]]
"""The bank's own means to learn what became of an intent in doubt."""
