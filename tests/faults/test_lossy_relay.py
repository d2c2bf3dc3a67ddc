"""Orders through a relay that loses connections, bytes and time: at most one order, and a true outcome."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.support import samples
from transfer_async import Clock, FundsHold, Outcome, Timeouts, TransferClient
from transfer_async._models.errors import TransferError

from .relay import FAULTS, relaying
from .servers import Connection, http, order_body, serving

AT_ONCE = 16
SHORT = Timeouts(connect=2.0, sock_read=0.5, total=2.0)


class Trial:
    """A service with its orders, a bank with its holds, and the outcome of each call."""

    def __init__(self) -> None:
        self.ledger: dict[str, list[str]] = defaultdict(list)
        self.placed: Counter[str] = Counter()
        self.released: Counter[str] = Counter()
        self.results: dict[str, tuple[Outcome, str | None]] = {}

    async def serve(self, connection: Connection) -> None:
        while request := await connection.request():
            name = request.order["poster_username"]
            if name.startswith("refused"):
                connection.send(http(422, b'{"message": "refused"}'))
                continue
            body = order_body(request)
            self.ledger[name].append(msgspec.json.decode(body)["id"])
            connection.send(http(200, body))

    async def place(self, intent: Any) -> str:
        self.placed[intent.order.poster_username] += 1
        return "hold"

    async def release(self, intent: Any, _receipt: str | None) -> None:
        self.released[intent.order.poster_username] += 1

    async def send(self, client: TransferClient, names: Iterator[str]) -> None:
        for name in names:
            try:
                order = await client.create_order(samples.new_order(poster_username=name), key=name)
                self.results[name] = (Outcome.CREATED, order.id)
            except TransferError as error:
                self.results[name] = (error.outcome, None)

    def is_true(self, name: str) -> bool:
        """Return whether a call's outcome and its hold agree with the service's orders."""
        outcome, order_id = self.results[name]
        orders, hold = self.ledger[name], (self.placed[name], self.released[name])
        if outcome is Outcome.CREATED:
            return orders == [order_id] and hold == (1, 0)
        if outcome is Outcome.UNKNOWN:
            return len(orders) <= 1 and hold == (1, 0)
        return not orders and hold == (1, 1)


async def no_pause(_: float) -> None: ...


@pytest.mark.trial(short=240, ci=1000, long=10000)
async def test_a_lossy_network_makes_no_second_order_and_no_false_outcome(size: int):
    trial = Trial()
    names = [f"{'refused' if number % 10 == 9 else 'sender'}-{number}@example.com" for number in range(size)]
    settings: dict[str, Any] = {
        "hooks": [FundsHold(trial.place, trial.release)],
        "timeouts": SHORT,
        "clock": Clock(sleep=no_pause, chance=lambda: 0.0),
    }
    async with (
        serving(trial.serve) as server,
        relaying(server.port, seed=size) as relay,
        TransferClient(relay.url, "token", **settings) as client,
    ):
        left = iter(names)
        await asyncio.gather(*(trial.send(client, left) for _ in range(AT_ONCE)))
    outcomes = {outcome for outcome, _ in trial.results.values()}

    assert [name for name in names if not trial.is_true(name)] == []
    assert {Outcome.CREATED, Outcome.REFUSED, Outcome.UNKNOWN} <= outcomes
    assert relay.faults.keys() == set(FAULTS)
