"""Levels 1 and 2: orders, each through the client and its journal, and what was seen of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from decimal import Decimal

from attrs import frozen

from transfer_async._cli.probe.level_reads import Service
from transfer_async._cli.probe.order_plan import REFUSALS, Cap, PlannedOrder, admitted
from transfer_async._cli.probe.relay import Relay
from transfer_async._cli.probe.spending import Ledger
from transfer_async._client import TransferClient
from transfer_async._http.retry import RetryPolicy
from transfer_async._http.transport import Timeouts
from transfer_async._models.errors import KeyBusy, TransferError
from transfer_async.sandbox import SeenAnswer, ask_cases

HELD = "probe: no funds of anybody"
"""What the client is told of the hold: the test environment moves no money."""

Keep = Callable[[str, SeenAnswer], Awaitable[None]]
"""Keeps what was seen of an order before the next one is sent."""


class Stopped(Exception):
    """Nothing more is sent; says why."""


@frozen(kw_only=True)
class Spending:
    """What is to be sent.

    Args:
        plan: of both levels.
        cap: see `admitted`.
        levels: those to be run.
        spent: see `Ledger.spent`.
    """

    plan: tuple[PlannedOrder, ...]
    cap: Cap
    levels: frozenset[int]
    spent: frozenset[str]

    @property
    def admitted(self) -> list[PlannedOrder]:
        """See `admitted`."""
        return admitted(self.plan, self.spent, self.cap, levels=self.levels)

    @property
    def new(self) -> list[PlannedOrder]:
        """Those that are yet to be sent."""
        return [one for one in self.admitted if one.name not in self.spent]

    @property
    def left_out(self) -> list[PlannedOrder]:
        """Those that the cap has no room for."""
        kept = {one.name for one in self.admitted}
        return [one for one in self.plan if one.level in self.levels and one.name not in kept]

    @property
    def amount_spent(self) -> Decimal:
        """By earlier runs."""
        return sum((one.amount for one in self.plan if one.name in self.spent), Decimal(0))


def announced(spending: Spending, *, level: int) -> list[str]:
    """What a level will do, in full, and the most that it can cost."""
    new = [one for one in spending.new if one.level == level]
    currency = spending.plan[0].order.poster_currency
    amount = sum((one.amount for one in new), Decimal(0))
    what = {
        1: "level 1: orders that must be refused; which is assumed: one that is created stops the probe",
        2: "level 2: real orders of the test environment",
    }
    return [
        what[level],
        *(f"  {one.name}: {one.why}; {one.amount} {currency}" for one in new),
        *(f"  left out, beyond the cap: {one.name}" for one in spending.left_out if one.level == level),
        f"  {len(new)} requests; at most {len(new)} orders, and {amount:f} {currency} in all",
        f"  spent before: {len(spending.spent)} orders, {spending.amount_spent:f} {currency}",
        f"  the cap: {spending.cap.orders} orders, {spending.cap.amount:f} {currency}",
    ]


async def run(
    service: Service,
    ledger: Ledger,
    spending: Spending,
    *,
    answers: Mapping[str, SeenAnswer],
    keep: Keep,
) -> None:
    """Send what is admitted and not spent, one after the other.

    Args:
        service: where to.
        ledger: where each is counted before it is sent.
        spending: what.
        answers: what is known of those that are spent.
        keep: hears of each answer.

    Raises:
        Stopped: an order was created that had to be refused, or a good one was not; or it was in vain.
    """
    known = dict(answers)
    _look_at(spending.plan, known)
    new = {one.name for one in spending.new}
    async with Relay(service, await ledger.ids()) as relay, _client(relay, service, ledger) as client:
        for one in spending.admitted:
            if one.name not in new or not _is_worth_it(one, known):
                continue
            known[one.name] = await _sent(client, relay, one)
            await keep(one.name, known[one.name])
            _look_at([one], known)


def _client(relay: Relay, service: Service, ledger: Ledger) -> TransferClient:
    """A client that sends everything once, and says of a doubt that it is one."""
    total = 2.5 * service.patience  # the relay's own patience is 2 of it
    return TransferClient(
        relay.base_url,
        service.token,
        journal=ledger.journal,
        scope=ledger.scope,
        retry=RetryPolicy(attempts=1, deadline=total),
        timeouts=Timeouts(sock_read=total, total=total),
        lease=1.5 * total,
    )


async def _sent(client: TransferClient, relay: Relay, planned: PlannedOrder) -> SeenAnswer:
    relay.arm(planned)
    try:
        await client.create_order(planned.order, key=planned.key, held=HELD, once=True)
    except KeyBusy as busy:
        wait = busy.retry_after or 0.0
        raise Stopped(f"{planned.name}: a run that was killed has it still; again in {wait:.0f} s") from None
    except TransferError:
        pass  # what the service said is with the relay; the rest is with the journal
    finally:
        answer = relay.disarm()
    if answer is None:
        raise Stopped(
            f"{planned.name} was not sent: the journal did not allow it, or it could not be written"
        )
    return answer


def _is_worth_it(planned: PlannedOrder, known: Mapping[str, SeenAnswer]) -> bool:
    """Whether an order that repeats another can tell anything."""
    if planned.again is None:
        return True
    if planned.name == ask_cases.CUT_AGAIN:  # else nobody knows whose answer it is
        told = known.get(ask_cases.SAME_AGAIN)
        return planned.again in known and told is not None and told.order != "new"
    return planned.again in known


def _look_at(plan: Collection[PlannedOrder], known: Mapping[str, SeenAnswer]) -> None:
    for one in plan:
        answer = known.get(one.name)
        if answer is None:
            continue
        if one.level == REFUSALS and is_created(answer):
            raise Stopped(
                f"{one.name} ({one.why}) was created, or answered as if it were: it had to be refused. "
                "Look at the order in the test environment; nothing more is sent"
            )
        if one.name == ask_cases.ORDER and answer.order != "new":
            raise Stopped("a good order was not created: is everything in --order as this service wants it?")


def is_created(answer: SeenAnswer) -> bool:
    """Whether an answer shows an order, or says yes without showing one."""
    return answer.order in ("new", "same") or (answer.status is not None and 200 <= answer.status <= 299)
