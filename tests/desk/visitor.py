"""A served desk, and visitors who use only the forms and links of its pages, without a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from attrs import define, field
from msgspec.structs import replace

from tests.support.bank import World
from tests.support.pages import Page
from transfer_async import TransferClient
from transfer_async.desk import Operator, Role, desk
from transfer_async.journal import Unread

MOUNT = "/bank/desk"
SAME = {"Sec-Fetch-Site": "same-origin"}
EVERY_ROLE = frozenset(Role)


@define
class Answer:
    """A response and its parsed page."""

    status: int
    headers: Mapping[str, str]
    html: str
    page: Page = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.page = Page(self.html)

    @property
    def text(self) -> str:
        return self.page.text


class Visitor:
    """A user of the desk."""

    def __init__(self, desk: Desk, name: str) -> None:
        self.desk, self.name = desk, name

    async def get(self, path: str = "/", **query: Any) -> Answer:
        return await self.desk.asked("GET", path, who=self.name, params=query)

    async def key(self, key: str = "k", **query: str) -> Answer:
        return await self.get("/key", key=key, **query)

    async def post(self, path: str, fields: Any, headers: Any = SAME) -> Answer:
        """Send fields: a mapping, or pairs if a name is repeated."""
        return await self.desk.asked("POST", path, who=self.name, data=fields, headers=headers)

    async def sends(self, page: Page, form: str, *, headers: Any = SAME, **fields: str) -> Answer:
        """Fill in and send a form of a page. If a review follows, confirm it by typing the key."""
        answer = await self.post(f"/{form}", {**page.forms[form], **fields}, headers=headers)
        review = answer.page.forms.get(form, {})
        if answer.status != 200 or "typed" not in review:
            return answer
        return await self.post(f"/{form}", {**review, "typed": review["key"]}, headers=headers)

    async def does(self, form: str, *, key: str = "k", **fields: str) -> Answer:
        """Open the page of a key and send one of its forms."""
        return await self.sends((await self.key(key)).page, form, **{"reason": "seen", **fields})

    async def follows(self, answer: Answer) -> Answer:
        """Return the page to which a response redirects."""
        path, query = where_to(answer, every=True)
        return await self.get(path, **query)


class Desk:
    """A desk that is being served."""

    def __init__(self, http: TestClient[Any, Any]) -> None:
        self.http = http
        self.operators: dict[str, Operator] = {}
        self.operators_side: Any = None  # the Operators of the client
        self.base = str(http.make_url(MOUNT))

    @classmethod
    @asynccontextmanager
    async def of(cls, client: TransferClient, **settings: Any) -> AsyncIterator[Desk]:
        known: dict[str, Operator] = {}
        app = web.Application()
        settings.setdefault("who", lambda request: known.get(request.headers.get("X-User", "")))
        app.add_subapp(MOUNT, desk(client, **settings))
        async with TestClient(TestServer(app)) as http:
            made = cls(http)
            made.operators, made.operators_side = known, client.operators
            yield made

    def visitor(self, name: str = "ada", roles: Any = EVERY_ROLE) -> Visitor:
        """Return a visitor with these roles."""
        self.operators[name] = Operator(name, roles)
        return Visitor(self, name)

    async def asked(
        self, method: str, path: str, *, who: str = "", headers: Any = None, **more: Any
    ) -> Answer:
        given = {**(headers or {}), **({"X-User": who} if who else {})}
        async with self.http.request(
            method, MOUNT + path, headers=given, allow_redirects=False, **more
        ) as response:
            return Answer(response.status, response.headers, await response.text())


def where_to(answer: Answer, *, every: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the path and the query of a redirect. With ``every``, each query value is a list."""
    assert answer.status == 303, answer.text
    parts = urlsplit(urljoin(f"{MOUNT}/here", answer.headers["Location"]))
    assert parts.path.startswith(MOUNT)
    query = parse_qs(parts.query)
    return parts.path.removeprefix(MOUNT), {
        name: value if every else value[0] for name, value in query.items()
    }


def change_record(world: World, key: str = "k", **changes: Any) -> None:
    """Change a record of a journal in memory, as a faulty store or another version may."""
    entries = world.journal.journal._entries  # type: ignore[attr-defined] # of a MemoryJournal
    entries[world.scope, key] = replace(entries[world.scope, key], **changes)


def corrupt(world: World, key: str = "k", **unread: Any) -> None:
    """Make a record of a journal in memory unreadable, with the hook that it may have left."""
    fields = {"why": "DecodeError", "kept": "{", "hooks": ("funds_hold",), "earlier_hooks": (), **unread}
    change_record(world, key, intent=None, unread=Unread(**fields))
