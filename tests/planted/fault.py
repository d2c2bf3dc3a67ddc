"""What a planted fault is: so many lines of one module, and what stands there instead."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

import transfer_async  # noqa: F401 - before threads look for its modules: two first imports may block each other
from tests.planted.places import PLACES


class SnippetNotFound(Exception):
    """The lines of a fault do not stand in its module exactly once: the fault must be looked at again."""


@frozen
class Fault:
    """One fault.

    Args:
        name: unique among all faults.
        place: of `PLACES`.
        before: what stands in the module exactly once; parts of lines will do.
        after: what stands there instead.
        loses: what a bank would lose by it.
    """

    name: str
    place: str
    before: str
    after: str
    loses: str

    @property
    def module(self) -> str:
        """The module's dotted name."""
        return PLACES[self.place].module

    @property
    def asked(self) -> tuple[str, ...]:
        """The tests of its module."""
        return PLACES[self.place].asked

    def planted(self, source: str) -> str:
        """The module's ``source`` with the fault in it.

        Raises:
            SnippetNotFound: ``before`` is not there exactly once.
        """
        count = source.count(self.before)
        if count != 1:
            raise SnippetNotFound(f"{self.name}: found {count} times in {self.module}:\n{self.before}")
        return source.replace(self.before, self.after)


def path_of(module: str) -> Path:
    """Where a module's file is, from the top of the checkout."""
    spec = find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.origin is not None, f"{module} has no file"
    depth = module.count(".") + 1
    return Path(*Path(spec.origin).parts[-depth:])
