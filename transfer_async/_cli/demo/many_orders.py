"""The demo's rush: two hundred orders at once with faults mixed in, held at the end against what there is.

Every order has an amount of its own, so that the sandbox's orders can be told apart without the client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

from transfer_async._cli.demo.bank import BackOffice, Ledger, usd_order
from transfer_async._cli.demo.live_view import Board, OutcomeRow
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


class Disagreement(Exception):
    """What the client says and what there is are not the same."""


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

    async def run(self) -> list[OutcomeRow]:
        """Create the orders, and compare.

        Returns:
            A row for each outcome, and one for all.

        Raises:
            Disagreement: says in one line what does not agree.
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
        self._board.table(rows)
        return rows

    def _note(self, result: OrderResult) -> None:
        self._results[result.request.order.poster_amount] = result
        self._counts[NAMES[_outcome(result)]] += 1
        self._board.show(len(self._results), ORDERS, self._counts)

    def _compared(self, sandbox: Sandbox, ledger: Ledger) -> list[OutcomeRow]:
        """The rows, if everything that the client said is so."""
        there = Counter(order.poster_amount for order in sandbox.orders.values())
        _agree("no order is there twice", max(there.values()) == 1)
        _agree("every request has a result", len(self._results) == ORDERS)
        for amount, result in self._results.items():
            _compare_one(result, exists=amount in there, held=result.request.key in ledger.kept)
        rows = [self._row(outcome, there, ledger) for outcome in NAMES]
        everything = OutcomeRow(
            outcome="all",
            orders=sum(row.orders for row in rows),
            existing=sum(row.existing for row in rows),
            kept=sum(row.kept for row in rows),
            released=sum(row.released for row in rows),
        )
        _agree("every order that is there belongs to a request", everything.existing == len(sandbox.orders))
        return [*rows, everything]

    def _row(self, outcome: Outcome, there: Counter[Decimal], ledger: Ledger) -> OutcomeRow:
        ours = {amount: one for amount, one in self._results.items() if _outcome(one) is outcome}
        return OutcomeRow(
            outcome=NAMES[outcome],
            orders=len(ours),
            existing=sum(amount in there for amount in ours),
            kept=sum(one.request.key in ledger.kept for one in ours.values()),
            released=sum(one.request.key in ledger.released for one in ours.values()),
        )


def _requests() -> Iterator[OrderRequest]:
    for number in range(1, ORDERS + 1):
        unpayable = number % 20 == 0
        beneficiary = "noah.lind" if unpayable else "ben.okri"
        yield OrderRequest(usd_order("tunde.bello", beneficiary, Decimal(60) + number), key=f"rush-{number}")


def _outcome(result: OrderResult) -> Outcome:
    if isinstance(result.error, TransferError):
        return result.error.outcome
    if result.error is not None:
        raise Disagreement(f"{result.request.key}: {type(result.error).__name__} is no answer")
    return Outcome.CREATED


def _compare_one(result: OrderResult, *, exists: bool, held: bool) -> None:
    outcome, key = _outcome(result), result.request.key
    if outcome is Outcome.CREATED:
        _agree(f"{key}: an order that was created is there", exists)
    elif outcome is not Outcome.UNKNOWN:
        _agree(f"{key}: an order that was refused or never sent is not there", not exists)
    wanted = outcome in (Outcome.CREATED, Outcome.UNKNOWN)
    _agree(f"{key}: a hold stands exactly while an order may exist", held is wanted)


def _agree(claim: str, truth: bool) -> None:
    if not truth:
        raise Disagreement(claim)
