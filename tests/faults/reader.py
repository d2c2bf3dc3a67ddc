"""A client in its own process that measures the memory used by one response, for `test_bounded_reading`.

Arguments: the service's address, ``order`` or ``read``, the limit in bytes, and the path (``exchange`` or
``session``). It prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.support import samples
from transfer_async import RetryPolicy, TransferClient
from transfer_async._http import exchange
from transfer_async._models.errors import TransferError

STATUS = Path("/proc/self/status")


def kilobytes(name: str) -> int:
    """Return a memory figure of this process, in kilobytes."""
    line = next(
        line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}:")
    )
    return int(line.split()[1])


async def main(url: str, what: str, limit: int) -> dict[str, Any]:
    """Make one call, and print its peak memory."""
    async with TransferClient(
        url, "token", max_response_bytes=limit, retry=RetryPolicy(attempts=1)
    ) as client:
        before = kilobytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # noqa: ASYNC240 - forgets the peak so far
        try:
            if what == "order":
                await client.create_order(samples.new_order(), held="hold-1")
            else:
                await client.who_am_i()
        except TransferError as error:
            raw = getattr(error, "raw", None)
            read = raw if raw is not None else getattr(error, "body", b"")
            return {
                "error": type(error).__name__,
                "outcome": error.outcome.value,
                "order_id": getattr(error, "order_id", None),
                "read": len(read),
                "grown": kilobytes("VmHWM") - before,
            }
    return {"error": None}


if __name__ == "__main__":
    if sys.argv[4] == "session":
        exchange.is_possible = lambda _: False
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))))  # noqa: T201 - its result
