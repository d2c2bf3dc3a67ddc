"""Authentication and roles at the desk."""

from typing import Any

import pytest
from aiohttp import web

from tests.desk.visitor import Desk
from tests.support.bank import World
from tests.support.cases import each
from transfer_async.desk import Operator, Role
from transfer_async.desk.application import HEADERS


def test_roles_may_be_given_by_their_values():
    assert Operator("ada", ["change", Role.PARTIES]).roles == {Role.CHANGE, Role.PARTIES}


@pytest.mark.parametrize("roles", ["change", ["changes"], 7, [None]])
def test_an_unknown_role_is_rejected(roles: Any):
    with pytest.raises(ValueError, match=r"^roles: .*'parties', 'change', 'approve'"):
        Operator("ada", roles)


@each("name", ["", " ", "ada ", "two\nlines", "a" * 201, None, 7])
def test_an_operators_name_must_be_one_line_of_text(name: Any):
    with pytest.raises(ValueError, match=r"^name: "):
        Operator(name)


async def test_the_who_callback_may_be_async(world: World):
    async def who(request: web.Request) -> Operator:
        return Operator("ada")

    async with world.client() as client, Desk.of(client, who=who) as made:
        assert (await made.asked("GET", "/")).status == 200


async def test_the_who_callback_may_redirect_to_a_sign_in_page(world: World):
    def who(request: web.Request) -> Operator:
        raise web.HTTPFound("https://sso.bank.example/")

    async with world.client() as client, Desk.of(client, who=who) as made:
        answer = await made.asked("GET", "/")

    assert (answer.status, answer.headers["Location"]) == (302, "https://sso.bank.example/")
    assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("error", [web.HTTPUnauthorized, web.HTTPForbidden, web.HTTPServiceUnavailable])
async def test_sign_in_headers_raised_by_who_reach_the_browser(world: World, error: Any):
    """Without ``WWW-Authenticate``, no browser asks for a password, so nobody can sign in."""

    def who(request: web.Request) -> Operator:
        answer = error(
            headers={
                "WWW-Authenticate": 'Basic realm="desk"',
                "Retry-After": "7",
                "X-Frame-Options": "ALLOW",
            },
            text="raised for ada.eze@example.com",
            content_type="text/x-own",
        )
        answer.headers.add("WWW-Authenticate", "Negotiate")
        answer.headers.add("Set-Cookie", "first=1")
        answer.set_cookie("second", "2", httponly=True)
        raise answer

    async with world.client() as client, Desk.of(client, who=who) as made:
        answer = await made.asked("GET", "/key", params={"key": "k"})

    headers: Any = answer.headers
    assert answer.status == error.status_code
    assert headers.getall("WWW-Authenticate") == ['Basic realm="desk"', "Negotiate"]
    assert headers.getall("Set-Cookie") == ["first=1", "second=2; HttpOnly; Path=/"]
    assert headers["Retry-After"] == "7"
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "ada.eze" not in answer.html
    assert HEADERS.items() <= dict(headers).items()
