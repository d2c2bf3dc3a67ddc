"""The demo's beneficiary check: a match, a close match put to the customer, and a name that is another's."""

from __future__ import annotations

from collections.abc import Callable

from transfer_async._beneficiary.verification import BeneficiaryVerification, UserLookup
from transfer_async._cli.demo.bank import Ledger
from transfer_async._cli.demo.narration import Lines
from transfer_async._client import TransferClient
from transfer_async._models.errors import BeneficiaryNotVerified, MatchResult
from transfer_async._models.requests import NewOrder, OrderIntent, PersonName
from transfer_async._models.responses import User
from transfer_async._pipeline.hooks import FundsHold
from transfer_async.sandbox import Sandbox

SAME, CLOSE, OTHER = "payment-4", "payment-5", "payment-6"

Check = Callable[[str, str, bool], None]
"""Compares: the key, the claim, and whether it is so."""


class Verifying:
    """One part of the demo, on a sandbox of its own.

    Args:
        lines: tells.
        check: compares what is told.
        order: an order to Ben Okri.
    """

    def __init__(self, lines: Lines, check: Check, order: NewOrder) -> None:
        self._lines, self._check, self._order = lines, check, order
        self._ledger = Ledger(lines.tell)
        self._asked: list[str] = []

    async def run(self) -> None:
        """Send three orders to one username, with three names."""
        async with Sandbox(seed=1) as sandbox:
            verification = BeneficiaryVerification(
                UserLookup(sandbox.user_path), accept_close=self._ask_the_customer
            )
            hold = FundsHold(self._ledger.place, self._ledger.release)
            async with TransferClient(
                sandbox.base_url, sandbox.token, hooks=[verification, hold], observers=[self._lines.observe]
            ) as client:
                await self._same(client)
                await self._close(client)
                await self._other(client)
            self._check("", "the sandbox has the two orders, and not the third", len(sandbox.orders) == 2)

    async def _same(self, client: TransferClient) -> None:
        self._lines.tell("customer", SAME, "pays Ben Okri")
        await client.create_order(self._order, key=SAME, beneficiary=PersonName("Ben", "Okri"))
        self._check(SAME, "the name matched, so nobody was asked", not self._asked)

    async def _close(self, client: TransferClient) -> None:
        self._lines.tell("customer", CLOSE, "pays Ben Okry")
        await client.create_order(self._order, key=CLOSE, beneficiary=PersonName("Ben", "Okry"))
        self._check(CLOSE, "the customer was asked, once", self._asked == [CLOSE])

    async def _other(self, client: TransferClient) -> None:
        self._lines.tell("customer", OTHER, "pays Amaka Nwosu, at Ben Okri's username")
        try:
            await client.create_order(self._order, key=OTHER, beneficiary=PersonName("Amaka", "Nwosu"))
        except BeneficiaryNotVerified as no:
            told = no.result.value.replace("_", " ")
            self._lines.tell("client", OTHER, f"the call ends: never sent ({told})")
            self._check(OTHER, "it is no match, and no order exists", _is_plain_no(no))
        else:
            self._check(OTHER, "an order to somebody else's name is not sent", False)
        self._check(
            OTHER, "no hold was ever placed", OTHER not in {**self._ledger.kept, **self._ledger.released}
        )

    async def _ask_the_customer(self, intent: OrderIntent, user: User) -> bool:
        self._asked.append(intent.key)
        asked = f"did you mean {user.firstname} {user.middlename} {user.lastname}?"
        self._lines.tell("bank", intent.key, f"a close match, put to the customer: {asked}")
        self._lines.tell("customer", intent.key, "yes")
        return True


def _is_plain_no(no: BeneficiaryNotVerified) -> bool:
    return no.result is MatchResult.NO_MATCH and not no.order_may_exist
