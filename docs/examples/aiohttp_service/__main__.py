"""The service, a sandbox and a caller, in one process: ``python docs/examples/aiohttp_service``."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from bank import Bank
from callers import Caller, story
from service import make_app
from transfer_async.sandbox import Sandbox


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve ``app`` on a free port of this machine."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def play(directory: Path) -> Caller:
    """Run the example."""
    bank = Bank()
    async with Sandbox() as sandbox:
        journal = directory / "payments.journal"
        app = make_app(bank, base_url=sandbox.base_url, token=sandbox.token, journal=journal)
        async with serving(app) as url, aiohttp.ClientSession(url) as session:
            return await story(sandbox, bank, session)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory)))
