"""Input from outside: a value that a call accepts can be read later; all others are refused."""

import asyncio
import enum
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults.servers import serving, then_closes
from tests.support.bank import Bank, external_order, new_order
from tests.support.ids import stable_repr
from transfer_async import (
    InvalidOrder,
    KeyState,
    OrderCommand,
    OrderRequest,
    OutcomeUnknown,
    PersonName,
    PreflightFailed,
    SQLiteJournal,
    TransferClient,
)
from transfer_async._cli import journal_output

SAID = {"by": "ada", "reason": "seen on the statement"}


# --- odd values of every kind -------------------------------------------------------------------


class Text(str):
    """A subclass of ``str``, as numpy, lxml and template libraries define it."""

    __slots__ = ()


class Amount(Decimal):
    """A number like that of a library for money."""


class Moment(datetime):
    """A time like that of pandas or pendulum."""


class NoTime(Moment):
    """Like pandas' ``NaT``."""

    def utcoffset(self) -> Any:
        return self


class Broken(tzinfo):
    """A time zone whose methods raise."""

    def utcoffset(self, _when: datetime | None) -> timedelta:
        raise LookupError

    tzname = dst = utcoffset  # type: ignore[assignment]


def _member(text: str) -> str:
    return enum.Enum("Names", {"ONE": text}, type=str).ONE  # type: ignore[attr-defined, no-any-return] # made here


KINDS = st.sampled_from([str, str, Text, _member])
ODD = st.sampled_from(
    ["Ben", "", " ", "\ud800", "a\x00b", "a\nb", "e\u0301", "\u200b", "\u2028", "x" * 300, "x" * 20_000]
)
NO_MOMENTS = st.sampled_from([2999, "2999-12-31", 1.5])
TEXTS = st.builds(
    lambda kind, text: kind(text), KINDS, ODD | st.text(st.characters(exclude_categories=()), max_size=6)
)
NO_TEXTS = st.sampled_from([1, 1.5, b"Ben", True, ("a",)])


def now_and_then(odd: st.SearchStrategy[Any], good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw odd values rarely, because otherwise no call would be accepted."""
    return st.sampled_from([good] * 15 + [odd]).flatmap(lambda chosen: chosen)


def mostly(*good: str) -> st.SearchStrategy[Any]:
    """Draw one of ``good`` as any kind of string; rarely, another text or value."""
    fine = st.builds(lambda kind, text: kind(text), KINDS, st.sampled_from(good))
    return now_and_then(TEXTS | NO_TEXTS, fine)


PARTS = mostly("Ben", "", " ", "e\u0301", "\u200b", "Nguyễn", "x" * 1000, "\U0001f642")
NAMES = st.tuples(PARTS, PARTS) | st.tuples(PARTS, PARTS, st.none() | PARTS)
ZONES = st.sampled_from(
    [
        *(UTC, timezone(timedelta(hours=-12)), timezone(timedelta(minutes=53, seconds=28))),
        *(timezone(timedelta(hours=3, microseconds=1)), timezone(timedelta(hours=14)), None, Broken()),
    ]
)
MOMENTS = st.builds(
    lambda kind, year, micro, zone: kind(year, 12, 31, 23, 59, 59, micro, tzinfo=zone),
    st.sampled_from([datetime, Moment, Moment, NoTime]),
    st.sampled_from([2999, 2999, 9999]),
    st.integers(0, 999_999),
    ZONES,
)
GOOD_AMOUNTS = st.sampled_from(
    [Decimal("100.00"), Amount("100"), Text("100.0"), _member("100.00"), 100, Decimal("1E+2")]
)
AMOUNTS = st.sampled_from(
    [
        *("1E+2", Decimal("NaN"), Decimal("sNaN"), Decimal("1E+999999"), Decimal("1E-999999")),
        *(Decimal("-0"), True, 10**200, "9" * 5000),
    ]
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "poster_payment_method_type": mostly("nigerian_bank_payment", "e\u0301"),
        "poster_username": mostly("ada.eze@example.com", "a\u0301@b.c"),
        "poster_currency": mostly("NGN"),
        "matcher_amount": now_and_then(AMOUNTS, GOOD_AMOUNTS),
    },
)
CALLS = st.fixed_dictionaries(
    {"key": mostly("k", "kk", "x" * 200)},
    optional={
        "beneficiary": now_and_then(st.just("Ben"), NAMES),
        "held": mostly("ref", "e\u0301", "x" * 10_000),
        "send_before": now_and_then(NO_MOMENTS, MOMENTS),
        "deadline": now_and_then(NO_MOMENTS, MOMENTS),
    },
)
RECEIPTS = st.none() | mostly("ref", "a\x00b\n", "x" * 10_000)


# --- the promise --------------------------------------------------------------------------------


class Bench:
    """A service that accepts every order and never responds, a bank, and a journal in a file."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path, self.bank = url, path, Bank()
        self.scopes = map(str, itertools.count())

    def process(self, scope: str) -> tuple[SQLiteJournal, TransferClient]:
        """Return new objects for the same file, as in a new process."""
        journal = SQLiteJournal(self.path)
        hooks = [self.bank.hold]
        return journal, TransferClient(
            self.url, "t", hooks=hooks, journal=journal, scope=scope, settle_after=0.0
        )

    async def carry_out(self, fields: Any, call: Any, receipt: Any) -> None:
        scope = next(self.scopes)
        self.bank.reference = receipt
        journal, client = self.process(scope)
        async with journal, client:
            try:
                name = call.get("beneficiary")
                person = PersonName(*name) if isinstance(name, tuple) else name
                call = call | {"beneficiary": person}
                await client.create_order(new_order(**fields), **call)
            # The reason may be a hook's receipt that cannot be stored.
            except (InvalidOrder, PreflightFailed):
                assert not await self.views(scope)
                assert not self.bank.open
                return
            except OutcomeUnknown:
                pass
        await self.looked_at(scope, new_order(**fields), call)

    async def views(self, scope: str) -> list[journal_output.KeyView]:
        async with journal_output.opened(SQLiteJournal(self.path), scope) as operators:
            return await operators.waiting()

    async def looked_at(self, scope: str, order: Any, call: Any) -> None:
        """Read, list, show and resolve the key in a new process."""
        journal, client = self.process(scope)
        key = str.__str__(call["key"])
        async with journal, client:
            record = await client.known(call["key"])
            assert record is not None
            assert (record.state, record.held) == (KeyState.IN_DOUBT, call.get("held"))
            (doubt,) = await client.in_doubt()
            assert (doubt.key, doubt.order) == (key, order)
            entry = await journal.read(scope, key)
            assert entry is not None
            assert entry.intent is not None
            assert entry.intent.beneficiary == call.get("beneficiary")
            assert entry.intent.send_before == call.get("send_before")
            (view,) = await self.views(scope)
            assert [cell(view) for cell in journal_output.WAITING.values()]
            assert journal_output.record_lines(view)
            assert journal_output.as_json(
                journal_output.view_json(view) | {"receipts": view.entry.all_receipts}
            ).encode()
            assert len(await client.history(call["key"])) >= 3
            if len(key) % 2:
                made = await client.resolve(call["key"], order_id="tx-1", **SAID)
                assert (made.state, made.order_id) == (KeyState.CREATED, "tx-1")
            else:
                await client.refute(call["key"], **SAID)
                report = await client.recover()
                assert (report.released, report.undos_pending) == (0 if "held" in call else 1, 0)
        assert not await self.views(scope)
        self.bank.open.clear()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Bench]]:
    with asyncio.Runner() as runner:
        service = serving(then_closes())
        server = runner.run(service.__aenter__())
        yield runner, Bench(server.url, tmp_path_factory.mktemp("border") / "journal.db")
        runner.run(service.__aexit__(None, None, None))


@given(fields=FIELDS, call=CALLS, receipt=RECEIPTS)
@example(fields={}, call={"key": Text("k"), "beneficiary": ("Ben", None)}, receipt=None)
@example(fields={}, call={"key": "kk", "beneficiary": (1, 2)}, receipt=None)
@example(fields={}, call={"key": "kk", "beneficiary": (Text("Ben"), Text("Okri"))}, receipt=Text("ref"))
@example(fields={"poster_currency": Text("NGN")}, call={"key": "k", "held": Text("ref")}, receipt=None)
@example(fields={}, call={"key": "k", "beneficiary": ("\ud800", "Okri")}, receipt=None)
@example(fields={}, call={"key": "k"}, receipt="\ud800")
@example(
    fields={},
    call={"key": "k", "send_before": Moment(2999, 1, 1, tzinfo=timezone(timedelta(hours=3, microseconds=1)))},
    receipt=None,
)
def test_a_new_process_can_read_show_and_resolve_any_accepted_call(
    bench: tuple[asyncio.Runner, Bench], fields: Any, call: Any, receipt: Any
):
    """Without this, a sent payment ends in a row that cannot be read, and its hold is never released."""
    runner, made = bench
    runner.run(made.carry_out(fields, call, receipt))


@pytest.mark.parametrize("parts", [("Ben", None), (1, 2), ("Ben", "Okri", 3)], ids=stable_repr)
def test_an_invalid_name_is_refused_when_it_is_created(parts: Any):
    with pytest.raises(InvalidOrder, match="is not a string"):
        PersonName(*parts)


def test_a_time_of_any_class_and_zone_becomes_the_same_one_in_utc():
    zone = timezone(timedelta(minutes=53, seconds=28))
    request = OrderRequest(new_order(), send_before=Moment(2024, 5, 6, 12, 53, 28, tzinfo=zone))

    assert type(request.send_before) is datetime
    assert request.send_before == datetime(2024, 5, 6, 12, tzinfo=UTC)


def test_str_and_decimal_subclasses_become_plain_values():
    order = new_order(
        poster_username=Text("ada.eze@example.com"),
        matcher_amount=Amount("100.00"),
        exchange_rate=Text("1550.25"),
        external_order=external_order(transaction_fee_currency=_member("NGN")),
    )
    command = OrderCommand(key=Text("k"), order=order, held=Text("ref"))
    values = [*attrs.asdict(order, recurse=True).values(), *attrs.asdict(order.external_order).values()]

    assert {type(value) for value in values} == {str, Decimal, dict}
    assert (type(command.key), type(command.held)) == (str, str)
    assert OrderCommand.from_json(command.to_json()) == command
