"""Corrupt records at the desk: its pages make no false promise, and no key becomes free by mistake."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.desk.visitor import Desk, Visitor, where_to
from tests.support.bank import World, new_order
from transfer_async import AlreadyCreated, Decision, KeyState, Operators, SQLiteJournal, TransferError
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.key_views import RecordSetAside
from transfer_async.journal.model import FOUR_EYES

SAID = {"by": "cleo", "reason": "seen"}
NO_FINGERPRINT = "body = replace(body, '\"fingerprint\"', '\"was\"')"
NO_AMOUNT = NO_FINGERPRINT.replace("fingerprint", "poster_amount")
Damage = Callable[..., Awaitable[None]]


@pytest.fixture
async def stored(world: World, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with a journal in a file, and a doubt that is old enough to be refuted."""
    async with SQLiteJournal(tmp_path / "journal.db", clock=world.time.clock) as world.journal.journal:
        await world.in_doubt()
        world.time.pass_(600)
        yield world


@pytest.fixture
async def desk(stored: World) -> AsyncIterator[Desk]:
    async with stored.client() as client, Desk.of(client) as made:
        yield made


@pytest.fixture
def damage(tmp_path: Path) -> Damage:
    """Return a function that changes a stored record, as a faulty disk or an older version may."""

    def write(change: str, key: str) -> None:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as file, file:
            changed = file.execute(f"UPDATE keys_2 SET token = 'other', {change} WHERE key = ?", (key,))
            assert changed.rowcount == 1

    async def damaged(change: str = NO_FINGERPRINT, key: str = "k") -> None:
        await asyncio.to_thread(write, change, key)

    return damaged


BEFORE: dict[str, Callable[[Operators], Awaitable[object]]] = {
    "refuted": lambda operators: operators.refute("k", **SAID),
    "resolved": lambda operators: operators.resolve("k", order_id="tx-9", **SAID),
    "dual control": lambda operators: operators.demand_four_eyes(**SAID),
}
IN_DOUBT, CREATED, FREE = KeyState.IN_DOUBT, KeyState.CREATED, KeyState.FREE
RESOLVED_BY_TWO = {"ada resolve": ("proposed", IN_DOUBT), "ben approve": ("approved", CREATED)}


# --- an order that exists -------------------------------------------------------------------------


STORIES = {
    # The page reported that nothing was changed, but the key was free, and a second order was created.
    "refuted": (["refuted"], NO_FINGERPRINT, {"ada resolve": ("resolved", CREATED)}, 0),
    # The page asked for a manual release of the hold of an existing order.
    "undo lost": (["refuted"], NO_AMOUNT, {"ada resolve": ("resolved", CREATED)}, 0),
    # Without this, nobody could end the key, because no id matched the lost one.
    "id lost": (["resolved"], "order_id = NULL", {"ada resolve": ("resolved", CREATED)}, 0),
    # Without this, one corrupt word of the record led to a second order.
    **{
        state: (["resolved"], f"state = '{state}'", {"ada resolve": ("setaside", CREATED)}, 0)
        for state in ("free", "claimed", "sending", "in_doubt")
    },
    # The pending release was forgotten, and the customer's money stayed on hold for ever.
    "resolved in error": (
        ["refuted"],
        NO_FINGERPRINT,
        {
            "ada resolve": ("resolved", CREATED),
            "ada takeback": ("takenback", IN_DOUBT),
            "ada refute": ("refuted", FREE),
        },
        1,
    ),
    # A recovery before the approval released the hold and voided the proposal.
    "state lost": (["refuted", "dual control"], "state = 'odd'", RESOLVED_BY_TWO, 0),
    # The page asked for a manual release of the hold of an existing order, which must be paid from it.
    "resolved by two": (["dual control"], NO_FINGERPRINT, RESOLVED_BY_TWO, 0),
    "refuted, resolved by two": (["refuted", "dual control"], NO_FINGERPRINT, RESOLVED_BY_TWO, 0),
    # One person's proposal quarantined the record and freed the key without an approval.
    "refuted by two": (
        ["refuted", "dual control"],
        NO_FINGERPRINT,
        {"ada refute": ("proposed", IN_DOUBT), "ben approve": ("approved", FREE)},
        1,
    ),
}
"""Earlier decisions, the damage, each later act with its confirmation and state, and the releases."""


@pytest.mark.parametrize(("before", "change", "acts", "releases"), STORIES.values(), ids=STORIES)
async def test_a_damaged_key_is_ended_truthfully_and_its_order_is_not_paid_again(
    stored: World,
    desk: Desk,
    damage: Damage,
    before: list[str],
    change: str,
    acts: dict[str, tuple[str, KeyState]],
    releases: int,
):
    for decision in before:
        await BEFORE[decision](desk.operators_side)
    await damage(change)
    with pytest.raises(JournalFailed):
        await stored.create(new_order())

    for act, (done, state) in acts.items():
        name, form = act.split()
        answer = await desk.visitor(name).does(form, order_id="tx-9", certain="1")
        assert where_to(answer) == ("/key", {"key": "k", "done": done})
        assert (await stored.entry()).state is state
        if state is not FREE:
            with pytest.raises(AlreadyCreated if state is CREATED else TransferError):
                await stored.create(new_order())
        await stored.recover()

    entry = await stored.entry()
    assert (entry.state, entry.order_id) == (state, "tx-9" if state is CREATED else None)
    assert len(stored.bank.released) == releases
    assert len(stored.sandbox.orders) == 1


async def test_the_page_of_a_free_damaged_key_does_not_promise_a_released_hold(
    stored: World, desk: Desk, ada: Visitor, damage: Damage
):
    """Without this, the operator believes that the order is paid from a hold that was released long ago."""
    await desk.operators_side.refute("k", **SAID)
    await stored.recover()
    await damage()

    assert "stays on hold" not in (await ada.key()).text


async def test_a_second_order_id_for_a_damaged_key_is_rejected_before_any_write(
    stored: World, desk: Desk, ada: Visitor, damage: Damage
):
    """The page said "Nothing was changed" although the record had been quarantined."""
    await desk.operators_side.resolve("k", order_id="tx-1", **SAID)
    await damage()
    before = await stored.history()

    answer = await ada.does("resolve", order_id="tx-2")

    assert answer.status == 422
    assert "the corrupt record contains tx-1. Pass this id" in answer.text
    assert await stored.history() == before


async def test_quarantining_the_damaged_record_of_a_known_order_is_confirmed(
    stored: World, desk: Desk, ada: Visitor, damage: Damage
):
    await desk.operators_side.resolve("k", order_id="tx-1", **SAID)
    await damage()

    answer = await ada.follows(await ada.does("resolve", order_id="tx-1"))

    assert "Saved: the corrupt record was quarantined." in answer.text
    assert (await stored.entry()).is_readable


async def test_a_decision_that_fails_after_a_quarantine_reports_both_and_lists_the_key_as_a_doubt(
    ada: Visitor, damage: Damage
):
    """The message "the key has changed in the meantime" blamed others for this form's own change."""
    await damage(NO_FINGERPRINT.replace("fingerprint", "sent_until"))
    before = await ada.get(kind="unreadable")

    answer = await ada.does("refute", certain="1", undone="1")
    after = await ada.get(kind="unreadable")

    assert answer.status == 409
    assert "The corrupt record was quarantined. Nothing was decided: it is too early" in answer.text
    assert "changed in the meantime" not in answer.text
    assert any(link.startswith("key?key=k&") for link in before.page.links)
    assert not any(link.startswith("key?key=k&") for link in after.page.links)


async def test_proposing_the_recorded_order_of_a_corrupt_record_puts_it_into_quarantine(
    stored: World, desk: Desk, damage: Damage
):
    await stored.create(new_order(), key="created")
    order_id = (await stored.entry("created")).order_id
    await damage(key="created")

    with pytest.raises(RecordSetAside, match="Nothing was decided: must be in doubt; it is created"):
        await desk.operators_side.propose("created", Decision.RESOLVE, order_id=order_id, **SAID)

    entry = await stored.entry("created")
    assert (entry.unread, entry.state, entry.order_id) == (None, KeyState.CREATED, order_id)


# --- two persons ----------------------------------------------------------------------------------


async def test_a_damaged_record_with_a_proposal_can_still_be_ended(
    stored: World, desk: Desk, ada: Visitor, ben: Visitor, damage: Damage
):
    """Both Approve and Withdraw always failed, so the hold could never be released."""
    await desk.operators_side.demand_four_eyes(**SAID)
    await desk.operators_side.propose("k", Decision.REFUTE, **SAID)
    await damage()
    shown = await ada.key()
    await ada.does("refute", certain="1", undone="1")
    await ben.does("approve")

    assert {"approve", "withdraw"}.isdisjoint(shown.page.forms)
    assert (await stored.entry()).state is FREE


async def test_a_proposal_whose_order_id_does_not_fit_is_shown_and_cannot_be_approved(
    stored: World, desk: Desk, ada: Visitor, ben: Visitor, damage: Damage
):
    """The key's page failed with status 500, so nobody could withdraw the proposal."""
    await desk.operators_side.demand_four_eyes(**SAID)
    await desk.operators_side.propose("k", Decision.REFUTE, **SAID)
    await damage("body = json_set(body, '$.proposal.order_id', 'tx-odd')")
    shown = await ben.key()
    await ben.does("approve")
    undecided = (await stored.entry()).state
    await ada.does("withdraw")

    assert shown.status == 200
    assert undecided is IN_DOUBT
    assert (await stored.entry()).proposal is None


@pytest.mark.parametrize("change", ["body = '{'", "state = 'odd'"])
async def test_demanding_dual_control_replaces_a_damaged_rule(
    stored: World, desk: Desk, ada: Visitor, damage: Damage, change: str
):
    """Nobody could waive the rule again, and its page offered to end it like an order."""
    operators = desk.operators_side
    await operators.demand_four_eyes(**SAID)
    await damage(change, FOUR_EYES)
    shown, damaged = await ada.key(FOUR_EYES), (await operators.four_eyes()).demanded

    await operators.demand_four_eyes(**SAID)
    waiver = await operators.propose(FOUR_EYES, Decision.WAIVE, **SAID)
    await operators.approve(FOUR_EYES, proposal=waiver.id, by="dan", reason="seen")

    assert damaged
    assert {"resolve", "refute"}.isdisjoint(shown.page.forms)
    assert "four-eyes demand" in shown.text
    assert (await operators.four_eyes()).demanded is False
    assert len((await stored.entry(FOUR_EYES)).quarantined) == 1


# --- a hold that a recovery releases --------------------------------------------------------------


async def test_the_page_asks_for_no_manual_release_of_a_hold_that_recovery_releases(
    stored: World, desk: Desk, ada: Visitor, damage: Damage
):
    """The page asked the operator to release the hold, and recovery then released it a second time."""
    await desk.operators_side.refute("k", **SAID)
    await damage()
    shown = await ada.key()
    answer = await ada.follows(await ada.does("refute", certain="1"))
    await stored.recover()

    assert "manually" not in shown.text
    assert 'name="undone"' not in shown.html
    assert "the next recovery releases hold-" in shown.text
    assert "Saved: the corrupt record was quarantined. Now the next recovery releases hold-" in answer.text
    assert len(stored.bank.released) == 1


async def test_a_damaged_records_parties_are_not_reported_as_a_journal_failure(
    stored: World, ada: Visitor, damage: Damage
):
    """Without this, the operator waits for a database that works, and the doubt stays."""
    await stored.create(new_order(), key="made")
    await damage(key="made")
    shown = await ada.key("made")
    answer = await ada.post("/parties", {"key": "made", "reason": "seen"})

    assert "parties" not in shown.page.forms
    assert "cannot be reached" not in answer.text


async def test_a_lost_lease_is_not_shown_as_ended_in_1970(ada: Visitor, damage: Damage):
    lost = NO_FINGERPRINT.replace("fingerprint", "lease_until")
    await damage(f"state = 'sending', due_at = NULL, {lost}")

    assert "1970" not in (await ada.key()).text
