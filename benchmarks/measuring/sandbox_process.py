"""The sandbox in a process of its own, until its standard input is closed."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attrs import frozen

from benchmarks.measuring import machine


@frozen
class RunningSandbox:
    """The address and the token of a sandbox."""

    base_url: str
    token: str


@contextmanager
def sandbox(*, faults: Sequence[str] = (), seed: int = 0) -> Iterator[RunningSandbox]:
    """Start a sandbox, and stop it at the end or when this process ends.

    Args:
        faults: the values of ``transfer-async sandbox --fault``.
        seed: seeds the order ids and the faults.

    Raises:
        RuntimeError: the sandbox did not start.
    """
    command = [sys.executable, "-m", "benchmarks.measuring.sandbox_process", f"--seed={seed}"]
    command += [f"--fault={fault}" for fault in faults]
    with subprocess.Popen(  # noqa: S603 - it is this very file
        command, cwd=machine.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - they are pipes
        try:
            line = process.stdout.readline()  # ends with the process at the latest
            if not line:
                raise RuntimeError("the sandbox did not start")
            yield RunningSandbox(**json.loads(line))
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


async def _serve(faults: Sequence[str], seed: int) -> None:
    from transfer_async._cli.servers import fault_shares  # only this process needs it
    from transfer_async.sandbox import Sandbox

    async with Sandbox(seed=seed, faults=fault_shares(faults)) as serving:
        print(json.dumps({"base_url": serving.base_url, "token": serving.token}), flush=True)
        told = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
        await told.read()


def main() -> None:
    """Run the sandbox until the standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which still has questions
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(_serve(options.fault, options.seed))


if __name__ == "__main__":
    main()
