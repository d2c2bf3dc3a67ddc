"""A held port refuses connections, but a server that requests it by number may listen on it."""

import asyncio
import socket

import pytest

from tests.support.ports import held_port
from transfer_async import TransferClient
from transfer_async.sandbox import Sandbox


def test_a_held_port_refuses_connections():
    with held_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_held_port_is_unavailable_without_address_sharing():
    with held_port() as port, socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("127.0.0.1", port))


async def test_a_sandbox_may_start_and_stop_on_a_held_port():
    with held_port() as port:
        for _ in range(2):
            async with (
                Sandbox(port=port) as sandbox,
                TransferClient(sandbox.base_url, sandbox.token) as client,
            ):
                assert (await client.who_am_i()).id == sandbox.accounts.bank.id
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
