"""The file of outcomes is complete or absent, readable only by its owner, and free of personal data."""

import json
import os
import stat
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.bank import Time
from tests.support.cases import each
from tests.support.samples import encode, order_json
from transfer_async._cli import create_outcomes
from transfer_async._cli.create_outcomes import EVERY, KEPT, OutcomeFile, outcome_line
from transfer_async._models.errors import (
    InvalidOrder,
    JournalFailed,
    KeyBusy,
    Outcome,
    OutcomeUnknown,
    Refused,
    UnreadableOrder,
)
from transfer_async._models.responses import Order


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outcomes.jsonl"


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def outcomes(path, clock):
    made = OutcomeFile(path, clock=clock.clock)
    yield made
    made.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_part_file_exists_until_it_is_finished(outcomes, path):
    outcomes.add(b"one\n")
    outcomes.write()
    before = path.exists(), outcomes.part.exists()
    outcomes.add(b"two\n")
    outcomes.finish()

    assert (before, path.exists(), outcomes.part.exists()) == ((False, True), True, False)
    assert (path.read_bytes(), mode(path)) == (b"one\ntwo\n", 0o600)


@pytest.mark.parametrize("has_locks", [True, False])
def test_the_file_of_an_earlier_run_is_renamed_to_old(path, monkeypatch, has_locks):
    monkeypatch.setattr(create_outcomes, "fcntl", create_outcomes.fcntl if has_locks else None)
    part = path.with_name("outcomes.jsonl.part")
    path.write_bytes(b"old\n")
    part.write_bytes(b"left by a run that was killed, and longer than this one\n")
    for file in (path, part):
        file.chmod(0o644)
    made = OutcomeFile(path)
    made.add(b"new\n")
    made.write()
    between = path.exists(), mode(part)
    made.finish()
    made.close()

    assert between == (False, 0o600)
    assert path.read_bytes() == b"new\n"
    assert path.with_name("outcomes.jsonl.old").read_bytes() == b"old\n"
    assert not path.with_name("outcomes.jsonl.part.old").exists()


@pytest.mark.parametrize("has_locks", [True, False])
def test_the_orders_of_interrupted_runs_are_known_until_a_run_is_complete(path, monkeypatch, has_locks):
    """Otherwise, a run that is stopped early would let a later run pay again with another journal."""
    monkeypatch.setattr(create_outcomes, "fcntl", create_outcomes.fcntl if has_locks else None)
    line = '{{"key": "{}", "outcome": "created"}}\n'.format
    path.with_name("outcomes.jsonl.part").write_text(line("a") + line("b") + '{"key": "kil', encoding="utf-8")

    def known() -> list[str]:
        return [order.key for order in create_outcomes.orders_of_earlier_runs(path, Counter())]

    found = []
    for written in ("", "c", "", "d"):
        run = OutcomeFile(path)
        run.add(line(written).encode() if written else b"")
        run.write()
        run.close()
        found.append(known())
    complete = OutcomeFile(path)
    complete.finish()
    complete.close()

    assert found == [["a", "b"], ["c", "a", "b"], ["a", "b", "c"], ["d", "a", "b", "c"]]
    assert known() == []


def test_two_runs_do_not_write_one_file(outcomes, path):
    outcomes.add(b"one\n")
    with pytest.raises(ValueError, match="another run is writing"):
        OutcomeFile(path)
    outcomes.finish()

    assert path.read_bytes() == b"one\n"


def test_a_file_that_was_completed_while_another_run_started_is_renamed_to_old(path, monkeypatch):
    first = OutcomeFile(path)
    first.add(b"one\n")
    flock = create_outcomes.fcntl.flock

    def flocked(file: int, how: int) -> None:
        monkeypatch.setattr(create_outcomes.fcntl, "flock", flock)
        first.finish()
        first.close()  # the other process has already opened the file, and now gets the lock
        flock(file, how)

    monkeypatch.setattr(create_outcomes.fcntl, "flock", flocked)
    second = OutcomeFile(path)
    second.add(b"two\n")
    second.write()
    second.close()

    assert path.with_name("outcomes.jsonl.old").read_bytes() == b"one\n"
    assert second.part.read_bytes() == b"two\n"


@pytest.mark.parametrize("end", ["", ".part", ".old", ".part.old"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_only_regular_files_are_replaced(path, end, make):
    make(path.with_name(path.name + end))

    with pytest.raises(ValueError, match="exists and is not a regular file"):
        OutcomeFile(path)


@pytest.mark.parametrize("end", ["", ".part", ".old", ".part.old"])
def test_the_orders_are_not_overwritten_under_any_name(path, tmp_path, end):
    orders = tmp_path / "orders.csv"
    orders.write_text("orders", encoding="utf-8")
    os.link(orders, path.with_name(path.name + end))

    for protected in (orders, path):  # the second file may not exist yet
        with pytest.raises(ValueError, match="is also FILE or the journal"):
            OutcomeFile(path, protected=(protected,))
    assert orders.read_text(encoding="utf-8") == "orders"


@each(
    ("holder", "call", "message"),
    [
        (Path, "replace", "cannot rename"),
        (os, "open", "cannot write"),
        (create_outcomes.fcntl, "flock", "cannot write"),
    ],
)
def test_an_error_of_the_system_is_reported_and_the_lock_is_released(path, holder, call, message):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, call, refused)
        with pytest.raises(ValueError, match=rf"{message} .* \(Permission denied\)"):
            OutcomeFile(path)
    OutcomeFile(path).close()


def test_lines_are_written_together_or_after_some_time(outcomes, clock):
    due = []
    for _ in range(KEPT):
        due.append(outcomes.is_due)
        outcomes.add(b"x\n")
    assert (any(due), outcomes.is_due) == (False, True)
    outcomes.write()
    outcomes.add(b"y\n")
    assert not outcomes.is_due
    assert outcomes.part.read_bytes() == b"x\n" * KEPT
    clock.pass_(EVERY)
    assert outcomes.is_due


def test_a_partial_write_is_continued(outcomes, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    outcomes.add(b"a long line\n")
    outcomes.write()

    assert outcomes.part.read_bytes() == b"a long line\n"


ORDER = Order.from_json(encode(order_json()))


def parsed_line(result) -> dict:
    line = outcome_line(7, "k", result)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def test_the_line_of_an_order_has_what_the_service_recorded_exactly():
    data = parsed_line(ORDER)

    assert (data["line"], data["key"], data["outcome"], data["order_may_exist"]) == (7, "k", "created", True)
    assert data["order_id"] == ORDER.id
    assert data["poster_amount"] == format(ORDER.poster_amount, "f")
    assert not any("@" in str(value) for value in data.values())


@pytest.mark.parametrize("fee", ["1e5000000", "1e-5000000", "0e999999999999"])
def test_a_number_that_would_fill_the_disk_is_written_with_its_exponent(fee):
    written = encode(order_json())
    order = Order.from_json(written.replace(b'"poster_fee":', b'"poster_fee":%s,"_":' % fee.encode()))
    data = parsed_line(order)

    assert Decimal(data["poster_fee"]) == order.poster_fee == Decimal(fee)
    assert len(data["poster_fee"]) < 20


REFUSED = Refused(status=422, order_may_exist=False)


@each(
    ("error", "expected"),
    [
        (REFUSED, {"outcome": "refused", "order_may_exist": False, "status": 422}),
        (OutcomeUnknown(status=503), {"outcome": "unknown", "order_may_exist": True, "status": 503}),
        (UnreadableOrder(order_id="tx-2"), {"outcome": "unknown", "order_id": "tx-2"}),
        (KeyBusy(retry_after=3.0), {"outcome": "not_sent", "order_may_exist": True, "error": "KeyBusy"}),
        (RuntimeError("Ada Eze"), {"outcome": "unknown", "order_may_exist": True, "error": "RuntimeError"}),
        (JournalFailed(outcome=Outcome.CREATED, order=ORDER), {"outcome": "created", "order_id": ORDER.id}),
        (InvalidOrder([("held", "is missing")]), {"reason": "the command is not valid: held: is missing"}),
    ],
)
def test_the_line_of_an_error_has_what_is_certain(error, expected):
    found = parsed_line(error)

    assert {name: found[name] for name in expected} == expected
    assert found["error"] == type(error).__name__
    assert "Ada" not in str(found)
