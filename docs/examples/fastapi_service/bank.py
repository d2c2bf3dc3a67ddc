"""A bank in memory: it stands for your core banking system, whose holds and statements are on its disks."""

from typing import Any

from transfer_async import NewExternalOrder, NewOrder, OrderIntent, OutcomeUnknown, Resolution


class Bank:
    """Holds on customers' funds, and what the back office knows of orders.

    Attributes:
        holds: the open holds, by the intent's id.
        statement: ids of orders that the back office has seen at the service, by key.
    """

    def __init__(self) -> None:
        self.holds: dict[str, str] = {}
        self.statement: dict[str, str] = {}

    async def place(self, intent: OrderIntent) -> str:
        """Hold what the order needs: once for each intent, however often it is asked."""
        return self.holds.setdefault(intent.id, f"hold-{intent.key}")

    async def release(self, intent: OrderIntent, reference: str | None) -> None:
        """Let the hold go; there may be none."""
        self.holds.pop(intent.id, None)

    async def resolve(self, intent: OrderIntent, doubt: OutcomeUnknown) -> Resolution:
        """The order's id, if the back office has seen it; None if it does not know yet."""
        return self.statement.get(intent.key)

    def order(self, *, customer: Any, beneficiary: Any, amount: Any, rate: Any) -> NewOrder:
        """The order for a payment in dollars by one of our customers in Nigeria.

        Raises:
            InvalidOrder: names every field at fault.
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
