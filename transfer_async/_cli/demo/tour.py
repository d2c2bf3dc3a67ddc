"""The demo: one small bank sends orders to a sandbox of the service, in one process.

Its lines come from the client's observer, from the hold hook, from ``resolve`` and from what the calls
return, at the moment they happen. Nothing is claimed that has not been compared with what the sandbox
recorded and what the bank's ledger holds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from attrs import field, frozen

from transfer_async._cli.console.output import Say, in_one_line, shown
from transfer_async._cli.demo import beneficiary_check
from transfer_async._cli.demo.bank import BackOffice, Ledger, money, usd_order
from transfer_async._cli.demo.live_view import Board, live_or_plain
from transfer_async._cli.demo.many_orders import ORDERS, Rush
from transfer_async._cli.demo.narration import Narration, Surprise
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


@frozen(kw_only=True)
class Scene:
    """What the steps are played with: a small bank, its client, and a sandbox of the service."""

    lines: Narration
    sandbox: Sandbox
    ledger: Ledger
    office: BackOffice
    client: TransferClient
    match_every: float
    board: AbstractContextManager[Board]
    orders: dict[str, Order] = field(factory=dict)
    """What was created, by key."""

    @property
    def requests(self) -> int:
        """How many requests for an order the sandbox has received."""
        return sum(record.path == CREATE_ORDER_PATH for record in self.sandbox.requests)

    def check_newest(self, key: str, order: Order) -> None:
        """Compare the newest order of the sandbox, and how many there are, with what the client says."""
        self.orders[key] = order
        number = len(self.ledger.kept)
        last = list(self.sandbox.orders)[number - 1 :]
        self.lines.check(key, f"the sandbox has it, as order {number} of {number}", last == [order.id])


async def run(
    say: Say, *, live: bool = False, match_every: float = MATCH_EVERY, patience: float = PATIENCE
) -> None:
    """Play the demo.

    Args:
        say: takes one line.
        live: show the many orders in a view that changes.
        match_every: seconds between two runs of the matcher bot.
        patience: seconds after which the whole counts as failed.

    Raises:
        Surprise: says in one line what was not as it should be.
    """
    try:
        async with asyncio.timeout(patience):
            await _play(Narration(say), live_or_plain(say, live=live), match_every=match_every)
    except Surprise:
        raise
    except TimeoutError as error:
        raise Surprise(f"it was not done after {patience:g} s") from error
    except Exception as error:
        raise Surprise(in_one_line(error)) from error


async def _play(lines: Narration, board: AbstractContextManager[Board], *, match_every: float) -> None:
    async with Sandbox(match_every=match_every) as sandbox:
        lines.plain("A bank, the transfer_async client, and a sandbox of the service, in one process.")
        ledger, office = Ledger(lines.tell), BackOffice(sandbox, lines.tell)
        async with TransferClient(
            sandbox.base_url,
            sandbox.token,
            hooks=[FundsHold(ledger.place, ledger.release)],
            resolve=office.resolve,
            observers=[lines.observe],
        ) as client:
            scene = Scene(
                lines=lines,
                sandbox=sandbox,
                ledger=ledger,
                office=office,
                client=client,
                match_every=match_every,
                board=board,
            )
            for number, (title, step) in enumerate(STEPS, 1):
                lines.title(f"{number}. {title}")
                await step(scene)
    lines.check("", "all of this is what the sandbox and the ledger have", True)
    lines.plain("")
    matched = ", ".join(f"{order.id} matched" for order in scene.orders.values())
    lines.plain(f"demo ok: {matched}, 1 refused, 0 in doubt")


# --- the steps ------------------------------------------------------------------------------------


async def _who_am_i(scene: Scene) -> None:
    every = f"its matcher bot runs every {scene.match_every:g} s"
    scene.lines.tell("sandbox", "", f"listens on {scene.sandbox.base_url}; {every}")
    me = await scene.client.who_am_i()
    active = "active" if me.is_active else "not active"
    scene.lines.tell("client", "", f"who am I: {me.username}, role {me.role}, {active}")
    bank = scene.sandbox.accounts.bank
    scene.lines.check("", "that is the bank account that owns the token", me.id == bank.id)


async def _an_order(scene: Scene) -> None:
    order = await scene.client.create_order(usd_order("ada.eze", "ben.okri", "100.00"), key=ANSWERED)
    scene.check_newest(ANSWERED, order)


async def _a_lost_answer(scene: Scene) -> None:
    lines, ledger = scene.lines, scene.ledger
    scene.sandbox.faults.add(CloseAfterProcessing())
    try:
        await _create_lost(scene)
    except OutcomeUnknown as doubt:
        lines.tell("client", LOST, f"the call ends: {doubt.outcome.value} ({type(doubt).__name__})")
        honest = doubt.outcome is Outcome.UNKNOWN and doubt.order_may_exist
        lines.check(LOST, "the error says that the order may exist", honest)
        kept = doubt.receipts == {"funds_hold": ledger.kept.get(LOST)}
        lines.check(LOST, f"its hold is kept: {ledger.kept.get(LOST)}", kept)
    else:
        raise Surprise("an order whose answer was lost was reported as created")


async def _the_doubt_ends(scene: Scene) -> None:
    lines, sent = scene.lines, scene.requests
    scene.office.at_work = True
    report = await scene.client.recover()
    lines.check(LOST, "recover() resolved it", (report.resolved, report.in_doubt) == (1, 0))
    order = await _create_lost(scene)
    lines.tell("client", LOST, f"create_order again, same key: gives back {order.id}")
    lines.check(LOST, "no second request was sent", scene.requests == sent)
    scene.check_newest(LOST, order)


async def _create_lost(scene: Scene) -> Order:
    return await scene.client.create_order(usd_order("tunde.bello", "ben.okri", "250.00"), key=LOST)


async def _a_refusal(scene: Scene) -> None:
    lines = scene.lines
    try:
        await scene.client.create_order(usd_order("tunde.bello", "noah.lind", "75.00"), key=REFUSED)
    except Refused as no:
        lines.tell("client", REFUSED, f"the call ends: refused, status {no.status}: {_reason(no)}")
        lines.check(REFUSED, "the error says that no order exists", not no.order_may_exist)
    else:
        raise Surprise("an order to a beneficiary who cannot be paid was created")
    lines.check(REFUSED, "its hold is released", REFUSED in scene.ledger.released)
    record = await scene.client.known(REFUSED)
    free = record is not None and record.state is KeyState.FREE
    lines.check(REFUSED, "its key is free again", free)


def _reason(no: Refused) -> str:
    """Why the sandbox refused, in its own words; what the real service says is not specified."""
    errors = json.loads(no.body)["errors"]
    return shown("; ".join(f"{field} {' and '.join(reasons)}" for field, reasons in errors.items()))


async def _the_matcher_bot(scene: Scene) -> None:
    for key, order in scene.orders.items():
        await scene.sandbox.matched(order.id)
        scene.lines.tell("sandbox", key, f"matched: {order.id}")
        now = scene.office.order(order.id)
        same = now.id == order.id and now.state is OrderState.MATCHED
        scene.lines.check(key, "it is the same order, and its state is matched", same)


async def _what_there_is(scene: Scene) -> None:
    lines, kept, released = scene.lines, scene.ledger.kept, scene.ledger.released
    for key, order in scene.orders.items():
        now = scene.office.order(order.id)
        sent = money(now.poster_amount, now.poster_currency)
        lines.tell("order", key, f"{now.id}  {now.state.value}  {sent}  {kept.get(key)} kept")
    ours = {order.id for order in scene.orders.values()}
    exact = set(scene.sandbox.orders) == ours and len(ours) == 2
    lines.check("", "the sandbox has these 2 orders and no other", exact)
    lines.check("", "it received 3 requests for 3 keys", scene.requests == 3)
    held = set(kept) == set(scene.orders) and set(released) == {REFUSED}
    lines.check("", "the ledger keeps 2 holds, theirs, and has released 1", held)


async def _beneficiaries(scene: Scene) -> None:
    await beneficiary_check.play(scene.lines)


async def _many_orders(scene: Scene) -> None:
    with scene.board as board:
        await Rush(board).run()


STEPS: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("Who the caller is", _who_am_i),
    ("An order is created", _an_order),
    ("An answer is lost: the service processes the order and closes the connection", _a_lost_answer),
    ("The doubt ends, by the bank's own means; here they look into the sandbox", _the_doubt_ends),
    ("A refusal: the beneficiary cannot be paid", _a_refusal),
    ("The matcher bot comes by", _the_matcher_bot),
    ("What there is in the end", _what_there_is),
    ("Is the beneficiary who the customer means?", _beneficiaries),
    (f"{ORDERS} orders at once, with faults mixed in", _many_orders),
)
"""What is played, in this order; each step checks what it tells. The last two bring their own sandboxes."""
