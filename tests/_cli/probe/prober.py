"""A probe of a sandbox, in time that nobody waits for."""

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

A_BOT = 300.0


@define
class Watch:
    """Time that passes where somebody waits, and nowhere else."""

    loop_time: LoopTime
    seconds: float = 0.0

    async def sleep(self, seconds: float) -> None:
        if seconds >= A_BOT:
            await asyncio.Event().wait()
        self.seconds += seconds
        await self.loop_time.pass_(seconds)

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, sleep=self.sleep)


@frozen(kw_only=True)
class Probed:
    """What a run came to."""

    profile: ServiceProfile
    said: list[str]
    stopped: str | None


async def probed(sandbox: Sandbox, files: Path, watch: Watch, **wanted: Any) -> Probed:
    """Run the probe; what is asked for but the levels goes on from an earlier run with the same files."""
    said: list[str] = []
    stopped = None
    try:
        await made(sandbox, files, watch, said, **wanted).run()
    except Stopped as why:
        stopped = str(why)
    try:
        profile = await asyncio.to_thread(load_profile, files.with_suffix(".json"))
    except FileNotFoundError:
        profile = ServiceProfile()
    return Probed(profile=profile, said=said, stopped=stopped)


def made(
    sandbox: Sandbox,
    files: Path,
    watch: Watch,
    said: list[str],
    *,
    levels: tuple[int, ...] = (0,),
    orders: int = 100,
    amount: Decimal = Decimal(10**12),
    requests: int = 12,
    idle: float = 15.0,
    order: NewOrder | None = None,
) -> ProbeRun:
    """The run, not yet begun."""
    return ProbeRun(
        service=Service(base_url=sandbox.base_url, token=sandbox.token, patience=30.0, clock=watch.clock),
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
        say=said.append,
        agreed=lambda _: True,
    )
