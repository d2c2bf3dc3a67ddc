import asyncio
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from attrs import evolve

from transfer_async._cli import demo
from transfer_async._cli.demo import SENTENCES, Ledger, Narration, money
from transfer_async._models.errors import Outcome, Refused
from transfer_async._models.events import Event, HookPassed, Resolved
from transfer_async._pipeline.batch import OrderResult
from transfer_async.sandbox import Sandbox
from transfer_async.sandbox.service import CREATE_ORDER_PATH

TX = r"tx-[a-z0-9]{20}"
HOLD_PLACED = r"bank +payment-1 +hold-1 placed"
CREATED = rf"client +payment-1 +created: {TX}"
STORY = (
    r"client +the token belongs to lagoon-bank",
    HOLD_PLACED,
    CREATED,
    r"bank +payment-2 +hold-2 placed",
    r"client +payment-2 +attempt 1 ended: unknown",
    r"client +payment-2 +in doubt",
    r"bank +payment-2 +the back office .* unknown",
    r"client +payment-2 +the call ends: the outcome is unknown",
    r"checked +payment-2 +the hold is kept: hold-2",
    rf"bank +payment-2 +the back office .* found the order: {TX}",
    rf"client +payment-2 +resolved: created, {TX}",
    rf"client +payment-2 +create_order with the same key again: returns {TX}",
    r"checked +payment-2 +no second request was sent",
    r"bank +payment-3 +hold-3 placed",
    r"client +payment-3 +refused",
    r"bank +payment-3 +hold-3 was released",
    r"checked +payment-3 +the key is free again",
    rf"sandbox +payment-1 +matched: {TX}",
    rf"order +payment-1 +{TX}  matched .* hold-1 kept",
    rf"order +payment-2 +{TX}  matched .* hold-2 kept",
    r"checked +the ledger contains the holds",
)


async def played(say: Callable[[str], object] = lambda _: None, **options: Any) -> list[str]:
    lines: list[str] = []

    def both(line: str) -> None:
        lines.append(line)
        say(line)

    await demo.run(both, match_every=0.05, **options)
    return lines


def found_in(lines: list[str], pattern: str) -> int:
    return next(at for at, line in enumerate(lines) if re.search(pattern, line))


class Story:
    """One run of the demo: its lines, and the number of requests and orders at each line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seen: list[tuple[int, int]] = []
        self.sandbox: Sandbox

    def opened(self, **options: Any) -> Sandbox:
        """Keep only the first sandbox. The last one, with many orders, is not part of the story."""
        opened = Sandbox(**options)
        self.sandbox = getattr(self, "sandbox", opened)
        return opened

    def look(self, line: str) -> None:
        requests = [one for one in self.sandbox.requests if one.path == CREATE_ORDER_PATH]
        self.seen.append((len(requests), len(self.sandbox.orders)))


@pytest.fixture(scope="module")
def story() -> Story:
    made = Story()
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(demo, "Sandbox", made.opened)
        made.lines = runner.run(played(made.look))
    return made


def test_the_lines_of_the_demo_are_in_order_and_tell_what_the_sandbox_has(story):
    at = [found_in(story.lines, pattern) for pattern in STORY]
    placed, created = (story.seen[at[STORY.index(line)]] for line in (HOLD_PLACED, CREATED))

    assert at == sorted(at)
    assert (placed, created) == ((0, 0), (1, 1))  # each line is printed when its event happens
    assert not any(story.sandbox.token in line for line in story.lines)
    last = story.lines[-1]
    assert re.fullmatch(rf"demo ok: {TX} matched, {TX} matched, 1 refused, 0 in doubt", last)
    assert set(re.findall(TX, last)) == set(story.sandbox.orders)


# --- false claims ---------------------------------------------------------------------------------


ORDER_OF, NOTED = demo.usd_order, demo.ManyOrders._note


async def forget(*_: object) -> None: ...


def broken(*_: object) -> None:
    raise LookupError("what\nis this")


def confused(many: demo.ManyOrders, result: OrderResult) -> None:
    NOTED(many, evolve(result, order=None, error=Refused()) if result.order is not None else result)


RELEASED = "payment-3: this claim is not true: the hold is released"
FALSE_CLAIMS = {
    "a hold is released that is still kept": ((Ledger, "release", forget), RELEASED),
    "an order was never sent": ((demo.ManyOrders, "_note", confused), "or never sent does not exist"),
    "an unexpected error did not occur": ((demo, "_reason", broken), r"^LookupError: what\?is this$"),
}


@pytest.mark.parametrize(("change", "message"), FALSE_CLAIMS.values(), ids=FALSE_CLAIMS)
async def test_a_false_claim_fails_the_demo(change, message, monkeypatch):
    monkeypatch.setattr(*change)
    monkeypatch.setattr(demo, "ORDERS", 20)

    with pytest.raises(demo.FalseClaim, match=message):
        await played()


async def test_two_orders_that_fit_leave_the_doubt_open(monkeypatch):
    monkeypatch.setattr(demo, "usd_order", lambda *_: ORDER_OF("ada.eze", "ben.okri", "100.00"))
    lines: list[str] = []

    with pytest.raises(demo.FalseClaim, match="recover"):
        await played(lines.append)
    assert "the back office found 2 matching orders: the outcome stays unknown" in lines[-1]


async def test_a_demo_that_takes_too_long_fails():
    with pytest.raises(demo.FalseClaim, match="did not finish within 0 s"):
        await played(patience=0)


# --- texts ----------------------------------------------------------------------------------------


def test_every_event_has_a_text_except_hook_passed():
    assert set(Event.__subclasses__()) - set(SENTENCES) == {HookPassed}


def test_a_refuted_doubt_has_a_text():
    lines: list[str] = []
    refuted = Resolved(key="payment-9", intent_id="i", attempt=1, seconds=0.0, outcome=Outcome.REFUSED)
    Narration(lines.append, now=lambda: 0.0).observe(refuted)

    assert lines == ["  0.000 s  client   payment-9  refuted: no order exists, and none can appear"]


def test_money_is_shown_in_full():
    assert money(Decimal("1E+6"), "NGN") == "1,000,000 NGN"
    assert money(Decimal("1234567.80"), "NGN") == "1,234,567.80 NGN"


def test_the_customer_confirms_a_close_match_and_another_name_gets_no_hold(story):
    lines = story.lines

    asked = found_in(lines, r"bank +payment-5 +a close match; the bank asks its customer")
    assert asked < found_in(lines, rf"client +payment-5 +created: {TX}")
    assert found_in(lines, r"client +payment-6 +the call ends: the order was never sent \(no match\)")
    assert not any(re.search(r"bank +payment-6 .*placed", line) for line in lines)


def test_the_table_of_two_hundred_orders_is_consistent(story):
    rows = story.lines[-8:-3]

    table = {line.split("  ")[1]: [int(n) for n in re.findall(r"\d+", line)] for line in rows}
    created, refused, never_sent, unknown, everything = table.values()
    assert list(table) == ["created", "refused", "never sent", "unknown", "all"]
    assert everything[0] == 200
    assert created[0] == created[1] == created[2]
    assert refused[1:] == [0, 0, refused[0]]
    assert never_sent[1:] == [0, 0, 0]
    assert unknown[2:] == [unknown[0], 0]
