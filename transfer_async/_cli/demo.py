"""The demo: a small bank sends orders to a sandbox of the service, in one process.

Each line is printed as soon as its event happens. The lines come from an observer of the client, the hold
hook, ``resolve``, and the code that receives a call's result. Every claim is checked against the orders in
the sandbox and the holds in the bank's ledger.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from operator import add
from typing import Any

from attrs import define, evolve, field, frozen

from transfer_async._beneficiary.verification import BeneficiaryVerification, UserLookup
from transfer_async._cli.output import Say, in_columns, in_one_line, shown
from transfer_async._client import TransferClient
from transfer_async._models import events
from transfer_async._models.errors import (
    BeneficiaryNotVerified,
    MatchResult,
    Outcome,
    OutcomeUnknown,
    PreflightFailed,
    Refused,
    TransferError,
)
from transfer_async._models.requests import (
    NewExternalOrder,
    NewOrder,
    OrderIntent,
    OrderRequest,
    PersonName,
    ascii_lower,
)
from transfer_async._models.responses import Order, OrderState, User
from transfer_async._pipeline.batch import OrderResult
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.journal.model import KeyState
from transfer_async.sandbox import (
    AnotherOrder,
    CloseAfterProcessing,
    CloseBeforeReading,
    Fault,
    ResetAfterProcessing,
    Sandbox,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    wire,
)
from transfer_async.sandbox.service import CREATE_ORDER_PATH

# --- narration ---------------------------------------------------------------------------------------


class FalseClaim(Exception):
    """Raised if a statement that the demo makes is false."""


def expect(claim: str, truth: bool, *, key: str = "") -> None:
    """Raise `FalseClaim`, quoting ``claim``, unless ``truth`` is true."""
    if not truth:
        raise FalseClaim(f"{key or 'the demo'}: this claim is not true: {claim}")


@frozen
class Narration:
    """Prints lines in columns: the seconds since the start, the source, the key, and the text."""

    plain: Say  # writes one line without columns
    _now: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    _began: float = field(init=False)

    @_began.default
    def _begin(self) -> float:
        return self._now()

    def title(self, text: str) -> None:
        """Print the title of a step."""
        self.plain("")
        self.plain(text)

    def tell(self, who: str, key: str, text: str) -> None:
        """Print one event."""
        self.plain(f"{self._now() - self._began:7.3f} s  {who:<8} {key:<9}  {text}")

    def check(self, key: str, claim: str, truth: bool) -> None:
        """Print ``claim`` if ``truth`` is true.

        Raises:
            FalseClaim: ``claim`` is false.
        """
        expect(claim, truth, key=key)
        self.tell("checked", key, claim)

    def observe(self, event: events.Event) -> None:
        """Print an event. Print an event of the client; this method is an observer."""
        sentence = SENTENCES.get(type(event))
        if sentence is not None:
            self.tell("client", event.key, sentence(event))


def _failed(event: events.AttemptFailed) -> str:
    status = "" if event.status is None else f", status {event.status}"
    outcome = event.outcome.value.replace("_", " ")
    return f"attempt {event.attempt} ended: {outcome} ({event.error}{status})"


def _resolved(event: events.Resolved) -> str:
    if event.outcome is Outcome.CREATED:
        return f"resolved: created, {event.order_id}"
    return "refuted: no order exists, and none can appear"


SENTENCES: dict[type[events.Event], Callable[[Any], str]] = {
    events.Claimed: lambda _: "key claimed: no other call can use it now",
    events.RateLimitWaited: lambda event: f"waited {event.waited:.3f} s for the rate limit",
    events.AttemptStarted: lambda event: f"attempt {event.attempt} begins",
    events.AttemptFailed: _failed,
    events.RetryScheduled: lambda event: f"another attempt in {event.pause:.3f} s",
    events.OrderCreated: lambda event: f"created: {event.order_id}",
    events.OrderUnrecorded: lambda event: f"the journal could not record {event.order_id}",
    events.OrderRefused: lambda _: "refused: no order exists",
    events.NotSent: lambda event: f"the order was not sent ({event.error})",
    events.OrderInDoubt: lambda _: (
        "in doubt: the order may exist, so nothing is undone and nothing is sent again"
    ),
    events.Resolved: _resolved,
    events.HookUndone: lambda event: f"{event.hook} undone",
    events.UndoPending: lambda event: (
        f"{event.hook} could not be undone ({event.error}): its undo is pending"
    ),
    events.DuplicateSuspected: lambda event: (
        f"a duplicate is suspected: {event.order_id or 'its id is not known'}"
    ),
}
"""The text for each event. `HookPassed` has none, because the hook prints a line itself."""


# --- the bank ---------------------------------------------------------------------------------------
# The bank of `demo` and `worker --try` has a ledger of holds and a back office.


Tell = Callable[[str, str, str], object]
"""Prints one event: its source, its key, and a text."""


def money(amount: Decimal, currency: str) -> str:
    """Format an amount with its currency, for people to read."""
    return f"{amount:,f} {currency}"


def usd_order(poster: str, beneficiary: str, amount: Decimal | str) -> NewOrder:
    """Return an order that exchanges naira for dollars between two accounts of the sandbox."""
    return NewOrder.quote(
        poster_username=f"{poster}@example.com",
        poster_recipient_username=f"{beneficiary}@example.com",
        poster_currency="NGN",
        poster_country="NG",
        poster_payment_method_type="nigerian_bank_payment",
        matcher_currency="USD",
        matcher_country="US",
        matcher_amount=amount,
        exchange_rate="1550.25",
        external_order=NewExternalOrder(
            current_account_balance=Decimal("90000000.00"),
            transaction_fee=Decimal("150.00"),
            transaction_fee_currency="NGN",
        ),
    )


@frozen
class Hold:
    """A reservation of a customer's funds."""

    reference: str
    key: str
    released: bool = False


@frozen
class Ledger:
    """The bank's holds. `place` and `release` are idempotent per intent id, as a hold hook must be."""

    _tell: Tell
    _holds: dict[str, Hold] = field(factory=dict, init=False)

    async def place(self, intent: OrderIntent) -> str:
        """Hold the order's amount, and return the hold's reference as the receipt."""
        hold = self._holds.get(intent.id)
        if hold is None:
            hold = self._holds[intent.id] = Hold(f"hold-{len(self._holds) + 1}", intent.key)
            amount = money(intent.order.poster_amount, intent.order.poster_currency)
            poster = intent.order.poster_username
            self._tell("bank", intent.key, f"{hold.reference} placed: {amount} of {poster}")
        return hold.reference

    async def release(self, intent: OrderIntent, _receipt: str | None) -> None:
        """Release the intent's hold, if there is one."""
        hold = self._holds.get(intent.id)
        if hold is not None and not hold.released:
            self._holds[intent.id] = evolve(hold, released=True)
            self._tell(
                "bank", intent.key, f"{hold.reference} was released: the customer can use the money again"
            )

    @property
    def kept(self) -> dict[str, str]:
        """The references of the holds that are not released, by key."""
        return {hold.key: hold.reference for hold in self._holds.values() if not hold.released}

    @property
    def released(self) -> dict[str, str]:
        """The references of the released holds, by key."""
        return {hold.key: hold.reference for hold in self._holds.values() if hold.released}


@define
class BackOffice:
    """Finds out whether an order exists. A real bank would look up the order or ask a person.

    The demo reads the sandbox's orders, because the service has no documented look-up of orders.
    """

    _sandbox: Sandbox
    _tell: Tell
    at_work: bool = field(default=False, init=False)  # if false, no order is found

    async def resolve(self, intent: OrderIntent, _doubt: OutcomeUnknown) -> Order | None:
        """Return the order for ``intent``, or None while the order is unknown."""
        if not self.at_work:
            self._tell(
                "bank",
                intent.key,
                "the back office has not looked for the order yet: the outcome stays unknown",
            )
            return None
        found = [order for order in self._sandbox.orders.values() if _is_of(order, intent.order)]
        if len(found) != 1:
            # If no order is found, this proves nothing: a request that stalled may still take effect.
            self._tell(
                "bank",
                intent.key,
                f"the back office found {len(found)} matching orders: the outcome stays unknown",
            )
            return None
        self._tell(
            "bank", intent.key, f"the back office (here, the sandbox) has found the order: {found[0].id}"
        )
        return self.order(found[0].id)

    def order(self, order_id: str) -> Order:
        """Return the service's current record of the order."""
        return Order.from_json(self._sandbox.orders[order_id].to_json())


def _is_of(recorded: wire.Order, order: NewOrder) -> bool:
    request = recorded.request
    return (
        ascii_lower(request.poster_username) == ascii_lower(order.poster_username)
        and ascii_lower(request.poster_recipient_username) == ascii_lower(order.poster_recipient_username)
        and (request.poster_amount, request.poster_currency) == (order.poster_amount, order.poster_currency)
        and (request.matcher_amount, request.matcher_currency)
        == (order.matcher_amount, order.matcher_currency)
    )


# --- beneficiary check -------------------------------------------------------------------------------
# Three names: a match, a close match that the customer confirms, and the name of another person.

SAME, CLOSE, OTHER = "payment-4", "payment-5", "payment-6"


@frozen
class Payment:
    """A customer's payment and its expected result."""

    key: str
    to: PersonName
    wish: str
    claim: str
    asked: tuple[str, ...]
    """The keys of all payments that the customer was asked about, up to this payment."""
    result: MatchResult | None = None
    """The reason why nothing is sent; None if the order is created."""


PAYMENTS = (
    Payment(
        SAME,
        PersonName("Ben", "Okri"),
        "pays Ben Okri",
        "the names matched, so the customer was not asked",
        (),
    ),
    Payment(CLOSE, PersonName("Ben", "Okry"), "pays Ben Okry", "the customer was asked once", (CLOSE,)),
    Payment(
        OTHER,
        PersonName("Amaka", "Nwosu"),
        "pays Amaka Nwosu, but gives Ben Okri's username",
        "the names do not match, and no order exists",
        (CLOSE,),
        MatchResult.NO_MATCH,
    ),
)
"""Three orders to one username, with three names."""


async def _beneficiaries(scene: Scene) -> None:
    """Send the `PAYMENTS` to a separate sandbox."""
    lines = scene.lines
    ledger, customer = Ledger(lines.tell), _Customer(lines)
    async with Sandbox(seed=1) as sandbox:
        verification = BeneficiaryVerification(UserLookup(sandbox.user_path), accept_close=customer.says_yes)
        async with TransferClient(
            sandbox.base_url,
            sandbox.token,
            hooks=[verification, FundsHold(ledger.place, ledger.release)],
            observers=[lines.observe],
        ) as client:
            for payment in PAYMENTS:
                lines.tell("customer", payment.key, payment.wish)
                is_expected = payment.result is None
                try:
                    order = usd_order("ada.eze", "ben.okri", "80.00")
                    await client.create_order(order, key=payment.key, beneficiary=payment.to)
                except BeneficiaryNotVerified as no:
                    result = no.result.value.replace("_", " ")
                    lines.tell("client", payment.key, f"the call ends: the order was never sent ({result})")
                    is_expected = no.result is payment.result and not no.order_may_exist
                lines.check(payment.key, payment.claim, is_expected and customer.asked == [*payment.asked])
        lines.check(OTHER, "no hold was ever placed", OTHER not in {**ledger.kept, **ledger.released})
        lines.check(
            "", "the sandbox contains the first two orders, but not the third", len(sandbox.orders) == 2
        )


class _Customer:
    """A customer who confirms every close match. ``asked`` contains the keys of the confirmed payments."""

    def __init__(self, lines: Narration) -> None:
        self._lines = lines
        self.asked: list[str] = []

    async def says_yes(self, intent: OrderIntent, user: User) -> bool:
        self.asked.append(intent.key)
        question = f"did you mean {user.firstname} {user.middlename} {user.lastname}?"
        self._lines.tell("bank", intent.key, f"a close match; the bank asks its customer: {question}")
        self._lines.tell("customer", intent.key, "yes")
        return True


# --- many orders -------------------------------------------------------------------------------------
# Two hundred orders at once, with faults. The results are compared with the sandbox and the ledger.
# Every order has a different amount, which identifies it in the sandbox without the client's help.


ORDERS = 200
AT_ONCE = 32
LIMIT = Decimal("399000.00")
"""The demo bank's limit for one order, in naira; a few orders exceed it."""

FAULTS: dict[Fault, float] = {
    CloseBeforeReading(): 0.03,
    CloseAfterProcessing(): 0.04,
    ResetAfterProcessing(): 0.03,
    Status(429, headers={"Retry-After": "0"}): 0.05,
    Status(503): 0.02,
    StatusAfterProcessing(500): 0.03,
    TruncatedBody(): 0.03,
    AnotherOrder(): 0.02,
}
"""The faults and their shares of all orders; the sandbox draws them from its seed."""

NAMES = {
    Outcome.CREATED: "created",
    Outcome.REFUSED: "refused",
    Outcome.NOT_SENT: "never sent",
    Outcome.UNKNOWN: "unknown",
}


COLUMNS = ("outcome", "orders", "in the sandbox", "holds kept", "holds released")


async def within_limit(intent: OrderIntent) -> None:
    """A hook that runs before the hold hook, and refuses orders over the bank's limit."""
    if intent.order.poster_amount > LIMIT:
        raise PreflightFailed("over the limit for one order")


@define(slots=False)
class ManyOrders:
    """Sends many orders at once, and compares the client's results with the sandbox and the ledger."""

    _say: Say  # writes a line
    _results: dict[Decimal, OrderResult] = field(factory=dict, init=False)
    _counts: dict[str, int] = field(factory=lambda: dict.fromkeys(NAMES.values(), 0), init=False)

    async def run(self) -> None:
        """Create the orders, compare them, and print a row for each outcome.

        Raises:
            FalseClaim: the client's results differ from what the sandbox or the ledger recorded.
        """
        quiet = Ledger(lambda *_: None)
        async with Sandbox(seed=0, faults=FAULTS) as sandbox:
            office = BackOffice(sandbox, lambda *_: None)
            hooks = (within_limit, FundsHold(quiet.place, quiet.release))
            async with TransferClient(
                sandbox.base_url, sandbox.token, hooks=hooks, resolve=office.resolve
            ) as client:
                async for result in client.create_orders(_requests(), concurrency=AT_ONCE):
                    self._note(result)
            rows = self._compared(sandbox, quiet)
        table = [COLUMNS, *((name, *map(str, row)) for name, row in rows.items())]
        for line in in_columns(table, numbers_from=1):
            self._say(f"  {line}")

    def _note(self, result: OrderResult) -> None:
        self._results[result.request.order.poster_amount] = result
        self._counts[NAMES[_outcome(result)]] += 1
        done = len(self._results)
        if done % 50 == 0:
            counts = ", ".join(f"{number} {outcome}" for outcome, number in self._counts.items())
            self._say(f"{done:5} of {ORDERS} orders: {counts}")

    def _compared(self, sandbox: Sandbox, ledger: Ledger) -> dict[str, list[int]]:
        """Return four counts for each outcome: requests, existing orders, holds kept and holds released."""
        there = Counter(order.poster_amount for order in sandbox.orders.values())
        expect("no order is duplicated", max(there.values()) == 1)
        expect("every request has a result", len(self._results) == ORDERS)
        kept, released = ledger.kept, ledger.released
        rows = {name: [0, 0, 0, 0] for name in (*NAMES.values(), "all")}
        for amount, result in self._results.items():
            exists, key, outcome = amount in there, result.request.key, _outcome(result)
            _compare_one(str(key), outcome, exists=exists, held=key in kept)
            for name in (NAMES[outcome], "all"):
                rows[name] = [*map(add, rows[name], (1, exists, key in kept, key in released))]
        expect("every order in the sandbox belongs to a request", rows["all"][1] == len(sandbox.orders))
        return rows


def _requests() -> Iterator[OrderRequest]:
    for number in range(1, ORDERS + 1):
        unpayable = number % 20 == 0
        beneficiary = "noah.lind" if unpayable else "ben.okri"
        yield OrderRequest(usd_order("tunde.bello", beneficiary, Decimal(60) + number), key=f"rush-{number}")


def _outcome(result: OrderResult) -> Outcome:
    if isinstance(result.error, TransferError):
        return result.error.outcome
    kind = type(result.error).__name__
    expect(f"{kind} is one of the package's own errors", result.error is None, key=str(result.request.key))
    return Outcome.CREATED


def _compare_one(key: str, outcome: Outcome, *, exists: bool, held: bool) -> None:
    if outcome is Outcome.CREATED:
        expect("a created order exists", exists, key=key)
    elif outcome is not Outcome.UNKNOWN:
        expect("an order that was refused or never sent does not exist", not exists, key=key)
    wanted = outcome in (Outcome.CREATED, Outcome.UNKNOWN)
    expect("a hold is kept if, and only if, its order may exist", held is wanted, key=key)


MATCH_EVERY = 0.5
PATIENCE = 30.0

ANSWERED, LOST, REFUSED = "payment-1", "payment-2", "payment-3"


@frozen(kw_only=True)
class Scene:
    """The objects that all steps use: a small bank, its client, and a sandbox of the service."""

    lines: Narration
    sandbox: Sandbox
    ledger: Ledger
    office: BackOffice
    client: TransferClient
    match_every: float
    orders: dict[str, Order] = field(factory=dict)
    """The created orders, by key."""

    @property
    def requests(self) -> int:
        """The number of create-order requests that the sandbox has received."""
        return sum(record.path == CREATE_ORDER_PATH for record in self.sandbox.requests)

    def check_newest(self, key: str, order: Order) -> None:
        """Check that the client's order is the newest in the sandbox, and that no other order was added."""
        self.orders[key] = order
        number = len(self.ledger.kept)
        last = list(self.sandbox.orders)[number - 1 :]
        self.lines.check(
            key, f"the order is the newest in the sandbox; orders in total: {number}", last == [order.id]
        )


async def run(say: Say, *, match_every: float = MATCH_EVERY, patience: float = PATIENCE) -> None:
    """Run the demo, which fails if it takes longer than ``patience`` seconds.

    Raises:
        FalseClaim: a claim is not true, or an error ended the demo. The message is one line.
    """
    try:
        async with asyncio.timeout(patience):
            await _play(Narration(say), match_every=match_every)
    except FalseClaim:
        raise
    except TimeoutError as error:
        raise FalseClaim(f"the demo did not finish within {patience:g} s") from error
    except Exception as error:
        raise FalseClaim(in_one_line(error)) from error


async def _play(lines: Narration, *, match_every: float) -> None:
    async with Sandbox(match_every=match_every) as sandbox:
        lines.plain(
            "This demo runs a bank, the transfer_async client and a sandbox of the service in one process."
        )
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
            )
            for number, (title, step) in enumerate(STEPS, 1):
                lines.title(f"{number}. {title}")
                await step(scene)
    lines.check("", "all of these figures match the sandbox and the ledger", True)
    lines.plain("")
    matched = ", ".join(f"{order.id} matched" for order in scene.orders.values())
    lines.plain(f"demo ok: {matched}, 1 refused, 0 in doubt")


# --- the steps ------------------------------------------------------------------------------------


async def _who_am_i(scene: Scene) -> None:
    every = f"the matcher bot runs every {scene.match_every:g} s"
    scene.lines.tell("sandbox", "", f"listens on {scene.sandbox.base_url}; {every}")
    me = await scene.client.who_am_i()
    active = "active" if me.is_active else "not active"
    scene.lines.tell("client", "", f"the token belongs to {me.username}, role {me.role}, {active}")
    bank = scene.sandbox.accounts.bank
    scene.lines.check("", "this is the account that owns the token", me.id == bank.id)


async def _an_order(scene: Scene) -> None:
    order = await scene.client.create_order(usd_order("ada.eze", "ben.okri", "100.00"), key=ANSWERED)
    scene.check_newest(ANSWERED, order)


async def _a_lost_answer(scene: Scene) -> None:
    lines, ledger = scene.lines, scene.ledger
    scene.sandbox.faults.add(CloseAfterProcessing())
    try:
        await _create_lost(scene)
    except OutcomeUnknown as doubt:
        lines.tell(
            "client", LOST, f"the call ends: the outcome is {doubt.outcome.value} ({type(doubt).__name__})"
        )
        honest = doubt.outcome is Outcome.UNKNOWN and doubt.order_may_exist
        lines.check(LOST, "the error reports that the order may exist", honest)
        kept = doubt.receipts == {"funds_hold": ledger.kept.get(LOST)}
        lines.check(LOST, f"the hold is kept: {ledger.kept.get(LOST)}", kept)
    else:
        raise FalseClaim("an order whose response was lost was reported as created")


async def _the_doubt_ends(scene: Scene) -> None:
    lines, sent = scene.lines, scene.requests
    scene.office.at_work = True
    report = await scene.client.recover()
    lines.check(LOST, "recover() resolved it", (report.resolved, report.in_doubt) == (1, 0))
    order = await _create_lost(scene)
    lines.tell("client", LOST, f"create_order with the same key again: returns {order.id}")
    lines.check(LOST, "no second request was sent", scene.requests == sent)
    scene.check_newest(LOST, order)


async def _create_lost(scene: Scene) -> Order:
    return await scene.client.create_order(usd_order("tunde.bello", "ben.okri", "250.00"), key=LOST)


async def _a_refusal(scene: Scene) -> None:
    lines = scene.lines
    try:
        await scene.client.create_order(usd_order("tunde.bello", "noah.lind", "75.00"), key=REFUSED)
    except Refused as no:
        lines.tell(
            "client", REFUSED, f"the call ends: the order was refused with status {no.status}: {_reason(no)}"
        )
        lines.check(REFUSED, "the error reports that no order exists", not no.order_may_exist)
    else:
        raise FalseClaim("an order was created for a beneficiary who cannot be paid")
    lines.check(REFUSED, "the hold is released", REFUSED in scene.ledger.released)
    record = await scene.client.known(REFUSED)
    free = record is not None and record.state is KeyState.FREE
    lines.check(REFUSED, "the key is free again", free)


def _reason(no: Refused) -> str:
    """Return the reasons from the sandbox's response.

    The specification does not define how the service gives reasons.
    """
    errors = json.loads(no.body)["errors"]
    return shown("; ".join(f"{field} {' and '.join(reasons)}" for field, reasons in errors.items()))


async def _the_matcher_bot(scene: Scene) -> None:
    for key, order in scene.orders.items():
        await scene.sandbox.matched(order.id)
        scene.lines.tell("sandbox", key, f"matched: {order.id}")
        now = scene.office.order(order.id)
        same = now.id == order.id and now.state is OrderState.MATCHED
        scene.lines.check(key, "the order is the same, and is now matched", same)


async def _what_there_is(scene: Scene) -> None:
    lines, kept, released = scene.lines, scene.ledger.kept, scene.ledger.released
    for key, order in scene.orders.items():
        now = scene.office.order(order.id)
        sent = money(now.poster_amount, now.poster_currency)
        lines.tell("order", key, f"{now.id}  {now.state.value}  {sent}  {kept.get(key)} kept")
    ours = {order.id for order in scene.orders.values()}
    exact = set(scene.sandbox.orders) == ours and len(ours) == 2
    lines.check("", "the sandbox contains only these 2 orders", exact)
    lines.check("", "the sandbox received 3 requests for 3 keys", scene.requests == 3)
    held = set(kept) == set(scene.orders) and set(released) == {REFUSED}
    lines.check("", "the ledger contains the holds of these 2 orders, and has released 1 hold", held)


async def _many_orders(scene: Scene) -> None:
    await ManyOrders(scene.lines.plain).run()


STEPS: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("Whose token is it?", _who_am_i),
    ("An order is created", _an_order),
    ("A response is lost: the service processes the order and closes the connection", _a_lost_answer),
    (
        (
            "The order in doubt is resolved: the bank (here, by asking the sandbox) finds out "
            "that the order exists"
        ),
        _the_doubt_ends,
    ),
    ("A refusal: the beneficiary cannot be paid", _a_refusal),
    ("The matcher bot matches the orders", _the_matcher_bot),
    ("The result", _what_there_is),
    ("Does the beneficiary's name match?", _beneficiaries),
    (f"{ORDERS} orders at once, with faults", _many_orders),
)
"""The steps, in the demo's order. Each step checks its claims. The last two have sandboxes of their own."""
