"""What is looked at: what waits, one key, and who pays whom."""

import pytest

from tests.desk.visitor import Desk, where_to
from tests.support.bank import World
from transfer_async import OutcomeUnknown, PersonName, UnreadableOrder
from transfer_async.desk import Role, office
from transfer_async.journal import moves
from transfer_async.sandbox import CloseAfterProcessing, WrongTypes

PERSONAL = ("ada.eze", "ben.okri", "example.com", "Okri")


# --- the list -------------------------------------------------------------------------------------


async def test_what_waits_is_listed_with_its_amount_and_its_age(world: World, desk: Desk):
    await world.in_doubt("payment-1")
    world.time.pass_(90)

    shown = await desk.visitor().get()

    assert shown.status == 200
    assert "payment-1 in doubt 155,025.00 NGN 1 min 30 s" in shown.text


async def test_what_is_at_stake_is_summed_by_currency_and_reason(world: World, desk: Desk):
    await world.in_doubt("payment-1")
    await world.in_doubt("payment-2")
    await world.owing("payment-3")

    shown = await desk.visitor().get()

    assert "Currency In doubt Undo owed NGN 310,050.00 155,025.00" in shown.text


async def test_what_a_dead_worker_left_behind_waits_too(world: World, desk: Desk):
    await world.crash(moves.Mark, key="claimed")
    await world.crash(moves.Create, key="sending")
    world.time.pass_(60)

    shown = await desk.visitor().get(kind="abandoned")

    assert "claimed left behind" in shown.text
    assert "sending left behind" in shown.text


async def test_the_list_refreshes_itself_until_somebody_keeps_it_still(desk: Desk):
    ada = desk.visitor()

    moving, still = await ada.get(), await ada.get(still="1")

    assert moving.headers["Refresh"] == "30"
    assert "Refresh" not in still.headers
    assert "./?still=1" in moving.page.links
    assert "./" in still.page.links


# --- finding --------------------------------------------------------------------------------------


async def test_a_key_is_found_by_its_name_whether_it_waits_or_not(world: World, desk: Desk):
    await world.create(key="payment-1")

    found = await desk.visitor().post("/find", {"text": " payment-1 "})

    assert where_to(found) == ("/key", {"key": "payment-1"})


async def test_keys_that_wait_are_found_by_a_part_of_them(world: World, desk: Desk):
    for key in ("Payment-1", "payment-2", "other"):
        await world.in_doubt(key)

    found = await desk.visitor().post("/find", {"text": "PAYMENT"})

    assert found.status == 200
    assert "2 keys" in found.text
    assert {link for link in found.page.links if link.startswith("key?")} == {
        "key?key=Payment-1",
        "key?key=payment-2",
    }


async def test_what_is_looked_for_is_in_no_address(world: World, desk: Desk):
    await world.in_doubt()

    found = await desk.visitor().post("/find", {"text": "ben.okri"})

    assert "No key is that" in found.text
    assert not any("okri" in link for link in found.page.links)


# --- one key --------------------------------------------------------------------------------------


async def test_a_key_is_shown_with_every_move(world: World, desk: Desk):
    await world.in_doubt()

    shown = await desk.visitor().key()

    assert "2024-05-06 12:00:00 UTC a worker took the key then claimed" in shown.text
    assert "the request was about to be sent then sending" in shown.text
    assert "it became unknown whether the order exists no answer came" in shown.text


async def test_of_a_long_history_the_end_is_shown(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(office, "SHOWN_STEPS", 2)
    await world.in_doubt()

    shown = await desk.visitor().key()

    assert "1 earlier move: transfer-async journal show has them." in shown.text
    assert "a worker took the key" not in shown.text
    assert "the request was about to be sent" in shown.text


async def test_why_it_is_in_doubt_is_told_with_its_attempts(world: World, desk: Desk):
    await world.in_doubt()
    ada = desk.visitor()

    shown, listed = await ada.key(), await ada.get(cause="no answer")

    assert "Why no answer came" in shown.text
    assert (
        "Attempts No. Began Took Ended in Request id 1 2024-05-06 12:00:00 UTC 0.000 s unknown" in shown.text
    )
    assert "k in doubt 155,025.00 NGN 0 s no answer" in listed.text


async def test_an_order_that_an_answer_named_is_shown(world: World, desk: Desk):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    doubt = await world.fails(UnreadableOrder)

    shown = await desk.visitor().key()

    assert f"Look first for {doubt.order_id}" in shown.text
    assert f"An answer named {doubt.order_id}" in shown.text


async def test_a_key_that_is_not_on_record_is_told(desk: Desk):
    ada = desk.visitor()
    shown = await ada.key("nobody knows it")

    assert shown.status == 404
    assert "No such key" in shown.text
    assert (await ada.get("/key")).status == 404


async def test_what_only_a_recovery_helps_has_no_form(world: World, desk: Desk):
    await world.owing("owed")
    await world.crash(moves.Mark, key="claimed")
    world.time.pass_(60)
    await world.create(key="created")
    ada = desk.visitor()

    pages = [await ada.key(key) for key in ("owed", "claimed")]

    assert "the next recovery undoes what is owed" in pages[0].text
    assert "nothing was sent" in pages[1].text
    assert all(set(page.page.forms) == {"find", "parties"} for page in pages)
    assert "refute" not in (await ada.key("created")).page.forms


async def test_a_hold_of_the_banks_own_is_the_banks_to_release(world: World, desk: Desk):
    world.sandbox.faults.add(CloseAfterProcessing())
    await world.fails(OutcomeUnknown, held="bank-7")

    shown = await desk.visitor().key()

    assert "The hold bank-7, which the bank placed itself, is the bank's to release." in shown.text
    assert "No hook of it has anything to undo." in shown.text


# --- who pays whom --------------------------------------------------------------------------------


async def test_nobody_is_named_until_it_is_asked_for(world: World, desk: Desk):
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))
    ada = desk.visitor()

    for answer in (await ada.get(), await ada.key(), await ada.post("/find", {"text": "nothing"})):
        assert not any(word in answer.html for word in PERSONAL)


async def test_who_asks_is_shown_the_parties_and_the_history_keeps_it(world: World, desk: Desk):
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))

    shown = await desk.visitor("eve", [Role.PARTIES]).does("parties", reason="the customer calls")

    assert shown.status == 200
    assert "Poster ada.eze@example.com" in shown.text
    assert "Beneficiary ben.okri@example.com" in shown.text
    assert "Ben Okri" in shown.text
    assert "the parties were looked at by eve" in shown.text
    assert "the customer calls" in shown.text


async def test_the_parties_of_an_order_that_exists_are_those_of_the_answer(world: World, desk: Desk):
    await world.create()

    shown = await desk.visitor().does("parties")

    assert "Beneficiary ben.okri@example.com, Ben" in shown.text


async def test_to_look_at_the_parties_a_reason_is_needed(world: World, desk: Desk):
    await world.in_doubt()

    shown = await desk.visitor().does("parties", reason="")

    assert shown.status == 422
    assert not any(word in shown.html for word in PERSONAL)


async def test_no_log_and_no_address_names_a_person(world: World, desk: Desk, caplog):
    caplog.set_level("DEBUG")
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))
    ada = desk.visitor()
    caplog.clear()

    answers = [await ada.get(), await ada.key(), await ada.does("parties")]
    answers.append(await ada.does("resolve", order_id="tx-abc"))

    ours = [record.getMessage() for record in caplog.records if record.name.startswith("transfer_async")]
    addresses = [link for answer in answers for link in answer.page.links]
    addresses += [answer.headers.get("Location", "") for answer in answers]
    assert not any(word in text for text in [*ours, *addresses] for word in PERSONAL)
