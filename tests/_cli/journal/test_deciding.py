"""`journal resolve`, `refute` and `amend`: their questions, warnings and errors, and the recorded person."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from tests._cli.journal.terminal import ADA, BEN, asked, corrupt_intents, json_of
from tests.support.bank import NOON, World, owed_hooks
from tests.support.cases import each
from transfer_async import CauseKind, JournalFailed, KeyState, UnreadableOrder
from transfer_async._models.errors import Cause
from transfer_async._pipeline import operators
from transfer_async.journal import Create, GoInDoubt
from transfer_async.sandbox import WrongTypes

SEEN = ["resolve", "doubt", "--order-id", "tx-seen"]
REFUTE = ["refute", "doubt", *ADA]


@pytest.fixture
async def doubted(world: World) -> World:
    """Return a world with a key whose order may exist."""
    await world.in_doubt("doubt")
    return world


async def test_a_doubt_is_resolved_and_may_be_resolved_again_in_the_same_way(doubted):
    """When an interrupted script is run again, it must not stop at a decision that it has already made."""
    first, again = [await asked(*SEEN, *ADA) for _ in range(2)]
    as_json = await json_of(*SEEN, *ADA)

    entry = await doubted.entry("doubt")
    assert first.output == again.output == "doubt: created; its order is tx-seen\n"
    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-seen")
    intent = {"intent_id": entry.intent_id}
    assert as_json == {"key": "doubt", "state": "created", "order_id": "tx-seen"} | intent


@pytest.mark.usefixtures("somebody")
async def test_no_release_is_announced_for_a_hold_that_the_bank_placed_itself(world):
    """Without this, Ada waits for a release that never happens, and the customer's money stays on hold."""
    await world.in_doubt("doubt", held="bank-7")
    world.time.pass_(600)
    no = await asked(*REFUTE, answers="n\n", code=1)
    done = await asked(*REFUTE, answers="y\n")

    assert (await world.entry("doubt")).pending_undos == ()
    for output in (no.output, done.output):
        assert "release" not in output.replace("bank must release the hold", "")
    assert "doubt: this frees the key. No hook has to be undone." in no.stderr
    assert "The bank must release the hold bank-7, because it placed this hold itself." in no.stderr
    banks_own = "nothing is left for a recovery to undo; the bank must release the hold bank-7"
    assert f"doubt: free; {banks_own}. If the same message" in done.stdout


@pytest.mark.usefixtures("doubted")
async def test_a_saved_refutation_is_reported_although_the_journal_fails_afterwards(monkeypatch):
    """If an error were shown instead, the person would decide again, or believe that the hold stays."""
    view = operators.Operators.view

    async def fails_once_decided(self: operators.Operators, key: str) -> object:
        found = await view(self, key)
        if found.state is KeyState.FREE:
            raise JournalFailed("gone")
        return found

    monkeypatch.setattr(operators.Operators, "view", fails_once_decided)
    result = await asked(*REFUTE, "--yes")

    assert result.stdout.startswith("doubt: free; ")


@pytest.mark.usefixtures("somebody")
async def test_no_release_is_announced_for_a_corrupt_record(doubted):
    await corrupt_intents(doubted)
    no = await asked(*REFUTE, "--undone", answers="n\n", code=1)
    proposed = await json_of("propose", "doubt", "refute", "--undone", *ADA)
    approving = await asked("approve", "doubt", *BEN, answers="n\n", code=1)

    assert proposed["proposal"]["decision"] == "refute"
    for result in (no, approving):
        assert (
            "cannot be undone by a recovery: undo them manually first. Undo these hooks manually: funds_hold."
            in result.stderr
        )
        assert "release" not in result.stderr


async def test_a_wrong_id_is_corrected_and_withdrawn(doubted):
    await asked("resolve", "doubt", "--order-id", "tx-wrong", *ADA)
    right = await asked("amend", "doubt", "--order-id", "tx-right", *BEN)
    back = await asked("amend", "doubt", "--in-doubt", *BEN)
    shown = await json_of("show", "doubt")

    assert right.stdout == "doubt: created; its order is tx-right\n"
    find_out = "find out whether its order exists, then resolve or refute the order"
    assert back.stdout == f"doubt: in doubt; {find_out}\n"
    assert (shown["state"], shown["cause"]["kind"]) == ("in_doubt", "taken_back")
    assert [(step["move"], step["order_id"]) for step in shown["history"][-3:]] == [
        ("resolve", "tx-wrong"),
        ("amend", "tx-right"),
        ("takeback", "tx-right"),
    ]


@pytest.mark.parametrize("reported", [True, False])
async def test_refuting_warns_if_the_sender_may_only_be_suspended(world, reported):
    """Without this, the person releases the hold of an order that a suspended process is about to send."""
    if reported:
        await world.in_doubt("doubt")
    else:
        await world.abandoned(Create, key="doubt")
        world.time.pass_(330.0)
    proposed = await asked("propose", "doubt", "refute", *ADA)
    approved = await asked("approve", "doubt", "--proposal", proposed.stdout.split()[-1], *BEN, "--yes")

    for result in (proposed, approved):
        assert ("doubt: the sender never reported how its attempt ended." in result.stderr) is not reported


@pytest.mark.usefixtures("somebody")
@each(
    ("answer", "code", "state"),
    [("n\n", 1, KeyState.IN_DOUBT), ("\n", 1, KeyState.IN_DOUBT), ("y\n", 0, KeyState.FREE)],
)
async def test_refute_asks_before_it_frees_the_key(doubted, answer, code, state):
    (receipt,) = (await doubted.entry("doubt")).receipts.values()
    result = await asked(*REFUTE, answers=answer, code=code)

    assert f"doubt: this releases {receipt} of 155,025.00 NGN, at the next recovery, and" in result.stderr
    entry = await doubted.entry("doubt")
    assert (entry.state, owed_hooks(entry)) == (state, ["funds_hold"] if code == 0 else [])
    released = f"doubt: free; the next recovery releases {receipt} of 155,025.00 NGN. If the same message"
    assert (released in result.stdout) is (code == 0)


async def test_an_early_refutation_is_refused_with_the_time_to_wait(doubted):
    settle_after = (datetime.now(UTC) - NOON).total_seconds() + 1e6
    result = await asked(*REFUTE, "--yes", "--settle-after", str(settle_after), code=1)

    assert re.search(r"too early, .* try again in \d+ s\n$", result.stderr)


@each(
    ("arguments", "line"),
    [
        ([*SEEN, "--by", "ada"], "--reason is required when not interactive: give your evidence"),
        ([*SEEN, *ADA, "--order-id", "order-1"], "--order-id: must look like 'tx-…'"),
        ([*SEEN, *ADA, "--by", " "], "--by: must be a non-empty line of text"),
        ([*SEEN, *ADA, "--reason", ""], "--reason: must be a non-empty line of text"),
        (
            ["resolve", "doubt", *ADA],
            "--order-id is required: the service's responses contain no candidate order",
        ),
        (["resolve", "doubt", "--candidate", *ADA], "--order-id is required: "),
        (REFUTE, "--yes is required when not interactive\n"),
        ([*REFUTE, "--yes", "--settle-after", "-1"], "--settle-after: must be 0 seconds or more\n"),
        ([*REFUTE, "--yes", "--settle-after", "nan"], "--settle-after: is not a number of seconds"),
        (["amend", "doubt", *ADA], "pass either --order-id or --in-doubt\n"),
        (
            ["amend", "doubt", *ADA, "--in-doubt", "--order-id", "tx-1"],
            "pass either --order-id or --in-doubt",
        ),
        (
            ["propose", "doubt", "refute", "--order-id", "tx-1", *ADA],
            "--order-id cannot be used with refute\n",
        ),
    ],
)
async def test_a_usage_error_leaves_the_doubt(doubted, arguments, line):
    result = await asked(*arguments, code=2)

    assert result.stderr.startswith(f"journal: {line}")
    assert (await doubted.entry("doubt")).state is KeyState.IN_DOUBT


@each(
    ("arguments", "why"),
    [
        (["resolve", "created", "--order-id", "tx-seen", *ADA], "must be in doubt; it is created ("),
        (["resolve", "never", "--order-id", "tx-1"], "has no record in this scope\n"),
        (["refute", "never"], "has no record in this scope\n"),
        (["amend", "never", "--in-doubt"], "has no record in this scope\n"),
        (["show", "never"], "has no record in this scope\n"),
        (["note", "never", "seen", "--by", "ada"], "has no record in this scope\n"),
    ],
)
async def test_an_unknown_or_created_key_is_reported_before_any_question(world, arguments, why):
    await world.create(key="created")
    result = await asked(*arguments, code=1)

    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert result.stderr.startswith(f"journal: key: {why}")


# --- the person and the reason -------------------------------------------------------------------


@pytest.mark.usefixtures("somebody")
async def test_the_login_name_is_recorded_and_a_missing_reason_is_asked_for(doubted, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "grace")
    result = await asked(*SEEN, answers="a letter\n")
    *_, last = await doubted.journal.history(doubted.scope, "doubt")

    assert "Your evidence" in result.stderr
    assert (last.by, last.reason) == ("grace", "a letter")


async def test_by_is_required_without_a_login_name(doubted, monkeypatch):
    def fails() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", fails)

    assert (await asked(*SEEN, "--reason", "seen", code=2)).stderr.startswith("journal: --by is required: ")


def while_deciding(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Do some work while a person decides: after the key was read, and before the decision is written."""
    loop = asyncio.get_running_loop()

    def login() -> str:
        asyncio.run_coroutine_threadsafe(work(), loop).result()
        return "grace"

    monkeypatch.setattr("getpass.getuser", login)


@pytest.mark.parametrize(
    "command", [["resolve", "--order-id", "tx-other"], ["refute", "--yes"], ["propose", "refute"]]
)
async def test_a_decision_about_one_doubt_does_not_end_a_later_one(command, doubted, monkeypatch):
    """While a person decides, the key is refuted, sent again, and in doubt about the new order."""

    async def another_doubt() -> None:
        await doubted.refute("doubt")
        await doubted.recover()
        await doubted.in_doubt("doubt")

    while_deciding(monkeypatch, another_doubt)
    name, *options = command
    result = await asked(name, "doubt", *options, "--reason", "seen", code=1)

    assert "has changed" in result.stderr
    assert (await doubted.entry("doubt")).state is KeyState.IN_DOUBT


async def test_an_amendment_is_refused_if_another_person_has_amended_the_key(doubted, monkeypatch):
    desk = operators.Operators(doubted.journal, doubted.scope, clock=doubted.time.clock)
    await doubted.resolve("tx-wrong", "doubt")
    while_deciding(
        monkeypatch, lambda: desk.amend("doubt", order_id="tx-right", by="ben", reason="on the statement")
    )
    result = await asked("amend", "doubt", "--in-doubt", "--reason", "seen", code=1)

    assert "has changed" in result.stderr
    assert (await doubted.entry("doubt")).order_id == "tx-right"


# --- the candidate order -------------------------------------------------------------------------


async def test_the_order_id_of_an_unreadable_response_is_offered(world, request):
    """Without this, a person must search for the order at the service, although its id was received."""
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    order_id = (await world.fails(UnreadableOrder, key="doubt")).order_id
    shown = await json_of("show", "doubt")
    not_interactive = await asked("resolve", "doubt", *ADA, code=2)
    request.getfixturevalue("somebody")
    no = await asked("resolve", "doubt", *ADA, answers="n\n", code=1)
    assert (await world.entry("doubt")).state is KeyState.IN_DOUBT
    await asked("resolve", "doubt", "--candidate", *ADA)  # asks nothing

    assert not_interactive.stderr == "journal: --order-id or --candidate is required when not interactive\n"
    assert shown["candidates"] == [order_id]
    assert shown["history"][-1]["reason"].endswith(f"; the response contains the id {order_id}")
    assert f"contains {order_id}. Does this order belong to doubt?" in no.stderr
    assert (await world.entry("doubt")).order_id == order_id


async def test_resolve_accepts_no_candidate_if_there_are_several(doubted):
    attempt = (await doubted.entry("doubt")).attempt or ""
    for order_id in ("tx-1", "tx-2"):
        cause = Cause(kind=CauseKind.UNREADABLE_ANSWER)
        await doubted.move(GoInDoubt(attempt=attempt, candidate=order_id, cause=cause), "doubt")
    refused = await asked("resolve", "doubt", "--candidate", *ADA, code=2)

    assert "the service's responses contain several candidate orders: tx-1, tx-2" in refused.stderr
    assert (await doubted.entry("doubt")).state is KeyState.IN_DOUBT
