"""What stands between the client and the service: it sends what the probe wants sent, once, and looks.

The client claims, marks and settles as it does for any order; it speaks to this address of this machine.
The relay hands on one request for each time that it is armed, with the body that is wanted.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection
from types import TracebackType
from typing import Self

from aiohttp import web

from transfer_async._cli.probe.level_reads import Service
from transfer_async._cli.probe.one_connection import RawAnswer
from transfer_async._cli.probe.order_plan import PlannedOrder
from transfer_async._cli.probe.seen import ids_in, seen
from transfer_async._http.urls import CREATE_ORDER
from transfer_async.sandbox import SeenAnswer, exact_json

_HOST = "127.0.0.1"
_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "upgrade"}
)


class Relay:
    """The way to a service, for one order at a time.

    Args:
        service: where it hands on.
        known: ids of orders that are known.
    """

    def __init__(self, service: Service, known: Collection[str]) -> None:
        self.known = set(known)
        self._service = service
        self._armed: PlannedOrder | None = None
        self._answer: SeenAnswer | None = None
        self._listener: asyncio.Server | None = None
        self._server = web.Server(self._handle, access_log=None)

    @property
    def base_url(self) -> str:
        """Where the client finds it."""
        assert self._listener is not None  # noqa: S101 - it is entered
        return f"http://{_HOST}:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.get_running_loop().create_server(self._server, _HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None  # noqa: S101 - it was entered
        self._listener.close()
        await self._server.shutdown(1.0)

    def arm(self, planned: PlannedOrder) -> None:
        """Let the next request pass, as this order."""
        self._armed, self._answer = planned, None

    def disarm(self) -> SeenAnswer | None:
        """Let nothing pass any more; what was seen of the request that did, if one did."""
        self._armed = None
        return self._answer

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        planned, self._armed = self._armed, None  # before anything is sent: nothing passes twice
        if planned is None or request.path != CREATE_ORDER or not self._is_ours(request):
            return web.Response(status=404)
        raw = await self._hand_on(planned, body)
        if raw.status is None:
            request.protocol.force_close()
            return web.Response(status=502)
        headers = [(name, value) for name, value in raw.headers if name.lower() not in _HOP]
        return web.Response(status=raw.status, body=raw.body, headers=headers)

    def _is_ours(self, request: web.BaseRequest) -> bool:
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(said, f"Bearer {self._service.token}".encode())

    async def _hand_on(self, planned: PlannedOrder, body: bytes) -> RawAnswer:
        wanted = planned.body(exact_json.read(body))
        question = self._service.question("POST", CREATE_ORDER, body=wanted)
        connection = self._service.connection()
        began = self._service.clock.now()
        self._answer = SeenAnswer(order="unknown")
        try:
            raw = await (connection.send_and_cut if planned.is_cut else connection.ask)(question)
        finally:
            connection.close()
        self._answer = seen(raw, seconds=self._service.clock.now() - began, known=self.known)
        self.known.update(ids_in(raw))
        return raw
