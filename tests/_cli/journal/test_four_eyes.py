"""Dual control: `journal propose`, `approve`, `withdraw` and `four-eyes`."""

import pytest

from tests._cli.journal.terminal import ADA, BEN, asked, json_of
from transfer_async import KeyState, Operators
from transfer_async._cli import journal_output


async def test_one_person_proposes_and_another_approves(world, somebody):
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
        "journal: four_eyes: this scope requires dual control: propose the decision, "
        "and let another person approve it\n"
    )
    assert proposed.stdout.startswith("k: proposed: refute; another person must approve proposal ")
    assert "to approve: refute" in listed.stdout
    assert "by: is the proposer's name, or looks like it" in same.stderr
    assert "k: ada proposes: refute (seen on the statement). Do you approve?" in no.stderr
    assert "\nk: free; " in approved.stdout
    assert (await world.entry()).state is KeyState.FREE


async def test_an_approval_waits_for_the_given_time_too(world):
    await world.in_doubt()
    proposed = await asked("propose", "k", "refute", *ADA)
    proposal = proposed.stdout.split()[-1]
    approve = ("approve", "k", "--yes", "--proposal", proposal, *BEN)
    early = await asked(*approve, "--settle-after", "1e9", code=1)

    assert "it is too early, because a request may still take effect" in early.stderr
    assert (await world.entry()).state is KeyState.IN_DOUBT
    await asked(*approve)


async def test_the_proposals_id_is_required_when_not_interactive(world):
    await world.in_doubt()
    proposal = (await json_of("propose", "k", "resolve", "--order-id", "tx-1", *ADA))["proposal"]
    unnamed = await asked("approve", "k", "--yes", *BEN, code=2)
    other = await asked("approve", "k", "--yes", "--proposal", "another", *BEN, code=1)
    record = await json_of("approve", "k", "--yes", "--proposal", proposal["id"], *BEN)

    content = {"decision": "resolve", "order_id": "tx-1", "by": "ada", "reason": "seen on the statement"}
    assert proposal.items() >= content.items()
    assert unnamed.stderr == "journal: --proposal is required when not interactive\n"
    assert "the proposal that you named was replaced by" in other.stderr
    assert (record["state"], record["order_id"]) == ("created", "tx-1")


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_second_approval_is_refused_with_the_name_and_time_of_the_first(world, at_once, monkeypatch):
    """Without this, both persons believe that they approved it, but the history has only one name."""
    await world.in_doubt()
    proposal = (await json_of("propose", "k", "resolve", "--order-id", "tx-1", *ADA))["proposal"]
    approve = Operators.approve

    async def approve_second(self: Operators, key: str, **given: str) -> object:
        await approve(self, key, **{**given, "by": "cleo"})
        return await approve(self, key, **given)

    if at_once:
        monkeypatch.setattr(Operators, "approve", approve_second)
    else:
        await asked("approve", "k", "--yes", "--proposal", proposal["id"], "--by", "cleo", "--reason", "seen")
    second = await asked("approve", "k", "--yes", "--proposal", proposal["id"], *BEN, code=1)

    assert "changed since" in second.stderr
    approved = (await world.journal.history(world.scope, "k"))[-1]
    assert second.stderr.endswith(f"; cleo approved the proposal at {journal_output.step_time(approved)}\n")


async def test_a_proposal_is_shown_and_rejected(world):
    propose = ("propose", "k", "resolve", "--order-id", "tx-1", *ADA)
    await world.in_doubt()
    proposal = (await json_of(*propose))["proposal"]
    shown = await asked("show", "k")
    down = ("withdraw", "k", "--proposal", proposal["id"], "--yes", *BEN)
    rejected = await asked(*down)
    gone = await asked(*down, code=1)
    another = (await json_of(*propose))["proposal"]
    record = await json_of("withdraw", "k", "--proposal", another["id"], "--yes", *BEN)

    assert f"proposed    resolve as tx-1, by ada: seen on the statement ({proposal['id']})" in shown.stdout
    assert rejected.stdout == "k: in doubt; the proposal is withdrawn\n"
    assert gone.stderr == "journal: k: has no proposal, or has changed since the proposal\n"
    assert (record["key"], record["state"]) == ("k", "in_doubt")


async def test_one_person_demands_dual_control_and_two_waive_it(world):
    await world.create()
    before = await asked("four-eyes")
    demanded = await asked("four-eyes", "demand", *ADA)
    without_proposal = await asked("four-eyes", "approve", *BEN, code=1)
    await asked("four-eyes", "waive", *ADA)
    rejected = await asked("four-eyes", "withdraw", *BEN)
    waiving = await asked("four-eyes", "waive", *ADA)
    as_json = await json_of("four-eyes")
    same = await asked("four-eyes", "approve", *ADA, code=1)
    waived = await asked("four-eyes", "approve", *BEN)

    assert before.stdout == f"{world.scope}: one person is enough\n"
    assert demanded.stdout == rejected.stdout == f"{world.scope}: dual control is required\n"
    assert without_proposal.stderr == "journal: four-eyes: nobody has proposed to waive dual control\n"
    assert waiving.stdout.splitlines() == [
        f"{world.scope}: dual control is required",
        "ada proposes to waive dual control: seen on the statement; another person must approve it",
    ]
    assert (as_json["demanded"], as_json["proposal"]["decision"]) == (True, "waive")
    assert "another person must approve the proposal" in same.stderr
    assert waived.stdout == f"{world.scope}: one person is enough\n"


async def test_an_amendment_can_be_proposed(world):
    await world.in_doubt()
    await asked("resolve", "k", "--order-id", "tx-1", *ADA)
    for options, text in ((["--order-id", "tx-2"], "amend to tx-2"), (["--in-doubt"], "back into doubt")):
        result = await asked("propose", "k", "amend", *options, *ADA)
        assert result.stdout.startswith(f"k: proposed: {text}; ")
