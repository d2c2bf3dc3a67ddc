"""The ids of parametrized tests: the same in every process, or they could not share the tests."""

import re


def told(value: object) -> str:
    """What a value is, without the place in memory that a bare object tells."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
