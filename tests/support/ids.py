"""Ids for parametrized tests that are the same in every process, as pytest-xdist requires."""

import re


def stable_repr(value: object) -> str:
    """Return the repr of ``value`` without memory addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
