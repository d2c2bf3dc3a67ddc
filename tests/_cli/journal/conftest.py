"""A journal file whose address is in the environment, and an interactive terminal."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.bank import World, world_in_a_file


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    async with world_in_a_file(tmp_path / "journal.db", monkeypatch) as world:
        yield world


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the commands believe that stdin is a terminal."""
    for module in ("journal_session", "journal_commands"):
        monkeypatch.setattr(f"transfer_async._cli.{module}.is_interactive", lambda: True)
