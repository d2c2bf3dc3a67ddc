"""The client for unit tests: the real one, with a service in the same process in the place of sockets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack, cast

from transfer_async._client import TransferClient
from transfer_async._http.bearer import Token
from transfer_async._http.transport import Transport
from transfer_async._pipeline import settings
from transfer_async._pipeline.settings import ClientSettings
from transfer_async.sandbox import Account, Sandbox
from transfer_async.testing.in_process import InProcessTransport, SocketlessSandbox

TOKEN = "token-of-the-fake"  # noqa: S105 - nothing is behind it


class FakeClient(TransferClient):
    """A `TransferClient` without sockets, for unit tests: ``async with FakeClient(hooks=[...]) as client:``.

    It keeps every rule, for it is the client itself: keys, holds, doubts, the journal, errors, retries.
    Only the way to the service is another: a sandbox in the same process, whose faults and accounts are at
    hand as ``client.sandbox``. What only a network does (TLS, proxies, connections that several requests
    share) is tried against a real `Sandbox`.

    Args:
        base_url: names the service in the journal; nothing is ever connected to.
        token: as `TransferClient` takes it; the service takes this one, or ``TOKEN`` if it is a callable.
        accounts: who is registered; the sandbox's by default.
        seed: ids of orders, and chances of faults, are drawn from it.
        settings: as `TransferClient` takes them, but for ``session``, ``ssl`` and ``proxy``.

    Attributes:
        sandbox: what exists, and what goes wrong next; it is there as long as the client.

    Raises:
        ValueError: names the argument and the rule.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1",
        token: Token = TOKEN,
        *,
        accounts: Iterable[Account] | None = None,
        seed: int = 0,
        **settings: Unpack[ClientSettings],
    ) -> None:
        for name in ("session", "ssl", "proxy"):
            if cast("dict[str, Any]", settings).get(name) is not None:
                raise ValueError(f"{name}: a fake has no connections; try it against a Sandbox")
        known = token if isinstance(token, str) else TOKEN
        self._service = SocketlessSandbox(accounts=accounts, token=known, seed=seed)
        super().__init__(base_url, token, **settings)

    @property
    def sandbox(self) -> Sandbox:
        """The service behind it."""
        return self._service

    def out_of_reach(self, *, is_so: bool = True) -> None:
        """Let no connection to the service come about from now on, or let it again."""
        self._transport.out_of_reach = is_so

    def _transport_to(
        self, base_url: str, times: settings.Times, limits: settings.Limits, **_: Any
    ) -> Transport:
        self._transport = InProcessTransport(
            base_url, self._service, timeouts=times.timeouts, max_response_bytes=limits.max_response_bytes
        )
        return self._transport
