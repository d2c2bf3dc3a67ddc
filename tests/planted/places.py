"""Where faults are planted, each module named once, and the tests that are asked about it first."""

from __future__ import annotations

from attrs import frozen


@frozen
class Place:
    """A module, and its tests: files or folders, those that are quick first."""

    module: str
    asked: tuple[str, ...]


_CALLS = (
    "tests/_pipeline/test_undo.py",
    "tests/_pipeline/test_hooks.py",
    "tests/_pipeline/test_lease.py",
    "tests/_pipeline/test_call.py",
)
_WIRE = (
    "tests/faults/test_failure_table.py",
    "tests/faults/test_another_behind.py",
    "tests/faults/test_stale_connections.py",
    "tests/faults/test_cancellation.py",
    "tests/faults/test_bounded_reading.py",
)
_STATES = (
    "tests/journal/test_state_machine.py",
    "tests/worker/test_handler.py",
    "tests/_pipeline/test_lease.py",
    "tests/_pipeline/test_unrecorded.py",
    "tests/_pipeline/test_doubt.py",
    "tests/contract",
)
_DURABLE = ("tests/journal/test_transaction.py", "tests/journal/test_group_commit.py", "tests/contract")

_PEOPLE = (
    "tests/contract/test_journals.py",
    "tests/_pipeline/test_decisions.py",
    "tests/_pipeline/test_operators.py",
)
_PROBE = ("tests/_cli/probe/test_level_orders.py",)
_DESK = ("tests/desk/test_defences.py", "tests/desk/test_changes.py", "tests/desk/test_looks.py")

PLACES = {
    "create_order": Place(
        "transfer_async._pipeline.create_order",
        (
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_deadline.py",
            *_CALLS,
            "tests/_pipeline/test_unrecorded.py",
            "tests/_pipeline/test_cancellation.py",
        ),
    ),
    "claimed_key": Place(
        "transfer_async._pipeline.claimed_key",
        ("tests/_pipeline/test_create_order.py", *_CALLS, "tests/_pipeline/test_cancellation.py"),
    ),
    "preflight": Place(
        "transfer_async._pipeline.preflight",
        (
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_deadline.py",
            "tests/_pipeline/test_pacing.py",
            *_CALLS,
            "tests/_pipeline/test_cancellation.py",
        ),
    ),
    "settle": Place(
        "transfer_async._pipeline.settle",
        (
            "tests/_pipeline/test_create_order.py",
            *_CALLS,
            "tests/_pipeline/test_unrecorded.py",
            "tests/_pipeline/test_cancellation.py",
        ),
    ),
    "certain_no": Place(
        "transfer_async._pipeline.certain_no",
        (
            "tests/_pipeline/test_create_order.py",
            *_CALLS,
            "tests/_pipeline/test_cancellation.py",
        ),
    ),
    "time_limits": Place(
        "transfer_async._pipeline.time_limits",
        ("tests/_pipeline/test_create_order.py", "tests/_pipeline/test_deadline.py", *_WIRE),
    ),
    "attempt": Place(
        "transfer_async._pipeline.attempt",
        ("tests/_pipeline/test_create_order.py", "tests/_pipeline/test_deadline.py", *_WIRE),
    ),
    "sending": Place(
        "transfer_async._pipeline.send",
        (
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_pacing.py",
            "tests/_http/test_bearer.py",
            *_WIRE,
        ),
    ),
    "doubt": Place(
        "transfer_async._pipeline.doubt",
        (
            "tests/_pipeline/test_doubt.py",
            "tests/_pipeline/test_deadline.py",
            "tests/_pipeline/test_recovery.py",
        ),
    ),
    "undoing": Place(
        "transfer_async._pipeline.undo", ("tests/_pipeline/test_undo.py", "tests/_pipeline/test_hooks.py")
    ),
    "recovery": Place(
        "transfer_async._pipeline.recovery",
        ("tests/_pipeline/test_recovery.py", "tests/_pipeline/test_recovery_runs.py"),
    ),
    "unrecorded": Place(
        "transfer_async._pipeline.unrecorded",
        ("tests/_pipeline/test_unrecorded.py", "tests/_pipeline/test_recovery.py"),
    ),
    "leases": Place("transfer_async._pipeline.lease", ("tests/_pipeline/test_lease.py",)),
    "cancellation": Place(
        "transfer_async._pipeline.cancellation",
        (
            "tests/_pipeline/test_call.py",
            "tests/_pipeline/test_cancellation.py",
            "tests/faults/test_cancellation.py",
        ),
    ),
    "retry": Place("transfer_async._http.retry", ("tests/_http/test_retry.py",)),
    "answers": Place(
        "transfer_async._http.classify",
        ("tests/_http/test_classify.py", "tests/_models/test_amounts.py", *_WIRE),
    ),
    "rate": Place(
        "transfer_async._http.rate", ("tests/_http/test_rate.py", "tests/_pipeline/test_pacing.py")
    ),
    "pacing": Place("transfer_async._pipeline.pacing", ("tests/_pipeline/test_pacing.py",)),
    "deadlines": Place("transfer_async._support.deadlines", ("tests/_pipeline/test_deadline.py",)),
    "request": Place("transfer_async._http.fetch", ("tests/_http/test_fetch.py",)),
    "amounts": Place("transfer_async._models.amounts", ("tests/_models/test_amounts.py",)),
    "wire_format": Place("transfer_async._converters.wire_format", ("tests/_converters/test_messages.py",)),
    "at_once": Place("transfer_async._converters.at_once", ("tests/_converters/test_order.py",)),
    "order": Place("transfer_async._converters.order", ("tests/_converters/test_order.py",)),
    "transport": Place("transfer_async._http.transport", ("tests/_http/test_transport.py", *_WIRE)),
    "guards": Place("transfer_async._http.write_guard", ("tests/_http/test_write_guard.py", *_WIRE)),
    "carrier": Place("transfer_async._http.unsolicited", _WIRE),
    "bounded": Place(
        "transfer_async._http.decoder",
        ("tests/_http/test_decoder.py", "tests/faults/test_bounded_reading.py"),
    ),
    "disposition": Place(
        "transfer_async.worker.disposition",
        ("tests/worker/test_disposition.py", "tests/worker/test_handler.py"),
    ),
    "heartbeats": Place("transfer_async.worker.heartbeats", ("tests/worker/test_worker.py",)),
    "pull": Place("transfer_async.integrations.faststream.nats_pull", ("tests/worker/test_nats_pull.py",)),
    "nats_line": Place("transfer_async.integrations.faststream.nats", ("tests/contract/test_lines.py",)),
    "redis_line": Place("transfer_async.integrations.faststream.redis", ("tests/contract/test_lines.py",)),
    "handling": Place("transfer_async.worker.handler", ("tests/worker/test_handler.py",)),
    "base": Place("transfer_async.journal.protocol", ("tests/contract",)),
    "states": Place("transfer_async.journal.state_machine", _STATES),
    "claim": Place("transfer_async.journal.claim", _STATES),
    "moves": Place("transfer_async.journal.moves", ("tests/journal/test_seal.py", *_STATES)),
    "operator_moves": Place("transfer_async.journal.operator_moves", _PEOPLE),
    "proposal": Place("transfer_async.journal.proposal", _PEOPLE),
    "entries": Place("transfer_async.journal.entries", (*_PEOPLE, *_STATES)),
    "decisions": Place("transfer_async._pipeline.decisions", _PEOPLE),
    "transaction": Place("transfer_async.journal.transaction", _DURABLE),
    "durable": Place("transfer_async.journal.group_commit", _DURABLE),
    "memory": Place("transfer_async.journal.memory", ("tests/journal/test_memory.py", "tests/contract")),
    "sqlite": Place(
        "transfer_async.journal.sqlite",
        ("tests/journal/test_sqlite.py", "tests/contract", "tests/trouble/test_troubles.py"),
    ),
    "sqlite_opening": Place(
        "transfer_async.journal.sqlite_opening",
        ("tests/journal/test_sqlite.py", "tests/contract", "tests/trouble/test_troubles.py"),
    ),
    "upgrading": Place("transfer_async.journal.upgrading", ("tests/journal/test_upgrading.py",)),
    "sqlite_upgrade": Place("transfer_async.journal.sqlite_upgrade", ("tests/journal/test_upgrading.py",)),
    "postgres_upgrade": Place(
        "transfer_async.journal.postgres_upgrade", ("tests/journal/test_upgrading.py",)
    ),
    "postgres": Place(
        "transfer_async.journal.postgres",
        ("tests/journal/test_postgres.py", "tests/contract", "tests/trouble"),
    ),
    "postgres_sql": Place(
        "transfer_async.journal.postgres_sql",
        ("tests/journal/test_postgres.py", "tests/contract", "tests/trouble"),
    ),
    "desk": Place("transfer_async.desk.application", _DESK),
    "desk_defences": Place("transfer_async.desk.defences", _DESK),
    "desk_changes": Place("transfer_async.desk.changes", _DESK),
    "desk_looks": Place("transfer_async.desk.looks", _DESK),
    "desk_stamp": Place("transfer_async.desk.stamp", _DESK),
    "desk_pages": Place("transfer_async.desk.pages", ("tests/desk/test_hostile.py",)),
    "sandbox_page": Place("transfer_async.sandbox.web_page", ("tests/sandbox/test_web_page.py",)),
    "desk_door": Place("transfer_async._cli.desk.loopback", ("tests/_cli/desk",)),
    "rows": Place(
        "transfer_async.journal.rows",
        ("tests/journal/test_seal.py", "tests/journal/test_rows.py", "tests/contract"),
    ),
    "hook_run": Place(
        "transfer_async.testing.hook_trials.run_trials", ("tests/testing/hook_trials/test_run_trials.py",)
    ),
    "hook_cutting": Place(
        "transfer_async.testing.hook_trials.cutting", ("tests/testing/hook_trials/test_run_trials.py",)
    ),
    "hook_scenarios": Place(
        "transfer_async.testing.hook_trials.scenarios", ("tests/testing/hook_trials/test_run_trials.py",)
    ),
    "hook_bench": Place(
        "transfer_async.testing.hook_trials.bench", ("tests/testing/hook_trials/test_run_trials.py",)
    ),
    "assertions": Place("transfer_async.testing.assertions", ("tests/testing/test_assertions.py",)),
    "comparison": Place("transfer_async._cli.reconcile.comparison", ("tests/_cli/reconcile",)),
    "probe_plan": Place("transfer_async._cli.probe.order_plan", _PROBE),
    "probe_orders": Place("transfer_async._cli.probe.level_orders", _PROBE),
    "probe_relay": Place("transfer_async._cli.probe.relay", _PROBE),
    "probe_spending": Place("transfer_async._cli.probe.spending", _PROBE),
    "probe_seen": Place("transfer_async._cli.probe.seen", ("tests/_cli/probe/test_seen.py",)),
    "seal": Place("transfer_async.journal.seal", ("tests/journal/test_seal.py",)),
}

PROMISE = (
    "tests/_pipeline/test_create_order.py",
    *_WIRE,
    "tests/contract",
    "tests/trouble",
    "tests/simulation",
)
"""The tests that prove the promise as a whole: asked last."""
