"""Notes, and markers of who is looking at a key, which are shown and change nothing else."""

import pytest

from tests.desk.visitor import Desk, Visitor
from tests.support.bank import World
from transfer_async import KeyState
from transfer_async._models.requests import LONGEST_REFERENCE
from transfer_async.desk import Role


@pytest.fixture
def ada(desk: Desk) -> Visitor:
    return desk.visitor("ada", [Role.CHANGE])


@pytest.fixture
def ben(desk: Desk) -> Visitor:
    return desk.visitor("ben", [Role.APPROVE])


async def test_a_note_is_in_the_history_and_changes_nothing(doubted: World, ada: Visitor, ben: Visitor):
    before, page = await doubted.entry(), (await ben.key()).page

    done = await ada.follows(await ada.does("note", reason="the service calls back at four"))
    after = await doubted.entry()

    assert "Saved: your note is in the history." in done.text
    assert "a note was written by ada the service calls back at four" in done.text
    assert (after.state, after.version, after.proposal) == (KeyState.IN_DOUBT, before.version, None)
    assert (await ben.sends(page, "note", reason="thanks")).status == 303  # ben's page is still up to date


async def test_the_latest_note_stands_above_the_actions(doubted: World, ada: Visitor):
    assert "Latest note" not in (await ada.key()).text
    await ada.does("note", reason="called the service")
    await ada.does("note", reason="it answers at four")
    await ada.does("watch")

    page = (await ada.key()).text

    note = page.index("Latest note it answers at four by ada,")
    assert note < page.index("What can be done") < page.index("What happened, newest first")
    assert page.rindex("it answers at four") < page.index("called the service")


async def test_a_note_leaves_a_proposal_and_its_approval_valid(
    doubted: World, desk: Desk, ada: Visitor, ben: Visitor
):
    await desk.operators_side.demand_four_eyes(by="zoe", reason="rule 12")
    await ada.does("resolve", order_id="tx-abc")
    page = (await ben.key()).page
    await ada.does("note", reason="see the statement of May")
    await ada.does("watch")

    done = await ben.follows(await ben.sends(page, "approve", reason="asked, too"))

    assert "Approved: the decision is recorded." in done.text
    assert (await doubted.entry()).order_id == "tx-abc"


async def test_an_empty_or_long_note_is_refused_at_its_field(doubted: World, ada: Visitor):
    before = await doubted.history()

    empty, broken = await ada.does("note", reason=" "), await ada.does("note", reason="one\u2028two")
    async with doubted.client() as client:
        with pytest.raises(ValueError, match=r"^reason: must be no longer than"):
            await client.operators.note("k", by="ada", reason="x" * (LONGEST_REFERENCE + 1))
        with pytest.raises(ValueError, match=r"^by: "):
            await client.operators.watch("k", by=" ")
        with pytest.raises(ValueError, match=r"^key: has no record"):
            await client.operators.note("none", by="ada", reason="seen")

    assert (empty.status, broken.status) == (422, 422)
    assert "non-empty line" in empty.text
    assert 'aria-invalid="true"' in empty.html
    assert await doubted.history() == before


async def test_the_list_and_the_key_show_who_is_looking_and_for_how_long(
    doubted: World, desk: Desk, ada: Visitor, ben: Visitor
):
    await ada.does("watch")
    doubted.time.pass_(125)
    listed, page = await ben.get(), await desk.visitor("eve", [Role.PARTIES]).key()
    await ben.does("watch")
    replaced = await ada.key()
    await ben.does("unwatch")
    ended = await ada.get()

    assert "ada is looking at it, for 2 min 5 s" in listed.text
    assert "Looking at it ada, for 2 min 5 s" in page.text
    assert set(page.page.forms) == {"find", "parties"}
    assert "Looking at it ben, for 0 s" in replaced.text
    assert "watch" in replaced.page.forms
    assert "is looking at it" not in ended.text
    steps = [step.partition(":")[0] for step in await doubted.history()]
    assert steps[-3:] == ["watch", "watch", "unwatch"]


async def test_changing_a_key_clears_who_is_looking_at_it(doubted: World, desk: Desk, ada: Visitor):
    """Those who were looking at the key have not seen the change."""
    await desk.operators_side.demand_four_eyes(by="zoe", reason="rule 12")
    await ada.does("watch")
    await ada.does("resolve", order_id="tx-abc")

    assert "is looking at it" not in (await ada.get()).text
    assert "Looking at it nobody" in (await ada.key()).text
