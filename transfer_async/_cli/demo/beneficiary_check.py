"""The demo's beneficiary check: a match, a close match put to the customer, and a name that is another's."""

from __future__ import annotations

from attrs import frozen

from transfer_async._beneficiary.verification import BeneficiaryVerification, UserLookup
from transfer_async._cli.demo.bank import Ledger, usd_order
from transfer_async._cli.demo.narration import Narration
from transfer_async._client import TransferClient
from transfer_async._models.errors import BeneficiaryNotVerified, MatchResult
from transfer_async._models.requests import OrderIntent, PersonName
from transfer_async._models.responses import User
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.sandbox import Sandbox

SAME, CLOSE, OTHER = "payment-4", "payment-5", "payment-6"


@frozen
class Payment:
    """What a customer wants, and what must come of it."""

    key: str
    to: PersonName
    told: str
    claim: str
    asked: tuple[str, ...]
    """The keys that customers have been asked about by then."""
    result: MatchResult | None = None
    """Why nothing is sent; None if it is."""


PAYMENTS = (
    Payment(SAME, PersonName("Ben", "Okri"), "pays Ben Okri", "the name matched, so nobody was asked", ()),
    Payment(CLOSE, PersonName("Ben", "Okry"), "pays Ben Okry", "the customer was asked, once", (CLOSE,)),
    Payment(
        OTHER,
        PersonName("Amaka", "Nwosu"),
        "pays Amaka Nwosu, at Ben Okri's username",
        "it is no match, and no order exists",
        (CLOSE,),
        MatchResult.NO_MATCH,
    ),
)
"""Three orders to one username, with three names."""


async def play(lines: Narration) -> None:
    """Send them, on a sandbox of their own."""
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
                lines.tell("customer", payment.key, payment.told)
                no = await _no_to(client, payment)
                if no is not None:
                    told = no.result.value.replace("_", " ")
                    lines.tell("client", payment.key, f"the call ends: never sent ({told})")
                is_so = (no and no.result) is payment.result and not (no and no.order_may_exist)
                lines.check(payment.key, payment.claim, is_so and customer.asked == [*payment.asked])
        lines.check(OTHER, "no hold was ever placed", OTHER not in {**ledger.kept, **ledger.released})
        lines.check("", "the sandbox has the two orders, and not the third", len(sandbox.orders) == 2)


async def _no_to(client: TransferClient, payment: Payment) -> BeneficiaryNotVerified | None:
    """Why the beneficiary was not the one; None if the order was created."""
    order = usd_order("ada.eze", "ben.okri", "80.00")
    try:
        await client.create_order(order, key=payment.key, beneficiary=payment.to)
    except BeneficiaryNotVerified as no:
        return no
    return None


class _Customer:
    """Says yes to whoever is nearly the one, and remembers having been asked."""

    def __init__(self, lines: Narration) -> None:
        self._lines = lines
        self.asked: list[str] = []

    async def says_yes(self, intent: OrderIntent, user: User) -> bool:
        self.asked.append(intent.key)
        question = f"did you mean {user.firstname} {user.middlename} {user.lastname}?"
        self._lines.tell("bank", intent.key, f"a close match, put to the customer: {question}")
        self._lines.tell("customer", intent.key, "yes")
        return True
