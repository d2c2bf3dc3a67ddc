"""``transfer-async probe``: what it asks for, what it says, and its exit codes."""

import asyncio
from pathlib import Path

import pytest

from tests.support.bank import new_order, refused_order
from tests.support.cases import each
from tests.support.commands import asked, invoke
from transfer_async._cli import probe_command
from transfer_async.sandbox import Sandbox, load_profile
from transfer_async.sandbox.service import CREATE_ORDER_PATH

NOT_LIVE = "--this-is-not-live"


@pytest.fixture
def here(monkeypatch, tmp_path) -> Path:
    """The directory that the command is called in; found outside of any loop."""
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


ORDERING = (
    *("--order", "order.json", "--journal", "probe.db"),
    *("--most-amount", "2000000", "--most-orders", "3"),
)
"""The options of levels 1 and 2."""


def test_it_explains_itself():
    told = invoke("probe", "--help")

    assert told.exit_code == 0
    assert "Find out what a service's test environment really does" in told.output


@each("levels", [[], ["--level", "1"], ["--level", "2", "--yes"]])
async def test_without_the_word_that_it_is_not_live_nothing_is_asked(sandbox, levels):
    result = await asked("probe", *levels, code=2)

    assert "--this-is-not-live is required" in result.stderr
    assert not sandbox.requests


async def test_nobody_to_ask_is_no_yes(sandbox):
    result = await asked("probe", NOT_LIVE, code=2)

    assert "31 requests at most" in result.stdout
    assert result.stderr.splitlines() == [
        "nobody is there to be asked: --yes begins without",
        "probe: nobody said yes; nothing more was sent",
    ]
    assert not sandbox.requests


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("n\n", 2)])
async def test_a_person_is_asked_before_it_begins(sandbox, monkeypatch, said, code):
    monkeypatch.setattr(probe_command, "somebody_is_there", lambda: True)

    result = await asked("probe", NOT_LIVE, "--idle", "0", answers=said, code=code)

    assert "begin? [y/N]" in result.stdout
    assert bool(sandbox.requests) is (code == 0)


async def test_what_was_seen_is_kept_without_the_token_or_anybody(sandbox, tmp_path):
    result = await asked("probe", NOT_LIVE, "--yes", "--idle", "0", "--profile", "seen.json")

    text = await asyncio.to_thread((tmp_path / "seen.json").read_text)
    profile = await asyncio.to_thread(load_profile, tmp_path / "seen.json")
    assert profile.levels == (0,)
    assert profile.answers["wrong-token"].unauthorized
    assert "proposed settings" in result.stdout
    for secret in ("a-secret-token", "lagoon", "example.com", "127.0.0.1"):
        assert secret not in text.lower()
        assert secret not in result.output.lower().replace("seen.json", "")


@pytest.mark.parametrize("earlier", [None, b'{"version":1}'])
@pytest.mark.parametrize("levels", [["--idle", "0"], ["--level", "1"]])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--base-url", "http://127.0.0.1:1"], "probe: no connection could be opened: is --base-url"),
        (["--token", "wrong"], "probe: the service does not know the token (status 401): is --token"),
    ],
)
async def test_what_was_not_seen_is_no_profile(sandbox, here, option, said, levels, earlier):
    """Else a typing error becomes a profile, with which the sandbox answers nothing."""
    profile = here / "service-profile.json"
    if earlier is not None:
        await asyncio.to_thread(profile.write_bytes, earlier)
    orders = ORDERING if levels[0] == "--level" else ()

    result = await asked("probe", NOT_LIVE, "--yes", *levels, *orders, *option, code=1)

    assert said in result.stderr
    assert "proposed settings" not in result.stdout
    assert (await asyncio.to_thread(profile.read_bytes) if earlier else None) == earlier
    assert await asyncio.to_thread(profile.exists) is (earlier is not None)
    assert len(sandbox.requests) <= 1


async def test_orders_are_sent_within_the_cap_and_not_again(sandbox):
    first = await asked("probe", NOT_LIVE, "--yes", "--level", "1", *ORDERING)
    again = await asked("probe", NOT_LIVE, "--yes", "--level", "1", *ORDERING)

    assert "3 requests; at most 3 orders, and 469725.75 NGN in all" in first.stdout
    assert "spent before: 3 orders, 469725.75 NGN" in again.stdout
    assert [one.path for one in sandbox.requests if one.method == "POST"] == [CREATE_ORDER_PATH] * 3


async def test_it_stops_where_a_good_order_is_refused(sandbox):
    nobody = [*ORDERING, "--order", "to-nobody.json"]
    result = await asked("probe", NOT_LIVE, "--yes", "--level", "2", *nobody, code=1)

    assert "probe: a good order was not created" in result.stderr
    assert "asked by level 0, shows no limits" in result.stdout


@each(
    ("options", "said"),
    [
        (["--level", "1"], "--order, --journal, --most-orders and --most-amount are required"),
        (["--level", "1", "--most-amount", "much"], "--most-amount: must be a plain number"),
        (["--level", "1", "--apart", "0"], "--apart: must be a plain number, more than 0"),
        (["--level", "1", "--journal", "nowhere/at.all"], "--journal: there is no such directory"),
        (["--level", "1", "--order", "empty.json"], "probe: "),
        (["--level", "1", "--order", "none.txt"], "probe: "),
        (["--patience", "0"], "--patience: must be more than 0 seconds"),
        (["--base-url", "ftp://nowhere"], "probe: --base-url: is not an https address"),
        (["--token", "a\nb"], "probe: --token"),
        (["--profile", "order.json", "--yes", "--idle", "0"], "probe: profile: is not of version 1"),
    ],
)
async def test_a_wrong_use_is_told_in_a_line(sandbox, options, said):
    given = ORDERING if len(options) > 2 or "--level" not in options else []

    result = await asked("probe", NOT_LIVE, *given, *options, code=2)

    assert said in result.stderr
    assert "a-secret-token" not in result.output


async def test_an_address_and_a_token_are_needed(sandbox, monkeypatch):
    monkeypatch.delenv("TRANSFER_API_TOKEN")
    assert "--token, or TRANSFER_API_TOKEN, is required" in (await asked("probe", NOT_LIVE, code=2)).stderr
    monkeypatch.delenv("TRANSFER_BASE_URL")
    assert "--base-url, or TRANSFER_BASE_URL, is required" in (await asked("probe", NOT_LIVE, code=2)).stderr


async def test_a_place_that_cannot_be_written_to_is_told(sandbox):
    result = await asked("probe", NOT_LIVE, "--yes", "--idle", "0", "--profile", "nowhere/seen.json", code=1)

    assert "probe: FileNotFoundError" in result.stderr
