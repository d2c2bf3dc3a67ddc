"""The command `create`: its options, its messages, its files and its exit codes."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sqlite3
import stat
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.bank import Bank
from tests.support.cases import each
from tests.support.commands import asked, invoke
from tests.support.order_files import csv_text, jsonl_text, row, rows, tree
from transfer_async import NO_ORDER, HoldFailed, MemoryJournal, SQLiteJournal
from transfer_async._cli import create_command, create_input, create_outcomes
from transfer_async._cli.create_outcomes import OutcomeFile
from transfer_async._cli.process import Stopping
from transfer_async._models import requests
from transfer_async.journal.rows import ENTRY_TABLE
from transfer_async.sandbox import (
    CloseAfterProcessing,
    CloseBeforeReading,
    Status,
)

from .conftest import PERSONAL

NOBODY = {"poster_recipient_username": "nobody@example.com"}


# --- files that are good --------------------------------------------------------------------------


async def test_the_orders_of_a_file_are_created_and_their_outcomes_are_written(bench):
    file = await bench.orders(*(row(number) for number in range(1, 31)))
    result = await bench.run(file)
    outcomes = await bench.outcome_lines()

    assert re.search(r"30 orders in [\d.]+ s, [\d,]+ a second: 30 created", result.stdout)
    assert f"outcomes: {bench.outcomes}" in result.stdout
    assert "the journal is new" in result.stderr
    assert {one["order_id"] for one in outcomes} == set(bench.sandbox.orders)
    assert sorted(one["line"] for one in outcomes) == list(range(2, 32))
    assert not any(person in str(outcomes) for person in PERSONAL)
    assert stat.S_IMODE((await asyncio.to_thread(bench.outcomes.stat)).st_mode) == 0o600
    assert await bench.files() == ["journal.db", "orders.csv", "orders.csv.outcomes.jsonl"]


async def test_a_file_that_is_run_again_creates_nothing_again_and_quiet_prints_only_the_result(bench):
    file = await bench.orders(row(1), row(2), row(3, **NOBODY))
    first = await bench.run(file, "--quiet", code=3)
    second = await bench.run(file, code=3)

    assert bench.sent == 3
    assert ": 2 created, 1 refused" in second.stdout
    assert "already created before this run: 2." in second.stdout
    assert "created before this run" not in first.stdout
    assert first.stderr == ""
    assert "the journal is new" not in second.stderr


async def test_a_file_is_not_run_again_with_another_journal_or_scope(bench):
    """With them, every key would be free, and each payment would be made again."""
    file = await bench.orders(row(1), row(2))
    await bench.run(file)
    other = bench.directory / "other.db"
    for options in (["--journal", other], ["--journal", other, "--quiet"], ["--scope", "moved"]):
        result = await bench.run(file, *options, code=2)
        dry = await bench.run(file, *options, "--dry-run", code=2)

        assert "--journal: contains no order of the key 'payment-000000" in result.stderr
        assert "orders.csv.outcomes.jsonl says that an order exists or may exist" in result.stderr
        assert "the key was pruned or the journal is an old copy" in result.stderr
        assert "nothing was sent" in result.stderr
        assert dry.stderr == result.stderr
        assert "no errors found" not in dry.stdout
    assert bench.sent == len(await bench.outcome_lines()) == 2
    assert other.name not in await bench.files()


async def test_a_file_whose_key_belongs_to_another_order_is_not_run_with_another_journal(bench):
    """The order of that key exists, although this file did not create it."""
    await bench.run_one()
    await asyncio.to_thread(bench.outcomes.unlink)
    file = await bench.orders(row(1, poster_amount="310050.00", matcher_amount="200.00"))
    await bench.run(file, code=4)
    again = await bench.run(file, code=4)
    result = await bench.run(file, "--journal", bench.directory / "other.db", code=2)

    assert "KeyConflict" in again.stdout
    assert "contains no order of the key 'payment-0000001'" in result.stderr
    assert bench.sent == 1


async def test_a_file_with_a_refused_line_whose_order_may_exist_is_not_run_with_another_journal(bench):
    """After the refusal, another call used the key."""
    await bench.run_one()
    text = await asyncio.to_thread(bench.outcomes.read_text)
    assert '"order_may_exist":true' in text
    await asyncio.to_thread(bench.outcomes.write_text, text.replace('"created"', '"refused"'))
    await bench.run_one("--journal", bench.directory / "other.db", code=2)

    assert bench.sent == 1


async def test_a_database_is_compared_with_the_outcomes_of_earlier_runs(bench, database):
    file = await bench.orders(row(1), row(2, **NOBODY), row(3))
    journal = ["--journal", database]
    await bench.run(file, *journal, code=3)
    await bench.run(file, *journal, code=3)
    result = await bench.run(file, *journal, "--scope", "moved", code=2)

    assert "contains no order of the key 'payment-000000" in result.stderr
    assert bench.sent == 3


async def test_an_old_copy_of_the_journal_may_lack_any_line(bench, monkeypatch):
    """The last line of a long file was created after the copy was made."""
    monkeypatch.setattr(create_command, "COMPARED", 10)
    lines = [row(number) for number in range(1, 46)]
    await bench.run(await bench.orders(*lines[:-1]), "--outcomes", bench.directory / "first")
    copy = bench.directory / "copy.db"
    await asyncio.to_thread(shutil.copy, bench.journal, copy)
    file = await bench.orders(*lines)
    await bench.run(file)
    for options in ([], ["--dry-run"]):
        result = await bench.run(file, "--journal", copy, *options, code=2)

        assert "contains no order of the key 'payment-0000045'" in result.stderr
    assert bench.sent == 45


@pytest.mark.parametrize(("share", "code", "is_complete"), [(0.0, 0, True), (1.0, 5, True), (1.0, 5, False)])
async def test_an_old_copy_of_the_journal_may_contain_a_free_key(bench, share, code, is_complete):
    """The first run was refused temporarily, and the second one created the order, or may have done so."""
    bench.sandbox.faults.add(Status(429, headers={"Retry-After": "86400"}))
    copy = bench.directory / "copy.db"
    await bench.run_one(code=4)
    await asyncio.to_thread(shutil.copy, bench.journal, copy)
    bench.sandbox.faults.mix({CloseAfterProcessing(): share})
    await bench.run_one(code=code)
    sent = bench.sent
    if not is_complete:  # An interrupted run leaves its outcomes in the .part file.
        await asyncio.to_thread(bench.outcomes.rename, bench.part)
    result = await bench.run_one("--journal", copy, code=2)

    assert "contains no order of the key 'payment-0000001'" in result.stderr
    assert bench.sent == sent


async def test_a_corrupt_record_is_not_mistaken_for_a_free_key(bench):
    """Its key is in use, whatever its state says. The run reports the corrupt record."""
    await bench.run_one()
    await asyncio.to_thread(corrupt, bench.journal)
    result = await bench.run_one(code=4)

    assert "JournalFailed 1" in result.stdout
    assert bench.sent == 1


def corrupt(journal: Path) -> None:
    with contextlib.closing(sqlite3.connect(journal)) as database, database:
        database.execute(f"UPDATE {ENTRY_TABLE} SET state = 'free', body = '{{'")


async def test_a_journal_that_cannot_be_compared_is_reported_and_nothing_is_sent(bench, monkeypatch):
    async def broken(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    await bench.run_one()
    monkeypatch.setattr(SQLiteJournal, "_sent", broken)
    for options in ([], ["--dry-run"]):
        result = await bench.run_one(*options, code=1)

        assert "the journal could not be read (OperationalError); nothing was sent" in result.stderr


async def test_a_refuted_order_may_be_corrected_and_sent(bench):
    """The outcomes say that the order may exist, but the journal knows that it does not."""
    bench.sandbox.faults.add(Status(503))
    await bench.run_one("--deadline", "0.1", code=5)
    refuted = await bench.run_one("--hooks", f"{__name__}:refuting", "--settle-after", "0.001", code=3)
    await bench.run(await bench.orders(row(1, transaction_fee="12.51")))

    assert "refuted: 1" in refuted.stdout
    assert len(bench.sandbox.orders) == 1


def refuting() -> dict[str, Any]:
    async def resolve(*_: Any) -> Any:
        return NO_ORDER

    return {"hooks": [], "resolve": resolve}


async def test_a_scope_that_looks_like_another_is_refused_before_anything_is_sent(bench):
    """Each line would fail with an error that looks temporary, so the command would be run again for ever."""
    await bench.run_one("--scope", "live")
    again = await bench.write(csv_text([row(2)]), "again.csv")
    result = await bench.run(again, "--scope", "Live", code=2)

    assert "create: the journal has no keys in the scope 'Live', but keys in 'live'" in result.stderr
    assert "pass --scope='live'; otherwise choose a scope that differs more" in result.stderr
    assert bench.sent == 1
    assert not await asyncio.to_thread((bench.directory / "again.csv.outcomes.jsonl.part").exists)


async def test_other_orders_may_be_created_with_a_new_journal(bench):
    """A bank may use one name for each month's file, and a journal for each month."""
    await bench.run(await bench.orders(row(1), row(2, **NOBODY)), code=3)
    await bench.run(await bench.orders(row(2), row(3)), "--journal", bench.directory / "other.db")

    assert len(bench.sandbox.orders) == 3


@pytest.mark.parametrize("text", [b"", b"\xff\n", b"{}\n[]\n7\n", b'{"outcome":"created"}\n{"key":7,"outc'])
async def test_unreadable_lines_of_outcomes_are_counted_and_do_not_stop_a_run(bench, text):
    await asyncio.to_thread(bench.outcomes.write_bytes, text)
    result = await bench.run_one()

    count = text.count(b"\n") + (not text.endswith(b"\n"))
    warning = f"orders.csv.outcomes.jsonl: unreadable lines, not compared with the journal: {count}\n"
    assert (warning in result.stderr) == bool(text)


async def test_a_file_of_outcomes_that_cannot_be_read_stops_a_run(bench, monkeypatch):
    def broken(path: Path, *mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path)) if path == bench.part else FileNotFoundError

    monkeypatch.setattr(create_outcomes.Path, "open", broken)
    with pytest.raises(ValueError, match=r"--outcomes: cannot read .*part \(Permission denied\)"):
        list(create_outcomes.orders_of_earlier_runs(bench.outcomes, Counter()))


@pytest.mark.parametrize(("name", "text"), [("orders.jsonl", ""), ("orders.csv", csv_text([]))])
@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
async def test_a_file_without_orders_is_a_fault(bench, name, text, arguments):
    """Without this, a failed export looks like a successful salary run."""
    result = await bench.run(await bench.write(text, name), *arguments, code=2)

    assert result.stdout == ""
    assert result.stderr == "create: FILE: contains no orders; nothing was sent\n"
    assert await bench.files() == [name]


# --- files with faults ----------------------------------------------------------------------------


async def test_all_faults_are_listed_by_line_and_nothing_is_sent_or_written(bench):
    file = await bench.orders(row(1), row(2, poster_amount="1.5e5"), row(1), row(4, held=""), row(5))
    result = await bench.run(file, code=2)

    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"line 3: poster_amount: {requests.number_problem('1.5e5')}",
        "line 4: key: is already used on line 2: give each order its own key",
        "line 5: held: is missing: add the hold's reference, or pass --hooks with a hold hook",
        "3 errors in 3 lines. Nothing was sent.",
    ]
    assert bench.sent == 0
    assert await bench.files() == ["orders.csv"]


async def test_a_file_that_changes_after_the_check_is_not_sent(bench, monkeypatch):
    file = await bench.orders(row(1), row(2))
    complete = create_input.Checking.run

    def checked_and_changed(self, records, keys):
        complete(self, records, keys)
        file.write_text(
            csv_text([row(1), row(2, matcher_amount="200.00", poster_amount="310050.00")]), encoding="utf-8"
        )

    monkeypatch.setattr(create_command.Checking, "run", checked_and_changed)
    result = await bench.run(file, code=1)

    assert "create: FILE was changed after it was checked: no further orders were sent" in result.stderr
    assert bench.sent == 0
    assert bench.outcomes.name not in await bench.files()


# --- wrong uses -----------------------------------------------------------------------------------


@each(
    ("arguments", "why"),
    [
        (["--outcomes", "{here}/orders.csv"], "--outcomes: {here}/orders.csv is also FILE or the journal"),
        (["--outcomes", "{here}/journal.db"], "--outcomes: {here}/journal.db is also FILE or the journal"),
        (["--outcomes", "."], "--outcomes: must be the path of a file"),
        (["--journal", ":memory:"], "--journal: path: must be the path of a file"),
        (["--journal", "mysql://x"], "--journal: a journal must be a file path or a postgresql://"),
        (["--journal", "no/such/j.db"], "--journal: the directory no/such does not exist"),
        (["--journal", "."], "--journal: . exists and is not a file"),
        (["--base-url", "http://service.example"], "create: --base-url: "),
        (["--lease", "10"], "lease: must be finite and at least 1.5 times the retry deadline"),
        (["--rate", "0"], "--rate: must be a finite number of orders per second, more than 0"),
        (["--rate", "1", "--burst", "0"], "--burst: must be a whole number, 1 or more"),
        (["--burst", "2"], "--burst: can be used only with --rate"),
        (["--hooks", "nonsense"], "--hooks: must be module:factory"),
        (["--hooks", f"{__name__}:broken_factory"], "--hooks: the factory failed (LookupError"),
        (["--hooks", f"{__name__}:twice"], "hooks: names must be unique"),
        (["--outcomes", "/no/such/one"], "--outcomes: the directory /no/such does not exist"),
    ],
)
async def test_a_wrong_option_is_reported_in_one_line_and_nothing_is_sent(bench, arguments, why):
    result = await bench.run_one(*(word.format(here=bench.directory) for word in arguments), code=2)

    assert why.format(here=bench.directory) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert bench.sent == 0


async def test_the_format_may_be_named(bench):
    file = await bench.write(jsonl_text([tree(1)]), "orders.txt")
    unknown = await bench.run(file, code=2)
    await bench.run(file, "--format", "jsonl")

    assert "--format is required (csv or jsonl)" in unknown.stderr


async def test_a_second_run_with_the_same_outcome_file_sends_nothing(bench):
    with contextlib.closing(await asyncio.to_thread(OutcomeFile, bench.outcomes)):
        result = await bench.run_one(code=2)

    assert "--outcomes: another run is writing" in result.stderr
    assert bench.sent == 0


async def test_a_journal_that_is_not_durable_is_refused(bench, monkeypatch):
    monkeypatch.setattr(create_command, "journal_named", lambda _: MemoryJournal())

    assert "--journal: must be durable" in (await bench.run_one(code=2)).stderr


async def test_without_a_hold_hook_every_line_must_give_its_hold(bench):
    file = await bench.orders(row(1), row(2, held=""))
    result = await bench.run(file, "--hooks", f"{__name__}:checks_only", code=2)

    assert "line 3: held: is missing" in result.stderr


async def test_a_file_that_is_no_journal_is_reported_and_nothing_is_sent(bench):
    await bench.write("no database at all, " * 100, "journal.db")
    result = await bench.run_one(code=1)

    assert result.stderr.splitlines()[-1].startswith("create: the journal cannot be opened (")
    assert bench.sent == 0


async def test_the_journal_may_be_the_address_of_a_database(bench, postgres):
    result = await bench.run_one("--journal", postgres.dsn_of("none"), code=1)

    assert "create: the journal cannot be opened (InvalidCatalogNameError)" in result.stderr
    assert await bench.files() == ["orders.csv"]
    assert bench.sent == 0


async def test_a_line_whose_deadline_passes_while_it_waits_is_not_sent(bench):
    soon = (datetime.now(UTC) + timedelta(seconds=500)).isoformat()
    file = await bench.orders(row(1), row(2), row(3, deadline=soon))
    result = await bench.run(file, "--rate", "0.001", "--burst", "2", code=4)

    assert ": 2 created, 1 not sent" in result.stdout
    assert len(bench.sandbox.orders) == 2


async def test_all_missing_options_are_named_at_once(bench, monkeypatch):
    for name in ("TRANSFER_BASE_URL", "TRANSFER_API_TOKEN"):
        monkeypatch.delenv(name)
    result = await bench.run_one(code=2)

    missing = "--base-url, or TRANSFER_BASE_URL; --token, or TRANSFER_API_TOKEN"
    assert result.stderr == f"create: {missing}: required unless you use --dry-run\n"


async def test_a_missing_file_a_directory_and_a_pipe_are_refused(bench):
    missing, directory, pipe = (bench.directory / name for name in ("no.csv", "dir.csv", "pipe.csv"))
    await asyncio.to_thread(directory.mkdir)
    await asyncio.to_thread(os.mkfifo, pipe)
    for path in (missing, directory, pipe):
        assert (await bench.run(path, code=2)).stderr.startswith("create: FILE: ")


@each("arguments", [["--concurrency", "0"], ["--concurrency", "1001"], ["--format", "xml"], []])
async def test_an_argument_that_typer_rejects_exits_with_2(bench, arguments):
    file = await bench.orders(row(1))
    result = await asked("create", *([file, *arguments] if arguments else []), code=2)

    assert "Usage: transfer-async create" in result.stderr
    assert bench.sent == 0


async def test_the_error_for_a_missing_driver_says_what_to_install(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    result = await bench.run_one("--journal", "postgresql://127.0.0.1/none", code=2)

    needed = 'pip install "transfer_async[postgres]"'
    assert result.stderr == f"create: --journal: postgresql:// needs asyncpg: {needed}\n"


# --- stopping early -------------------------------------------------------------------------------


async def test_a_run_stopped_during_the_check_has_sent_nothing(bench, monkeypatch):
    stopping = Stopping()
    monkeypatch.setattr(create_command, "Stopping", lambda: stopping)
    keys_seen = create_input.Keys.seen

    def seen(*arguments: Any) -> int | None:
        stopping.ask(signal.SIGINT)
        return keys_seen(*arguments)

    monkeypatch.setattr(create_input.Keys, "seen", seen)
    result = await bench.run(await bench.orders(*rows(200)), code=130)

    assert result.stdout == ""
    assert "stopped during the check; nothing was sent" in result.stderr
    assert await bench.files() == ["orders.csv"]


async def test_a_factory_that_never_ends_can_be_stopped(bench, monkeypatch):
    stopping = Stopping()
    monkeypatch.setattr(create_command, "Stopping", lambda: stopping)

    async def endless() -> None:
        stopping.ask(signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(sys.modules[__name__], "endless", endless, raising=False)
    await bench.run_one("--hooks", f"{__name__}:endless", code=143)


# --- a dry run ------------------------------------------------------------------------------------


async def test_a_dry_run_shows_the_sums_and_needs_neither_the_service_nor_the_journal(bench, monkeypatch):
    for name in ("TRANSFER_JOURNAL", "TRANSFER_BASE_URL", "TRANSFER_API_TOKEN"):
        monkeypatch.delenv(name)
    result = await bench.run(await bench.orders(row(1), row(2)), "--dry-run")

    assert result.stdout.splitlines() == [
        "2 orders",
        "  sent      NGN        310,050.00",
        "  to arrive USD        200.00",
        "no errors found; this was a dry run, so nothing was sent or written",
    ]
    assert bench.sent == 0
    assert await bench.files() == ["orders.csv"]


async def test_a_dry_run_reports_time_limits_that_have_passed(bench):
    """The run itself accepts such a line, because a key that already has an order returns it."""
    late = row(2, send_before="2020-01-01T00:00:00Z", deadline="2020-01-01T00:00:00Z")
    file = await bench.orders(row(1, send_before="2999-01-01T00:00:00Z"), late)
    dry = await bench.run(file, "--dry-run", code=2)
    real = await bench.run(file, code=4)

    passed = "has passed: set a later time (if the key already has an order, that order is still returned)"
    assert dry.stderr.splitlines() == [
        f"line 3: send_before: {passed}",
        f"line 3: deadline: {passed}",
        "2 errors in 1 line. Nothing was sent.",
    ]
    assert ": 1 created, 1 not sent" in real.stdout


async def test_a_corrected_line_keeps_its_key(bench):
    file = await bench.orders(row(1), row(2, **NOBODY, matcher_amount="1", poster_amount="1550.25"))
    runs = [await bench.run(file, code=3) for _ in range(2)]

    refused = [one for one in await bench.outcome_lines() if one["outcome"] == "refused"]
    assert [one["fields"] for one in refused] == [["poster_recipient_username"]]
    advice = "refused again: 1 (Refused 1). The service named these fields: poster_recipient_username 1. "
    assert all(advice in result.stdout for result in runs)
    await bench.run(await bench.orders(row(1), row(2)))
    assert bench.sent == 3


async def test_a_refuted_line_is_not_sent_again_and_this_is_reported(bench):
    """The key is free, but the line still contains the same order. To pay it, the user needs another key."""
    bench.sandbox.faults.add(CloseBeforeReading())
    await bench.run_one(code=5)
    arguments = ["journal", "refute", row(1)["key"], "--by", "ada", "--reason", "sure", "--yes"]
    refuted = await asked(*arguments, "--settle-after", "0")
    again = await bench.run_one(code=3)
    await bench.run(await bench.orders(row(1, key="another")))

    assert "another key" in refuted.stdout
    assert "refuted: 1. These orders were in doubt and do not exist." in again.stdout
    assert len(bench.sandbox.orders) == 1


# --- the bank's hooks -----------------------------------------------------------------------------


the_bank = Bank()
"""The bank whose hooks `make` returns."""


@pytest.fixture
def bank(monkeypatch) -> Bank:
    bank = Bank()
    monkeypatch.setattr(sys.modules[__name__], "the_bank", bank)
    return bank


FOUND = "tx-abcdefghij0123456789"
HOOKS = ["--hooks", f"{__name__}:make"]


async def make() -> dict[str, Any]:
    async def resolve(*_: Any) -> str:
        return FOUND

    return {"hooks": [the_bank.hold], "resolve": resolve}


def checks_only() -> list[Any]:
    async def check(_intent) -> None: ...

    return [check]


def broken_factory() -> None:
    raise LookupError("Ada Eze\nand more")


def twice() -> list[Any]:
    return checks_only() * 2


async def test_the_hooks_place_the_holds_and_the_factorys_resolve_is_called_for_a_doubt(bench, bank):
    bench.sandbox.faults.add(CloseAfterProcessing(), username="payment-0000001@bulk.example")
    cells = [row(1, held=""), row(2, held="", **NOBODY), row(3)]
    await bench.run(await bench.orders(*cells), *HOOKS, code=3)

    # The third order has a hold that the bank itself placed.
    assert sorted(intent.key for intent in bank.intents) == ["payment-0000001", "payment-0000002"]
    assert len(bank.open) == 1
    assert FOUND in [one.get("order_id") for one in await bench.outcome_lines()]


async def test_an_order_that_a_hook_refused_may_be_sent_by_the_same_command(bench, bank):
    """If the operator paid it by other means, the next run would pay it again."""
    file = await bench.orders(row(1, held=""))
    bank.place_error = HoldFailed("no funds")
    first = await bench.run(file, *HOOKS, code=4)
    bank.place_error = None
    await bench.run(file, *HOOKS)

    assert "may succeed later: 1 (HoldFailed 1). The same command may send these orders" in first.stdout
    assert "do not pay them by other means" in first.stdout
    assert len(bench.sandbox.orders) == 1


async def test_pending_undos_are_reported(bench, bank):
    bank.release_error = LookupError()
    result = await bench.run(await bench.orders(row(1, held="", **NOBODY)), *HOOKS, code=3)

    assert "failed undos, now pending: 1. Run: transfer-async journal recover" in result.stdout


async def test_a_factory_may_return_the_token_and_observers(bench, monkeypatch):
    seen = []

    def factory() -> dict[str, Any]:
        return {"hooks": [], "token": "s3cr3t", "observers": [seen.append]}

    monkeypatch.setattr(sys.modules[__name__], "brings", factory, raising=False)
    monkeypatch.delenv("TRANSFER_API_TOKEN")
    await bench.run_one("--hooks", f"{__name__}:brings")

    assert seen


# --- exit codes -----------------------------------------------------------------------------------


async def test_giving_up_at_the_last_line_reports_all_outcomes(bench):
    """Without this, the user would search for outcomes that are already in the file."""
    bench.sandbox.faults.add(Status(401), times=None)
    file = await bench.orders(*(row(number) for number in range(1, 11)))
    result = await bench.run(file, "--concurrency", "4", code=4)

    assert "10 consecutive orders failed with" in result.stderr
    assert "create: stopped early" not in result.stderr
    assert "10 refused" in result.stdout
    assert f"outcomes: {bench.outcomes}" in result.stdout


async def test_an_unreachable_service_ends_the_run(bench, bank, monkeypatch, closed_port):
    monkeypatch.setenv("TRANSFER_BASE_URL", f"http://127.0.0.1:{closed_port}")
    cells = (row(number, held="") for number in range(1, 200))
    file = await bench.orders(*cells)
    result = await bench.run(file, *HOOKS, "--concurrency", "4", code=1)

    assert "create: stopped early: 20 consecutive orders failed with ConnectionFailed" in result.stderr
    assert "stopped early after 2" in result.stdout
    assert f"outcomes so far: {bench.part}" in result.stdout
    assert len(bank.placed) < 40
    assert bank.open == {}


@each(
    ("part", "call", "error", "why"),
    [
        (create_input.Keys, "seen", sqlite3.OperationalError(), "cannot write the temporary file of keys"),
        (create_input.Checking, "run", OSError(5, "torn"), "FILE: cannot be read (torn)"),
    ],
)
async def test_a_check_that_fails_is_reported_and_nothing_is_sent(bench, part, call, error, why):
    def broken(*_: Any) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, call, broken)
        result = await bench.run_one(code=1)

    assert f"create: {why}" in result.stderr
    assert "; nothing was sent" in result.stderr


@pytest.mark.parametrize("step", ["write", "finish"])
async def test_a_full_disk_is_reported_and_the_journal_has_the_outcomes(bench, monkeypatch, step):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    file = await bench.orders(*(row(number) for number in range(1, 20)))
    monkeypatch.setattr(create_command.OutcomeFile, step, full)
    first = await bench.run(file, code=1)
    monkeypatch.undo()
    arguments = ["--base-url", bench.sandbox.base_url, "--token", "s3cr3t", "--journal", bench.journal]
    await bench.run(file, *arguments)

    assert "No space left on device" in first.stderr
    assert len(bench.sandbox.orders) == 19


# --- the rest -------------------------------------------------------------------------------------


def test_the_help_lists_the_exit_codes_and_the_options():
    result = invoke("create", "--help")

    assert result.exit_code == 0
    assert all(f"\n    {code} " in result.output for code in (0, 1, 2, 3, 4, 5, 130))
    assert all(option in result.output for option in ("--dry-run", "--hooks", "--outcomes", "--journal"))
    text = " ".join(result.output.split())
    assert "hooks and, optionally, resolve, token, retry and other settings." in text
    assert f"{create_command.AT_LEAST}, or twice --concurrency if that is more ({2 * 16} by default)" in text
    assert "[default: 16;" in text
