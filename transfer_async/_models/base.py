"""What every model is: read from the service's JSON and written as it; some of it read late."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from attrs import fields


class Codec:
    """How models are read and written: registered by `transfer_async._converters`, which knows them."""

    from_json: Callable[[type[Any], bytes | str], Any]
    to_json: Callable[[Any], bytes]


CODEC = Codec()

FLAG: Mapping[str, Any] = {"is_flag": True}
"""The metadata of a field that the service writes as 0 or 1."""


def called(name: str) -> Mapping[str, Any]:
    """The metadata of a field that has another name on the wire."""
    return {"name": name}


class Wire:
    """What every model can do: be read from the service's JSON, and written as it."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read one object from JSON, exactly.

        Raises:
            UnreadableOrder: for an ``Order`` that cannot be read as one; names the JSON path.
            InvalidOrder: for a request that is not valid.
            ServiceFailed: for anything else that cannot be read.
        """
        read: Self = CODEC.from_json(cls, data)
        return read

    def to_json(self) -> bytes:
        """Write the object as the service's JSON, digits kept."""
        return CODEC.to_json(self)


class ByValue:
    """Equal to, hashed as and shown as what the fields hold, in the way that attrs itself does it.

    It would compile the three anew for each of thirty classes, which is half of what they cost on import;
    a class says ``eq=False, repr=False``, for the three are here.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        cls: Any = type(self)
        return all(getattr(self, name) == getattr(other, name) for name in _compared(cls))

    def __hash__(self) -> int:
        cls: Any = type(self)
        return hash((cls, *(getattr(self, name) for name in _hashed(cls))))

    def __repr__(self) -> str:
        cls: Any = type(self)
        shown = (f"{name}={getattr(self, name)!r}" for name in _shown(cls))
        return f"{cls.__qualname__}({', '.join(shown)})"


@functools.cache
def _compared(cls: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls) if one.eq)


@functools.cache
def _hashed(cls: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls) if (one.eq if one.hash is None else one.hash))


@functools.cache
def _shown(cls: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls) if one.repr)


class ReadLate:
    """A model whose loose fields are read when one of them is first looked at.

    ``_late`` fills every slot that is still empty, and never raises; it goes when it has run.
    """

    __slots__ = ("_late",)
    _late: Callable[[Any], None]

    # Not for type checkers, or every misspelt field would pass them.
    if not TYPE_CHECKING:  # pragma: no branch - it runs

        def __getattr__(self, name: str) -> Any:
            if name == "_late" or name not in _field_names(type(self)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._late(self)
            return object.__getattribute__(self, name)


@functools.cache
def _field_names(cls: Any) -> frozenset[str]:
    return frozenset(attribute.name for attribute in fields(cls))
