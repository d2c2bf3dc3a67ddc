"""Protection of the desk: every route, role and origin of a request, and the headers of its responses."""

from itertools import chain

import pytest
from aiohttp import web

from tests.desk.visitor import EVERY_ROLE, MOUNT, SAME, Desk
from tests.support.bank import World
from tests.support.cases import each
from tests.support.pages import ELSEWHERE
from transfer_async._http.urls import checked_origin
from transfer_async.desk import Operator, Role, desk
from transfer_async.desk.application import HEADERS

ALLOWED = {
    "/find": [frozenset(), *({role} for role in Role)],
    "/audit": [frozenset(), *({role} for role in Role)],
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


def filled_in(html_fields: dict[str, str]) -> dict[str, str]:
    return {
        **html_fields,
        "reason": "seen",
        "order_id": "tx-abc",
        "certain": "1",
        "text": "k",
        "proposal": "p",
    }


async def test_every_form_has_a_row_in_the_table_of_roles(desk: Desk):
    assert {path for method, path in routes_of(desk) if method != "GET"} == set(ALLOWED)
    assert {method for method, _ in routes_of(desk)} == {"GET", "POST"}


async def test_a_cross_origin_form_changes_nothing_for_any_role(doubted: World, desk: Desk):
    ada = desk.visitor(roles=EVERY_ROLE)
    fields = filled_in((await ada.key()).page.forms["resolve"])
    before, host = await doubted.told(), f"{desk.http.host}:{desk.http.port}"

    for path in ALLOWED:
        for headers in ELSEWHERE:
            given = {name: value.format(host=host) for name, value in headers.items()}
            answer = await ada.post(path, fields, headers=given)

            assert (answer.status, path, given) == (403, path, given)
    assert await doubted.told() == before


async def test_each_form_is_accepted_only_from_its_roles(doubted: World, desk: Desk):
    fields = filled_in((await desk.visitor("reader", EVERY_ROLE).key()).page.forms["resolve"])
    before = await doubted.told()

    for path, allowed in ALLOWED.items():
        for roles in (frozenset(), *({role} for role in Role)):
            # With a permitted role, the page is reported as outdated, and nothing is changed.
            fields["stamp"] = "0.stale"
            answer = await desk.visitor("ada", roles).post(path, fields)

            assert (answer.status != 403, path, roles) == (roles in allowed, path, roles)
    assert [step for step in await doubted.told() if not step.startswith("look")] == before


async def test_an_unknown_visitor_cannot_see_or_change_anything(doubted: World, desk: Desk):
    before = await doubted.told()

    for method, path in routes_of(desk):
        answer = await desk.asked(method, path, headers=SAME, params={"key": "k"}, data={"key": "k"})

        assert answer.status == (200 if path in ("/desk.css", "/icon.svg") else 403), path
        assert "155,025" not in answer.html
    assert await doubted.told() == before


async def test_a_get_request_changes_nothing(doubted: World, desk: Desk):
    ada, before = desk.visitor(), await doubted.told()

    for path in ALLOWED:
        answer = await ada.get(path, key="k", order_id="tx-abc", reason="seen", certain="1")

        assert answer.status == (200 if path == "/audit" else 405)
        assert answer.headers.get("Allow") == (None if path == "/audit" else "POST")
    assert await doubted.told() == before


async def test_a_browser_that_sends_only_an_origin_header_may_send_forms(doubted: World, desk: Desk):
    ada = desk.visitor()
    page = (await ada.key()).page
    origin = {"Origin": f"http://{desk.http.host}:{desk.http.port}"}

    answer = await ada.sends(page, "resolve", headers=origin, order_id="tx-abc", reason="seen")

    assert answer.status == 303


async def test_behind_a_proxy_the_configured_origin_counts(world: World):
    await world.in_doubt()
    async with world.client() as client, Desk.of(client, origin="https://desk.bank.example") as made:
        ada = made.visitor()
        page, host = (await ada.key()).page, f"{made.http.host}:{made.http.port}"

        given = {"order_id": "tx-abc", "reason": "seen"}
        inside = await ada.sends(page, "resolve", headers={"Origin": f"http://{host}"}, **given)
        outside = await ada.sends(page, "resolve", headers={"Origin": "https://desk.bank.example"}, **given)

    assert (inside.status, outside.status) == (403, 303)


async def test_a_same_host_form_is_rejected_if_another_origin_is_configured(world: World):
    """A proxy may serve other pages under the host name that it forwards. Only ``origin`` is trusted."""
    await world.in_doubt()
    async with world.client() as client, Desk.of(client, origin="https://desk.bank.example") as made:
        ada = made.visitor()
        page = (await ada.key()).page
        tried = [
            await ada.sends(page, "resolve", headers={**SAME, **origin}, order_id="tx-abc", reason="seen")
            for origin in (
                {},
                {"Origin": "null"},
                {"Origin": "https://other.bank.example"},
                {"Origin": "https://desk.bank.example"},
            )
        ]

    assert [answer.status for answer in tried] == [403, 403, 403, 303]


async def test_the_mount_point_without_its_slash_redirects_to_the_list(desk: Desk):
    answer = await desk.visitor().get("", live="1")

    assert (answer.status, answer.headers["Location"]) == (303, "./desk/?live=1")
    odd = await desk.asked("GET", "?cause=a%26b", who="ada")
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
        checked_origin(origin)  # type: ignore[arg-type] # a wrong use, on purpose


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


async def test_every_response_forbids_frames_scripts_and_caching(doubted: World, desk: Desk):
    ada = desk.visitor()
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
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


async def test_no_page_uses_scripts_inline_styles_or_other_hosts(doubted: World, desk: Desk):
    ada = desk.visitor()

    pages = [(await ada.get(path)).page for path in ("/", "/key?key=k", "/audit")]
    pages.append((await desk.asked("GET", "/")).page)

    tags = list(chain.from_iterable(page.tags for page in pages))
    assert {name for name, _ in tags} & {"script", "style", "iframe", "object", "base"} == set()
    for _, attributes in tags:
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        for name in ("href", "src", "action"):
            assert "//" not in (attributes.get(name) or "")


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x"])
async def test_a_form_with_another_content_type_is_rejected(doubted: World, desk: Desk, kind: str):
    desk.visitor()

    answer = await desk.asked(
        "POST", "/resolve", who="ada", headers={**SAME, "Content-Type": kind}, data=b"key=k"
    )

    assert answer.status == 415


async def test_a_repeated_or_oversized_field_is_rejected(doubted: World, desk: Desk):
    desk.visitor()
    kind = {**SAME, "Content-Type": "application/x-www-form-urlencoded"}

    twice = await desk.asked("POST", "/resolve", who="ada", headers=kind, data=b"key=k&key=other")
    endless = await desk.asked("POST", "/resolve", who="ada", headers=kind, data=b"key=" + b"k" * 10_001)

    assert (twice.status, endless.status) == (400, 400)


@pytest.mark.parametrize("kind", ["", "; charset=utf-8", "; charset=klingon"])
async def test_a_form_that_cannot_be_decoded_is_rejected(world: World, desk: Desk, kind: str):
    desk.visitor()
    headers = {**SAME, "Content-Type": f"application/x-www-form-urlencoded{kind}"}

    answer = await desk.asked("POST", "/resolve", who="ada", headers=headers, data=b"key=\xff\xfe")

    assert answer.status == 400


async def test_an_internal_error_shows_and_logs_no_details(world: World, caplog: pytest.LogCaptureFixture):
    def who(_: web.Request) -> Operator:
        raise RuntimeError("ada.eze@example.com is locked")

    async with world.client() as client, Desk.of(client, who=who) as made:
        answer = await made.asked("GET", "/key", params={"key": "ada.eze@example.com"})

    assert answer.status == 500
    assert "ada.eze" not in answer.html
    assert "ada.eze" not in caplog.text
    assert "RuntimeError" in caplog.text


async def test_an_unreadable_journal_is_reported_as_unavailable(doubted: World, desk: Desk):
    ada = desk.visitor()
    await doubted.journal.journal.close()

    async def gone(*_: object, **__: object) -> None:
        raise OSError("disk gone")

    doubted.journal.read = doubted.journal.work = gone  # type: ignore[assignment,method-assign] # a store that is gone
    pages = [await ada.get(), await ada.key()]

    assert [page.status for page in pages] == [503, 503]
    assert all("The journal failed" in page.text for page in pages)


async def test_the_desk_requires_a_who_callback_and_a_transfer_client(world: World):
    async with world.client() as client:
        with pytest.raises(TypeError):
            desk(client)  # type: ignore[call-arg] # a wrong use, on purpose
        with pytest.raises(ValueError, match=r"^who: "):
            desk(client, who=None)  # type: ignore[arg-type] # another
        with pytest.raises(ValueError, match=r"^who: is the class"):
            desk(client, who=Operator)  # type: ignore[arg-type] # another
        with pytest.raises(ValueError, match=r"^client: must be a TransferClient, not a "):
            desk(world.journal, who=lambda _: None)  # type: ignore[arg-type] # another


async def test_an_origin_that_only_starts_like_the_configured_one_is_rejected(world: World):
    await world.in_doubt()
    origin = "https://desk.bank.example"
    async with world.client() as client, Desk.of(client, origin=origin) as made:
        ada = made.visitor()
        page = (await ada.key()).page
        given = {"order_id": "tx-abc", "reason": "seen"}
        answer = await ada.sends(page, "resolve", headers={"Origin": f"{origin}.evil.example"}, **given)

    assert answer.status == 403


async def test_pages_are_not_cached_framed_or_sniffed(world: World):
    async with world.client() as client, Desk.of(client) as desk:
        answer = await desk.visitor().get()

    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
