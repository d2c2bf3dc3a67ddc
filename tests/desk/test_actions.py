"""Actions at the desk: each runs once, only with the required role, and never from an outdated page."""

import pytest

from tests.desk.visitor import Answer, Desk, Visitor, where_to
from tests.support.bank import World
from tests.support.cases import each
from transfer_async import KeyState
from transfer_async._pipeline.operators import Operators
from transfer_async.desk import Role
from transfer_async.journal import operator_transitions, transitions
from transfer_async.journal.transitions import Create, Refute, Resolve


async def old_doubt(world: World, key: str = "k") -> None:
    """Put a key in doubt and wait until it may be refuted."""
    await world.in_doubt(key)
    world.time.pass_(600)


def decisions(steps: list[str]) -> list[str]:
    """Return the transitions that ended a doubt."""
    return [one for one in steps if one.startswith(("resolve", "refute", "amend"))]


# --- what each does -------------------------------------------------------------------------------


async def test_an_order_that_exists_ends_the_doubt(doubted: World, ada: Visitor):
    answer = await ada.does("resolve", order_id="tx-abc", reason="on the statement")

    assert where_to(answer) == ("/key", {"key": "k", "done": "resolved"})
    entry, steps = await doubted.entry(), await doubted.journal.history(doubted.scope, "k")
    assert (entry.state, entry.order_id) == (KeyState.CREATED, "tx-abc")
    assert (steps[-1].move, steps[-1].by, steps[-1].reason) == ("resolve", "ada", "on the statement")


@pytest.mark.parametrize("reported", [True, False])
async def test_the_page_warns_before_a_refutation_that_the_sender_may_only_be_paused(
    world: World, ada: Visitor, reported: bool
):
    if reported:
        await old_doubt(world)
    else:
        await world.abandoned(Create)
        await world.recover()
        world.time.pass_(600)

    assert ("it may still send" in (await ada.key()).text) is not reported


async def test_nothing_is_sent_to_the_service(world: World, ada: Visitor):
    for key in ("a", "b", "c"):
        await old_doubt(world, key)
    before = len(world.sandbox.requests)

    await ada.get()
    await ada.does("resolve", key="a", order_id="tx-abc")
    await ada.does("refute", key="b", certain="1")
    await ada.does("parties", key="c")

    assert len(world.sandbox.requests) == before


async def test_after_a_decision_the_next_key_is_offered_and_the_list_is_updated(world: World, ada: Visitor):
    for key in ("payment-1", "payment-2", "payment-3"):
        await old_doubt(world, key)
    await ada.get()

    shown = await ada.follows(await ada.does("refute", key="payment-1", certain="1"))

    assert "Saved: no order exists." in shown.text
    assert "Next: payment-2" in shown.text
    assert "payment-1" in (await ada.get(kind="owed")).text
    assert "payment-1" not in (await ada.get(kind="doubt")).text


async def test_the_next_key_comes_from_the_list_that_the_operator_came_from(world: World, ada: Visitor):
    for key in ("payment-1", "payment-2", "payment-3"):
        await old_doubt(world, key)
    listed = await ada.get(kind="doubt", sort="-key")
    link = next(link for link in listed.page.links if "payment-2" in link)
    page = await ada.get(f"/{link}")
    refused = await ada.sends(page.page, "refute", certain="1", reason="")
    done = await ada.follows(await ada.sends(refused.page, "refute", certain="1", reason="seen"))

    assert link == "key?key=payment-2&kind=doubt&sort=key&turned=1"
    for shown in (page, refused, done):
        assert "./?kind=doubt&sort=key&turned=1" in shown.page.links
        assert "key?key=payment-1&kind=doubt&sort=key&turned=1" in shown.page.links
    assert "Next: payment-1" in done.text


# --- what is no good ------------------------------------------------------------------------------


@each(
    ("form", "wrong", "message", "fields"),
    [
        ("resolve", "order_id", "must look like 'tx-…'", {"order_id": "no id", "reason": "✔\ufe0f by Zoë"}),
        ("resolve", "reason", "must be a non-empty line", {"order_id": "tx-abc", "reason": " "}),
        ("resolve", "reason", "must be a non-empty line", {"order_id": "tx-abc", "reason": "two\nlines"}),
        ("refute", "reason", "must be a non-empty line", {"reason": " "}),
        ("parties", "reason", "must be a non-empty line", {"reason": ""}),
    ],
)
async def test_an_invalid_field_keeps_its_text_and_has_an_error_to_which_the_alert_leads(
    doubted: World, ada: Visitor, form: str, wrong: str, message: str, fields: dict[str, str]
):
    answer = await ada.does(form, **fields)

    (field,) = [values for _, values in answer.page.tags if "aria-invalid" in values]
    (error,) = [values for tag, values in answer.page.tags if (tag, values.get("class")) == ("span", "error")]
    assert answer.status == 422
    assert message in answer.text
    assert answer.page.forms[form].items() >= fields.items()
    assert (field["id"], field["name"], "autofocus" in field) == (f"{wrong}-{form}", wrong, True)
    assert error["id"] in (field["aria-describedby"] or "").split()
    assert f"#{wrong}-{form}" in answer.page.links
    assert "ada.eze" not in answer.html
    assert decisions(await doubted.history()) == []


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


@pytest.mark.parametrize("second", [("refute", {"certain": "1"}), ("resolve", {"order_id": "tx-other"})])
async def test_an_outdated_page_changes_nothing_and_shows_who_decided_what(
    doubted: World, ada: Visitor, ben: Visitor, second: tuple[str, dict[str, str]]
):
    old = (await ben.key()).page
    await ada.does("resolve", order_id="tx-abc", reason="on the statement")

    form, fields = second
    answer = await ben.sends(old, form, reason="the customer said so", **fields)

    assert answer.status == 409
    changed = "the key has changed in the meantime. At 2024-05-06 12:10:00 UTC ada decided: the order exists"
    assert changed in answer.text
    assert "decided: the order exists by ada tx-abc on the statement" in answer.text
    typed = "tx-other the customer said so" if form == "resolve" else "the customer said so"
    assert f"You had entered: {typed}" in answer.text
    assert "resolve" not in answer.page.forms
    assert decisions(await doubted.history()) == ["resolve: created"]


async def test_an_outdated_page_shows_every_decision_in_its_order(doubted: World, ada: Visitor, ben: Visitor):
    old = (await ben.key()).page
    await ada.does("resolve", order_id="tx-abc")
    doubted.time.pass_(60)
    await ben.does("takeback")

    answer = await ben.sends(old, "resolve", order_id="tx-other", reason="the customer said so")

    assert answer.status == 409
    first = "At 2024-05-06 12:10:00 UTC ada decided: the order exists."
    second = "At 2024-05-06 12:11:00 UTC you decided: the order's id is withdrawn"
    assert f"{first} {second}" in answer.text
    assert answer.page.forms["resolve"]["order_id"] == "tx-other"


async def test_a_key_that_is_not_on_record_is_not_found(ada: Visitor):
    shown = await ada.key("nobody knows it")
    fields = {"key": "nobody knows it", "reason": "seen"}
    tried = [await ada.post(f"/{form}", fields) for form in ("resolve", "refute", "approve", "parties")]

    assert [answer.status for answer in (shown, await ada.get("/key"), *tried)] == [404] * 6
    assert "No such key" in shown.text


# --- what the address says ------------------------------------------------------------------------


@each("done", ["resolved", "refuted", "amended", "takenback", "proposed", "approved", "withdrawn"])
async def test_a_done_parameter_is_ignored_unless_the_decision_was_made(
    doubted: World, ada: Visitor, done: str
):
    """Without this, a link could show "no order exists" for a key in doubt, and the order was paid again."""
    shown = await ada.key(done=done)

    assert 'class="done"' not in shown.html
    assert "Saved" not in shown.text


async def test_another_operators_decision_is_not_confirmed_as_ones_own(
    doubted: World, ada: Visitor, ben: Visitor
):
    await ada.does("refute", certain="1")

    assert "Saved" in (await ada.key(done="refuted")).text
    assert "Saved" not in (await ben.key(done="refuted")).text


async def test_a_decision_is_not_confirmed_as_new_once_the_key_has_changed(doubted: World, ada: Visitor):
    """By now, the hold may be released, or the key may be in doubt again."""
    answer = await ada.does("refute", certain="1")
    await doubted.recover()
    recovered = await ada.follows(answer)
    await old_doubt(doubted)

    for shown in (recovered, await ada.follows(answer)):
        assert "Saved: no order exists" not in shown.text
        assert "The key has changed since then" in shown.text


async def test_a_recorded_decision_is_not_reported_as_failed(
    doubted: World, ada: Visitor, monkeypatch: pytest.MonkeyPatch
):
    """If the page said that the journal failed, the operator would decide again."""
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


async def test_a_page_of_an_earlier_doubt_is_outdated(world: World, ada: Visitor):
    """The key is in doubt as before, but about another request."""
    await old_doubt(world)
    old = (await ada.key()).page
    await world.refute()
    await old_doubt(world)

    answer = await ada.sends(old, "refute", reason="no such order", certain="1")

    assert answer.status == 409
    assert decisions(await world.history()) == ["refute: free"]


async def test_a_form_made_for_another_operator_is_rejected(doubted: World, ada: Visitor, ben: Visitor):
    """The key has not changed; if the page said so, the operator would search for the decision."""
    answer = await ben.sends((await ada.key()).page, "resolve", order_id="tx-abc", reason="seen")

    assert answer.status == 409
    assert "This page is out of date, or was rendered for another operator." in answer.text
    assert "changed in the meantime" not in answer.text


@each("stamp", ["", "3", "99.x", "\u0663.x", "9999999999.x", "-1.x", "3.ü"])
async def test_a_forged_form_token_is_rejected(doubted: World, ada: Visitor, stamp: str):
    answer = await ada.does("resolve", order_id="tx-abc", stamp=stamp)

    assert answer.status == 409
    assert decisions(await doubted.history()) == []


async def test_viewing_the_parties_does_not_outdate_a_page(doubted: World, ada: Visitor, ben: Visitor):
    page = (await ada.key()).page
    await ben.does("parties", reason="the customer calls")

    assert (await ada.sends(page, "resolve", order_id="tx-abc", reason="seen")).status == 303


async def test_a_no_break_space_in_a_reason_becomes_a_space(doubted: World, ada: Visitor):
    """Text copied from a statement may contain such spaces, and it was refused without a reason."""
    answer = await ada.does("resolve", order_id="tx-abc", reason="on\u00a0the\u202fstatement")
    steps = await doubted.journal.history(doubted.scope, "k")

    assert (answer.status, steps[-1].reason) == (303, "on the statement")


# --- a change at the same time --------------------------------------------------------------------


@pytest.mark.parametrize("at", [Resolve, Refute])
async def test_a_change_between_reading_and_writing_is_not_overwritten(
    doubted: World, ada: Visitor, at: type
):
    form, fields = ("resolve", {"order_id": "tx-abc"}) if at is Resolve else ("refute", {"certain": "1"})
    doubted.meanwhile(at, lambda: doubted.resolve("tx-first"))

    answer = await ada.does(form, **fields)

    assert answer.status == 409
    assert "decided: the order exists by operator tx-first" in answer.text
    assert (await doubted.entry()).order_id == "tx-first"


# --- who may not ----------------------------------------------------------------------------------


@each("roles", [(), [Role.PARTIES]])
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
    doubted: World, ada: Visitor, monkeypatch: pytest.MonkeyPatch
):
    four_eyes = Operators.four_eyes

    async def resolved_first(operators: Operators):
        monkeypatch.undo()
        await doubted.resolve("tx-first")
        return await four_eyes(operators)

    page = (await ada.key()).page
    monkeypatch.setattr(Operators, "four_eyes", resolved_first)
    answer = await ada.sends(page, "refute", certain="1", reason="seen")

    assert answer.status == 409
    assert "decided: the order exists by operator tx-first" in answer.text
