from collections.abc import AsyncIterator

import pytest

from transfer_async.sandbox import Sandbox

from .wire_client import WireClient, connected


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[WireClient]:
    async with connected(sandbox) as client:
        yield client
