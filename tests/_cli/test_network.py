"""Every command can reach the service through a proxy, and with the bank's own certificates."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from tests._http.test_transport import proxies
from tests.faults.parties import make_certificates
from tests.faults.servers import Server, answers, http, replies, serving
from tests.support.cases import each
from tests.support.commands import asked, invoke, refused
from tests.support.order_files import csv_file
from transfer_async import TransferClient, Unauthorized
from transfer_async._cli import options, worker_process
from transfer_async._http.network import VARIABLES, NetworkSettings

PASSWORD = "cr3dential-of-the-proxy"
BASIC = base64.b64encode(f"bank:{PASSWORD}".encode()).decode()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the bank's PEM files, and the TLS settings of a server that requires a client certificate."""
    where = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    issued = authority.issue_cert("bank@example.org")
    authority.cert_pem.write_to_path(where / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(where / "cert.pem")
    issued.private_key_pem.write_to_path(where / "key.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(where / "both.pem")
    strict = make_certificates().strict_server
    authority.issue_cert("localhost").configure_cert(strict)
    authority.configure_trust(strict)
    (where / "bad.pem").write_text("-----BEGIN CERTIFICATE-----\nno\n", encoding="utf-8")
    return SimpleNamespace(strict=strict, **{path.stem: str(path) for path in where.iterdir()})


@asynccontextmanager
async def bank_network(files: Any) -> AsyncIterator[tuple[Server, Server, list[str]]]:
    """Yield a service that requires a certificate, a proxy in front of it, and the options that use both."""
    async with serving(answers, tls=files.strict) as server, serving(proxies) as proxy:
        address = proxy.url.replace("://", f"://bank:{PASSWORD}@")
        yield server, proxy, ["--proxy", address, "--ca", files.ca, "--client-cert", files.both]


def environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFER_BASE_URL", server.url)
    monkeypatch.setenv("TRANSFER_API_TOKEN", "t0ken")


def set_variables(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        monkeypatch.setenv(f"TRANSFER_{option[2:].replace('-', '_').upper()}", value)


def sending(command: str, where: Path) -> list[Any]:
    """Return the arguments of a command that sends requests. Its files are in ``where``."""
    if command == "create":
        return ["create", csv_file(where / "orders.csv", 2, held="h"), "--journal", where / "journal.db"]
    options = ["--this-is-not-live", "--yes", "--idle", 0, "--profile", where / "profile.json"]
    return [command, *(options if command == "probe" else [])]


# --- the commands that send -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "given"),
    [("whoami", "options"), ("whoami", "variables"), ("create", "certificate and key"), ("probe", "options")],
)
async def test_each_request_goes_through_the_proxy_with_the_clients_certificate(
    files, monkeypatch, tmp_path, command, given
):
    arguments = await asyncio.to_thread(sending, command, tmp_path)
    async with bank_network(files) as (server, proxy, network):
        environment(server, monkeypatch)
        if given == "variables":
            set_variables(network, monkeypatch)
            network.clear()
        elif given == "certificate and key":
            network[-2:] = ["--client-cert", files.cert, "--client-key", files.key]
        await asked(*arguments, *network)

    assert server.requests
    assert {head.method for head in proxy.heads} == {"CONNECT"}
    assert {head.headers["proxy-authorization"] for head in proxy.heads} == {f"Basic {BASIC}"}


@pytest.mark.parametrize("command", ["whoami", "probe"])
async def test_headers_of_a_file_go_with_every_request(monkeypatch, tmp_path, command):
    headers = tmp_path / "headers"
    await asyncio.to_thread(headers.write_text, "X-Gateway-Key: s3cret:7\n\n  x-tenant:  bank \n")
    async with serving(replies(http(401, b"{}"))) as server:
        environment(server, monkeypatch)
        result = await asyncio.to_thread(invoke, *sending(command, tmp_path), "--headers", headers)

    assert server.heads
    assert {head.headers["x-gateway-key"] for head in server.heads} == {"s3cret:7"}
    assert {head.headers["x-tenant"] for head in server.heads} == {"bank"}
    assert "s3cret" not in result.output


async def test_headers_in_the_environment_are_those_of_a_client_unless_it_has_its_own(monkeypatch, tmp_path):
    headers = tmp_path / "headers"
    await asyncio.to_thread(headers.write_text, "X-Tenant: 7\n")
    monkeypatch.setenv("TRANSFER_HEADERS", str(headers))
    async with serving(replies(http(401, b"{}"))) as server:
        environment(server, monkeypatch)
        for own in ({}, {"headers": {"X-Tenant": "8"}}):
            async with await asyncio.to_thread(partial(TransferClient.from_env, **own)) as client:
                with pytest.raises(Unauthorized):
                    await client.who_am_i()

    assert [head.headers["x-tenant"] for head in server.heads] == ["7", "8"]


@each(
    ("text", "why"),
    [
        (b"X-Tenant 7", "line 1: must be a name, a colon and a value"),
        (b"X-Tenant: 7\nX-Tenant: s3cret", "line 2: the header occurs twice"),
        (b"Host: s3cret", "Host is set by the client or by HTTP itself; choose another header"),
        (b"X:", "the value of X must be non-empty printable ASCII without spaces at either end"),
        (b"X: s3cret\xff", "cannot be read (the file is not UTF-8); it must be a text file of headers"),
        (None, "cannot be read (No such file or directory); it must be a text file of headers"),
    ],
)
def test_a_file_of_headers_that_cannot_be_sent_is_refused(tmp_path, text, why):
    path = tmp_path / "headers"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=r"^--headers: ") as refused:
        NetworkSettings(headers=str(path)).client_settings({"proxy": "--proxy", "headers": "--headers"})

    assert str(refused.value) == f"--headers: {why}"


async def test_a_probe_without_tls_sends_the_whole_url_to_the_proxy(monkeypatch, tmp_path):
    async with serving(replies(http(401, b"{}"))) as proxy:
        monkeypatch.setenv("TRANSFER_PROXY", proxy.url.replace("://", f"://bank:{PASSWORD}@"))
        options = ["--base-url", "http://localhost:1", "--token", "t0ken"]
        result = await asyncio.to_thread(invoke, *sending("probe", tmp_path), *options)

    assert proxy.heads[0].path.startswith("http://localhost:1/api/")
    assert proxy.heads[0].headers["proxy-authorization"] == f"Basic {BASIC}"
    assert PASSWORD not in result.output + await asyncio.to_thread(_all_in, tmp_path)


async def test_a_client_from_the_environment_uses_its_network(files, monkeypatch):
    async with bank_network(files) as (server, proxy, network):
        environment(server, monkeypatch)
        set_variables(network, monkeypatch)
        made = await asyncio.to_thread(TransferClient.from_env)
        async with made as client:
            await client.who_am_i()
        # The argument ssl= overrides this variable, and proxy= overrides the next one.
        monkeypatch.setenv("TRANSFER_CA", "nowhere")
        monkeypatch.setenv("TRANSFER_PROXY", "http://127.0.0.1:1")
        context = await asyncio.to_thread(context_of, files)
        async with TransferClient.from_env(ssl=context, proxy=network[1]) as client:
            await client.who_am_i()

    assert len(server.requests) == len(proxy.heads) == 2


def context_of(files: Any) -> Any:
    return NetworkSettings(None, files.ca, files.both).client_settings(VARIABLES)["ssl"]


# --- the other commands ---------------------------------------------------------------------------


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Record the settings that a client is created with."""
    found: dict[str, Any] = {}

    def client(*_: object, **given: Any) -> None:
        found.update(given)
        raise ValueError("made")

    monkeypatch.setattr(options, "TransferClient", client)
    monkeypatch.setenv("TRANSFER_BASE_URL", "https://service.invalid")
    monkeypatch.setenv("TRANSFER_API_TOKEN", "t0ken")
    return found


def no_hooks() -> list[Any]:
    return []


def test_recover_uses_the_proxy_and_tls_options(files, settings, tmp_path):
    (tmp_path / "journal.db").touch()
    options = ["--journal", tmp_path / "journal.db", "--hooks", f"{__name__}:no_hooks"]
    refused("journal", "recover", *options, "--proxy", "http://proxy.invalid", "--ca", files.ca)

    assert (settings["proxy"], settings["ssl"].get_ca_certs()[0]["version"]) == ("http://proxy.invalid", 3)


def test_a_worker_uses_the_proxy_and_tls_options(files, monkeypatch):
    plans: list[worker_process.WorkerPlan] = []

    def work(plan: worker_process.WorkerPlan, **_: object) -> None:
        plans.append(plan)
        raise ConnectionError

    monkeypatch.setattr(worker_process, "work", work)
    options = ["--broker", "nats://localhost", "--journal", "j.db", "--base-url", "https://service.invalid"]
    invoke("worker", *options, "--proxy", f"http://bank:{PASSWORD}@proxy.invalid", "--ca", files.ca)

    assert plans[0].client["proxy"] == f"http://bank:{PASSWORD}@proxy.invalid"
    assert plans[0].client["ssl"] is not None
    assert PASSWORD not in repr(plans[0])


# --- what is refused ------------------------------------------------------------------------------


COMMANDS: dict[str, list[Any]] = {
    "whoami": ["whoami"],
    "create": ["create", "orders.csv"],
    "worker": ["worker", "--broker", "nats://localhost", "--journal", "j.db"],
    "probe": ["probe", "--this-is-not-live"],
    "journal": ["journal", "recover", "--journal", __file__, "--hooks", f"{__name__}:no_hooks"],
}

WRONG = [
    (["--ca", "/no"], "--ca: cannot be used (No such file or directory); it must be a readable PEM file"),
    (["--ca", "{bad}"], "--ca: cannot be used ("),
    (["--client-cert", "{bad}"], "--client-cert: cannot be used ("),
    (["--client-cert", "{cert}", "--client-key", "/no"], "--client-cert, --client-key: cannot be used (No"),
    (["--client-key", "{key}"], "--client-key: can be used only with --client-cert"),
    (["--proxy", f"http://bank:{PASSWORD}@proxy/path"], "--proxy: must not contain a path; "),
    (["--proxy", f"socks5://bank:{PASSWORD}@proxy"], "--proxy: must be an address such as http://user:"),
]


@each(("options", "why"), WRONG)
def test_an_unusable_option_is_wrong_usage_and_named_as_typed(settings, files, options, why):
    error = refused("whoami", *(word.format(**vars(files)) for word in options))

    assert error.startswith(f"whoami: {why}")
    assert PASSWORD not in error
    assert settings == {}


def test_a_probe_needs_a_proxy_without_tls(settings):
    error = refused(*COMMANDS["probe"], "--proxy", f"https://bank:{PASSWORD}@proxy.invalid")

    assert error == "probe: --proxy, or TRANSFER_PROXY: must be an http:// address for a probe\n"
    assert settings == {}


@each("command", [*COMMANDS])
def test_every_command_names_an_unusable_variable(settings, monkeypatch, files, command):
    monkeypatch.setenv("TRANSFER_CLIENT_KEY", files.key)
    error = refused(*COMMANDS[command])

    assert error == f"{command}: TRANSFER_CLIENT_KEY: can be used only with --client-cert\n"
    assert settings == {}


def test_a_client_from_the_environment_names_the_variables(monkeypatch, settings):
    monkeypatch.setenv("TRANSFER_CLIENT_KEY", "key.pem")
    needed = r"^TRANSFER_CLIENT_KEY: can be used only with TRANSFER_CLIENT_CERT$"
    with pytest.raises(ValueError, match=needed):
        TransferClient.from_env()


async def test_the_proxys_password_is_never_printed(monkeypatch, tmp_path):
    output = ""
    async with serving(replies(http(407, PASSWORD.encode()))) as proxy:
        monkeypatch.setenv("TRANSFER_PROXY", proxy.url.replace("://", f"://bank:{PASSWORD}@"))
        monkeypatch.setenv("TRANSFER_BASE_URL", "https://service.invalid")
        monkeypatch.setenv("TRANSFER_API_TOKEN", "t0ken")
        for command in ("whoami", "create", "probe"):
            arguments = await asyncio.to_thread(sending, command, tmp_path)
            deadline = ["--deadline", 1] if command == "create" else []
            output += (await asyncio.to_thread(invoke, *arguments, *deadline)).output

    output += await asyncio.to_thread(_all_in, tmp_path)
    assert proxy.heads[0].headers["proxy-authorization"] == f"Basic {BASIC}"
    assert PASSWORD not in output
    assert BASIC not in output


def _all_in(where: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in where.iterdir())
