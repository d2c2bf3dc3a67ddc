"""The desk on this machine's loopback: one browser is let in, by an address that works once."""

from __future__ import annotations

import asyncio
import hmac
import secrets

from aiohttp import web

from transfer_async._cli.console.output import Say
from transfer_async._cli.console.signals import on_signals
from transfer_async._pipeline.operators import Operators
from transfer_async.desk import Operator
from transfer_async.desk.application import application
from transfer_async.desk.defences import HEADERS
from transfer_async.journal.protocol import Journal

HOST = "127.0.0.1"
MOUNT = "/desk"
_USED = "This address lets one browser in, once. Start the desk again for a new one."


class Entrance:
    """Exchanges the one-time token of the printed address for a cookie.

    Args:
        operator: whoever comes in by it.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._hosts: frozenset[str] = frozenset()
        self._token: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._cookie = f"transfer_desk_{secrets.token_hex(4)}"  # cookies know no ports, and two desks may run

    def opened(self, port: int) -> str:
        """The address to be printed, now that the port is known."""
        # By no other name: a page elsewhere may give its own name this machine's address.
        self._hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
        return f"http://{HOST}:{port}/enter?token={self._token}"

    async def enter(self, request: web.Request) -> web.Response:
        """Let in whoever has the token, once."""
        given = request.query.get("token", "")
        if request.host not in self._hosts or self._token is None or not _is_same(given, self._token):
            return web.Response(status=403, text=_USED, headers=HEADERS)
        self._token = None
        response = web.Response(status=303, headers={**HEADERS, "Location": f".{MOUNT}/"})
        response.set_cookie(self._cookie, self._session, path=MOUNT, httponly=True, samesite="Strict")
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
    app.router.add_get("/enter", entrance.enter)
    app.add_subapp(MOUNT, application(operators, who=entrance.who))
    return app


async def serve(operators: Operators, journal: Journal, operator: Operator, *, port: int, say: Say) -> None:
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
            say(f"desk for {operator.name}, until Ctrl-C; this address lets one browser in, once:")
            say(entrance.opened(runner.addresses[0][1]))
            await stop.wait()
    finally:
        await runner.cleanup()
        await journal.close()
    say("desk stopped")
