"""Import the public names of a package when one of them is first used.

Python imports a package before any module inside it. Without this, ``transfer-async --version`` and every run
of pytest with the plug-in would have to import aiohttp and cattrs first.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def public_name(package: str, name: str) -> Any:
    """Return ``name`` from the package's ``_public`` module, and copy all its names into the package.

    Raises:
        AttributeError: the package has no such public name.
    """
    if name.startswith("_") and name != "__all__":  # Python itself looks for names such as __path__.
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    names = vars(sys.modules[package])
    public = importlib.import_module(f"{package}._public")
    names.update({item: getattr(public, item) for item in ("__all__", *public.__all__)})
    if name not in names:  # It may also be a module that was imported just now.
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return names[name]
