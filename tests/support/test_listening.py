import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.bank import turns
from tests.support.listening import stop_listening


@pytest.mark.parametrize("after", range(6))
async def test_no_socket_is_left_open_for_any_turn_of_its_acceptance(after: int):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with socket.socket() as client:
        client.setblocking(False)
        client.connect_ex(server.sockets[0].getsockname())
        await turns(after)
        await stop_listening(server)
    if after >= 2:  # by now, the connection has been accepted
        await ended.wait()
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        gc.collect()

    assert [str(warning.message) for warning in recorded] == []
