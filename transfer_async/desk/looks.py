"""What is looked at: what waits, one key, and, where somebody asks for it, who pays whom."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from transfer_async._models.requests import OrderIntent
from transfer_async._models.responses import Order, User
from transfer_async.desk import words
from transfer_async.desk.board import KINDS
from transfer_async.desk.listing import PER_PAGE, Choice, found_by_text, listing
from transfer_async.desk.office import Office, address, answered, fields_of, key_page, operator_at
from transfer_async.desk.who import Role
from transfer_async.journal.proposal import FOUR_EYES

REFRESH = 30
"""Seconds after which the list is asked for again, by the browser itself."""


class Looks:
    """The pages that change nothing; but that somebody saw the parties is kept in the history."""

    def __init__(self, office: Office) -> None:
        self._office = office

    async def waiting(self, request: web.Request) -> web.Response:
        """The list of what waits."""
        snapshot = await self._office.board.shown()
        choice = Choice.of(request.query, snapshot)
        page = listing(snapshot, choice)
        choice = choice.at(page.page)
        response = answered(
            "list",
            operator=operator_at(request),
            heading="What waits",
            caption="Keys that wait for somebody",
            nothing="Nothing waits." if snapshot.is_complete else "Nothing so far.",
            snapshot=snapshot,
            choice=choice,
            page=page,
            lines=page.lines,
            shown_kinds=[kind for kind in KINDS if snapshot.counts[kind]],
            four_eyes=await self._office.operators.four_eyes(),
            four_eyes_key=FOUR_EYES,
            now=self._office.clock.utc().timestamp(),
            every=REFRESH,
            address=address,
        )
        if not choice.still:
            # The header, and not the element: whoever reads with a screen reader can keep the page still.
            response.headers["Refresh"] = str(REFRESH)
        return response

    async def key(self, request: web.Request) -> web.Response:
        """One key."""
        try:
            view = await self._office.operators.view(request.query.get("key", ""))
        except ValueError:
            return self._nothing(request)
        done = words.DONE.get(request.query.get("done", ""))
        return await key_page(self._office, operator_at(request), view, done=done)

    async def find(self, request: web.Request) -> web.Response:
        """The key of that name, or those that hold that text and wait; the text is in no address."""
        text = (await fields_of(request)).get("text", "").strip()
        try:
            view = await self._office.operators.view(text)
        except ValueError:
            found = found_by_text(await self._office.board.shown(), text)
        else:
            raise web.HTTPSeeOther(address(view.key))
        return answered(
            "list",
            operator=operator_at(request),
            heading="Found",
            text=text,
            choice=None,
            lines=found[:PER_PAGE],
            caption=f"The oldest {PER_PAGE} of {words.count(len(found), 'key')}"
            if len(found) > PER_PAGE
            else words.count(len(found), "key"),
            nothing="No key is that, and none that waits holds it.",
            now=self._office.clock.utc().timestamp(),
            address=address,
        )

    async def parties(self, request: web.Request) -> web.Response:
        """One key, with who pays whom."""
        operator = operator_at(request)
        if not operator.may(Role.PARTIES):
            raise web.HTTPForbidden
        fields = await fields_of(request)
        try:
            view = await self._office.operators.view(fields.get("key", ""))
        except ValueError:
            return self._nothing(request)
        try:
            found = await self._office.operators.look(
                view.key, by=operator.name, reason=fields.get("reason", "")
            )
        except ValueError as error:
            more = {"problem": words.sentence(error), "tried": "parties", "reason": fields.get("reason", "")}
            return await key_page(self._office, operator, view, status=422, **more)
        return await key_page(self._office, operator, view, parties=list(_parties(found)))

    def _nothing(self, request: web.Request) -> web.Response:
        told = "The journal has nothing on record of this key, for this service."
        return answered("message", status=404, title="No such key", told=told, operator=operator_at(request))


def _parties(found: OrderIntent | Order) -> Iterator[tuple[str, str]]:
    if isinstance(found, Order):
        yield from _person("Poster", found.user)
        yield from _person("Beneficiary", found.posters_beneficiary)
        return
    yield "Poster", found.order.poster_username
    yield "Beneficiary", found.order.poster_recipient_username
    if (name := found.beneficiary) is not None:
        yield "The customer's words", " ".join(part for part in (name.first, name.middle, name.last) if part)


def _person(role: str, user: User | None) -> Iterator[tuple[str, str]]:
    if user is not None:
        names = " ".join(part for part in (user.firstname, user.middlename, user.lastname) if part)
        yield role, ", ".join(part for part in (user.username, names) if part)
