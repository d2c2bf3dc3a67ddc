"""The pages that show pending keys, one key, and the parties of an order."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.desk.visitor import Desk, Visitor, change_record, corrupt, where_to
from tests.support.bank import World
from tests.support.cases import each
from transfer_async import PersonName, UnreadableOrder
from transfer_async.desk import Role, pending_keys, views
from transfer_async.desk import desk as make_desk
from transfer_async.desk.views import PageStyle, time_text
from transfer_async.journal import Look, transitions
from transfer_async.journal.model import BELIEVED
from transfer_async.sandbox import WrongTypes

LAGOS = ZoneInfo("Africa/Lagos")

PERSONAL = ("ada.eze", "ben.okri", "example.com", "Okri")


# --- the list -------------------------------------------------------------------------------------


async def test_pending_keys_are_listed_with_their_amounts_ages_and_sums(world: World, ada: Visitor):
    await world.in_doubt("payment-1")
    world.time.pass_(90)
    await world.in_doubt("payment-2")
    await world.owing("payment-3")

    shown = await ada.get()

    assert shown.status == 200
    assert f"Scope {world.scope} " in shown.text
    assert "payment-1 in doubt 155,025.00 NGN 1 min 30 s" in shown.text
    assert "Currency In doubt Undo pending NGN 310,050.00 155,025.00" in shown.text
    assert "A key with several reasons counts in each of their columns." in shown.text


async def test_every_page_shows_its_environment_scope_time_and_the_number_of_waiting_keys(world: World):
    """A printed page must show its time."""
    await world.in_doubt("k")
    await world.in_doubt("payment-2")
    async with world.client() as client, Desk.of(client, label="live", colour="#8a0000") as desk:
        ada = desk.visitor()
        listed, outside = await ada.get(), await desk.asked("GET", "/")
        pages = [listed, await ada.key(), await ada.key("never"), await ada.get("/found")]
        pages += [await ada.get("/nothing"), await ada.does("resolve", order_id="no id")]
        style = await desk.asked("GET", "/desk.css")

    assert "<title>(2) Keys that need attention – live</title>" in listed.html
    for shown in pages:
        assert shown.html.count("<title>(2) ") == 1
        assert f"live {world.scope}" in shown.text
        assert "Made 2024-05-06 12:00:00 UTC" in shown.text
    assert "live" in outside.text
    assert world.scope not in outside.text
    assert "(2)" not in outside.html
    assert "--band: #8a0000; --on-band: #ffffff;" in style.html


@each(("colour", "text"), [("#FFD500", "#000000"), ("#767676", "#000000"), ("#000000", "#ffffff")])
def test_the_text_on_the_band_contrasts_with_its_colour(colour: str, text: str):
    assert f"--band: {colour}; --on-band: {text};" in PageStyle(colour=colour).sheet


@each(
    ("wrong", "rule"),
    [
        ({"label": "l" * 41}, "label: must be at most 40 printable characters"),
        ({"label": "live\n"}, "label: must be at most 40 printable characters"),
        ({"label": None}, "label: must be at most 40 printable characters"),
        ({"colour": "red"}, "colour: must have the form #rrggbb, such as #8a0000"),
        ({"colour": "#8a0000;}"}, "colour: must have the form #rrggbb, such as #8a0000"),
    ],
)
async def test_a_wrong_label_or_colour_is_refused(world: World, wrong: dict[str, Any], rule: str):
    async with world.client() as client:
        with pytest.raises(ValueError, match=f"^{re.escape(rule)}$"):
            make_desk(client, who=lambda _: None, **wrong)


async def test_a_page_of_a_wrong_scope_does_not_show_an_empty_list(world: World):
    """Without this, a wrong address shows an empty list instead of 43 doubts, and nobody ends them."""
    await world.in_doubt()
    async with world.client(scope="elsewhere") as client, Desk.of(client) as made:
        ada = made.visitor()
        pages = [await ada.get(), await ada.get(live="1"), await ada.get("/found"), await ada.key()]

    for shown in pages:
        assert f"The journal contains no keys in this scope, only keys in {world.scope}." in shown.text
        assert "No key needs attention" not in shown.text


async def test_a_key_is_called_abandoned_once_the_lease_of_its_worker_has_ended(world: World, ada: Visitor):
    await world.crash(transitions.MarkSending, key="claimed")
    await world.crash(transitions.Create, key="sending")

    busy = await ada.key("sending")
    world.time.pass_(60)
    abandoned, listed = await ada.key("sending"), await ada.get(kind="abandoned")

    assert "The worker never reported how its attempt ended." not in busy.text
    assert "The worker never reported how its attempt ended." in abandoned.text
    assert "claimed abandoned" in listed.text
    assert "sending abandoned" in listed.text


async def test_the_reasons_of_a_key_do_not_contradict_each_other(world: World, ada: Visitor):
    """A later call is in doubt while an undo of an earlier call is pending."""
    await world.owing()
    world.bank.release_error = RuntimeError()
    await world.in_doubt()
    page = await ada.key()
    corrupt(world)
    unreadable = await ada.key()

    assert "in doubt undo pending" in page.text
    assert "The order may exist, and its hold is kept." in page.text
    assert "A call with this key ended in a definite failure" in page.text
    assert "recovery cannot process the key" in unreadable.text
    assert "The next recovery" not in unreadable.text


async def test_a_lease_that_ends_too_late_hides_no_key(world: World, ada: Visitor):
    """Without this, the key of a dead worker with a wrong clock is not listed for years."""
    await world.crash(transitions.Create)
    change_record(world, lease_until=world.time.seconds + BELIEVED + 60)

    assert "k abandoned 155,025.00 NGN" in (await ada.get()).text
    assert "The worker never reported how its attempt ended." in (await ada.key()).text


async def test_only_a_page_without_forms_refreshes_itself(world: World, ada: Visitor):
    await world.in_doubt()

    still, live = await ada.get(), await ada.get(live="1", currency="NGN")
    others = [await ada.key(), await ada.get("/found", key="k"), await ada.get("/nothing-here")]

    assert all("Refresh" not in page.headers for page in (still, *others))
    assert {"find", "./"} <= set(still.page.forms)
    assert "./?live=1" in still.page.links
    assert (live.headers["Refresh"], live.page.forms) == ("30", {})
    assert "Only NGN." in live.text
    assert "./?currency=NGN" in live.page.links


@each(
    ("when", "text"),
    [
        (datetime(2024, 5, 6, 12, 5, tzinfo=UTC), "2024-05-06 12:05:00 UTC (13:05:00 WAT)"),
        (datetime(2024, 5, 6, 23, 30, tzinfo=UTC), "2024-05-06 23:30:00 UTC (2024-05-07 00:30:00 WAT)"),
        (datetime(9999, 12, 31, 23, 30, tzinfo=UTC), "9999-12-31 23:30:00 UTC"),
    ],
)
def test_a_local_time_shows_its_date_only_if_it_differs_from_utc(when: datetime, text: str):
    assert time_text(when, LAGOS) == text


@pytest.mark.parametrize("zone", ["Africa/Lagos", LAGOS])
async def test_times_are_shown_in_the_banks_zone_beside_utc(world: World, zone: Any):
    await world.in_doubt()
    async with world.client() as client, Desk.of(client, zone=zone) as desk:
        ada, ben = desk.visitor("ada"), desk.visitor("ben")
        young, listed = await ada.key(), await ada.get()
        world.time.pass_(600)
        decided = await ben.does("resolve", order_id="tx-abc")
        late = await ada.sends(young.page, "resolve", order_id="tx-abc", reason="seen")
        await ada.does("takeback")
        since = await ben.follows(decided)

    assert "Not before 2024-05-06 12:05:00 UTC (13:05:00 WAT)" in young.text
    assert "refute" not in young.page.forms
    assert "As of 2024-05-06 12:00:00 UTC (13:00:00 WAT)" in listed.text
    assert "At 2024-05-06 12:10:00 UTC (13:10:00 WAT) ben decided: the order exists" in late.text
    assert "Saved at 2024-05-06 12:10:00 UTC (13:10:00 WAT)" in since.text
    assert 'datetime="2024-05-06T12:05:00Z"' in young.html


@each("zone", ["", "Lagos", "../etc/passwd", "Africa", "/etc/localtime", 7, "a\0b"])
def test_an_unknown_zone_is_refused(zone: Any):
    with pytest.raises(ValueError, match=r"^zone: must be a name in the time zone database"):
        PageStyle(zone=zone)


async def test_a_page_in_the_banks_application_offers_no_sign_out(ada: Visitor):
    """The application that contains the desk manages its own sessions."""
    assert "sign-out" not in (await ada.get()).page.forms
    assert (await ada.post("/sign-out", {})).status == 404


async def test_a_wall_view_refreshes_itself_and_has_no_forms(world: World, ada: Visitor):
    await world.in_doubt()

    still = await ada.get(currency="NGN")
    (link,) = [link for link in still.page.links if "wall=1" in link]
    wall = await ada.get(f"/{link.removeprefix('./')}")
    filtered = [item for item in wall.page.links if "kind=doubt" in item]

    assert (wall.headers["Refresh"], wall.page.forms) == ("30", {})
    assert not {"input", "button", "select"} & {tag for tag, _ in wall.page.tags}
    assert ("body", {"class": "wall"}) in wall.page.tags
    assert "k in doubt 155,025.00 NGN" in wall.text
    assert all("wall=1" in item for item in filtered)
    assert filtered
    assert "./?currency=NGN" in wall.page.links
    assert not any("wall=1" in item for item in wall.page.links if item.startswith("key?"))
    assert (await ada.get(wall="1")).page.forms == {}


async def test_a_live_page_keeps_refreshing_while_the_journal_is_unreachable(world: World, ada: Visitor):
    async def gone(*_: object, **__: object) -> None:
        raise OSError("disk gone")

    world.journal.work = gone  # type: ignore[assignment,method-assign] # a store that is gone
    for shown in (await ada.get(live="1"), await ada.get(wall="1")):
        assert (shown.status, shown.headers["Refresh"], shown.page.forms) == (503, "30", {})
    assert "Refresh" not in (await ada.get("/found")).headers


@each(
    ("query", "column", "direction"),
    [
        ({}, "Age ↓", "descending"),  # oldest first
        ({"turned": "1"}, "Age ↑", "ascending"),
        ({"sort": "amount"}, "Amount ↓", "descending"),
        ({"sort": "key"}, "Key ↑", "ascending"),
        ({"sort": "key", "turned": "1"}, "Key ↓", "descending"),
    ],
)
async def test_aria_sort_matches_the_order_of_the_list(
    doubted: World, ada: Visitor, query: dict[str, str], column: str, direction: str
):
    shown = await ada.get(**query)

    directions = [attributes["aria-sort"] for _, attributes in shown.page.tags if "aria-sort" in attributes]
    assert directions == [direction]
    assert column in shown.text


async def test_a_damaged_record_is_not_shown_as_begun_in_1970(world: World, ada: Visitor):
    await world.in_doubt()
    change_record(world, claimed_at=0.0, sent_until=0.0)
    corrupt(world)
    damaged = await ada.key()
    change_record(world, unread=None, quarantined=("{",))

    for shown in (damaged, await ada.key()):
        assert "Began not known" in shown.text
        assert "Sent until" not in shown.text


# --- finding --------------------------------------------------------------------------------------


async def test_a_key_is_found_by_its_exact_name_even_if_it_is_not_pending(world: World, ada: Visitor):
    await world.create(key="payment-1")

    found = await ada.post("/find", {"text": " payment-1 "})

    assert where_to(found) == ("/key", {"key": "payment-1"})


async def test_pending_keys_are_found_by_a_part_of_their_names(world: World, ada: Visitor):
    for key in ("Payment-1", "payment-2", "other"):
        await world.in_doubt(key)

    found = await ada.follows(await ada.post("/find", {"text": "PAYMENT"}))

    assert found.status == 200
    assert "2 keys" in found.text
    links = {link for link in found.page.links if link.startswith("key?")}
    assert links == {"key?key=Payment-1", "key?key=payment-2"}


async def test_a_pending_key_is_found_by_each_of_its_ids_and_by_its_amount(world: World, ada: Visitor):
    """An operator may have a letter from the service, a bank statement or a log line, but not the key."""
    world.bank.reference = "Hold-731"
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    doubt = await world.fails(UnreadableOrder)
    entry = await world.entry()
    texts = [entry.intent_id, entry.attempt, doubt.order_id, "hold-731"]
    texts += ["155025", "155,025.00", "155025.00 ngn", "NGN 155,025", " HOLD-731 "]

    for text in texts:
        assert text
        answer = await ada.post("/find", {"text": text})
        assert where_to(answer, every=True) == ("/found", {"key": ["k"]}), text
        assert "155" not in answer.headers["Location"]
    for text in ("hold-73", "155,026", "155,025 USD", "15,5025", "NGN 155,025 NGN", "0", "nan"):
        answer = await ada.post("/find", {"text": text})
        assert where_to(answer) == ("/found", {}), text


async def test_the_search_text_appears_in_no_address(world: World, ada: Visitor):
    await world.in_doubt()

    answer = await ada.post("/find", {"text": "ben.okri"})
    found = await ada.follows(answer)

    assert "No such key, and no listed key contains this text, id or amount." in found.text
    assert not any("okri" in link for link in [answer.headers["Location"], *found.page.links])


async def test_a_search_with_many_results_keeps_the_oldest_within_the_address_limit(
    world: World, ada: Visitor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(views, "LONGEST_ADDRESS", 30)
    for key in ("payment-1", "payment-2", "payment-3"):
        await world.in_doubt(key)
        world.time.pass_(1)

    answer = await ada.post("/find", {"text": "pay"})

    assert where_to(answer, every=True)[1] == {"key": ["payment-1", "payment-2"], "more": ["1"]}
    assert "The oldest 2 of 3 keys" in (await ada.follows(answer)).text


async def test_no_key_is_reported_missing_while_the_journal_is_still_being_read(
    world: World, ada: Visitor, monkeypatch: pytest.MonkeyPatch
):
    """Without this, the operator reads that no such key is pending, and pays the order again."""
    monkeypatch.setattr(pending_keys, "READ_TIMEOUT", 0.0)
    await world.in_doubt("payment-1")
    gate, work = asyncio.Event(), world.journal.work

    async def waits(*given: Any, **more: Any) -> Any:
        await gate.wait()
        return await work(*given, **more)

    monkeypatch.setattr(world.journal, "work", waits)
    early = await ada.follows(await ada.post("/find", {"text": "payment"}))
    gate.set()

    assert "The journal is still being read; search again." in early.text
    assert "No such key" not in early.text


async def test_search_results_still_link_keys_that_have_ended_since(world: World, ada: Visitor):
    """Without this, an operator who returns to search results reads that the key does not exist."""
    for key in ("payment-1", "payment-2"):
        await world.in_doubt(key)
    path, query = where_to(await ada.post("/find", {"text": "payment"}), every=True)
    await ada.does("resolve", key="payment-1", order_id="tx-1")
    one = await ada.get(path, **query)
    await ada.does("resolve", key="payment-2", order_id="tx-2")
    none = await ada.get(path, key=[*query["key"], "never used"])

    assert "These keys no longer need attention: payment-1" in one.text
    assert "These keys no longer need attention: payment-1 , payment-2" in none.text
    assert {"key?key=payment-1", "key?key=payment-2"} <= set(none.page.links)
    assert "never used" not in none.text
    assert "No such key" not in none.text


# --- one key --------------------------------------------------------------------------------------


async def test_a_keys_page_shows_its_transitions_the_cause_of_its_doubt_and_its_attempts(
    world: World, ada: Visitor
):
    await world.in_doubt()

    shown, listed = await ada.key(), await ada.get(cause="no answer")

    assert f"Attempt id {(await world.entry()).attempt}" in shown.text
    assert "Why in doubt no response arrived" in shown.text
    attempt = "Attempts No. Began Took Ended in Request id 1 2024-05-06 12:00:00 UTC 0.000 s unknown"
    assert attempt in shown.text
    assert "2024-05-06 12:00:00 UTC a worker took the key then claimed" in shown.text
    assert "the request was about to be sent then sending" in shown.text
    assert "the outcome of the order became unknown no response arrived" in shown.text
    assert "k in doubt 155,025.00 NGN 0 s no answer" in listed.text


async def test_only_the_end_of_a_long_history_is_shown(
    world: World, ada: Visitor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(views, "SHOWN_STEPS", 2)
    await world.in_doubt()

    shown = await ada.key()

    assert "1 earlier line not shown: use transfer-async journal show." in shown.text
    assert "a worker took the key" not in shown.text
    assert "the request was about to be sent" in shown.text


async def test_views_of_the_parties_do_not_hide_decisions_in_the_history(world: World, ada: Visitor):
    """Without this, repeated look-ups could hide ada's decision to remove the order id."""
    await world.in_doubt()
    await ada.does("resolve", order_id="tx-wrong")
    await ada.does("takeback", reason="not ours")
    for _ in range(210):
        await world.move(Look(by="eve", reason="curious"))

    shown = await ada.key()

    for move in ("a worker took the key", "decided: the order exists", "withdrawn by ada"):
        assert move in shown.text
    assert "the parties were shown by eve" in shown.text


async def test_a_key_that_only_recovery_can_end_has_no_decision_form(world: World, ada: Visitor):
    await world.owing("owed")
    await world.crash(transitions.MarkSending, key="claimed")
    world.time.pass_(60)
    await world.create(key="created")

    owed, claimed = await ada.key("owed"), await ada.key("claimed")

    assert "the next recovery runs the pending undos" in owed.text
    assert "nothing was sent" in claimed.text
    assert set(owed.page.forms) == set(claimed.page.forms) == {"find", "parties", "note", "watch"}
    assert "refute" not in (await ada.key("created")).page.forms


async def test_no_release_is_announced_if_none_will_happen(world: World, ada: Visitor):
    """Without this, the operator waits for a release that never comes, and the money stays on hold."""
    await world.in_doubt(held="bank-7")
    await world.in_doubt("placed")
    await world.in_doubt("unreadable")
    corrupt(world, "unreadable")
    world.time.pass_(600)

    pages = {key: await ada.key(key) for key in ("k", "placed", "unreadable")}
    review = await ada.post("/refute", {**pages["k"].page.forms["refute"], "reason": "seen"})
    done = [await ada.does("refute", key=key, certain="1", undone="1") for key in pages]
    after = {key: await ada.follows(answer) for key, answer in zip(pages, done, strict=True)}

    assert "No order exists: release the hold" in pages["placed"].text
    assert "Now the next recovery releases hold-" in after["placed"].text
    assert "undo them manually first. Undo these hooks manually: funds_hold." in pages["unreadable"].text
    assert "The bank's hold bank-7" in pages["k"].text
    banks_own = "The bank must release the hold bank-7, because it placed this hold itself."
    assert f"No hook has to be undone. {banks_own}" in pages["k"].text
    banks_own = "Now nothing is left for a recovery to undo; the bank must release the hold bank-7."
    assert f"Saved: no order exists. {banks_own}" in after["k"].text
    assert "Saved: no order exists. Now nothing is left to undo." in after["unreadable"].text
    for key in ("k", "unreadable"):
        assert "No order exists: free the key" in pages[key].text
        for shown in (pages[key], after[key], review):
            assert "release" not in shown.text.replace("bank must release the hold", "")


async def test_an_encrypted_record_without_its_key_has_no_decision_form(world: World, ada: Visitor):
    await world.in_doubt()
    corrupt(world, why="SealFailed", is_sealed=True)

    shown = await ada.key()

    assert not {"resolve", "refute"} & set(shown.page.forms)
    assert "Restart the desk with the encryption key." in shown.text
    assert "recovery cannot process the key" not in shown.text


# --- who pays whom --------------------------------------------------------------------------------


async def test_no_party_is_named_until_an_operator_asks_and_never_in_a_log_or_an_address(
    world: World, ada: Visitor, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG")
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))
    caplog.clear()

    answers = [await ada.get(), await ada.key(), await ada.post("/find", {"text": "nothing"})]
    pages = [answer.html for answer in answers]
    answers += [await ada.does("parties"), await ada.does("resolve", order_id="tx-abc")]

    ours = [record.getMessage() for record in caplog.records if record.name.startswith("transfer_async")]
    addresses = [link for answer in answers for link in answer.page.links]
    addresses += [answer.headers.get("Location", "") for answer in answers]
    assert not any(word in text for text in [*pages, *ours, *addresses] for word in PERSONAL)


async def test_viewing_the_parties_is_recorded_in_the_history(world: World, desk: Desk):
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))

    shown = await desk.visitor("eve", [Role.PARTIES]).does("parties", reason="the customer calls")

    assert shown.status == 200
    assert "Poster ada.eze@example.com" in shown.text
    assert "Beneficiary ben.okri@example.com" in shown.text
    assert "Ben Okri" in shown.text
    assert "the parties were shown by eve" in shown.text
    assert "the customer calls" in shown.text


async def test_the_parties_of_an_existing_order_come_from_the_response(world: World, ada: Visitor):
    await world.create()

    assert "Beneficiary ben.okri@example.com, Ben" in (await ada.does("parties")).text
