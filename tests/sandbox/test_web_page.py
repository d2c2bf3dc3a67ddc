"""The sandbox's web page: its content, and what its buttons do."""

import html
import sys
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.sandbox.wire_client import Answer, WireClient, connected, order_body
from tests.support.cases import each
from tests.support.pages import ELSEWHERE, Page
from transfer_async.sandbox import FAULTS, Sandbox, StallAfterProcessing, StallBeforeProcessing, Status
from transfer_async.sandbox.control import FAULT_BUTTONS, MAX_INDENTED, _template, indented

SAME = {"Sec-Fetch-Site": "same-origin"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
FORMS = ("match", "arm", "forget", "release")
INDENTED = """{
  "b": 1.50,
  "a": [
    {
      "x{": "\\u00e9, :"
    },
    []
  ],
  "b": {},
  "c": 1e2
}"""
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def read(answer: Answer) -> Page:
    return Page(answer.body.decode())


class Developer:
    """A browser with a session cookie."""

    def __init__(self, client: WireClient, cookie: str) -> None:
        self.client, self.cookie = client, cookie

    async def get(self, path: str = "/sandbox/") -> Answer:
        return await self.client.get(path, headers={"Authorization": None, "Cookie": self.cookie})

    async def post(self, form: str, body: bytes = b"", headers: Any = SAME) -> Answer:
        given = {"Authorization": None, "Cookie": self.cookie, **FORM}
        return await self.client.ask(body, path=f"/sandbox/page/{form}", headers=given | headers)

    async def sees(self, path: str = "/sandbox/") -> Page:
        return read(await self.get(path))


async def entered(client: WireClient, token: str) -> Answer:
    headers = {"Authorization": None, **FORM, **SAME}
    return await client.ask(f"token={token}".encode(), path="/sandbox/enter", headers=headers)


@pytest.fixture
async def developer(sandbox: Sandbox, client: WireClient) -> Developer:
    answer = await entered(client, sandbox.token)
    assert (answer.status, answer.headers["Location"]) == (303, "/sandbox/")
    assert answer.headers["Set-Cookie"].endswith("; Path=/sandbox/; HttpOnly; SameSite=Strict")
    return Developer(client, answer.headers["Set-Cookie"].partition(";")[0])


async def test_the_page_states_in_large_letters_that_it_is_not_the_service(developer: Developer):
    shown = await developer.sees()

    assert ("p", {"class": "big"}) in shown.tags
    assert "SANDBOX This is not the service. No money moves." in shown.text


async def test_orders_are_shown_with_their_states(client: WireClient, developer: Developer):
    made = (await client.ask(order_body())).json
    before = (await developer.sees()).text
    await developer.post("match")
    after = (await developer.sees()).text

    row = f"{made['id']} 155,025.00 NGN ada.eze@example.com to ben.okri@example.com"
    assert f"{row} processing" in before
    assert f"{row} matched" in after


async def test_requests_are_shown_as_received_but_without_the_token(
    sandbox: Sandbox, client: WireClient, developer: Developer
):
    await client.ask(order_body(poster_amount="7"))
    shown = (await developer.sees()).text

    assert "POST /api/api/v1/order/create 422" in shown
    assert '"poster_amount": "7"' in shown
    assert sandbox.token not in shown
    assert "GET /sandbox/" not in shown


async def test_every_fault_is_added_with_a_click(sandbox: Sandbox, developer: Developer):
    shown = await developer.sees()
    for name in FAULT_BUTTONS:
        await developer.post("arm", urlencode({"fault": name}).encode())

        assert ("button", {"name": "fault", "value": name}) in shown.tags
    assert {rule.fault.name for rule in sandbox.faults.rules} == set(FAULTS)
    assert "Next faults: close-before-reading close-after-processing" in (await developer.sees()).text


async def test_faults_are_shown_with_their_settings_and_removed_with_a_click(
    sandbox: Sandbox, developer: Developer
):
    sandbox.faults.add(Status(503, headers={"Retry-After": "7"}), times=3, username="ada", amount=7)
    sandbox.faults.add(StallBeforeProcessing(), times=None, probability=0.5)
    sandbox.faults.mix({StallAfterProcessing(2.5): 0.02})
    shown = (await developer.sees()).text
    await developer.post("forget")

    options = 'status 503, headers Retry-After: 7, body {"message": "A scripted fault."}'
    assert f"status ({options}), 3 times, username ada, amount 7" in shown
    assert "stall-before-processing, any number of times, probability 0.5" in shown
    assert "2 % of the requests: stall-after-processing (seconds 2.5)" in shown
    assert sandbox.faults.rules == ()


async def test_a_json_body_is_indented_and_otherwise_as_sent(client: WireClient, developer: Developer):
    await client.ask(b'{"b": 1.50, "a": [{"x{": "\\u00e9, :"}, []], "b": {}, "c": 1e2}')
    await client.ask(b"{not: json, [")
    shown = (await developer.get()).body.decode()

    bodies = [html.unescape(part.partition("</pre>")[0]) for part in shown.split("<pre>")[1:]]
    assert bodies == ["{not: json, [", INDENTED]


@each(
    ("opening", "item", "closing"),
    [("[", "", "]"), ('{"":', "0", "}"), ("[" * 100, "1," * 9_000 + "1", "]" * 100)],
)
def test_the_indentation_of_a_deeply_nested_body_is_bounded(opening: str, item: str, closing: str):
    times = (MAX_INDENTED - len(item)) // len(opening + closing)
    body = opening * times + item + closing * times

    assert indented(body.encode()) == body


async def test_the_page_escapes_what_was_sent(client: WireClient, developer: Developer):
    await client.ask(order_body(poster_username=HOSTILE, poster_country="\x00\x1b[2J"))
    await client.get("/api/" + HOSTILE.replace(" ", "%20"))
    await client.ask(b"\xff\xfe<script>")
    shown = await developer.sees()

    assert {"script", "img"} & {name for name, _ in shown.tags} == set()
    assert "alert(1)" in shown.text


# --- who may see and change what ----------------------------------------------------------------


@each("headers", ELSEWHERE)
async def test_a_form_sent_by_another_page_is_refused(
    sandbox: Sandbox, developer: Developer, headers: dict[str, str]
):
    given = {name: value.format(host="sandbox") for name, value in headers.items()}
    for form in FORMS:
        assert (await developer.post(form, b"fault=status", headers=given)).status == 403
    assert sandbox.faults.rules == ()


async def test_a_form_with_only_an_origin_header_is_accepted(developer: Developer):
    assert (await developer.post("match", headers={"Origin": "http://sandbox"})).status == 303


@each("cookie", ["", "transfer_sandbox=guessed", "transfer_sandbox=\u00fc", "a b;;=="])
async def test_without_the_token_nothing_is_shown_or_changed(
    sandbox: Sandbox, client: WireClient, cookie: str
):
    await client.ask(order_body())
    stranger = Developer(client, cookie)
    pages = [await stranger.sees(), await stranger.sees("/sandbox/live")]
    forms = [await stranger.post(form, b"fault=status") for form in FORMS]

    assert all("ada.eze" not in page.html for page in pages)
    assert "Token, as printed by the sandbox" in pages[0].text
    assert {answer.status for answer in forms} == {403}
    assert sandbox.faults.rules == ()


async def test_a_wrong_token_is_refused_with_a_message(client: WireClient):
    answer = await entered(client, "guessed")

    assert answer.status == 403
    assert "This is not the sandbox's token." in read(answer).text
    assert "Set-Cookie" not in answer.headers


async def test_a_second_sandbox_keeps_the_session_of_the_first_and_other_cookies_are_ignored(
    developer: Developer,
):
    """Browsers send a cookie to every port, so a cookie of the same name would replace the first one."""
    async with Sandbox() as second, connected(second) as client:
        answer = await entered(client, second.token)
    another = answer.headers["Set-Cookie"].partition(";")[0]

    assert another.partition("=")[0] != developer.cookie.partition("=")[0]
    among = Developer(developer.client, f"a/b=1; {developer.cookie}; {another}; c")
    assert "What the client did Run the matcher bot now" in (await among.sees()).text


# --- paths and forms ----------------------------------------------------------------------------


@each("form", FORMS)
@each("path", ["/sandbox/", "/sandbox/live"])
async def test_a_click_returns_to_the_page_that_it_was_on(developer: Developer, path: str, form: str):
    page = await developer.sees(path)
    fields = {given["name"]: given["value"] for tag, given in page.tags if tag == "input"}
    body = urlencode({**fields, "fault": next(iter(FAULT_BUTTONS))}).encode()
    answer = await developer.post(form, body)

    assert (answer.status, answer.headers["Location"]) == (303, path)


async def test_only_the_live_page_reloads(developer: Developer):
    pages = [await developer.get(path) for path in ("/sandbox/", "/sandbox/live")]

    assert [page.headers.get("Refresh") for page in pages] == [None, "2"]


@each(
    ("method", "path", "status"),
    [
        ("POST", "/sandbox/", 405),
        ("GET", "/sandbox/page/match", 405),
        ("GET", "/sandbox/enter", 405),
        ("GET", "/sandbox/page.css", 200),
    ],
)
async def test_each_path_has_its_method(client: WireClient, method: str, path: str, status: int):
    answer = await client.ask(method=method, path=path, headers=SAME)

    assert answer.status == status
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@each(("form", "body"), [("arm", b"fault=none"), ("arm", b"&".join([b"a=1"] * 99)), ("else", b"")])
async def test_an_unknown_form_is_refused(developer: Developer, form: str, body: bytes):
    assert (await developer.post(form, body)).status == 404


async def test_without_jinja_the_page_names_the_extra_and_the_service_works(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
):
    _template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = await Developer(client, "").get()
    created = await client.ask(order_body())
    monkeypatch.undo()

    assert (page.status, page.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert page.body.decode() == "The sandbox's page needs Jinja2: pip install 'transfer_async[desk]'"
    assert created.status == 200
    assert "Token" in (await Developer(client, "").sees()).text
