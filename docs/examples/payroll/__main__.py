"""Pay a payroll file against a sandbox, and resolve an order in doubt: ``python docs/examples/payroll``.

The script prints each command as you would type it, followed by its output.
"""

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from transfer_async.sandbox import CloseAfterProcessing, Sandbox

PAYROLL = Path(__file__).with_name("payroll.csv")

LOST = "tunde.bello@example.com"
"""The customer of salary-3, whose order's response is lost."""

Run = Callable[[list[str], Mapping[str, str], Path], Awaitable[int]]
"""Run ``transfer-async`` with arguments, an environment and a directory, and return its exit code."""


async def in_a_process(arguments: list[str], environment: Mapping[str, str], directory: Path) -> int:
    """Run a command as a shell would."""
    command = [sys.executable, "-m", "transfer_async", *arguments]
    process = await asyncio.create_subprocess_exec(*command, cwd=directory, env={**os.environ, **environment})
    return await process.wait()


class Operator:
    """A person at a terminal in the directory of the payroll file."""

    def __init__(self, run: Run, sandbox: Sandbox, directory: Path) -> None:
        self._run, self._directory = run, directory
        self._environment = {
            "TRANSFER_BASE_URL": sandbox.base_url,
            "TRANSFER_API_TOKEN": sandbox.token,
            "TRANSFER_JOURNAL": "payments.journal",
        }
        self.exit_codes: list[int] = []

    async def types(self, command: str) -> None:
        """Run a command and show its output."""
        print(f"\n$ transfer-async {command}", flush=True)
        code = await self._run(shlex.split(command), self._environment, self._directory)
        self.exit_codes.append(code)
        print(f"(exit code {code})", flush=True)


async def play(directory: Path, run: Run = in_a_process) -> tuple[list[int], Sandbox]:
    """Pay the salaries. One response is lost, and one beneficiary is not registered."""
    file = directory / "payroll.csv"
    async with Sandbox() as sandbox:
        sandbox.faults.add(CloseAfterProcessing(), username=LOST)
        operator = Operator(run, sandbox, directory)
        await operator.types("create payroll.csv --dry-run")
        await operator.types("create payroll.csv --plain")  # exits with 5: one order is in doubt

        await operator.types("journal list")
        await operator.types("journal show 2026-01-salary-3")
        # Ask the service's support team or check your statement; this example looks into the sandbox.
        (order_id,) = (one.id for one in sandbox.orders.values() if one.poster_username == LOST)
        found = f"--order-id {order_id} --by ada --reason 'seen on the statement'"
        await operator.types(f"journal resolve 2026-01-salary-3 {found}")

        print("\nThe beneficiary of salary-2 is corrected, under the same key.")
        await asyncio.to_thread(correct, file)
        await operator.types("create payroll.csv --plain")  # run it again: nothing is paid twice
    print(f"\norders at the service: {len(sandbox.orders)}, for 3 lines in 2 runs")
    return operator.exit_codes, sandbox


def correct(file: Path) -> None:
    """Replace the beneficiary who is not registered."""
    wrong = file.read_text(encoding="utf-8")
    file.write_text(wrong.replace("nobody@example.com", "ben.okri@example.com"), encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(PAYROLL, directory)
        asyncio.run(play(Path(directory)))
