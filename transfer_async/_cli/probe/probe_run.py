"""One run of the probe: the levels that were asked for, each told before it begins, and the profile kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

import attrs
from attrs import frozen

from transfer_async._cli.console.clients import journal_named
from transfer_async._cli.console.output import Say
from transfer_async._cli.probe import level_orders, level_reads, order_plan
from transfer_async._cli.probe.level_orders import Spending
from transfer_async._cli.probe.level_reads import ReadLimits, Service
from transfer_async._cli.probe.order_plan import REFUSALS, Cap
from transfer_async._cli.probe.proposed_settings import as_lines, proposed
from transfer_async._cli.probe.spending import Ledger, alone
from transfer_async._models.requests import NewOrder
from transfer_async.sandbox import SeenAnswer, ServiceProfile, load_profile


class Declined(Exception):
    """A person did not say yes."""


@frozen(kw_only=True)
class OrderSettings:
    """What levels 1 and 2 need.

    Args:
        order: a good one.
        apart: see `order_plan.planned`.
        cap: see `order_plan.Cap`.
        journal: the file in which each order is counted before it is sent.
    """

    order: NewOrder
    apart: Decimal
    cap: Cap
    journal: Path


@frozen(kw_only=True)
class ProbeRun:
    """One run.

    Args:
        service: where to.
        levels: which.
        limits: of level 0.
        orders: of levels 1 and 2; None where neither is asked for.
        path: of the profile; an earlier one is gone on with.
        say: takes lines.
        agreed: asks whether to begin; true for yes.
    """

    service: Service
    levels: frozenset[int]
    limits: ReadLimits
    orders: OrderSettings | None
    path: Path
    say: Say
    agreed: Callable[[str], bool]

    async def run(self) -> None:
        """Do it, and tell what it says for the client's settings.

        Raises:
            ValueError: an option is no good; nothing more was sent.
            OSError: the profile cannot be read, or not be written.
            Declined: a person did not say yes.
            level_orders.Stopped: nothing more is sent.
        """
        if level_reads.LEVEL in self.levels:
            await self._begin(level_reads.announced(self.limits))
            await self._read()
        if self.orders is not None:
            async with _ledger(self.orders.journal, self.service.base_url) as ledger:
                for level in sorted(self.levels - {level_reads.LEVEL}):
                    await self._order(self.orders, ledger, level)
        for line in as_lines(proposed(await self._known())):
            self.say(line)
        self.say(f"profile: {self.path}")

    async def _read(self) -> None:
        seen, before = await level_reads.run(self.service, self.limits), await self._known()
        answers = {**before.answers, **seen.answers}
        await self._keep(attrs.evolve(seen, levels=before.levels, answers=answers))
        for name, answer in seen.answers.items():
            self.say(f"  {name}: {answer.status or 'no answer'}")
        await self._done(level_reads.LEVEL)

    async def _order(self, orders: OrderSettings, ledger: Ledger, level: int) -> None:
        profile = await self._known()
        plan = order_plan.planned(orders.order, apart=orders.apart, limits=profile.limits)
        spent = await ledger.spent(plan)
        spending = Spending(plan=tuple(plan), cap=orders.cap, levels=frozenset({level}), spent=spent)
        if level != REFUSALS and orders.order.poster_currency not in profile.limits:
            self.say(
                "level 2: who-am-i, asked by level 0, shows no limits of the poster's currency: none is tried"
            )
        await self._begin(level_orders.announced(spending, level=level))
        told = {name: answer for name, answer in profile.answers.items() if name in spent}
        answers = {**await ledger.recorded(spent), **told}
        await self._keep(attrs.evolve(profile, answers={**profile.answers, **answers}))
        await level_orders.run(self.service, ledger, spending, answers=answers, keep=self._keep_answer)
        await self._done(level)

    async def _begin(self, lines: list[str]) -> None:
        for line in lines:
            self.say(line)
        if not await asyncio.to_thread(self.agreed, "begin?"):
            raise Declined("nobody said yes; nothing more was sent")

    # --- the profile ----------------------------------------------------------------------------

    async def _known(self) -> ServiceProfile:
        try:
            return await asyncio.to_thread(load_profile, self.path)
        except FileNotFoundError:
            return ServiceProfile()

    async def _keep(self, profile: ServiceProfile) -> None:
        await asyncio.to_thread(profile.save, self.path)

    async def _keep_answer(self, name: str, answer: SeenAnswer) -> None:
        profile = await self._known()
        await self._keep(attrs.evolve(profile, answers={**profile.answers, name: answer}))
        self.say(f"  {name}: {answer.status or 'no answer'}, order: {answer.order}")

    async def _done(self, level: int) -> None:
        profile = await self._known()
        await self._keep(attrs.evolve(profile, levels=tuple(sorted({*profile.levels, level}))))


@asynccontextmanager
async def _ledger(path: Path, base_url: str) -> AsyncIterator[Ledger]:
    with alone(path):
        async with journal_named(str(path)) as journal:  # sealed, where the environment says so
            yield Ledger(journal, scope=base_url)
