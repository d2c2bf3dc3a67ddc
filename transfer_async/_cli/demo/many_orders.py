"""The demo's rush: two hundred orders at once with faults mixed in, held at the end against what there is.

Every order has an amount of its own, so that the sandbox's orders can be told apart without the client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from operator import add

from transfer_async._cli.demo.bank import BackOffice, Ledger, usd_order
from transfer_async._cli.demo.live_view import Board
from transfer_async._cli.demo.narration import expect
from transfer_async._client import TransferClient
from transfer_async._models.errors import Outcome, PreflightFailed, TransferError
from transfer_async._models.requests import OrderIntent, OrderRequest
from transfer_async._pipeline.batch import OrderResult
from transfer_async._pipeline.hooks import FundsHold
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
)

ORDERS = 200
AT_ONCE = 32
LIMIT = Decimal("399000.00")
"""The demo bank's limit for one order; a few of them are over it."""

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
"""What goes wrong, and how often; the sandbox draws from its seed."""

NAMES = {
    Outcome.CREATED: "created",
    Outcome.REFUSED: "refused",
    Outcome.NOT_SENT: "never sent",
    Outcome.UNKNOWN: "unknown",
}


COLUMNS = ("outcome", "orders", "in the sandbox", "holds kept", "holds released")


async def within_limit(intent: OrderIntent) -> None:
    """A check of the bank's own, before the hold."""
    if intent.order.poster_amount > LIMIT:
        raise PreflightFailed("over the limit for one order")


class Rush:
    """One run.

    Args:
        board: shows it.
        seed: for the sandbox's faults.
    """

    def __init__(self, board: Board, *, seed: int = 0) -> None:
        self._board, self._seed = board, seed
        self._results: dict[Decimal, OrderResult] = {}
        self._counts = dict.fromkeys(NAMES.values(), 0)

    async def run(self) -> None:
        """Create the orders, compare, and show a row for each outcome.

        Raises:
            Surprise: what the client says and what there is are not the same.
        """
        quiet = Ledger(lambda *_: None)
        async with Sandbox(seed=self._seed, faults=FAULTS) as sandbox:
            office = BackOffice(sandbox, lambda *_: None)
            hooks = (within_limit, FundsHold(quiet.place, quiet.release))
            async with TransferClient(
                sandbox.base_url, sandbox.token, hooks=hooks, resolve=office.resolve
            ) as client:
                async for result in client.create_orders(_requests(), concurrency=AT_ONCE):
                    self._note(result)
            rows = self._compared(sandbox, quiet)
        self._board.table(COLUMNS, [(name, *map(str, row)) for name, row in rows.items()])

    def _note(self, result: OrderResult) -> None:
        self._results[result.request.order.poster_amount] = result
        self._counts[NAMES[_outcome(result)]] += 1
        self._board.show(len(self._results), ORDERS, self._counts)

    def _compared(self, sandbox: Sandbox, ledger: Ledger) -> dict[str, list[int]]:
        """How many orders there are, exist, have a hold, and had one, by outcome; the last are all."""
        there = Counter(order.poster_amount for order in sandbox.orders.values())
        expect("no order is there twice", max(there.values()) == 1)
        expect("every request has a result", len(self._results) == ORDERS)
        kept, released = ledger.kept, ledger.released
        rows = {name: [0, 0, 0, 0] for name in (*NAMES.values(), "all")}
        for amount, result in self._results.items():
            exists, key, outcome = amount in there, result.request.key, _outcome(result)
            _compare_one(str(key), outcome, exists=exists, held=key in kept)
            for name in (NAMES[outcome], "all"):
                rows[name] = [*map(add, rows[name], (1, exists, key in kept, key in released))]
        expect("every order that is there belongs to a request", rows["all"][1] == len(sandbox.orders))
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
    expect(f"{kind} is an answer", result.error is None, key=str(result.request.key))
    return Outcome.CREATED


def _compare_one(key: str, outcome: Outcome, *, exists: bool, held: bool) -> None:
    if outcome is Outcome.CREATED:
        expect("an order that was created is there", exists, key=key)
    elif outcome is not Outcome.UNKNOWN:
        expect("an order that was refused or never sent is not there", not exists, key=key)
    wanted = outcome in (Outcome.CREATED, Outcome.UNKNOWN)
    expect("a hold stands exactly while an order may exist", held is wanted, key=key)
