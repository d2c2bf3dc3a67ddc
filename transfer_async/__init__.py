"""An async client that creates cross-border transfer orders: at most one order per key.

Every call reports its outcome truthfully: created, refused, never sent, or unknown.
"""

import typing as _typing

from transfer_async._lazy import public_name as _public_name

if _typing.TYPE_CHECKING:
    from transfer_async._public import *
    from transfer_async._public import __all__ as __all__


def __getattr__(name: str) -> _typing.Any:
    return _public_name(__name__, name)


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
