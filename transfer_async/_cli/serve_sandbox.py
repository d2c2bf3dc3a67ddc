"""The sandbox as a service of its own, until somebody stops it."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import shlex
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from transfer_async._cli.console.output import Say, logged
from transfer_async._cli.console.signals import on_signals
from transfer_async.sandbox import Fault, Sandbox
from transfer_async.sandbox.control import make_fault

_requests = logging.getLogger("transfer_async.sandbox")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def fault_shares(texts: Iterable[str]) -> dict[Fault, float]:
    """Read faults and their shares of all orders, one a text: ``NAME=SHARE`` or ``NAME=SHARE:SETTINGS``.

    SETTINGS are the fault's own, as ``setting=value,setting=value`` or as a JSON object.

    Raises:
        ValueError: names the text and what is wrong with it.
    """
    shares: dict[Fault, float] = {}
    for text in texts:
        try:
            fault, share = _fault_share(text)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"--fault {text}: {error}") from None
        if fault in shares:
            raise ValueError(f"--fault {text}: is given twice")
        shares[fault] = share
    return shares


def _fault_share(text: str) -> tuple[Fault, float]:
    head, _, settings = text.partition(":")
    name, _, share = head.partition("=")
    fault = make_fault(name, _settings(settings))
    try:
        return fault, float(share)
    except ValueError:
        raise ValueError(f"the share of all orders is missing, as in {name}=0.05") from None


def _settings(text: str) -> dict[str, Any]:
    if text.startswith("{"):
        return dict(json.loads(text))
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Make what serves https; None without a certificate, whose file may hold the key as well.

    Raises:
        ValueError: a key without a certificate, or a file that cannot be read or holds something else.
    """
    if certificate is None:
        if key is not None:
            raise ValueError("--tls-key: needs --tls-cert as well")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # without one OpenSSL would ask the terminal
    except OSError as error:
        raise ValueError(f"--tls-cert, --tls-key: cannot be used ({error.strerror or error})") from None
    return context


async def serve(sandbox: Sandbox, *, say: Say, log: Say) -> None:
    """Serve until SIGINT or SIGTERM, then close whatever is open.

    Args:
        sandbox: not yet entered.
        say: takes the lines at the start, and the one at the end.
        log: takes one line a request.

    Raises:
        OSError: the address is not to be had.
    """
    stop = asyncio.Event()
    with (
        on_signals(lambda _: stop.set()),
        logged(_requests, log, form="%(asctime)s %(message)s", time="%H:%M:%S"),
    ):
        async with sandbox:
            for line in announcement(sandbox):
                say(line)
            await stop.wait()
    say("sandbox stopped")


def announcement(sandbox: Sandbox) -> list[str]:
    """What somebody needs to use ``sandbox``, the exports to be pasted into a shell."""
    return [
        f"sandbox listening on {sandbox.base_url}, until Ctrl-C",
        f"token {sandbox.token}",
        f"export TRANSFER_BASE_URL={shlex.quote(sandbox.base_url)}",
        f"export TRANSFER_API_TOKEN={shlex.quote(sandbox.token)}",
        f"page {sandbox.base_url}/sandbox/",
        *(
            f"fault {fault.name} for {share:.4g} of all orders"
            for fault, share in sandbox.faults.shares.items()
        ),
    ]
