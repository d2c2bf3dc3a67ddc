import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import types

import aiohttp
import pytest

from tests.support.cases import each
from tests.support.commands import asked, invoke, refused
from transfer_async._cli import demo, output, process, servers
from transfer_async._cli.app import _explained_failure, account_lines, app
from transfer_async._cli.launcher import main, narrowed
from transfer_async._models.errors import ConnectionFailed, Refused, ServiceFailed
from transfer_async._models.responses import User
from transfer_async.sandbox import Sandbox

FAILED = "demo failed: the sky is green\n"
URL, TOKEN = "TRANSFER_BASE_URL", "TRANSFER_API_TOKEN"


@pytest.fixture
async def sandbox(monkeypatch):
    """Yield a sandbox, with an environment that points to it."""
    async with Sandbox(token="a-secret-token") as sandbox:
        monkeypatch.setenv(URL, sandbox.base_url)
        monkeypatch.setenv(TOKEN, sandbox.token)
        monkeypatch.delenv("TRANSFER_JOURNAL", raising=False)
        yield sandbox


def test_a_log_line_contains_no_control_characters():
    """Without this, a broker's error text could overwrite what an operator reads."""
    logged: list[str] = []
    logger = logging.getLogger("of a broker")
    with output.logged(logger, logged.append, form="%(message)s"):
        logger.warning("refused: \x1b[2J\x9b\u202e\nøre")

    assert logged == ["refused: ?[2J??\nøre"]


# --- the app ---------------------------------------------------------------------------------------


@each(
    ("arguments", "commands", "groups"),
    [
        (["create", "--help"], ["create"], []),
        (["verify-hooks", "journal"], ["verify_hooks"], []),
        (["journal", "list"], [], ["journal"]),
    ],
)
def test_only_the_requested_command_is_built(arguments, commands, groups):
    alone = narrowed(app, arguments)

    assert [one.callback.__name__ for one in alone.registered_commands] == commands
    assert [one.name for one in alone.registered_groups] == groups


@each("arguments", [[], ["--version"], ["creat", "create"], ["verify_hooks"], [""]])
def test_all_commands_are_built_unless_a_command_comes_first(arguments):
    assert narrowed(app, arguments) is app


def test_without_typer_one_line_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert capsys.readouterr().err == 'transfer-async needs typer: pip install "transfer_async[cli]"\n'


def test_a_typer_that_is_broken_is_not_called_missing(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "typer":
                raise ModuleNotFoundError("no click", name="click")

    monkeypatch.delitem(sys.modules, "typer")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])

    with pytest.raises(ModuleNotFoundError, match="no click"):
        main()


def test_uvloop_is_used_where_it_is_installed(monkeypatch):
    uvloop = types.ModuleType("uvloop")
    uvloop.new_event_loop = asyncio.new_event_loop
    monkeypatch.setitem(sys.modules, "uvloop", uvloop)

    async def work() -> int:
        return 7

    assert process.loop_factory() is asyncio.new_event_loop
    assert process.run(work()) == 7
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert process.loop_factory() is None


def test_a_running_command_collects_garbage_rarely_and_freezes_nothing():
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()

    async def work() -> tuple[int, int]:
        return gc.get_threshold()[0], gc.get_freeze_count()

    often, kept = process.run(work())
    assert often > usual[0]
    assert kept <= frozen  # objects that were frozen earlier may have been deleted
    assert gc.get_threshold() == usual


# --- whoami ---------------------------------------------------------------------------------------


async def test_whoami_shows_the_account_and_opens_no_journal(sandbox, monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFER_JOURNAL", str(tmp_path / "journal.db"))
    bank = sandbox.accounts.bank.id

    assert (await asked("whoami")).stdout.splitlines() == [
        f"id        {bank}",
        "username  lagoon-bank",
        "role      customer",
        "active    yes",
    ]
    account = {"id": bank, "username": "lagoon-bank", "role": "customer", "active": True}
    assert json.loads((await asked("whoami", "--json")).stdout) == account
    assert await asyncio.to_thread(os.listdir, tmp_path) == []


async def test_a_failure_is_reported_in_one_line_without_the_token(sandbox, monkeypatch, closed_port):
    for name, value in ((TOKEN, "a-wrong-token"), (URL, f"http://127.0.0.1:{closed_port}")):
        monkeypatch.setenv(name, value)
        result = await asked("whoami", code=1)

        failure = "Unauthorized" if name == TOKEN else "ConnectionFailed"
        assert result.stderr.startswith(f"whoami: {failure}")
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
        assert "a-wrong-token" not in result.stderr


async def test_a_status_404_advises_to_check_the_base_url(sandbox, monkeypatch):
    """The base URL may lack a path prefix; the word "refused" alone would suggest a missing permission."""
    monkeypatch.setenv(URL, f"{sandbox.base_url}/bank")
    result = await asked("whoami", code=1)

    assert result.stderr == (
        "whoami: Refused: the service refused (status 404); check TRANSFER_BASE_URL: "
        "it must include any path prefix, but not /api/api/v1\n"
    )


MUST_BE_SET = "must be set in the environment"


@each(
    ("base_url", "token", "why"),
    [
        (None, None, f"{URL} and {TOKEN}: {MUST_BE_SET}\n"),
        ("https://orders.example.com", None, f"{TOKEN}: {MUST_BE_SET}\n"),
        (None, "a-secret-token", f"{URL}: {MUST_BE_SET}\n"),
        ("http://orders.example.com", "a-secret-token", URL),
        ("https://orders.example.com", "a-secret\ntoken", TOKEN),
    ],
)
def test_a_missing_or_wrong_variable_is_named_and_the_token_not_shown(base_url, token, why):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ((URL, base_url), (TOKEN, token)):
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        error = refused("whoami")

    assert error.startswith(f"whoami: {why}")
    assert "a-secret" not in error


def test_text_of_the_service_is_shown_without_control_characters_and_what_is_missing_as_a_dash():
    user = User(id="u-1", username="a\x1b[2J\nid        u-2", is_active=False)
    unknown = ["id        u-1", "username  -", "role      -", "active    -"]

    assert account_lines(User(id="u-1"), as_json=False) == unknown
    assert json.loads(account_lines(User(id="u-1"), as_json=True)[0])["active"] is None
    assert account_lines(user, as_json=False)[1::2] == ["username  a?[2J?id        u-2", "active    no"]


def test_an_error_is_followed_by_advice_if_there_is_any():
    no_tls = ConnectionFailed()
    no_tls.__cause__ = aiohttp.ClientConnectorSSLError(None, OSError("no TLS"))  # type: ignore[arg-type] # unused

    assert _explained_failure(ServiceFailed(status=500)) == "ServiceFailed: no usable response (status 500)"
    assert "check that the port in TRANSFER_BASE_URL accepts https" in _explained_failure(no_tls)
    assert "but not /api/api/v1" in _explained_failure(Refused(status=405))


# --- demo -----------------------------------------------------------------------------------------


@each(("surprise", "ending"), [(False, (0, "told\n", "")), (True, (1, "told\n", FAILED))])
def test_the_demo_prints_its_lines_and_a_surprise_fails_it(monkeypatch, surprise, ending):
    async def played(say, **_options: object) -> None:
        say("told")
        if surprise:
            raise demo.FalseClaim("the sky is green")

    monkeypatch.setattr(demo, "run", played)
    result = invoke("demo")

    assert (result.exit_code, result.stdout, result.stderr) == ending


# --- sandbox --------------------------------------------------------------------------------------


@each(
    ("arguments", "why"),
    [
        (["--host", "0.0.0.0"], "is not a loopback address"),
        (["--host", "orders.example.com"], "is not a loopback address"),
        (["--match-every", "0"], "--match-every"),
        (["--match-every", "inf"], "--match-every"),
        (["--match-every", "nan"], "--match-every"),
        (["--token", "two words"], "--token: must not contain spaces"),
        (["--token", ""], "--token: "),
        (["--accounts", "/nowhere/accounts.json"], "No such file"),
        (["--accounts", "{here}/wrong.json"], "sandbox: --accounts: "),
        (["--port", "70000"], "--port"),
    ],
)
def test_a_wrong_option_of_the_sandbox_is_reported(arguments, why, tmp_path):
    (tmp_path / "wrong.json").write_text("{}", encoding="utf-8")
    result = invoke("sandbox", *(word.format(here=tmp_path) for word in arguments))

    assert result.exit_code == 2
    assert why in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_reported_and_nothing_is_printed():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke("sandbox", "--port", taken.getsockname()[1])

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sandbox: cannot listen on ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_exports_can_be_pasted_and_a_signal_ends_the_sandbox_and_leaves_nothing_behind(number):
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    handlers = list(logging.getLogger("transfer_async.sandbox").handlers)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("export TRANSFER_API_TOKEN"):
            os.kill(os.getpid(), number)

    async with asyncio.timeout(60):
        await servers.serve_sandbox(Sandbox(token="it's;mine"), say=say, log=lambda _: None)

    assert lines[2] == f"export TRANSFER_BASE_URL={lines[0].split()[3].rstrip(',')}"
    assert lines[3] == """export TRANSFER_API_TOKEN='it'"'"'s;mine'"""
    assert lines[-1] == "sandbox stopped"
    assert {one: signal.getsignal(one) for one in before} == before
    assert logging.getLogger("transfer_async.sandbox").handlers == handlers
