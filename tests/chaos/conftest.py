"""A PostgreSQL server that tests can stop and start."""

from collections.abc import Iterator

import pytest

from tests.chaos.troubles import END_OTHER_SESSIONS
from tests.support.postgres import PostgresServer, is_installed


@pytest.fixture(scope="package")
def restartable() -> Iterator[PostgresServer]:
    """Start a server for this package only."""
    if not is_installed():
        pytest.skip("PostgreSQL is not available for this platform")
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="package")
def one_database(restartable: PostgresServer) -> str:
    """Return the address of a database for all tests of the package, because creating one takes longer
    than a test.
    """
    return restartable.new_database()


@pytest.fixture
def database(restartable: PostgresServer, one_database: str) -> str:
    """Empty the shared database, and return its address.

    A session whose connection was cut may still be committing, and would block the deletion.
    """
    restartable.say(one_database, END_OTHER_SESSIONS)
    restartable.say(one_database, "DROP SCHEMA IF EXISTS transfer_async CASCADE")
    return one_database
