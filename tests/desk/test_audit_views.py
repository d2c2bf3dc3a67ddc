"""The audit of all keys, by person and day, and as CSV: who proposed and decided what, and when."""

import csv
import io
from collections.abc import AsyncIterator
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from aiohttp import ClientPayloadError

from tests.desk.visitor import Answer, Desk, Visitor, where_to
from tests.support.bank import World, other_order
from transfer_async import OutcomeUnknown
from transfer_async.desk import Role, audit_views
from transfer_async.journal import Decision
from transfer_async.sandbox import CloseAfterProcessing

RULE = "The dual-control rule"
AUCKLAND = ZoneInfo("Pacific/Auckland")


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    """Yield a desk with two approved proposals, made before and after midnight; one has a hostile reason."""
    async with world.client(four_eyes=True) as client, Desk.of(client) as made:
        ada, ben = made.visitor("ada", [Role.CHANGE]), made.visitor("ben", [Role.APPROVE])
        for key, reason in (("first", "=cmd()"), ("second", "in the export")):
            await world.in_doubt(key)
            await ada.does("resolve", key=key, order_id=f"tx-{key}", reason=reason)
            await ben.does("approve", key=key, reason="asked, too")
            world.time.pass_(50_000)  # shorter than the time for which a journal in memory keeps a key
        yield made


@pytest.fixture
def eve(desk: Desk) -> Visitor:
    """Return an operator who may only read."""
    return desk.visitor("eve", [])


async def saved_by(visitor: Visitor, **query: Any) -> list[dict[str, str]]:
    """Save the audit as a file. Return its rows."""
    answer = await visitor.get("/decisions.csv", **query)
    return list(csv.DictReader(io.StringIO(answer.html.removeprefix("\ufeff"))))


async def searched(visitor: Visitor, **fields: str) -> tuple[dict[str, Any], Answer]:
    """Submit the filter and follow the redirect. Return the query and the page."""
    path, query = where_to(await visitor.post("/audit", fields))
    assert path == "/audit"
    return query, await visitor.get(path, **query)


async def test_a_reader_sees_who_decided_and_who_proposed_it(eve: Visitor):
    page = await eve.get("/audit")

    assert "decided: the order exists tx-second ben ada" in page.text
    assert "proposed: the order exists tx-second ada – in the export" in page.text
    assert "key?key=second" in page.page.links
    assert page.text.index("tx-second") < page.text.index("tx-first")


async def test_lines_are_filtered_by_person_and_no_address_has_the_name(world: World, eve: Visitor):
    """A colleague's request may reach another process, or the same one after a restart."""
    query, page = await searched(eve, person=" ben ")
    saved = await saved_by(eve, **query)
    async with world.client(four_eyes=True) as client, Desk.of(client) as other:
        colleague = other.visitor("eve", [])
        elsewhere = await colleague.get("/audit", **query)
        unknown = await colleague.get("/audit", person="0" * 16)

    assert set(query) == {"person"}
    assert not any("ben" in address for address in [query["person"], *page.page.links])
    assert {(row["by"], row["proposed by"]) for row in saved} == {("ben", "ada")}
    assert "only ben" in page.text
    assert "only ben" in elsewhere.text
    assert unknown.status == 404
    assert "enter the name" in unknown.text


async def test_lines_are_filtered_by_day(world: World, eve: Visitor):
    today = world.time.utc().date()
    days = [str(today.replace(day=today.day - number)) for number in (1, 0, -1)]
    queries = [
        *({"since": day, "until": day} for day in days),
        {"since": days[1], "until": "no day"},
        {"until": days[0]},
    ]

    found = [{row["key"] for row in await saved_by(eve, **query)} for query in queries]

    assert found == [{RULE, "first"}, {"second"}, set(), {"second"}, {RULE, "first"}]


async def test_audit_dates_are_days_in_the_banks_time_zone(world: World):
    async with world.client() as client, Desk.of(client, zone=AUCKLAND) as made:
        await world.in_doubt()
        ada = made.visitor()
        await ada.does("resolve", order_id="tx-abc")
        day = str(world.time.utc().astimezone(AUCKLAND).date())

        assert len(await saved_by(ada, since=day, until=day)) == 1


async def test_the_file_has_no_formula(eve: Visitor):
    rows = await saved_by(eve)

    columns = ("key", "did", "by", "proposed by", "order id")
    assert [tuple(row[column] for column in columns) for row in rows[-3:-1]] == [
        ("first", "decided: the order exists", "ben", "ada", "tx-first"),
        ("first", "proposed: the order exists", "ada", "", "tx-first"),
    ]
    assert not any(cell.startswith("=") for row in rows for cell in row.values())


async def test_a_long_audit_has_pages(eve: Visitor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit_views, "PER_PAGE", 3)

    page, seen = await eve.get("/audit"), []
    while True:
        seen += [link for link in page.page.links if link.startswith("key?")]
        older = [link for link in page.page.links if "after=" in link]
        if not older:
            break
        page = await eve.get(f"/{older[0]}")

    assert seen == ["key?key=second"] * 2 + ["key?key=first"] * 2 + ["key?key=%09four+eyes"]
    assert "audit" in page.page.links


async def test_a_long_file_is_read_and_sent_in_parts(
    world: World, eve: Visitor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit_views, "PAGE", 2)
    monkeypatch.setattr(audit_views, "MAX_NAMES", 1)
    complete, asked = world.journal.audit, []

    async def audit(scope: str, **wanted: Any) -> Any:
        asked.append(wanted["limit"])
        return await complete(scope, **wanted)

    monkeypatch.setattr(world.journal, "audit", audit)

    assert [row["key"] for row in await saved_by(eve)] == ["second", "second", "first", "first", RULE]
    assert asked == [2, 2, 2]


async def test_a_file_that_cannot_be_completed_is_not_taken_for_complete(
    world: World, eve: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(audit_views, "PAGE", 2)
    complete, calls = world.journal.audit, count()

    async def fails_later(scope: str, **wanted: Any) -> Any:
        if next(calls):
            raise OSError("secret")
        return await complete(scope, **wanted)

    monkeypatch.setattr(world.journal, "audit", fails_later)

    with pytest.raises(ClientPayloadError):
        await eve.get("/decisions.csv")

    assert "the desk could not send all of decisions.csv (JournalFailed)" in caplog.text
    assert "secret" not in caplog.text


async def test_each_line_has_the_amount_of_its_own_order(world: World):
    """The key was refuted and used again for another amount. The first order is no longer recorded."""
    async with world.client() as client, Desk.of(client) as made:
        ada = made.visitor()
        await world.in_doubt()
        world.time.pass_(600)
        await ada.does("refute")
        pending = await saved_by(ada)
        await client.recover()
        ended = await saved_by(ada)
        world.sandbox.faults.add(CloseAfterProcessing())
        await world.fails(OutcomeUnknown, other_order())
        await ada.does("note")
        page, rows = await ada.get("/audit"), await saved_by(ada)

    assert [(row["amount"], row["currency"]) for row in pending] == [("155025.00", "NGN")]
    assert [(row["amount"], row["currency"]) for row in ended] == [("", "")]
    assert [(row["did"], row["amount"]) for row in rows] == [
        ("a note was written", "310050.00"),
        ("decided: no order exists, and none can appear", ""),
    ]
    assert "k 310,050.00 NGN a note was written" in page.text


async def test_notes_and_look_ups_can_be_left_out(desk: Desk):
    ada = desk.visitor("ada")
    await ada.does("note", key="first")
    await ada.does("parties", key="first")

    query, page = await searched(ada, decisions="1")
    saved = await saved_by(ada, **query)

    assert query == {"decisions": "1"}
    assert "only decisions and proposals" in page.text
    assert "a note was written" not in page.text
    assert {row["did"] for row in saved} == {
        "decided: the order exists",
        "proposed: the order exists",
        "dual control was demanded",
    }
    assert 'id="decisions" name="decisions" value="1" checked' in page.html


async def test_a_journal_without_an_audit_says_so(world: World):
    world.journal.audit = None  # type: ignore[method-assign,assignment] # a journal without the method
    async with world.client() as client, Desk.of(client) as made:
        answer = await made.visitor("eve", []).get("/audit")

    assert answer.status == 404
    assert "cannot list the histories of all keys" in answer.text


async def test_a_decision_that_nobody_proposed_is_not_shown_as_approved(world: World):
    """Dual control has been waived: one person decides alone, and not as the pending proposal says."""
    async with world.client() as client, Desk.of(client) as made:
        await world.in_doubt()
        operators = client.operators
        await operators.propose("k", Decision.RESOLVE, order_id="tx-1", by="ada", reason="seen")
        await operators.resolve("k", order_id="tx-2", by="ben", reason="seen another")
        rows = await saved_by(made.visitor("eve", []))

    assert [(row["by"], row["proposed by"], row["order id"]) for row in rows] == [
        ("ben", "", "tx-2"),
        ("ada", "", "tx-1"),
    ]
