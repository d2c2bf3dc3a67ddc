"""What it takes to speak with the service, whatever is asked of it."""

from __future__ import annotations

from transfer_async._http.bearer import TokenSource
from transfer_async._http.retry import RetryPolicy, TokenBucket
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._support.clock import Clock
from transfer_async._support.state import Fixed


class Access(Fixed, frozen=True, kw_only=True):
    """The connections of one client, its token, and its patience."""

    transport: Transport
    tokens: TokenSource
    policy: RetryPolicy
    bucket: TokenBucket
    timeouts: Timeouts
    clock: Clock
