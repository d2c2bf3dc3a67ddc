"""Import the public names of a package when one of them is first used.

Python runs a package's ``__init__`` before it imports any module of the package. Without lazy imports,
``transfer-async --version`` and every run of pytest with the plug-in would import aiohttp and cattrs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def public_name(package: str, name: str) -> Any:
    """Return a public name of a package.

    The first call copies all public names of the package from its ``_public`` module.

    Raises:
        AttributeError: the package has no such public name.
    """
    if name.startswith("_") and name != "__all__":  # Python itself looks up names such as __path__.
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    names = vars(sys.modules[package])
    public = importlib.import_module(f"{package}._public")
    names.update({item: getattr(public, item) for item in ("__all__", *public.__all__)})
    if name not in names:  # The import may also have added a submodule with this name.
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return names[name]
