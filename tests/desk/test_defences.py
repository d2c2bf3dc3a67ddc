"""Protection of the desk: every route, role and origin of a request, and the headers of its responses."""

from typing import Any

import pytest
from aiohttp import web

from tests.desk.visitor import EVERY_ROLE, MOUNT, SAME, Desk, Visitor
from tests.support.bank import World
from tests.support.cases import each
from tests.support.pages import ELSEWHERE
from transfer_async._http.urls import checked_origin
from transfer_async.desk import Operator, Role, desk
from transfer_async.desk.application import HEADERS

ORIGIN = "https://desk.bank.example"
ENCODED = "application/x-www-form-urlencoded"

EVERY_ONE = [frozenset(), *({role} for role in Role)]
ALLOWED = {
    "/find": EVERY_ONE,
    "/audit": EVERY_ONE,
    "/parties": [{Role.PARTIES}],
    "/resolve": [{Role.CHANGE}],
    "/refute": [{Role.CHANGE}],
    "/amend": [{Role.CHANGE}],
    "/takeback": [{Role.CHANGE}],
    "/approve": [{Role.APPROVE}],
    "/withdraw": [{Role.CHANGE}, {Role.APPROVE}],
    "/select": [{Role.CHANGE}],
    "/propose": [{Role.CHANGE}],
    "/note": [{Role.CHANGE}, {Role.APPROVE}],
    "/watch": [{Role.CHANGE}, {Role.APPROVE}],
    "/unwatch": [{Role.CHANGE}, {Role.APPROVE}],
}
"""Each form, with the sets of roles that may send it."""


def routes_of(made: Desk) -> list[tuple[str, str]]:
    """Return every method and path of the desk."""
    (mounted,) = made.http.server.app._subapps
    found = {(route.method, route.resource.canonical) for route in mounted.router.routes() if route.resource}
    return sorted((method, path.removeprefix(MOUNT)) for method, path in found if method != "HEAD")


def filled_in(form: dict[str, str]) -> dict[str, str]:
    return form | {"reason": "seen", "order_id": "tx-abc", "certain": "1", "text": "k", "proposal": "p"}


async def test_every_form_has_a_row_in_the_table_of_roles(desk: Desk):
    assert {path for method, path in routes_of(desk) if method != "GET"} == set(ALLOWED)
    assert {method for method, _ in routes_of(desk)} == {"GET", "POST"}


async def test_a_cross_origin_form_changes_nothing_for_any_role(doubted: World, desk: Desk, ada: Visitor):
    fields = filled_in((await ada.key()).page.forms["resolve"])
    before, host = await doubted.history(), f"{desk.http.host}:{desk.http.port}"

    for path in ALLOWED:
        for headers in ELSEWHERE:
            given = {name: value.format(host=host) for name, value in headers.items()}
            answer = await ada.post(path, fields, headers=given)

            assert (answer.status, path, given) == (403, path, given)
    assert await doubted.history() == before


async def test_each_form_is_accepted_only_from_its_roles(doubted: World, desk: Desk):
    fields = filled_in((await desk.visitor("reader", EVERY_ROLE).key()).page.forms["resolve"])
    before = await doubted.history()

    for path, allowed in ALLOWED.items():
        for roles in EVERY_ONE:
            # With a permitted role, the page is reported as outdated, and nothing is changed.
            fields["stamp"] = "0.stale"
            answer = await desk.visitor("ada", roles).post(path, fields)

            assert (answer.status != 403, path, roles) == (roles in allowed, path, roles)
    assert [step for step in await doubted.history() if not step.startswith("look")] == before


async def test_an_unknown_visitor_cannot_see_or_change_anything(doubted: World, desk: Desk):
    before = await doubted.history()

    for method, path in routes_of(desk):
        answer = await desk.asked(method, path, headers=SAME, params={"key": "k"}, data={"key": "k"})

        assert answer.status == (200 if path in ("/desk.css", "/icon.svg") else 403), path
        assert "155,025" not in answer.html
    assert await doubted.history() == before


async def test_a_get_request_changes_nothing(doubted: World, ada: Visitor):
    before = await doubted.history()

    for path in ALLOWED:
        answer = await ada.get(path, key="k", order_id="tx-abc", reason="seen", certain="1")

        assert answer.status == (200 if path == "/audit" else 405)
        assert answer.headers.get("Allow") == (None if path == "/audit" else "POST")
    assert await doubted.history() == before


async def test_a_browser_that_sends_only_an_origin_header_may_send_forms(
    doubted: World, desk: Desk, ada: Visitor
):
    origin = {"Origin": f"http://{desk.http.host}:{desk.http.port}"}
    answer = await ada.sends(
        (await ada.key()).page, "resolve", headers=origin, order_id="tx-abc", reason="seen"
    )

    assert answer.status == 303


async def test_only_forms_from_the_configured_origin_are_accepted(world: World):
    """A proxy may serve other pages under the host name that it forwards. Only ``origin`` is trusted."""
    await world.in_doubt()
    async with world.client() as client, Desk.of(client, origin=ORIGIN) as made:
        ada = made.visitor()
        page, host = (await ada.key()).page, f"http://{made.http.host}:{made.http.port}"
        others = ("null", "https://other.bank.example", f"{ORIGIN}.evil.example")
        refused = [{"Origin": host}, SAME, *({**SAME, "Origin": origin} for origin in others)]
        accepted = [{"Origin": ORIGIN}, {**SAME, "Origin": ORIGIN}]
        tried = [
            (await ada.sends(page, "resolve", headers=headers, order_id="tx-abc", reason="seen")).status
            for headers in (*refused, *accepted)
        ]

    assert tried == [403] * 5 + [303, 409]  # the last form is out of date


async def test_the_mount_point_without_its_slash_redirects_to_the_list(desk: Desk, ada: Visitor):
    answer = await ada.get("", live="1")
    odd = await desk.asked("GET", "?cause=a%26b", who="ada")

    assert (answer.status, answer.headers["Location"]) == (303, "./desk/?live=1")
    assert odd.headers["Location"] == "./desk/?cause=a%26b"
    assert (await desk.asked("GET", "")).status == 403


@each(
    "origin",
    [
        *("desk.bank.example", "https://desk.bank.example/", "ftp://a.example", "https://", 7, ""),
        *("https://u:p@a.example", "https://@a.example", "https://a b", "https://a.example:", "https://*"),
        *("https://a.example:99999", "https://a.example:x", "https://a.example:-1", "https://[::1", "null"),
        *("https://a.example?", "https://a.example#", "https://a\\b", "https://a%2eb", "https://a..b"),
        *("https://[::1%lo]", "https://[1.2.3.4]", "https://a\tb", "https://a.example\n", "https:///a"),
    ],
)
def test_an_invalid_origin_setting_is_rejected(origin: object):
    with pytest.raises(ValueError, match=r"^origin: "):
        checked_origin(origin)  # type: ignore[arg-type] # deliberately wrong


@each(
    ("origin", "sent"),
    [
        ("https://desk.bank.example:443", "https://desk.bank.example"),
        ("http://desk.bank.example:80", "http://desk.bank.example"),
        ("http://desk.bank.example:443", "http://desk.bank.example:443"),
        ("https://desk.bank.example:08443", "https://desk.bank.example:8443"),
        ("HTTPS://Desk.Bank.Example", "https://desk.bank.example"),
        ("https://désk.bank.example", "https://xn--dsk-bma.bank.example"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("https://[0:0:0:0:0:0:0:1]", "https://[::1]"),
        ("https://desk_1.bank.example", "https://desk_1.bank.example"),
    ],
)
def test_an_origin_is_normalized_as_browsers_send_it(origin: str, sent: str):
    """Without this, every form is refused, and nobody can end a doubt at the desk."""
    assert checked_origin(origin) == sent


async def test_every_response_forbids_frames_scripts_and_caching(doubted: World, desk: Desk, ada: Visitor):
    answers = [
        *[await ada.get(path) for method, path in routes_of(desk) if method == "GET"],
        await ada.key(),
        await ada.key("nobody knows it"),
        await ada.get("/nothing-here"),
        await ada.get("/resolve"),
        await ada.post("/resolve", {"key": "k"}),
        await ada.post("/resolve", {"key": "k"}, headers={}),
        await ada.does("resolve", order_id="tx-abc"),
        await desk.asked("GET", "/"),
    ]

    assert {answer.status for answer in answers} == {200, 303, 403, 404, 405, 409}
    for answer in answers:
        assert HEADERS.items() <= dict(answer.headers).items()
    assert HEADERS == {
        "Content-Security-Policy": (
            "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
            "frame-ancestors 'none'; base-uri 'none'"
        ),
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "X-Robots-Tag": "noindex, nofollow",
    }


async def test_no_page_uses_scripts_inline_styles_or_other_hosts(doubted: World, desk: Desk, ada: Visitor):
    pages = [await ada.get(path) for path in ("/", "/key?key=k", "/audit")]
    pages.append(await desk.asked("GET", "/"))

    for tag, attributes in [item for shown in pages for item in shown.page.tags]:
        assert tag not in ("script", "style", "iframe", "object", "base")
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        for name in ("href", "src", "action"):
            assert "//" not in (attributes.get(name) or "")


@each(
    ("kind", "body", "status"),
    [
        ("application/json", b"key=k", 415),
        ("text/plain", b"key=k", 415),
        ("multipart/form-data; boundary=x", b"key=k", 415),
        (ENCODED, b"key=k&key=other", 400),
        (ENCODED, b"key=" + b"k" * 10_001, 400),
        (ENCODED, b"key=\xff\xfe", 400),
        (f"{ENCODED}; charset=utf-8", b"key=\xff\xfe", 400),
        (f"{ENCODED}; charset=klingon", b"key=\xff\xfe", 400),
        (f"{ENCODED}; charset=unicode_escape", b"key=k&stamp=x&text=\\ud800&reason=\\ud800", 400),
    ],
)
async def test_a_form_of_another_type_or_encoding_is_rejected(
    ada: Visitor, kind: str, body: bytes, status: int
):
    for path in ("/find", "/resolve", "/parties"):
        headers = {**SAME, "Content-Type": kind}
        answer = await ada.desk.asked("POST", path, who="ada", headers=headers, data=body)

        assert (answer.status, path) == (status, path)


def locked(_: web.Request) -> Operator:
    raise RuntimeError("ada.eze@example.com is locked")


@each(("who", "error"), [(locked, "RuntimeError"), (lambda _: "ada.eze@example.com", "TypeError")])
async def test_an_internal_error_shows_and_logs_no_details(
    world: World, caplog: pytest.LogCaptureFixture, who: Any, error: str
):
    async with world.client() as client, Desk.of(client, who=who) as made:
        answer = await made.asked("GET", "/key", params={"key": "ada.eze@example.com"})

    assert answer.status == 500
    assert "ada.eze" not in answer.html + caplog.text
    assert f"the desk failed on GET /bank/desk/key ({error})" in caplog.text


async def test_an_unreadable_journal_is_reported_as_unavailable(doubted: World, ada: Visitor):
    await doubted.journal.journal.close()

    async def gone(*_: object, **__: object) -> None:
        raise OSError("disk gone")

    doubted.journal.read = doubted.journal.work = gone  # type: ignore[assignment,method-assign] # a store that is gone
    for page in (await ada.get(), await ada.key()):
        assert page.status == 503
        assert "The journal failed" in page.text


async def test_the_desk_requires_a_who_callback_and_a_transfer_client(world: World):
    async with world.client() as client:
        with pytest.raises(TypeError):
            desk(client)  # type: ignore[call-arg] # deliberately wrong
        with pytest.raises(ValueError, match=r"^who: "):
            desk(client, who=None)  # type: ignore[arg-type] # another
        with pytest.raises(ValueError, match=r"^who: is the class"):
            desk(client, who=Operator)  # type: ignore[arg-type] # another
        with pytest.raises(ValueError, match=r"^client: must be a TransferClient, not a "):
            desk(world.journal, who=lambda _: None)  # type: ignore[arg-type] # another
