"""A bank's own payment code, which creates transfer orders; the tests next to it test this code."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transfer_async import (
    Clock,
    FundsHold,
    InvalidOrder,
    NewExternalOrder,
    NewOrder,
    OrderIntent,
    Outcome,
    OutcomeUnknown,
    Refused,
    TransferClient,
    TransferError,
)

if TYPE_CHECKING:
    from transfer_async.testing import AnyClient


class Answer(enum.Enum):
    """The bank's answer to its customer."""

    PAID = "on its way"
    REFUSED = "not possible, and your money is yours"
    LATER = "not yet, and your money is yours: try again"
    WAIT = "we are finding out; the money stays reserved"


@dataclass
class Ledger:
    """The bank's holds; it stands in for the core banking system.

    Attributes:
        holds: the references of the open holds, by the intent's id.
        seen: ids of orders on the service's statement, by key.
    """

    holds: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)

    async def place(self, intent: OrderIntent) -> str:
        """Place the hold for the order, once for each intent."""
        return self.holds.setdefault(intent.id, f"hold-{intent.key}")

    async def release(self, intent: OrderIntent, reference: str | None) -> None:
        """Release the hold, if there is one."""
        self.holds.pop(intent.id, None)

    async def look(self, intent: OrderIntent, doubt: OutcomeUnknown) -> str | None:
        """Find the id of an order whose response was lost."""
        return self.seen.get(intent.key)

    def held(self, intent_id: str) -> str | None:
        """Return the hold of an intent, for the assertions in the tests."""
        return self.holds.get(intent_id)


def client_for(ledger: Ledger, base_url: str, token: str, *, clock: Clock | None = None) -> TransferClient:
    """Return a client that uses the ledger's holds; in production, also pass a journal."""
    hold = FundsHold(ledger.place, ledger.release)
    return TransferClient(base_url, token, hooks=[hold], resolve=ledger.look, clock=clock)


async def pay(client: "AnyClient", payment_id: str, *, beneficiary: str, dollars: str) -> Answer:
    """Make a payment; a second call with the same id does not pay again."""
    try:
        await client.create_order(_order(beneficiary, dollars), key=payment_id)
    except TransferError as error:
        return _answer_for(error)
    return Answer.PAID


def _answer_for(error: TransferError) -> Answer:
    if error.outcome is Outcome.CREATED:
        return Answer.PAID
    if error.order_may_exist:
        return Answer.WAIT
    is_final = isinstance(error, InvalidOrder) or (isinstance(error, Refused) and error.is_final)
    return Answer.REFUSED if is_final else Answer.LATER


def _order(beneficiary: str, dollars: str) -> NewOrder:
    return NewOrder.quote(
        poster_username="ada.eze@example.com",
        poster_recipient_username=beneficiary,
        poster_currency="NGN",
        poster_country="NG",
        poster_payment_method_type="nigerian_bank_payment",
        matcher_currency="USD",
        matcher_country="US",
        matcher_amount=dollars,
        exchange_rate="1500",
        external_order=NewExternalOrder(
            current_account_balance="900000.00", transaction_fee="12.50", transaction_fee_currency="NGN"
        ),
    )
