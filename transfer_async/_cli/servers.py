"""The servers of the ``sandbox`` and ``desk`` commands, which run until a signal stops them."""

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
from transfer_async._support.clock import Clock
from transfer_async.desk import Operator
from transfer_async.desk.application import HEADERS, application
from transfer_async.desk.views import PageStyle
from transfer_async.journal.protocol import Journal
from transfer_async.sandbox import Fault, Sandbox
from transfer_async.sandbox.control import make_fault

_requests = logging.getLogger("transfer_async.sandbox")


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address, which only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def fault_shares(texts: Iterable[str]) -> dict[Fault, float]:
    """Parse ``--fault`` options: ``NAME=SHARE`` or ``NAME=SHARE:SETTINGS``.

    SHARE is the fraction of all orders that the fault affects. SETTINGS configures the fault, as
    ``setting=value,setting=value`` or as a JSON object.

    Raises:
        ValueError: an option is invalid. The message quotes the option.
    """
    shares: dict[Fault, float] = {}
    for text in texts:
        try:
            fault, share = _fault_share(text)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"--fault {text}: {error}") from None
        if fault in shares:
            raise ValueError(f"--fault {text}: passed twice: keep one of the two")
        shares[fault] = share
    return shares


def _fault_share(text: str) -> tuple[Fault, float]:
    head, _, rest = text.partition(":")
    name, _, share = head.partition("=")
    if rest.startswith("{"):
        settings = dict(json.loads(rest))
    else:
        pairs = (pair.partition("=") for pair in rest.split(",") if pair)
        settings = {setting: _value(value) for setting, _, value in pairs}
    fault = make_fault(name, settings)
    try:
        return fault, float(share)
    except ValueError:
        raise ValueError(
            f"the share of orders to affect is missing: write, for example, {name}=0.05"
        ) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context for https, or None if there is no certificate. The certificate and the key are
    PEM files.

    Raises:
        ValueError: a key was given without a certificate, or a file is unreadable or invalid.
    """
    if certificate is None:
        if key is not None:
            raise ValueError("--tls-key: can be used only with --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # without one, OpenSSL prompts for it
    except OSError as error:
        raise ValueError(f"--tls-cert, --tls-key: cannot be used ({error.strerror or error})") from None
    return context


async def serve_sandbox(sandbox: Sandbox, *, say: Say, log: Say) -> None:
    """Serve the sandbox until SIGINT or SIGTERM. ``log`` is called with a line for each request.

    Raises:
        OSError: the server cannot listen on the address.
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
    """Return lines that explain how to use ``sandbox``, including exports to paste into a shell."""
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


# --- desk --------------------------------------------------------------------------------------------
# The page is served on loopback, to the one browser that opens the printed address.

HOST = "127.0.0.1"

IDLE_TIMEOUT = 1_800.0
"""The browser is signed out after this many seconds without a request."""

_NEW_ADDRESS = "The terminal that runs the desk command shows a new address."
_USED = (
    "This address works only once, and has already been used. To get a new "
    "address, start the desk command again."
)


class Entrance:
    """Gives access to one browser, which exchanges the address's one-time token for a session cookie."""

    def __init__(self, operator: Operator, *, clock: Clock | None = None, say: Say = lambda _: None) -> None:
        self._operator = operator
        self._clock = clock or Clock()
        self._say = say
        self._hosts: frozenset[str] = frozenset()
        self._token: str | None = None
        self._begin_session()
        # The path of the page is random, because cookies ignore ports: a server on another port of this
        # machine receives the cookies of every path that it can guess.
        self.mount = f"/{secrets.token_urlsafe(32)}"
        self._cookie = f"transfer_desk_{self.mount[1:]}"  # unique, because one person may run two desks

    def opened(self, port: int) -> str:
        """Accept requests to ``port`` on this machine, and return the address to print."""
        # Any other host name may belong to a page that resolves it to this machine (DNS rebinding).
        self._hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
        self._port = port
        return self._address

    @property
    def _address(self) -> str:
        return f"http://{HOST}:{self._port}/enter?token={self._token}"

    def _begin_session(self) -> None:
        """Create a new token and a new session, which invalidates the previous ones."""
        self._token, self._session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._used_at = self._clock.now()

    def end(self, why: str = "signed out") -> str:
        """End the session, print a new address, and return the text for the browser to show."""
        self._begin_session()
        self._say(f"{why}; this address works once, in one browser:")
        self._say(self._address)
        return f"{why.capitalize()}. {_NEW_ADDRESS}"

    async def enter(self, request: web.Request) -> web.Response:
        """Admit the first browser that sends the token.

        ``HEAD`` requests and prefetches do not use up the token.
        """
        if request.method == "HEAD" or "prefetch" in request.headers.get("Sec-Purpose", ""):
            return web.Response(status=405, headers={"Allow": "GET"})
        given = request.query.get("token", "")
        if request.host not in self._hosts or self._token is None or not _is_same(given, self._token):
            return web.Response(status=403, text=_USED)
        self._token = None
        self._used_at = self._clock.now()
        response = web.Response(status=303, headers={"Location": f".{self.mount}/"})
        response.set_cookie(self._cookie, self._session, path=self.mount, httponly=True, samesite="Strict")
        return response

    def who(self, request: web.Request) -> Operator | None:
        """Return the operator if the request contains the session cookie, and None otherwise.

        Automatic reloads of a page do not prolong the session, because the page may be unattended.

        Raises:
            HTTPUnauthorized: the session was idle for too long and has ended.
        """
        given = request.cookies.get(self._cookie, "")
        is_admitted = request.host in self._hosts and _is_same(given, self._session)
        if not is_admitted:
            return None
        now = self._clock.now()
        if now - self._used_at >= IDLE_TIMEOUT:
            why = self.end(f"signed out after {IDLE_TIMEOUT / 60:.0f} minutes of inactivity")
            raise web.HTTPUnauthorized(reason=why)
        if "1" not in (request.query.get("live"), request.query.get("wall")):
            self._used_at = now
        return self._operator


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to every response, including a 404."""
    response.headers.update(HEADERS)


async def serve_desk(
    operators: Operators,
    journal: Journal,
    operator: Operator,
    *,
    port: int,
    say: Say,
    style: PageStyle | None = None,
    clock: Clock | None = None,
) -> None:
    """Serve the page until SIGINT or SIGTERM, then close the journal.

    Raises:
        OSError: the server cannot listen on the port.
        JournalFailed: the journal could not be read.
    """
    stop, app = asyncio.Event(), web.Application()
    entrance = Entrance(operator, clock=clock, say=say)
    app.on_response_prepare.append(_add_headers)
    app.router.add_get("/enter", entrance.enter)
    app.add_subapp(
        entrance.mount, application(operators, who=entrance.who, style=style, sign_out=entrance.end)
    )
    runner = web.AppRunner(app, access_log=None)
    try:
        await operators.four_eyes()  # raises early if the journal cannot be used
        await runner.setup()
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        with on_signals(lambda _: stop.set()):
            whose = f"serving the desk for {operator.name} until Ctrl-C; scope {shown(operators.scope)}"
            say(f"{whose}; this address works once, in one browser:")
            say(entrance.opened(runner.addresses[0][1]))
            await stop.wait()
    finally:
        await runner.cleanup()
        await journal.close()
    say("desk stopped")
