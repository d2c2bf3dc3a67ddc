"""The sandbox as a service of its own, until somebody stops it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import secrets
import shlex
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from transfer_async._cli.output import Say, logged, shown
from transfer_async._cli.process import on_signals
from transfer_async._pipeline.operators import Operators
from transfer_async.desk import Operator
from transfer_async.desk.application import HEADERS, application
from transfer_async.journal.protocol import Journal
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


async def serve_sandbox(sandbox: Sandbox, *, say: Say, log: Say) -> None:
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


# --- loopback ----------------------------------------------------------------------------------------
# The desk on this machine's loopback: one browser is let in, by an address that works once.


HOST = "127.0.0.1"
_USED = "This address lets one browser in, once. Start the desk again for a new one."


class Entrance:
    """Exchanges the one-time token of the printed address for a cookie.

    Args:
        operator: whoever comes in by it.

    Attributes:
        mount: the path of the desk. Cookies ignore ports: a server at another port of this machine receives
            those of every path that it can name. So no other server can name this one.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._hosts: frozenset[str] = frozenset()
        self._token: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self.mount = f"/{secrets.token_urlsafe(32)}"
        self._cookie = f"transfer_desk_{self.mount[1:]}"  # two desks of one person may run at once

    def opened(self, port: int) -> str:
        """The address to be printed, now that the port is known."""
        # By no other name: a page elsewhere may give its own name this machine's address.
        self._hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
        return f"http://{HOST}:{port}/enter?token={self._token}"

    async def enter(self, request: web.Request) -> web.Response:
        """Let in whoever has the token, once. A ``HEAD`` or a prefetch does not use it up."""
        if request.method == "HEAD" or "prefetch" in request.headers.get("Sec-Purpose", ""):
            return web.Response(status=405, headers={"Allow": "GET"})
        given = request.query.get("token", "")
        if request.host not in self._hosts or self._token is None or not _is_same(given, self._token):
            return web.Response(status=403, text=_USED)
        self._token = None
        response = web.Response(status=303, headers={"Location": f".{self.mount}/"})
        response.set_cookie(self._cookie, self._session, path=self.mount, httponly=True, samesite="Strict")
        return response

    def who(self, request: web.Request) -> Operator | None:
        """The operator, if the request has the cookie."""
        given = request.cookies.get(self._cookie, "")
        is_let_in = request.host in self._hosts and _is_same(given, self._session)
        return self._operator if is_let_in else None


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def application_behind(entrance: Entrance, operators: Operators) -> web.Application:
    """The desk, and the way in."""
    app = web.Application()
    app.on_response_prepare.append(_add_headers)
    app.router.add_get("/enter", entrance.enter)
    app.add_subapp(entrance.mount, application(operators, who=entrance.who))
    return app


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Defend every answer, also those of paths that are none."""
    response.headers.update(HEADERS)


async def serve_desk(
    operators: Operators, journal: Journal, operator: Operator, *, port: int, say: Say
) -> None:
    """Serve until SIGINT or SIGTERM; then close the journal.

    Raises:
        OSError: the port is not to be had.
        JournalFailed: the journal could not be read.
    """
    stop, entrance = asyncio.Event(), Entrance(operator)
    runner = web.AppRunner(application_behind(entrance, operators), access_log=None)
    try:
        await operators.four_eyes()  # what is wrong with the journal shows now
        await runner.setup()
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        with on_signals(lambda _: stop.set()):
            whose = f"desk for {operator.name}, until Ctrl-C; scope {shown(operators.scope)}"
            say(f"{whose}; this address lets one browser in, once:")
            say(entrance.opened(runner.addresses[0][1]))
            await stop.wait()
    finally:
        await runner.cleanup()
        await journal.close()
    say("desk stopped")
