"""What is known of something that is under way, or once and for all."""

from __future__ import annotations

from typing import Any

import msgspec


class _ShowsNothing:
    """What it holds may be secret: neither its text nor rich's drawing of it has any of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return object.__repr__(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Nothing, for whoever draws it with rich: a struct's own would show all."""
        return []


class State(_ShowsNothing, msgspec.Struct, eq=False):
    """What its owner writes down while something is under way: made in a third of the time of an attrs class.

    Each is equal to itself alone, and shows nothing of what it holds, which may be secret.
    """


class Fixed(_ShowsNothing, msgspec.Struct, eq=False, frozen=True):
    """What is written down once: a client's parts, a row of a table.

    As `State` no class of attrs: each of those costs an import a fifth of a millisecond.
    """
