"""What a client is made with: each argument checked by name and rule, and made into the client's parts."""

from __future__ import annotations

import ssl as tls
from collections.abc import Sequence
from typing import TypedDict, TypeVar

import aiohttp
from attrs import field, frozen, validators
from attrs.converters import optional

from transfer_async._http.bearer import TokenSource
from transfer_async._http.rate import Pace, Rate
from transfer_async._http.retry import RetryPolicy, TokenBucket
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._models.events import Observer, Observers
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.hooks import Hook, PreflightHook
from transfer_async._pipeline.refusals import checked_settle_after
from transfer_async._pipeline.resolution import Resolver
from transfer_async._support.callables import checked_async
from transfer_async._support.clock import Clock, Duration, in_seconds
from transfer_async._support.validators import a_duration, count, instance_of, positive
from transfer_async._support.version import VERSION
from transfer_async.journal.entries import LONGEST_LEASE
from transfer_async.journal.protocol import Journal
from transfer_async.journal.scoped import ScopedJournal

T = TypeVar("T")

MAX_CLAIM_AGE = 900.0
"""Seconds after which an abandoned claim's hold and checks are stale."""


USER_AGENT = f"transfer_async/{VERSION}"


class ClientSettings(TypedDict, total=False):
    """What `TransferClient` takes beside the address and the token, each under its own name."""

    hooks: Sequence[Hook]
    journal: Journal | None
    scope: str | None
    retry: RetryPolicy | None
    timeouts: Timeouts | None
    resolve: Resolver | None
    settle_after: Duration
    four_eyes: bool
    lease: Duration
    recover_every: Duration | None
    observers: Sequence[Observer]
    session: aiohttp.ClientSession | None
    ssl: tls.SSLContext | None
    proxy: str | None
    max_response_bytes: int
    max_connections: int
    rate: Rate | None
    clock: Clock | None


_OFTEN_OR_NEVER = positive("must be finite and more than 0 seconds, or None")


@frozen(kw_only=True, eq=False, repr=False)
class Times:
    """Whatever of a client is measured in seconds, checked, also against each other; and by which clock.

    Raises:
        ValueError: names the argument and the rule.
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
        least = round(1.5 * self.retry.deadline, 9)  # 1.5 * 0.8 is a little over 1.2
        if not least <= lease < float("inf"):
            raise ValueError(
                f"lease: must be finite and at least 1.5 times the retry deadline, {least:g} s, "
                "or a claim may run out while its request is on the way"
            )
        if lease > LONGEST_LEASE:
            raise ValueError(
                f"lease: must not be more than {LONGEST_LEASE:g} s, for which the key of a dead worker is "
                f"bound; so the retry deadline can be {LONGEST_LEASE / 1.5:g} s at most"
            )


@frozen(kw_only=True, eq=False, repr=False)
class Limits:
    """Whatever of a client is counted.

    Raises:
        ValueError: one is not a whole number, 1 or more, or is no `Rate`.
    """

    max_response_bytes: int = field(validator=count())
    max_connections: int = field(validator=count())
    rate: Rate | None = field(validator=validators.optional(instance_of(Rate)))


def transport(
    base_url: str,
    times: Times,
    limits: Limits,
    *,
    session: aiohttp.ClientSession | None,
    ssl: tls.SSLContext | None,
    proxy: str | None,
) -> Transport:
    """The transport to ``base_url``.

    Raises:
        ValueError: names the argument and the rule.
    """
    if ssl is not None and not isinstance(ssl, tls.SSLContext):
        raise ValueError("ssl: must be an ssl.SSLContext; certificates are always verified without one")
    return Transport(
        base_url,
        session=_checked_session(session),
        ssl=ssl,
        proxy=proxy,
        timeouts=times.timeouts,
        max_response_bytes=limits.max_response_bytes,
        max_connections=limits.max_connections,
    )


def _checked_session(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession | None:
    if session is not None and not isinstance(session, aiohttp.ClientSession):
        raise ValueError("session: must be an aiohttp.ClientSession")
    if session is not None and session.auth is not None:
        raise ValueError("session: has an auth of its own, which would stand in the way of the bearer token")
    return session


def context(
    times: Times,
    limits: Limits,
    *,
    scope: str,
    journal: Journal,
    hooks: tuple[PreflightHook, ...],
    transport: Transport,
    tokens: TokenSource,
    observers: Observers,
    resolve: Resolver | None,
) -> Context:
    """The parts of a client, and the times that they keep.

    Raises:
        ValueError: ``resolve`` is not async.
    """
    if resolve is not None:
        checked_async(resolve, "resolve(intent, error)", name="resolve", kind="an async callable")
    return Context(
        journal=ScopedJournal(journal, scope),
        hooks=hooks,
        transport=transport,
        tokens=tokens,
        policy=times.retry,
        bucket=TokenBucket(times.retry.budget),
        timeouts=times.timeouts,
        clock=times.clock,
        observers=observers,
        resolve=resolve,
        settle_after=times.settle_after,
        lease=times.lease,
        max_claim_age=MAX_CLAIM_AGE,
        pace=None if limits.rate is None else Pace(limits.rate, times.clock),
    )
