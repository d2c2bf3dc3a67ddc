"""Decisions of operators, alone or under dual control: they apply to the state that was seen."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.bank import World
from tests.support.cases import each
from transfer_async import (
    ApprovalRequired,
    ApproverIsProposer,
    Decision,
    FourEyes,
    KeyChanged,
    KeyState,
    KeyView,
    MemoryJournal,
    Operators,
    Order,
    OrderInDoubt,
    OrderIntent,
    PersonName,
    RecoveryReport,
)
from transfer_async._pipeline.decisions import to_undo_by_hand
from transfer_async._pipeline.key_views import refusal
from transfer_async.journal import (
    FOUR_EYES,
    AcquireLease,
    Amend,
    Look,
    Quarantine,
    Refute,
    Rejection,
    Resolve,
    TakeBack,
    TransitionResult,
    Unread,
)
from transfer_async.journal.model import BLANK

ADA = {"by": "ada", "reason": "seen on the statement"}
BEN = {"by": "ben", "reason": "looked, too"}


def operators(world: World, **settings: Any) -> Operators:
    options: dict[str, Any] = {"clock": world.time.clock, "observers": [world.events.append], **settings}
    return Operators(world.journal, world.scope, **options)


@pytest.fixture
async def desk(world: World) -> Operators:
    """Yield operators on a journal that contains one key in doubt."""
    await world.in_doubt()
    return operators(world)


async def moves(world: World, key: str = "k") -> list[tuple[str, str | None]]:
    return [(step.move, step.by) for step in await world.journal.history(world.scope, key)]


# --- four eyes ----------------------------------------------------------------------------------


async def test_one_person_proposes_and_another_approves(world: World):
    await world.in_doubt()
    world.time.pass_(300.0)
    desk = operators(world, four_eyes=True)
    proposal = await desk.propose("k", Decision.REFUTE, undone=True, **ADA)
    assert proposal.undone
    assert world.bank.open
    record = await desk.approve("k", proposal=proposal.id, **BEN)
    report = await world.recover()

    assert (record.state, report.released, world.bank.open) == (KeyState.FREE, 1, {})
    assert (await moves(world))[-3:] == [("propose", "ada"), ("refute", "ben"), ("paid", None)]


@pytest.mark.parametrize("who", ["the client", "the operators", "the command line"])
async def test_a_dual_control_demand_applies_to_all_processes(world: World, who: str):
    """Without this, one process that lacks the setting would bypass the rule."""
    await world.in_doubt()
    if who == "the client":
        async with world.client(four_eyes=True):
            pass
    elif who == "the operators":
        await operators(world, four_eyes=True).four_eyes()
    else:
        await operators(world).demand_four_eyes(**ADA)
    async with world.client() as client:
        for alone in (
            client.resolve("k", order_id="tx-1", **ADA),
            client.refute("k", **ADA),
            client.operators.amend("k", order_id=None, **ADA),
            operators(world).resolve("k", order_id="tx-1", **ADA),
        ):
            with pytest.raises(ApprovalRequired, match="another person approve"):
                await alone

    assert (await world.entry()).state is KeyState.IN_DOUBT


@pytest.mark.parametrize("decision", [Resolve, Refute, Amend, TakeBack])
async def test_a_demand_made_while_one_person_decides_keeps_the_hold(world: World, decision: type[Any]):
    """Without this, a decision that passed the check but is written late releases the customer's hold."""
    desk, other = operators(world), operators(world)
    await world.in_doubt()
    world.time.pass_(300.0)
    if decision in (Amend, TakeBack):
        await desk.resolve("k", order_id="tx-0", **ADA)
    before = await world.entry()
    world.meanwhile(decision, lambda: other.demand_four_eyes(**BEN))
    decided = {
        Resolve: lambda: desk.resolve("k", order_id="tx-1", **ADA),
        Refute: lambda: desk.refute("k", **ADA),
        Amend: lambda: desk.amend("k", order_id="tx-1", **ADA),
        TakeBack: lambda: desk.amend("k", order_id=None, **ADA),
    }
    with pytest.raises(ApprovalRequired):
        await decided[decision]()

    assert await world.entry() == before


async def corrupted(world: World, key: str, **changes: Any) -> Unread:
    """Store the key's record as a journal returns it if it cannot be decoded."""
    unread = Unread(why="DecodeError", kept="{", hooks=("funds_hold",), earlier_hooks=("check",))
    entries = world.journal.journal._entries  # type: ignore[attr-defined] # of a journal in memory
    entries[world.scope, key] = replace(await world.entry(key), unread=unread, **changes)
    return unread


@pytest.mark.parametrize(
    ("passed", "others", "changes", "why"),
    [
        (600.0, True, {}, "another person approve"),
        (299.5, False, {}, r"too early, .*; try again in 1 s"),
        (600.0, False, {"lease_until": 1639.5}, "a worker may be using the key; try again in 40 s"),
    ],
    ids=["dual control", "too early", "a worker"],
)
async def test_a_refused_refutation_does_not_quarantine_a_corrupt_record(
    world: World, passed: float, others: bool, changes: dict[str, Any], why: str
):
    await world.in_doubt()
    world.time.pass_(passed)
    unread = await corrupted(world, "k", **changes)
    if others:
        world.meanwhile(Quarantine, lambda: operators(world).demand_four_eyes(**BEN))
    with pytest.raises(ValueError, match=why):
        await operators(world).refute("k", undone=True, **ADA)

    assert (await world.entry()).unread == unread


@pytest.mark.parametrize(
    ("decision", "order_id", "hooks"),
    [(Decision.REFUTE, None, "funds_hold, check"), (Decision.RESOLVE, "tx-1", "check")],
)
async def test_a_quarantine_requires_and_records_which_hooks_were_undone_manually(
    world: World, desk: Operators, decision: Decision, order_id: str | None, hooks: str
):
    world.time.pass_(300.0)
    unread = await corrupted(world, "k")
    by_name = {Decision.REFUTE: desk.refute, Decision.RESOLVE: partial(desk.resolve, order_id="tx-1")}
    general = {"decision": decision, "order_id": order_id, **ADA}
    for unconfirmed in (
        by_name[decision]("k", **ADA),
        desk.decide("k", **general),
        desk.propose("k", **general),
    ):
        with pytest.raises(ValueError, match=rf"undone: must be set, .* \({hooks}\)"):
            await unconfirmed
    assert (await world.entry()).unread == unread
    await by_name[decision]("k", undone=True, **ADA)

    kept, decided = (await desk.history("k"))[-2:]
    why = f"seen on the statement; the unreadable part is kept; undone manually: {hooks}"
    assert [(one.move, one.by, one.reason) for one in (kept, decided)] == [
        ("layaside", "ada", why),
        (decision.value, *ADA.values()),
    ]


@pytest.mark.parametrize(("refuting", "hooks"), [(True, ("funds_hold", "check")), (False, ("check",))])
def test_the_hooks_of_earlier_intents_are_named_to_be_undone_manually(refuting: bool, hooks: tuple[str, ...]):
    unread = Unread(why="DecodeError", kept="{", hooks=("funds_hold",), earlier_hooks=("check",))
    entry = replace(BLANK, state=KeyState.IN_DOUBT, unread=unread)

    assert to_undo_by_hand(entry, refuting=refuting) == hooks


async def test_the_banks_resolve_ends_a_doubt_despite_a_dual_control_demand(world: World):
    async def resolve(*_: object) -> str:
        return "tx-seen"

    await world.in_doubt()
    world.meanwhile(Resolve, lambda: operators(world).demand_four_eyes(**ADA))
    await world.recover(resolve=resolve)

    assert (await world.entry()).order_id == "tx-seen"


@pytest.mark.parametrize(("decision", "order_id"), [(Decision.RESOLVE, "tx-1"), (Decision.REFUTE, None)])
async def test_exactly_one_of_two_concurrent_approvals_succeeds(
    world: World, decision: Decision, order_id: str | None
):
    """Without this, both calls report "approved", but an auditor finds only one name."""
    await world.in_doubt()
    world.time.pass_(300.0)
    desk = operators(world, four_eyes=True)
    proposal = await desk.propose("k", decision, order_id=order_id, **ADA)
    move = Resolve if decision is Decision.RESOLVE else Refute
    world.meanwhile(move, lambda: desk.approve("k", proposal=proposal.id, by="cleo", reason="first"))
    with pytest.raises(KeyChanged):
        await desk.approve("k", proposal=proposal.id, **BEN)

    assert (await moves(world))[-1] == (move.name, "cleo")


async def test_without_dual_control_one_person_may_decide_or_propose(world: World):
    await world.in_doubt("a")
    await world.in_doubt("b")
    desk = operators(world)
    proposal = await desk.propose("a", Decision.RESOLVE, order_id="tx-a", **ADA)
    with pytest.raises(ApproverIsProposer):
        await desk.approve("a", proposal=proposal.id, by=" ADA", reason="me again")
    alone = await desk.resolve("a", order_id="tx-a", **ADA)

    assert await desk.four_eyes() == FourEyes(demanded=False)
    assert (alone.state, (await desk.view("a")).proposal) == (KeyState.CREATED, None)


async def test_one_person_demands_dual_control_and_two_waive_it(world: World):
    desk = operators(world)
    demanded = await desk.demand_four_eyes(**ADA)
    proposal = await desk.propose(FOUR_EYES, Decision.WAIVE, **ADA)
    asked = await desk.four_eyes()
    repeated = await desk.demand_four_eyes(**ADA)
    with pytest.raises(ApproverIsProposer):
        await desk.approve(FOUR_EYES, proposal=proposal.id, **ADA)
    await desk.approve(FOUR_EYES, proposal=proposal.id, **BEN)

    assert demanded == FourEyes(demanded=True)
    assert asked == repeated == FourEyes(demanded=True, proposal=proposal)
    assert await desk.four_eyes() == FourEyes(demanded=False)
    assert await moves(world, FOUR_EYES) == [("demand", "ada"), ("propose", "ada"), ("waive", "ben")]
    assert (await desk.history(FOUR_EYES))[0].reason == ADA["reason"]


async def test_a_setting_that_demands_dual_control_demands_it_again_after_a_waiver(world: World):
    desk = operators(world, four_eyes=True)
    for _ in range(2):
        await desk.prepare()
    proposal = await desk.propose(FOUR_EYES, Decision.WAIVE, **ADA)
    await desk.approve(FOUR_EYES, proposal=proposal.id, **BEN)

    assert (await operators(world).four_eyes()).demanded is False
    with pytest.raises(ValueError, match="four_eyes: this scope does not require"):
        await operators(world).propose(FOUR_EYES, Decision.WAIVE, **ADA)
    assert (await desk.four_eyes()).demanded is True
    assert (await operators(world).four_eyes()).demanded is True
    steps = [(step.move, step.by, step.reason) for step in await desk.history(FOUR_EYES)]
    demand = ("demand", "the setting", "four_eyes=True")
    proposed = ("propose", "ada", "waive: seen on the statement")
    assert steps == [demand, proposed, ("waive", *BEN.values()), demand]


async def test_a_corrupt_demand_counts_as_a_demand(world: World):
    await world.in_doubt()
    await operators(world).demand_four_eyes(**ADA)
    await corrupted(world, FOUR_EYES, four_eyes=None)
    for desk in (operators(world), operators(world, four_eyes=True)):
        with pytest.raises(ApprovalRequired):
            await desk.resolve("k", order_id="tx-1", **ADA)
    assert await moves(world, FOUR_EYES) == [("demand", "ada")]


async def test_an_approval_after_a_transition_is_void_and_names_the_new_state(world: World, desk: Operators):
    proposal = await desk.propose("k", Decision.RESOLVE, order_id="tx-1", **ADA)
    world.meanwhile(Resolve, lambda: desk.resolve("k", order_id="tx-2", by="cleo", reason="support said so"))
    with pytest.raises(KeyChanged, match=r"it is now created \(tx-2\)") as caught:
        await desk.approve("k", proposal=proposal.id, **BEN)

    version = (await world.entry()).version
    for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert (str(error), error.state, error.version) == (str(caught.value), KeyState.CREATED, version)


async def test_rejecting_a_proposal_leaves_the_key_unchanged(desk: Operators):
    proposal = await desk.propose("k", Decision.RESOLVE, order_id="tx-1", **ADA)
    record = await desk.withdraw("k", proposal=proposal.id, **BEN)
    for again in (desk.approve, desk.withdraw):
        with pytest.raises(KeyChanged):
            await again("k", proposal=proposal.id, **BEN)

    assert record.state is KeyState.IN_DOUBT
    last = (await desk.history("k"))[-1]
    assert (last.move, last.by, last.reason) == ("withdraw", "ben", BEN["reason"])


@pytest.fixture
async def created_and_in_doubt(world: World) -> World:
    """Return a world in which the order of "created" is recorded and "k" is in doubt."""
    await world.in_doubt("created")
    await world.resolve("tx-created", "created")
    await world.in_doubt()
    return world


@each(
    ("key", "decision", "order_id", "why"),
    [
        ("k", "resolve", None, "order_id: must look like"),
        ("k", "refute", "tx-1", "order_id: is not allowed for refute"),
        ("k", "nonsense", None, "decision: must be one of resolve, refute, amend, waive"),
        ("k", "waive", None, "key: the only decision for FOUR_EYES"),
        (FOUR_EYES, "refute", None, "key: the only decision for FOUR_EYES"),
        (FOUR_EYES, "waive", None, "four_eyes: this scope does not require"),
        ("k", "refute", None, "key: it is too early"),
        ("k", "amend", "tx-1", "key: must have a recorded order; it is in doubt"),
        ("never", "refute", None, "key: has no record"),
        ("created", "resolve", "tx-created", "key: must be in doubt; it is created"),
    ],
)
async def test_an_impossible_decision_cannot_be_proposed(
    created_and_in_doubt: World, key: str, decision: Any, order_id: str | None, why: str
):
    world = created_and_in_doubt
    versions = [(await world.entry(known)).version for known in ("k", "created")]
    with pytest.raises(ValueError, match=why):
        await operators(world).propose(key, decision, order_id=order_id, **ADA)

    assert [(await world.entry(known)).version for known in ("k", "created")] == versions
    assert (await world.entry()).proposal is None


def test_a_four_eyes_value_that_is_not_a_bool_is_refused_by_name():
    with pytest.raises(ValueError, match="four_eyes: must be True or False"):
        Operators(MemoryJournal(), "scope", four_eyes="yes")  # type: ignore[arg-type] # of a wrong type


# --- as it was seen -----------------------------------------------------------------------------


async def test_a_decision_on_an_outdated_view_is_refused(world: World, desk: Operators):
    world.time.pass_(300.0)
    seen = (await desk.view("k")).version
    await desk.propose("k", Decision.RESOLVE, order_id="tx-1", **BEN)
    for stale in (
        desk.resolve("k", order_id="tx-1", **ADA, seen=seen),
        desk.refute("k", **ADA, seen=seen),
        desk.propose("k", Decision.REFUTE, **ADA, seen=seen),
    ):
        with pytest.raises(KeyChanged):
            await stale
    await desk.refute("k", **ADA, seen=seen + 1)

    assert (await world.entry()).state is KeyState.FREE


async def test_the_journals_same_person_rejection_raises_approver_is_proposer(world: World):
    await world.in_doubt()
    verdict = TransitionResult(entry=await world.entry(), denial=Rejection.SAME_PERSON, now=0.0)

    assert isinstance(refusal(verdict), ApproverIsProposer)


# --- amend --------------------------------------------------------------------------------------


async def test_correcting_a_wrong_id_records_who_and_why(world: World, desk: Operators):
    await desk.resolve("k", order_id="tx-wrong", **ADA)
    record = await desk.amend("k", order_id="tx-right", **BEN)
    step = (await desk.history("k"))[-1]

    assert (record.state, record.order_id) == (KeyState.CREATED, "tx-right")
    assert (step.move, step.by, step.reason) == ("amend", "ben", "looked, too")
    with pytest.raises(KeyChanged):
        await desk.amend("k", order_id="tx-other", **BEN, seen=(await world.entry()).version - 1)


async def test_an_id_cannot_be_amended_to_itself_or_to_another_keys_id(world: World):
    desk = operators(world)
    for key in ("a", "b"):
        await world.in_doubt(key)
        await desk.resolve(key, order_id=f"tx-{key}", **ADA)
    for order_id, why in (("tx-a", "is already recorded for the key"), ("tx-b", "belongs to another key")):
        with pytest.raises(ValueError, match=f"order_id: {why}"):
            await desk.amend("a", order_id=order_id, **ADA)


async def test_an_order_taken_back_is_in_doubt_and_its_hold_can_be_released(world: World, desk: Operators):
    world.time.pass_(300.0)
    await desk.resolve("k", order_id="tx-wrong", **ADA)
    record = await desk.amend("k", order_id=None, **BEN)
    event = world.events_of(OrderInDoubt)[-1]
    await desk.refute("k", **ADA)

    assert record.state is KeyState.IN_DOUBT
    assert (event.key, event.error, event.attempt, event.seconds) == ("k", "TakenBack", 0, 0.0)
    assert (await world.recover(), world.bank.open) == (RecoveryReport(released=1), {})


async def test_an_order_id_answered_by_the_service_cannot_be_amended(world: World):
    await world.create()
    for order_id in ("tx-other", None):
        with pytest.raises(ValueError, match="the service's own response"):
            await operators(world).amend("k", order_id=order_id, **ADA)


async def test_an_amendment_needs_two_people_under_dual_control(world: World):
    await world.in_doubt()
    await operators(world).resolve("k", order_id="tx-wrong", **ADA)
    desk = operators(world, four_eyes=True)
    proposal = await desk.propose("k", Decision.AMEND, order_id=None, **ADA)
    (waiting,) = await desk.waiting()
    record = await desk.approve("k", proposal=proposal.id, **BEN)

    assert (waiting.key, waiting.proposal) == ("k", proposal)
    assert record.state is KeyState.IN_DOUBT


# --- what there is to see -----------------------------------------------------------------------


async def test_viewing_the_parties_records_who_viewed_them(world: World):
    await world.in_doubt(beneficiary=PersonName("Ben", "Okri"))
    made = await world.create(key="created")
    desk = operators(world)
    wish, order = await desk.look("k", **ADA), await desk.look("created", **ADA)
    last = (await desk.history("k"))[-1]

    assert isinstance(wish, OrderIntent)
    assert wish.beneficiary == PersonName("Ben", "Okri")
    assert isinstance(order, Order)
    assert order.id == made.id
    assert (last.move, last.by, last.reason) == ("look", "ada", ADA["reason"])


async def test_a_watcher_is_recorded_until_anyone_removes_them(world: World, desk: Operators):
    await desk.watch("k", by="ada")
    watched = (await world.entry()).watched_by
    await desk.watch("k", by="ben", ends=True)

    assert watched is not None
    assert watched.by == "ada"
    assert (await world.entry()).watched_by is None


async def test_no_parties_are_shown_if_none_are_recorded(world: World):
    await operators(world).demand_four_eyes(**ADA)
    for key, problem in (("never", "has no record"), (FOUR_EYES, "are not on record")):
        with pytest.raises(ValueError, match=problem):
            await operators(world).look(key, **ADA)


async def test_parties_removed_before_the_view_is_recorded_are_not_shown(world: World, desk: Operators):
    world.time.pass_(300.0)

    async def others() -> None:
        await desk.refute("k", **BEN)
        await world.recover()

    world.meanwhile(Look, others)
    with pytest.raises(ValueError, match="the parties are no longer on record"):
        await desk.look("k", **ADA)


async def test_waiting_keys_are_listed_oldest_first_and_pages_by_key(world: World):
    for key in ("c", "1", "b"):
        await world.owing(key)
        world.time.pass_(10.0)
    desk = operators(world)
    pages = [await desk.page(limit=2), await desk.page(limit=2, after="b")]

    assert [view.key for view in await desk.waiting()] == ["c", "1", "b"]
    assert [[view.key for view in page] for page in pages] == [["1", "b"], ["c"]]


async def test_a_leased_doubt_is_listed_as_waiting_too(world: World, desk: Operators):
    await world.move(AcquireLease(lease=60.0))

    assert (await desk.page(), [view.key for view in await desk.waiting()]) == ((), ["k"])


async def test_a_view_has_everything_needed_to_resolve_the_key(world: World):
    await world.in_doubt()
    world.time.pass_(90.0)
    view = await operators(world).view("k")

    assert isinstance(view, KeyView)
    assert (view.state, view.age, view.readable, view.amendable) == (KeyState.IN_DOUBT, 90.0, True, False)
    assert view.refutable_at is not None
    assert view.sent_until is not None
    assert (view.refutable_at - view.sent_until).total_seconds() == 300.0
    assert (view.summary, view.order_id) == ("155025.00 NGN (NG) for 100.00 USD (US)", None)
    assert (await operators(world, settle_after=float("inf")).view("k")).refutable_at is None
    assert "ben.okri" not in repr(view)
