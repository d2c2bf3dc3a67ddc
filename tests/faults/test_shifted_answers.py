"""An unsolicited response comes first, so that each later response belongs to the previous request."""

import pytest

from tests.support import samples
from transfer_async import Refused, UnreadableOrder

from .parties import Bank
from .servers import Connection, answers, foreign_reply, http, order_body, serving


@pytest.mark.parametrize("first", [foreign_reply(), http(200, b"{}")], ids=["another order", "no order"])
async def test_the_next_order_avoids_a_connection_with_a_foreign_response(bank: Bank, first: bytes):
    """Without this, the next order gets the refusal that belongs to the previous one."""

    async def shifted(connection: Connection) -> None:
        if connection.number > 1:
            await answers(connection)
            return
        await connection.request()
        connection.send(first)
        await connection.request()
        connection.send(http(422, b'{"message": "nobody of that name"}'))

    async with serving(shifted) as server, bank.client(server.url) as client:
        with pytest.raises(UnreadableOrder):
            await client.create_order(samples.new_order(), key="k1")
        order = await client.create_order(samples.new_order(), key="k2")

    assert order.id.startswith("tx-")
    assert [request.connection for request in server.requests] == [1, 2]


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
