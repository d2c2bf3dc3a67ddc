"""Whether a worker lives, and whether it could take a message now: for whoever starts and restarts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from transfer_async._models.errors import TransferError

if TYPE_CHECKING:
    from aiohttp import web

Check = Callable[[], Awaitable[object]]
"""Looks whether something is in order, and raises if not."""

PATIENCE = 2.0
"""Seconds that a look may take."""


class Health:
    """What troubles a worker: what it has been told, and what it sees when it looks.

    Args:
        checks: looks to be had whenever somebody asks, by what they look at.
        patience: seconds that each may take.
    """

    def __init__(self, checks: Mapping[str, Check] | None = None, *, patience: float = PATIENCE) -> None:
        self.checks: dict[str, Check] = dict(checks or {})
        self._patience = patience
        self._troubles: dict[str, str] = {}
        self._ended: str | None = None

    def trouble(self, what: str, why: str) -> bool:
        """Not ready, because of ``what``, until that is `well`; whether this is news."""
        before = self._troubles.get(what)
        self._troubles[what] = why
        return before != why

    def well(self, what: str) -> bool:
        """``what`` is in order; whether this is news."""
        return self._troubles.pop(what, None) is not None

    def ended(self, why: str) -> None:
        """It lives no more: nothing but a new start helps."""
        self._ended = why

    def not_live(self) -> list[str]:
        """Why it lives no more; empty if it does."""
        return [] if self._ended is None else [self._ended]

    async def not_ready(self) -> list[str]:
        """Why it could not take a message now; empty if it could."""
        found = await asyncio.gather(*(self._look(name, check) for name, check in self.checks.items()))
        troubles = [f"{what}: {why}" for what, why in self._troubles.items()]
        return self.not_live() + troubles + [one for one in found if one is not None]

    async def _look(self, name: str, check: Check) -> str | None:
        try:
            async with asyncio.timeout(self._patience):
                await check()
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            # The text of one of the package's own names nobody; another's may hold anything.
            why = str(error) if isinstance(error, TransferError) else type(error).__name__
            return f"{name}: {why}"
        return None

    @asynccontextmanager
    async def served(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Answer ``GET /live`` and ``GET /ready`` with 200, or 503 and the reasons; gives the address.

        Raises:
            OSError: the address is not to be had.
        """
        from aiohttp import web  # 30 ms, and only a worker serves

        app = web.Application()
        app.add_routes([web.get("/live", self._live), web.get("/ready", self._ready)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _live(self, _: web.Request) -> web.Response:
        return _answer("live", self.not_live())

    async def _ready(self, _: web.Request) -> web.Response:
        return _answer("ready", await self.not_ready())


def _answer(name: str, why: list[str]) -> web.Response:
    from aiohttp import web  # see `Health.served`

    body = msgspec.json.encode({name: not why, "why": why})
    return web.Response(body=body, status=503 if why else 200, content_type="application/json")
