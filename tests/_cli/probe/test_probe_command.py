"""``transfer-async probe``: its options, output and exit codes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.bank import new_order, refused_order
from tests.support.cases import each
from tests.support.commands import asked
from transfer_async._cli import probe_command
from transfer_async.sandbox import Sandbox, load_profile
from transfer_async.sandbox.service import CREATE_ORDER_PATH

NOT_LIVE = "--this-is-not-live"


@pytest.fixture
def here(monkeypatch, tmp_path) -> Path:
    """Change to the command's working directory, outside of any event loop."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.json").write_bytes(new_order().to_json())
    (tmp_path / "to-nobody.json").write_bytes(refused_order().to_json())
    (tmp_path / "empty.json").write_text("{}", encoding="utf-8")
    (tmp_path / "none.txt").write_text("no order", encoding="utf-8")
    return tmp_path


@pytest.fixture
async def sandbox(monkeypatch, here):
    async with Sandbox(token="a-secret-token") as sandbox:
        monkeypatch.setenv("TRANSFER_BASE_URL", sandbox.base_url)
        monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox.token)
        yield sandbox


CAP = ("--most-amount", "2000000", "--most-orders", "3")
ORDERING = ("--order", "order.json", "--journal", "probe.db", *CAP)
"""The command-line options for levels 1 and 2."""


async def test_nothing_is_sent_unless_the_service_is_confirmed_not_live_and_the_run_by_yes(sandbox):
    for levels in ([], ["--level", "1"], ["--level", "2", "--yes"]):
        assert "--this-is-not-live is required" in (await asked("probe", *levels, code=2)).stderr
    result = await asked("probe", NOT_LIVE, code=2)

    assert "31 requests at most" in result.stdout
    assert result.stderr.splitlines() == [
        "--yes is required when not interactive",
        "probe: not confirmed: no further request was sent",
    ]
    assert not sandbox.requests


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
async def test_probe_asks_for_confirmation_before_it_begins(sandbox, monkeypatch, answer, code):
    monkeypatch.setattr(probe_command, "is_interactive", lambda: True)

    result = await asked("probe", NOT_LIVE, "--idle", "0", answers=answer, code=code)

    assert "begin? [y/N]" in result.stdout
    assert bool(sandbox.requests) is (code == 0)


async def test_the_profile_has_no_token_and_no_person(sandbox, tmp_path):
    result = await asked("probe", NOT_LIVE, "--yes", "--idle", "0", "--profile", "seen.json")

    text = await asyncio.to_thread((tmp_path / "seen.json").read_text)
    profile = await asyncio.to_thread(load_profile, tmp_path / "seen.json")
    assert profile.levels == (0,)
    assert profile.answers["wrong-token"].unauthorized
    assert "proposed settings" in result.stdout
    for secret in ("a-secret-token", "lagoon", "example.com", "127.0.0.1"):
        assert secret not in text.lower()
        assert secret not in result.output.lower().replace("seen.json", "")


def leave(path: Path, data: bytes | None) -> None:
    path.unlink(missing_ok=True) if data is None else path.write_bytes(data)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@each("earlier", [None, b'{"version":1}'])
@each("levels", [["--idle", "0"], ["--level", "1", *ORDERING]])
@each(
    ("option", "message"),
    [
        (["--base-url", "http://127.0.0.1:1"], "probe: no connection could be opened: check --base-url"),
        (["--token", "wrong"], "probe: the service rejected the token (status 401): check --token"),
    ],
)
async def test_a_wrong_base_url_or_token_leaves_the_profile_as_it_is(
    sandbox, here, option, message, levels, earlier
):
    """Without this, a typing error becomes a profile."""
    sandbox.requests.clear()
    await asyncio.to_thread(leave, here / "service-profile.json", earlier)
    result = await asked("probe", NOT_LIVE, "--yes", *levels, *option, code=1)

    assert message in result.stderr
    assert "proposed settings" not in result.stdout
    assert await asyncio.to_thread(content, here / "service-profile.json") == earlier
    assert len(sandbox.requests) <= 1


async def test_orders_are_sent_once_and_within_the_cap(sandbox):
    first = await asked("probe", NOT_LIVE, "--yes", "--level", "1", *ORDERING)
    again = await asked("probe", NOT_LIVE, "--yes", "--level", "1", *ORDERING)

    assert "3 requests; at most 3 orders, and 469725.75 NGN in total" in first.stdout
    assert "already sent: 3 orders, 469725.75 NGN" in again.stdout
    assert [one.path for one in sandbox.requests if one.method == "POST"] == [CREATE_ORDER_PATH] * 3


def brings_headers() -> dict[str, Any]:
    return {"hooks": [], "headers": {"X-Gateway-Key": "s3cr3t"}, "request_id_header": "X-Request-Id"}


def brings_wrong_headers() -> dict[str, Any]:
    return {"hooks": [], "headers": {"Host": "s3cr3t"}}


async def test_every_request_has_the_banks_own_headers_and_an_order_its_attempt_id(sandbox):
    hooks = ("--hooks", f"{__name__}:brings_headers")
    for levels in (("--idle", "0"), ("--level", "1", *ORDERING)):
        result = await asked("probe", NOT_LIVE, "--yes", *levels, *hooks)
        assert "s3cr3t" not in result.output
    orders = [one.headers for one in sandbox.requests if one.method == "POST"]

    assert {one.headers["X-Gateway-Key"] for one in sandbox.requests} == {"s3cr3t"}
    assert len({headers["X-Request-Id"] for headers in orders}) == len(orders) == 3


async def test_invalid_headers_of_the_factory_are_a_usage_error(sandbox):
    result = await asked("probe", NOT_LIVE, "--yes", "--hooks", f"{__name__}:brings_wrong_headers", code=2)

    assert "--hooks: the factory returned an invalid setting: headers: Host is set by" in result.stderr
    assert not sandbox.requests


async def test_a_valid_order_that_is_refused_is_the_last(sandbox):
    nobody = [*ORDERING, "--order", "to-nobody.json"]
    result = await asked("probe", NOT_LIVE, "--yes", "--level", "2", *nobody, code=1)

    untested = (
        "the limits of NGN are not tested, because the profile does not contain them; to record them, run"
    )
    assert "probe: the valid order was not created" in result.stderr
    assert untested in result.stdout
    assert [one.method for one in sandbox.requests].count("POST") == 1


@each(
    ("options", "message"),
    [
        (["--level", "1"], "--order, --journal, --most-orders and --most-amount are required"),
        (["--level", "1", "--most-amount", "much"], "--most-amount: must be a plain number"),
        (["--level", "1", "--apart", "0"], "--apart: must be a plain number greater than 0"),
        (["--level", "1", "--journal", "nowhere/at.all"], "--journal: the file's directory does not exist"),
        (["--level", "1", "--order", "empty.json"], "probe: "),
        (["--level", "1", "--order", "none.txt"], "probe: "),
        (["--patience", "0"], "--patience: must be greater than 0 seconds"),
        (["--base-url", "ftp://nowhere"], "probe: --base-url: is not an https address"),
        (["--token", "a\nb"], "probe: --token"),
        (["--profile", "order.json", "--yes", "--idle", "0"], "probe: profile: must have version 1"),
    ],
)
async def test_a_usage_error_is_one_line(sandbox, options, message):
    given = ORDERING if len(options) > 2 or "--level" not in options else []

    result = await asked("probe", NOT_LIVE, *given, *options, code=2)

    assert message in result.stderr
    assert "a-secret-token" not in result.output


async def test_the_base_url_and_the_token_are_required(sandbox, monkeypatch):
    for name, option in (("TRANSFER_API_TOKEN", "--token"), ("TRANSFER_BASE_URL", "--base-url")):
        monkeypatch.delenv(name)
        assert f"{option}, or {name}, is required" in (await asked("probe", NOT_LIVE, code=2)).stderr


async def test_a_profile_that_cannot_be_written_is_an_error(sandbox):
    result = await asked("probe", NOT_LIVE, "--yes", "--idle", "0", "--profile", "nowhere/seen.json", code=1)

    assert "probe: FileNotFoundError" in result.stderr
