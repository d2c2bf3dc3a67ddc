"""The metrics of orders, attempts, doubts, undos, the journal and the retry budget."""

import gc

import pytest

from tests.integrations.tracing import Traced, ended, events_of
from tests.support.bank import Time, World, new_order, refused_order
from tests.support.journalling import intent
from transfer_async import (
    HoldFailed,
    JournalFailed,
    KeyState,
    MemoryJournal,
    OutcomeUnknown,
    Rate,
    Refused,
    RetryBudget,
    RetryPolicy,
    SQLiteJournal,
    TransferClient,
)
from transfer_async import journal as journals
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async.integrations.opentelemetry import Telemetry
from transfer_async.integrations.opentelemetry.observer import SYSTEMS, Oldest
from transfer_async.journal import Entry, PendingUndo, RequestNotification, transitions
from transfer_async.journal.protocol import Journal
from transfer_async.sandbox import CloseAfterProcessing, Status
from transfer_async.worker.handler import Handler

# --- orders and attempts ------------------------------------------------------------------------

AGES = ("doubt", "undo", "notification")


async def test_orders_are_counted_by_their_outcome(at_work: World, traced: Traced):
    faults = at_work.sandbox.faults
    async with at_work.client(observers=[traced.telemetry]) as client:
        await client.create_order(new_order(), key="created")
        with pytest.raises(Refused):
            await client.create_order(refused_order(), key="refused")
        faults.add(CloseAfterProcessing())
        with pytest.raises(OutcomeUnknown):
            await client.create_order(new_order(), key="unknown")
        at_work.bank.place_error = HoldFailed("too little")
        with pytest.raises(HoldFailed):
            await client.create_order(new_order(), key="not sent")

    assert sorted(traced.points("transfer_async.orders"), key=str) == [
        (1, {"transfer_async.outcome": "created"}),
        (1, {"transfer_async.outcome": "not_sent", "error.type": "HoldFailed"}),
        (1, {"transfer_async.outcome": "refused", "error.type": "Refused"}),
        (1, {"transfer_async.outcome": "unknown", "error.type": "OutcomeUnknown"}),
    ]


async def test_an_orders_duration_ends_with_its_outcome(at_work: World, traced: Traced):
    at_work.bank.on_place = at_work.bank.on_release = at_work.passing(2.0)
    await ended(at_work, traced, Refused, order=refused_order())

    (point,) = traced.points_of("transfer_async.order.duration")
    assert point.sum == pytest.approx(2.0)  # undos after the end of the order do not count
    assert {30.0, 120.0} <= set(point.explicit_bounds)


async def test_rate_limit_waits_are_measured_and_are_events_of_the_order(at_work: World, traced: Traced):
    async with at_work.client(rate=Rate(0.1), observers=[traced.telemetry]) as client:
        for key in "ab":
            await client.create_order(new_order(), key=key)

        (point,) = traced.points_of("transfer_async.rate.wait")
    assert (point.count, point.sum) == (1, 10.0)
    assert ("rate_limit_waited", {"transfer_async.rate.waited": 10.0}) in events_of(traced.orders[1])


async def test_requests_are_measured_by_the_semantic_conventions(at_work: World):
    traced = Traced(base_url=at_work.sandbox.base_url)
    at_work.sandbox.faults.add(Status(429))
    await ended(at_work, traced)

    port = int(at_work.sandbox.base_url.rpartition(":")[2])
    common = {
        "http.request.method": "POST",
        "url.template": "/api/api/v1/order/create",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    failed = {"http.response.status_code": 429, "error.type": "RateLimited"}
    points = traced.points("http.client.request.duration")
    assert points == [(1, {**common, **failed}), (1, {**common, "http.response.status_code": 200})]
    took = [point.sum for point in traced.points_of("http.client.request.duration")]
    # The second value uses the client's clock, which stands still.
    assert took == [pytest.approx(0.0, abs=5.0), 0.0]
    assert took[0] > 0
    bounds = traced.points_of("http.client.request.duration")[0].explicit_bounds
    assert (bounds[0], bounds[-1], len(bounds)) == (0.005, 10.0, 14)
    traced.shutdown()


async def test_every_metric_has_the_service_address_if_it_is_known(at_work: World):
    traced = Traced(base_url=at_work.sandbox.base_url)
    async with at_work.client(observers=[traced.telemetry]) as client:
        traced.telemetry.watch(client)
        await doubtful(client, at_work, "k")
        traced.telemetry.report(await client.recover())

        for name in ("orders", "order.duration", "attempts", "doubts.begun", "orders.in_doubt"):
            assert traced.total(f"transfer_async.{name}", server__address="127.0.0.1") == 1, name
        assert traced.total("transfer_async.retry_budget.left", server__address="127.0.0.1") == 42
    traced.shutdown()


async def test_metrics_of_two_services_are_separate(traced: Traced, caplog):
    for number in (1, 2):
        address = f"https://service-{number}.example"
        telemetry = Telemetry(base_url=address, meter_provider=traced.meters, tracer_provider=traced.tracers)
        telemetry.report(RecoveryReport(in_doubt=number))

    assert traced.total("transfer_async.orders.in_doubt", server__address="service-1.example") == 1
    assert traced.total("transfer_async.orders.in_doubt", server__address="service-2.example") == 2
    assert caplog.messages == []


# --- undos and duplicates -----------------------------------------------------------------------


async def test_a_failed_undo_without_its_hook_has_a_short_error_type(at_work: World, traced: Traced):
    await at_work.crash(transitions.MarkSending, hooks=[at_work.bank.step("ledger"), at_work.bank.hold])
    at_work.time.pass_(1000.0)
    async with at_work.client(observers=[traced.telemetry]) as client:
        await client.recover()

    owed = {"transfer_async.hook.name": "ledger", "error.type": "_OTHER"}
    assert traced.points("transfer_async.undos.failed") == [(1, owed)]


# --- in doubt -----------------------------------------------------------------------------------


async def doubtful(client: TransferClient, world: World, key: str) -> None:
    world.sandbox.faults.add(CloseAfterProcessing())
    with pytest.raises(OutcomeUnknown):
        await client.create_order(new_order(), key=key)


async def test_recover_measures_the_number_of_doubts_and_the_ages_of_pending_keys(
    at_work: World, traced: Traced
):
    journal = traced.telemetry.journal(at_work.journal)
    async with at_work.client(journal=journal, observers=[traced.telemetry], settle_after=0.0) as client:
        assert traced.points("transfer_async.doubt.oldest_age") == []
        await client.recover()
        nothing = [traced.points(f"transfer_async.{name}.oldest_age") for name in AGES]
        await at_work.in_doubt("doubt")
        at_work.time.pass_(50.0)
        await at_work.in_doubt("younger")
        await at_work.in_doubt("owing")
        await at_work.move(
            RequestNotification(intent_id=(await at_work.entry("owing")).intent_id), key="owing"
        )
        at_work.time.pass_(30.0)
        await client.refute("owing", by="ada", reason="sure")
        at_work.time.pass_(20.0)
        await client.recover()

    assert nothing == [[(0.0, {})]] * 3
    assert traced.points("transfer_async.orders.in_doubt") == [(2, {})]
    assert [traced.points(f"transfer_async.{name}.oldest_age") for name in AGES] == [
        [(100.0, {})],
        [(20.0, {})],
        [(20.0, {})],
    ]


async def test_the_age_of_an_undo_without_a_time_counts_from_its_claim():
    oldest = Oldest()
    owed = PendingUndo(intent=intent(), hook="hold", receipt=None)
    entry = Entry(
        state=KeyState.FREE, fingerprint="", intent_id="", intent=None, claimed_at=5.0, pending_undos=(owed,)
    )
    oldest.note(entry)

    assert oldest.ages(15.0) == {"doubt": 0.0, "undo": 10.0, "notification": 0.0}


# --- the journal --------------------------------------------------------------------------------


async def test_each_transition_of_a_journal_is_measured(at_work: World, traced: Traced, tmp_path):
    journal = traced.telemetry.journal(SQLiteJournal(tmp_path / "orders.db"))
    async with journal, at_work.client(journal=journal) as client:
        await client.create_order(new_order(), key="k")

    attributes = {"db.system.name": "sqlite"}
    assert traced.points("db.client.operation.duration") == [
        (1, attributes | {"db.operation.name": "claim"}),
        (1, attributes | {"db.operation.name": "mark"}),
        (1, attributes | {"db.operation.name": "create"}),
    ]
    assert all(point.sum > 0 for point in traced.points_of("db.client.operation.duration"))
    assert traced.points_of("db.client.operation.duration")[0].explicit_bounds[0] == 0.0001


async def test_a_doubt_and_a_two_word_transition_keep_their_names(at_work: World, traced: Traced):
    async with traced.telemetry.journal(at_work.journal) as journal:
        await journal.move(at_work.scope, "k", transitions.GoInDoubt(attempt="a"))
        await journal.move(at_work.scope, "k", transitions.TakeOver(intent_id="i", epoch=1, lease=1.0))

    points = traced.points("db.client.operation.duration")
    assert [attributes["db.operation.name"] for _, attributes in points] == ["doubt", "take_over"]


async def test_a_failed_transition_is_measured_with_its_error(at_work: World, traced: Traced):
    at_work.journal.fail_on = transitions.MarkSending
    journal = traced.telemetry.journal(at_work.journal)
    error = await ended(at_work, traced, JournalFailed, journal=journal)

    failed = {"db.operation.name": "mark", "error.type": "OSError"}
    assert isinstance(error.__cause__, OSError)
    assert traced.points("db.client.operation.duration")[-1] == (1, {"db.system.name": "other", **failed})


async def test_a_measured_journal_behaves_like_the_journal_itself(at_work: World, traced: Traced, tmp_path):
    inner = SQLiteJournal(tmp_path / "orders.db")
    journal: Journal = traced.telemetry.journal(inner)
    async with journal as entered, at_work.client(journal=journal) as client:
        order = await client.create_order(new_order(), key="k")
        known = await client.known("k")
        history = await client.history("k")
        Handler(client)  # a Handler accepts only a durable journal

    assert entered is journal
    assert journal.durable
    assert (known.state, known.order_id) == (KeyState.CREATED, order.id)
    assert [step.move for step in history] == ["claim", "mark", "create"]
    assert not traced.telemetry.journal(MemoryJournal()).durable


def test_database_system_names_follow_the_conventions(traced: Traced):
    class Own(SQLiteJournal):
        """A bank's own journal that wraps one of the package."""

    assert SYSTEMS["PostgresJournal"] == "postgresql"
    assert {name for name in journals.__all__ if name.endswith("Journal")} - {"Journal"} <= set(SYSTEMS)
    assert traced.telemetry.journal(Own("orders.db"))._system == "sqlite"


async def test_a_failed_measurement_is_not_reported_as_a_journal_failure(
    at_work: World, traced: Traced, monkeypatch, caplog
):
    def fail(*_, **__):
        raise RuntimeError("s3cr3t")

    monkeypatch.setattr(traced.telemetry._instruments, "operation", fail)
    monkeypatch.setattr(Oldest, "ages", fail)
    journal = traced.telemetry.journal(at_work.journal)
    async with at_work.client(journal=journal) as client:
        await client.create_order(new_order(), key="k")
        report = await client.recover()

    assert report.in_doubt == 0
    message = "the duration of a journal operation could not be recorded (RuntimeError)"
    assert set(caplog.messages) == {message}


# --- the retry budget ---------------------------------------------------------------------------


async def test_the_remaining_retry_budget_is_measured(at_work: World, traced: Traced):
    policy = RetryPolicy(budget=RetryBudget(capacity=20, throttle_cost=5, refund=2))
    at_work.sandbox.faults.add(Status(429))
    async with at_work.client(retry=policy, observers=[traced.telemetry]) as client:
        traced.telemetry.watch(client)
        before = traced.points("transfer_async.retry_budget.left")
        await client.create_order(new_order(), key="k")

        assert before == [(20, {})]
        assert traced.points("transfer_async.retry_budget.left") == [(17, {})]


async def test_the_smallest_retry_budget_of_several_clients_is_reported(at_work: World, traced: Traced):
    small = RetryPolicy(budget=RetryBudget(capacity=3))
    async with at_work.client(retry=small) as one, at_work.client() as other:
        traced.telemetry.watch(other)
        traced.telemetry.watch(one)

        assert traced.points("transfer_async.retry_budget.left") == [(3, {})]


async def test_watching_a_client_does_not_keep_it_alive(at_work: World, traced: Traced):
    async with at_work.client() as client:
        traced.telemetry.watch(client)
    del client
    gc.collect()

    assert traced.points("transfer_async.retry_budget.left") == []


# --- workers ------------------------------------------------------------------------------------


async def test_commands_of_a_worker_are_counted_by_disposition_and_redelivery(traced: Traced):
    for disposition, deliveries in [("ack", 1), ("ack", 2), ("dead_letter", 7)]:
        traced.telemetry.command(disposition=disposition, deliveries=deliveries, seconds=0.25)

    by_disposition = [
        (2, {"transfer_async.disposition": "ack"}),
        (1, {"transfer_async.disposition": "dead_letter"}),
    ]
    assert traced.points("transfer_async.commands") == by_disposition
    assert traced.points("transfer_async.command.duration") == by_disposition
    assert [point.sum for point in traced.points_of("transfer_async.command.duration")] == [0.5, 0.25]
    assert traced.points("transfer_async.commands.redelivered") == [(2, {})]


# --- all of them --------------------------------------------------------------------------------


async def test_units_follow_the_conventions(at_work: World, traced: Traced):
    journal = traced.telemetry.journal(MemoryJournal(clock=Time().clock))
    async with at_work.client(journal=journal, observers=[traced.telemetry]) as client:
        traced.telemetry.watch(client)
        await client.create_order(new_order(), key="k")
        await client.recover()

        assert traced.units() == {
            "transfer_async.orders": "{order}",
            "transfer_async.orders.in_doubt": "{order}",
            **{f"transfer_async.{name}.oldest_age": "s" for name in AGES},
            "transfer_async.order.duration": "s",
            "transfer_async.attempts": "{attempt}",
            "transfer_async.retry_budget.left": "{token}",
            "http.client.request.duration": "s",
            "db.client.operation.duration": "s",
        }
