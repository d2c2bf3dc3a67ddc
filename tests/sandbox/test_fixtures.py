from transfer_async.sandbox import Sandbox
from transfer_async.sandbox.fixtures import transfer_sandbox

from .wire_client import connected, order_body

__all__ = ["transfer_sandbox"]


async def test_the_fixture_is_a_sandbox_that_listens(transfer_sandbox: Sandbox):
    async with connected(transfer_sandbox) as client:
        assert (await client.ask(order_body())).status == 200
