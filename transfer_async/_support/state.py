"""What is known of something that is under way."""

from __future__ import annotations

import msgspec


class State(msgspec.Struct, eq=False):
    """What its owner writes down while something is under way: made in a third of the time of an attrs class.

    Each is equal to itself alone, and shows nothing of what it holds, which may be secret.
    """

    __repr__ = object.__repr__
