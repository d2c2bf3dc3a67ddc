"""What the environment says of proxies and logins is nothing to the client: it was given its own."""

from pathlib import Path

import pytest

from transfer_async import TransferClient
from transfer_async.sandbox import Sandbox


@pytest.fixture
def odd_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:1")
    logins = tmp_path / "logins"
    logins.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(logins))


@pytest.mark.usefixtures("odd_environment")
async def test_a_proxy_and_a_login_of_the_environment_are_not_used():
    async with Sandbox() as sandbox, TransferClient(sandbox.base_url, sandbox.token) as client:
        me = await client.who_am_i()

    assert me.username == "lagoon-bank"
    assert len(sandbox.requests) == 1
