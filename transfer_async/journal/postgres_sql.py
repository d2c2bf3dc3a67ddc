"""The SQL of the journal in PostgreSQL.

Parameters are text, arrays of text and numbers, which need no look at the server's types. What is written
comes as JSON: one text is put together, and taken apart, at a fraction of what arrays cost.
"""

from __future__ import annotations

from transfer_async.journal.entries import BELIEVED
from transfer_async.journal.moves import Refute
from transfer_async.journal.rows import ENTRY_TABLE, STEP_COLUMNS, VERSION

_ROW = "k.state, k.token, k.order_id, k.due_at, k.ended_at, k.body::text, k.intent::text, k.reply"
_STEP = ", ".join(STEP_COLUMNS)
_TYPES = {"at": "float8", "epoch": "bigint", "due_at": "float8", "ended_at": "float8"}
"""Of what is not text."""


def _unnest(*names: str, first: int = 1) -> str:
    arrays = ", ".join(f"${number}::text[]" for number in range(first, first + len(names)))
    return f"unnest({arrays}) WITH ORDINALITY AS w({', '.join(names)}, n)"


WRITTEN = (
    "scope",
    "key",
    "known",
    "state",
    "token",
    "order_id",
    "due_at",
    "ended_at",
    "body",
    "intent",
    "reply",
    "new_intent",
    "new_reply",
)
"""What is said of an entry that is stored; ``known`` is the token that it replaces, if it is not new."""

STEPPED = ("scope", "key", "token", *STEP_COLUMNS)
"""What is said of a line of the history."""

_CLOCK = "extract(epoch FROM clock_timestamp())::float8"


def _records(parameter: int, names: tuple[str, ...]) -> str:
    columns = ", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in names)
    return f"ROWS FROM (json_to_recordset(${parameter}::json) AS ({columns})) WITH ORDINALITY AS w"


class Statements:
    """Every statement, for the tables in ``schema``.

    Args:
        schema: a plain name, for it stands in the text itself; quoted, for it may be a word of SQL.
        idle: seconds that a transaction of ours may lie idle.
        slack: seconds by which the time at which moves were judged without a look may not be the server's.
    """

    def __init__(self, schema: str, *, idle: float, slack: float) -> None:
        keys, history, meta = f'"{schema}".{ENTRY_TABLE}', f'"{schema}".history', f'"{schema}".meta'
        self.server: str = (
            "SELECT current_setting('fsync') = 'on', pg_is_in_recovery(), pg_backend_pid(), "
            "current_setting('default_transaction_isolation') = 'read committed' "
            f"AND current_setting('default_transaction_read_only') = 'off', {_CLOCK}"
        )
        # Not by to_regclass: within a transaction it does not see what others made since it was last asked.
        self.is_there: str = (
            f"SELECT EXISTS (SELECT FROM pg_catalog.pg_tables "
            f"WHERE schemaname = '{schema}' AND tablename = 'meta')"
        )
        self.one_maker_at_a_time: str = f"SELECT pg_advisory_xact_lock(hashtext('{schema}'), {VERSION})"
        self.tables: str = _TABLES.format(schema=schema, entries=ENTRY_TABLE, version=VERSION)
        self.version: str = f"SELECT version FROM {meta}"
        # Should the connection be lost and nobody notice, the locks are let go soon all the same.
        self.begin: str = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; "
            f"SET LOCAL idle_in_transaction_session_timeout = {max(1, int(1000 * idle))}"
        )
        # A prepared statement keeps its plan: one of a time with few keys would read whole tables for long.
        self.plan_for_large_tables: str = "SET enable_seqscan = off"
        self.now: str = f"SELECT {_CLOCK}"
        self.touch: str = f"UPDATE {meta} SET version = version"
        self.load: str = _load(keys)
        self.committed: str = f"""
            SELECT h.token FROM {_unnest("scope", "key")}
            JOIN {keys} k ON k.scope = w.scope AND k.key = w.key JOIN {history} h ON h.key_id = k.id
            WHERE h.token = ANY($3::text[])"""
        self.store: str = _store(keys, history, slack)
        select = f"SELECT k.key, {_ROW} FROM {keys} k WHERE k.scope = $1"
        self.find: str = f"{select} AND k.key = $2"
        self.work: str = (
            # What is due later than any lease can be is due now: see `state_machine.is_waiting`.
            f"{select} AND k.key > $2 AND k.ended_at IS NULL "
            f"AND NOT (k.due_at > $3 AND k.due_at <= $3 + {BELIEVED}) ORDER BY k.key LIMIT $4"
        )
        self.in_doubt: str = f"{select} AND k.ended_at IS NULL AND k.state = 'in_doubt'"
        self.count_in_doubt: str = (
            f"SELECT count(*) FROM {keys} WHERE scope = $1 AND ended_at IS NULL AND state = 'in_doubt'"
        )
        self.orders: str = (
            f"SELECT order_id, key, ended_at FROM {keys} "
            "WHERE scope = $1 AND order_id > $2 ORDER BY order_id LIMIT $3"
        )
        self.refuted: str = f"""
            WITH lines AS MATERIALIZED (
                SELECT id, key_id, move FROM {history} WHERE id > $2::bigint ORDER BY id LIMIT $3::bigint
            ) SELECT ARRAY(SELECT k.key FROM lines l JOIN {keys} k ON k.id = l.key_id
                WHERE l.move = '{Refute.name}' AND k.scope = $1), (SELECT max(id) FROM lines)"""
        self.history: str = (
            f"SELECT {', '.join('h.' + name for name in STEP_COLUMNS)} FROM {history} h "
            f"JOIN {keys} k ON k.id = h.key_id WHERE k.scope = $1 AND k.key = $2 ORDER BY h.id"
        )
        self.other_scope: str = (
            f"SELECT scope FROM {keys} WHERE NOT EXISTS (SELECT FROM {keys} WHERE scope = $1) LIMIT 1"
        )
        self.prune: str = _prune(keys, history)


def _load(keys: str) -> str:
    # Whoever locks several keys does so in the order of `w.n`, which is the same for all. That an
    # order id is bound may be seen too late, for it is looked for first: the index then refuses it.
    return f"""
        SELECT w.scope, w.key, {_CLOCK},
            ARRAY(SELECT unnest(ARRAY[b.scope, b.order_id, b.key])
                  FROM {_unnest("scope", "order_id", first=4)}
                  JOIN {keys} b ON b.scope = w.scope AND b.order_id = w.order_id),
            k.token = w.known IS TRUE,
            k.state, k.token, k.order_id, k.due_at, k.ended_at,
            CASE WHEN k.token = w.known THEN NULL ELSE k.body::text END,
            CASE WHEN k.token = w.known THEN NULL ELSE k.intent::text END,
            CASE WHEN k.token = w.known THEN NULL ELSE k.reply END
        FROM {_unnest("scope", "key", "known")} LEFT JOIN LATERAL (
            SELECT * FROM {keys} i WHERE i.scope = w.scope AND i.key = w.key FOR UPDATE) k ON true
        ORDER BY w.n"""


def _store(keys: str, history: str, slack: float) -> str:
    # What was judged without a look is stored neither later, once nobody waits for it any more, nor over
    # what others have written. The statement may be a transaction by itself, whose commit must be waited for.
    of_step = ", ".join(f"w.{name}{'::json' if name == 'ending' else ''}" for name in STEP_COLUMNS)
    return f"""
        WITH wanted AS MATERIALIZED (
            SELECT * FROM {_records(1, WRITTEN)}
            WHERE $3::float8 IS NULL OR abs({_CLOCK} - $3) < {slack}
        ), added AS (
            INSERT INTO {keys} AS k
                (scope, key, state, token, order_id, due_at, ended_at, body, intent, reply)
            SELECT w.scope, w.key, w.state, w.token, w.order_id, w.due_at, w.ended_at, w.body::json,
                w.intent::json, decode(w.reply, 'hex')
            FROM wanted w WHERE w.known IS NULL ORDER BY w.ordinality
            ON CONFLICT (scope, key) DO NOTHING RETURNING k.id, k.scope, k.key
        ), changed AS (
            UPDATE {keys} k SET (state, token, order_id, due_at, ended_at, body, intent, reply) = ROW (
                w.state, w.token, w.order_id, w.due_at, w.ended_at, w.body::json,
                CASE WHEN w.new_intent = 'true' THEN w.intent::json ELSE k.intent END,
                CASE WHEN w.new_reply = 'true' THEN decode(w.reply, 'hex') ELSE k.reply END)
            FROM wanted w WHERE k.scope = w.scope AND k.key = w.key AND k.token = w.known
            RETURNING k.id, k.scope, k.key
        ), stored AS (SELECT * FROM added UNION ALL SELECT * FROM changed
        ), steps AS (
            INSERT INTO {history} (key_id, token, {_STEP})
            SELECT s.id, w.token, {of_step}
            FROM {_records(2, STEPPED)}
            JOIN stored s ON s.scope = w.scope AND s.key = w.key ORDER BY w.ordinality
        ) SELECT ARRAY(SELECT unnest(ARRAY[scope, key]) FROM stored), {_CLOCK},
            set_config('synchronous_commit', 'on', true)"""


def _prune(keys: str, history: str) -> str:
    return f"""
        WITH old AS (
            SELECT id FROM {keys} WHERE scope = $1 AND ended_at < $2
            ORDER BY ended_at LIMIT $3 FOR UPDATE SKIP LOCKED
        ), steps AS (DELETE FROM {history} WHERE key_id IN (SELECT id FROM old)
        ), gone AS (DELETE FROM {keys} WHERE id IN (SELECT id FROM old) RETURNING 1
        ) SELECT count(*) FROM gone"""


_TABLES = """
CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE "{schema}".meta (version integer NOT NULL);
INSERT INTO "{schema}".meta VALUES ({version});
CREATE TABLE "{schema}".{entries} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    state text NOT NULL,
    token text NOT NULL,
    order_id text COLLATE "C",
    due_at float8,
    ended_at float8,
    body json NOT NULL,
    intent json,
    reply bytea,
    UNIQUE (scope, key)
) WITH (fillfactor = 70);
ALTER TABLE "{schema}".{entries} ALTER COLUMN reply SET STORAGE EXTERNAL; -- compressing costs more
CREATE UNIQUE INDEX order_ids ON "{schema}".{entries} (scope, order_id) WHERE order_id IS NOT NULL;
CREATE INDEX waiting ON "{schema}".{entries} (scope, key) WHERE ended_at IS NULL;
CREATE INDEX ended ON "{schema}".{entries} (scope, ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE "{schema}".history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_id bigint NOT NULL, -- of keys; without a foreign key, which would look it up for every move
    token text NOT NULL,
    at float8 NOT NULL,
    move text NOT NULL,
    state text NOT NULL,
    intent_id text NOT NULL,
    epoch bigint NOT NULL,
    attempt text,
    order_id text,
    ending json,
    by_whom text,
    reason text
);
CREATE INDEX steps ON "{schema}".history (key_id);
"""
