"""Fixtures for the tests of journals."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a journal's file, which does not exist yet."""
    return tmp_path / "journal.db"
