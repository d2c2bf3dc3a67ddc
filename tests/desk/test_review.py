"""The review of decisions that cannot be undone: they are shown once more, and confirmed by typing."""

import pytest

from tests.desk.visitor import Answer, Desk, Visitor, corrupt, where_to
from tests.support.bank import World, owed_hooks
from tests.support.cases import each
from transfer_async import KeyState
from transfer_async.desk import Role


async def reviewed(visitor: Visitor, *, form: str = "refute", key: str = "k", **fields: str) -> Answer:
    """Send the first form of a decision. Return the page of the response."""
    given = (await visitor.key(key)).page.forms[form]
    return await visitor.post(f"/{form}", {**given, "reason": "asked the service", **fields})


async def confirmed(visitor: Visitor, review: Answer, typed: str, **fields: str) -> Answer:
    """Type a text into a review, and send it."""
    return await visitor.post("/refute", {**review.page.forms["refute"], "typed": typed, **fields})


async def test_a_refutation_is_shown_once_more_before_anything_is_written(world: World, ada: Visitor):
    world.bank.reference = "hold-731"
    await world.in_doubt()
    world.time.pass_(600)
    before, page = await world.history(), await ada.key()

    review = await reviewed(ada)

    assert review.status == 200
    assert "This cannot be undone. Nothing is decided yet." in review.text
    assert "asked the service" in review.text
    assert set(review.page.forms) == {"find", "refute"}
    for shown in (page, review):
        assert "Refuting releases hold-731 of 155,025.00 NGN, at the next recovery" in shown.text
    assert "hold-731 of 155,025.00 NGN stays on hold" in page.text
    assert await world.history() == before


async def test_a_refutation_without_a_reason_is_refused_before_the_review(doubted: World, ada: Visitor):
    answer = await reviewed(ada, reason=" ")

    assert answer.status == 422
    assert "This cannot be undone. Nothing is decided yet." not in answer.text


@pytest.mark.parametrize("typed", ["k", " k ", "155025", "155,025.00", "155025.00 NGN", "NGN 155,025"])
async def test_the_amount_or_the_key_confirms_it(doubted: World, ada: Visitor, typed: str):
    answer = await confirmed(ada, await reviewed(ada), typed)

    assert where_to(answer) == ("/key", {"key": "k", "done": "refuted"})
    assert owed_hooks(await doubted.entry()) == ["funds_hold"]
    step = (await doubted.journal.history(doubted.scope, "k"))[-1]
    assert (step.move, step.by, step.reason) == ("refute", "ada", "asked the service")


@each("typed", ["", "K", "k2", "155,024.00", "155025 USD", "yes", "1 55025", "15502"])
async def test_another_text_decides_nothing_and_is_kept_with_an_error_at_its_field(
    doubted: World, ada: Visitor, typed: str
):
    before = await doubted.history()

    answer = await confirmed(ada, await reviewed(ada), typed)

    assert answer.status == 422
    (field,) = [values for tag, values in answer.page.tags if values.get("name") == "typed"]
    error = {"value": typed, "aria-invalid": "true", "aria-describedby": "error-typed"}
    assert field.items() >= error.items()
    assert "This is neither the amount nor the key." in answer.text
    assert answer.page.forms["refute"]["reason"] == "asked the service"
    assert await doubted.history() == before


async def test_going_back_from_the_review_keeps_the_typed_text(doubted: World, ada: Visitor):
    before = await doubted.history()

    answer = await confirmed(ada, await reviewed(ada), "k", back="1")

    assert answer.status == 200
    assert answer.page.forms["refute"]["reason"] == "asked the service"
    assert await doubted.history() == before


async def test_a_decision_during_the_review_is_not_overwritten(doubted: World, ada: Visitor, ben: Visitor):
    review = await reviewed(ada)
    await ben.does("resolve", order_id="tx-abc", reason="on the statement")

    answer = await confirmed(ada, review, "k")

    assert answer.status == 409
    assert "decided: the order exists by ben tx-abc" in answer.text
    assert (await doubted.entry()).state is KeyState.CREATED


async def test_a_resolution_needs_no_review_and_does_not_look_like_a_refutation(doubted: World, ada: Visitor):
    classes = [
        (tag, values["class"])
        for tag, values in (await ada.key()).page.tags
        if tag in ("article", "button") and values.get("class")
    ]
    assert classes == [
        ("article", "action"),
        ("button", "main"),
        ("article", "action danger"),
        ("button", "careful"),
    ]
    assert (await reviewed(ada, form="resolve", order_id="tx-abc")).status == 303


async def test_a_proposal_needs_no_review_but_the_approval_of_a_refutation_does(world: World):
    await world.in_doubt()
    world.time.pass_(600)
    async with world.client(four_eyes=True) as client, Desk.of(client) as desk:
        ada, ben = desk.visitor("ada", [Role.CHANGE]), desk.visitor("ben", [Role.APPROVE])
        uncertain = await reviewed(ada)
        proposed = await reviewed(ada, certain="1")
        proposal = (await ben.key()).page
        review = await reviewed(ben, form="approve")
        entry = await world.entry()
        wrong = await ben.post("/approve", {**review.page.forms["approve"], "typed": "yes"})
        done = await ben.post("/approve", {**review.page.forms["approve"], "typed": "155,025.00 NGN"})

    assert (uncertain.status, proposed.status, review.status, wrong.status) == (422, 303, 200, 422)
    assert "Certain: tick the box" in uncertain.text
    assert "Review, then approve" in proposal.text
    assert "Proposed by ada: asked the service" in review.text
    assert "Approve: no order exists, and none can appear" in review.text
    assert (entry.state, entry.proposal is not None) == (KeyState.IN_DOUBT, True)
    assert where_to(done) == ("/key", {"key": "k", "done": "approved"})


async def test_hooks_that_must_be_undone_manually_are_asked_for_before_the_review(
    doubted: World, ada: Visitor
):
    corrupt(doubted)

    refused = await reviewed(ada)
    review = await reviewed(ada, undone="1")
    by_amount, by_key = await confirmed(ada, review, "155025"), await confirmed(ada, review, "k")

    assert (refused.status, review.status, by_amount.status, by_key.status) == (422, 200, 422, 303)
    assert "(funds_hold)" in refused.text
    assert "type the key, as shown above" in review.text
    assert "This is not the key." in by_amount.text


@each("key", ['"><b>', "مرحبا key", "100", "a  b", "é" * 100])
async def test_any_key_can_be_confirmed_as_the_page_shows_it(world: World, ada: Visitor, key: str):
    await world.in_doubt(key)
    world.time.pass_(600)

    answer = await confirmed(ada, await reviewed(ada, key=key), key)

    assert answer.status == 303
    assert (await world.entry(key)).state is KeyState.FREE
