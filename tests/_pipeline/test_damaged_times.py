"""A corrupt recorded time outside the calendar does not break a listing."""

import asyncio
import json
import math
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.desk.visitor import Desk
from tests.support import commands
from tests.support.bank import World, world_in_a_file
from transfer_async import Operators
from transfer_async.integrations.opentelemetry.observer import Oldest
from transfer_async.journal import Entry, HistoryEvent, KeyState, step_of, step_values
from transfer_async.journal.rows import ENTRY_TABLE
from transfer_async.testing import make_order


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world with two keys in doubt. One of them can be damaged."""
    async with world_in_a_file(tmp_path / "journal.db", monkeypatch) as world:
        await world.in_doubt("other")
        await world.in_doubt("damaged")
        yield world


async def damage(path: Path, seconds: str, *, line: str | None = None) -> None:
    """Set all times in the key's record and history to invalid values."""

    def say() -> None:
        with closing(sqlite3.connect(path / "journal.db", isolation_level=None)) as db:
            times = ", ".join(
                f"'$.{name}', {seconds}" for name in ("claimed_at", "sent_until", "lease_until")
            )
            db.execute(f"UPDATE {ENTRY_TABLE} SET body = json_set(body, {times}) WHERE key = 'damaged'")
            of_it = f"(SELECT id FROM {ENTRY_TABLE} WHERE key = 'damaged')"
            db.execute(f"UPDATE history SET at = {line or seconds} WHERE key_id = {of_it}")

    await asyncio.to_thread(say)


async def journal_json(*arguments: str) -> Any:
    return json.loads((await commands.asked("journal", *arguments, "--json")).stdout)


@pytest.mark.parametrize("seconds", ["1e300", "-1e12"])
async def test_operators_see_the_key_without_its_corrupt_times(world: World, tmp_path: Path, seconds: str):
    await damage(tmp_path, seconds)
    operators = Operators(world.journal, world.scope, clock=world.time.clock)
    views = {view.key: view for view in await operators.waiting()}
    doubts = {doubt.key: doubt for doubt in await operators.in_doubt()}
    damaged = views["damaged"]

    assert set(views) == set(doubts) == {"other", "damaged"}
    assert (damaged.began, damaged.age, damaged.sent_until, damaged.refutable_at) == (None,) * 4
    assert damaged.readable
    assert doubts["damaged"].sent_until.year == (1 if seconds.startswith("-") else 9999)
    assert views["other"].age is not None


async def test_list_works_despite_a_damaged_time(world: World, tmp_path: Path):
    await damage(tmp_path, "1e300")
    listed = {one["key"]: one for one in (await journal_json("list"))["keys"]}

    assert (listed["damaged"]["began"], listed["damaged"]["age_seconds"]) == (None, None)
    assert listed["other"]["began"] is not None
    assert "damaged" in (await commands.asked("journal", "list")).stdout


@pytest.mark.parametrize("at", ["1e300", "9e999", "-9e999", "'long ago'"])
async def test_show_works_despite_a_damaged_time(world: World, tmp_path: Path, at: str):
    await damage(tmp_path, "1e300", line=at)
    record = (await commands.asked("journal", "show", "damaged")).stdout

    assert {step["at"] for step in (await journal_json("show", "damaged"))["history"]} == {None}
    assert "began       -\n" in record
    assert "claim" in record


async def test_the_desk_lists_and_shows_a_key_with_a_damaged_time(world: World, tmp_path: Path):
    await damage(tmp_path, "1e300")
    async with world.client() as client, Desk.of(client) as desk:
        visitor = desk.visitor()
        pages = [await visitor.get(), await visitor.key("damaged"), await visitor.key("other")]

    assert [page.status for page in pages] == [200, 200, 200]
    assert "damaged" in pages[0].text
    assert "Began not known" in pages[1].text


async def test_reconciliation_works_despite_a_damaged_time(world: World, tmp_path: Path):
    await damage(tmp_path, "1e300")
    export = tmp_path / "export.jsonl"
    await asyncio.to_thread(export.write_text, make_order().to_json().decode())
    result = await commands.asked("journal", "reconcile", str(export), code=3)

    assert "damaged" in result.stdout


async def test_a_corrupt_time_does_not_hide_the_age_of_other_keys():
    oldest = Oldest()
    for at in (1e300, -1e300, math.nan, math.inf, 50.0):
        doubt = Entry(
            state=KeyState.IN_DOUBT, fingerprint="", intent_id="", intent=None, claimed_at=at, sent_until=at
        )
        oldest.note(doubt)

    assert oldest.ages(80.0) == {"doubt": 30.0, "undo": 0.0, "notification": 0.0}


async def test_the_too_early_message_stays_short(world: World, tmp_path: Path):
    await damage(tmp_path, "1e300")
    why = await commands.asked(
        "journal", "refute", "damaged", "--by", "ada", "--reason", "none", "--yes", code=1
    )

    assert "too early" in why.stderr
    assert len(why.stderr) < 200


def test_a_history_time_that_is_not_a_number_is_nan():
    step = HistoryEvent(at=1.0, move="claim", state=KeyState.CLAIMED, intent_id="i", epoch=1)
    for at in ("long ago", None, b"\xff"):
        found = step_of((at, *step_values(step)[1:]))

        assert math.isnan(found.at)
