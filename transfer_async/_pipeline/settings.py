"""What a client is made with: each argument checked by name and rule, and made into the client's parts."""

from __future__ import annotations

import ssl as tls
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypedDict, TypeVar

import aiohttp
from attrs import frozen

from transfer_async._http.bearer import TokenSource
from transfer_async._http.retry import RetryPolicy, TokenBucket
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._models import texts
from transfer_async._models.events import Observer, Observers
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.hooks import Hook, PreflightHook
from transfer_async._pipeline.operators import checked_settle_after
from transfer_async._pipeline.resolution import Resolver
from transfer_async._support.callables import checked_async
from transfer_async._support.clock import Clock, Duration, duration
from transfer_async.journal.entries import LONGEST_LEASE
from transfer_async.journal.protocol import Journal

T = TypeVar("T")

MAX_CLAIM_AGE = 900.0
"""Seconds after which an abandoned claim's hold and checks are stale."""


def _user_agent() -> str:
    try:
        return f"transfer_async/{version('transfer_async')}"
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "transfer_async"


USER_AGENT = _user_agent()  # read once, on import: it reads a file, and a client is made within a loop


class ClientSettings(TypedDict, total=False):
    """What `TransferClient` takes beside the address and the token, each under its own name."""

    hooks: Sequence[Hook]
    journal: Journal | None
    scope: str | None
    retry: RetryPolicy | None
    timeouts: Timeouts | None
    resolve: Resolver | None
    settle_after: Duration
    lease: Duration
    recover_every: Duration | None
    observers: Sequence[Observer]
    session: aiohttp.ClientSession | None
    ssl: tls.SSLContext | None
    proxy: str | None
    max_response_bytes: int
    max_connections: int
    clock: Clock | None


@frozen(kw_only=True)
class Times:
    """Whatever of a client is measured in seconds."""

    policy: RetryPolicy
    timeouts: Timeouts
    lease: float
    settle_after: float
    recover_every: float | None


def times(
    *,
    retry: RetryPolicy | None,
    timeouts: Timeouts | None,
    lease: Duration,
    settle_after: Duration,
    recover_every: Duration | None,
) -> Times:
    """The times, checked, also against each other.

    Raises:
        ValueError: names the argument and the rule.
    """
    made = Times(
        policy=given_or_made("retry", retry, RetryPolicy),
        timeouts=given_or_made("timeouts", timeouts, Timeouts),
        lease=duration("lease", lease),
        settle_after=checked_settle_after(settle_after),
        recover_every=None if recover_every is None else duration("recover_every", recover_every),
    )
    least = round(1.5 * made.policy.deadline, 9)  # 1.5 * 0.8 is a little over 1.2
    if not least <= made.lease < float("inf"):
        raise ValueError(
            f"lease: must be finite and at least 1.5 times the retry deadline, {least:g} s, "
            "or a claim may run out while its request is on the way"
        )
    if made.lease > LONGEST_LEASE:
        raise ValueError(
            f"lease: must not be more than {LONGEST_LEASE:g} s, for which the key of a dead worker is bound; "
            f"so the retry deadline can be {LONGEST_LEASE / 1.5:g} s at most"
        )
    if made.recover_every is not None and not 0 < made.recover_every < float("inf"):
        raise ValueError("recover_every: must be finite and more than 0 seconds, or None")
    return made


@frozen(kw_only=True)
class Limits:
    """Whatever of a client is counted.

    Raises:
        ValueError: one is not a whole number, 1 or more.
    """

    max_response_bytes: int
    max_connections: int

    def __attrs_post_init__(self) -> None:
        check_counts(max_response_bytes=self.max_response_bytes, max_connections=self.max_connections)


def check_counts(**counts: object) -> None:
    """Check numbers of things.

    Raises:
        ValueError: one is not a whole number, 1 or more.
    """
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ValueError(f"{name}: must be a whole number, 1 or more")


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


def given_or_made(name: str, given: T | None, kind: type[T]) -> T:
    """``given``, or one with the defaults.

    Raises:
        ValueError: it is of another kind.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ValueError(f"{name}: must be a {kind.__name__}")  # noqa: TRY004 - as every wrong setting
    return given


def clock(given: Clock | None) -> Clock:
    """The clock.

    Raises:
        ValueError: it is none.
    """
    return given_or_made("clock", given, Clock)


def scope(given: str | None, *, base_url: str) -> str:
    """What names the service in the journal.

    Raises:
        ValueError: it is no text, or an empty one.
    """
    return base_url if given is None else texts.checked_scope(given)


def observers(given: Sequence[Observer]) -> Observers:
    """The observers.

    Raises:
        ValueError: they are not a sequence of plain functions.
    """
    return Observers(given)


def resolve(given: Resolver | None) -> Resolver | None:
    """The bank's own means to end a doubt.

    Raises:
        ValueError: it is not async.
    """
    if given is None:
        return None
    return checked_async(given, "resolve(intent, error)", name="resolve", kind="an async callable")


def _checked_session(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession | None:
    if session is not None and not isinstance(session, aiohttp.ClientSession):
        raise ValueError("session: must be an aiohttp.ClientSession")
    if session is not None and session.auth is not None:
        raise ValueError("session: has an auth of its own, which would stand in the way of the bearer token")
    return session


def context(
    times: Times,
    *,
    scope: str,
    journal: Journal,
    hooks: tuple[PreflightHook, ...],
    transport: Transport,
    tokens: TokenSource,
    observers: Observers,
    resolve: Resolver | None,
    clock: Clock,
) -> Context:
    """The parts of a client, and the times that they keep."""
    return Context(
        scope=scope,
        journal=journal,
        hooks=hooks,
        transport=transport,
        tokens=tokens,
        policy=times.policy,
        bucket=TokenBucket(times.policy.budget),
        timeouts=times.timeouts,
        clock=clock,
        observers=observers,
        resolve=resolve,
        settle_after=times.settle_after,
        lease=times.lease,
        max_claim_age=MAX_CLAIM_AGE,
    )
