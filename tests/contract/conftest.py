"""Fixtures for the package's own journals."""

import uuid

from transfer_async import PostgresJournal
from transfer_async.testing.journal_contract import JournalTime


class TimedPostgresJournal(PostgresJournal):
    """A PostgreSQL journal with its own schema for each test, and with the test's clock."""

    def __init__(self, dsn: str, time: JournalTime, *, schema: str | None = None) -> None:
        self.schema: str = schema or f"test_{uuid.uuid4().hex}"
        super().__init__(dsn, schema=self.schema)
        self._test_time = time

    def _time(self, _database: float) -> float:
        return self._test_time.utc().timestamp()
