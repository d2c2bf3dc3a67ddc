"""A PostgreSQL that tests may stop and start as they like."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer, is_installed

IN_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="package")
def restartable() -> Iterator[PostgresServer]:
    """A server of the package's own; in memory where there is such a place, for it recovers often."""
    if not is_installed():
        pytest.skip("there is no PostgreSQL to be had for this platform")
    with pytest.MonkeyPatch.context() as patch:
        if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 1 << 30:
            patch.setattr(tempfile, "tempdir", str(IN_MEMORY))
        server = PostgresServer()
    with server:
        yield server


@pytest.fixture
def own_database(restartable: PostgresServer) -> str:
    """The address of an empty database of it."""
    return restartable.new_database()
