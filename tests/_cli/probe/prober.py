"""Run the probe against a sandbox, with a clock that makes no test wait."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

from attrs import define, frozen

from tests.support.bank import new_order
from tests.support.loop_time import LoopTime
from transfer_async import NewOrder
from transfer_async._cli.probe_http import Service, Stopped
from transfer_async._cli.probe_orders import Cap
from transfer_async._cli.probe_run import OrderSettings, ProbeRun, ReadLimits
from transfer_async._support.clock import Clock
from transfer_async.sandbox import Sandbox, ServiceProfile, load_profile

FOREVER = 300.0
"""A sleep of this many seconds or more never ends; only the sandbox's background work sleeps that long."""


@define
class Watch:
    """A clock that advances only when code sleeps."""

    loop_time: LoopTime
    seconds: float = 0.0

    async def sleep(self, seconds: float) -> None:
        if seconds >= FOREVER:
            await asyncio.Event().wait()
        self.seconds += seconds
        await self.loop_time.pass_(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self.sleep)


@frozen(kw_only=True)
class ProbeResult:
    """The output of a run, and the reason why it stopped, if it did."""

    profile: ServiceProfile
    lines: list[str]
    stopped: str | None


async def probe(sandbox: Sandbox, files: Path, watch: Watch, **settings: Any) -> ProbeResult:
    """Run the probe. A run with the same files continues an earlier one."""
    lines: list[str] = []
    stopped = None
    try:
        await probe_run(sandbox, files, watch, lines, **settings).run()
    except Stopped as error:
        stopped = str(error)
    try:
        profile = await asyncio.to_thread(load_profile, files.with_suffix(".json"))
    except FileNotFoundError:
        profile = ServiceProfile()
    return ProbeResult(profile=profile, lines=lines, stopped=stopped)


def probe_run(
    sandbox: Sandbox,
    files: Path,
    watch: Watch,
    lines: list[str],
    *,
    levels: tuple[int, ...] = (0,),
    orders: int = 100,
    amount: Decimal = Decimal(10**12),
    requests: int = 12,
    idle: float = 15.0,
    order: NewOrder | None = None,
) -> ProbeRun:
    """Return a run that has not started."""
    return ProbeRun(
        service=Service(base_url=sandbox.base_url, token=sandbox.token, timeout=30.0, clock=watch.clock),
        levels=frozenset(levels),
        limits=ReadLimits(requests=requests, idle=idle),
        orders=OrderSettings(
            order=order or new_order(),
            apart=Decimal(1),
            cap=Cap(orders=orders, amount=amount),
            journal=files.with_suffix(".journal"),
        )
        if {1, 2} & {*levels}
        else None,
        path=files.with_suffix(".json"),
        say=lines.append,
        confirm=lambda _: True,
    )
