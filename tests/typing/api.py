"""Uses of the public names as in a bank's code. `mypy --strict` checks them, but they never run."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type

import aiohttp
import attrs

from transfer_async import (
    NO_ORDER,
    Attempt,
    AttemptFailed,
    Clock,
    Currency,
    Doubt,
    Event,
    FundsHold,
    HoldFailed,
    InvalidOrder,
    KeyBusy,
    KeyRecord,
    KeyState,
    MemoryJournal,
    NewExternalOrder,
    NewOrder,
    Operators,
    Order,
    OrderCreated,
    OrderIntent,
    OrderRequest,
    OrderResult,
    Outcome,
    OutcomeUnknown,
    PersonName,
    PreflightFailed,
    Rate,
    RateLimited,
    Resolution,
    RetryBudget,
    RetryPolicy,
    ServiceFailed,
    Timeouts,
    TransferClient,
    TransferError,
    UnreadableOrder,
    User,
    log_events,
)
from transfer_async.testing import AnyClient, FakeClient, Holds, ManualClock


async def token() -> str:
    return "a token"


async def place(intent: OrderIntent) -> str:
    assert_type(intent.order.poster_amount, Decimal)
    if intent.order.poster_amount > 1000:
        raise HoldFailed("too much")
    return f"hold-{intent.id}"


async def release(intent: OrderIntent, receipt: str | None) -> None:
    assert_type(intent.key, str)


async def sanctions(intent: OrderIntent) -> None:
    if intent.beneficiary is None:
        raise PreflightFailed("nobody to look up", refused=True)


def blocking(intent: OrderIntent) -> str:
    return "ref"


async def wrong_type(intent: OrderIntent) -> bool:
    return True


class Screening:
    """A bank's own hook, which needs no base class."""

    name = "screening"

    async def before(self, intent: OrderIntent) -> str | None:
        return None

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        return None


async def resolve(intent: OrderIntent, error: OutcomeUnknown) -> Resolution:
    if isinstance(error, UnreadableOrder):
        return error.order_id
    return NO_ORDER if intent.held else None


def observe(event: Event) -> None:
    match event:
        case OrderCreated():
            assert_type(event.order_id, str)
        case AttemptFailed(status=503):
            assert_type(event.outcome, Outcome)
        case _:
            assert_type(event.seconds, float)


POLICY = RetryPolicy(
    attempts=3,
    first_delay=0.1,
    max_delay=timedelta(seconds=2),
    deadline=timedelta(seconds=20),
    not_processed={425, 429, 503},
    refused=frozenset({400, 422}),
    budget=RetryBudget(capacity=100, cost=10, throttle_cost=5, refund=1),
)
TIMEOUTS = Timeouts(connect=1, sock_connect=1.5, sock_read=timedelta(seconds=5), total=10, hook=60)

RetryPolicy(deadline="30")  # type: ignore[arg-type] # must be refused
RetryPolicy(4)  # type: ignore[call-arg] # must be refused
Timeouts(total="25")  # type: ignore[arg-type] # must be refused

ORDER = NewOrder.quote(
    poster_username="ada.eze@example.com",
    poster_recipient_username="ben.okri@example.com",
    poster_currency="NGN",
    poster_country="NG",
    poster_payment_method_type="nigerian_bank_payment",
    matcher_currency="USD",
    matcher_country="US",
    matcher_amount="100.00",
    exchange_rate=Decimal("1550.25"),
    external_order=NewExternalOrder(
        current_account_balance="900000.10", transaction_fee=250, transaction_fee_currency="NGN"
    ),
)
# A float must be refused.
NewOrder(
    poster_username="ada.eze@example.com",
    poster_recipient_username="ben.okri@example.com",
    poster_currency="NGN",
    poster_country="NG",
    poster_amount=155025.0,  # type: ignore[arg-type]
    poster_payment_method_type="nigerian_bank_payment",
    matcher_currency="USD",
    matcher_country="US",
    matcher_amount=100.0,  # type: ignore[arg-type]
    exchange_rate=1550.25,  # type: ignore[arg-type]
    external_order=NewExternalOrder(
        current_account_balance=1.5,  # type: ignore[arg-type]
        transaction_fee=0.1,  # type: ignore[arg-type]
        transaction_fee_currency="NGN",
    ),
)


@attrs.frozen
class Account:
    iban: str
    balance: Decimal


async def pay() -> Order:
    async with TransferClient(
        "https://bank.example",
        token,
        hooks=[sanctions, Screening(), FundsHold(place, release)],
        journal=MemoryJournal(),
        scope="live",
        retry=POLICY,
        timeouts=TIMEOUTS,
        resolve=resolve,
        settle_after=timedelta(minutes=5),
        lease=60,
        recover_every=timedelta(minutes=1),
        recover_concurrency=4,
        observers=[observe, log_events],
        ssl=None,
        proxy=None,
        max_response_bytes=1 << 20,
        rate=Rate(5, burst=10),
        clock=Clock(),
    ) as client:
        assert_type(client, TransferClient)
        order = await client.create_order(
            ORDER,
            key="payment-8731",
            beneficiary=PersonName("Ben", "Okri"),
            held="ref",
            send_before=datetime.now(UTC) + timedelta(minutes=5),
            deadline=datetime.now(UTC) + timedelta(seconds=10),
        )
        assert_type(order, Order)
        return order


async def pay_many(client: TransferClient) -> None:
    def wishes() -> Iterator[OrderRequest]:
        yield OrderRequest(ORDER, key="payment-1")

    async def more_wishes() -> AsyncIterator[OrderRequest]:
        yield OrderRequest(ORDER, "payment-2", held="ref")

    async for result in client.create_orders(wishes(), concurrency=4):
        assert_type(result, OrderResult)
        assert_type(result.order, Order | None)
    async for result in client.create_orders(more_wishes()):
        assert_type(result.request, OrderRequest)


async def ask(client: TransferClient) -> None:
    assert_type(await client.who_am_i(deadline=datetime.now(UTC)), User)
    assert_type(await client.request("GET", "/a", into=User, safe=True, deadline=datetime.now(UTC)), User)
    assert_type(await client.request("GET", "/a", into=list[User]), list[User])
    assert_type(await client.request("POST", "/a", json={"amount": Decimal("0.1")}, into=Account), Account)
    assert_type(await client.request("DELETE", "/a"), Any)


async def look_after(client: TransferClient) -> None:
    known = await client.known("payment-8731")
    assert_type(known, KeyRecord | None)
    if known is not None:
        assert_type(known.state, KeyState)
    await client.close(timeout=timedelta(seconds=10))


async def operate(client: TransferClient) -> None:
    for doubt in await client.in_doubt():
        assert_type(doubt.order, NewOrder | None)
    desk = Operators(MemoryJournal(), "live", settle_after=timedelta(minutes=5), observers=[observe])
    assert_type(await desk.in_doubt(), tuple[Doubt, ...])
    await client.resolve("payment-1", order_id="tx-1", by="ada")  # type: ignore[call-arg] # must be refused


async def handle(client: TransferClient) -> None:
    try:
        await client.create_order(ORDER)
    except InvalidOrder as error:
        assert_type(error.problems, tuple[tuple[str, str], ...])
    except (RateLimited, KeyBusy, ServiceFailed) as error:
        assert_type(error.retry_after, float | None)
    except TransferError as error:
        assert_type(error.attempts, tuple[Attempt, ...])


def read(raw: bytes) -> Mapping[str, object] | None:
    user = User.from_json(raw)
    assert_type(user.currencies, tuple[Currency, ...] | None)
    return user.bank_options


class OurClient(TransferClient):
    pass


assert_type(OurClient.from_env(session=aiohttp.ClientSession()), OurClient)
TransferClient.from_env(
    hooks=[sanctions, FundsHold(place, release)], lease=timedelta(seconds=60), journal=None, resolve=resolve
)
TransferClient.from_env(lease="60")  # type: ignore[arg-type] # must be refused
TransferClient.from_env(leases=60)  # type: ignore[call-arg] # must be refused
TransferClient.from_env(base_url="https://bank.example")  # type: ignore[call-arg] # the environment says it
TransferClient("https://bank.example")  # type: ignore[call-arg] # must be refused
TransferClient("https://bank.example", "token", [])  # type: ignore[call-arg] # must be refused
TransferClient("https://bank.example", "token", hooks=[wrong_type])  # type: ignore[list-item] # must be refused
TransferClient("https://bank.example", "token", hooks=[blocking])  # type: ignore[list-item] # must be refused
TransferClient("https://bank.example", "token", hooks=[FundsHold])  # type: ignore[list-item] # must be refused
TransferClient("https://bank.example", "token", journal="x.db")  # type: ignore[arg-type] # must be refused
FundsHold(blocking, release)  # type: ignore[arg-type] # must be refused


def takes_any(client: AnyClient) -> None:
    """A bank's function that it also tests without sockets."""


takes_any(TransferClient("https://bank.example", "token"))
takes_any(FakeClient(clock=ManualClock(), hooks=[Holds().hook]))
takes_any(wrong_type)  # type: ignore[arg-type] # must be refused
FakeClient(leases=60)  # type: ignore[call-arg] # must be refused
