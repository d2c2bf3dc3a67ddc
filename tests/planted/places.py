"""Where faults are planted, each module named once, and the tests that are asked about it first."""

from __future__ import annotations

from attrs import frozen


@frozen
class Place:
    """A module, and its tests: files or folders, those that are quick first."""

    module: str
    asked: tuple[str, ...]


def _tests(*paths: str) -> tuple[str, ...]:
    return tuple(f"tests/{one}" for one in paths)


def _at(module: str, *asked: str) -> Place:
    """A module of the package, and its tests, both as they are called below the top."""
    return Place(f"transfer_async.{module}", _tests(*asked))


_CALLS = (
    "_pipeline/test_undo.py",
    "_pipeline/test_hooks.py",
    "_pipeline/test_lease.py",
    "_pipeline/test_call.py",
)
_WIRE = (
    "faults/test_failure_table.py",
    "faults/test_another_behind.py",
    "faults/test_stale_connections.py",
    "faults/test_cancellation.py",
    "faults/test_bounded_reading.py",
)
_STATES = (
    "journal/test_state_machine.py",
    "worker/test_handler.py",
    "_pipeline/test_lease.py",
    "_pipeline/test_unrecorded.py",
    "_pipeline/test_doubt.py",
    "contract",
)
_DURABLE = ("journal/test_transaction.py", "journal/test_group_commit.py", "contract")
_PEOPLE = ("contract/test_journals.py", "_pipeline/test_decisions.py", "_pipeline/test_operators.py")
_PROBE = ("_cli/probe/test_level_orders.py",)
_DESK = ("desk/test_defences.py", "desk/test_changes.py", "desk/test_looks.py")

PLACES = {
    "create_order": _at(
        "_pipeline.create_order",
        "_pipeline/test_create_order.py",
        "_pipeline/test_deadline.py",
        *_CALLS,
        "_pipeline/test_unrecorded.py",
        "_pipeline/test_cancellation.py",
    ),
    "call": _at("_pipeline.call", "_pipeline/test_call.py", "_pipeline/test_cancellation.py"),
    "claimed_key": _at(
        "_pipeline.claimed_key", "_pipeline/test_create_order.py", *_CALLS, "_pipeline/test_cancellation.py"
    ),
    "preflight": _at(
        "_pipeline.preflight",
        "_pipeline/test_create_order.py",
        "_pipeline/test_deadline.py",
        "_pipeline/test_pacing.py",
        *_CALLS,
        "_pipeline/test_cancellation.py",
    ),
    "settle": _at(
        "_pipeline.settle",
        "_pipeline/test_create_order.py",
        *_CALLS,
        "_pipeline/test_unrecorded.py",
        "_pipeline/test_cancellation.py",
    ),
    "certain_no": _at(
        "_pipeline.certain_no", "_pipeline/test_create_order.py", *_CALLS, "_pipeline/test_cancellation.py"
    ),
    "time_limits": _at(
        "_pipeline.time_limits", "_pipeline/test_create_order.py", "_pipeline/test_deadline.py", *_WIRE
    ),
    "attempt": _at(
        "_pipeline.attempt", "_pipeline/test_create_order.py", "_pipeline/test_deadline.py", *_WIRE
    ),
    "sending": _at(
        "_pipeline.send",
        "_pipeline/test_create_order.py",
        "_pipeline/test_pacing.py",
        "_http/test_bearer.py",
        *_WIRE,
    ),
    "doubt": _at(
        "_pipeline.doubt",
        "_pipeline/test_doubt.py",
        "_pipeline/test_deadline.py",
        "_pipeline/test_recovery.py",
    ),
    "undoing": _at("_pipeline.undo", "_pipeline/test_undo.py", "_pipeline/test_hooks.py"),
    "recovery": _at("_pipeline.recovery", "_pipeline/test_recovery.py", "_pipeline/test_recovery_runs.py"),
    "unrecorded": _at("_pipeline.unrecorded", "_pipeline/test_unrecorded.py", "_pipeline/test_recovery.py"),
    "leases": _at("_pipeline.lease", "_pipeline/test_lease.py"),
    "cancellation": _at(
        "_pipeline.cancellation",
        "_pipeline/test_call.py",
        "_pipeline/test_cancellation.py",
        "faults/test_cancellation.py",
    ),
    "retry": _at("_http.retry", "_http/test_retry.py"),
    "answers": _at("_http.classify", "_http/test_classify.py", "_models/test_amounts.py", *_WIRE),
    "rate": _at("_http.rate", "_http/test_rate.py", "_pipeline/test_pacing.py"),
    "pacing": _at("_pipeline.pacing", "_pipeline/test_pacing.py"),
    "deadlines": _at("_support.deadlines", "_pipeline/test_deadline.py"),
    "request": _at("_http.fetch", "_http/test_fetch.py"),
    "amounts": _at("_models.amounts", "_models/test_amounts.py"),
    "wire_format": _at("_converters.wire_format", "_converters/test_messages.py"),
    "at_once": _at("_converters.at_once", "_converters/test_order.py"),
    "order": _at("_converters.order", "_converters/test_order.py"),
    "transport": _at("_http.transport", "_http/test_transport.py", *_WIRE),
    "guards": _at("_http.write_guard", "_http/test_write_guard.py", *_WIRE),
    "carrier": _at("_http.unsolicited", *_WIRE),
    "bounded": _at("_http.decoder", "_http/test_decoder.py", "faults/test_bounded_reading.py"),
    "disposition": _at("worker.disposition", "worker/test_disposition.py", "worker/test_handler.py"),
    "heartbeats": _at("worker.heartbeats", "worker/test_worker.py"),
    "pull": _at("integrations.faststream.nats_pull", "worker/test_nats_pull.py"),
    "nats_line": _at(
        "integrations.faststream.nats", "worker/test_nats_delivery.py", "contract/test_lines.py"
    ),
    "redis_line": _at("integrations.faststream.redis", "contract/test_lines.py"),
    "handling": _at("worker.handler", "worker/test_handler.py"),
    "base": _at("journal.protocol", "contract"),
    "states": _at("journal.state_machine", *_STATES),
    "claim": _at("journal.claim", *_STATES),
    "moves": _at("journal.moves", "journal/test_seal.py", "_pipeline/test_create_order.py", *_STATES),
    "fingerprint": _at("journal.fingerprint", "journal/test_fingerprint.py"),
    "operator_moves": _at("journal.operator_moves", *_PEOPLE),
    "proposal": _at("journal.proposal", "journal/test_proposal.py", *_PEOPLE),
    "entries": _at("journal.entries", *_PEOPLE, *_STATES),
    "decisions": _at("_pipeline.decisions", *_PEOPLE),
    "transaction": _at("journal.transaction", *_DURABLE),
    "durable": _at("journal.group_commit", *_DURABLE),
    "memory": _at("journal.memory", "journal/test_memory.py", "contract"),
    "sqlite": _at("journal.sqlite", "journal/test_sqlite.py", "contract", "trouble/test_troubles.py"),
    "sqlite_opening": _at(
        "journal.sqlite_opening", "journal/test_sqlite.py", "contract", "trouble/test_troubles.py"
    ),
    "upgrading": _at("journal.upgrading", "journal/test_upgrading.py"),
    "sqlite_upgrade": _at("journal.sqlite_upgrade", "journal/test_upgrading.py"),
    "postgres_upgrade": _at("journal.postgres_upgrade", "journal/test_upgrading.py"),
    "postgres": _at("journal.postgres", "journal/test_postgres.py", "contract", "trouble"),
    "postgres_sql": _at("journal.postgres_sql", "journal/test_postgres.py", "contract", "trouble"),
    "desk": _at("desk.application", *_DESK),
    "desk_defences": _at("desk.defences", *_DESK),
    "desk_changes": _at("desk.changes", *_DESK),
    "desk_looks": _at("desk.looks", *_DESK),
    "desk_stamp": _at("desk.stamp", *_DESK),
    "desk_pages": _at("desk.pages", "desk/test_hostile.py"),
    "sandbox_page": _at("sandbox.web_page", "sandbox/test_web_page.py"),
    "desk_door": _at("_cli.desk.loopback", "_cli/desk"),
    "rows": _at("journal.rows", "journal/test_seal.py", "journal/test_rows.py", "contract"),
    "hook_run": _at("testing.hook_trials.run_trials", "testing/hook_trials/test_run_trials.py"),
    "hook_cutting": _at("testing.hook_trials.cutting", "testing/hook_trials/test_run_trials.py"),
    "hook_scenarios": _at("testing.hook_trials.scenarios", "testing/hook_trials/test_run_trials.py"),
    "hook_bench": _at("testing.hook_trials.bench", "testing/hook_trials/test_run_trials.py"),
    "assertions": _at("testing.assertions", "testing/test_assertions.py"),
    "order_file": _at("_cli.create.order_file", "_cli/create/test_order_file.py"),
    "create_job": _at("_cli.create.job", "_cli/create/test_create.py"),
    "comparison": _at("_cli.reconcile.comparison", "_cli/reconcile"),
    "reconciliation": _at("_cli.reconcile.reconciliation", "_cli/reconcile"),
    "probe_plan": _at("_cli.probe.order_plan", *_PROBE),
    "probe_orders": _at("_cli.probe.level_orders", *_PROBE),
    "probe_relay": _at("_cli.probe.relay", *_PROBE),
    "probe_spending": _at("_cli.probe.spending", *_PROBE),
    "probe_seen": _at("_cli.probe.seen", "_cli/probe/test_seen.py"),
    "seal": _at("journal.seal", "journal/test_seal.py"),
}

PROMISE = _tests("_pipeline/test_create_order.py", *_WIRE, "contract", "trouble", "simulation")
"""The tests that prove the promise as a whole: asked last."""
