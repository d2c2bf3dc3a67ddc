"""The demo: one small bank sends orders to a sandbox of the service, in one process.

Its lines come from the client's observer, from the hold hook, from ``resolve`` and from what the calls
return, at the moment they happen. Nothing is claimed that has not been compared with what the sandbox
recorded and what the bank's ledger holds.
"""

from __future__ import annotations

import asyncio
import json

from transfer_async._cli.console.output import Say, in_one_line, shown
from transfer_async._cli.demo.bank import BackOffice, Ledger, money, usd_order
from transfer_async._cli.demo.beneficiary_check import Verifying
from transfer_async._cli.demo.live_view import live_or_plain
from transfer_async._cli.demo.many_orders import ORDERS, Disagreement, Rush
from transfer_async._cli.demo.narration import Lines
from transfer_async._client import TransferClient
from transfer_async._models.errors import Outcome, OutcomeUnknown, Refused
from transfer_async._models.responses import Order, OrderState
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.journal.entries import KeyState
from transfer_async.sandbox import CloseAfterProcessing, Sandbox
from transfer_async.sandbox.service import CREATE_ORDER_PATH

MATCH_EVERY = 0.5
PATIENCE = 30.0

ANSWERED, LOST, REFUSED = "payment-1", "payment-2", "payment-3"


class Surprise(Exception):
    """Something was not as the demo is about to claim."""


async def run(
    say: Say, *, live: bool = False, match_every: float = MATCH_EVERY, patience: float = PATIENCE
) -> None:
    """Play the demo.

    Args:
        say: takes one line.
        live: show the many orders in a view that changes, where rich is installed.
        match_every: seconds between two runs of the matcher bot.
        patience: seconds after which the whole counts as failed.

    Raises:
        Surprise: says in one line what was not as it should be.
    """
    try:
        lines = Lines(say)
        async with asyncio.timeout(patience):
            async with Sandbox(match_every=match_every) as sandbox:
                end = await _Story(sandbox, lines, match_every).run()
            lines.title("8. Is the beneficiary who the customer means?")
            await Verifying(lines, _Checker(lines).check, usd_order("ada.eze", "ben.okri", "80.00")).run()
            lines.title(f"9. {ORDERS} orders at once, with faults mixed in")
            with live_or_plain(say, live=live) as board:
                await Rush(board).run()
            _Checker(lines).check("", "all of this is what the sandbox and the ledger have", True)
            lines.plain("")
            lines.plain(end)
    except Surprise:
        raise
    except Disagreement as error:
        raise Surprise(str(error)) from error
    except TimeoutError as error:
        raise Surprise(f"it was not done after {patience:g} s") from error
    except Exception as error:
        raise Surprise(in_one_line(error)) from error


class _Checker:
    """Claims nothing that is not so."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def check(self, key: str, claim: str, truth: bool) -> None:
        """Tell ``claim``, if it is true."""
        if not truth:
            raise Surprise(f"{key or 'the demo'}: it is not so that {claim}")
        self._lines.tell("checked", key, claim)


class _Story:
    """The first parts of the demo, in their order."""

    def __init__(self, sandbox: Sandbox, lines: Lines, match_every: float) -> None:
        self._sandbox, self._lines, self._match_every = sandbox, lines, match_every
        self._check = _Checker(lines).check
        self._ledger = Ledger(lines.tell)
        self._office = BackOffice(sandbox, lines.tell)
        self._client = TransferClient(
            sandbox.base_url,
            sandbox.token,
            hooks=[FundsHold(self._ledger.place, self._ledger.release)],
            resolve=self._office.resolve,
            observers=[lines.observe],
        )

    async def run(self) -> str:
        """Tell it all; the last line is left to the caller."""
        self._lines.plain("A bank, the transfer_async client, and a sandbox of the service, in one process.")
        async with self._client:
            await self._who_am_i()
            answered = await self._an_order()
            await self._a_lost_answer()
            lost = await self._the_doubt_ends()
            await self._a_refusal()
            await self._the_matcher_bot(answered, lost)
            return self._the_end(answered, lost)

    async def _who_am_i(self) -> None:
        self._lines.title("1. Who the caller is")
        every = f"its matcher bot runs every {self._match_every:g} s"
        self._lines.tell("sandbox", "", f"listens on {self._sandbox.base_url}; {every}")
        me = await self._client.who_am_i()
        active = "active" if me.is_active else "not active"
        self._lines.tell("client", "", f"who am I: {me.username}, role {me.role}, {active}")
        bank = self._sandbox.accounts.bank
        self._check("", "that is the bank account that owns the token", me.id == bank.id)

    async def _an_order(self) -> Order:
        self._lines.title("2. An order is created")
        order = await self._client.create_order(usd_order("ada.eze", "ben.okri", "100.00"), key=ANSWERED)
        self._check_orders(ANSWERED, order.id)
        return order

    async def _a_lost_answer(self) -> None:
        self._lines.title("3. An answer is lost: the service processes the order and closes the connection")
        self._sandbox.faults.add(CloseAfterProcessing())
        try:
            await self._create_lost()
        except OutcomeUnknown as doubt:
            self._lines.tell("client", LOST, f"the call ends: {doubt.outcome.value} ({type(doubt).__name__})")
            honest = doubt.outcome is Outcome.UNKNOWN and doubt.order_may_exist
            self._check(LOST, "the error says that the order may exist", honest)
            kept = doubt.receipts == {"funds_hold": self._ledger.kept.get(LOST)}
            self._check(LOST, f"its hold is kept: {self._ledger.kept.get(LOST)}", kept)
        else:
            raise Surprise("an order whose answer was lost was reported as created")

    async def _the_doubt_ends(self) -> Order:
        self._lines.title("4. The doubt ends, by the bank's own means; here they look into the sandbox")
        sent = self._requests()
        self._office.at_work = True
        report = await self._client.recover()
        self._check(LOST, "recover() resolved it", (report.resolved, report.in_doubt) == (1, 0))
        order = await self._create_lost()
        self._lines.tell("client", LOST, f"create_order again, same key: gives back {order.id}")
        self._check(LOST, "no second request was sent", self._requests() == sent)
        self._check_orders(LOST, order.id)
        return order

    async def _a_refusal(self) -> None:
        self._lines.title("5. A refusal: the beneficiary cannot be paid")
        try:
            order = usd_order("tunde.bello", "noah.lind", "75.00")
            await self._client.create_order(order, key=REFUSED)
        except Refused as no:
            self._lines.tell("client", REFUSED, f"the call ends: refused, status {no.status}: {_reason(no)}")
            self._check(REFUSED, "the error says that no order exists", not no.order_may_exist)
        else:
            raise Surprise("an order to a beneficiary who cannot be paid was created")
        self._check(REFUSED, "its hold is released", REFUSED in self._ledger.released)
        record = await self._client.known(REFUSED)
        free = record is not None and record.state is KeyState.FREE
        self._check(REFUSED, "its key is free again", free)

    async def _the_matcher_bot(self, *orders: Order) -> None:
        self._lines.title("6. The matcher bot comes by")
        for key, order in zip((ANSWERED, LOST), orders, strict=True):
            await self._sandbox.matched(order.id)
            self._lines.tell("sandbox", key, f"matched: {order.id}")
            now = self._office.order(order.id)
            self._check(key, "it is the same order, and its state is matched", _is_matched(now, order.id))

    def _the_end(self, answered: Order, lost: Order) -> str:
        self._lines.title("7. What there is in the end")
        both = {ANSWERED: answered, LOST: lost}
        holds = self._ledger.kept
        for key, order in both.items():
            now = self._office.order(order.id)
            sent = money(now.poster_amount, now.poster_currency)
            text = f"{now.id}  {now.state.value}  {sent}  {holds.get(key)} kept"
            self._lines.tell("order", key, text)
        exact = set(self._sandbox.orders) == {answered.id, lost.id}
        self._check("", "the sandbox has these 2 orders and no other", exact and answered.id != lost.id)
        self._check("", "it received 3 requests for 3 keys", self._requests() == 3)
        ledger = set(holds) == set(both) and set(self._ledger.released) == {REFUSED}
        self._check("", "the ledger keeps 2 holds, theirs, and has released 1", ledger)
        return f"demo ok: {answered.id} matched, {lost.id} matched, 1 refused, 0 in doubt"

    async def _create_lost(self) -> Order:
        order = usd_order("tunde.bello", "ben.okri", "250.00")
        return await self._client.create_order(order, key=LOST)

    def _requests(self) -> int:
        return sum(record.path == CREATE_ORDER_PATH for record in self._sandbox.requests)

    def _check_orders(self, key: str, order_id: str) -> None:
        """Compare the newest order of the sandbox, and how many there are, with what the client says."""
        number = len(self._ledger.kept)
        last = list(self._sandbox.orders)[number - 1 :]
        self._check(key, f"the sandbox has it, as order {number} of {number}", last == [order_id])


def _is_matched(order: Order, order_id: str) -> bool:
    return order.id == order_id and order.state is OrderState.MATCHED


def _reason(no: Refused) -> str:
    """Why the sandbox refused, in its own words; what the real service says is not specified."""
    errors = json.loads(no.body)["errors"]
    return shown("; ".join(f"{field} {' and '.join(reasons)}" for field, reasons in errors.items()))
