"""Operators on a journal: listing, resolving and refuting doubts, history, pruning, and limits."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.bank import NOON, World, failure, new_order, owed_hooks, refused_order
from tests.support.cases import each
from transfer_async import (
    Clock,
    Decision,
    Doubt,
    InvalidOrder,
    KeyChanged,
    KeyState,
    MemoryJournal,
    Operators,
    OrderInDoubt,
    Outcome,
    RecoveryReport,
    Refused,
    Resolved,
)
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.key_views import summary_of
from transfer_async.journal import model, operator_transitions, transitions
from transfer_async.journal.protocol import KEPT

SAID = {"by": "ada", "reason": "seen on the statement"}


def operators(world: World, **settings: Any) -> Operators:
    options: dict[str, Any] = {"clock": world.time.clock, "observers": [world.events.append], **settings}
    return Operators(world.journal, options.pop("scope", world.scope), **options)


@pytest.fixture
async def desk(world: World) -> Operators:
    """Yield operators on a journal that contains one key in doubt."""
    await world.in_doubt()
    return operators(world)


async def refusal(call: Any) -> str:
    with pytest.raises(ValueError, match=": ") as caught:
        await call
    return str(caught.value)


# --- what is in doubt ---------------------------------------------------------------------------


async def test_a_doubt_has_everything_needed_to_find_its_order(world: World, desk: Operators):
    world.time.pass_(500.0)
    (doubt,) = await desk.in_doubt()

    entry = await world.entry()
    assert isinstance(doubt, Doubt)
    expected = {
        "key": "k",
        "intent_id": entry.intent_id,
        "summary": "155025.00 NGN (NG) for 100.00 USD (US)",
        "claimed_at": NOON,
        "sent_until": NOON,
        "order": new_order(),
        "receipts": {"funds_hold": f"hold-{entry.intent_id}"},
        "held": None,
        "candidates": (),
        "cause": entry.cause,
        "readable": True,
        "proposal": None,
        "moves": entry.version,
    }
    assert {name: getattr(doubt, name) for name in expected} == expected


async def test_the_repr_of_a_doubt_has_no_personal_data(world: World):
    await world.in_doubt(held="H1")
    (doubt,) = await operators(world).in_doubt()

    assert "155025.00 NGN" in repr(doubt)
    assert not any(text in repr(doubt) for text in ("ada.eze", "ben.okri", "example.com", "H1"))


async def test_the_oldest_doubt_comes_first(world: World):
    for key in ("c", "a", "b"):
        await world.in_doubt(key)
        world.time.pass_(10.0)
    doubts = await operators(world).in_doubt()

    assert [doubt.key for doubt in doubts] == ["c", "a", "b"]
    assert [doubt.sent_until - NOON for doubt in doubts] == [timedelta(seconds=n) for n in (0, 10, 20)]


async def test_times_are_correct_on_a_journal_with_its_own_clock(world: World):
    world.journal.journal = MemoryJournal(clock=Clock(now=lambda: world.time.seconds + 5e8))
    await world.in_doubt()
    world.time.pass_(90.0)
    (doubt,) = await operators(world).in_doubt()
    utc = await operators(world).times()

    assert doubt.claimed_at == NOON
    assert utc(await world.journal.now()) == NOON + timedelta(seconds=90)


async def test_another_scopes_doubts_are_not_shown(world: World, desk: Operators):
    assert len(await desk.in_doubt()) == 1
    assert await operators(world, scope="elsewhere").in_doubt() == ()


def test_a_doubt_whose_order_data_is_gone_has_a_summary_too():
    assert summary_of(None) == "an order that is no longer on record"


# --- resolve ------------------------------------------------------------------------------------


async def test_a_resolved_key_has_its_order_and_is_published(world: World, desk: Operators):
    record = await desk.resolve("k", order_id=" tx-seen ", **SAID)

    entry = await world.entry()
    assert (record.state, record.order_id, record.order) == (KeyState.CREATED, "tx-seen", None)
    assert (entry.state, entry.order_id, entry.pending_undos) == (KeyState.CREATED, "tx-seen", ())
    assert world.bank.open
    (event,) = world.events_of(Resolved)
    assert (event.key, event.intent_id) == ("k", entry.intent_id)
    assert (event.outcome, event.order_id) == (Outcome.CREATED, "tx-seen")


async def test_resolving_again_with_the_same_id_succeeds(world: World, desk: Operators):
    """Two operators may have seen the same statement, or one may repeat a call that succeeded."""
    first = await desk.resolve("k", order_id="tx-seen", **SAID)
    again = await desk.resolve("k", order_id="tx-seen", by="bola", reason="seen, too")
    why = await refusal(desk.resolve("k", order_id="tx-other", **SAID))

    assert again == first
    assert why == "key: must be in doubt; it is created (tx-seen)"
    assert (await world.history())[-1] == "resolve: created"
    assert [step.by for step in await desk.history("k")].count("bola") == 0
    assert len(world.events_of(Resolved)) == 1


async def test_a_dead_workers_request_as_seen_becomes_a_doubt_first(world: World):
    """A transition made by the operator's own call is not a change by someone else."""
    await world.abandoned(transitions.Create)
    world.events.clear()
    desk = operators(world)
    view = await desk.view("k")
    await desk.resolve("k", order_id="tx-seen", seen=view.version, **SAID)

    assert view.state is KeyState.SENDING
    assert [type(event) for event in world.events] == [OrderInDoubt, Resolved]
    assert (world.events[0].key, world.events_of(OrderInDoubt)[0].error) == ("k", "Abandoned")
    assert (await world.history())[-2:] == ["expire: in_doubt", "resolve: created"]


async def test_a_live_workers_request_cannot_be_resolved(world: World):
    await world.crash(transitions.Create)
    world.time.pass_(20.5)
    why = await refusal(operators(world).resolve("k", order_id="tx-seen", **SAID))

    assert why == "key: a worker is sending its order; try again in 40 s"
    assert (await world.entry()).state is KeyState.SENDING


@pytest.mark.parametrize("is_seen", [False, True], ids=["unseen", "seen"])
async def test_a_request_answered_meanwhile_keeps_its_order(world: World, is_seen: bool):
    await world.abandoned(transitions.Create)
    entry = await world.entry()
    attempt, seen = entry.attempt or "", {"seen": entry.version} if is_seen else {}
    world.meanwhile(
        transitions.Expire,
        lambda: world.move(transitions.Create(attempt=attempt, order_id="tx-1", reply=b"")),
    )
    with pytest.raises(ValueError, match=r"it is (now )?created \(tx-1\)") as refused:
        await operators(world).resolve("k", order_id="tx-seen", **seen, **SAID)

    assert isinstance(refused.value, KeyChanged) is is_seen


@pytest.mark.parametrize("prefix", ["tx-", "TX-"])
@pytest.mark.parametrize("typed", [str, str.upper], ids=["lower case", "upper case"])
async def test_an_id_of_another_key_is_refused(world: World, prefix: str, typed: Callable[[str], str]):
    order = await world.create(key="other")
    await world.in_doubt()
    order_id = prefix + typed(order.id.removeprefix("tx-"))
    why = await refusal(operators(world).resolve("k", order_id=order_id, **SAID))

    assert why == "order_id: belongs to another key"
    assert (await world.entry()).state is KeyState.IN_DOUBT


@each("order_id", ["", "tx-", "order-1", "tx-a b", "tx-\n", None, 5, b"tx-1"])
async def test_an_invalid_order_id_is_refused(desk: Operators, order_id: Any):
    why = await refusal(desk.resolve("k", order_id=order_id, **SAID))

    assert why == "order_id: must look like 'tx-…'"


async def test_two_identical_concurrent_resolutions_both_succeed(world: World, desk: Operators):
    world.meanwhile(transitions.Resolve, lambda: world.resolve("tx-seen"))
    record = await desk.resolve("k", order_id="tx-seen", **SAID)

    assert (record.state, record.order_id) == (KeyState.CREATED, "tx-seen")
    assert world.events_of(Resolved) == []


@pytest.mark.parametrize(
    ("order_id", "is_seen", "why"),
    [
        ("tx-second", False, "another person or worker has just changed it"),
        ("tx-first", True, "has changed since it was read"),
    ],
)
async def test_a_key_settled_meanwhile_stays_unchanged(
    world: World, desk: Operators, order_id: str, is_seen: bool, why: str
):
    seen: dict[str, Any] = {"seen": (await desk.view("k")).version} if is_seen else {}
    world.meanwhile(transitions.Resolve, lambda: world.resolve("tx-first"))
    with pytest.raises(KeyChanged if is_seen else ValueError) as refused:
        await desk.resolve("k", order_id=order_id, **seen, **SAID)

    assert str(refused.value) == f"key: {why}; it is now created (tx-first)"
    assert (await world.entry()).order_id == "tx-first"
    assert world.events_of(Resolved) == []


# --- refute -------------------------------------------------------------------------------------


async def test_a_refutation_is_recorded_and_published_and_recover_releases_the_hold(
    world: World, desk: Operators
):
    world.time.pass_(300.0)
    record = await desk.refute("k", **SAID)
    owed = owed_hooks(await world.entry())
    last = (await desk.history("k"))[-1]

    assert (record.state, owed) == (KeyState.FREE, ["funds_hold"])
    assert await world.recover() == RecoveryReport(released=1)
    assert not world.bank.open
    assert [(event.outcome, event.order_id) for event in world.events_of(Resolved)] == [
        (Outcome.REFUSED, None)
    ]
    assert (last.by, last.reason, last.move) == ("ada", "seen on the statement", "refute")
    assert last.ending == model.Ending(outcome=Outcome.REFUSED, error="Refuted")


@each(
    ("settle_after", "passed", "left"),
    [(300.0, 0.0, "300"), (300.0, 0.5, "300"), (300.0, 299.5, "1"), (float("inf"), 0.0, "inf")],
)
async def test_a_refutation_that_is_too_early_says_how_long_to_wait(
    world: World, settle_after: float, passed: float, left: str
):
    key = f"{settle_after}, {passed}"
    await world.in_doubt(key)
    world.time.pass_(passed)
    why = await refusal(operators(world, settle_after=settle_after).refute(key, **SAID))

    assert why == f"key: it is too early, because a request may still take effect; try again in {left} s"
    assert (await world.entry(key)).state is KeyState.IN_DOUBT


async def test_a_newer_doubt_of_the_same_key_is_not_refuted_instead(world: World, desk: Operators):
    world.time.pass_(300.0)

    async def go_on() -> None:
        await world.refute()
        await world.in_doubt()

    world.meanwhile(transitions.Refute, go_on)
    why = await refusal(desk.refute("k", **SAID))

    assert why == "key: another person or worker has just changed it; it is now in doubt"
    assert (await world.entry()).state is KeyState.IN_DOUBT


# --- what both refuse ---------------------------------------------------------------------------


def endings(desk: Operators, **arguments: Any) -> list[Any]:
    """Return two coroutines that are not started yet: one for each way to end a doubt."""
    return [desk.resolve("k", order_id="tx-1", **arguments), desk.refute("k", **arguments)]


async def test_a_key_that_is_unknown_free_or_claimed_is_not_in_doubt(world: World):
    async def whys() -> set[str]:
        return {await refusal(ending) for ending in endings(operators(world), **SAID)}

    unknown = await whys()
    await world.fails(Refused, refused_order())
    free = await whys()
    await world.crash(transitions.MarkSending)

    assert unknown == {"key: has no record in this scope"}
    assert free == {"key: must be in doubt; it is free"}
    assert await whys() == {"key: must be in doubt; it is claimed"}


@each("name", ["by", "reason"])
@each("text", ["", "  ", "two\nlines", "nul\x00", None, 5])
async def test_by_and_reason_are_required(world: World, desk: Operators, name: str, text: Any):
    world.time.pass_(300.0)

    arguments: dict[str, Any] = SAID | {name: text}
    notes = [desk.look("k", **arguments), desk.note("k", **arguments)]
    if name == "by":
        notes.append(desk.watch("k", by=text))
    for call in (*endings(desk, **arguments), *notes):
        why = await refusal(call)
        assert why == f"{name}: must be a non-empty line of text, which is kept in the history"
    assert (await world.entry()).state is KeyState.IN_DOUBT


# --- history and prune --------------------------------------------------------------------------


async def test_an_unknown_key_has_no_history(world: World):
    assert await operators(world).history("never") == ()
    with pytest.raises(InvalidOrder, match="key: "):
        await operators(world).history("")


async def test_prune_removes_settled_keys_and_keeps_pending_ones(world: World):
    await world.create(key="created")
    world.bank.release_error = RuntimeError()
    await world.fails(Refused, refused_order(), key="owing")
    await world.in_doubt("doubt")
    world.time.pass_(KEPT + 60.0)
    forgotten = await operators(world).prune(before=NOON + timedelta(seconds=30))

    assert forgotten == 1
    assert [await world.known(key) is None for key in ("created", "owing", "doubt")] == [True, False, False]


@each("time", [datetime(2026, 1, 1), NOON.date(), "2026-01-01", 0])  # noqa: DTZ001
async def test_every_time_limit_must_be_aware(world: World, time: Any):
    desk = operators(world)
    for name, call in (("before", desk.prune), ("since", desk.audit), ("until", desk.audit)):
        assert await refusal(call(**{name: time})) == f"{name}: must be an aware datetime"
    assert await refusal(desk.prune(before=None)) == "before: must be an aware datetime"  # type: ignore[arg-type] # of a wrong type


async def test_audit_returns_the_lines_from_since_until_before_until(world: World, desk: Operators):
    for seconds in range(3):
        await desk.note("k", by="ada", reason=f"note {seconds}")
        world.time.pass_(1.0)
    now = world.time.clock.utc()
    lines, _ = await desk.audit(since=now - timedelta(seconds=2), until=now - timedelta(seconds=1))

    assert [step.reason for _, step, _ in lines] == ["note 1"]


async def test_the_audit_is_read_in_pages_and_by_person(desk: Operators):
    for by in ("ada", "ben", "ada"):
        await desk.note("k", by=by, reason=f"a note of {by}")
    lines, after = await desk.audit(limit=2)
    earlier, end = await desk.audit(limit=2, after=after)
    found, _ = await desk.audit(by="ben")

    pages = [[step.by for _, step, _ in page] for page in (lines, earlier, found)]
    assert pages == [["ada", "ben"], ["ada"], ["ben"]]
    assert end == ""


async def test_prune_refuses_a_time_in_the_future(world: World):
    async with world.client() as client:
        for desk in (client, operators(world)):
            why = await refusal(desk.prune(before=NOON + timedelta(days=1)))
            assert why.startswith("before: must not be in the future. ")


# --- the journal's failures ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "call", "outcome"),
    [
        ("in_doubt", lambda desk: desk.in_doubt(), Outcome.NOT_SENT),
        ("read", lambda desk: desk.resolve("k", order_id="tx-1", **SAID), Outcome.NOT_SENT),
        ("move", lambda desk: desk.resolve("k", order_id="tx-1", **SAID), Outcome.UNKNOWN),
        ("move", lambda desk: desk.refute("k", **SAID), Outcome.UNKNOWN),
        ("now", lambda desk: desk.in_doubt(), Outcome.NOT_SENT),
        ("history", lambda desk: desk.history("k"), Outcome.NOT_SENT),
        ("prune", lambda desk: desk.prune(before=datetime.now(UTC)), Outcome.NOT_SENT),
    ],
)
async def test_a_failing_store_raises_journal_failed(
    world: World, desk: Operators, monkeypatch: pytest.MonkeyPatch, method: str, call: Any, outcome: Outcome
):
    async def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(world.journal, method, broken)
    failed = await failure(call(desk), JournalFailed)

    assert failed.outcome is outcome
    assert isinstance(failed.__cause__, OSError)
    assert "disk full" not in str(failed)


async def test_a_journal_failed_error_of_the_journal_is_passed_on(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    own = JournalFailed("a newer version wrote this")

    async def broken(*_: object) -> None:
        raise own

    monkeypatch.setattr(world.journal, "in_doubt", broken)
    failed = await failure(operators(world).in_doubt(), JournalFailed)

    assert failed is own


async def test_a_proposal_for_a_key_that_changes_meanwhile_is_refused(world: World, desk: Operators):
    seen = (await desk.view("k")).version
    attempt = (await world.entry()).attempt or ""
    doubt = transitions.GoInDoubt(attempt=attempt, candidate="tx-other")
    world.meanwhile(operator_transitions.Propose, lambda: world.move(doubt))
    with pytest.raises(KeyChanged):
        await desk.propose("k", Decision.RESOLVE, order_id="tx-1", seen=seen, **SAID)


async def test_a_proposal_to_refute_too_early_says_how_long_to_wait(desk: Operators):
    why = await refusal(desk.propose("k", Decision.REFUTE, **SAID))

    assert why.endswith("because a request may still take effect; try again in 300 s")


async def test_fields_of_a_view_can_be_read_by_their_former_names(desk: Operators):
    view: Any = await desk.view("k")
    changed: Any = KeyChanged(view.entry)

    assert (view.owed, view.untold) == (view.pending_undos, view.pending_notifications)
    assert view.moves == changed.moves == view.version > 0
