"""What a trial is made of, and where everybody finds it."""

from __future__ import annotations

import os
from typing import Any

from attrs import asdict, frozen

from tests.deaths.trial import LEASE, SCOPE, order_of
from transfer_async.integrations.brokers import Line, WorkerSettings, line_at
from transfer_async.messages import OrderCommand

SETTLE_AFTER = 5.0
"""Seconds after which the truth about a doubt is told: the slowest of the service's stalls is over then."""

ACK_WAIT = 1.5
SWEEP_EVERY = 1.0
AT_ONCE = 4
WORKERS = 3

_HERE = "CHAOS_TRIAL"


@frozen(kw_only=True)
class Place:
    """Where everything is; workers find it in their environment.

    Args:
        directory: of the books.
        broker: its address.
        journal: its address.
        base_url: the service's.
        token: the service's.
    """

    directory: str
    broker: str
    journal: str
    base_url: str
    token: str

    def enter(self) -> None:
        """Make it the place of this process."""
        os.environ[_HERE] = "\n".join(asdict(self).values())

    @classmethod
    def here(cls) -> Place:
        """The place of this process."""
        names = ("directory", "broker", "journal", "base_url", "token")
        return cls(**dict(zip(names, os.environ[_HERE].split("\n"), strict=True)))

    def line(self) -> Line:
        """The broker, as whoever is no worker uses it."""
        return line_at(self.broker, WorkerSettings(ack_wait=ACK_WAIT))

    def worker_arguments(self) -> list[str]:
        """What the command is called with."""
        options: dict[str, Any] = {
            "broker": self.broker,
            "journal": self.journal,
            "base-url": self.base_url,
            "scope": SCOPE,
            "hooks": "tests.chaos.bank:make",
            "concurrency": AT_ONCE,
            "lease": LEASE,
            "settle-after": SETTLE_AFTER,
            "ack-wait": ACK_WAIT,
            "sweep-every": SWEEP_EVERY,
            "max-deliveries": 1000,
        }
        return ["worker", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def command_of(key: str) -> bytes:
    """The message that asks for a key's order; some cannot be read."""
    if key.startswith("bad"):
        return f'{{"version": 1, "key": "{key}"}}'.encode()
    return OrderCommand(key=key, order=order_of(key)).to_json()
