"""The service, a sandbox and a caller, in one process: ``python docs/examples/fastapi_service``."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import uvicorn
from fastapi import FastAPI

from bank import Bank
from callers import Caller, story
from service import make_app
from transfer_async.sandbox import Sandbox


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve ``app`` on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


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
