"""`journal prune` deletes keys that ended long ago, and keeps recent ones."""

from datetime import UTC, datetime, timedelta

import pytest

from tests._cli.journal.terminal import asked, everything, json_of
from tests.support.bank import NOON
from tests.support.cases import each
from transfer_async._cli import journal_output

JUNE = ["prune", "--before", "2024-06-01"]


async def test_only_keys_that_ended_before_the_time_are_deleted(world):
    await everything(world)
    assert await json_of("prune", "--before", "2024-05-06T11:00:00+00:00", "--yes") == {"forgotten": 0}
    result = await asked("prune", "--older-than", "90d", "--yes")

    assert result.stdout == f"{world.scope}: 1 key deleted\n"
    assert [await world.known(key) is None for key in ("created", "doubt", "owing")] == [True, False, False]


async def test_keys_that_ended_within_a_day_are_kept_with_a_warning(world):
    """Without this, after a mistyped age, a file that has just been paid could be paid again."""
    world.time.pass_((datetime.now(UTC) - NOON).total_seconds() - 60.0)
    await world.create(key="created")
    for age in ("0m", "23h"):
        result = await asked("prune", "--older-than", age, "--yes")
        assert result.stdout == f"{world.scope}: 0 keys deleted\n"
        assert "journal: keys whose outcome was recorded within the last day are kept" in result.stderr
    assert await world.known("created") is not None


@pytest.mark.usefixtures("somebody")
@each(("answer", "code"), [("n\n", 1), ("y\n", 0)])
async def test_prune_asks_first(world, answer, code):
    await world.create(key="created")  # for the second row of the table, this returns the existing order
    result = await asked(*JUNE, answers=answer, code=code)

    assert "recorded before 2024-06-01T00:00:00.000Z" in result.stderr
    assert (await world.known("created") is None) is (code == 0)


@each(
    ("when", "line"),
    [
        (["--before", "2024-06-01"], "--yes is required when not interactive"),
        (["--yes"], "pass either --before or --older-than"),
        (["--yes", "--before", "2024-06-01", "--older-than", "90d"], "pass either --before or --older-than"),
        (["--yes", "--before", "yesterday"], "--before: must be a date or a time"),
        (["--yes", "--older-than", "90"], "--older-than: must be a number of"),
        (["--yes", "--older-than", "90y"], "--older-than: must be a number of"),
        (["--yes", "--older-than", "-1d"], "--older-than: must be a number of"),
        (["--yes", "--before", "2999-01-01"], "--before: must not be in the future"),
    ],
)
async def test_a_usage_error_deletes_nothing(world, when, line):
    await world.create()
    result = await asked("prune", *when, code=2)

    assert f"journal: {line}" in result.stderr
    assert await world.known() is not None


@each(
    ("before", "older_than", "time"),
    [
        ("2024-05-06", None, datetime(2024, 5, 6, tzinfo=UTC)),
        ("2024-05-06T12:00:00+02:00", None, datetime(2024, 5, 6, 10, tzinfo=UTC)),
        (None, "30m", NOON - timedelta(minutes=30)),
        (None, "2w", NOON - timedelta(weeks=2)),
        (None, "12h", NOON - timedelta(hours=12)),
    ],
)
def test_prune_reads_dates_times_and_ages(before, older_than, time):
    assert journal_output.time_named(before, older_than, now=NOON) == time
