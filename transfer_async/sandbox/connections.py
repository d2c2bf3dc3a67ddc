"""The listening socket and its connections: opened in a moment, and gone without a trace when closed."""

import asyncio
import logging
import ssl as ssl_module
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

from aiohttp import StreamReader, web

from transfer_async.sandbox import service

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

# What aiohttp may take to end a connection that has already been cut; it needs a few turns of the loop.
_GRACE = 1.0


class _Connection(web.RequestHandler):
    """aiohttp's own connection, but what is not HTTP is answered in JSON and without a log of its bytes.

    `body` is the body of the request that is being handled, `served` counts the requests so far.
    """

    body: StreamReader | None = None
    served: int = 0

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; a broken chunk ends the body that it stands in.

        aiohttp files it as the next request, and lets the reader of this body wait for ever.
        """
        super().data_received(data)
        if self._messages and self.body is not None and not self.body.is_eof():
            self.body.set_exception(web.RequestPayloadError("broken chunk"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        reply = service.message(status, "This is not a request that HTTP allows.")
        response = web.Response(status=status, body=reply.body, content_type="application/json")
        response.force_close()
        return response


class _Server(web.Server):
    """aiohttp's low-level server, with connections of our kind."""

    def __init__(self, handler: Handler, **options: Any) -> None:
        super().__init__(handler)
        self._options = options
        self.accepting: WeakSet[asyncio.Task[Any]] = WeakSet()

    def __call__(self) -> web.RequestHandler:
        # asyncio's own task that accepts a connection: it lives until the TLS handshake is done.
        if (task := asyncio.current_task()) is not None:
            self.accepting.add(task)
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)


def served_on(request: web.BaseRequest) -> int:
    """Tell how many requests came on a request's connection, this one included."""
    return request.protocol.served if isinstance(request.protocol, _Connection) else 1


class Connections:
    """Every connection of a sandbox, and every request in progress on them."""

    def __init__(
        self,
        handler: Handler,
        *,
        host: str,
        port: int,
        ssl: ssl_module.SSLContext | None,
        keep_alive: float,
        logger: logging.Logger,
    ) -> None:
        self._handler = handler
        self._host, self._port, self._ssl = host, port, ssl
        self._options = {"keepalive_timeout": keep_alive, "logger": logger, "access_log": None}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: _Server | None = None
        self._listener: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """Scheme, host and port.

        Raises:
            RuntimeError: not open.
        """
        if self._listener is None or not self._listener.sockets:
            raise RuntimeError("the sandbox is not listening: use it as `async with Sandbox() as sandbox:`")
        port = self._listener.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{port}"

    async def open(self) -> None:
        """Listen.

        Raises:
            RuntimeError: opened before.
            OSError: the address is not to be had.
        """
        if self._listener is not None:
            raise RuntimeError("a sandbox is entered once")
        self._server = _Server(self._run, **self._options)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, self._host, self._port, ssl=self._ssl)

    async def close(self) -> None:
        """Stop listening, give up every request in progress, and cut every connection."""
        if self._listener is None or self._server is None:
            return
        self._listener.close()
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        tasks = [*self._tasks, *self._server.accepting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server.pre_shutdown()
        await self._server.shutdown(_GRACE)
        await self._listener.wait_closed()

    async def _run(self, request: web.BaseRequest) -> web.StreamResponse:
        # Both tasks of a request: aiohttp forgets its own once the client has left.
        tasks = {task for task in (asyncio.current_task(), request.task) if task is not None}
        self._tasks |= tasks
        if isinstance(request.protocol, _Connection):
            request.protocol.body = request.content
            request.protocol.served += 1
        try:
            return await self._handler(request)
        finally:
            self._tasks -= tasks
