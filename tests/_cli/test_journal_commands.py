"""The journal's commands, against journals in files: what they show, what they change, and how they end."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands
from tests.support.bank import NOON, World, new_order, world_in_a_file
from tests.support.cases import each
from transfer_async import KeyState, MemoryJournal, UnreadableOrder
from transfer_async._cli.console import output
from transfer_async._cli.console.hook_loading import factory_named, made_by
from transfer_async._cli.journal import tables, terminal
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline import operators
from transfer_async.journal import moves
from transfer_async.sandbox import WrongTypes

DECIDING = ["resolve", "refute", "amend", "propose", "approve", "withdraw"]
COMMANDS = ["list", "show", *DECIDING, "four-eyes", "recover", "prune"]
SAID = ["--by", "ada", "--reason", "seen on the statement"]
PERSONAL = ("ada.eze", "ben.okri", "nobody@", "example.com")


def invoke(*arguments: str, answers: str | None = None) -> Any:
    return commands.invoke("journal", *arguments, answers=answers)


async def asked(*arguments: str, answers: str | None = None, code: int = 0) -> Any:
    """Run a command, which tells nothing about people."""
    result = await commands.asked("journal", *arguments, answers=answers, code=code)
    assert not any(told in result.output for told in PERSONAL)
    return result


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    async with world_in_a_file(tmp_path / "journal.db", monkeypatch) as world:
        yield world


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits at the terminal."""
    for module in ("asking", "decision_commands"):
        monkeypatch.setattr(f"transfer_async._cli.journal.{module}.somebody_is_there", lambda: True)


async def created(world: World, key: str = "created") -> str:
    async with world.client() as client:
        return (await client.create_order(new_order(), key=key)).id


async def everything(world: World) -> None:
    await created(world)
    world.time.pass_(10.0)
    await world.in_doubt("doubt")
    world.time.pass_(10.0)
    await world.owing("owing")
    for key, at in (("claimed", moves.Mark), ("sending", moves.Create)):
        world.time.pass_(10.0)
        await world.crash(at, key=key)


# --- the whole ------------------------------------------------------------------------------------


@each("command", COMMANDS)
def test_every_command_explains_itself(command: str):
    result = invoke(command, "--help")

    assert result.exit_code == 0
    assert f"Usage: transfer-async journal {command}" in result.output


@pytest.mark.parametrize("command", ["show", *DECIDING])
def test_a_usage_line_names_its_arguments_as_every_manual_does(command: str):
    arguments = " KEY DECISION" if command == "propose" else " KEY"

    assert f" {command} [OPTIONS]{arguments}\n" in invoke(command, "--help").output


def test_the_journals_help_names_every_command():
    result = invoke("--help")

    assert all(command in result.output for command in COMMANDS)


@pytest.mark.parametrize("command", [["list"], ["show", "k"], ["prune", "--older-than", "1d", "--yes"]])
def test_without_a_journal_named_it_is_a_wrong_use(command: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRANSFER_JOURNAL", raising=False)
    result = invoke(*command, "--scope", "live")

    assert result.exit_code == 2
    assert "--journal" in result.stderr


async def test_a_journal_that_is_not_there_is_not_made(tmp_path: Path):
    result = await asked("list", "--journal", str(tmp_path / "typo.db"), "--scope", "live", code=2)

    assert result.stderr.startswith("journal: --journal: there is no file ")
    assert result.stderr.count("\n") == 1
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


def test_an_address_of_no_journal_is_told():
    result = invoke("list", "--journal", "mysql://u:s3cr3t@db/x", "--scope", "live")

    assert result.exit_code == 2
    assert result.stderr.startswith("journal: --journal: ")
    assert "s3cr3t" not in result.stderr


async def test_a_file_that_is_no_journal_is_told_in_one_line(tmp_path: Path):
    path = tmp_path / "other.db"
    await asyncio.to_thread(path.write_bytes, b"not a database, and long enough to be read as one" * 50)
    result = await asked("list", "--journal", str(path), "--scope", "live", code=1)

    assert result.stderr.startswith("journal: JournalFailed: ")
    assert result.stderr.count("\n") == 1


async def test_without_a_scope_or_an_address_it_is_a_wrong_use(world: World, monkeypatch: pytest.MonkeyPatch):
    await created(world)
    monkeypatch.delenv("TRANSFER_BASE_URL")
    result = await asked("list", code=2)

    assert result.stderr.startswith("journal: --scope: name it, or ")


async def test_an_address_that_is_none_is_told(world: World):
    await created(world)
    result = await asked("list", "--base-url", "http://bank.example", code=2)

    assert result.stderr.startswith("journal: base_url: must")


# --- list -----------------------------------------------------------------------------------------


async def test_nothing_waits_in_a_journal_where_all_went_well(world: World):
    await created(world)
    result = await asked("list")

    assert result.stdout == "nothing waits: nothing in doubt, nothing owed, nothing left behind\n"


async def test_what_waits_is_listed_oldest_first_and_summed_up(world: World):
    await everything(world)
    result = await asked("list")

    *rows, total = result.stdout.splitlines()
    cells = [re.split(r" {2,}", row) for row in rows]
    assert cells[0] == ["key", "state", "age", "order", "order id", "owed"]
    assert [cell[:2] for cell in cells[1:]] == [
        ["doubt", "in doubt"],
        ["owing", "free"],
        ["claimed", "claimed"],
        ["sending", "sending"],
    ]
    assert cells[1][3:] == ["155025.00 NGN (NG) for 100.00 USD (US)", "-", "-"]
    assert cells[2][5] == "funds_hold"
    assert re.fullmatch(r"\d+d \d+h", cells[1][2])
    assert total == ("4 keys: 1 claimed, 1 free, 1 in doubt, 1 sending, 1 undo owed; in doubt: 155025.00 NGN")


async def test_the_list_for_machines(world: World):
    await everything(world)
    told = json.loads((await asked("list", "--json")).stdout)

    entry = await world.entry("doubt")
    doubt, owing, *_ = told["keys"]
    assert set(told) == {"scope", "keys", "totals"}
    assert told["scope"] == world.scope
    age = doubt.pop("age_seconds")
    assert age == pytest.approx((datetime.now(UTC) - NOON).total_seconds() - 10, abs=60)
    cause = doubt.pop("cause")
    assert (cause["kind"], cause["error"], len(cause["attempts"])) == (
        "no_answer",
        "ServerDisconnectedError",
        1,
    )
    for name in ("began", "sent_until"):
        assert abs(datetime.fromisoformat(doubt.pop(name)) - NOON - timedelta(seconds=10)).total_seconds() < 1
    assert doubt == {
        "key": "doubt",
        "state": "in_doubt",
        "intent_id": entry.intent_id,
        "order_id": None,
        "candidates": [],
        "readable": True,
        "poster_amount": "155025.00",
        "poster_currency": "NGN",
        "matcher_amount": "100.00",
        "matcher_currency": "USD",
        "owed": [],
        "untold": [],
        "ended_in": None,
        "proposal": None,
        "moves": entry.moves,
    }
    assert (owing["owed"], owing["ended_in"]) == (["funds_hold"], "Refused")
    assert told["totals"] == {
        "keys": 4,
        "states": {"in_doubt": 1, "free": 1, "claimed": 1, "sending": 1},
        "undos_owed": 1,
        "in_doubt": {"NGN": "155025.00"},
    }


async def test_an_end_that_nobody_was_told_of_is_listed(world: World):
    await everything(world)
    intent_id = (await world.entry("doubt")).intent_id
    await world.move(moves.Promise(intent_id=intent_id), "doubt")
    await world.resolve("tx-seen", "doubt")
    (row,) = [row for row in (await asked("list")).stdout.splitlines() if "tx-seen" in row]
    lines = (await asked("show", "doubt")).stdout.splitlines()

    assert re.split(r" {2,}", row)[5] == "to tell: created"
    assert "to tell     created" in lines


async def test_an_empty_list_for_machines_is_a_document_too(world: World):
    await created(world)
    told = json.loads((await asked("list", "--json")).stdout)

    assert (told["keys"], told["totals"]["keys"]) == ([], 0)


async def test_more_keys_than_a_page_are_all_listed(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operators, "PAGE", 2)
    for number in range(5):
        await world.crash(moves.Mark, key=f"claimed-{number}")
    result = await asked("list")

    assert result.stdout.splitlines()[-1] == "5 keys: 5 claimed"


async def test_another_scope_is_another_list(world: World):
    await everything(world)

    assert "nothing waits" in (await asked("list", "--scope", "elsewhere")).stdout


# --- show -----------------------------------------------------------------------------------------


async def test_a_key_is_shown_with_its_history(world: World):
    await world.in_doubt("doubt")
    result = await asked("show", "doubt")

    entry = await world.entry("doubt")
    assert f"intent      {entry.intent_id}" in result.stdout
    assert "state       in doubt" in result.stdout
    assert "order       155025.00 NGN (NG) for 100.00 USD (US)" in result.stdout
    assert f"receipts    funds_hold: hold-{entry.intent_id}" in result.stdout
    assert [line.split()[1] for line in result.stdout.splitlines()[-3:]] == ["claim", "mark", "doubt"]


async def test_a_key_that_has_its_order_is_shown_too(world: World):
    order_id = await created(world)
    result = await asked("show", "created")

    assert f"order id    {order_id}" in result.stdout


async def test_a_key_for_machines(world: World):
    await world.in_doubt("doubt", held="H1")
    await asked("resolve", "doubt", "--order-id", "tx-seen", *SAID)
    told = json.loads((await asked("show", "doubt", "--json")).stdout)

    assert (told["state"], told["order_id"], told["receipts"]) == ("created", "tx-seen", {"held": "H1"})
    assert [step["move"] for step in told["history"]] == ["claim", "mark", "doubt", "resolve"]
    assert (told["history"][-1]["by"], told["history"][-1]["reason"]) == ("ada", "seen on the statement")
    assert all(datetime.fromisoformat(step["at"]).tzinfo for step in told["history"])


async def test_nothing_of_others_moves_an_operators_terminal(world: World):
    """Raw, a receipt could clear the screen, or show one order's id beside another's key."""
    receipt = "\x9b2J\u202e71-dloh\u2066\x7f ø"
    world.bank.reference = receipt
    await world.in_doubt("doubt")
    as_json = await asked("show", "doubt", "--json")
    as_text = await asked("show", "doubt")

    assert json.loads(as_json.stdout)["receipts"] == {"funds_hold": receipt}
    assert "ø" in as_json.stdout
    for said in (as_json.stdout, as_text.stdout):
        assert said.replace("\n", "").isprintable()


async def test_a_key_never_heard_of_is_a_no(world: World):
    await created(world)
    result = await asked("show", "never", code=1)

    assert result.stdout == ""
    assert result.stderr == "journal: key: nothing is on record of it in this scope\n"


# --- resolve --------------------------------------------------------------------------------------


async def unreadable(world: World) -> str:
    """A doubt whose answer names the order, and cannot be read; its id."""
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    doubt = await world.fails(UnreadableOrder, key="doubt")
    assert doubt.order_id is not None
    return doubt.order_id


async def test_the_id_that_an_unreadable_answer_named_is_shown_and_offered(world: World, somebody: None):
    """Somebody would have to find an order at the service, whose id had been in our hands."""
    order_id = await unreadable(world)
    shown = json.loads((await asked("show", "doubt", "--json")).stdout)
    no = await asked("resolve", "doubt", *SAID, answers="n\n", code=1)
    assert (await world.entry("doubt")).state is KeyState.IN_DOUBT
    await asked("resolve", "doubt", *SAID, answers="y\n")

    assert shown["candidates"] == [order_id]
    assert shown["history"][-1]["reason"].endswith(f"; the answer names {order_id}")
    assert f"names {order_id}. Is it the order of doubt?" in no.stderr
    assert (await world.entry("doubt")).order_id == order_id


async def test_a_candidate_is_taken_unasked_only_where_that_is_said_and_there_is_one(world: World):
    order_id = await unreadable(world)
    await world.in_doubt("none")
    unsaid = await asked("resolve", "doubt", *SAID, code=2)
    none = await asked("resolve", "none", "--candidate", *SAID, code=2)
    await asked("resolve", "doubt", "--candidate", *SAID)

    assert unsaid.stderr == ("journal: --order-id or --candidate: must be given where nobody can be asked\n")
    assert none.stderr == "journal: --order-id: must be given; of orders, the key's answers name none\n"
    assert (await world.entry("doubt")).order_id == order_id


async def test_a_doubt_is_resolved(world: World):
    await world.in_doubt("doubt")
    result = await asked("resolve", "doubt", "--order-id", "tx-seen", *SAID)

    entry = await world.entry("doubt")
    assert result.stdout == "doubt: created; its order is tx-seen\n"
    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-seen")


async def test_a_resolution_for_machines(world: World):
    await world.in_doubt("doubt")
    told = json.loads((await asked("resolve", "doubt", "--order-id", "tx-seen", *SAID, "--json")).stdout)

    entry = await world.entry("doubt")
    assert told == {
        "key": "doubt",
        "state": "created",
        "intent_id": entry.intent_id,
        "order_id": "tx-seen",
    }


async def test_the_login_name_says_so_unless_another_is_given(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("getpass.getuser", lambda: "grace")
    await world.in_doubt("doubt")
    await asked("resolve", "doubt", "--order-id", "tx-seen", "--reason", "seen")
    *_, last = await world.journal.history(world.scope, "doubt")

    assert last.by == "grace"


@pytest.mark.parametrize("word", [["resolve", "--order-id", "tx-other"], ["refute", "--yes"]])
async def test_a_word_about_one_doubt_is_not_taken_for_another(
    word: list[str], world: World, monkeypatch: pytest.MonkeyPatch
):
    """While somebody decides, the key is refuted, sent again, and in doubt about that order."""
    loop = asyncio.get_running_loop()

    async def another_doubt() -> None:
        await world.refute("doubt")
        await world.recover()
        await world.in_doubt("doubt")

    def meanwhile() -> str:
        asyncio.run_coroutine_threadsafe(another_doubt(), loop).result()
        return "grace"

    monkeypatch.setattr("getpass.getuser", meanwhile)
    await world.in_doubt("doubt")
    name, *options = word
    result = await asked(name, "doubt", *options, "--reason", "seen", code=1)

    assert "has moved" in result.stderr
    assert (await world.entry("doubt")).state is KeyState.IN_DOUBT


async def test_an_amendment_is_of_the_order_that_was_seen(world: World, monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.get_running_loop()
    desk = operators.Operators(world.journal, world.scope, clock=world.time.clock)

    def meanwhile() -> str:
        amended = desk.amend("doubt", order_id="tx-right", by="ben", reason="on the statement")
        asyncio.run_coroutine_threadsafe(amended, loop).result()
        return "grace"

    monkeypatch.setattr("getpass.getuser", meanwhile)
    await world.in_doubt("doubt")
    await world.resolve("tx-wrong", "doubt")
    result = await asked("amend", "doubt", "--in-doubt", "--reason", "seen", code=1)

    assert "has moved" in result.stderr
    assert (await world.entry("doubt")).order_id == "tx-right"


async def test_where_nobody_is_logged_in_somebody_must_be_named(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    def nobody() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)
    await world.in_doubt("doubt")
    result = await asked("resolve", "doubt", "--order-id", "tx-seen", "--reason", "seen", code=2)

    assert result.stderr.startswith("journal: --by: ")


@pytest.mark.usefixtures("somebody")
async def test_a_reason_that_is_not_given_is_asked_for(world: World):
    await world.in_doubt("doubt")
    result = await asked("resolve", "doubt", "--order-id", "tx-seen", "--by", "ada", answers="a letter\n")
    *_, last = await world.journal.history(world.scope, "doubt")

    assert "How do you know" in result.stderr
    assert last.reason == "a letter"


async def test_where_nobody_can_be_asked_a_reason_must_be_given(world: World):
    await world.in_doubt("doubt")
    result = await asked("resolve", "doubt", "--order-id", "tx-seen", "--by", "ada", code=2)

    assert result.stderr.startswith("journal: --reason: ")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (["--order-id", "order-1"], "--order-id: must look like 'tx-…'"),
        (["--by", " "], "--by: must be a line of text"),
        (["--reason", ""], "--reason: must be a line of text"),
    ],
)
async def test_a_wrong_option_is_named(world: World, wrong: list[str], why: str):
    await world.in_doubt("doubt")
    result = await asked("resolve", "doubt", "--order-id", "tx-seen", *SAID, *wrong, code=2)

    assert why in result.stderr
    assert (await world.entry("doubt")).state is KeyState.IN_DOUBT


async def test_what_the_service_refused_says_which_fields_it_named(world: World):
    await world.owing("owing")
    result = await asked("show", "owing")

    assert "ended in    Refused (refused); the service names: poster_recipient_username\n" in result.stdout


async def test_resolving_again_says_the_same(world: World):
    """A script that was cut off is run again, and must not stop at what it has done."""
    await world.in_doubt("doubt")
    first, again = [await asked("resolve", "doubt", "--order-id", "tx-seen", *SAID) for _ in range(2)]

    assert (again.exit_code, again.output) == (first.exit_code, first.output) == (0, first.output)


async def test_what_is_not_in_doubt_is_a_no(world: World):
    order_id = await created(world)
    result = await asked("resolve", "created", "--order-id", "tx-seen", *SAID, code=1)

    assert result.stderr == f"journal: key: must be in doubt; it is created ({order_id})\n"


@pytest.mark.parametrize("command", [["resolve", "--order-id", "tx-1"], ["refute"], ["amend", "--in-doubt"]])
async def test_that_there_is_no_such_key_is_said_before_anything_is_asked(world: World, command: list[str]):
    await created(world)
    name, *options = command
    result = await asked(name, "never", *options, code=1)

    assert result.stderr == "journal: key: nothing is on record of it in this scope\n"


# --- refute ---------------------------------------------------------------------------------------


async def test_a_doubt_is_refuted(world: World):
    await world.in_doubt("doubt")
    result = await asked("refute", "doubt", *SAID, "--yes")

    entry = await world.entry("doubt")
    assert result.stdout.startswith(
        "doubt: free; the next recovery undoes what is owed. The same message or "
    )
    assert (entry.state, [one.hook for one in entry.owed]) == (KeyState.FREE, ["funds_hold"])


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize(
    ("answer", "code", "state"),
    [("y\n", 0, KeyState.FREE), ("n\n", 1, KeyState.IN_DOUBT), ("\n", 1, KeyState.IN_DOUBT)],
)
async def test_it_asks_before_it_frees_the_key(world: World, answer: str, code: int, state: KeyState):
    await world.in_doubt("doubt")
    result = await asked("refute", "doubt", *SAID, answers=answer, code=code)

    assert "doubt: this frees the key, and the hold will be released." in result.stderr
    assert (await world.entry("doubt")).state is state


async def test_where_nobody_can_be_asked_it_must_be_told_to_go_on(world: World):
    await world.in_doubt("doubt")
    result = await asked("refute", "doubt", *SAID, code=2)

    assert result.stderr == "journal: --yes: must be given where nobody can be asked\n"
    assert (await world.entry("doubt")).state is KeyState.IN_DOUBT


async def test_what_comes_too_early_is_a_no_and_says_how_long_still(world: World):
    await world.in_doubt("doubt")
    settle_after = (datetime.now(UTC) - NOON).total_seconds() + 1e6
    result = await asked("refute", "doubt", *SAID, "--yes", "--settle-after", str(settle_after), code=1)

    assert re.search(r"too early, .* ask again in \d+ s\n$", result.stderr)


@pytest.mark.parametrize(
    ("settle_after", "rule"),
    [("-1", "must be 0 seconds or more"), ("nan", "is not a number of seconds or a timedelta")],
)
async def test_a_time_to_settle_that_is_none_is_a_wrong_use(world: World, settle_after: str, rule: str):
    await world.in_doubt("doubt")
    result = await asked("refute", "doubt", *SAID, "--yes", "--settle-after", settle_after, code=2)

    assert result.stderr == f"journal: --settle-after: {rule}\n"


async def test_a_row_that_cannot_be_read_is_shown_as_such_and_refuted_by_word(world: World, bank_module: Any):
    """It would be in no list, and its hold would be kept for ever."""
    await world.in_doubt("doubt")
    sql = "UPDATE keys_2 SET intent = '{}'"
    await world.journal.journal._ask(lambda file: file._db.execute(sql).rowcount)  # type: ignore[attr-defined] # SQLite
    await world.journal.journal.close()
    listed = await asked("list")
    shown = json.loads((await asked("show", "doubt", "--json")).stdout)
    recovered = await asked("recover", "--hooks", "our_bank:hooks", code=3)
    no = await asked("refute", "doubt", "--yes", "--settle-after", "0", *SAID, code=1)
    await asked("refute", "doubt", "--yes", "--settle-after", "0", "--undone", *SAID)
    after = json.loads((await asked("show", "doubt", "--json")).stdout)

    assert "in doubt (unreadable)" in listed.stdout
    assert recovered.stdout.splitlines()[-1] == "unreadable       1"
    assert (shown["state"], shown["readable"], len(shown["history"])) == ("in_doubt", False, 3)
    assert no.stderr.startswith("journal: undone: must be said: ")
    assert "(funds_hold)" in no.stderr
    assert (after["state"], after["readable"], after["owed"]) == ("free", True, [])
    assert [step["move"] for step in after["history"]][-2:] == ["layaside", "refute"]


# --- recover --------------------------------------------------------------------------------------

BANK = """
from transfer_async import FundsHold

released = []

async def place(intent):
    return "hold"

async def release(intent, receipt):
    {release}

def hooks():
    return [FundsHold(place, release)]

async def everything():
    async def resolve(intent, doubt):
        return "tx-found"
    return {{"hooks": hooks(), "resolve": resolve}}

def with_token():
    return {{"hooks": hooks(), "token": "s3cr3t"}}

def broken():
    raise RuntimeError("no\\nconfiguration")

def nothing():
    return None

def too_much():
    return {{"hooks": hooks(), "retries": 3}}

def wrong():
    return ["a string"]

NAME = "hooks"
"""


@pytest.fixture
def bank_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A module of the bank's in the current directory, and what writes another."""

    def write(release: str = "released.append(intent.id)") -> None:
        (tmp_path / "our_bank.py").write_text(BANK.format(release=release))
        (tmp_path / "broken_bank.py").write_text("import nowhere_to_be_found")

    write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("our_bank", None)


async def test_what_is_left_over_is_worked_off_with_the_banks_hooks(world: World, bank_module: Any):
    await everything(world)
    result = await asked("recover", "--hooks", "our_bank:hooks")

    assert result.stdout.splitlines() == [
        "taken over       1",
        "in doubt         2",
        "resolved         0",
        "refuted          0",
        "released         2",
        "still owed       0",
        "unreadable       0",
    ]


async def test_a_factory_may_be_async_and_bring_a_resolve(world: World, bank_module: Any):
    await world.in_doubt("doubt")
    result = await asked("recover", "--hooks", "our_bank:everything", "--json")

    assert json.loads(result.stdout) == {
        "taken_over": 0,
        "in_doubt": 0,
        "resolved": 1,
        "refuted": 0,
        "released": 0,
        "still_owed": 0,
        "unreadable": 0,
    }
    assert (await world.entry("doubt")).order_id == "tx-found"


async def test_a_recovery_that_leaves_an_undo_owed_has_a_code_of_its_own(world: World, bank_module: Any):
    await asyncio.to_thread(bank_module, release="raise OSError")
    await world.owing("owing")
    result = await asked("recover", "--hooks", "our_bank:hooks", code=3)

    assert result.stdout.splitlines()[-2:] == ["still owed       1", "unreadable       0"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("our_bank", "must be module:factory, as in our_bank.hooks:make"),
        (":hooks", "must be module:factory"),
        ("our_bank:", "must be module:factory"),
        ("nowhere:hooks", "cannot import nowhere (ModuleNotFoundError: No module named 'nowhere')"),
        ("broken_bank:hooks", "cannot import broken_bank (ModuleNotFoundError"),
        ("our_bank:missing", "there is no function missing in our_bank"),
        ("our_bank:NAME", "there is no function NAME in our_bank"),
        ("our_bank:broken", "the factory failed (RuntimeError: no?configuration)"),
        ("our_bank:nothing", "the factory must return a sequence of hooks"),
        ("our_bank:too_much", "the factory returned retries, which is no setting of these"),
        ("our_bank:wrong", "hooks: a str is neither a hook nor an async function"),
    ],
)
async def test_hooks_that_cannot_be_had_are_told_in_one_line(
    world: World, bank_module: Any, spec: str, why: str
):
    await world.owing("owing")
    result = await asked("recover", "--hooks", spec, code=2)

    assert why in result.stderr
    assert result.stderr.count("\n") == 1


async def test_an_object_with_hooks_will_do():
    class Ours:
        hooks = ()

    def make() -> Ours:
        return Ours()

    side = await made_by(make)

    assert (side.hooks, side.resolve) == ((), None)


def test_a_module_is_found_once_in_the_current_directory(bank_module: Any):
    factory_named("our_bank:hooks")
    factory_named("our_bank:nothing")

    assert sys.path.count(str(Path.cwd())) == 1


def test_what_lies_about_in_the_current_directory_stands_for_no_library(bank_module: Any):
    """A file there by the name of one would otherwise run, with the token in its environment."""
    decoys = [Path("asyncpg.py"), Path("aiohttp.py"), Path("rich.py")]
    for decoy in decoys:
        decoy.touch()
    factory_named("our_bank:hooks")
    found = [PathFinder.find_spec(decoy.stem) for decoy in decoys]

    assert [one is not None and Path(one.origin or "").parent == Path.cwd() for one in found] == [False] * 3


async def test_without_a_token_it_is_a_wrong_use(
    world: World, bank_module: Any, monkeypatch: pytest.MonkeyPatch
):
    await created(world)
    monkeypatch.delenv("TRANSFER_API_TOKEN")
    result = await asked("recover", "--hooks", "our_bank:hooks", code=2)

    assert result.stderr == (
        "journal: --token, or TRANSFER_API_TOKEN: must be given, unless the factory brings one\n"
    )


async def test_the_factory_may_bring_the_token(
    world: World, bank_module: Any, monkeypatch: pytest.MonkeyPatch
):
    await created(world)
    monkeypatch.delenv("TRANSFER_API_TOKEN")
    result = await asked("recover", "--hooks", "our_bank:with_token")

    assert result.stderr == ""


async def test_the_token_is_not_told(world: World, bank_module: Any):
    await created(world)
    result = await asked("recover", "--hooks", "our_bank:hooks", "--token", "very s3cr3t", code=2)

    assert "token: " in result.stderr
    assert "s3cr3t" not in result.stderr


# --- prune ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [["--before", "2024-06-01"], ["--older-than", "90d"]])
async def test_what_ended_long_ago_is_forgotten(world: World, when: list[str]):
    await everything(world)
    result = await asked("prune", *when, "--yes")

    assert result.stdout == "1 key forgotten\n"
    assert [await world.known(key) is None for key in ("created", "doubt", "owing")] == [True, False, False]


async def test_what_ended_within_a_day_is_kept_and_the_command_says_so(world: World):
    """An age mistyped must not pay a file again that has just been paid."""
    world.time.pass_((datetime.now(UTC) - NOON).total_seconds() - 60.0)
    await created(world)
    for age in ("0m", "1m", "23h"):
        result = await asked("prune", "--older-than", age, "--yes")
        assert result.stdout == "0 keys forgotten\n"
        assert "journal: what ended within the last day is kept" in result.stderr
    assert await world.known("created") is not None


async def test_what_ended_later_is_kept(world: World):
    await created(world)
    result = await asked("prune", "--before", "2024-05-06T11:00:00+00:00", "--yes", "--json")

    assert json.loads(result.stdout) == {"forgotten": 0}


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
async def test_it_asks_before_it_forgets(world: World, answer: str, code: int):
    await created(world)
    result = await asked("prune", "--before", "2024-06-01", answers=answer, code=code)

    assert "ended before 2024-06-01T00:00:00.000Z" in result.stderr
    assert (await world.known("created") is None) is (code == 0)


async def test_where_nobody_can_be_asked_nothing_is_forgotten(world: World):
    await created(world)
    await asked("prune", "--before", "2024-06-01", code=2)

    assert await world.known("created") is not None


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ([], "--before or --older-than: give one of them"),
        (["--before", "2024-06-01", "--older-than", "90d"], "--before or --older-than: give one of them"),
        (["--before", "yesterday"], "--before: must be a date or a time"),
        (["--older-than", "90"], "--older-than: must be a number of"),
        (["--older-than", "90y"], "--older-than: must be a number of"),
        (["--older-than", "-1d"], "--older-than: must be a number of"),
        (["--before", "2999-01-01"], "--before: must not lie ahead: a key that is forgotten is free"),
    ],
)
async def test_a_time_that_is_none_is_a_wrong_use(world: World, when: list[str], why: str):
    await created(world)
    result = await asked("prune", *when, "--yes", code=2)

    assert f"journal: {why}" in result.stderr


@each(
    ("before", "older_than", "time"),
    [
        ("2024-05-06", None, datetime(2024, 5, 6, tzinfo=UTC)),
        ("2024-05-06T12:00:00+02:00", None, datetime(2024, 5, 6, 10, tzinfo=UTC)),
        (None, "30m", NOON - timedelta(minutes=30)),
        (None, "2w", NOON - timedelta(weeks=2)),
        (None, "12h", NOON - timedelta(hours=12)),
    ],
)
def test_times_are_read(before: str | None, older_than: str | None, time: datetime):
    assert terminal.time_named(before, older_than, now=NOON) == time


# --- how it is shown ------------------------------------------------------------------------------


@each(
    ("seconds", "told"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m 0s"),
        (3_700, "1h 1m"),
        (86_400, "1d 0h"),
        (1e8, "1157d 9h"),
    ],
)
def test_ages_are_told_in_two_units(seconds: float, told: str):
    assert tables.age_told(seconds) == told


def test_on_a_terminal_it_is_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.show_table(("key", "state"), [("[red]k", "in doubt")])
    told = capsys.readouterr().out

    assert "[red]k" in told
    assert any(line in told for line in "│┃|")


def test_elsewhere_there_are_plain_columns(capsys: pytest.CaptureFixture[str]):
    output.show_table(("key", "state"), [("k-1", "free")])

    assert capsys.readouterr().out == "key  state\nk-1  free\n"


def test_what_a_store_said_is_told_by_its_first_line():
    error = JournalFailed("the journal could not be read")
    error.__cause__ = OSError("disk full\nDETAIL: more")

    assert terminal.explained(error) == "JournalFailed: the journal could not be read: disk full"


def test_a_failure_without_a_cause_is_told_alone():
    assert terminal.explained(JournalFailed("closed")) == "JournalFailed: closed"


async def test_the_journal_is_closed_whatever_happens(world: World):
    journal = world.journal
    journal.journal = MemoryJournal()

    with pytest.raises(RuntimeError):
        async with terminal.opened(journal, "live"):
            raise RuntimeError
    with pytest.raises(ValueError, match="the factory failed"):
        await terminal.recovered(journal, lambda: 1 / 0, base_url="https://bank.example", token="abc")

    assert journal.closed == 2


@pytest.mark.parametrize(
    "address",
    ["postgresql://bank:hunter/2@db/x", "postgresql:/bank:hunter@db/x", "host=db user=bank password=hunter"],
)
async def test_a_mistyped_address_is_refused_without_its_password(address: str):
    """A part of it was printed as what is no port: into a terminal's history, and a support ticket."""
    result = await asked("list", "--journal", address, "--scope", "https://bank.example", code=2)

    assert "--journal: " in result.stderr
    assert "hunter" not in result.output
