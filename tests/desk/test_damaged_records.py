"""Corrupt records at the desk: its pages make no false promise, and no key becomes free by mistake."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.desk.visitor import Answer, Desk, Visitor, where_to
from tests.support.bank import World, new_order
from transfer_async import AlreadyCreated, Decision, KeyState, SQLiteJournal, TransferError
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.key_views import RecordSetAside
from transfer_async.journal.model import FOUR_EYES

SAID = {"by": "cleo", "reason": "seen"}
NO_FINGERPRINT = "body = replace(body, '\"fingerprint\"', '\"was\"')"
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
        made.operators_side = client.operators
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


async def followed(visitor: Visitor, answer: Answer) -> Answer:
    """Return the page to which a response redirects."""
    path, query = where_to(answer)
    return await visitor.get(path, **query)


# --- an order that exists -------------------------------------------------------------------------


async def test_a_damaged_refuted_key_is_not_paid_again_after_its_order_is_confirmed(
    stored: World, desk: Desk, damage: Damage
):
    """The page reported that nothing was changed, but the key was free, and a second order was created."""
    await desk.operators_side.refute("k", **SAID)
    await damage()
    ada = desk.visitor()

    answer = await ada.does("resolve", order_id="tx-9")
    told = await followed(ada, answer)
    with pytest.raises(AlreadyCreated) as again:
        await stored.create(new_order())
    await stored.recover()

    assert "Saved: the order exists." in told.text
    assert again.value.order_id == "tx-9"
    assert stored.bank.released == []
    assert len(stored.sandbox.orders) == 1


async def test_a_key_whose_state_is_lost_keeps_the_hold_of_a_proposed_order(
    stored: World, desk: Desk, damage: Damage
):
    """Without this, a recovery before the approval released the hold and voided the proposal."""
    await desk.operators_side.refute("k", **SAID)
    await desk.operators_side.demand_four_eyes(**SAID)
    await damage("state = 'odd'")
    await desk.visitor("ada").does("resolve", order_id="tx-9")
    await stored.recover()
    await desk.visitor("ben").does("approve")
    await stored.recover()

    assert (await stored.entry()).order_id == "tx-9"
    assert stored.bank.released == []


async def test_a_damaged_key_resolved_in_error_still_releases_its_hold(
    stored: World, desk: Desk, damage: Damage
):
    """Without this, the pending release was forgotten, and the customer's money stayed on hold for ever."""
    await desk.operators_side.refute("k", **SAID)
    await damage()
    ada = desk.visitor()
    await ada.does("resolve", order_id="tx-9")
    await ada.does("takeback")
    await ada.does("refute", certain="1")
    await stored.recover()

    assert (await stored.entry()).state is KeyState.FREE
    assert len(stored.bank.released) == 1


async def test_the_page_of_a_free_damaged_key_does_not_promise_a_released_hold(
    stored: World, desk: Desk, damage: Damage
):
    """Without this, the operator believes that the order is paid from a hold that was released long ago."""
    await desk.operators_side.refute("k", **SAID)
    await stored.recover()
    await damage()

    assert "stays on hold" not in (await desk.visitor().key()).text


async def test_a_second_order_id_for_a_damaged_key_is_rejected_before_any_write(
    stored: World, desk: Desk, damage: Damage
):
    """The page said "Nothing was changed" although the record had been quarantined."""
    await desk.operators_side.resolve("k", order_id="tx-1", **SAID)
    await damage()
    before = await stored.told()

    answer = await desk.visitor().does("resolve", order_id="tx-2")

    assert answer.status == 422
    assert "tx-1" in answer.text
    assert await stored.told() == before


@pytest.mark.parametrize("state", ["free", "claimed", "sending", "in_doubt"])
async def test_a_key_with_an_order_id_is_not_paid_again_despite_a_damaged_state(
    stored: World, desk: Desk, damage: Damage, state: str
):
    """Without this, one corrupt word of the record led to a second order."""
    await desk.operators_side.resolve("k", order_id="tx-1", **SAID)
    await damage(f"state = '{state}'")
    with pytest.raises(JournalFailed):
        await stored.create(new_order())
    await desk.visitor().does("resolve", order_id="tx-1")
    with pytest.raises(AlreadyCreated) as again:
        await stored.create(new_order())

    assert again.value.order_id == "tx-1"


async def test_a_lost_order_id_can_be_entered_again(stored: World, desk: Desk, damage: Damage):
    """Without this, nobody could end the key, because no id matched the lost one."""
    await desk.operators_side.resolve("k", order_id="tx-1", **SAID)
    await damage("order_id = NULL")

    answer = await desk.visitor().does("resolve", order_id="tx-1")

    assert where_to(answer) == ("/key", {"key": "k", "done": "resolved"})
    assert (await stored.entry()).order_id == "tx-1"


async def test_quarantining_the_damaged_record_of_a_known_order_is_confirmed(
    stored: World, desk: Desk, damage: Damage
):
    await desk.operators_side.resolve("k", order_id="tx-1", **SAID)
    await damage()
    ada = desk.visitor()

    told = await followed(ada, await ada.does("resolve", order_id="tx-1"))

    assert "Saved: the corrupt record was quarantined." in told.text
    assert (await stored.entry()).is_readable


async def test_a_decision_that_fails_after_a_quarantine_reports_both(
    stored: World, desk: Desk, damage: Damage
):
    """The message "the key has changed in the meantime" blamed others for this form's own change."""
    await damage(NO_FINGERPRINT.replace("fingerprint", "sent_until"))

    answer = await desk.visitor().does("refute", certain="1", undone="1")

    assert answer.status == 409
    assert "The corrupt record was quarantined. Nothing was decided: it is too early" in answer.text
    assert "changed in the meantime" not in answer.text


async def test_a_record_that_a_form_put_into_quarantine_is_listed_as_a_doubt_at_once(
    desk: Desk, damage: Damage
):
    await damage(NO_FINGERPRINT.replace("fingerprint", "sent_until"))
    ada = desk.visitor()
    before = await ada.get(kind="unreadable")

    await ada.does("refute", certain="1", undone="1")
    after = await ada.get(kind="unreadable")

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


@pytest.mark.parametrize("is_refuted", [False, True])
async def test_dual_control_never_releases_the_hold_of_an_existing_order(
    stored: World, desk: Desk, damage: Damage, is_refuted: bool
):
    """The page asked for a manual release of the hold of an existing order, which must be paid from it."""
    if is_refuted:
        await desk.operators_side.refute("k", **SAID)
    await desk.operators_side.demand_four_eyes(**SAID)
    await damage()
    ada, ben = desk.visitor("ada"), desk.visitor("ben")

    proposed = await ada.does("resolve", order_id="tx-9")
    with pytest.raises(TransferError):
        await stored.create(new_order())
    await stored.recover()
    await ben.does("approve")
    await stored.recover()

    assert where_to(proposed) == ("/key", {"key": "k", "done": "proposed"})
    entry = await stored.entry()
    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-9")
    assert stored.bank.released == []


async def test_under_dual_control_one_person_cannot_free_a_damaged_key(
    stored: World, desk: Desk, damage: Damage
):
    """One person's proposal quarantined the record and freed the key without an approval."""
    await desk.operators_side.refute("k", **SAID)
    await desk.operators_side.demand_four_eyes(**SAID)
    await damage()
    ada, ben = desk.visitor("ada"), desk.visitor("ben")

    proposed = await ada.does("refute", certain="1")
    after_one = (await stored.entry()).state
    await ben.does("approve")
    await stored.recover()

    assert where_to(proposed) == ("/key", {"key": "k", "done": "proposed"})
    assert after_one is KeyState.IN_DOUBT
    assert (await stored.entry()).state is KeyState.FREE
    assert len(stored.bank.released) == 1


async def test_a_damaged_record_with_a_proposal_can_still_be_ended(stored: World, desk: Desk, damage: Damage):
    """Both Approve and Withdraw always failed, so the hold could never be released."""
    await desk.operators_side.demand_four_eyes(**SAID)
    await desk.operators_side.propose("k", Decision.REFUTE, **SAID)
    await damage()
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    shown = await ada.key()
    await ada.does("refute", certain="1", undone="1")
    await ben.does("approve")

    assert {"approve", "withdraw"}.isdisjoint(shown.page.forms)
    assert (await stored.entry()).state is KeyState.FREE


async def test_a_proposal_whose_order_id_does_not_fit_is_shown_and_cannot_be_approved(
    stored: World, desk: Desk, damage: Damage
):
    """The key's page failed with status 500, so nobody could withdraw the proposal."""
    await desk.operators_side.demand_four_eyes(**SAID)
    await desk.operators_side.propose("k", Decision.REFUTE, **SAID)
    await damage("body = json_set(body, '$.proposal.order_id', 'tx-odd')")
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    shown = await ben.key()
    await ben.does("approve")
    undecided = (await stored.entry()).state
    await ada.does("withdraw")

    assert shown.status == 200
    assert undecided is KeyState.IN_DOUBT
    assert (await stored.entry()).proposal is None


@pytest.mark.parametrize("change", ["body = '{'", "state = 'odd'"])
async def test_demanding_dual_control_replaces_a_damaged_rule(
    stored: World, desk: Desk, damage: Damage, change: str
):
    """Nobody could waive the rule again, and its page offered to end it like an order."""
    await desk.operators_side.demand_four_eyes(**SAID)
    await damage(change, FOUR_EYES)
    shown = await desk.visitor().key(FOUR_EYES)
    damaged = (await desk.operators_side.four_eyes()).demanded

    await desk.operators_side.demand_four_eyes(**SAID)
    waiver = await desk.operators_side.propose(FOUR_EYES, Decision.WAIVE, **SAID)
    await desk.operators_side.approve(FOUR_EYES, proposal=waiver.id, by="dan", reason="seen")
    entry = await stored.entry(FOUR_EYES)

    assert damaged
    assert {"resolve", "refute"}.isdisjoint(shown.page.forms)
    assert "four-eyes demand" in shown.text
    assert (await desk.operators_side.four_eyes()).demanded is False
    assert len(entry.quarantined) == 1


# --- a hold that a recovery releases --------------------------------------------------------------


async def test_the_page_asks_for_no_manual_release_of_a_hold_that_recovery_releases(
    stored: World, desk: Desk, damage: Damage
):
    """The page asked the operator to release the hold, and recovery then released it a second time."""
    await desk.operators_side.refute("k", **SAID)
    await damage()
    ada = desk.visitor()
    shown = await ada.key()
    told = await followed(ada, await ada.does("refute", certain="1"))
    await stored.recover()

    assert "manually" not in shown.text
    assert "the next recovery releases hold-" in shown.text
    assert "undone" not in shown.page.forms["refute"]
    assert "Saved: the corrupt record was quarantined. Now the next recovery releases hold-" in told.text
    assert len(stored.bank.released) == 1


async def test_a_damaged_records_parties_are_not_reported_as_a_journal_failure(
    stored: World, desk: Desk, damage: Damage
):
    """Without this, the operator waits for a database that works, and the doubt stays."""
    await stored.create(new_order(), key="made")
    await damage(key="made")
    ada = desk.visitor()
    shown = await ada.key("made")
    answer = await ada.post("/parties", {"key": "made", "reason": "seen"})

    assert "parties" not in shown.page.forms
    assert "cannot be reached" not in answer.text


async def test_an_existing_order_keeps_its_hold_even_if_the_pending_release_is_damaged(
    stored: World, desk: Desk, damage: Damage
):
    """The page asked for a manual release of the hold of an existing order."""
    await desk.operators_side.refute("k", **SAID)
    await damage("body = replace(body, '\"poster_amount\"', '\"was\"')")
    ada = desk.visitor()
    shown = await ada.key()
    answer = await ada.does("resolve", order_id="tx-9")
    await stored.recover()

    assert "undone" not in shown.page.forms["resolve"]
    assert where_to(answer) == ("/key", {"key": "k", "done": "resolved"})
    assert stored.bank.released == []


async def test_a_lost_lease_is_not_shown_as_ended_in_1970(stored: World, desk: Desk, damage: Damage):
    lost = NO_FINGERPRINT.replace("fingerprint", "lease_until")
    await damage(f"state = 'sending', due_at = NULL, {lost}")

    assert "1970" not in (await desk.visitor().key()).text
