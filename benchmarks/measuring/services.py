"""Run the service in its own process, on loopback.

``sandbox`` is `transfer_async.sandbox.Sandbox`. ``raw`` is faster: a bare asyncio protocol that reads the
whole request and responds with a new order, without validating or storing anything. It also responds to any
other POST with an order, for clients that use other paths.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, get_args

import msgspec
from attrs import frozen

from benchmarks.measuring import machine
from benchmarks.measuring.workload import CREATE_ORDER_PATH, WHO_AM_I_PATH, Responses, order_fields, who_am_i

ServiceKind = Literal["sandbox", "raw"]
SERVICE_KINDS: tuple[ServiceKind, ...] = get_args(ServiceKind)

CREATE_ORDER = f"POST {CREATE_ORDER_PATH} ".encode()
WHO_AM_I = f"GET {WHO_AM_I_PATH} ".encode()
TOKEN = "benchmark-token"  # noqa: S105 - the raw service does not check it

WARM_UP_REQUESTS = 64
"""The number of requests that are never held, so that a client can warm up."""

HOLD_SECONDS = 0.3
"""Seconds between the arrival of the last request and the responses, for measuring memory."""

_HEAD = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


# --- in the benchmark's process -------------------------------------------------------------------


@frozen
class RunningService:
    """The base URL and the token of a running service."""

    base_url: str
    token: str


@contextmanager
def run_service(
    kind: ServiceKind = "sandbox",
    *,
    seed: int = 0,
    faults: Sequence[str] = (),
    hold: int = 0,
    core: int | None = None,
) -> Iterator[RunningService]:
    """Start the service; stop it at the end, or when this process exits.

    Args:
        kind: ``sandbox`` or ``raw``.
        seed: seeds the order ids and the faults.
        faults: the values of ``transfer-async sandbox --fault``; ``sandbox`` only.
        hold: hold all responses until this many requests have arrived, not counting the first
            `WARM_UP_REQUESTS`; 0 holds none; ``raw`` only.
        core: the CPU core to pin the process to.

    Raises:
        RuntimeError: the service did not start.
    """
    command = [sys.executable, "-m", "benchmarks.measuring.services", kind, f"--seed={seed}"]
    command += [f"--hold={hold}", *(f"--fault={fault}" for fault in faults)]
    command += [] if core is None else [f"--core={core}"]
    with subprocess.Popen(  # noqa: S603 - this module
        command, cwd=machine.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - they are pipes
        try:
            line = process.stdout.readline()  # returns at the latest when the process exits
            if not line:
                raise RuntimeError(f"the {kind} service did not start")
            yield RunningService(**json.loads(line))
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


# --- in the service's process ---------------------------------------------------------------------


class Gate:
    """Holds the responses until the expected number of requests has arrived.

    Args:
        hold: the expected number of requests; 0 holds none.
    """

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._received_count = 0
        self._pending: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()

    def respond(self, write: Callable[[], None]) -> None:
        """Write a response now, or once all expected requests have arrived."""
        self._received_count += 1
        if self._hold and self._received_count > WARM_UP_REQUESTS:
            self._pending.append(write)
            if len(self._pending) >= self._hold:
                self._loop.call_later(HOLD_SECONDS, self._release)
        else:
            write()

    def _release(self) -> None:
        pending, self._pending = self._pending, []
        for write in pending:
            write()


class RawProtocol(asyncio.Protocol):
    """One connection of the raw service."""

    def __init__(self, responses: Responses, gate: Gate) -> None:
        self._responses, self._gate = responses, gate
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - always true for TCP
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            size = end + 4 + _content_length(self._received[:end])
            if len(self._received) < size:
                return
            request, self._received = self._received[:size], self._received[size:]
            response = self._respond(request, request[end + 4 :])
            self._gate.respond(partial(self._write, response))

    def _respond(self, request: bytes, body: bytes) -> bytes:
        status, reason = 200, b"OK"
        if request.startswith(CREATE_ORDER):
            payload = self._responses.respond(_decode(body))
        elif request.startswith(b"POST "):
            payload = self._responses.respond(_DEFAULT_ORDER)
        elif request.startswith(WHO_AM_I):
            payload = who_am_i()
        else:
            status, reason, payload = 404, b"Not Found", b'{"message":"Not found"}'
        return _HEAD % (status, reason, len(payload)) + payload

    def _write(self, response: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(response)


_decode = msgspec.json.Decoder(float_hook=str).decode  # keep all digits
_DEFAULT_ORDER = next(order_fields())


def _content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def _serve_sandbox(faults: Sequence[str], seed: int) -> None:
    from transfer_async._cli.servers import fault_shares  # the raw service needs none of it
    from transfer_async.sandbox import Sandbox

    async with Sandbox(seed=seed, faults=fault_shares(faults)) as sandbox:
        await _print_address_and_wait(sandbox.base_url, sandbox.token)


async def _serve_raw(seed: int, hold: int) -> None:
    responses, gate = Responses(seed), Gate(hold)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: RawProtocol(responses, gate), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    await _print_address_and_wait(f"http://127.0.0.1:{port}", TOKEN)
    server.close()


async def _print_address_and_wait(base_url: str, token: str) -> None:
    """Print the address as JSON, then wait until standard input is closed."""
    print(json.dumps({"base_url": base_url, "token": token}), flush=True)
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    await stdin.read()


def main() -> None:
    """Run the service until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the load test still queries the sandbox
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kind", choices=SERVICE_KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--hold", type=int, default=0)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    machine.pin(options.core)
    machine.raise_file_limit()
    if options.kind == "sandbox":
        asyncio.run(_serve_sandbox(options.fault, options.seed))
    else:
        asyncio.run(_serve_raw(options.seed, options.hold))


if __name__ == "__main__":
    main()
