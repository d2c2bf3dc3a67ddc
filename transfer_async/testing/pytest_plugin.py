"""The pytest fixture `transfer_sandbox`, for whoever tests against the sandbox; it needs pytest-asyncio.

Where the package is installed, pytest finds the fixture by itself: the build puts this module beside
the package, as `transfer_async_pytest`, because whatever is inside the package brings the whole client
along, and a run that does not use the fixture should not pay for that. In a checkout that is not
installed a `conftest.py` says `pytest_plugins = ["transfer_async.testing.pytest_plugin"]`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from transfer_async.sandbox import Sandbox

_PLUGIN = "transfer_sandbox"
_NEEDED = "the fixture transfer_sandbox needs pytest-asyncio: pip install pytest-asyncio"


@pytest.fixture(scope="session")
def _sandbox_class() -> type[Sandbox]:
    # Here, and not in the fixture below: an import takes its time, and no loop runs yet.
    from transfer_async.sandbox import Sandbox

    return Sandbox


async def transfer_sandbox(_sandbox_class: type[Sandbox]) -> AsyncIterator[Sandbox]:
    """A sandbox of the test's own, listening on loopback, with the default accounts and seed."""
    async with _sandbox_class() as sandbox:
        yield sandbox


def _no_sandbox() -> NoReturn:
    """A sandbox of the test's own; it needs pytest-asyncio, which is not here."""
    pytest.fail(_NEEDED, pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Add the fixture, as one of pytest-asyncio's if that is here: its strict mode takes no other."""
    plugins = config.pluginmanager
    if plugins.hasplugin(_PLUGIN):
        return
    fixtures: Any = ModuleType(_PLUGIN)  # a module that gets its one name here
    asyncio_plugin = sys.modules.get("pytest_asyncio.plugin")
    if asyncio_plugin is not None and plugins.is_registered(asyncio_plugin):
        import pytest_asyncio

        fixtures.transfer_sandbox = pytest_asyncio.fixture(transfer_sandbox)
    else:
        fixtures.transfer_sandbox = pytest.fixture(name=_PLUGIN)(_no_sandbox)
    plugins.register(fixtures, _PLUGIN)
