"""A pytest fixture, for whoever tests against the sandbox; pytest and pytest-asyncio must be installed.

In a `conftest.py`: `pytest_plugins = ["transfer_async.sandbox.fixtures"]`.
"""

from collections.abc import AsyncIterator

import pytest_asyncio

from transfer_async.sandbox.server import Sandbox


@pytest_asyncio.fixture
async def transfer_sandbox() -> AsyncIterator[Sandbox]:
    """A sandbox of the test's own, with the default accounts and seed."""
    async with Sandbox() as sandbox:
        yield sandbox
