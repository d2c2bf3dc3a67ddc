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
_DURABLE = (
    "journal/test_transaction.py",
    "journal/test_group_commit.py",
    "journal/test_postgres.py",
    "contract",
)
_PEOPLE = ("contract/test_journals.py", "_pipeline/test_decisions.py", "_pipeline/test_operators.py")
_PROBE = ("_cli/probe/test_level_orders.py",)
_DESK = ("desk/test_defences.py", "desk/test_actions.py", "desk/test_views.py")

PLACES = {
    "create_order": _at(
        "_pipeline.create_order",
        "_pipeline/test_create_order.py",
        "_pipeline/test_deadline.py",
        *_CALLS,
        "_pipeline/test_unrecorded.py",
        "_pipeline/test_cancellation.py",
    ),
    "batch": _at("_pipeline.batch", "_pipeline/test_call.py", "_pipeline/test_batch.py"),
    "call": _at("_pipeline.call", "_pipeline/test_call.py", "_pipeline/test_cancellation.py"),
    "causes": _at("_models.errors", "test_errors_of_banks.py", "test_secrets.py"),
    "callables": _at("_support.util", "test_errors_of_banks.py"),
    "seals": _at("journal.encryption", "test_errors_of_banks.py", "journal/test_seal.py"),
    "claimed_key": _at(
        "_pipeline.create_order", "_pipeline/test_create_order.py", *_CALLS, "_pipeline/test_cancellation.py"
    ),
    "preflight": _at(
        "_pipeline.create_order",
        "_pipeline/test_create_order.py",
        "_pipeline/test_deadline.py",
        "_pipeline/test_pacing.py",
        *_CALLS,
        "_pipeline/test_cancellation.py",
    ),
    "settle": _at(
        "_pipeline.outcomes",
        "_pipeline/test_create_order.py",
        *_CALLS,
        "_pipeline/test_unrecorded.py",
        "_pipeline/test_cancellation.py",
        "worker/test_handler.py",
    ),
    "certain_no": _at(
        "_pipeline.outcomes", "_pipeline/test_create_order.py", *_CALLS, "_pipeline/test_cancellation.py"
    ),
    "time_limits": _at(
        "_pipeline.attempt", "_pipeline/test_create_order.py", "_pipeline/test_deadline.py", *_WIRE
    ),
    "attempt": _at(
        "_pipeline.attempt", "_pipeline/test_create_order.py", "_pipeline/test_deadline.py", *_WIRE
    ),
    "sending": _at(
        "_pipeline.attempt",
        "_pipeline/test_create_order.py",
        "_pipeline/test_pacing.py",
        "_http/test_bearer.py",
        *_WIRE,
    ),
    "doubt": _at(
        "_pipeline.outcomes",
        "_pipeline/test_doubt.py",
        "_pipeline/test_deadline.py",
        "_pipeline/test_recovery.py",
    ),
    "undoing": _at("_pipeline.outcomes", "_pipeline/test_undo.py", "_pipeline/test_hooks.py"),
    "recovery": _at("_pipeline.recovery", "_pipeline/test_recovery.py", "_pipeline/test_recovery_runs.py"),
    "unrecorded": _at("_pipeline.outcomes", "_pipeline/test_unrecorded.py", "_pipeline/test_recovery.py"),
    "leases": _at("_pipeline.create_order", "_pipeline/test_lease.py"),
    "cancellation": _at(
        "_pipeline.call",
        "_pipeline/test_call.py",
        "_pipeline/test_cancellation.py",
        "faults/test_cancellation.py",
    ),
    "requests": _at("_models.requests", "test_client.py", "_converters/test_messages.py"),
    "urls": _at("_http.urls", "_http/test_urls.py"),
    "retry": _at("_http.retry", "_http/test_retry.py"),
    "answers": _at("_http.classify", "_http/test_classify.py", "_models/test_amounts.py", *_WIRE),
    "rate": _at("_http.retry", "_http/test_rate.py", "_pipeline/test_pacing.py"),
    "pacing": _at("_pipeline.attempt", "_pipeline/test_pacing.py"),
    "deadlines": _at("_support.clock", "_pipeline/test_deadline.py"),
    "request": _at("_http.request", "_http/test_fetch.py"),
    "amounts": _at("_models.requests", "_models/test_amounts.py"),
    "wire_format": _at("_converters.wire_format", "_converters/test_messages.py"),
    "at_once": _at("_converters.converter", "_converters/test_order.py"),
    "order": _at("_converters.converter", "_converters/test_order.py"),
    "transport": _at("_http.transport", "_http/test_transport.py", *_WIRE),
    "guards": _at("_http.write_guard", "_http/test_write_guard.py", "_pipeline/test_deadline.py", *_WIRE),
    "carrier": _at("_http.write_guard", *_WIRE),
    "bounded": _at("_http.transport", "_http/test_decoder.py", "faults/test_bounded_reading.py"),
    "disposition": _at("worker.disposition", "worker/test_disposition.py", "worker/test_handler.py"),
    "heartbeats": _at("worker.consumer", "worker/test_worker.py"),
    "pull": _at("integrations.faststream.nats", "worker/test_nats_pull.py"),
    "nats_line": _at(
        "integrations.faststream.nats", "worker/test_nats_delivery.py", "contract/test_brokers.py"
    ),
    "redis_line": _at("integrations.faststream.redis", "contract/test_brokers.py"),
    "handling": _at("worker.handler", "worker/test_handler.py"),
    "base": _at("journal.protocol", "contract"),
    "states": _at("journal.state_machine", *_STATES),
    "claim": _at("journal.transitions", *_STATES),
    "moves": _at(
        "journal.transitions",
        "journal/test_seal.py",
        "_pipeline/test_create_order.py",
        "desk/test_damaged_records.py",
        *_STATES,
    ),
    "fingerprint": _at("_models.requests", "journal/test_fingerprint.py"),
    "operator_moves": _at("journal.operator_transitions", *_PEOPLE),
    "proposal": _at("journal.model", "journal/test_proposal.py", *_PEOPLE),
    "texts": _at("_models.requests", "_models/test_keys.py", "journal/test_fingerprint.py"),
    "entries": _at("journal.model", *_PEOPLE, *_STATES),
    "decisions": _at("_pipeline.operators", *_PEOPLE, "desk/test_damaged_records.py"),
    "transaction": _at("journal.durable", *_DURABLE),
    "durable": _at("journal.durable", *_DURABLE),
    "memory": _at("journal.memory", "journal/test_memory.py", "contract"),
    "sqlite": _at("journal.sqlite", "journal/test_sqlite.py", "contract", "trouble/test_troubles.py"),
    "sqlite_opening": _at(
        "journal.sqlite_file", "journal/test_sqlite.py", "contract", "trouble/test_troubles.py"
    ),
    "upgrading": _at("journal.rows", "journal/test_upgrading.py"),
    "sqlite_upgrade": _at("journal.sqlite", "journal/test_upgrading.py"),
    "postgres_upgrade": _at("journal.postgres", "journal/test_upgrading.py"),
    "postgres": _at("journal.postgres", "journal/test_postgres.py", "contract", "trouble"),
    "postgres_sql": _at("journal.postgres_sql", "journal/test_postgres.py", "contract", "trouble"),
    "desk": _at("desk.application", *_DESK),
    "desk_defences": _at("desk.application", *_DESK),
    "desk_changes": _at("desk.application", *_DESK),
    "desk_looks": _at("desk.views", *_DESK),
    "journal_asking": _at("_cli.journal_session", "_cli/journal/test_showing.py"),
    "decision_table": _at("_pipeline.decisions", "desk/test_views.py", "_cli/journal/test_deciding.py"),
    "desk_stamp": _at("desk.auth", *_DESK, "desk/test_dual_control.py"),
    "desk_board": _at("desk.pending_keys", "desk/test_pending_keys.py"),
    "desk_words": _at("desk.views", *_DESK),
    "desk_pages": _at("desk.views", "desk/test_hostile_texts.py"),
    "sandbox_page": _at("sandbox.control", "sandbox/test_web_page.py"),
    "desk_door": _at("_cli.servers", "_cli/desk"),
    "rows": _at("journal.rows", "journal/test_seal.py", "journal/test_rows.py", "contract"),
    "hook_trials": _at("testing.hook_trials", "testing/hook_trials/test_run_trials.py"),
    "hook_harness": _at("testing.hook_harness", "testing/hook_trials/test_run_trials.py"),
    "assertions": _at("testing.assertions", "testing/test_assertions.py"),
    "order_file": _at("_cli.create_input", "_cli/create/test_order_file.py"),
    "create_job": _at("_cli.create_command", "_cli/create/test_create.py"),
    "comparison": _at("_cli.reconcile_comparison", "_cli/reconcile"),
    "reconciliation": _at("_cli.reconcile_comparison", "_cli/reconcile"),
    "imitation": _at("sandbox.profile", "sandbox/test_profile.py"),
    "probe_plan": _at("_cli.probe_orders", *_PROBE),
    "probe_orders": _at("_cli.probe_orders", *_PROBE),
    "probe_relay": _at("_cli.probe_orders", *_PROBE),
    "probe_spending": _at("_cli.probe_orders", *_PROBE),
    "probe_seen": _at("_cli.probe_http", "_cli/probe/test_seen.py"),
    "seal": _at("journal.encryption", "journal/test_seal.py"),
}

PROMISE = _tests("_pipeline/test_create_order.py", *_WIRE, "contract", "trouble", "simulation")
"""The tests that prove the promise as a whole: asked last."""
