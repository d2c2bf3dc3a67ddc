"""Actions at the desk: each runs once, only with the required role, and never from an outdated page."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.desk.visitor import SAME, Answer, Desk, where_to
from tests.support.bank import World, owed_hooks
from transfer_async import KeyState
from transfer_async._pipeline.operators import Operators
from transfer_async.desk import Role
from transfer_async.journal import Unread, operator_transitions, transitions
from transfer_async.journal.transitions import Create, Refute, Resolve


async def old_doubt(world: World, key: str = "k") -> None:
    """Put a key in doubt and wait until it may be refuted."""
    await world.in_doubt(key)
    world.time.pass_(600)


def decisions(told: list[str]) -> list[str]:
    """Return the transitions that ended a doubt."""
    return [one for one in told if one.startswith(("resolve", "refute", "amend"))]


# --- what each does -------------------------------------------------------------------------------


async def test_an_order_that_exists_ends_the_doubt(doubted: World, desk: Desk):
    answer = await desk.visitor("ada").does("resolve", order_id="tx-abc", reason="on the statement")

    assert where_to(answer) == ("/key", {"key": "k", "done": "resolved"})
    entry = await doubted.entry()
    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-abc")
    (step,) = [step for step in await doubted.journal.history(doubted.scope, "k") if step.move == "resolve"]
    assert (step.by, step.reason) == ("ada", "on the statement")


async def test_refuting_a_doubt_frees_the_key_and_leaves_an_undo_pending(doubted: World, desk: Desk):
    answer = await desk.visitor().does("refute", certain="1")

    assert where_to(answer) == ("/key", {"key": "k", "done": "refuted"})
    assert owed_hooks(await doubted.entry()) == ["funds_hold"]
    await doubted.recover()
    assert len(doubted.bank.released) == 1


async def test_the_page_names_the_hold_that_refuting_will_release(world: World, desk: Desk):
    world.bank.reference = "hold-731"
    await old_doubt(world)

    shown = await desk.visitor().key()

    assert "Refuting releases hold-731 of 155,025.00 NGN, at the next recovery" in shown.text
    assert "hold-731 of 155,025.00 NGN stays on hold" in shown.text


@pytest.mark.parametrize("reported", [True, False])
async def test_the_page_warns_before_a_refutation_that_the_sender_may_only_be_paused(
    world: World, desk: Desk, reported: bool
):
    if reported:
        await old_doubt(world)
    else:
        await world.abandoned(Create)
        await world.recover()
        world.time.pass_(600)

    assert ("it may still send" in (await desk.visitor().key()).text) is not reported


async def test_nothing_is_sent_to_the_service(world: World, desk: Desk):
    for key in ("a", "b", "c"):
        await old_doubt(world, key)
    ada, before = desk.visitor(), len(world.sandbox.requests)

    await ada.get()
    await ada.does("resolve", key="a", order_id="tx-abc")
    await ada.does("refute", key="b", certain="1")
    await ada.does("parties", key="c")

    assert len(world.sandbox.requests) == before


async def test_after_a_decision_the_next_key_is_offered_and_the_list_is_updated(world: World, desk: Desk):
    for key in ("payment-1", "payment-2", "payment-3"):
        await old_doubt(world, key)
    ada = desk.visitor()
    await ada.get()

    _, query = where_to(await ada.does("refute", key="payment-1", certain="1"))
    shown = await ada.key(**query)

    assert "Saved: no order exists." in shown.text
    assert "Next: payment-2" in shown.text
    assert "payment-1" in (await ada.get(kind="owed")).text
    assert "payment-1" not in (await ada.get(kind="doubt")).text


async def test_the_next_key_comes_from_the_list_that_the_operator_came_from(world: World, desk: Desk):
    for key in ("payment-1", "payment-2", "payment-3"):
        await old_doubt(world, key)
    ada = desk.visitor()
    listed = await ada.get(kind="doubt", sort="-key")
    link = next(link for link in listed.page.links if "payment-2" in link)
    page = await ada.get(f"/{link}")
    given = {"certain": "1", "reason": "seen"}
    refused = await ada.sends(page.page, "refute", certain="1", reason="")
    path, query = where_to(await ada.sends(refused.page, "refute", **given))
    done = await ada.get(path, **query)

    assert link == "key?key=payment-2&kind=doubt&sort=key&turned=1"
    for shown in (page, refused, done):
        assert "./?kind=doubt&sort=key&turned=1" in shown.page.links
        assert "key?key=payment-1&kind=doubt&sort=key&turned=1" in shown.page.links
    assert "Next: payment-1" in done.text


async def test_a_doubt_that_is_too_young_shows_when_it_can_be_refuted(world: World, desk: Desk):
    await world.in_doubt()
    ada = desk.visitor()
    shown = await ada.key()

    assert "Not before 2024-05-06 12:05:00 UTC" in shown.text
    assert "refute" not in shown.page.forms


# --- what is no good ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "fields", "told"),
    [
        ("resolve", {"order_id": "no id", "reason": "seen"}, "must look like 'tx-…'"),
        ("resolve", {"order_id": "tx-abc", "reason": " "}, "Reason: must be a non-empty line of text"),
        ("resolve", {"order_id": "tx-abc", "reason": "two\nlines"}, "Reason: must be a non-empty line"),
        ("refute", {"reason": " "}, "Reason: must be a non-empty line of text"),
    ],
)
async def test_an_invalid_field_is_reported_on_the_page_and_keeps_its_text(
    doubted: World, desk: Desk, form: str, fields: dict[str, str], told: str
):
    answer = await desk.visitor().does(form, **fields)

    assert answer.status == 422
    assert told in answer.text
    assert answer.page.forms[form].get("order_id", "") == fields.get("order_id", "")
    assert decisions(await doubted.told()) == []


@pytest.mark.parametrize(
    ("form", "field", "fields"),
    [
        ("resolve", "order_id", {"order_id": "no id"}),
        ("resolve", "reason", {"order_id": "tx-abc", "reason": " "}),
        ("refute", "reason", {"reason": " "}),
        ("parties", "reason", {"reason": " "}),
    ],
)
async def test_an_error_is_shown_at_its_field_to_which_the_alert_leads(
    doubted: World, desk: Desk, form: str, field: str, fields: dict[str, str]
):
    shown = (await desk.visitor().does(form, **fields)).page

    (wrong,) = [values for _, values in shown.tags if "aria-invalid" in values]
    (text,) = [values for tag, values in shown.tags if tag == "span" and values.get("class") == "error"]
    assert (wrong["id"], wrong["name"], "autofocus" in wrong) == (f"{field}-{form}", field, True)
    assert text["id"] in (wrong["aria-describedby"] or "").split()
    assert f"#{field}-{form}" in shown.links


async def test_a_form_error_keeps_ticked_boxes_but_a_changed_key_clears_them(world: World):
    await old_doubt(world)
    async with world.client(four_eyes=True) as client, Desk.of(client) as desk:
        ada = desk.visitor()
        page = (await ada.key()).page
        refused = await ada.sends(page, "refute", certain="1", reason=" ")
        await desk.visitor("ben").does("refute", certain="1")
        await desk.visitor("ben").does("withdraw")
        outdated = await ada.sends(page, "refute", certain="1", reason="none there")

    def ticked(answer: Answer) -> list[bool]:
        return ["checked" in values for _, values in answer.page.tags if values.get("type") == "checkbox"]

    assert (refused.status, ticked(refused)) == (422, [True])
    assert (outdated.status, ticked(outdated)) == (409, [False])
    assert outdated.page.forms["refute"]["reason"] == "none there"


async def test_the_loser_of_a_race_sees_who_decided_what_and_keeps_what_they_typed(
    doubted: World, desk: Desk
):
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    old = (await ben.key()).page
    await ada.does("resolve", order_id="tx-abc", reason="on the statement")

    answer = await ben.sends(old, "resolve", order_id="tx-other", reason="the customer said so")

    assert answer.status == 409
    assert "At 2024-05-06 12:10:00 UTC ada decided: the order exists" in answer.text
    assert "You had entered: tx-other the customer said so" in answer.text
    assert "resolve" not in answer.page.forms


async def test_the_loser_of_a_race_sees_every_decision_in_its_order(doubted: World, desk: Desk):
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    old = (await ben.key()).page
    await ada.does("resolve", order_id="tx-abc")
    doubted.time.pass_(60)
    await ben.does("takeback")

    answer = await ben.sends(old, "resolve", order_id="tx-other", reason="the customer said so")

    assert answer.status == 409
    decided = (
        "At 2024-05-06 12:10:00 UTC ada decided: the order exists. At 2024-05-06 12:11:00 UTC you decided"
    )
    assert f"{decided}: the order's id is withdrawn" in answer.text
    assert answer.page.forms["resolve"]["order_id"] == "tx-other"


@pytest.mark.parametrize("form", ["resolve", "refute", "approve", "parties"])
async def test_a_key_that_is_not_on_record_is_not_found(desk: Desk, form: str):
    answer = await desk.visitor().post(f"/{form}", {"key": "nobody knows it", "reason": "seen"})

    assert answer.status == 404


# --- what the address says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "done", ["resolved", "refuted", "amended", "takenback", "proposed", "approved", "withdrawn"]
)
async def test_a_done_parameter_is_ignored_unless_the_decision_was_made(
    doubted: World, desk: Desk, done: str
):
    """Without this, a link could show "no order exists" for a key in doubt, and the order was paid again."""
    shown = await desk.visitor().key(done=done)

    assert 'class="done"' not in shown.html
    assert "Saved" not in shown.text


async def test_another_operators_decision_is_not_confirmed_as_ones_own(doubted: World, desk: Desk):
    await desk.visitor("ada").does("refute", certain="1")

    assert "Saved" in (await desk.visitor("ada").key(done="refuted")).text
    assert "Saved" not in (await desk.visitor("ben").key(done="refuted")).text


async def test_a_decision_is_not_confirmed_as_new_once_the_key_has_changed(doubted: World, desk: Desk):
    """By now, the hold may be released, or the key may be in doubt again."""
    ada = desk.visitor()
    _, query = where_to(await ada.does("refute", certain="1"))
    await doubted.recover()
    recovered = await ada.key(**query)
    await old_doubt(doubted)
    again = await ada.key(**query)

    for shown in (recovered, again):
        assert "Saved: no order exists" not in shown.text
        assert "The key has changed since then" in shown.text


async def test_a_recorded_decision_is_not_reported_as_failed(
    doubted: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """If the page said that the journal failed, the operator would decide again."""
    ada = desk.visitor()
    page = (await ada.key()).page
    read, decided = doubted.journal.read, []

    async def fails_once_decided(scope: str, key: str) -> object:
        if key == "k" and (entry := await read(scope, key)) is not None and entry.state is KeyState.CREATED:
            decided.append(key)
            raise OSError
        return await read(scope, key)

    monkeypatch.setattr(doubted.journal, "read", fails_once_decided)
    answer = await ada.sends(page, "resolve", order_id="tx-abc", reason="seen")

    assert decided
    assert where_to(answer) == ("/key", {"key": "k", "done": "resolved"})


# --- a page that is old ---------------------------------------------------------------------------


@pytest.mark.parametrize("second", [("refute", {"certain": "1"}), ("resolve", {"order_id": "tx-other"})])
async def test_an_outdated_page_changes_nothing_and_shows_what_happened(
    doubted: World, desk: Desk, second: tuple[str, dict[str, str]]
):
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    old = (await ben.key()).page
    await ada.does("resolve", order_id="tx-abc", reason="on the statement")

    form, fields = second
    answer = await ben.sends(old, form, reason="I think so", **fields)

    assert answer.status == 409
    assert "the key has changed in the meantime" in answer.text
    assert "decided: the order exists by ada tx-abc" in answer.text
    assert "on the statement" in answer.text
    assert decisions(await doubted.told()) == ["resolve: created"]


async def test_a_page_of_an_earlier_doubt_is_outdated(world: World, desk: Desk):
    """The key is in doubt as before, but about another request."""
    await old_doubt(world)
    ada = desk.visitor()
    old = (await ada.key()).page
    await world.refute()
    await old_doubt(world)

    answer = await ada.sends(old, "refute", reason="no such order", certain="1")

    assert answer.status == 409
    assert decisions(await world.told()) == ["refute: free"]


async def test_a_form_made_for_another_operator_is_rejected(doubted: World, desk: Desk):
    page = (await desk.visitor("ada").key()).page

    answer = await desk.visitor("ben").sends(page, "resolve", order_id="tx-abc", reason="seen")

    assert answer.status == 409


@pytest.mark.parametrize("stamp", ["", "3", "99.x", "\u0663.x", "9999999999.x", "-1.x", "3.ü"])
async def test_a_forged_form_token_is_rejected(doubted: World, desk: Desk, stamp: str):
    answer = await desk.visitor().does("resolve", order_id="tx-abc", stamp=stamp)

    assert answer.status == 409
    assert decisions(await doubted.told()) == []


async def test_viewing_the_parties_does_not_outdate_a_page(doubted: World, desk: Desk):
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    page = (await ada.key()).page
    await ben.does("parties", reason="the customer calls")

    assert (await ada.sends(page, "resolve", order_id="tx-abc", reason="seen")).status == 303


async def test_another_operators_form_is_not_reported_as_a_change_of_the_key(doubted: World, desk: Desk):
    """The key has not changed, so the operator would search for a decision that does not exist."""
    page = (await desk.visitor("ada").key()).page

    answer = await desk.visitor("ben").sends(page, "resolve", order_id="tx-abc", reason="seen")

    assert "This page is out of date, or was rendered for another operator." in answer.text
    assert "changed in the meantime" not in answer.text


# --- what is typed --------------------------------------------------------------------------------


async def test_typed_text_is_shown_again_exactly(doubted: World, desk: Desk):
    """Without this, the marks added for display were sent as if typed, and stored in the history."""
    answer = await desk.visitor().does("resolve", order_id="no id", reason="seen ✔\ufe0f by Zoë")

    assert answer.page.forms["resolve"]["reason"] == "seen ✔\ufe0f by Zoë"


async def test_a_no_break_space_in_a_reason_becomes_a_space(doubted: World, desk: Desk):
    """Text copied from a statement may contain such spaces, and it was refused without a reason."""
    answer = await desk.visitor().does("resolve", order_id="tx-abc", reason="on\u00a0the\u202fstatement")
    steps = await doubted.journal.history(doubted.scope, "k")

    assert answer.status == 303
    assert steps[-1].reason == "on the statement"


@pytest.mark.parametrize("form", ["find", "resolve", "parties"])
async def test_a_form_that_is_not_valid_text_is_a_bad_request(doubted: World, desk: Desk, form: str):
    """Without this, the page reported that the journal failed."""
    ada = desk.visitor()
    headers = {**SAME, "Content-Type": "application/x-www-form-urlencoded; charset=unicode_escape"}
    body = b"key=k&stamp=x&text=\\ud800&reason=\\ud800&order_id=tx-1"
    answer = await desk.asked("POST", f"/{form}", who=ada.name, headers=headers, data=body)

    assert answer.status == 400


async def test_an_error_message_shows_the_hooks_name(doubted: World, desk: Desk):
    entries = doubted.journal.journal._entries  # type: ignore[attr-defined] # of a MemoryJournal
    unread = Unread(why="DecodeError", kept="{", hooks=("funds_hold",), earlier_hooks=())
    entries[doubted.scope, "k"] = replace(entries[doubted.scope, "k"], intent=None, unread=unread)

    answer = await desk.visitor().does("refute", certain="1")

    assert answer.status == 422
    assert "(funds_hold)" in answer.text
    assert "must be said" not in answer.text


# --- two at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [("refute", {"certain": "1"}), ("resolve", {"order_id": "tx-other"})])
async def test_two_simultaneous_decisions_make_one_transition(
    doubted: World, desk: Desk, second: tuple[str, dict[str, str]]
):
    ada, ben = desk.visitor("ada"), desk.visitor("ben")
    pages = (await ada.key()).page, (await ben.key()).page
    form, fields = second

    answers = await asyncio.gather(
        ada.sends(pages[0], "resolve", order_id="tx-abc", reason="seen"),
        ben.sends(pages[1], form, reason="seen", **fields),
    )

    assert sorted(answer.status for answer in answers) == [303, 409]
    assert len(decisions(await doubted.told())) == 1


@pytest.mark.parametrize("at", [Resolve, Refute])
async def test_a_change_between_reading_and_writing_is_not_overwritten(doubted: World, desk: Desk, at: type):
    form, fields = ("resolve", {"order_id": "tx-abc"}) if at is Resolve else ("refute", {"certain": "1"})
    doubted.meanwhile(at, lambda: doubted.resolve("tx-first"))

    answer = await desk.visitor().does(form, **fields)

    assert answer.status == 409
    assert "decided: the order exists by operator tx-first" in answer.text
    assert (await doubted.entry()).order_id == "tx-first"


# --- who may not ----------------------------------------------------------------------------------


@pytest.mark.parametrize("roles", [(), [Role.PARTIES]])
async def test_a_read_only_operator_sees_no_form_that_changes_anything(
    doubted: World, desk: Desk, roles: list[Role]
):
    shown = await desk.visitor("eve", roles).key()

    assert set(shown.page.forms) <= {"find", "parties"}
    assert "Decisions require the role “change”" in shown.text


@pytest.mark.parametrize("four_eyes", [False, True], ids=["decided", "proposed"])
async def test_a_form_decides_nothing_if_the_key_changes_as_it_arrives(world: World, four_eyes: bool):
    await world.in_doubt()

    async def change():
        await world.move(transitions.GoInDoubt(attempt=(await world.entry()).attempt, candidate="tx-other"))

    async with world.client(four_eyes=four_eyes) as client, Desk.of(client) as desk:
        ada = desk.visitor()
        page = (await ada.key()).page
        world.meanwhile(operator_transitions.Propose if four_eyes else transitions.Resolve, change)
        answer = await ada.sends(page, "resolve", order_id="tx-abc", reason="seen")

    assert answer.status == 409


async def test_a_form_refused_because_the_key_has_just_changed_shows_the_change(
    doubted: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    four_eyes = Operators.four_eyes

    async def resolved_first(operators: Operators):
        monkeypatch.undo()
        await doubted.resolve("tx-first")
        return await four_eyes(operators)

    ada = desk.visitor()
    page = (await ada.key()).page
    monkeypatch.setattr(Operators, "four_eyes", resolved_first)
    answer = await ada.sends(page, "refute", certain="1", reason="seen")

    assert answer.status == 409
    assert "decided: the order exists by operator tx-first" in answer.text
