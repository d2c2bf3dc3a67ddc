"""The cost of a key in a journal with many keys, compared with a journal with few keys.

No service is involved. Each new key is claimed, marked and created by the journal's transitions, with a
response as large as the service's. The existing keys are inserted with SQL and have small responses, so that
the size of the disk does not matter. Order ids are random, so each new one may go to any page of its index.
New keys are either random or ascending, as if a bank numbered its payments.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from attrs import frozen

from benchmarks.measuring.journals import POSTGRES, SQLITE, JournalFactory
from benchmarks.measuring.samples import Sample, drive, interleave, median_of, ratio
from benchmarks.measuring.workload import Responses, new_orders
from transfer_async._models.requests import NewOrder, OrderIntent, fingerprint
from transfer_async.journal import Journal, PostgresJournal, SQLiteJournal
from transfer_async.journal.transitions import Claim, Create, MarkSending, Move

SCOPE = "https://service.example.com"
SMALL_REPLY = b"%-300b" % b'{"id":"tx-made-up"}'
SMALL_JOURNAL_KEYS = 1_000
CONCURRENCY = 64
FILL_TIMEOUT = 600.0
"""The timeout for one statement that fills a database, in seconds."""


KeyOrder = Literal["in order", "random"]
KEY_ORDERS: tuple[KeyOrder, ...] = get_args(KeyOrder)
"""The order of new keys."""


@frozen
class Growth:
    """The result for one journal and one order of new keys.

    Args:
        journal: the name of the journal.
        kind: the order of the new keys.
        few: the initial number of keys in the small journal.
        many: the initial number of keys in the large journal.
        few_cost: the median seconds per new key in the small journal, with 64 concurrent keys.
        many_cost: the same in the large journal.
        ratio: the median over the rounds of the large journal's cost divided by the small journal's.
        total_ratio: the same for the total of all rounds, which includes all checkpoints.
        cpu_ratio: as ``ratio``, for the CPU time of this process, without a database server's.
        fill_seconds: the duration of filling both journals.
    """

    journal: str
    kind: KeyOrder
    few: int
    many: int
    few_cost: float
    many_cost: float
    ratio: float
    total_ratio: float
    cpu_ratio: float
    fill_seconds: float


async def measure(factory: JournalFactory, name: str, *, many: int, rounds: int, keys: int) -> list[Growth]:
    """Fill a large and a small journal, then create new keys in both in interleaved rounds.

    Args:
        factory: creates the journals.
        name: the name of the journal.
        many: the number of keys in the large journal.
        rounds: the number of rounds.
        keys: the number of new keys in one sample.
    """
    began = time.perf_counter()
    sizes = {"few": min(SMALL_JOURNAL_KEYS, many), "many": many}
    journals = {size: await FILLERS[name](factory, count) for size, count in sizes.items()}
    filled = time.perf_counter() - began
    samplers = {
        f"{size} {kind}": partial(_sample, journal, kind, keys)
        for kind in KEY_ORDERS
        for size, journal in journals.items()
    }
    async with journals["few"], journals["many"]:
        await interleave(samplers, rounds=2)  # warm-up
        samples = await interleave(samplers, rounds=rounds)
    return [
        _growth(journal=name, kind=kind, sizes=sizes, samples=samples, fill_seconds=filled)
        for kind in KEY_ORDERS
    ]


def _growth(
    *,
    journal: str,
    kind: KeyOrder,
    sizes: dict[str, int],
    samples: dict[str, list[Sample]],
    fill_seconds: float,
) -> Growth:
    few, many = samples[f"few {kind}"], samples[f"many {kind}"]
    return Growth(
        journal=journal,
        kind=kind,
        few=sizes["few"],
        many=sizes["many"],
        few_cost=median_of(few, lambda sample: sample.cost),
        many_cost=median_of(many, lambda sample: sample.cost),
        ratio=ratio(many, few, lambda sample: sample.cost),
        total_ratio=sum(sample.seconds for sample in many) / sum(sample.seconds for sample in few),
        cpu_ratio=ratio(many, few, lambda sample: sample.cpu_cost),
        fill_seconds=fill_seconds,
    )


async def _sample(journal: Journal, kind: KeyOrder, keys: int) -> Sample:
    responses = Responses()
    prepared = [
        _transitions_of(_new_key(kind), order, reply=responses.respond(json.loads(order.to_json())))
        for order in new_orders(keys)
    ]

    async def run_transitions(number: int) -> None:
        key, transitions = prepared[number]
        for move in transitions:
            verdict = await journal.move(SCOPE, key, move)
            if verdict is None or verdict.denial is not None:
                raise RuntimeError(f"the journal denied {type(move).__name__}: {verdict and verdict.denial}")

    return await drive(run_transitions, count=keys, concurrency=CONCURRENCY)


_numbers = itertools.count()


def _new_key(kind: KeyOrder) -> str:
    """Return an unused key. Ascending keys sort after all random ones."""
    return f"payment-{uuid.uuid4().hex}" if kind == "random" else f"payment-of-day-{next(_numbers):024}"


def _transitions_of(key: str, order: NewOrder, *, reply: bytes) -> tuple[str, tuple[Move, ...]]:
    """Return a new key and the transitions that create its order."""
    attempt, intent_id = uuid.uuid4().hex, uuid.uuid4().hex
    intent = OrderIntent(id=intent_id, key=key, order=order, beneficiary=None, held=None, send_before=None)
    claim = Claim(
        intent=intent,
        fingerprint=fingerprint(order),
        client_made=False,
        lease=60.0,
        max_claim_age=900.0,
        hooks=("hold",),
    )
    receipts: dict[str, str | None] = {"hold": f"hold-{intent_id}"}
    mark = MarkSending(
        intent_id=intent_id, epoch=1, attempt=attempt, receipts=receipts, lease=60.0, window=30.0
    )
    create = Create(attempt=attempt, order_id=f"tx-{uuid.uuid4().hex[:20]}", reply=reply)
    return key, (claim, mark, create)


# --- filling --------------------------------------------------------------------------------------


async def _first_key(journal: Journal) -> None:
    """Create the tables and one key, which is the template for all others."""
    async with journal:
        key, transitions = _transitions_of(_new_key("random"), new_orders(1)[0], reply=SMALL_REPLY)
        for move in transitions:
            await journal.move(SCOPE, key, move)


async def _filled_file(factory: JournalFactory, count: int) -> Journal:
    path = factory.path()
    await _first_key(SQLiteJournal(path))
    await asyncio.to_thread(_fill_file, path, count)
    return SQLiteJournal(path)


def _fill_file(path: Path, count: int) -> None:
    """Copy the file's only key until the file contains ``count`` keys."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-1000000"):
            db.execute(f"PRAGMA {setting}")
        db.execute("BEGIN")
        for statement in _FILL_FILE:
            db.execute(statement, {"count": count} if ":count" in statement else {})
        db.execute("COMMIT")
        db.execute("ANALYZE")
    finally:
        db.close()


_FILL_FILE = (
    """
    INSERT INTO keys_2 (id, scope, key, state, token, order_id, due_at, ended_at, body, intent)
    WITH RECURSIVE new (id) AS (VALUES (2) UNION ALL SELECT id + 1 FROM new WHERE id < :count)
    SELECT new.id, k.scope, 'payment-' || lower(hex(randomblob(16))), k.state,
        lower(hex(randomblob(16))) || '-' || new.id, 'tx-' || lower(hex(randomblob(10))), k.due_at,
        k.ended_at - new.id, k.body, k.intent
    FROM new, keys_2 k WHERE k.id = 1""",
    """
    INSERT INTO replies (key_id, reply)
    SELECT k.id, r.reply FROM keys_2 k, replies r WHERE k.id > 1 AND r.key_id = 1 ORDER BY k.id""",
    """
    INSERT INTO history
        (key_id, at, move, state, intent_id, epoch, attempt, order_id, ending, by_whom, reason)
    SELECT k.id, k.ended_at, h.move, h.state, h.intent_id, h.epoch, h.attempt,
        CASE WHEN h.order_id IS NULL THEN NULL ELSE k.order_id END, h.ending, h.by_whom, h.reason
    FROM keys_2 k, history h WHERE k.id > 1 AND h.key_id = 1 ORDER BY k.id, h.id""",
)


async def _filled_database(factory: JournalFactory, count: int) -> Journal:
    import asyncpg  # an optional dependency

    schema = factory.schema()
    await _first_key(PostgresJournal(factory.dsn, schema=schema))
    connection: Any = await asyncpg.connect(factory.dsn, command_timeout=FILL_TIMEOUT)
    try:
        for statement in itertools.chain(_FILL_DATABASE, _VACUUM):
            await connection.execute(statement.format(schema=schema, count=count))
    finally:
        await connection.close()
    return PostgresJournal(factory.dsn, schema=schema)


_FILL_DATABASE = (
    "SET synchronous_commit = off",
    """
    INSERT INTO {schema}.keys_2
        (scope, key, state, token, order_id, due_at, ended_at, body, intent, reply)
    SELECT k.scope, 'payment-' || md5('key' || n), k.state, md5('token' || n) || '-' || n,
        'tx-' || left(md5('order' || n), 20), k.due_at, k.ended_at - n, k.body, k.intent, k.reply
    FROM generate_series(2, {count}) n, {schema}.keys_2 k WHERE k.id = 1""",
    """
    INSERT INTO {schema}.history (key_id, token, at, move, state, intent_id, epoch, attempt, order_id)
    SELECT k.id, k.token, k.ended_at, h.move, h.state, h.intent_id, h.epoch, h.attempt,
        CASE WHEN h.order_id IS NULL THEN NULL ELSE k.order_id END
    FROM {schema}.keys_2 k, {schema}.history h
    WHERE k.id > 1 AND h.key_id = 1 ORDER BY k.id, h.id""",
)
_VACUUM = ("VACUUM ANALYZE {schema}.keys_2", "VACUUM ANALYZE {schema}.history", "CHECKPOINT")

FILLERS: dict[str, Callable[[JournalFactory, int], Awaitable[Journal]]] = {
    SQLITE: _filled_file,
    POSTGRES: _filled_database,
}
"""For each journal, a function that creates one with the given number of keys."""
