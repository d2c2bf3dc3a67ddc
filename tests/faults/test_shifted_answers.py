"""An unsolicited response comes first, so that each later response belongs to the previous request."""

import asyncio

import pytest

from tests.support import samples
from transfer_async import Refused, UnreadableOrder
from transfer_async._http.write_guard import ConnectionState

from .parties import Bank
from .servers import Connection, answers, foreign_reply, http, order_body, serving


def shifting(first: bytes, late: asyncio.Event) -> object:
    """Return a script whose first connection sends ``first`` instead of the real response, a refusal,
    which comes late.
    """

    async def script(connection: Connection) -> None:
        if connection.number > 1:
            await answers(connection)
            return
        await connection.request()
        connection.send(first)
        waiting = asyncio.create_task(connection.request())
        await asyncio.wait([waiting, asyncio.create_task(late.wait())], return_when="FIRST_COMPLETED")
        connection.send(http(422, b'{"message": "nobody of that name"}'))
        await waiting

    return script


@pytest.mark.parametrize("first", [foreign_reply(), http(200, b"{}")], ids=["another order", "no order"])
async def test_the_next_order_avoids_a_connection_with_a_foreign_response(bank: Bank, first: bytes):
    late = asyncio.Event()
    async with serving(shifting(first, late)) as server, bank.client(server.url) as client:
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k1")
        order = await client.create_order(samples.new_order(), key="k2")
        late.set()

    assert order.id.startswith("tx-")
    assert len({request.connection for request in server.requests}) == 2


async def test_on_the_same_connection_the_next_order_would_get_the_earlier_refusal(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ConnectionState, "distrust", ConnectionState.trust)
    late = asyncio.Event()
    async with serving(shifting(foreign_reply(), late)) as server, bank.client(server.url) as client:
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k1")
        with pytest.raises(Refused):
            await client.create_order(samples.new_order(), key="k2")


async def test_an_order_with_another_keys_id_retires_its_connection(bank: Bank):
    async def script(connection: Connection) -> None:
        while request := await connection.request():
            connection.send(http(200, order_body(request, id="tx-same")))

    async with serving(script) as server, bank.client(server.url) as client:
        await client.create_order(samples.new_order(), key="k1")
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k2")
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k3")

    assert [request.connection for request in server.requests] == [1, 1, 2]


async def test_a_refusal_leaves_its_connection_in_use(bank: Bank):
    async def script(connection: Connection) -> None:
        while await connection.request():
            connection.send(http(422, b"{}"))

    async with serving(script) as server, bank.client(server.url) as client:
        for key in ("k1", "k2"):
            with pytest.raises(Refused):
                await client.create_order(samples.new_order(), key=key)

    assert {request.connection for request in server.requests} == {1}
