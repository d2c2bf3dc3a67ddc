"""A PostgreSQL that tests may stop and start as they like."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer, is_installed

_END_OTHER_SESSIONS = """
    SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="package")
def restartable() -> Iterator[PostgresServer]:
    """A server of the package's own."""
    if not is_installed():
        pytest.skip("PostgreSQL is not available for this platform")
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="package")
def one_database(restartable: PostgresServer) -> str:
    """The address of a database that the package's tests share: one more for each would cost the most."""
    return restartable.new_database()


@pytest.fixture
def database(restartable: PostgresServer, one_database: str) -> str:
    """Its address, once what another test had there is gone.

    A session whose connection a test has cut may still be committing; it would block the deletion.
    """
    restartable.say(one_database, _END_OTHER_SESSIONS)
    restartable.say(one_database, "DROP SCHEMA IF EXISTS transfer_async CASCADE")
    return one_database
