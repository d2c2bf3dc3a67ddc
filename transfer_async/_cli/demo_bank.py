"""The bank of ``demo`` and ``worker --try``: a ledger of holds, and a back office."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from attrs import define, evolve, field, frozen

from transfer_async._models.errors import OutcomeUnknown
from transfer_async._models.requests import NewExternalOrder, NewOrder, OrderIntent, ascii_lower
from transfer_async._models.responses import Order
from transfer_async.sandbox import Sandbox, rendering

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
    """Finds out whether an order exists. A real bank would look up the order, check an account statement, or
    ask a person.

    The demo reads the sandbox's orders, because the service has no documented look-up of orders.
    """

    _sandbox: Sandbox
    _tell: Tell
    at_work: bool = field(default=False, init=False)  # if false, no order is found

    async def resolve(self, intent: OrderIntent, _doubt: OutcomeUnknown) -> Order | None:
        """Return the order for ``intent``, or None while it is unknown. Used as the client's ``resolve``."""
        if not self.at_work:
            self._tell("bank", intent.key, "the back office has not looked yet: unknown")
            return None
        found = [order for order in self._sandbox.orders.values() if _is_of(order, intent.order)]
        if len(found) != 1:
            # If no order is found, this proves nothing: a request that stalled may still take effect.
            self._tell("bank", intent.key, f"the back office found {len(found)} matching orders: unknown")
            return None
        self._tell(
            "bank", intent.key, f"the back office (here, the sandbox) has found the order: {found[0].id}"
        )
        return self.order(found[0].id)

    def order(self, order_id: str) -> Order:
        """Return the order in its current state at the service."""
        return Order.from_json(self._sandbox.orders[order_id].to_json())


def _is_of(recorded: rendering.Order, order: NewOrder) -> bool:
    request = recorded.request
    return (
        ascii_lower(request.poster_username) == ascii_lower(order.poster_username)
        and ascii_lower(request.poster_recipient_username) == ascii_lower(order.poster_recipient_username)
        and (request.poster_amount, request.poster_currency) == (order.poster_amount, order.poster_currency)
        and (request.matcher_amount, request.matcher_currency)
        == (order.matcher_amount, order.matcher_currency)
    )
