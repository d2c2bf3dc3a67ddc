"""`journal list`, `show`, `note` and `audit`: their output has no personal data unless it is requested."""

import asyncio
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pytest

from tests._cli.journal.terminal import ADA, BEN, asked, everything, json_of
from tests.support import commands
from tests.support.bank import NOON
from tests.support.cases import each
from transfer_async import MemoryJournal, PersonName
from transfer_async._cli import journal_output, output
from transfer_async._cli.journal_commands import app
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline import operators
from transfer_async.journal import transitions
from transfer_async.sandbox import Status

# --- the list -----------------------------------------------------------------------------------


async def test_a_created_key_is_not_listed(world):
    text = f"{world.scope}: no key needs attention: nothing in doubt, no undo pending, nothing abandoned\n"
    assert (await asked("list")).stdout == text  # the journal is empty
    await world.create(key="created")
    result, listed = await asked("list"), await json_of("list")

    assert result.stdout == text
    assert (listed["keys"], listed["totals"]["keys"]) == ([], 0)


async def test_pending_keys_are_listed_oldest_first_with_totals(world):
    await everything(world)
    result, listed = await asked("list"), await json_of("list")

    *rows, total = result.stdout.splitlines()
    cells = [re.split(r" {2,}", row) for row in rows]
    assert cells[0] == ["key", "state", "age", "order", "order id", "pending"]
    assert [cell[:2] for cell in cells[1:]] == [
        ["doubt", "in doubt"],
        ["owing", "free"],
        ["claimed", "claimed"],
        ["sending", "sending"],
    ]
    assert cells[1][3:] == ["155025.00 NGN (NG) for 100.00 USD (US)", "-", "-"]
    assert cells[2][5] == "funds_hold"
    assert re.fullmatch(r"\d+d \d+h", cells[1][2])
    counted = "4 keys: 1 claimed, 1 free, 1 in doubt, 1 sending, 1 undo pending; in doubt: 155025.00 NGN"
    assert total == f"{world.scope}: {counted}"

    entry = await world.entry("doubt")
    doubt, owing, *_ = listed["keys"]
    age, cause = doubt.pop("age_seconds"), doubt.pop("cause")
    assert age == pytest.approx((datetime.now(UTC) - NOON).total_seconds() - 10, abs=60)
    assert (cause["kind"], cause["error"]) == ("no_answer", "ServerDisconnectedError")
    for name in ("began", "sent_until"):
        assert abs(datetime.fromisoformat(doubt.pop(name)) - NOON - timedelta(seconds=10)).total_seconds() < 1
    assert doubt == {
        "key": "doubt",
        "state": "in_doubt",
        "intent_id": entry.intent_id,
        "attempt_id": entry.attempt,
        "order_id": None,
        "candidates": [],
        "readable": True,
        "poster_amount": "155025.00",
        "poster_currency": "NGN",
        "matcher_amount": "100.00",
        "matcher_currency": "USD",
        "lease_until": None,
        "owed": [],
        "untold": [],
        "ended_in": None,
        "proposal": None,
        "moves": entry.version,
    }
    assert (owing["owed"], owing["ended_in"]) == (["funds_hold"], "Refused")
    assert listed["scope"] == world.scope
    assert listed["totals"] == {
        "keys": 4,
        "states": {"in_doubt": 1, "free": 1, "claimed": 1, "sending": 1},
        "undos_owed": 1,
        "in_doubt": {"NGN": "155025.00"},
    }
    refused = (await asked("show", "owing")).stdout
    assert (
        "ended in    Refused (refused); fields named by the service: poster_recipient_username\n" in refused
    )


async def test_a_pending_notification_is_listed(world):
    await world.in_doubt("doubt")
    intent_id = (await world.entry("doubt")).intent_id
    await world.move(transitions.RequestNotification(intent_id=intent_id), "doubt")
    await world.resolve("tx-seen", "doubt")
    (row,) = [row for row in (await asked("list")).stdout.splitlines() if "tx-seen" in row]
    lines = (await asked("show", "doubt")).stdout.splitlines()

    assert re.split(r" {2,}", row)[5] == "notification: created"
    assert "to publish  created" in lines


async def test_more_keys_than_a_page_are_all_listed(world, monkeypatch):
    monkeypatch.setattr(operators, "PAGE", 1)
    for number in range(3):
        await world.crash(transitions.MarkSending, key=f"claimed-{number}")
    result = await asked("list")

    assert result.stdout.splitlines()[-1] == f"{world.scope}: 3 keys: 3 claimed"


OF_A_SCOPE = {
    "list": [],
    "show": ["doubt"],
    "note": ["doubt", "seen", "--by", "ada"],
    "audit": [],
    "resolve": ["doubt", "--order-id", "tx-1", *ADA],
    "refute": ["doubt", "--yes", *ADA],
    "amend": ["doubt", "--order-id", "tx-1", *ADA],
    "propose": ["doubt", "refute", *ADA],
    "approve": ["doubt", "--proposal", "p", "--yes", *ADA],
    "withdraw": ["doubt", "--proposal", "p", "--yes", *ADA],
    "four-eyes": [],
    "prune": ["--older-than", "90d", "--yes"],
    "recover": ["--hooks", "json:loads"],
    "reconcile": ["{export}"],
}
"""Every command that works on one scope, with its arguments."""


async def test_every_command_refuses_a_scope_without_keys_in_the_journal(world, tmp_path):
    """Without this, a wrong address shows an empty list instead of 43 doubts, and nobody ends them."""
    await world.in_doubt("doubt")
    # The dual-control rule does not count as a key.
    await asked("four-eyes", "demand", "--scope", "elsewhere", *ADA)
    export = tmp_path / "orders.jsonl"
    await asyncio.to_thread(export.touch)
    for command, arguments in OF_A_SCOPE.items():
        given = [argument.format(export=export) for argument in arguments]
        result = await asked(command, *given, "--scope", "elsewhere", code=4)
        assert (command, result.stdout) == (command, "")
        assert result.stderr.endswith(
            f"the journal has no keys in elsewhere, only keys in {world.scope}: "
            "pass the right scope with --scope or --base-url\n"
        )
    assert {*OF_A_SCOPE, "upgrade"} == {
        command.name or command.callback.__name__  # type: ignore[union-attr] # each has one
        for command in app.registered_commands
    }


# --- one key ------------------------------------------------------------------------------------


async def test_a_key_is_shown_with_its_history(world):
    await world.in_doubt("doubt")
    doubt, entry = (await asked("show", "doubt")).stdout, await world.entry("doubt")
    await asked("resolve", "doubt", "--order-id", "tx-seen", *ADA)
    created, shown = (await asked("show", "doubt")).stdout, await json_of("show", "doubt")

    for line in (
        "next step   The order probably exists: ask the service about it\n",
        f"intent      {entry.intent_id}\n",
        "state       in doubt\n",
        "order       155025.00 NGN (NG) for 100.00 USD (US)\n",
        f"receipts    funds_hold: hold-{entry.intent_id}\n",
    ):
        assert line in doubt
    assert [line.split()[1] for line in doubt.splitlines()[-3:]] == ["claim", "mark", "doubt"]
    for line in ("next step   -\n", "order id    tx-seen\n"):
        assert line in created
    assert (shown["state"], shown["order_id"]) == ("created", "tx-seen")
    assert shown["receipts"] == {"funds_hold": f"hold-{entry.intent_id}"}
    assert [step["move"] for step in shown["history"]] == ["claim", "mark", "doubt", "resolve"]
    assert (shown["history"][-1]["by"], shown["history"][-1]["reason"]) == ("ada", "seen on the statement")
    assert all(datetime.fromisoformat(step["at"]).tzinfo for step in shown["history"])


async def test_control_characters_do_not_reach_the_terminal(world):
    """Without this, a receipt could clear the screen, or show one order's id next to another's key."""
    receipt = "\x9b2J\u202e71-dloh\u2066\x7f\u3164 ø"
    world.bank.reference = receipt
    await world.in_doubt("doubt")
    as_json = await asked("show", "doubt", "--json")
    as_text = await asked("show", "doubt")

    assert json.loads(as_json.stdout)["receipts"] == {"funds_hold": receipt}
    assert "ø" in as_json.stdout
    for output_text in (as_json.stdout, as_text.stdout):
        assert output_text.replace("\n", "").isprintable()
    assert "?2J?71-dloh??? ø" in as_text.stdout


async def test_a_created_key_is_shown_with_its_order(world):
    order_id = (await world.create()).id
    shown = (await asked("show", "k")).stdout

    assert f"order id    {order_id}" in shown
    assert "order       155025.00 NGN (NG) for 100.00 USD (US)\n" in shown


async def test_a_claimed_key_is_shown_with_the_end_of_its_lease(world):
    await world.crash(transitions.MarkSending)
    until = f"{(world.time.utc() + timedelta(seconds=60)):%Y-%m-%dT%H:%M:%S}.000Z"

    assert (await json_of("show", "k"))["lease_until"] == until
    assert f"lease until {until}\n" in (await asked("show", "k")).stdout


async def test_the_cause_of_a_doubt_is_shown_with_the_attempts(world):
    world.sandbox.faults.add(Status(429, headers={"X-Request-Id": "r-1", "Retry-After": "0"}))
    world.sandbox.faults.add(Status(503, headers={"X-Request-Id": "r-2"}))
    await world.fails(Exception)
    lines, shown = (await asked("show", "k")).stdout.splitlines(), await json_of("show", "k")

    cause = "the response's status does not show whether the order exists (status 503, request r-2)"
    assert f"cause       {cause}" in lines
    attempts = [line for line in lines if line.startswith("attempt ")]
    assert attempts[0] == f"attempt id  {shown['attempt_id']}"
    assert [line[:12] for line in attempts[1:]] == ["attempt 1   ", "attempt 2   "]
    assert attempts[1].endswith("status 429, request r-1, RateLimited")
    assert [attempt["request_id"] for attempt in shown["cause"]["attempts"]] == ["r-1", "r-2"]


async def test_the_parties_are_shown_only_on_request_and_the_history_records_the_look(world):
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))
    await world.create(key="created")
    with_order = ("journal", "show", "k", "--with-order", "--by")
    await asked("show", "k"), await asked("show", "k", "--json")  # `asked` checks that no person is shown.
    shown = await commands.asked(*with_order, "ada")
    as_json = await commands.asked(*with_order, "cleo", "--reason", "a call", "--json")
    created = await commands.asked("journal", "show", "created", "--with-order", *ADA, "--json")
    looks = [step for step in (await json_of("show", "k"))["history"] if step["move"] == "look"]

    assert "poster      ada.eze@example.com" in shown.stdout
    assert "said to be  Ben Okri" in shown.stdout
    assert json.loads(as_json.stdout)["parties"]["beneficiary"] == "ben.okri@example.com"
    assert set(json.loads(created.stdout)["parties"]) == {"poster", "beneficiary"}
    assert json.loads(created.stdout)["parties"]["beneficiary"] is not None
    assert [(step["by"], step["reason"]) for step in looks] == [
        ("ada", "journal show --with-order"),
        ("cleo", "a call"),
    ]


# --- texts and tables ---------------------------------------------------------------------------


COLUMNS = {"key": itemgetter(0), "state": itemgetter(1)}


def test_a_terminal_gets_a_table_with_lines(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.show_table(COLUMNS, [("[red]k", "in doubt")])
    printed = capsys.readouterr().out

    assert "[red]k" in printed
    assert any(line in printed for line in "│┃|")


def test_a_pipe_gets_aligned_columns(capsys):
    output.show_table(COLUMNS, [("k-1", "free")])

    assert capsys.readouterr().out == "key  state\nk-1  free\n"


@each(
    ("cause", "line"),
    [
        (OSError("disk full\nDETAIL: more"), "JournalFailed: the journal could not be read: disk full"),
        (None, "JournalFailed: the journal could not be read"),
    ],
)
def test_the_first_line_of_a_stores_error_is_printed(cause, line):
    error = JournalFailed("the journal could not be read")
    error.__cause__ = cause

    assert journal_output.explained(error) == line


async def test_the_journal_is_closed_after_an_error(world, monkeypatch):
    world.journal.journal = MemoryJournal()
    monkeypatch.setattr(journal_output, "journal_named", lambda address: world.journal)
    await asked("show", "k", code=1)
    # Opens the journal twice, before and after the factory fails.
    await asked("recover", "--hooks", "json:loads", code=2)

    assert world.journal.closed == 3


# --- notes and the audit --------------------------------------------------------------------------


async def test_a_note_is_in_the_history_and_changes_nothing(world):
    await world.in_doubt("k")
    before = await world.entry()

    result = await asked("note", "k", "the service calls back at four", "--by", "ada")
    noted = await json_of("note", "k", "it called", "--by", "ben")
    after, record = await world.entry(), await json_of("show", "k")

    assert result.stdout == "k: your note was added to the history\n"
    assert noted == {"key": "k", "by": "ben", "note": "it called"}
    assert [(step["move"], step["by"], step["reason"]) for step in record["history"][-2:]] == [
        ("note", "ada", "the service calls back at four"),
        ("note", "ben", "it called"),
    ]
    assert (after.state, after.version) == (before.state, before.version)


@each(
    ("arguments", "why"),
    [
        (["note", "k", " ", "--by", "ada"], "TEXT: must be a non-empty line"),
        (["audit", "--since", "tomorrow"], "--since: must be a date or a time, as in 2026-01-01"),
    ],
)
async def test_an_empty_note_or_a_time_that_is_none_is_refused(world, arguments, why):
    await world.in_doubt("k")

    assert why in (await asked(*arguments, code=2)).stderr


async def test_the_audit_lists_what_people_did_newest_first(world):
    empty = await asked("audit")
    for key in ("first", "second"):
        await world.in_doubt(key)
        await asked("propose", key, "resolve", "--order-id", f"tx-{key}", *ADA)
    proposal = (await world.entry("second")).proposal
    assert proposal is not None
    await asked("approve", "second", "--proposal", proposal.id, "--yes", *BEN)
    await asked("note", "first", "called", "--by", "ben")

    result, found = await asked("audit", "--decisions"), await json_of("audit")
    by_ada, later = await json_of("audit", "--by", "ada"), await json_of("audit", "--since", "2999-01-01")
    earlier = await json_of("audit", "--until", "2999-01-01")

    assert empty.stdout == f"{world.scope}: 0 lines\n"
    assert [(line["key"], line["move"], line["by"]) for line in found["lines"]] == [
        ("first", "note", "ben"),
        ("second", "resolve", "ben"),
        ("second", "propose", "ada"),
        ("first", "propose", "ada"),
    ]
    assert found["lines"][1]["approved_proposal"]["by"] == "ada"
    assert [line["approved_proposal"] for line in found["lines"][2:]] == [None, None]
    assert [line["move"] for line in by_ada["lines"]] == ["propose", "propose"]
    assert (later["lines"], earlier["lines"]) == ([], found["lines"])
    *rows, total = result.stdout.splitlines()
    cells = [re.split(r" {2,}", row) for row in rows]
    assert cells[0] == ["at", "key", "move", "order id", "by", "proposed by", "reason"]
    assert cells[1][1:] == ["second", "resolve", "tx-second", "ben", "ada", "looked, too"]
    assert total == f"{world.scope}: 3 lines"


async def test_the_audit_reads_all_pages(world, monkeypatch):
    await world.in_doubt("k")
    for number in range(3):
        await asked("note", "k", f"note {number}", "--by", "ada")
    complete = operators.Operators.audit

    async def short(self: operators.Operators, **wanted: Any) -> Any:
        return await complete(self, limit=1, **wanted)

    monkeypatch.setattr(operators.Operators, "audit", short)

    assert [line["reason"] for line in (await json_of("audit"))["lines"]] == ["note 2", "note 1", "note 0"]
