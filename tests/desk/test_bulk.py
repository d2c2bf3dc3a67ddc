"""Proposals for several keys at once: one order id for each, and one reason for all. Nothing is decided."""

from collections.abc import AsyncIterator

import pytest

from tests.desk.visitor import Answer, Desk, Visitor, corrupt
from tests.support.bank import World
from transfer_async import KeyState
from transfer_async.desk import Role
from transfer_async.journal.operator_transitions import Propose

KEYS = ("payment-1", "payment-2", "payment-3")


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    async with world.client(four_eyes=True) as client, Desk.of(client) as made:
        for key in KEYS:
            await world.in_doubt(key)
        world.time.pass_(600)
        yield made


@pytest.fixture
def ada(desk: Desk) -> Visitor:
    return desk.visitor("ada", [Role.CHANGE, Role.APPROVE])


async def selected(visitor: Visitor, *keys: str, **more: str) -> Answer:
    fields = [*(("key", key) for key in keys), *more.items()]
    return await visitor.post("/select", fields)


def values_of(page: Answer, field: str) -> list[str | None]:
    """Return the values of all inputs with this name."""
    return [tag["value"] for name, tag in page.page.tags if name == "input" and tag.get("name") == field]


def row(page: Answer, key: str, order_id: str) -> list[tuple[str, str]]:
    """Return the form fields of one key, with the page's form token."""
    stamp = values_of(page, "stamp")[values_of(page, "key").index(key)] or ""
    return [("key", key), ("stamp", stamp), ("order_id", order_id)]


async def proposed(visitor: Visitor, page: Answer, reason: str = "in the export", **ids: str) -> Answer:
    fields = [("reason", reason)]
    for number, order_id in ids.items():
        fields += row(page, f"payment-{number[1:]}", order_id)
    return await visitor.post("/propose", fields)


async def test_the_selected_keys_are_proposed_with_one_reason_and_approved_one_by_one(
    world: World, desk: Desk, ada: Visitor
):
    listed = await ada.get()
    assert all(f'value="{key}" form="bulk"' in listed.html for key in KEYS)

    page = await selected(ada, *KEYS)
    mine = await ada.follows(await proposed(ada, page, k1="tx-1", k2="tx-2", k3=""))

    assert [(await world.entry(key)).state for key in KEYS] == [KeyState.IN_DOUBT] * 3
    made = [(await world.entry(key)).proposal for key in KEYS]
    assert [item and (item.by, item.reason, item.order_id) for item in made] == [
        ("ada", "in the export", "tx-1"),
        ("ada", "in the export", "tx-2"),
        None,
    ]
    assert "proposed by me 2" in mine.text
    assert "by ada: the order exists tx-1, 0 s ago" in mine.text
    assert 'form="bulk"' not in mine.html  # a key with a proposal cannot be selected
    assert "select" not in mine.page.forms
    assert "approve" not in (await ada.key("payment-1")).page.forms

    await desk.visitor("ben", [Role.APPROVE]).does("approve", key="payment-2")
    states = [(await world.entry(key)).state for key in KEYS]
    assert states == [KeyState.IN_DOUBT, KeyState.CREATED, KeyState.IN_DOUBT]


async def test_ids_are_filled_in_from_pasted_lines(ada: Visitor):
    pasted = 'key,amount,order_id\npayment-1,155,tx-1\npayment-2\ttx-2\nother,tx-9\npayment-3,"tx-3'

    page = await selected(ada, *KEYS, found=pasted, reason="in the export")

    assert [page.html.count(f'value="tx-{number}"') for number in (1, 2, 3, 9)] == [1, 1, 1, 0]
    assert 'value="in the export"' in page.html


async def test_a_key_that_changed_meanwhile_is_refused_and_the_others_are_proposed(
    world: World, desk: Desk, ada: Visitor
):
    page = await selected(ada, *KEYS)
    await desk.visitor("cleo", [Role.CHANGE]).does("resolve", key="payment-2", order_id="tx-7")

    answer = await proposed(ada, page, k1="tx-1", k2="tx-2", k3="no id")

    assert answer.status == 422
    assert "Proposed: 1 key. The other keys are below. payment-1 : the order exists, tx-1" in answer.text
    assert "payment-2 (Has changed since this page was rendered, so nothing was proposed)" in answer.text
    assert "Order id: must look like" in answer.text
    assert 'value="no id"' in answer.html
    two, three = [(await world.entry(key)).proposal for key in KEYS[1:]]
    assert two is not None
    assert (two.by, three) == ("cleo", None)


async def test_two_people_propose_for_the_same_key_at_once_and_one_does(
    world: World, desk: Desk, ada: Visitor
):
    """Both pages are up to date when they are sent; the journal accepts only one proposal."""
    ben = desk.visitor("ben", [Role.CHANGE])
    page, other = await selected(ada, "payment-1"), await selected(ben, "payment-1")
    world.meanwhile(Propose, lambda: proposed(ben, other, k1="tx-2"))

    answer = await proposed(ada, page, k1="tx-1")

    assert answer.status == 422
    assert "Proposed" not in answer.text
    made = (await world.entry("payment-1")).proposal
    assert made is not None
    assert (made.by, made.order_id) == ("ben", "tx-2")
    steps = await world.journal.history(world.scope, "payment-1")
    assert [(step.move, step.by) for step in steps if step.by] == [("propose", "ben")]


async def test_an_id_for_two_keys_or_a_missing_reason_is_refused_at_its_field(world: World, ada: Visitor):
    page = await selected(ada, *KEYS)

    twice = await proposed(ada, page, k1="tx-1", k2="tx-1", k3="tx-3")
    silent = await proposed(ada, page, reason=" ", k2="tx-2")

    assert twice.text.count("Order id: several keys have the same order id") == 2
    assert "Proposed: 1 key." in twice.text
    assert "Reason: must be a non-empty line" in silent.text
    assert 'value="tx-2"' in silent.html
    assert [(await world.entry(key)).proposal is None for key in KEYS] == [True, True, False]


async def test_a_journal_that_fails_is_reported_for_each_key(world: World, ada: Visitor):
    page = await selected(ada, *KEYS)
    world.journal.fail_on = Propose

    answer = await proposed(ada, page, k1="tx-1", k2="tx-2")

    assert answer.text.count("Look at the key before you propose a decision again.") == 2


async def test_an_empty_oversized_or_forged_bulk_selection_is_refused(ada: Visitor):
    for nothing in (await selected(ada), await selected(ada, "nobody knows it")):
        assert "No key is selected" in nothing.text
    many = await selected(ada, *(f"k{number}" for number in range(51)))
    uneven = await ada.post("/propose", {"key": "payment-1", "reason": "seen"})

    assert (many.status, uneven.status) == (400, 400)


async def test_operators_who_cannot_propose_and_wall_views_get_no_checkboxes(desk: Desk, ada: Visitor):
    reader, wall = await desk.visitor("eve", [Role.APPROVE]).get(), await ada.get(wall="1")

    assert 'form="bulk"' not in reader.html + wall.html


async def test_without_dual_control_proposals_wait_for_another_person_too(world: World):
    async with world.client() as client, Desk.of(client) as made:
        await world.in_doubt("payment-1")
        ada = made.visitor("ada", [Role.CHANGE])
        answer = await proposed(ada, await selected(ada, "payment-1"), k1="tx-1")

    assert answer.status == 303
    assert (await world.entry("payment-1")).state is KeyState.IN_DOUBT


@pytest.mark.parametrize("is_sealed", [False, True], ids=["corrupt", "encrypted"])
async def test_an_encrypted_record_without_its_key_is_left_out_of_a_bulk_proposal(
    world: World, ada: Visitor, is_sealed: bool
):
    corrupt(world, "payment-1", hooks=(), is_sealed=is_sealed)

    page = await selected(ada, *KEYS)

    assert values_of(page, "key") == list(KEYS[1:] if is_sealed else KEYS)
