"""`journal reconcile`, from a file and a journal on the disk to what is told."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands
from tests.support.bank import World, other_order, world_in_a_file
from tests.support.cases import each
from transfer_async import Clock, KeyState, OutcomeUnknown, SQLiteJournal, TransferClient
from transfer_async.journal.protocol import ScopedJournal
from transfer_async.sandbox import CloseAfterProcessing, CloseBeforeReading

PERSONAL = ("ada.eze", "ben.okri")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    async with world_in_a_file(tmp_path / "journal.db", monkeypatch, clock=Clock()) as world:  # the sandbox's
        yield world


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


async def write(world: World, export: Path, *, without: str = "") -> Path:
    """All orders of the sandbox, as the service shows them."""
    orders = (order for order in world.sandbox.orders.values() if order.id != without)
    await asyncio.to_thread(export.write_text, "".join(f"{order.to_json().decode()}\n" for order in orders))
    return export


async def reconciled(*words: Any, code: int = 0) -> str:
    told = (await commands.asked("journal", "reconcile", *words, code=code)).output
    assert not any(name in told for name in PERSONAL)
    return told


async def found(*words: Any, code: int = 3) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await reconciled(*words, "--json", code=code)).splitlines()]


async def test_an_export_in_which_all_is_known_is_nothing_to_look_at(world: World, export: Path):
    await world.create(key="paid")

    told = await reconciled(await write(world, export))

    assert "1  of them known to a key" in told


async def test_the_order_of_a_doubt_is_found_and_it_is_told_how_to_resolve_it(world: World, export: Path):
    await world.create(key="paid")
    world.sandbox.faults.add(CloseAfterProcessing())
    await world.fails(OutcomeUnknown, other_order(), key="lo'st")
    order_id = list(world.sandbox.orders)[-1]

    told = await reconciled(await write(world, export), code=3)

    assert (
        f"""only {order_id} fits; transfer-async journal resolve 'lo'"'"'st' --order-id {order_id}""" in told
    )


async def test_what_fits_is_proposed_and_another_person_approves(world: World, export: Path):
    world.sandbox.faults.add(CloseAfterProcessing())
    await world.fails(OutcomeUnknown, other_order(), key="lost")
    (order_id,) = world.sandbox.orders

    told = await reconciled(await write(world, export), "--propose", "--by", "ada", code=3)

    assert "1 proposed: another person may approve each" in told
    proposal = (await world.entry("lost")).proposal
    assert proposal is not None
    assert (proposal.by, proposal.order_id) == ("ada", order_id)
    assert "export.jsonl" in proposal.reason
    again = await reconciled(export, "--propose", "--by", "ben", code=3)
    assert "lost: not proposed: ada has proposed something already" in again
    assert (await world.entry("lost")).state is KeyState.IN_DOUBT


async def test_twins_are_ambiguous_and_what_no_key_has_is_told(world: World, export: Path):
    await world.create(key="paid")
    await world.in_doubt("lost")
    await world.in_doubt("lost as well")
    _, first, second = world.sandbox.orders

    figures, *findings = await found(await write(world, export))

    assert (figures["matched"], figures["ambiguous"], figures["unknown"]) == (0, 2, 2)
    assert {"finding": "ambiguous", "key": "lost", "order_ids": [first, second]} in findings
    paid = (await world.entry("paid")).order_id
    assert {"finding": "unknown", "order_id": first, "like": paid, "like_key": "paid"} in findings


async def refuted_by_mistake(world: World) -> str:
    """A key of which the order exists, although somebody has said that it does not; the order's id."""
    await world.in_doubt("mistaken")
    async with world.client(settle_after=0) as client:
        await client.refute("mistaken", by="ada", reason="the support: no such order")
        await client.recover()  # its hold is released, and its wish forgotten
    return list(world.sandbox.orders)[-1]


async def lost_before_it_was_read(world: World) -> None:
    world.sandbox.faults.add(CloseBeforeReading())
    await world.fails(OutcomeUnknown, key="lost")


async def created_anew(world: World) -> None:
    await world.create(key="mistaken")


async def in_doubt_anew_with_another_order(world: World) -> None:
    world.sandbox.faults.add(CloseBeforeReading())
    await world.fails(OutcomeUnknown, other_order(), key="mistaken")


@pytest.mark.parametrize("then", [None, created_anew, in_doubt_anew_with_another_order])
async def test_the_order_of_a_refuted_key_is_not_proposed_for_another(
    world: World, export: Path, then: Callable[[World], Awaitable[None]] | None
):
    """Else the customer of a doubt loses a hold for an order that is another customer's."""
    order_id = await refuted_by_mistake(world)
    await lost_before_it_was_read(world)
    if then is not None:
        await then(world)

    told = await reconciled(await write(world, export), "--propose", "--by", "ben", code=3)

    assert f"lost: cannot be told from the export; what fits: {order_id}" in told
    assert "refuted, and may have sent it: mistaken" in told
    assert "0 proposed" in told
    assert f"{order_id}: no key has it" in told
    found_as_json = await found(export)
    ambiguous = {"finding": "ambiguous", "key": "lost", "order_ids": [order_id], "refuted": ["mistaken"]}
    assert ambiguous in found_as_json


async def test_what_a_doubt_wished_for_before_may_have_been_sent_too(world: World, export: Path):
    """The undo of a refuted wish is owed still while the key is in doubt over another."""
    await world.in_doubt("mistaken")
    async with world.client(settle_after=0) as client:
        await client.refute("mistaken", by="ada", reason="the support: no such order")
    await in_doubt_anew_with_another_order(world)
    await lost_before_it_was_read(world)

    figures, *_ = await found(await write(world, export))

    assert (figures["matched"], figures["ambiguous"]) == (0, 1)


async def test_a_doubt_that_no_order_fits_is_never_refuted(world: World, export: Path):
    await world.create(key="paid")
    await world.in_doubt("lost")
    before = await world.entry("lost")

    told = await reconciled(await write(world, export, without=list(world.sandbox.orders)[-1]), code=3)

    assert "lost: no order fits so far, which proves nothing" in told
    assert await world.entry("lost") == before


async def test_a_created_key_that_the_export_lacks_is_told(world: World, export: Path):
    for key in ("first", "second", "third"):
        await world.create(key=key)
    second = list(world.sandbox.orders)[1]

    figures, *findings = await found(await write(world, export, without=second), "--slack", "0")

    assert figures["lacking"] == 1
    assert findings == [{"finding": "lacking", "key": "second", "order_id": second}]


async def test_more_findings_than_a_screen_has_are_counted(world: World, export: Path):
    await world.create(key="paid")
    ((order_id, order),) = world.sandbox.orders.items()
    line = order.to_json().decode()
    lines = (f"{line.replace(order_id, f'tx-other{number}')}\n" for number in range(23))
    await asyncio.to_thread(export.write_text, "".join(lines))

    told = await reconciled(export, code=3)

    assert told.count("no key has it") == 20
    assert "and 3 more unknown: --json tells all" in told


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


async def test_an_export_may_be_csv_with_columns_of_its_own(world: World, tmp_path: Path):
    await world.in_doubt("lost")
    text = io.StringIO(newline="")
    orders = world.sandbox.orders.values()
    csv.writer(text).writerows([list(CSV), *([cell(order) for cell in CSV.values()] for order in orders)])
    path = tmp_path / "export.csv"
    await asyncio.to_thread(path.write_text, text.getvalue())

    figures, *_ = await found(path, "--column", "order_id=Ref", "--column", "posted_at=When")

    assert (figures["matched"], figures["is_time_assumed"]) == (1, True)


# --- times --------------------------------------------------------------------------------------


async def write_with_times(world: World, export: Path, change: Callable[[datetime], str]) -> Path:
    """All orders of the sandbox, their times written in another way."""
    orders = [json.loads(order.to_json()) for order in world.sandbox.orders.values()]
    for order in orders:
        order["posted_at"] = change(datetime.fromisoformat(order["posted_at"]))
    await asyncio.to_thread(export.write_text, "".join(f"{json.dumps(order)}\n" for order in orders))
    return export


def local(hours: int) -> Callable[[datetime], str]:
    return lambda time: time.astimezone(timezone(timedelta(hours=hours))).replace(tzinfo=None).isoformat()


@pytest.mark.parametrize("change", [local(1), local(-5), lambda time: f"{time:%Y-%m-%d} 00:00:00+14:00"])
async def test_times_of_another_clock_give_no_customer_the_order_of_another(
    world: World, export: Path, change: Callable[[datetime], str]
):
    """The order of a doubt would be told to be that of its twin an hour later, whose hold it spends."""
    await world.create(key="paid")
    await world.in_doubt("lost")

    told = await reconciled(await write_with_times(world, export, change), "--propose", "--by", "ada", code=1)

    assert "EXPORT: nothing was compared: its posted_at of tx-" in told
    assert "created, for paid. A time without a zone is read as UTC" in told
    assert "only tx-" not in told
    assert (await world.entry("lost")).proposal is None


async def test_a_service_whose_clock_differs_by_less_than_the_slack_is_compared(world: World, export: Path):
    await world.create(key="paid")
    await world.in_doubt("lost")
    path = await write_with_times(world, export, local(1))

    figures, *_ = await found(path, "--slack", "3700")

    assert figures["matched"] == 1


async def test_times_without_a_zone_that_nothing_confirms_are_told_before_anybody_resolves(
    world: World, export: Path
):
    await world.in_doubt("lost")
    path = await write_with_times(world, export, local(0))

    told = await reconciled(path, "--propose", "--by", "ada", code=3)

    assert "posted_at: has no zone, and was read as UTC" in told
    proposal = (await world.entry("lost")).proposal
    assert proposal is not None
    assert "if the export's times are in UTC" in proposal.reason
    await world.create(key="paid", order=other_order())
    told = await reconciled(await write_with_times(world, export, local(0)), code=3)
    assert "has no zone" not in told


async def test_an_order_whose_end_was_written_late_is_no_sign_of_another_clock(
    world: World, export: Path, monkeypatch: pytest.MonkeyPatch
):
    """A key is finished when the last of its ends was told, maybe hours after its order was created."""
    await world.create(key="paid")
    orders = ScopedJournal.orders

    async def later(*words: Any, **named: Any) -> list[tuple[str, str, float | None]]:
        return [(id_, key, at and at + 7200.0) for id_, key, at in await orders(*words, **named)]

    monkeypatch.setattr(ScopedJournal, "orders", later)

    assert "1  of them known to a key" in await reconciled(await write(world, export))


# --- ids that were given by hand ------------------------------------------------------------------


async def resolved(world: World, key: str, order_id: str) -> None:
    async with world.client() as client:
        await client.resolve(key, order_id=order_id, by="ada", reason="the support said so")


async def test_a_key_that_was_resolved_with_another_customers_order_is_told(world: World, export: Path):
    """Else the customer's payment is believed to be made, and was not."""
    world.sandbox.faults.add(CloseBeforeReading())
    await world.fails(OutcomeUnknown, key="mistaken")
    theirs = await order_of_somebody_else(world)
    await resolved(world, "mistaken", theirs)

    told = await reconciled(await write(world, export), code=3)

    assert f"mistaken: was resolved with {theirs}, an order of other users, amounts or time" in told
    assert "journal amend mistaken" in told
    figures, *findings = await found(export)
    assert figures["wrong_order"] == 1
    assert findings == [{"finding": "wrong_order", "key": "mistaken", "order_id": theirs}]


async def order_of_somebody_else(world: World) -> str:
    """An order that no key of the journal has: of another system of the bank, for one."""
    async with TransferClient(world.sandbox.base_url, world.sandbox.token) as client:
        order = await client.create_order(other_order(), held="their own")
    return order.id


@pytest.mark.parametrize("wrong", ["of nobody", "of another"])
async def test_a_key_that_was_resolved_with_a_wrong_id_may_have_sent_the_order_that_fits_another(
    world: World, export: Path, wrong: str
):
    await world.in_doubt("mistaken")
    (order_id,) = world.sandbox.orders
    theirs = "tx-typo" if wrong == "of nobody" else await order_of_somebody_else(world)
    await resolved(world, "mistaken", theirs)
    await lost_before_it_was_read(world)

    told = await reconciled(await write(world, export), "--propose", "--by", "ben", code=3)

    assert f"lost: cannot be told from the export; what fits: {order_id}" in told
    assert "0 proposed" in told
    assert (f"what fits: {order_id}. Correct it" in told) is (wrong == "of another")


async def test_a_key_that_was_resolved_rightly_leaves_its_twins_order_to_the_twin(world: World, export: Path):
    await world.in_doubt("first")
    await world.in_doubt("second")
    first, second = world.sandbox.orders
    await resolved(world, "first", first)

    told = await reconciled(await write(world, export), code=3)

    assert f"second: only {second} fits" in told


# --- what cannot be read --------------------------------------------------------------------------


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory with an empty journal, which the environment names."""

    async def make() -> None:
        async with SQLiteJournal(tmp_path / "journal.db"):
            pass

    asyncio.run(make())
    monkeypatch.setenv("TRANSFER_BASE_URL", "https://service.example")
    monkeypatch.setenv("TRANSFER_JOURNAL", str(tmp_path / "journal.db"))
    return tmp_path


def told_of(path: Path, *words: str, code: int) -> str:
    ended = commands.invoke("journal", "reconcile", path, *words)
    assert ended.exit_code == code, ended.output
    return ended.output


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


HEADER = (
    "id,poster_username,poster_recipient_username,poster_currency,poster_amount,matcher_currency,"
    "matcher_amount,posted_at"
)


def told_with(**changes: Any) -> str:
    return json.dumps(GOOD | changes)


@each(
    ("text", "why"),
    [
        (told_with(id=None), "line 1: missing: order_id (looked for as order_id or id)"),
        (told_with(user="a"), "line 1: missing: poster_username (looked for as"),
        (told_with(poster_currency=7), "line 1: poster_currency: is no text"),
        (told_with(poster_amount="1e3"), "line 1: poster_amount: is not a plain decimal"),
        (told_with(posted_at="noon"), "line 1: posted_at: is no time"),
        ("[1]", "line 1: missing: order_id"),
        ("", "the export has no orders in it"),
        ("\n \n", "the export has no orders in it"),
        (f"{HEADER}\n", "the export has no orders in it"),
        (f"{told_with()}\n{{", "line 2: is not JSON"),
        ("\udcff", "line 1: is not UTF-8"),
        (f"{told_with()}\n{told_with(poster_amount=11)}", "the order tx-1 stands there twice"),
        (f"{HEADER}\ntx-1\n", "line 2: has not as many cells as there are columns"),
        (f'{HEADER}\n"tx-1', "line 2: is not CSV that can be read"),
        (f"{HEADER}\n\udcff\n", "line 2: is not UTF-8"),
        (told_with(id="17"), "line 1: order_id: must look like 'tx-…'"),
        (
            told_with(order_id="tx-2"),
            "line 1: order_id: is in order_id and in id: say which one with --column",
        ),
        (told_with(posted_at="2026-01-31"), "line 1: posted_at: is a date without a time"),
        (told_with(posted_at="2026-W05-6"), "line 1: posted_at: is a date without a time"),
        (told_with(posted_at="2026-01-31T12"), "line 1: posted_at: is a date without a time"),
        (f"{HEADER},poster_amount\n", "line 1: poster_amount: two columns have the name poster_amount"),
        (
            f"{HEADER},order_id\n",
            "line 1: order_id: is in id and in order_id: say which one with --column order_id=id",
        ),
    ],
)
def test_nothing_is_compared_while_an_order_cannot_be_read(empty: Path, text: str, why: str):
    path = empty / ("export.csv" if text.startswith("id") else "export.jsonl")
    path.write_text(text, errors="surrogateescape", encoding="utf-8")

    told = told_of(path, code=1)

    assert why in told
    assert "nothing was compared" in told


@each(
    ("name", "text"),
    [
        ("export.csv", "Ref" + HEADER + "\n" + "tx-1,a,b,NGN,10,USD,1,2026-01-31T12:00:00Z\n" * 30),
        ("export.jsonl", (told_with(id=None, Ref="tx-1") + "\n") * 30),
    ],
)
def test_a_column_of_another_name_is_told_once_with_the_option_that_helps(empty: Path, name: str, text: str):
    (empty / name).write_text(text, encoding="utf-8")

    told = told_of(empty / name, code=1)

    assert told.count("order_id (looked for as order_id or id)") == 1
    assert "give --column order_id=COLUMN" in told


def test_of_many_faults_the_first_are_told(empty: Path):
    lines = (
        told_with(id=f"tx-{number}") + "\n" + told_with(id=f"tx-{number}", poster_amount=11)
        for number in range(30)
    )
    (empty / "export.jsonl").write_text("\n".join(lines), encoding="utf-8")

    assert told_of(empty / "export.jsonl", code=1).count("stands there twice") == 20


@each(
    ("words", "code", "why"),
    [
        (["export.xlsx"], 2, "EXPORT: its name must end in"),
        (["gone.csv"], 1, "EXPORT: cannot be read (No such file"),
        (["export.jsonl", "--column", "colour=red"], 2, "--column: must be FIELD=COLUMN"),
        (["export.jsonl", "--slack", "-1"], 2, "--slack: must be"),
    ],
)
def test_a_wrong_use_is_told(empty: Path, words: list[str], code: int, why: str):
    (empty / "export.jsonl").write_text(json.dumps(GOOD), encoding="utf-8")

    assert why in told_of(empty / words[0], *words[1:], code=code)
