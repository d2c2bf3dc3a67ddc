"""What a test says of a key in the end: it has one order, its hold was kept, or released.

Each looks at the journal for what the key stands for, at the sandbox for what exists, and at the bank's
ledger for what is held. Each fails with an `AssertionError` that says what it found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from transfer_async._client import TransferClient, context_of
from transfer_async._models.requests import NewExternalOrder, NewOrder
from transfer_async.journal.entries import Entry
from transfer_async.journal.fingerprint import fingerprint
from transfer_async.sandbox import CreateOrder, rendering
from transfer_async.testing.holds import Held, standing_holds


class HasOrders(Protocol):
    """Whatever knows which orders exist: a `Sandbox`, or a `FakeClient`'s."""

    @property
    def orders(self) -> Mapping[str, rendering.Order]:
        """By id."""
        ...


async def assert_one_order(key: str, *, client: TransferClient, sandbox: HasOrders) -> None:
    """Assert that the sandbox has exactly one order with the content that ``key`` stands for.

    Two keys of one content cannot be told apart there: give the orders of one test different amounts.

    Args:
        key: the caller's.
        client: whose journal knows the key; it may be closed.
        sandbox: where the order is.
    """
    entry, found = await _orders_of(key, client, sandbox)
    _check(len(found) == 1, key, f"there should be one order, and there are {len(found)}: {', '.join(found)}")
    known = entry.order_id or found[0]
    _check(found == [known], key, f"the journal says {known}, and the sandbox {found[0]}")


async def assert_no_order(key: str, *, client: TransferClient, sandbox: HasOrders) -> None:
    """Assert that the sandbox has no order with the content of ``key``; see `assert_one_order`."""
    _, found = await _orders_of(key, client, sandbox)
    _check(not found, key, f"there should be no order, and there is {', '.join(found)}")


async def assert_hold_kept(key: str, *, client: TransferClient, held: Held) -> None:
    """Assert that exactly one hold stands for ``key``: that of its last intent, and none of an earlier one.

    Args:
        key: the caller's.
        client: whose journal knows the key; it may be closed.
        held: which holds stand for an intent; see `Held`.
    """
    *earlier, last = await _intents_of(key, client)
    found = await standing_holds(held, last)
    said = f"one hold should stand, and there are {len(found)}: {', '.join(found)}"
    _check(len(found) == 1, key, said)
    await _assert_none(key, earlier, held, "of an earlier intent, ")


async def assert_hold_released(key: str, *, client: TransferClient, held: Held) -> None:
    """Assert that no hold stands for ``key``, of whichever intent; see `assert_hold_kept`."""
    await _assert_none(key, await _intents_of(key, client), held, "")


async def _assert_none(key: str, intents: list[str], held: Held, which: str) -> None:
    found = [hold for intent_id in intents for hold in await standing_holds(held, intent_id)]
    _check(not found, key, f"no hold {which}should stand, and there is {', '.join(found)}")


async def _orders_of(key: str, client: TransferClient, sandbox: HasOrders) -> tuple[Entry, list[str]]:
    entry = await _entry(key, client)
    orders = [order.id for order in sandbox.orders.values() if _content(order.request) == entry.fingerprint]
    return entry, orders


async def _intents_of(key: str, client: TransferClient) -> list[str]:
    """The ids of every intent that the key has had, the last one last."""
    entry = await _entry(key, client)
    steps = await context_of(client).journal.history(key)
    earlier = (step.intent_id for step in steps if step.intent_id != entry.intent_id)
    return [*dict.fromkeys(earlier), entry.intent_id]


async def _entry(key: str, client: TransferClient) -> Entry:
    entry = await context_of(client).journal.read(key)
    if entry is None:
        raise AssertionError(f"{key!r}: the journal has no such key: nothing was ever asked for with it")
    return entry


def _content(request: CreateOrder) -> str:
    fields = attrs.asdict(request)
    external = {name: fields.pop(name) for name in attrs.fields_dict(NewExternalOrder)}
    return fingerprint(NewOrder(external_order=NewExternalOrder(**external), **fields))


def _check(is_so: bool, key: str, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(f"{key!r}: {otherwise}")
