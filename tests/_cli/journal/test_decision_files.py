"""`--from FILE`: all rows are checked first, then each row is decided separately and only once."""

import asyncio
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests._cli.journal.terminal import ADA, asked, corrupt_intents
from tests.support.bank import World, refused_order
from tests.support.cases import each
from transfer_async import JournalFailed, KeyState, Refused, SQLiteJournal
from transfer_async._cli import process
from transfer_async._cli.create_input import Changed, Record
from transfer_async._cli.create_outcomes import OutcomeFile
from transfer_async._cli.journal_file import DecisionRun
from transfer_async._pipeline.operators import Operators

BY = ["--by", "ada"]
HEADER = "key,decision,order_id,reason,seen\n"


@pytest.fixture
async def doubts(world: World) -> World:
    """Yield three keys in doubt that are old enough to be refuted."""
    for key in ("a", "b", "c"):
        await world.in_doubt(key)
    world.time.pass_(600)
    return world


async def seen(world: World, key: str) -> int:
    return (await world.entry(key)).version


async def resolving(world: World, path: Path, *keys: str, decision: str = "resolve") -> Path:
    """Write a file of decisions about the current state of the keys."""
    rows = HEADER
    for key in keys:
        order_id = "" if decision == "refute" else f"tx-{key}"
        rows += f"{key},{decision},{order_id},seen it,{await seen(world, key)}\n"
    return await write(path, rows)


async def write(path: Path, text: str) -> Path:
    await asyncio.to_thread(path.write_text, text, encoding="utf-8")
    return path


async def results(path: Path) -> list[tuple[Any, ...]]:
    text = await asyncio.to_thread(path.with_name(path.name + ".results.jsonl").read_text, encoding="utf-8")
    return [(row["line"], row["key"], row["result"]) for row in map(json.loads, text.splitlines())]


async def states(world: World) -> list[KeyState]:
    return [(await world.entry(key)).state for key in ("a", "b", "c")]


async def test_every_row_is_decided_and_a_second_run_decides_nothing(doubts, tmp_path):
    file = await resolving(doubts, tmp_path / "d.csv", "a", "b")
    first = await asked("resolve", "--from", file, *BY)
    made = [await doubts.history(key) for key in "ab"]
    again = await asked("resolve", "--from", file, *BY)

    assert first.stdout == f"2 rows: 2 done\nresults: {file}.results.jsonl\n"
    assert again.stdout.startswith("2 rows: 2 done before\n")
    assert await results(file) == [(2, "a", "done before"), (3, "b", "done before")]
    assert made == [await doubts.history(key) for key in "ab"]
    assert (await doubts.entry("b")).order_id == "tx-b"
    assert await states(doubts) == [KeyState.CREATED, KeyState.CREATED, KeyState.IN_DOUBT]


async def test_a_corrupt_record_with_the_same_order_id_is_still_put_into_quarantine(doubts, tmp_path):
    await asked("resolve", "a", "--order-id", "tx-a", *ADA)
    file = await resolving(doubts, tmp_path / "d.csv", "a")
    await corrupt_intents(doubts)
    await asked("resolve", "--from", file, *BY)

    assert await results(file) == [(2, "a", "done")]
    async with SQLiteJournal(tmp_path / "journal.db") as journal:
        entry = await journal.read(doubts.scope, "a")
    assert entry is not None
    assert (entry.order_id, entry.is_readable, len(entry.quarantined)) == ("tx-a", True, 1)


async def test_a_second_run_refutes_no_key_again_even_if_it_was_used_since(doubts, tmp_path):
    """The rows are about earlier calls, not about the last ones."""
    file = await resolving(doubts, tmp_path / "d.csv", "a", "b", decision="refute")
    unasked = await asked("refute", "--from", file, *BY, code=2)
    await asked("refute", "--from", file, "--yes", *BY)
    await asked("refute", "--from", file, "--yes", *BY)

    assert unasked.stderr == "journal: --yes is required when not interactive\n"
    assert (await doubts.history("a")).count("refute: free") == 1
    assert await results(file) == [(2, "a", "done before"), (3, "b", "done before")]
    await doubts.in_doubt("a")
    await doubts.fails(Refused, refused_order(), key="b")
    used = await asked("refute", "--from", file, "--yes", *BY, code=3)
    assert used.stdout.startswith("2 rows: 2 refused\n")
    assert "line 2: refused: a: key: has changed since it was read; it is now in doubt" in used.stderr
    assert (await doubts.entry("a")).state is KeyState.IN_DOUBT


async def test_a_key_that_has_changed_since_the_version_seen_is_refused_alone(doubts, tmp_path):
    rows = f"a,resolve,tx-a,seen it,99\nb,resolve,tx-b,seen it,{await seen(doubts, 'b')}\n"
    file = await write(tmp_path / "d.csv", HEADER + rows)
    result = await asked("resolve", "--from", file, *BY, code=3)

    assert await results(file) == [(2, "a", "refused"), (3, "b", "done")]
    assert "line 2: refused: a: key: has changed since it was read; it is now in doubt" in result.stderr
    assert (await states(doubts))[:2] == [KeyState.IN_DOUBT, KeyState.CREATED]


async def test_a_row_that_changed_after_the_check_ends_the_run(doubts):
    rows: Any = SimpleNamespace(records=lambda: iter([Record(line=2, faults=(("key", "is missing"),))]))
    async with doubts.client() as client:
        with pytest.raises(Changed, match="line 2 of FILE was changed after it was checked"):
            await DecisionRun("resolve", "ada", rows, None).run(client.operators)


async def test_a_dry_run_shows_the_result_of_each_row_and_changes_nothing(doubts, tmp_path):
    versions = {"a": await seen(doubts, "a"), "b": 99, "gone": 1}
    rows = [
        json.dumps({"key": key, "decision": "refute", "reason": "none", "seen": version})
        for key, version in versions.items()
    ]
    file = await write(tmp_path / "d.jsonl", "\n".join(rows))
    before = [await doubts.entry(key) for key in "ab"]
    result = await asked("refute", "--from", file, "--dry-run", *BY, code=3)

    first, second, third, *rest = result.stdout.splitlines()
    assert first.startswith("line 1: done: a: this releases ")
    assert second.startswith("line 2: refused: b: key: has changed since")
    assert third.startswith("line 3: refused: gone: key: ")
    assert rest == [
        "3 rows: 1 done, 2 refused",
        "this was a dry run: no decision was recorded, and no file was written",
    ]
    assert [await doubts.entry(key) for key in "ab"] == before
    assert not [name for name in await asyncio.to_thread(os.listdir, tmp_path) if "results" in name]


@pytest.mark.parametrize(
    ("command", "results", "code"), [("resolve", "1 done, 1 refused", 3), ("propose", "2 done", 0)]
)
async def test_a_dry_run_refuses_an_order_id_for_a_second_key_if_the_run_would(
    doubts, tmp_path, command, results, code
):
    rows = [f"{key},resolve,tx-1,seen it,{await seen(doubts, key)}\n" for key in "ab"]
    file = await write(tmp_path / "d.csv", HEADER + "".join(rows))
    for options in (["--dry-run"], []):
        result = await asked(command, "--from", file, *options, *BY, code=code)
        assert f"2 rows: {results}\n" in result.stdout


async def test_under_dual_control_a_file_is_proposed_by_one_and_approved_by_another(doubts, tmp_path):
    file = await resolving(doubts, tmp_path / "d.csv", "a", "b")
    await asked("four-eyes", "demand", *ADA)
    alone = await asked("resolve", "--from", file, *BY, code=3)
    await asked("propose", "--from", file, *BY)
    again = await asked("propose", "--from", file, *BY)
    approved = await resolving(doubts, tmp_path / "e.csv", "a", "b")
    same = await asked("approve", "--from", approved, "--yes", *BY, code=3)
    both = await asked("approve", "--from", approved, "--yes", "--by", "ben")
    twice = await asked("approve", "--from", approved, "--yes", "--by", "ben")

    assert alone.stderr.count("this scope requires dual control") == 2
    assert again.stdout.startswith("2 rows: 2 done before\n")
    assert same.stderr.count("by: is the proposer's name") == 2
    assert both.stdout.startswith("2 rows: 2 done\n")
    assert twice.stdout.startswith("2 rows: 2 done before\n")
    assert (await doubts.entry("a")).order_id == "tx-a"


async def test_only_the_proposal_of_the_file_is_approved(doubts, tmp_path):
    await asked("propose", "a", "resolve", "--order-id", "tx-other", *ADA)
    await asked("propose", "b", "resolve", "--order-id", "tx-b", *ADA)
    file = await resolving(doubts, tmp_path / "d.csv", "a", "b", "c")
    await asked("propose", "b", "resolve", "--order-id", "tx-b", *ADA)
    result = await asked("approve", "--from", file, "--yes", "--by", "ben", code=3)

    why = [line.partition("refused: ")[2] for line in result.stderr.splitlines()]
    assert why == [
        "a: nobody has proposed this decision",
        "b: key: has changed since it was read; it is now in doubt",
        "c: nobody has proposed this decision",
    ]
    assert set(await states(doubts)) == {KeyState.IN_DOUBT}


@each(
    ("rows", "fault"),
    [
        ("a,refute,,why,3\n", "line 2: decision: must be resolve"),
        ("a,resolve,,why,3\n", "line 2: order_id: must look like 'tx-…'"),
        ("a,resolve,1,why,3\n", "line 2: order_id: must look like 'tx-…'"),
        ("a,resolve,tx-1,,3\n,resolve,tx-1,x,3\n", "line 2: reason: is missing\nline 3: key: is missing"),
        (
            "a,resolve,tx-1,why,-1\n",
            "line 2: seen: must be the version that you saw ('moves' in journal list --json)",
        ),
        (
            "a,resolve,tx-1,x,3\na,resolve,tx-1,x,3\n",
            "line 3: key: is already used on line 2: make only one decision per key",
        ),
        ("a,end it,tx-1,x,3\n", "line 2: decision: must be one of resolve, refute, amend, waive"),
    ],
)
async def test_nothing_is_decided_if_a_row_has_a_fault(doubts, tmp_path, rows, fault):
    good = f"b,resolve,tx-b,seen,{await seen(doubts, 'b')}\n"
    file = await write(tmp_path / "d.csv", HEADER + rows + good)
    result = await asked("resolve", "--from", file, *BY, code=2)

    assert result.stderr.startswith(f"{fault}\n")
    assert result.stderr.endswith("No decision was recorded.\n")
    assert set(await states(doubts)) == {KeyState.IN_DOUBT}


@each(
    ("name", "text", "fault"),
    [
        ("d.csv", "key,order_id,reason,seen\n", "line 1: decision: is missing: add this column"),
        (
            "d.jsonl",
            '{"key": "a", "decision": "resolve", "by": "x"}\n',
            "line 1: by: is unknown: correct or remove it",
        ),
        ("d.jsonl", "[]\n", "line 1: is not an object"),
    ],
)
async def test_a_file_of_another_form_is_refused(world, tmp_path, name, text, fault):
    file = await write(tmp_path / name, text)

    assert (await asked("resolve", "--from", file, *BY, code=2)).stderr.startswith(f"{fault}\n")


@each(
    ("arguments", "why"),
    [
        ("resolve", "KEY or --from FILE is required"),
        ("resolve a --dry-run --order-id tx-1", "--dry-run: needs --from"),
        ("propose a", "DECISION or --from FILE is required"),
        ("resolve a --from F", "KEY cannot be used with --from"),
        ("resolve --from F --reason x", "--reason cannot be used with --from"),
        ("approve --from F --proposal x", "--proposal cannot be used with --from"),
        ("resolve --from nowhere.csv", "FILE: cannot be read (No such file or directory)"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(doubts, arguments, why):
    result = await asked(*arguments.split(), code=2)

    assert result.stderr == f"journal: {why}\n"
    assert set(await states(doubts)) == {KeyState.IN_DOUBT}


async def test_the_results_overwrite_neither_the_file_nor_the_journal(doubts, tmp_path):
    file = await resolving(doubts, tmp_path / "d.csv", "a")
    for path in (file, tmp_path / "journal.db"):
        result = await asked("resolve", "--from", file, "--results", path, *BY, code=2)
        assert result.stderr.startswith(f"journal: --results: {path} is also FILE or the journal")
    assert (await doubts.entry("a")).state is KeyState.IN_DOUBT


async def test_a_failing_journal_stops_the_run_which_can_be_continued(doubts, tmp_path, monkeypatch):
    file = await resolving(doubts, tmp_path / "d.csv", "a", "b", "c")
    decide = Operators.decide

    async def fails_on_b(self: Operators, key: str, *given: Any, **named: Any) -> object:
        record = await decide(self, key, *given, **named)
        if key == "b":
            raise JournalFailed("the connection was lost")
        return record

    with monkeypatch.context() as patched:
        patched.setattr(Operators, "decide", fails_on_b)
        broken = await asked("resolve", "--from", file, *BY, code=1)
    done = await asked("resolve", "--from", file, *BY)

    assert "line 3: unknown: JournalFailed: the connection was lost" in broken.stderr
    assert broken.stdout.splitlines()[1] == f"results so far: {file}.results.jsonl.part"
    assert done.stdout.startswith("3 rows: 1 done, 2 done before\n")


async def test_results_that_cannot_be_written_end_the_run_with_one_line(doubts, tmp_path, monkeypatch):
    file = await resolving(doubts, tmp_path / "d.csv", "a")

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(OutcomeFile, "write", full)
    result = await asked("resolve", "--from", file, *BY, code=1)

    why = "FILE cannot be read, or --results cannot be written (No space left on device)"
    assert result.stderr == f"journal: {why}: run the same command again\n"


async def test_a_signal_ends_the_run_after_the_row_in_progress(doubts, tmp_path, monkeypatch):
    file = await resolving(doubts, tmp_path / "d.csv", "a", "b", "c")
    decide, create = Operators.decide, process.Stopping.__init__
    created: list[process.Stopping] = []

    def remember(self: process.Stopping) -> None:
        create(self)
        created.append(self)

    async def interrupted(self: Operators, key: str, *given: Any, **named: Any) -> object:
        if key == "b":
            created[0].ask(signal.SIGTERM)
            await asyncio.sleep(0)
        return await decide(self, key, *given, **named)

    monkeypatch.setattr(process.Stopping, "__init__", remember)
    monkeypatch.setattr(Operators, "decide", interrupted)
    stopped = await asked("resolve", "--from", file, *BY, code=143)

    assert stopped.stdout.startswith("3 rows: 2 done\nresults so far: ")
    assert await states(doubts) == [KeyState.CREATED, KeyState.CREATED, KeyState.IN_DOUBT]
