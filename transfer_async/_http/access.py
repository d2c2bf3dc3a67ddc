"""What it takes to speak with the service, whatever is asked of it."""

from __future__ import annotations

from attrs import frozen

from transfer_async._http.bearer import TokenSource
from transfer_async._http.retry import RetryPolicy, TokenBucket
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._support.clock import Clock


@frozen(kw_only=True)
class Access:
    """The connections of one client, its token, and its patience."""

    transport: Transport
    tokens: TokenSource
    policy: RetryPolicy
    bucket: TokenBucket
    timeouts: Timeouts
    clock: Clock
