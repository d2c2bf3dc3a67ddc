"""Dual control at the desk: one person proposes, and another approves."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.desk.visitor import Answer, Desk, Visitor
from tests.support.bank import World, owed_hooks
from transfer_async import KeyState
from transfer_async.desk import Role
from transfer_async.journal import FOUR_EYES, Decision
from transfer_async.journal.transitions import Refute


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    """Yield the desk of a bank that requires dual control, with a doubt that is old enough to be refuted."""
    world.bank.reference = "hold-731"
    async with world.client(four_eyes=True) as client, Desk.of(client) as made:
        await world.in_doubt()
        world.time.pass_(600)
        yield made


@pytest.fixture
def ada(desk: Desk) -> Visitor:
    return desk.visitor("ada", [Role.CHANGE])


@pytest.fixture
def ben(desk: Desk) -> Visitor:
    return desk.visitor("ben", [Role.APPROVE])


async def refutation(ada: Visitor) -> None:
    answer = await ada.does("refute", certain="1", reason="the service's support: none")
    assert answer.status == 303, answer.text


async def test_a_second_person_sees_what_is_proposed_and_their_approval_releases_the_hold(
    world: World, ada: Visitor, ben: Visitor
):
    await refutation(ada)

    shown, listed = await ben.key(), await ben.get(kind="proposed")
    answer = await ben.does("approve", reason="I asked, too")

    assert "Proposed by ada: no order exists, and none can appear" in shown.text
    assert "the service's support: none" in shown.text
    assert "Approving releases hold-731 of 155,025.00 NGN, at the next recovery" in shown.text
    assert "k in doubt proposed by ada" in listed.text
    assert answer.headers["Location"] == "key?key=k&done=approved"
    assert owed_hooks(await world.entry()) == ["funds_hold"]
    steps = await world.journal.history(world.scope, "k")
    assert [(step.move, step.by) for step in steps if step.by] == [("propose", "ada"), ("refute", "ben")]


async def test_each_person_finds_the_proposals_that_wait_for_them(
    world: World, desk: Desk, ada: Visitor, ben: Visitor
):
    await world.in_doubt("other")
    await refutation(ada)
    world.time.pass_(125)
    # This name looks like ada, so it counts as the proposer's.
    both = desk.visitor("Ada", [Role.CHANGE, Role.APPROVE])

    def keys(answer: Answer) -> set[str]:
        return {link.partition("&")[0] for link in answer.page.links if link.startswith("key?key=")}

    for_ben, bens = await ben.get(proposal="approve"), await ben.get(proposal="mine")
    adas, unproposed = await ada.get(proposal="mine"), await ada.get(proposal="no")

    assert "proposed by ada: no order exists, and none can appear, 2 min 5 s ago" in for_ben.text
    assert "for me to approve 1" in for_ben.text
    assert "proposed by me 1" in adas.text
    assert (keys(for_ben), keys(bens), keys(adas)) == ({"key?key=k"}, set(), {"key?key=k"})
    assert "No key matches these filters." in bens.text
    assert "No key needs attention" not in bens.text
    assert (keys(unproposed), keys(await both.get(proposal="approve"))) == ({"key?key=other"}, set())
    assert "for me to approve" not in adas.text
    # Ada may not approve, so every proposal is listed.
    assert keys(await ada.get(proposal="approve")) == {"key?key=k"}
    assert not any("ada" in link for link in [*for_ben.page.links, *adas.page.links])


async def test_after_the_last_key_of_a_list_the_next_of_all_keys_is_offered(
    world: World, ada: Visitor, ben: Visitor
):
    await world.in_doubt("other")
    await refutation(ada)
    listed = await ben.get(proposal="approve")
    (link,) = [link for link in listed.page.links if link.startswith("key?")]

    page = (await ben.get(f"/{link}")).page
    done = await ben.follows(await ben.sends(page, "approve", reason="I asked, too"))

    assert "No other key is in that list. Next: other" in done.text


@pytest.mark.parametrize("form", ["amend", "takeback"])
async def test_an_order_id_is_approved_and_so_is_its_correction_or_withdrawal(
    world: World, ada: Visitor, ben: Visitor, form: str
):
    await ada.does("resolve", order_id="tx-wrong")
    resolving = await ben.key()
    await ben.does("approve")
    resolved = (await world.entry()).order_id

    await ada.does(form, order_id="tx-right", reason="I misread it")
    correcting = await ben.key()
    await ben.does("approve")

    assert "Approving binds the key to tx-wrong" in resolving.text
    assert "hold-731 of 155,025.00 NGN stays on hold" in resolving.text
    assert resolved == "tx-wrong"
    entry = await world.entry()
    if form == "amend":
        assert "Approving binds the key to tx-right instead of tx-wrong." in correcting.text
        assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-right")
    else:
        assert "Approving puts the key in doubt again" in correcting.text
        assert entry.state is KeyState.IN_DOUBT


@pytest.mark.parametrize("name", ["ada", "ADA", "\uff41da"])
async def test_the_proposer_cannot_approve_under_any_spelling_of_the_name(
    world: World, desk: Desk, ada: Visitor, name: str
):
    await refutation(ada)
    again = desk.visitor(name, [Role.CHANGE, Role.APPROVE])
    shown = await again.key()

    tried = await again.post("/approve", {**shown.page.forms["withdraw"], "reason": "mine"})
    withdrawn = await again.sends(shown.page, "withdraw", reason="mine")

    assert "approve" not in shown.page.forms
    assert "You proposed this decision, so another person must approve it." in shown.text
    assert tried.status == 403
    assert "another person must approve it" in tried.text
    assert (await world.entry()).state is KeyState.IN_DOUBT
    assert withdrawn.status == 303


async def test_an_operator_without_the_approve_role_sees_which_role_is_needed(desk: Desk, ada: Visitor):
    await refutation(ada)

    shown = await desk.visitor("eve", [Role.CHANGE]).key()

    assert "Approving it requires the role “approve”." in shown.text
    assert "approve" not in shown.page.forms


async def test_a_second_person_rejects_a_proposal(world: World, ada: Visitor, ben: Visitor):
    await refutation(ada)

    answer = await ben.does("withdraw", reason="the order is there")

    assert answer.headers["Location"] == "key?key=k&done=withdrawn"
    assert (await world.entry()).proposal is None
    assert "approve" not in (await ben.key()).page.forms


async def test_waiving_dual_control_is_proposed_elsewhere_and_approved_here(
    desk: Desk, ada: Visitor, ben: Visitor
):
    await desk.operators_side.propose(FOUR_EYES, Decision.WAIVE, by="cleo", reason="she is ill")

    listed, shown = await ada.get(), await ben.key(FOUR_EYES)
    answer = await ben.does("approve", key=FOUR_EYES, reason="until Monday")

    assert "cleo proposes to end this" in listed.text
    assert "The dual-control rule" in shown.text
    assert "Approving ends dual control" in shown.text
    assert answer.status == 303
    assert "No action is possible here: use transfer-async" in (await ada.key(FOUR_EYES)).text
    assert "waive" in [step.move for step in await desk.operators_side.history(FOUR_EYES)]


# --- the rule changes while a page is open ---------------------------------------------------------


@pytest.fixture
async def changing(world: World) -> AsyncIterator[Desk]:
    """Yield a desk where only the journal requires dual control, so that it can be waived."""
    async with world.client() as client, Desk.of(client) as made:
        await world.in_doubt()
        world.time.pass_(600)
        yield made


async def demand(desk: Desk) -> None:
    await desk.operators_side.demand_four_eyes(by="zoe", reason="rule 12")


async def waive(desk: Desk) -> None:
    proposal = await desk.operators_side.propose(FOUR_EYES, Decision.WAIVE, by="zoe", reason="ill")
    await desk.operators_side.approve(FOUR_EYES, proposal=proposal.id, by="yan", reason="until Monday")


FORMS = {
    "resolve": {"order_id": "tx-abc"},
    "refute": {"certain": "1"},
    "amend": {"order_id": "tx-right"},
    "takeback": {},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("waived", [True, False])
async def test_a_form_neither_decides_alone_nor_proposes_if_the_rule_has_changed(
    world: World, changing: Desk, form: str, waived: bool
):
    """A person who pressed "Propose" relied on a second person, but the hold was released at once."""
    if form in ("amend", "takeback"):
        await changing.operators_side.resolve("k", order_id="tx-wrong", by="zoe", reason="seen")
    if waived:
        await demand(changing)
    ada = changing.visitor()
    page, before = (await ada.key()).page, await world.entry()
    await (waive if waived else demand)(changing)

    answer = await ada.sends(page, form, reason="seen", **FORMS[form])

    assert answer.status == 409
    rule = "a single person may now decide alone" if waived else "dual control is now required"
    assert f"Nothing was changed: {rule}" in answer.text
    by = "decided: dual control is waived by yan" if waived else "dual control was demanded by zoe"
    assert by in answer.text
    assert await world.entry() == before
    assert (await ada.sends(answer.page, form, reason="seen", **FORMS[form])).status == 303


async def test_a_demand_between_reading_and_writing_blocks_a_single_decision(world: World, changing: Desk):
    world.meanwhile(Refute, lambda: demand(changing))

    answer = await changing.visitor().does("refute", certain="1")

    assert answer.status == 409
    assert "dual control is now required" in answer.text
    assert (await world.entry()).state is KeyState.IN_DOUBT


# --- two who approve at once ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["resolve", "refute"])
async def test_the_second_of_two_simultaneous_approvals_shows_who_was_first(
    world: World, desk: Desk, ada: Visitor, form: str
):
    """Both people saw "Approved", but the history has only one of the names."""
    await ada.does(form, **FORMS[form])
    people = [desk.visitor(name, [Role.APPROVE]) for name in ("ben", "cleo")]
    pages = [(await one.key()).page for one in people]

    answers = await asyncio.gather(
        *(one.sends(page, "approve", reason="me, too") for one, page in zip(people, pages, strict=True))
    )

    (by,) = [step.by for step in await world.journal.history(world.scope, "k") if step.move == form]
    (first, winner), (second, loser) = sorted(
        zip(answers, people, strict=True), key=lambda pair: pair[0].status
    )
    assert (first.status, winner.name, second.status) == (303, by, 409)
    assert f"Nothing was changed: {by} approved the proposal at " in second.text
    approved = "Approved: the decision is recorded."
    assert approved not in second.text + (await loser.key(done="approved")).text
    assert approved in (await winner.key(done="approved")).text


async def test_a_repeated_approval_shows_that_it_was_already_yours(ada: Visitor, ben: Visitor):
    await refutation(ada)
    page = (await ben.key()).page
    await ben.sends(page, "approve", reason="I asked, too")

    again = await ben.sends(page, "approve", reason="I asked, too")

    assert again.status == 409
    assert "Nothing was changed: you approved the proposal at " in again.text
