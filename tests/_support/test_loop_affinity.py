"""A client that is used in another loop, in a thread or in a forked process raises at once."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.faults.parties import Bank
from tests.faults.servers import Server, answers, serving
from tests.support import samples
from transfer_async import OrderRequest, TransferClient
from transfer_async._models.errors import ClientClosed, Outcome, WrongEventLoop

Use = Callable[[TransferClient], Awaitable[Any]]


async def _batch(client: TransferClient) -> None:
    """Consume all results, so that no error is left in a task that is garbage-collected."""
    requests = [OrderRequest(samples.new_order(), key="other")] * 3
    first, *_ = [result.error async for result in client.create_orders(requests)]
    assert isinstance(first, Exception)
    raise first


USES: dict[str, tuple[Use, bool]] = {
    "create_order": (lambda client: client.create_order(samples.new_order(), key="other"), True),
    "create_order without a key": (lambda client: client.create_order(samples.new_order()), False),
    "create_orders": (_batch, True),
    "known": (lambda client: client.known("other"), True),
    "recover": (lambda client: client.recover(), False),
    "who_am_i": (lambda client: client.who_am_i(), False),
    "request": (lambda client: client.request("POST", "/thing", json={}), False),
    "in_doubt": (lambda client: client.in_doubt(), False),
    "history": (lambda client: client.history("other"), True),
    "entering": (lambda client: client.__aenter__(), False),
    "closing": (lambda client: client.close(), False),
}
"""Each use of a client, and whether an order may exist for the key."""


async def outcome_of(use: Use, client: TransferClient) -> dict[str, Any]:
    """Return the outcome of a use of the client, as text."""
    try:
        await use(client)
    except Exception as error:  # noqa: BLE001 - any error is an outcome
        return {
            "kind": type(error).__name__,
            "text": str(error),
            "may_exist": getattr(error, "order_may_exist", None),
            "attempts": len(getattr(error, "attempts", ())),
        }
    return {"kind": None}


@asynccontextmanager
async def used_between_two_orders() -> AsyncIterator[tuple[Bank, Server, TransferClient]]:
    """Yield a client that has created one order. It must create another one afterwards."""
    bank = Bank()
    async with serving(answers) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="first")
        yield bank, server, client
        order = await client.create_order(samples.new_order(), key="second")
        assert order.id.startswith("tx-")
        assert len(bank.funds.placed) == len(server.requests) == 2


async def test_in_another_loop_every_call_raises_and_sends_nothing():
    """Without this, each call fails after four attempts with a misleading network error."""

    def elsewhere() -> list[dict[str, Any]]:
        with asyncio.Runner() as runner:
            return [runner.run(outcome_of(use, client)) for use, _ in USES.values()]

    async with used_between_two_orders() as (bank, _, client):
        seen = await asyncio.to_thread(elsewhere)

    assert {use["kind"] for use in seen} == {"WrongEventLoop"}
    assert all("event loop" in use["text"] for use in seen)
    assert [use["may_exist"] for use in seen] == [may_exist for _, may_exist in USES.values()]
    assert {use["attempts"] for use in seen} == {0}
    assert bank.pauses == []


async def test_after_a_fork_every_call_raises_and_the_parent_continues():
    """Without this, the child's order uses the parent's connection and ends in an avoidable doubt."""
    async with used_between_two_orders() as (_, server, client):
        seen = await forked(lambda: [asyncio.run(outcome_of(use, client)) for use, _ in USES.values()])

    *calls, closing = seen
    assert {call["kind"] for call in calls} == {"WrongEventLoop"}
    assert all("fork" in call["text"] for call in calls)
    assert closing == {"kind": None}  # the client's connections belong to the parent
    assert server.accepted == 1


async def forked(act: Callable[[], Any]) -> Any:
    """Return the outcome of ``act`` in a forked child, while the loop runs."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn about threads
        child = os.fork()
    if not child:
        try:
            os.write(theirs, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(theirs)

    def result() -> bytes:
        with os.fdopen(ours, "rb") as pipe:
            written = pipe.read()
        os.waitpid(child, 0)
        return written

    return json.loads(await asyncio.to_thread(result))


def test_a_client_whose_loop_has_ended_can_only_be_closed():
    client = Bank().client("http://127.0.0.1:1")
    asyncio.run(client.known("k"))
    with pytest.raises(WrongEventLoop):
        asyncio.run(client.known("k"))
    asyncio.run(client.close())  # the client's loop has ended, so another one may close it
    with pytest.raises(ClientClosed) as caught:
        asyncio.run(client.known("k"))

    assert (type(caught.value), caught.value.outcome) == (ClientClosed, Outcome.NOT_SENT)
