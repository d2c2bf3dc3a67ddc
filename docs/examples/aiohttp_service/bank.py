"""An in-memory bank that stands in for your core banking system."""

from typing import Any

from transfer_async import NewExternalOrder, NewOrder, OrderIntent, OutcomeUnknown, Resolution


class Bank:
    """Holds on customers' funds, and the orders that the back office has found.

    Attributes:
        holds: the open holds, by the intent's id.
        statement: ids of orders that the back office has seen at the service, by key.
    """

    def __init__(self) -> None:
        self.holds: dict[str, str] = {}
        self.statement: dict[str, str] = {}

    async def place(self, intent: OrderIntent) -> str:
        """Place the hold for the order, once for each intent, however often this method is called."""
        return self.holds.setdefault(intent.id, f"hold-{intent.key}")

    async def release(self, intent: OrderIntent, reference: str | None) -> None:
        """Release the hold, if there is one."""
        self.holds.pop(intent.id, None)

    async def resolve(self, intent: OrderIntent, doubt: OutcomeUnknown) -> Resolution:
        """Return the order's id if the back office has found the order, else None."""
        return self.statement.get(intent.key)

    def order(self, *, customer: Any, beneficiary: Any, amount: Any, rate: Any) -> NewOrder:
        """Return the order for a payment in dollars by one of our customers in Nigeria.

        Raises:
            InvalidOrder: names every invalid field.
        """
        return NewOrder.quote(
            poster_username=customer,
            poster_recipient_username=beneficiary,
            poster_currency="NGN",
            poster_country="NG",
            poster_payment_method_type="nigerian_bank_payment",
            matcher_currency="USD",
            matcher_country="US",
            matcher_amount=amount,
            exchange_rate=rate,
            external_order=NewExternalOrder(
                current_account_balance="900000.00", transaction_fee="12.50", transaction_fee_currency="NGN"
            ),
        )
