"""The commands for two, what is corrected, and what is shown of why: against a journal in a file."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands
from tests.support.bank import World, world_in_a_file
from transfer_async import KeyState, PersonName
from transfer_async.sandbox import Status

ADA = ["--by", "ada", "--reason", "seen on the statement"]
BEN = ["--by", "ben", "--reason", "looked, too"]


async def asked(*arguments: str, answers: str | None = None, code: int = 0) -> Any:
    return await commands.asked("journal", *arguments, answers=answers, code=code)


async def told(*arguments: str, code: int = 0) -> Any:
    return json.loads((await asked(*arguments, "--json", code=code)).stdout)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    async with world_in_a_file(tmp_path / "journal.db", monkeypatch) as world:
        yield world


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits at the terminal."""
    for module in ("asking", "decision_commands", "four_eyes_commands"):
        monkeypatch.setattr(f"transfer_async._cli.journal.{module}.somebody_is_there", lambda: True)


# --- four eyes ----------------------------------------------------------------------------------


async def test_one_proposes_another_is_asked_and_the_key_is_free(world: World, somebody: None):
    await world.in_doubt()
    await asked("four-eyes", "demand", *ADA)
    alone = await asked("refute", "k", "--yes", *ADA, code=1)
    proposed = await asked("propose", "k", "refute", *ADA)
    listed = await asked("list")
    same = await asked("approve", "k", *ADA, answers="y\n", code=1)
    no = await asked("approve", "k", *BEN, answers="n\n", code=1)
    assert (await world.entry()).state is KeyState.IN_DOUBT
    approved = await asked("approve", "k", *BEN, answers="y\n")

    assert alone.stderr == (
        "journal: four_eyes: are demanded in this scope: propose it, and another person approves\n"
    )
    assert proposed.stdout.startswith("k: proposed: refute; another person approves it, as ")
    assert "to approve: refute" in listed.stdout
    assert "by: proposed it, and another person must approve it" in same.stderr
    assert "k: ada proposes: refute (seen on the statement). Do you approve?" in no.stderr
    assert "\nk: free; " in approved.stdout
    assert (await world.entry()).state is KeyState.FREE


async def test_what_is_approved_where_nobody_can_be_asked_is_named(world: World):
    await world.in_doubt()
    proposal = (await told("propose", "k", "resolve", "--order-id", "tx-1", *ADA))["proposal"]
    unnamed = await asked("approve", "k", "--yes", *BEN, code=2)
    other = await asked("approve", "k", "--yes", "--proposal", "another", *BEN, code=1)
    record = await told("approve", "k", "--yes", "--proposal", proposal["id"], *BEN)

    assert {name: proposal[name] for name in ("decision", "order_id", "by", "reason")} == {
        "decision": "resolve",
        "order_id": "tx-1",
        "by": "ada",
        "reason": "seen on the statement",
    }
    assert unnamed.stderr == "journal: --proposal: must be given where nobody can be asked\n"
    assert "another proposal has taken its place" in other.stderr
    assert (record["state"], record["order_id"]) == ("created", "tx-1")


async def test_a_proposal_is_shown_and_turned_down(world: World):
    await world.in_doubt()
    proposal = (await told("propose", "k", "resolve", "--order-id", "tx-1", *ADA))["proposal"]
    shown = await asked("show", "k")
    down = await asked("withdraw", "k", "--proposal", proposal["id"], "--yes", *BEN)
    gone = await asked("withdraw", "k", "--proposal", proposal["id"], "--yes", *BEN, code=1)

    assert f"proposed    resolve as tx-1, by ada: seen on the statement ({proposal['id']})" in shown.stdout
    assert down.stdout == "k: in doubt; nothing is proposed any more\n"
    assert gone.stderr == "journal: k: nothing is proposed, or the key has moved since\n"


async def test_a_proposal_is_turned_down_for_machines(world: World):
    await world.in_doubt()
    proposal = (await told("propose", "k", "resolve", "--order-id", "tx-1", *ADA))["proposal"]
    record = await told("withdraw", "k", "--proposal", proposal["id"], "--yes", *BEN)

    assert (record["key"], record["state"]) == ("k", "in_doubt")


async def test_four_eyes_are_demanded_by_one_and_waived_by_two(world: World):
    await world.create()
    before = await asked("four-eyes")
    demanded = await asked("four-eyes", "demand", *ADA)
    nobody = await asked("four-eyes", "approve", *BEN, code=1)
    waiving = await asked("four-eyes", "waive", *ADA)
    asked_for = await told("four-eyes")
    same = await asked("four-eyes", "approve", *ADA, code=1)
    waived = await asked("four-eyes", "approve", *BEN)

    assert (before.stdout, demanded.stdout) == ("one person is enough\n", "four eyes are demanded\n")
    assert nobody.stderr == "journal: four-eyes: nobody proposes to waive them\n"
    assert waiving.stdout.splitlines() == [
        "four eyes are demanded",
        "ada proposes to waive them: seen on the statement; another person approves it",
    ]
    assert (asked_for["demanded"], asked_for["proposal"]["decision"]) == (True, "waive")
    assert "another person must approve it" in same.stderr
    assert waived.stdout == "one person is enough\n"


async def test_that_they_are_waived_is_turned_down(world: World):
    await world.create()
    await asked("four-eyes", "demand", *ADA)
    await asked("four-eyes", "waive", *ADA)

    assert (await asked("four-eyes", "withdraw", *BEN)).stdout == "four eyes are demanded\n"


async def test_an_order_is_not_for_a_refutation(world: World):
    await world.in_doubt()
    result = await asked("propose", "k", "refute", "--order-id", "tx-1", *ADA, code=2)

    assert result.stderr == "journal: --order-id: is not for refute\n"


# --- amend --------------------------------------------------------------------------------------


async def test_a_wrong_id_is_corrected_and_taken_back(world: World):
    await world.in_doubt()
    await asked("resolve", "k", "--order-id", "tx-wrong", *ADA)
    right = await asked("amend", "k", "--order-id", "tx-right", *BEN)
    back = await asked("amend", "k", "--in-doubt", *BEN)
    shown = await told("show", "k")

    assert right.stdout == "k: created; its order is tx-right\n"
    assert back.stdout == "k: in doubt; find out what became of its order, and say so\n"
    assert (shown["state"], shown["cause"]["kind"]) == ("in_doubt", "taken_back")
    assert [(step["move"], step["order_id"]) for step in shown["history"][-3:]] == [
        ("resolve", "tx-wrong"),
        ("amend", "tx-right"),
        ("takeback", "tx-right"),
    ]


@pytest.mark.parametrize(
    ("decision", "words"), [(["--order-id", "tx-2"], "amend to tx-2"), (["--in-doubt"], "back into doubt")]
)
async def test_an_amendment_can_be_proposed(world: World, decision: list[str], words: str):
    await world.in_doubt()
    await asked("resolve", "k", "--order-id", "tx-1", *ADA)
    result = await asked("propose", "k", "amend", *decision, *ADA)

    assert result.stdout.startswith(f"k: proposed: {words}; ")


@pytest.mark.parametrize("wrong", [[], ["--order-id", "tx-1", "--in-doubt"]], ids=["neither", "both"])
async def test_what_an_id_is_amended_to_must_be_said(world: World, wrong: list[str]):
    await world.in_doubt()
    result = await asked("amend", "k", *wrong, *ADA, code=2)

    assert result.stderr == "journal: --order-id or --in-doubt: give one of them\n"


# --- why ----------------------------------------------------------------------------------------


async def test_why_a_key_is_in_doubt_is_shown_with_its_attempts(world: World):
    world.sandbox.faults.add(Status(429, headers={"X-Request-Id": "r-1", "Retry-After": "0"}))
    world.sandbox.faults.add(Status(503, headers={"X-Request-Id": "r-2"}))
    await world.fails(Exception)
    lines = (await asked("show", "k")).stdout.splitlines()
    machines = await told("show", "k")

    assert "cause       the answer's status says nothing of the order (status 503, request r-2)" in lines
    assert [line[:12] for line in lines if line.startswith("attempt")] == ["attempt 1   ", "attempt 2   "]
    assert any(line.endswith("status 429, request r-1, RateLimited") for line in lines)
    assert [one["request_id"] for one in machines["cause"]["attempts"]] == ["r-1", "r-2"]


async def test_the_parties_are_shown_only_where_asked_for_and_who_looked_is_kept(world: World):
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))
    without = (await asked("show", "k")).output + (await asked("show", "k", "--json")).output
    shown = await asked("show", "k", "--with-order", "--by", "ada")
    parties = (await told("show", "k", "--with-order", "--by", "cleo", "--reason", "a call"))["parties"]
    looks = [step for step in (await told("show", "k"))["history"] if step["move"] == "look"]

    assert not any(word in without for word in ("ada.eze", "ben.okri", "Okri"))
    assert "poster      ada.eze@example.com" in shown.stdout
    assert "said to be  Ben Okri" in shown.stdout
    assert parties["beneficiary"] == "ben.okri@example.com"
    assert [(step["by"], step["reason"]) for step in looks] == [
        ("ada", "journal show --with-order"),
        ("cleo", "a call"),
    ]


async def test_of_a_created_key_the_parties_are_those_of_its_order(world: World):
    await world.create()
    parties = (await told("show", "k", "--with-order", *ADA))["parties"]

    assert set(parties) == {"poster", "beneficiary"}
    assert parties["beneficiary"] is not None
