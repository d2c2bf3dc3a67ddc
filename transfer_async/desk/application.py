"""The desk as an application of aiohttp, to be mounted where the bank likes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from aiohttp import web

from transfer_async._client import TransferClient
from transfer_async._models.errors import ClientClosed, JournalFailed
from transfer_async._pipeline.hooks import FundsHold, is_hold
from transfer_async._pipeline.operators import Operators
from transfer_async._support.clock import Clock
from transfer_async._support.log import log
from transfer_async.desk import pages
from transfer_async.desk.board import Board
from transfer_async.desk.changes import Changes
from transfer_async.desk.defences import HEADERS, checked_origin, is_from_elsewhere
from transfer_async.desk.looks import Looks
from transfer_async.desk.office import OPERATOR, Office
from transfer_async.desk.who import Who, checked_who, operator_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_USUAL_HOLD: str = inspect.signature(FundsHold).parameters["name"].default

_PLAIN = {"desk.css": (pages.STYLE, "text/css"), "icon.svg": (pages.ICON, "image/svg+xml")}
"""What is the same for everybody, and shows nothing."""


def desk(client: TransferClient, *, who: Who, origin: str | None = None) -> web.Application:
    """Make the operators' desk: mount it with ``app.add_subapp("/desk", desk(client, who=who))``.

    It shows the journal of ``client``, and writes into it what operators decide. It sends nothing to the
    service, keeps no session, and uses no script. Nobody sees anything whom ``who`` does not know, and
    nobody changes anything without a role.

    Args:
        client: whose journal; it is not closed with the desk.
        who: tells who asks: called with every request, plain or async; an `Operator`, or None for nobody.
        origin: of the page, as ``https://desk.bank.example``, where a proxy changes the ``Host``: for
            browsers that do not say by ``Sec-Fetch-Site`` where a form comes from.

    Raises:
        ValueError: names the argument and the rule.
        ClientClosed: the client is closed.
    """
    if not isinstance(client, TransferClient):
        raise ValueError(f"client: must be a TransferClient, not a {type(client).__name__}")  # noqa: TRY004 - as every wrong setting
    context = client._context
    holds = frozenset(hook.name for hook in context.hooks if is_hold(hook))
    return application(client.operators, who=who, origin=origin, holds=holds, clock=context.clock)


def application(
    operators: Operators,
    *,
    who: Who,
    origin: str | None = None,
    holds: frozenset[str] = frozenset(),
    clock: Clock | None = None,
) -> web.Application:
    """The same for the operators' side of a journal; ``holds`` are the names of hooks that place a hold."""
    clock = clock or Clock()
    board = Board(operators, clock)
    office = Office(operators=operators, board=board, clock=clock, holds=holds | {_USUAL_HOLD})
    door = _Door(office, who=checked_who(who), origin=checked_origin(origin))

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await door.answer(request, handler)

    app = web.Application(middlewares=[answer])
    looks, changes = Looks(office), Changes(office)
    app.router.add_get("/", looks.waiting)
    app.router.add_get("/key", looks.key)
    app.router.add_post("/find", looks.find)
    app.router.add_post("/parties", looks.parties)
    for name, change in changes.by_name.items():
        app.router.add_post(f"/{name}", change)
    for name in _PLAIN:
        app.router.add_get(f"/{name}", _plain)
    app.on_cleanup.append(lambda _: board.close())
    return app


async def _plain(request: web.Request) -> web.Response:
    text, kind = _PLAIN[request.path.rpartition("/")[2]]
    return web.Response(text=text, content_type=kind)


class _Door:
    """Who comes in: nobody from another page, nobody unknown; and what every answer has on it."""

    def __init__(self, office: Office, *, who: Who, origin: str | None) -> None:
        self._office, self._who, self._origin = office, who, origin

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What comes in, and what goes out."""
        try:
            response = await self._answered(request, handler)
        except web.HTTPException as error:
            if error.status < 400:  # to another page, or to where people sign in
                error.headers.update(HEADERS)
                raise
            response = _as_page(request, error)
        response.headers.update(HEADERS)
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if is_from_elsewhere(request, origin=self._origin):
                return _told(request, 403, "Not from here", "This was not asked for on a page of the desk.")
            if handler is not _plain:
                request[OPERATOR] = operator = await operator_of(self._who, request)
                if operator is None:
                    return _told(request, 403, "Who are you?", "Nobody is signed in who may see this.")
            return await handler(request)
        except (JournalFailed, ClientClosed) as error:
            return _told(request, 503, "The journal cannot be reached", f"{error}. Look again.")
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it says may be about people, and is shown to nobody
            log.error("the desk failed on %s %s (%s)", request.method, request.path, type(error).__name__)
            return _told(request, 500, "That went wrong", "The log says what kind of error it was.")


def _as_page(request: web.Request, error: web.HTTPException) -> web.Response:
    """A no of aiohttp's own, or of ``who``, as a page."""
    titles = {404: "There is no such page", 405: "Not this way"}
    title = titles.get(error.status, "That cannot be")
    told = {404: "Go back to what waits."}.get(error.status, error.reason)
    response = _told(request, error.status, title, told)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


def _told(request: web.Request, status: int, title: str, told: str) -> web.Response:
    text = pages.page("message", title=title, told=told, operator=request.get(OPERATOR))
    return web.Response(text=text, content_type="text/html", status=status)
