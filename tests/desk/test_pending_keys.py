"""The cache of pending keys: it is read in the background, in pages, and contains only what a list shows."""

from __future__ import annotations

import asyncio
import csv
import io
import math
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from operator import attrgetter
from random import Random
from types import FrameType
from typing import Any, Self

import pytest
from attrs import evolve
from msgspec.structs import replace

from tests.desk.visitor import Desk, Visitor
from tests.support.bank import NOON, Time, World, new_order
from tests.support.cases import each
from transfer_async import Attempt, JournalFailed, OrderIntent, Outcome
from transfer_async._models.errors import Cause, CauseKind
from transfer_async._pipeline.key_views import FourEyes, KeyView
from transfer_async.desk import pending_keys, views
from transfer_async.desk.pending_keys import (
    Choice,
    PendingKeysCache,
    PendingKeysSnapshot,
    found_by_text,
    listing,
    next_after,
    pending_row,
)
from transfer_async.journal.model import Entry, KeyState

ORDERS = [new_order(poster_amount=f"{n * 155025}.00", matcher_amount=f"{n * 100}.00") for n in range(1, 8)]


def view(number: int) -> KeyView:
    """Return the view of a key in doubt."""
    key = f"payment-{number:06}"
    entry = Entry(
        state=KeyState.IN_DOUBT,
        fingerprint="",
        intent_id=key,
        intent=OrderIntent(id=key, key=key, order=ORDERS[number % len(ORDERS)]),
        claimed_at=float(number * 7919 % 100_000),
        attempt="a",
    )
    began = NOON - timedelta(seconds=entry.claimed_at)
    return KeyView(
        key=key, entry=entry, began=began, age=0.0, sent_until=None, lease_until=None, refutable_at=None
    )


def ended(number: int) -> KeyView:
    """Return the view of a key after its doubt was resolved."""
    doubt = view(number)
    return evolve(doubt, entry=replace(doubt.entry, state=KeyState.CREATED, intent=None))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make readings wait even on a slow machine. Tests that need a short timeout set their own."""
    monkeypatch.setattr(pending_keys, "READ_TIMEOUT", 60.0)


class Many:
    """The operators' side of a journal with ``number`` keys in doubt, which counts its calls."""

    def __init__(self, number: int) -> None:
        self.views = [view(n) for n in range(number)]
        self.pages: list[int] = []
        self.error: Exception | None = None
        self.before_page: Callable[[], Any] | None = None

    async def page(self, *, limit: int, after: str = "") -> tuple[KeyView, ...]:
        self.pages.append(limit)
        if self.before_page is not None:
            await self.before_page()
        if self.error is not None:
            raise self.error
        begin = int(after.rpartition("-")[2]) + 1 if after else 0
        return tuple(self.views[begin : begin + limit])

    async def asked(self, times: int) -> None:
        """Wait until the journal has been read this number of times."""
        while len(self.pages) < times:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def four_eyes(self) -> FourEyes:
        return FourEyes(demanded=False)


class Calls:
    """Counts the calls of Python functions and of C functions."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _: FrameType, event: str, __: Any) -> None:
        self.number += event in ("call", "c_call")


def board_of(many: Many, time: Time | None = None) -> PendingKeysCache:
    return PendingKeysCache(many, (time or Time()).clock)  # type: ignore[arg-type] # as much of Operators as it asks


def shown_page(snapshot: PendingKeysSnapshot, **wanted: str) -> str:
    """Return the page of the list, rendered without a server."""
    choice = Choice.of(wanted, snapshot)
    page = listing(snapshot, choice)
    context = {"operator": None, "heading": "", "caption": "", "nothing": "", "other_scopes": "", "label": ""}
    html = views.TEMPLATES["list"].render(
        snapshot=snapshot,
        choice=evolve(choice, page=page.page),
        page=page,
        rows=page.rows,
        address=views.address,
        shown_kinds=["doubt"],
        proposals={"mine": 0},
        four_eyes=FourEyes(demanded=False),
        every=30,
        now=NOON.timestamp(),
        **context,
    )
    return " ".join(html.split())


# --- a hundred thousand ---------------------------------------------------------------------------


@pytest.mark.trial(short=5_000, ci=100_000, long=100_000)
async def test_the_cost_of_a_page_does_not_grow_with_the_number_of_keys(size: int):
    """Filtering and sorting happen once, with few calls. A further page costs as much as fifty rows."""
    few, many = await board_of(Many(100)).shown(), board_of(Many(size))
    snapshot = await many.shown()
    while not snapshot.is_complete:  # the journal is read in the background
        snapshot = await many.shown()
    shown_page(few), shown_page(few, page="2")  # warm up what is done only once

    with Calls() as of_few:
        shown_page(few, page="2")
    with Calls() as first:
        shown_page(snapshot, sort="amount", currency="NGN")
    with Calls() as filtered:
        shown_page(snapshot, sort="-key", proposal="no", least="1000", older="1h")
    choice = Choice.of({"sort": "amount", "currency": "NGN"}, snapshot)
    with Calls() as following:
        next_after(snapshot, snapshot.rows[-1].key, since=0.0, choice=choice)
    with Calls() as later:
        html = shown_page(snapshot, sort="amount", currency="NGN", page=str(size // 100))

    assert f"Page {size // 100:,} of {size // 50:,}, {size:,} keys" in html
    assert later.number <= of_few.number * 1.5
    assert first.number <= of_few.number * 2 + 100  # sorting runs in C, so there is no call for each key
    assert filtered.number <= of_few.number * 2 + 100
    assert following.number < 200


async def test_the_journal_is_read_in_pages_and_other_tasks_run_in_between():
    many, turns = Many(650), []
    made = board_of(many)
    reading = asyncio.create_task(made.shown())
    while not reading.done():
        turns.append(len(many.pages))
        await asyncio.sleep(0)

    assert many.pages == [pending_keys.PAGE] * 8
    assert set(turns) >= {1, 2, 3, 4, 5, 6}


async def test_reading_a_large_journal_pauses_for_other_tasks():
    many, time = Many(pending_keys.PAGE * (pending_keys.PAGES_AT_ONCE + 3)), Time()

    await board_of(many, time).shown()

    assert time.slept == [pending_keys.PAUSE] * 4


async def test_keys_beyond_the_limit_are_counted_and_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pending_keys, "MAX_ROWS", 700)

    snapshot = await board_of(Many(1_200)).shown()

    assert (len(snapshot.rows), snapshot.beyond) == (700, 500)
    assert "500 more keys not listed" in shown_page(snapshot)


async def test_a_row_stores_no_personal_data():
    line = pending_row(view(1))

    assert "example.com" not in repr(line)
    assert not hasattr(line, "__dict__")


# --- how new it is --------------------------------------------------------------------------------


@each(("size", "seconds", "readings"), [(3, pending_keys.FRESH_FOR + 1, 2), (6_000, 5.0, 1)])
async def test_only_a_small_journal_is_read_again_after_seconds(size: int, seconds: float, readings: int):
    many, time = Many(size), Time()
    made = board_of(many, time)
    await made.shown()
    for_one_reading = len(many.pages)
    many.views.append(view(size))
    time.pass_(seconds)
    snapshot = await made.shown()

    assert len(many.pages) == for_one_reading * readings
    assert len(snapshot.rows) == size + readings - 1


async def test_a_list_that_is_minutes_old_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    """An operator who returns after lunch would work through doubts that others have ended."""
    many, time = Many(1_200), Time()
    made = board_of(many, time)
    await made.shown()
    monkeypatch.setattr(pending_keys, "READ_TIMEOUT", 0.0)
    many.before_page = asyncio.Event().wait
    limit = pending_keys.FRESH_FOR + pending_keys.FRESH_PER_KEY * 1_200 + pending_keys.STALE_AFTER
    time.pass_(limit - 1)
    young = await made.shown()
    time.pass_(2)
    old = await made.shown()

    assert (young.is_complete, len(young.rows)) == (True, 1_200)
    assert (old.is_complete, len(old.rows)) == (False, 0)
    await made.close()


async def test_the_list_shows_its_age():
    snapshot = PendingKeysSnapshot(rows=[], read_at=NOON - timedelta(seconds=75))

    assert "UTC</time>, 1 min 15 s ago." in shown_page(snapshot)


async def test_an_old_reading_failure_is_not_shown_to_a_later_visitor(monkeypatch: pytest.MonkeyPatch):
    """Without this, the page shows a failure although the journal has worked again for an hour."""
    many, gate = Many(3), asyncio.Semaphore(0)
    made = board_of(many)
    many.before_page, many.error = gate.acquire, JournalFailed("the journal could not be read")
    with monkeypatch.context() as patched:
        patched.setattr(pending_keys, "READ_TIMEOUT", 0.0)
        await made.shown()
    reading = made._reading
    assert reading is not None
    gate.release()
    await asyncio.wait([reading])
    many.before_page, many.error = None, None

    assert len((await made.shown()).rows) == 3


async def test_a_failed_reading_that_began_before_the_request_is_retried_once():
    many, gate = Many(3), asyncio.Semaphore(0)
    made = board_of(many)

    async def fails_once() -> None:
        await gate.acquire()
        many.before_page = None
        raise JournalFailed("the journal could not be read")

    many.before_page = fails_once
    first = asyncio.create_task(made.shown())
    await many.asked(1)
    second = asyncio.create_task(made.shown())
    await asyncio.sleep(0)
    gate.release()
    await asyncio.wait([first])

    assert isinstance(first.exception(), JournalFailed)
    assert len((await second).rows) == 3


@each("is_silent", [True, False])
async def test_a_failed_reading_is_raised_and_the_next_request_reads_again(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
):
    many = Many(3)
    made = board_of(many)
    with monkeypatch.context() as patched:
        if is_silent:
            patched.setattr(pending_keys, "PAGE_TIMEOUT", 0.0)
            many.before_page = asyncio.Event().wait
        else:
            many.error = JournalFailed("the journal did not respond")
        for _ in range(2):
            with pytest.raises(JournalFailed, match="did not respond"):
                await made.shown()
    many.before_page = many.error = None

    assert len((await made.shown()).rows) == 3


async def test_a_decision_changes_one_row_without_reading_the_journal_again():
    """Without this, the page after each decision took a second at 6,000 keys."""
    many = Many(6_000)
    made = board_of(many)
    whole = await made.shown()
    listing(whole, Choice(sort="amount"))
    asked = len(many.pages)
    for number in range(20):
        made.changed(ended(number))
        with Calls() as calls:
            following = next_after(await made.at_hand(), view(number).key, since=whole.rows[number].since)
            listing(await made.at_hand(), Choice(sort="amount"))

        assert following is not None
        assert calls.number < 200
    after = await made.shown()

    assert len(many.pages) == asked
    assert (len(after.rows), after.totals.counts["doubt"]) == (5_980, 5_980)
    assert after.totals.stakes["NGN"]["doubt"] == whole.totals.stakes["NGN"]["doubt"] - sum(
        one.amount for one in whole.rows if one.key < "payment-000020" and one.amount is not None
    )


CHOICES = [
    Choice(sort=sort, turned=turned, **filters)
    for sort in pending_keys.SORTS
    for turned in (False, True)
    for filters in (
        {},
        {"kind": "proposed"},
        {"currency": "USD"},
        {"cause": "no answer", "least": "1000"},
        {"proposal": "approve", "me": "ada"},
        {"proposal": "no", "older": "1d", "minute": 2_000},
    )
]


async def test_decisions_leave_the_lists_and_sums_as_a_new_reading_would(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pending_keys, "CACHED_CHOICES", len(CHOICES))
    random = Random(1)
    before = await board_of(Many(300)).shown()
    for choice in CHOICES:
        listing(before, choice)
    changed = before
    for _ in range(150):
        row = random.choice(changed.rows)
        amount = random.choice([None, Decimal(random.randrange(5_000))])
        new = evolve(
            row,
            key=random.choice([row.key, f"new-{random.random()}"]),
            kinds=random.choice([("doubt",), ("doubt", "proposed"), ("owed",)]),
            since=float(random.randrange(200_000)),
            amount=amount,
            weight=float(amount or 0),
            currency=random.choice(["USD", "NGN", ""]),
            cause=random.choice(["", "no answer", "abandoned"]),
            by=random.choice([None, "ada", "ben"]),
        )
        changed = changed.changed(new.key, random.choice([None, new, new]))
    fresh = PendingKeysSnapshot(rows=changed.rows.copy(), read_at=NOON)

    assert changed.rows == sorted(changed.rows, key=attrgetter("since"))
    assert changed.totals.counts == fresh.totals.counts
    assert changed.totals.stakes == fresh.totals.stakes
    assert changed.totals.causes == fresh.totals.causes
    assert +changed.totals.proposals == fresh.totals.proposals
    for choice in CHOICES:
        assert choice in changed.chosen
        made, read = (pending_keys._chosen(snapshot, choice) for snapshot in (changed, fresh))
        assert Counter(made) == Counter(read), choice  # rows with equal sort values may appear in any order
        in_order = [[(row.currency, choice.value(row)) for row in rows] for rows in (made, read)]
        if choice.sort != "amount":
            in_order = [[value for _, value in rows] for rows in in_order]
        assert in_order[0] == in_order[1], choice


async def test_a_decision_in_a_large_list_looks_at_few_rows():
    snapshot = await board_of(Many(6_000)).shown()
    choice = Choice.of({"sort": "amount", "currency": "NGN"}, snapshot)
    listed, row = pending_keys._chosen(snapshot, choice), snapshot.rows[3_000]
    place = listed.index(row)

    with Calls() as calls:
        following = next_after(snapshot, row.key, since=row.since, choice=choice)
        changed = snapshot.changed(row.key, None, since=row.since)

    assert calls.number < 600
    assert following is listed[place + 1]
    assert pending_keys._chosen(changed, choice) == [*listed[:place], *listed[place + 1 :]]
    assert row not in changed.rows
    # The key has been used again for another order.
    elsewhere = snapshot.changed(row.key, None, since=row.since - 1)
    assert row not in elsewhere.rows


async def test_a_keys_page_does_not_wait_for_the_journal_to_be_read():
    many, time = Many(1_200), Time()
    made = board_of(many, time)
    await made.shown()
    time.pass_(30)
    many.before_page = asyncio.Event().wait

    assert len((await made.at_hand()).rows) == 1_200
    await made.close()


async def test_a_partial_list_is_shown_while_the_journal_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pending_keys, "READ_TIMEOUT", 0.0)
    many, gate = Many(1_200), asyncio.Semaphore(0)
    made = board_of(many)

    many.before_page = gate.acquire
    first = await made.shown()
    gate.release()  # one page
    await many.asked(2)
    then = await made.shown()

    assert (first.is_complete, len(first.rows)) == (False, 0)
    assert (then.is_complete, len(then.rows)) == (False, pending_keys.PAGE)
    assert "still being read; 100 keys so far" in shown_page(then)
    await made.close()


async def test_a_decision_made_here_shows_at_once_even_during_a_reading():
    many, time = Many(1_200), Time()
    made = board_of(many, time)
    await made.shown()
    time.pass_(60)
    reading = asyncio.create_task(made.shown())
    await many.asked(len(many.pages) + 2)
    made.changed(ended(0))

    assert "payment-000000" not in {line.key for line in (await reading).rows}


async def test_closing_the_desk_cancels_its_reading(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pending_keys, "READ_TIMEOUT", 0.0)
    ended: list[BaseException] = []

    async def for_ever(*_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    async with world.client() as client, Desk.of(client) as made:
        world.journal.work = for_ever  # type: ignore[assignment,method-assign] # never answers
        answer = await made.visitor().get()

    assert "still being read" in answer.text
    assert len(ended) == 1


# --- the list -------------------------------------------------------------------------------------


@pytest.fixture
async def snapshot() -> PendingKeysSnapshot:
    return await board_of(Many(140)).shown()


def keys_of(snapshot: PendingKeysSnapshot, **wanted: str) -> list[str]:
    return [line.key for line in listing(snapshot, Choice.of(wanted, snapshot)).rows]


async def test_pages_follow_each_other_without_a_gap(snapshot: PendingKeysSnapshot):
    keys = [key for page in "123" for key in keys_of(snapshot, page=page)]

    assert len(keys) == len(set(keys)) == 140


@each(
    ("page", "nearest"),
    [("0", ""), ("-1", ""), ("x", ""), ("٣", ""), ("9999999", ""), ("99", "3"), ("000003", "3")],
)
async def test_a_page_number_out_of_range_shows_the_nearest_page(
    snapshot: PendingKeysSnapshot, page: str, nearest: str
):
    assert keys_of(snapshot, page=page) == keys_of(snapshot, page=nearest)


@each("turned", ["", "1"])
@each(
    ("sort", "value"),
    [
        ("age", lambda line: line.since),
        ("amount", lambda line: -line.amount),
        ("cause", lambda line: line.cause),
        ("key", lambda line: line.key),
    ],
)
async def test_the_list_is_sorted_by_the_chosen_column(
    snapshot: PendingKeysSnapshot, sort: str, value: Any, turned: str
):
    lines = listing(snapshot, Choice.of({"sort": sort, "turned": turned}, snapshot)).rows

    assert [value(line) for line in lines] == sorted(map(value, lines), reverse=bool(turned))


async def test_a_minus_before_the_sort_column_reverses_the_order(snapshot: PendingKeysSnapshot):
    assert Choice.of({"sort": "-amount"}, snapshot) == Choice(sort="amount", turned=True)
    assert Choice.of({"sort": "-age"}, snapshot).address() == "./?turned=1"
    assert keys_of(snapshot, sort="-key") == keys_of(snapshot, sort="key", turned="1")


async def test_the_list_is_filtered_by_age_and_by_amount(snapshot: PendingKeysSnapshot):
    now = NOON.timestamp()
    old = Choice.of({"older": "1d"}, snapshot, now=now)
    large = Choice.of({"least": "1000000"}, snapshot)
    day_old = [row.key for row in snapshot.rows if row.since <= now - 86_400]
    many = [row.key for row in snapshot.rows if row.amount is not None and row.amount >= 1_000_000]

    assert listing(snapshot, old).number == len(day_old) > 0
    assert {row.key for row in listing(snapshot, old).rows} <= set(day_old)
    assert listing(snapshot, large).number == len(many) > 0
    assert old.address() == "./?older=1d"


@each(
    ("page", "near"),
    [(1, [1, 2, 3, 20]), (9, [1, 7, 8, 9, 10, 11, 20]), (20, [1, 18, 19, 20])],
)
async def test_the_list_links_to_nearby_pages_and_both_ends(
    snapshot: PendingKeysSnapshot, page: int, near: list[int]
):
    rows = [evolve(snapshot.rows[0], key=f"k{n}") for n in range(20 * 50)]

    assert listing(PendingKeysSnapshot(rows=rows, read_at=NOON), Choice(page=page)).near == near


async def test_the_next_key_comes_from_the_chosen_list(snapshot: PendingKeysSnapshot):
    choice = Choice.of({"sort": "-amount", "currency": "NGN"}, snapshot)
    rows = listing(snapshot, choice).rows

    def after(key: str, noted: str = "") -> str:
        row = next_after(snapshot, key, since=0.0, choice=choice, noted=noted)
        assert row is not None
        return row.key

    assert [after(row.key) for row in rows[:-1]] == [row.key for row in rows[1:]]
    assert after("ended", noted=rows[7].key) == rows[7].key
    assert after("ended", noted="ended too") == rows[0].key


@each("name", ["kind", "currency", "cause", "proposal", "older", "least", "sort"])
async def test_unknown_choices_are_ignored(snapshot: PendingKeysSnapshot, name: str):
    assert Choice.of({name: "<script>"}, snapshot) == Choice()


async def test_the_address_contains_only_choices_that_differ_from_the_default(snapshot: PendingKeysSnapshot):
    choice = Choice.of({"kind": "doubt", "currency": "NGN", "page": "2", "live": "1"}, snapshot)

    assert choice.address(page=3) == "./?kind=doubt&currency=NGN&page=3&live=1"
    assert choice.sorted_by("amount") == "./?kind=doubt&currency=NGN&sort=amount&live=1"
    assert Choice(sort="amount").sorted_by("amount") == "./?sort=amount&turned=1"
    assert Choice().address() == "./"


async def test_only_the_latest_choices_are_cached(snapshot: PendingKeysSnapshot):
    for sort in ("age", "amount", "cause", "key"):
        for turned in ("", "1"):
            for kind in ("", "doubt", "owed"):
                keys_of(snapshot, sort=sort, turned=turned, kind=kind)

    assert len(snapshot.chosen) == 8


async def test_a_key_is_found_by_the_id_of_each_of_its_requests():
    attempts = tuple(
        Attempt(number=n, seconds=0.1, outcome=Outcome.UNKNOWN, request_id=f"Req-{n}") for n in (1, 2)
    )
    doubt, cause = view(1), Cause(kind=CauseKind.NO_ANSWER, attempts=attempts)
    row = pending_row(evolve(doubt, entry=replace(doubt.entry, cause=cause)))
    assert row is not None
    snapshot = PendingKeysSnapshot(rows=[row], read_at=NOON)

    assert [found_by_text(snapshot, text) for text in ("req-1", "REQ-2", "req-")] == [[row], [row], []]


async def test_the_next_key_is_the_next_oldest_one(snapshot: PendingKeysSnapshot):
    oldest = sorted(snapshot.rows, key=lambda line: line.since)

    following = [next_after(snapshot, line.key, since=line.since) for line in oldest]

    assert following[:-1] == oldest[1:]
    assert following[-1] == oldest[0]
    assert next_after(snapshot, "another", since=oldest[3].since) == oldest[3]
    assert next_after(snapshot, "another", since=0.0) == oldest[0]


# --- the list as a file ---------------------------------------------------------------------------


async def test_the_chosen_rows_are_saved_as_csv_without_formulas():
    first, second, third = (await board_of(Many(3)).shown()).rows
    hostile = evolve(
        first, key='=HYPERLINK("http://evil"),\n"x"', by="@ada", proposed="resolve", proposed_at=0.0
    )
    unknown = evolve(second, key="-5", amount=None, currency="", since=-math.inf, cause="no answer")
    snapshot = PendingKeysSnapshot(rows=[unknown, hostile, third], read_at=NOON)
    file = pending_keys.as_csv(snapshot, Choice(sort="key"))
    body = await file.body.as_bytes()  # type: ignore[union-attr] # an async payload
    cells = [*csv.DictReader(io.StringIO(body.decode("utf-8-sig")))]

    assert [*cells[0]] == (
        ["key", "reasons", "amount", "currency", "began", "cause", "proposed", "by", "proposed at"]
    )
    assert [row["key"] for row in cells] == ["'-5", '\'=HYPERLINK("http://evil"),\n"x"', third.key]
    assert [row["by"] for row in cells] == ["", "'@ada", ""]
    assert [row["proposed at"] for row in cells] == ["", "1970-01-01T00:00:00+00:00", ""]
    assert [row["began"] == "" for row in cells] == [True, False, False]
    assert (cells[0]["amount"], cells[1]["amount"]) == ("", str(first.amount))


async def test_a_visitor_saves_the_list_that_the_page_shows(doubted: World, ada: Visitor):
    (link,) = [link for link in (await ada.get("/", currency="NGN")).page.links if "csv" in link]
    saved = await ada.get(f"/{link}")
    none = await ada.get(f"/{link}", kind="proposed")

    assert link == "pending-keys.csv?currency=NGN"
    assert saved.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert saved.headers["Content-Disposition"] == 'attachment; filename="pending-keys.csv"'
    assert saved.headers["Cache-Control"] == "no-store"
    assert "\r\nk,doubt,155025.00,NGN," in saved.html
    assert none.html.count("\r\n") == 1


@each("change", [{"beyond": 1}, {"is_complete": False}])
async def test_a_part_of_the_keys_is_not_saved(ada: Visitor, monkeypatch: pytest.MonkeyPatch, change: Any):
    async def shown(_: PendingKeysCache) -> PendingKeysSnapshot:
        return PendingKeysSnapshot(rows=[], read_at=NOON, **change)

    monkeypatch.setattr(PendingKeysCache, "shown", shown)
    answer = await ada.get("/pending-keys.csv")

    assert answer.status == 503
    assert "The file would not contain all keys" in answer.text
