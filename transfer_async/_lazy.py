"""Import what a package promises once it is asked for.

Python imports a package before any module inside it. Without this, ``transfer-async --version`` and each run
of pytest where the plug-in is installed would wait for aiohttp and cattrs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def public_name(package: str, name: str) -> Any:
    """Return ``name`` of the package's ``_public`` module; keep all its names in the package.

    Raises:
        AttributeError: the package has no such public name.
    """
    if name.startswith("_") and name != "__all__":  # what Python itself looks for, such as __path__
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    there = vars(sys.modules[package])
    public = importlib.import_module(f"{package}._public")
    there.update({item: getattr(public, item) for item in ("__all__", *public.__all__)})
    if name not in there:  # it may also be a module that has just been imported
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return there[name]
