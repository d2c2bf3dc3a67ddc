"""A sandbox and a directory in which the command `create` runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import asked
from tests.support.order_files import csv_text, outcomes_in, row
from transfer_async.sandbox import Sandbox

PERSONAL = ("@bulk.example", "@example.com", "s3cr3t")


class Bench:
    """A sandbox, with an environment that points to it, and a directory for files."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        self.sandbox, self.directory = sandbox, directory
        self.journal = directory / "journal.db"
        self.outcomes = directory / "orders.csv.outcomes.jsonl"
        self.part = directory / "orders.csv.outcomes.jsonl.part"
        self.settings = {
            "TRANSFER_BASE_URL": sandbox.base_url,
            "TRANSFER_API_TOKEN": sandbox.token,
            "TRANSFER_JOURNAL": str(self.journal),
        }

    async def write(self, text: str | bytes, name: str = "orders.csv") -> Path:
        path = self.directory / name
        await asyncio.to_thread(path.write_bytes, text.encode() if isinstance(text, str) else text)
        return path

    async def orders(self, *cells: dict[str, str]) -> Path:
        return await self.write(csv_text(cells))

    @property
    def sent(self) -> int:
        return len(self.sandbox.requests)

    async def run_one(self, *options: Any, code: int = 0) -> Any:
        """Run the command with a file of one order."""
        return await self.run(await self.orders(row(1)), *options, code=code)

    async def run(self, *arguments: Any, code: int = 0) -> Any:
        """Run the command. Check that its output contains no personal data."""
        result = await asked("create", *arguments, code=code)
        assert not any(person in result.output for person in PERSONAL)
        return result

    async def outcome_lines(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(outcomes_in, self.outcomes)

    async def files(self) -> list[str]:
        return sorted(await asyncio.to_thread(os.listdir, self.directory))


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Bench]:
    async with Sandbox(token="s3cr3t") as sandbox:
        made = Bench(sandbox, tmp_path)
        for name, value in made.settings.items():
            monkeypatch.setenv(name, value)
        yield made
