"""The settings of a client, which are checked when they are created."""

from __future__ import annotations

import ssl as tls
from collections.abc import Mapping, Sequence
from typing import TypedDict

import aiohttp
from attrs import field, frozen, validators
from attrs.converters import optional

from transfer_async._http.retry import Rate, RetryPolicy
from transfer_async._http.transport import Timeouts
from transfer_async._models.events import Observer
from transfer_async._pipeline.call import Resolver
from transfer_async._pipeline.hooks import Hook
from transfer_async._pipeline.key_views import checked_settle_after
from transfer_async._support.clock import Clock, Duration, in_seconds
from transfer_async._support.util import VERSION, a_duration, count, instance_of, positive
from transfer_async.journal.model import LONGEST_LEASE
from transfer_async.journal.protocol import Journal

USER_AGENT = f"transfer_async/{VERSION}"


class ClientSettings(TypedDict, total=False):
    """The arguments of `TransferClient` except the base URL and the token."""

    hooks: Sequence[Hook]
    journal: Journal | None
    scope: str | None
    retry: RetryPolicy | None
    timeouts: Timeouts | None
    resolve: Resolver | None
    settle_after: Duration
    abandoned_settle_after: Duration | None
    four_eyes: bool
    lease: Duration
    recover_every: Duration | None
    recover_concurrency: int
    observers: Sequence[Observer]
    session: aiohttp.ClientSession | None
    ssl: tls.SSLContext | None
    proxy: str | None
    max_response_bytes: int
    max_connections: int
    rate: Rate | None
    headers: Mapping[str, str] | None
    request_id_header: str | None
    response_id_header: str
    clock: Clock | None


_OFTEN_OR_NEVER = positive("must be finite and more than 0 seconds, or None")


@frozen(kw_only=True)
class Times:
    """A client's clock, retry policy and time settings.

    Raises:
        ValueError: a setting is invalid, or the lease is too short for the retry deadline; the message names
            the argument and the rule.
    """

    retry: RetryPolicy = field(validator=instance_of(RetryPolicy))
    timeouts: Timeouts = field(validator=instance_of(Timeouts))
    clock: Clock = field(validator=instance_of(Clock))
    lease: float = field(converter=in_seconds, validator=a_duration)
    settle_after: float = field(converter=checked_settle_after)
    recover_every: float | None = field(
        converter=optional(in_seconds),
        validator=validators.optional([a_duration, _OFTEN_OR_NEVER]),
    )

    @lease.validator
    def _long_enough_and_no_longer(self, _: object, lease: float) -> None:
        least = round(1.5 * self.retry.deadline, 9)  # 1.5 * 0.8 is slightly more than 1.2 as a float.
        if not least <= lease < float("inf"):
            raise ValueError(
                f"lease: must be finite and at least 1.5 times the retry deadline, {least:g} s, "
                "or a claim may expire while its request is in flight"
            )
        if lease > LONGEST_LEASE:
            raise ValueError(
                f"lease: must not be more than {LONGEST_LEASE:g} s, because the key of a dead worker stays "
                f"bound for that long. The retry deadline can therefore be at most {LONGEST_LEASE / 1.5:g} s"
            )


@frozen(kw_only=True)
class Limits:
    """A client's limits on response sizes, connections, concurrent recoveries and the order rate.

    Raises:
        ValueError: a limit is not an integer of at least 1, or ``rate`` is not a `Rate`.
    """

    max_response_bytes: int = field(validator=count())
    max_connections: int = field(validator=count())
    recover_concurrency: int = field(validator=count())
    rate: Rate | None = field(validator=validators.optional(instance_of(Rate)))
