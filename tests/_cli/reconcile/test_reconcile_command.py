"""`journal reconcile`, from an export file and a journal file to its output."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests._cli.journal.terminal import asked
from tests.support import commands
from tests.support.bank import World, other_order, world_in_a_file
from tests.support.cases import each
from transfer_async import Clock, KeyState, NewOrder, OutcomeUnknown, SQLiteJournal, TransferClient
from transfer_async.journal.protocol import ScopedJournal
from transfer_async.sandbox import CloseBeforeReading


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    async with world_in_a_file(tmp_path / "journal.db", monkeypatch, clock=Clock()) as world:  # the sandbox's
        yield world


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


async def write(
    world: World, export: Path, *, without: str = "", time: Callable[[datetime], str] = datetime.isoformat
) -> Path:
    """Save the sandbox's orders as an export with one order per line, whose times have the given format."""
    url = f"{world.sandbox.base_url}/sandbox/orders.jsonl"
    headers = {"Authorization": f"Bearer {world.sandbox.token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        orders = [json.loads(line) for line in (await response.text()).splitlines()]
    for order in orders:
        order["posted_at"] = time(datetime.fromisoformat(order["posted_at"]))
    lines = (f"{json.dumps(order)}\n" for order in orders if order["id"] != without)
    await asyncio.to_thread(export.write_text, "".join(lines))
    return export


async def reconciled(*arguments: Any, code: int = 0) -> str:
    return (await asked("reconcile", *arguments, code=code)).output


async def found(*arguments: Any, code: int = 3) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await reconciled(*arguments, "--json", code=code)).splitlines()]


async def test_the_order_of_a_doubt_is_found_with_the_command_that_resolves_it(world, export):
    await world.create(key="paid")
    assert "1  orders in the export that belong to a key" in await reconciled(await write(world, export))
    await world.in_doubt("lo'st", order=other_order())
    order_id = list(world.sandbox.orders)[-1]

    output = await reconciled(await write(world, export), code=3)

    command = f"""transfer-async journal resolve 'lo'"'"'st' --order-id {order_id}"""
    assert f"only {order_id} matches; to resolve the key, run {command}" in output


async def test_a_match_is_proposed_once_and_ends_no_doubt(world, export):
    await world.in_doubt("lost", order=other_order())
    (order_id,) = world.sandbox.orders

    output = await reconciled(await write(world, export), "--propose", "--by", "ada", code=3)
    again = await reconciled(export, "--propose", "--by", "ben", code=3)

    assert "1 proposed: another person must approve each proposal" in output
    assert "lost: not proposed: ada has already proposed a decision" in again
    entry = await world.entry("lost")
    assert entry.state is KeyState.IN_DOUBT
    assert entry.proposal is not None
    assert (entry.proposal.by, entry.proposal.order_id) == ("ada", order_id)
    assert "export.jsonl" in entry.proposal.reason


async def test_two_equal_doubts_are_ambiguous_and_their_orders_unknown(world, export):
    await world.create(key="paid")
    await world.in_doubt("lost")
    await world.in_doubt("lost as well")
    _, first, second = world.sandbox.orders

    figures, *findings = await found(await write(world, export))

    assert (figures["matched"], figures["ambiguous"], figures["unknown"]) == (0, 2, 2)
    assert {"finding": "ambiguous", "key": "lost", "order_ids": [first, second]} in findings
    paid = (await world.entry("paid")).order_id
    assert {"finding": "unknown", "order_id": first, "like": paid, "like_key": "paid"} in findings


async def refuted_by_mistake(world: World, *, is_recovered: bool = True) -> str:
    """Refute a key although its order exists. Return the order's id."""
    await world.in_doubt("mistaken")
    async with world.client(settle_after=0) as client:
        await client.refute("mistaken", by="ada", reason="the support: no such order")
        if is_recovered:
            await client.recover()  # Recovery releases the hold and deletes the order's data.
    return list(world.sandbox.orders)[-1]


async def lost_before_it_was_read(world: World, key: str = "lost", order: NewOrder | None = None) -> None:
    world.sandbox.faults.add(CloseBeforeReading())
    await world.fails(OutcomeUnknown, order, key=key)


async def created_anew(world: World) -> None:
    await world.create(key="mistaken")


async def in_doubt_anew_with_another_order(world: World) -> None:
    await lost_before_it_was_read(world, "mistaken", other_order())


@pytest.mark.parametrize("then", [None, created_anew, in_doubt_anew_with_another_order])
async def test_the_order_of_a_refuted_key_is_not_proposed_for_another(world, export, then):
    """Without this, one customer pays for another customer's order."""
    order_id = await refuted_by_mistake(world)
    await lost_before_it_was_read(world)
    if then is not None:
        await then(world)

    output = await reconciled(await write(world, export), "--propose", "--by", "ben", code=3)

    assert f"lost: ambiguous; matching orders: {order_id}" in output
    assert "one of these orders may belong to a refuted key: mistaken" in output
    assert "0 proposed" in output
    assert f"{order_id}: belongs to no key" in output
    ambiguous = {"finding": "ambiguous", "key": "lost", "order_ids": [order_id], "refuted": ["mistaken"]}
    assert ambiguous in await found(export)


async def test_an_earlier_order_of_a_doubt_may_have_been_sent_too(world, export):
    """The undo of a refuted attempt is pending while the key is in doubt about another order."""
    await refuted_by_mistake(world, is_recovered=False)
    await in_doubt_anew_with_another_order(world)
    await lost_before_it_was_read(world)

    figures, *_ = await found(await write(world, export))

    assert (figures["matched"], figures["ambiguous"]) == (0, 1)


async def test_a_doubt_that_no_order_fits_stays_as_it_is(world, export):
    await world.create(key="paid")
    await world.in_doubt("lost")
    before = await world.entry("lost")

    output = await reconciled(await write(world, export, without=list(world.sandbox.orders)[-1]), code=3)

    assert "lost: no matching order so far; the order may appear later" in output
    assert await world.entry("lost") == before


async def test_a_created_key_that_the_export_lacks_is_reported(world, export):
    for key in ("first", "second", "third"):
        await world.create(key=key)
    second = list(world.sandbox.orders)[1]

    figures, *findings = await found(await write(world, export, without=second), "--slack", "0")

    assert figures["lacking"] == 1
    assert findings == [{"finding": "lacking", "key": "second", "order_id": second}]


async def test_findings_beyond_the_maximum_are_counted(world, export):
    await world.create(key="paid")
    ((order_id, order),) = world.sandbox.orders.items()
    line = order.to_json().decode()
    lines = (f"{line.replace(order_id, f'tx-other{number}')}\n" for number in range(23))
    await asyncio.to_thread(export.write_text, "".join(lines))

    output = await reconciled(export, code=3)

    assert output.count("belongs to no key") == 20
    assert "and 3 more unknown: --json prints all" in output


CSV = {
    "Ref": lambda order: order.id,
    "poster_username": lambda order: order.poster_username.upper(),
    "poster_recipient_username": lambda order: order.beneficiary.username,
    "poster_currency": lambda order: order.request.poster_currency,
    "poster_amount": lambda order: f"{order.poster_amount}000",
    "matcher_currency": lambda order: order.request.matcher_currency,
    "matcher_amount": lambda order: str(order.request.matcher_amount),
    "When": lambda order: order.posted_at.replace(tzinfo=None).isoformat(),
}


async def test_a_csv_export_may_have_other_column_names(world, tmp_path):
    await world.in_doubt("lost")
    text = io.StringIO(newline="")
    orders = world.sandbox.orders.values()
    csv.writer(text).writerows([list(CSV), *([cell(order) for cell in CSV.values()] for order in orders)])
    path = tmp_path / "export.csv"
    await asyncio.to_thread(path.write_text, text.getvalue())

    figures, *_ = await found(path, "--column", "order_id=Ref", "--column", "posted_at=When")

    assert (figures["matched"], figures["is_time_assumed"]) == (1, True)


# --- times --------------------------------------------------------------------------------------


def local(hours: int) -> Callable[[datetime], str]:
    return lambda time: time.astimezone(timezone(timedelta(hours=hours))).replace(tzinfo=None).isoformat()


async def test_nothing_is_compared_if_the_times_differ_by_more_than_the_slack(world, export):
    """Without this, an order could be matched to an equal doubt from an hour later."""
    await world.create(key="paid")
    await world.in_doubt("lost")

    for change in (lambda time: f"{time:%Y-%m-%d} 00:00:00+14:00", local(-5), local(1)):
        await write(world, export, time=change)
        output = await reconciled(export, "--propose", "--by", "ada", code=1)
        assert "EXPORT: nothing was compared, because posted_at of tx-" in output
        assert "from the time in the journal for paid. A time without a time zone is read" in output
        assert "only tx-" not in output
    assert (await world.entry("lost")).proposal is None
    figures, *_ = await found(export, "--slack", "3700")
    assert figures["matched"] == 1


async def test_a_warning_says_that_utc_is_assumed_until_an_order_confirms_it(world, export):
    await world.in_doubt("lost")
    await write(world, export, time=local(0))

    output = await reconciled(export, "--propose", "--by", "ada", code=3)

    assert "posted_at: has no time zone, and was read as UTC" in output
    proposal = (await world.entry("lost")).proposal
    assert proposal is not None
    assert "if the export's times are in UTC" in proposal.reason
    await world.create(key="paid", order=other_order())
    output = await reconciled(await write(world, export, time=local(0)), code=3)
    assert "has no time zone" not in output


async def test_an_order_recorded_late_is_no_sign_of_another_clock(world, export, monkeypatch):
    """An order may be recorded hours after it was created; this does not mean that the clocks differ."""
    await world.create(key="paid")
    orders = ScopedJournal.orders

    async def later(*arguments: Any, **named: Any) -> list[tuple[str, str, float | None]]:
        return [(id_, key, at and at + 7200.0) for id_, key, at in await orders(*arguments, **named)]

    monkeypatch.setattr(ScopedJournal, "orders", later)

    assert "1  orders in the export that belong to a key" in await reconciled(await write(world, export))


# --- ids given by a person ------------------------------------------------------------------


async def resolved(world: World, key: str, order_id: str) -> None:
    async with world.client() as client:
        await client.resolve(key, order_id=order_id, by="ada", reason="the support said so")


async def test_a_key_resolved_with_another_customers_order_is_reported(world, export):
    """Without this, the bank believes that the customer's payment was made."""
    await lost_before_it_was_read(world, "mistaken")
    theirs = await order_of_somebody_else(world)
    await resolved(world, "mistaken", theirs)

    output = await reconciled(await write(world, export), code=3)

    assert f"mistaken: was resolved with {theirs}, whose users, amounts or time do not match" in output
    assert "journal amend mistaken" in output
    figures, *findings = await found(export)
    assert figures["wrong_order"] == 1
    assert findings == [{"finding": "wrong_order", "key": "mistaken", "order_id": theirs}]


async def order_of_somebody_else(world: World) -> str:
    """Create an order that belongs to no key of the journal, like an order of another system of the bank."""
    async with TransferClient(world.sandbox.base_url, world.sandbox.token) as client:
        order = await client.create_order(other_order(), held="their own")
    return order.id


@pytest.mark.parametrize("id_of", ["no order", "another order"])
async def test_a_key_resolved_with_a_wrong_id_may_have_sent_the_order_that_fits_another(world, export, id_of):
    await world.in_doubt("mistaken")
    (order_id,) = world.sandbox.orders
    theirs = "tx-typo" if id_of == "no order" else await order_of_somebody_else(world)
    await resolved(world, "mistaken", theirs)
    await lost_before_it_was_read(world)

    output = await reconciled(await write(world, export), "--propose", "--by", "ben", code=3)

    assert f"lost: ambiguous; matching orders: {order_id}" in output
    assert "0 proposed" in output
    assert (f"matching orders: {order_id}. To correct" in output) is (id_of == "another order")


async def test_a_key_resolved_correctly_leaves_the_other_order_to_the_other_key(world, export):
    await world.in_doubt("first")
    await world.in_doubt("second")
    first, second = world.sandbox.orders
    await resolved(world, "first", first)

    output = await reconciled(await write(world, export), code=3)

    assert f"second: only {second} matches" in output


# --- unreadable exports --------------------------------------------------------------------------


@pytest.fixture
async def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a directory with an empty journal, and set the environment to use that journal."""
    async with SQLiteJournal(tmp_path / "journal.db"):
        pass
    monkeypatch.setenv("TRANSFER_BASE_URL", "https://service.example")
    monkeypatch.setenv("TRANSFER_JOURNAL", str(tmp_path / "journal.db"))
    return tmp_path


def output_of(path: Path, *arguments: str, code: int) -> str:
    result = commands.invoke("journal", "reconcile", path, *arguments)
    assert result.exit_code == code, result.output
    return result.output


GOOD = {
    "id": "tx-1",
    "user": {"username": "a@example.com"},
    "postersBeneficiary": {"username": "b@example.com"},
    "poster_currency": "NGN",
    "poster_amount": 10,
    "matcher_currency": "USD",
    "matcher_amount": 1.5,
    "posted_at": "2026-01-31T12:00:00.000Z",
}


TWO_IDS = "order_id: found in order_id and in id; choose one of these columns with --column"
HEADER = (
    "id,poster_username,poster_recipient_username,poster_currency,poster_amount,matcher_currency,"
    "matcher_amount,posted_at"
)


def row(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


@each(
    ("text", "why"),
    [
        (row(id=None), "line 1: missing: order_id (looked for as order_id or id)"),
        (row(user="a"), "line 1: missing: poster_username (looked for as"),
        (row(poster_currency=7), "line 1: poster_currency: must be text"),
        (row(poster_amount="1e3"), "line 1: poster_amount: is not a plain decimal"),
        (row(posted_at="noon"), "line 1: posted_at: is not a time"),
        ("[1]", "line 1: missing: order_id"),
        ("", "the export contains no orders"),
        ("\n \n", "the export contains no orders"),
        (f"{HEADER}\n", "the export contains no orders"),
        (f"{row()}\n{{", "line 2: is not JSON"),
        ("\udcff", "line 1: is not UTF-8"),
        (f"{row()}\n{row(poster_amount=11)}", "the export contains order tx-1 twice"),
        (f"{HEADER}\ntx-1\n", "line 2: has a different number of values than the header"),
        (f'{HEADER}\n"tx-1', "line 2: is not valid CSV"),
        (f"{HEADER}\n\udcff\n", "line 2: is not UTF-8"),
        (row(id="17"), "line 1: order_id: must look like 'tx-…'"),
        (row(order_id="tx-2"), f"line 1: {TWO_IDS}"),
        (row(posted_at="2026-01-31"), "line 1: posted_at: is a date without a time"),
        (row(posted_at="2026-W05-6"), "line 1: posted_at: is a date without a time"),
        (row(posted_at="2026-01-31T12"), "line 1: posted_at: is a date without a time"),
        (f"{HEADER},poster_amount\n", "line 1: poster_amount: two columns have the name poster_amount"),
        (f"{HEADER},order_id\n", f"line 1: {TWO_IDS}"),
    ],
)
def test_nothing_is_compared_if_an_order_cannot_be_read(empty, text, why):
    path = empty / ("export.csv" if text.startswith("id") else "export.jsonl")
    path.write_text(text, errors="surrogateescape", encoding="utf-8")

    output = output_of(path, code=1)

    assert why in output
    assert "nothing was compared" in output


@each(
    ("name", "text"),
    [
        ("export.csv", "Ref" + HEADER + "\n" + "tx-1,a,b,NGN,10,USD,1,2026-01-31T12:00:00Z\n" * 30),
        ("export.jsonl", (row(id=None, Ref="tx-1") + "\n") * 30),
    ],
)
def test_a_missing_column_is_reported_once_with_the_option_that_helps(empty, name, text):
    (empty / name).write_text(text, encoding="utf-8")

    output = output_of(empty / name, code=1)

    assert output.count("order_id (looked for as order_id or id)") == 1
    assert "pass --column order_id=COLUMN" in output


def test_only_the_first_faults_are_printed(empty):
    lines = (row(id=f"tx-{number}") + "\n" + row(id=f"tx-{number}", poster_amount=11) for number in range(30))
    (empty / "export.jsonl").write_text("\n".join(lines), encoding="utf-8")

    assert output_of(empty / "export.jsonl", code=1).count(" twice, with different values") == 20


@each(
    ("arguments", "code", "why"),
    [
        (["export.xlsx"], 2, "EXPORT: the file's name must end in"),
        (["gone.csv"], 1, "EXPORT: cannot be read (No such file"),
        (["export.jsonl", "--column", "colour=red"], 2, "--column: must be FIELD=COLUMN"),
        (["export.jsonl", "--slack", "-1"], 2, "--slack: must be"),
    ],
)
def test_reconcile_explains_each_usage_error(empty, arguments, code, why):
    (empty / "export.jsonl").write_text(json.dumps(GOOD), encoding="utf-8")

    assert why in output_of(empty / arguments[0], *arguments[1:], code=code)
