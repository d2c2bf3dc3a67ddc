"""The `transfer-async sandbox` command: faults, TLS and log."""

import asyncio
import re
import ssl

import aiohttp
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.support.cases import each
from tests.support.commands import invoke, refused, running
from transfer_async._cli import servers
from transfer_async.sandbox import FAULTS, CloseAfterProcessing, Sandbox, SlowBytes, Status, TruncatedBody

from .wire_client import CREATE, connected, order_body

MIX = ["status=0.3:status=429", "status-after-processing=0.2:status=503"]


def test_the_help_lists_every_fault_by_its_effect_on_the_order():
    text = invoke("sandbox", "--help").output
    exists, _, does_not = text.partition("After these faults the order does not exist")
    exists = exists.partition("After these faults the order exists")[2]

    for name, fault in FAULTS.items():
        always = fault.__doc__.startswith("Create the order, then ")
        assert re.search(rf"\s{name}\s", exists if always else does_not), name


@each(
    ("text", "fault", "share"),
    [
        ("close-after-processing=0.05", CloseAfterProcessing(), 0.05),
        ("status=0.1:status=429", Status(429), 0.1),
        ('status=1:{"status": 503, "headers": {"a": "b"}}', Status(503, headers={"a": "b"}), 1.0),
        ("truncated-body=0:keep=5,chunked=true", TruncatedBody(5, chunked=True), 0.0),
        ("slow-bytes=1e-3:delay=0.5,", SlowBytes(0.5), 0.001),
        ("status=0.1:status=429,body=busy: wait", Status(429, body="busy: wait"), 0.1),
    ],
)
def test_a_fault_is_read_with_its_share_and_settings(text, fault, share):
    assert servers.fault_shares([text]) == {fault: share}


@each(
    ("arguments", "why"),
    [
        (["--fault", "meteor=0.1"], "sandbox: --fault meteor=0.1: fault must be one of close-before-"),
        (["--fault", "redirect"], "orders to affect is missing: write, for example, redirect=0.05"),
        (["--fault", "redirect=often"], "the share of orders to affect is missing"),
        (["--fault", "redirect=2"], "the share of redirect must be from 0 to 1, not 2.0"),
        (["--fault", "status=0.1"], "missing required field `status`"),
        (["--fault", "status=0.1:{"], "--fault status=0.1:{: "),
        (["--fault", "redirect=0.1", "--fault", "redirect=0.2"], "passed twice"),
        (["--fault", "redirect=0.6", "--fault", "truncated-head=0.6"], "at most 1 in total, not 1.2"),
        (["--tls-key", "key.pem"], "--tls-key: can be used only with --tls-cert"),
        (["--tls-cert", "/nowhere/cert.pem"], "--tls-cert, --tls-key: cannot be used (No such file"),
    ],
)
def test_invalid_options_are_refused_with_one_line(arguments, why):
    assert why in refused("sandbox", *arguments)


async def test_the_mix_is_printed_at_the_start():
    async with Sandbox(faults={CloseAfterProcessing(): 0.05, Status(429): 0.1}) as sandbox:
        assert servers.announcement(sandbox)[5:] == [
            "fault close-after-processing for 0.05 of all orders",
            "fault status for 0.1 of all orders",
        ]


# --- TLS ----------------------------------------------------------------------------------------


def test_the_certificate_file_may_contain_the_key_but_no_encrypted_one(tmp_path):
    """The command does not ask for a password."""
    issued, both = trustme.CA().issue_cert("127.0.0.1"), tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(both)
    assert isinstance(servers.tls_context(both, None), ssl.SSLContext)

    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    password = serialization.BestAvailableEncryption(b"a password")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)
    both.write_bytes(issued.cert_chain_pems[0].bytes() + pem)
    assert "--tls-cert, --tls-key: cannot be used" in refused("sandbox", "--tls-cert", both)


@pytest.fixture
def certified(tmp_path) -> tuple[list[str], ssl.SSLContext]:
    """Return the options for https, and a client context. Not async, because it reads files."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")], trusting


async def test_the_command_serves_the_seeds_mix_over_tls_and_logs_each_request(certified):
    tls, trusting = certified
    faults = [word for share in MIX for word in ("--fault", share)]
    arguments = ["sandbox", "--seed", "7", "--token", "abc", *tls, *faults]
    async with running(*arguments, stderr=asyncio.subprocess.PIPE) as command:
        address = (await command.line("")).split()[3].rstrip(",")
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer abc"}) as session:
            order = {"json": order_body(), "ssl": trusting}
            served = [(await session.post(address + CREATE, **order)).status for _ in range(30)]
        command.process.terminate()
        _, log = await command.process.communicate()
    async with Sandbox(seed=7, faults=servers.fault_shares(MIX)) as sandbox, connected(sandbox) as client:
        expected = [(await client.ask(order_body())).status for _ in range(30)]

    assert address.startswith("https://127.0.0.1:")
    assert served == expected
    assert set(served) == {200, 429, 503}
    assert [int(line.split()[4].rstrip(",")) for line in log.decode().splitlines()] == served
