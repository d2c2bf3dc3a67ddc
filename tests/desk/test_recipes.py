"""The examples in the documentation: access by a proxy's headers, and by a session."""

from types import ModuleType

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.desk.visitor import SAME
from tests.docs.story import ROOT, module_of, python_block
from tests.support.bank import World
from tests.support.cases import each
from tests.support.pages import Page
from transfer_async.desk import Operator, Role

DESK = ROOT / "docs/desk.md"
SECRET = {"X-Proxy-Secret": "s3cr3t"}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("DESK_PROXY_SECRET", "s3cr3t")
    return module_of("behind_a_proxy", python_block(DESK, "behind_a_proxy.py"), monkeypatch)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module_of("with_sessions", python_block(DESK, "with_sessions.py"), monkeypatch)


async def test_an_operator_behind_the_proxy_has_the_roles_of_their_groups(world: World, proxy: ModuleType):
    await world.in_doubt()
    given = {**SECRET, "X-Forwarded-User": "ada", "X-Forwarded-Groups": "everybody,payments-operations"}
    origin = {"Origin": "https://payments.bank.example"}
    async with world.client() as client, TestClient(TestServer(proxy.application(client))) as http:
        shown = Page(await (await http.get("/operators/key?key=k", headers=given)).text())
        fields = {**shown.forms["resolve"], "order_id": "tx-abc", "reason": "seen"}
        sent = await http.post(
            "/operators/resolve", headers={**given, **SAME, **origin}, data=fields, allow_redirects=False
        )

    assert "You are ada change" in shown.text
    assert sent.status == 303
    assert [step.by for step in await world.journal.history(world.scope, "k") if step.by] == ["ada"]


@each(
    ("secret", "headers"),
    [
        ("s3cr3t", {}),
        ("s3cr3t", {"X-Forwarded-User": "ada"}),
        ("s3cr3t", {"X-Forwarded-User": "ada", "X-Proxy-Secret": "guessed"}),
        ("s3cr3t", SECRET),
        ("", {"X-Forwarded-User": "ada", "X-Proxy-Secret": ""}),
    ],
)
async def test_a_request_that_bypasses_the_proxy_is_rejected(
    world: World, proxy: ModuleType, secret: str, headers: dict[str, str]
):
    proxy.SECRET = secret
    async with world.client() as client, TestClient(TestServer(proxy.application(client))) as http:
        assert (await http.get("/operators/", headers=headers)).status == 403


async def test_an_operator_who_signed_in_has_a_session(world: World, session: ModuleType):
    answer = session.sign_in(Operator("ada", [Role.PARTIES]))
    cookie = answer.cookies["session"]
    async with world.client() as client, TestClient(TestServer(session.application(client))) as http:
        shown = await http.get("/operators/", headers={"Cookie": f"session={cookie.value}"})
        page = Page(await shown.text())

    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
    assert "You are ada parties" in page.text


async def test_an_operator_without_a_session_is_redirected_to_sign_in(world: World, session: ModuleType):
    async with world.client() as client, TestClient(TestServer(session.application(client))) as http:
        looked = await http.get("/operators/", allow_redirects=False)
        sent = await http.post("/operators/resolve", headers=SAME, data={}, allow_redirects=False)

    assert (looked.status, looked.headers["Location"]) == (302, "/sign-in")
    assert sent.status == 403
