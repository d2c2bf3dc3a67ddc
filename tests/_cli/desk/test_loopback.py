"""The command `desk`: it serves one browser on loopback, which signs in with a one-time address."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from tests.desk.visitor import SAME
from tests.support.bank import World
from tests.support.cases import each
from tests.support.commands import asked, invoke
from tests.support.pages import ELSEWHERE, Page
from transfer_async import Operators, SQLiteJournal
from transfer_async._cli import servers
from transfer_async.desk import Operator, Role
from transfer_async.desk.application import HEADERS
from transfer_async.desk.views import PageStyle
from transfer_async.sandbox import Sandbox


class Served:
    """A running `desk` command with a browser; the command is stopped as by Ctrl-C."""

    def __init__(self, http: aiohttp.ClientSession, lines: asyncio.Queue[str], world: World) -> None:
        self.http, self.lines, self.world = http, lines, world
        self.address = ""

    async def enters(self) -> str:
        """Open the printed address. Return the address of the desk."""
        async with self.http.get(self.address, allow_redirects=False) as answer:
            assert answer.status == 303
            return urljoin(self.address, answer.headers["Location"])

    @property
    def origin(self) -> str:
        return self.address.partition("/enter")[0]

    async def get(self, path: str, **options: object) -> tuple[int, str, str]:
        """Return the status, the text and the cookie of a response. Redirects are not followed."""
        url = path if "://" in path else self.origin + path
        async with self.http.get(url, allow_redirects=False, **options) as answer:  # type: ignore[arg-type] # options of any kind
            return answer.status, await answer.text(), answer.headers.get("Set-Cookie", "")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    lines: asyncio.Queue[str] = asyncio.Queue()
    async with Sandbox() as sandbox:
        world = World(sandbox)
        clock = world.time.clock
        world.journal.journal = SQLiteJournal(tmp_path / "journal.db", clock=clock)
        await world.in_doubt("payment-1")
        world.time.pass_(600)
        journal = SQLiteJournal(tmp_path / "journal.db", clock=clock)
        operators, operator = Operators(journal, world.scope, clock=clock), Operator("ada", [Role.CHANGE])
        say, style = lines.put_nowait, PageStyle(label="live", colour="#8a0000")
        serving = asyncio.create_task(
            servers.serve_desk(operators, journal, operator, port=0, say=say, style=style, clock=clock)
        )
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            made = Served(http, lines, world)
            assert "serving the desk for ada until Ctrl-C" in await lines.get()
            made.address = await lines.get()
            yield made
        os.kill(os.getpid(), signal.SIGINT)
        await serving
        assert await lines.get() == "desk stopped"
        await world.journal.journal.close()


async def test_the_address_lets_one_browser_in_once(served):
    assert re.match(r"http://127\.0\.0\.1:\d+/enter\?token=[\w-]{43}$", served.address)
    served.world.time.pass_(10 * servers.IDLE_TIMEOUT)  # the address stays valid until it is used
    desk = await served.enters()
    inside = await served.get(desk)
    again = await served.get(served.address)
    async with aiohttp.ClientSession() as other, other.get(desk) as outside:
        assert outside.status == 403

    assert [inside[0], again[0]] == [200, 403]
    assert "payment-1" in inside[1]
    assert "(1) Keys that need attention – live" in inside[1]
    assert "works only once" in again[1]


async def test_another_server_of_this_machine_is_not_sent_the_cookie(served):
    """Browsers send cookies to every port, so another local server could use the cookie."""
    _, _, cookie = await served.get(served.address)
    (morsel,) = SimpleCookie(cookie).values()

    assert (morsel["httponly"], morsel["samesite"], morsel["domain"]) == (True, "Strict", "")
    assert re.fullmatch(r"/[\w-]{43}", morsel["path"])
    assert morsel.value not in served.address
    assert morsel["path"] not in served.address


async def test_another_desk_on_this_machine_signs_nobody_out(served):
    desk = await served.enters()
    second = servers.Entrance(Operator("ben"))
    _, _, token = second.opened(1).partition("token=")
    request = make_mocked_request("GET", f"/enter?token={token}", headers={"Host": "127.0.0.1:1"})
    sent = SimpleCookie((await second.enter(request)).cookies.output(header=""))
    served.http.cookie_jar.update_cookies(sent, URL(served.origin))

    assert (await served.get(desk))[0] == 200


async def test_a_prefetch_or_a_wrong_token_does_not_use_up_the_address(served):
    prefetch = {"method": "GET", "headers": {"Sec-Purpose": "prefetch;prerender"}}
    for request in ({"method": "HEAD"}, prefetch):
        async with served.http.request(url=served.address, allow_redirects=False, **request) as answer:
            assert (answer.status, "Set-Cookie" in answer.headers) == (405, False)
    wrong = [await served.get(f"/enter{query}") for query in ("", "?token=", "?token=x", "?token=\u00fc")]

    assert {status for status, _, _ in wrong} == {403}
    assert (await served.get(served.address))[0] == 303


async def test_responses_outside_the_desk_forbid_frames_and_scripts_too(served):
    for method, path in (("GET", "/"), ("POST", "/enter"), ("GET", "/desk/")):
        async with served.http.request(method, served.origin + path) as answer:
            assert answer.status in (404, 405)
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


async def test_the_local_desk_rejects_any_other_host_header(served):
    """A foreign site's host name can resolve to this machine (DNS rebinding)."""
    elsewhere = {"Host": "evil.example"}
    tried = await served.get(served.address, headers=elsewhere)
    inside = await served.get(await served.enters(), headers=elsewhere)

    assert (tried[0], inside[0]) == (403, 403)


async def test_a_decision_is_recorded_in_the_journal(served):
    desk = await served.enters()
    _, html, _ = await served.get(f"{desk}key?key=payment-1")
    fields = {**Page(html).forms["resolve"], "order_id": "tx-abc", "reason": "seen"}
    async with served.http.post(f"{desk}resolve", data=fields, headers=SAME) as answer:
        text = await answer.text()

    assert "Saved: the order exists." in text
    assert (await served.world.entry("payment-1")).order_id == "tx-abc"


async def test_signing_out_invalidates_the_cookie_and_prints_a_new_address(served):
    desk = await served.enters()
    assert "sign-out" in Page((await served.get(desk))[1]).forms
    async with served.http.post(f"{desk}sign-out", headers=SAME) as answer:
        status, text = answer.status, await answer.text()
    outside = await served.get(desk)

    assert (status, outside[0]) == (200, 403)
    assert "Signed out. The terminal that runs the desk command shows a new address." in text
    assert "payment-1" not in text + outside[1]
    assert await served.lines.get() == "signed out; this address works once, in one browser:"
    served.address = await served.lines.get()
    assert (await served.get(await served.enters()))[0] == 200


async def test_no_other_page_signs_the_operator_out(served):
    desk = await served.enters()
    for method, headers, status in [("GET", SAME, 405), *(("POST", headers, 403) for headers in ELSEWHERE)]:
        given = {name: value.format(host=URL(desk).authority) for name, value in headers.items()}
        async with served.http.request(method, f"{desk}sign-out", headers=given) as answer:
            assert (answer.status, given) == (status, given)

    assert (await served.get(desk))[0] == 200


async def test_an_idle_browser_is_signed_out(served):
    desk, pass_ = await served.enters(), served.world.time.pass_
    used = []
    for _ in range(3):
        pass_(servers.IDLE_TIMEOUT - 1)
        used.append((await served.get(desk))[0])
    pass_(servers.IDLE_TIMEOUT)
    ended, after = await served.get(desk), await served.get(desk)

    assert (used, ended[0], after[0]) == ([200, 200, 200], 401, 403)
    assert "Signed out after 30 minutes of inactivity." in ended[1]
    assert "payment-1" not in ended[1] + after[1]
    message = "signed out after 30 minutes of inactivity; this address works once, in one browser:"
    assert await served.lines.get() == message
    served.address = await served.lines.get()
    assert (await served.get(await served.enters()))[0] == 200


@pytest.mark.parametrize("query", ["?live=1", "?wall=1"])
async def test_a_page_that_reloads_itself_does_not_prolong_the_session(served, query):
    desk, pass_ = await served.enters(), served.world.time.pass_
    statuses = []
    for _ in range(2):
        pass_(servers.IDLE_TIMEOUT / 2)
        statuses.append((await served.get(f"{desk}{query}"))[0])
    messages = [await served.lines.get(), await served.lines.get()]

    assert statuses == [200, 401]
    assert len(messages) == 2


# --- the command ----------------------------------------------------------------------------------


@each(
    ("arguments", "code", "message"),
    [
        ("--journal nowhere.db --scope live", 2, "--journal: the file nowhere.db does not exist"),
        ("--journal {path}", 2, "--scope, --base-url or TRANSFER_BASE_URL is required"),
        ("--journal {path} --scope live --may everything", 2, "roles: must be among"),
        ("--journal {path} --scope live --by two\nlines", 2, "name: must be a non-empty line"),
        ("--journal {path} --scope live --settle-after -1", 2, "settle_after: "),
        ("--journal {path} --scope live --by ada", 1, ""),  # the file is no journal
    ],
)
async def test_wrong_usage_is_reported_in_one_line(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSFER_BASE_URL", raising=False)
    path = tmp_path / "journal.db"
    await asyncio.to_thread(path.write_text, "no journal")

    result = await asked("desk", *(word.format(path=path) for word in arguments.split(" ")), code=code)

    assert result.stdout == ""
    assert result.stderr.startswith(f"desk: {message}")
    assert result.stderr.count("\n") == 1


async def test_a_port_in_use_is_reported(tmp_path, monkeypatch):
    server = await asyncio.start_server(lambda *_: None, servers.HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with SQLiteJournal(tmp_path / "journal.db"):
        pass

    options = ["--journal", tmp_path / "journal.db", "--scope", "live", "--port", port]
    result = await asked("desk", *options, code=1)

    assert "desk: " in result.stderr
    server.close()


def test_without_a_login_name_the_option_by_is_required(monkeypatch):
    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nobody)
    result = invoke("desk", "--journal", "x", "--scope", "live")

    assert result.exit_code == 2
    assert result.stderr == "desk: --by is required: this machine has no login name for you\n"


def test_the_error_for_a_missing_extra_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("transfer_async.desk", servers.__name__))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("transfer_async._cli.servers")
    monkeypatch.setitem(sys.modules, "jinja2", None)

    result = invoke("desk", "--journal", "x", "--scope", "live")

    assert result.exit_code == 2
    assert result.stderr == "desk: transfer_async.desk needs Jinja2: pip install 'transfer_async[desk]'\n"
