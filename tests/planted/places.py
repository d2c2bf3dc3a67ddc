"""Where faults are planted, each module named once, and the tests that are asked about it first."""

from __future__ import annotations

from attrs import frozen


@frozen
class Place:
    """A module, and its tests: files or folders, those that are quick first."""

    module: str
    asked: tuple[str, ...]


_CALLS = ("tests/test_undoing.py", "tests/test_preflight.py", "tests/test_leases.py", "tests/test_calls.py")
_WIRE = (
    "tests/faults/test_failure_table.py",
    "tests/faults/test_another_behind.py",
    "tests/faults/test_stale_connections.py",
    "tests/faults/test_cancellation.py",
    "tests/faults/test_bounded_reading.py",
)
_STATES = (
    "tests/journal/test_states.py",
    "tests/test_handling.py",
    "tests/test_leases.py",
    "tests/test_unrecorded.py",
    "tests/test_doubt.py",
    "tests/contract",
)
_DURABLE = ("tests/journal/test_transaction.py", "tests/journal/test_durable.py", "tests/contract")

PLACES = {
    "create_order": Place(
        "transfer_async._pipeline.create_order",
        ("tests/test_create_order.py", *_CALLS, "tests/test_unrecorded.py", "tests/test_cancellation.py"),
    ),
    "preflight": Place(
        "transfer_async._pipeline.preflight",
        ("tests/test_create_order.py", *_CALLS, "tests/test_cancellation.py"),
    ),
    "settle": Place(
        "transfer_async._pipeline.settle",
        ("tests/test_create_order.py", *_CALLS, "tests/test_unrecorded.py", "tests/test_cancellation.py"),
    ),
    "sending": Place(
        "transfer_async._pipeline.send", ("tests/test_create_order.py", "tests/test_auth.py", *_WIRE)
    ),
    "doubt": Place("transfer_async._pipeline.doubt", ("tests/test_doubt.py", "tests/test_recovery.py")),
    "undoing": Place("transfer_async._pipeline.undo", ("tests/test_undoing.py", "tests/test_preflight.py")),
    "recovery": Place(
        "transfer_async._pipeline.recovery", ("tests/test_recovery.py", "tests/test_recoveries.py")
    ),
    "unrecorded": Place(
        "transfer_async._pipeline.unrecorded", ("tests/test_unrecorded.py", "tests/test_recovery.py")
    ),
    "leases": Place("transfer_async._pipeline.lease", ("tests/test_leases.py",)),
    "calls": Place(
        "transfer_async._pipeline.call",
        ("tests/test_calls.py", "tests/test_cancellation.py", "tests/faults/test_cancellation.py"),
    ),
    "retry": Place("transfer_async._http.retry", ("tests/test_retry.py",)),
    "answers": Place(
        "transfer_async._http.classify", ("tests/test_answers.py", "tests/test_checks.py", *_WIRE)
    ),
    "transport": Place("transfer_async._http.transport", ("tests/test_transport.py", *_WIRE)),
    "guards": Place("transfer_async._http.write_guard", ("tests/test_guards.py", *_WIRE)),
    "carrier": Place("transfer_async._http.unsolicited", _WIRE),
    "bounded": Place(
        "transfer_async._http.decoder", ("tests/test_bounded.py", "tests/faults/test_bounded_reading.py")
    ),
    "disposition": Place(
        "transfer_async.worker.disposition", ("tests/test_disposition.py", "tests/test_handling.py")
    ),
    "handling": Place("transfer_async.worker.handler", ("tests/test_handling.py",)),
    "base": Place("transfer_async.journal.protocol", ("tests/contract",)),
    "states": Place("transfer_async.journal.state_machine", _STATES),
    "transaction": Place("transfer_async.journal.transaction", _DURABLE),
    "durable": Place("transfer_async.journal.group_commit", _DURABLE),
    "memory": Place("transfer_async.journal.memory", ("tests/journal/test_memory.py", "tests/contract")),
    "sqlite": Place(
        "transfer_async.journal.sqlite",
        ("tests/journal/test_sqlite.py", "tests/contract", "tests/trouble/test_sqlite_trouble.py"),
    ),
    "postgres": Place(
        "transfer_async.journal.postgres",
        ("tests/journal/test_postgres.py", "tests/contract", "tests/trouble"),
    ),
    "postgres_sql": Place(
        "transfer_async.journal.postgres_sql",
        ("tests/journal/test_postgres.py", "tests/contract", "tests/trouble"),
    ),
    "rows": Place("transfer_async.journal.rows", ("tests/journal/test_rows.py", "tests/contract")),
}

PROMISE = (
    "tests/test_create_order.py",
    *_WIRE,
    "tests/contract",
    "tests/trouble",
    "tests/simulation",
)
"""The tests that prove the promise as a whole: asked last."""
