"""The client, which checks arguments, runs calls, and waits for running calls when it is closed."""

from __future__ import annotations

import asyncio
import os
import ssl as tls
import warnings
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

import aiohttp
import attrs

from transfer_async._converters import converter
from transfer_async._http import retry, urls
from transfer_async._http.network import VARIABLES, NetworkSettings
from transfer_async._http.request import (
    OtherRequests,
    ServiceRequest,
    Token,
    TokenSource,
    checked_headers,
    checked_method,
    checked_name,
    encoded,
)
from transfer_async._http.retry import Rate, RateLimiter, RetryPolicy, TokenBucket
from transfer_async._http.transport import RESPONSE_ID_HEADER, Timeouts, Transport
from transfer_async._models.errors import ClientClosed, ServiceFailed, WrongEventLoop, hides_arguments
from transfer_async._models.events import Observer, Observers
from transfer_async._models.requests import (
    NewOrder,
    OrderRequest,
    PersonName,
    call_problems,
    checked_scope,
    moment_problem,
    refuse_call,
    refuse_key,
    to_moment,
    to_text,
)
from transfer_async._models.responses import Order, User
from transfer_async._pipeline.batch import Batch, OrderResult, Requests
from transfer_async._pipeline.call import (
    RECOVER_CONCURRENCY,
    USER_AGENT,
    ClientCore,
    ClientSettings,
    Limits,
    OrderCall,
    Resolver,
    Times,
    checked_abandoned_settle_after,
    new_call,
)
from transfer_async._pipeline.create_order import InFlight
from transfer_async._pipeline.hooks import Hook, checked_hooks
from transfer_async._pipeline.key_views import Doubt
from transfer_async._pipeline.operators import Operators
from transfer_async._pipeline.outcomes import check_key
from transfer_async._pipeline.recovery import Recoveries, RecoveryReport
from transfer_async._support.clock import Clock, Duration, duration, on_clock
from transfer_async._support.util import check_count, checked_async
from transfer_async.journal import journal_at, seal_from_env
from transfer_async.journal.memory import MemoryJournal
from transfer_async.journal.model import LEASE, SETTLE_AFTER, HistoryEvent
from transfer_async.journal.protocol import Journal, KeyRecord, ScopedJournal, checked_journal, record_of

T = TypeVar("T")

CLOSING_GRACE = 5.0
"""How many seconds the calls that ``close`` stops have to record their outcomes."""


class TransferClient:
    """A client of the transfer order service, for one base URL and one account.

    Use a client as ``async with TransferClient(...) as client:``, or call ``await client.close()`` yourself.
    Any number of tasks in one event loop can share a client.

    Args:
        base_url: the scheme, the host, and an optional path prefix. The scheme must be https, unless the host
            is loopback.
        token: the bearer token, or an async callable that returns one. The client calls the callable at its
            first use, and again after a 401 response. Concurrent requests share one call to the callable.
        hooks: the hooks to run, in this order, before each order is sent. The hook that places the hold must
            be last.
        journal: the journal that records keys and outcomes; by default the client's own `MemoryJournal`.
        scope: the name under which the journal stores this service's keys; by default the normalised
            ``base_url``.
        retry: how often, and for how long, requests are retried; see `RetryPolicy`.
        timeouts: the time limits of connections, responses and hooks; see `Timeouts`.
        resolve: an async callable that finds out whether an order in doubt exists. The callable takes the
            intent and the `OutcomeUnknown`, and returns the `Order`, its id, `NO_ORDER`, or None.
        settle_after: how many seconds must pass, after the last moment at which the order could have been
            sent, before `NO_ORDER` is accepted.
        abandoned_settle_after: replaces ``settle_after`` if the process that was sending the order never
            reported a result, because that process may be suspended and send the order later. The value must
            be at least ``settle_after``; the default is 86,400 (a day) or ``settle_after``, whichever is
            longer. If a person refutes the order, ``settle_after`` always applies.
        four_eyes: whether to require dual control in the scope from now on, so that each person's decision
            needs a second person's approval; see `Operators`. The results of ``resolve`` need no approval.
        lease: how many seconds a claim stays valid after its last renewal; at least 1.5 times the retry
            deadline, at most 3,600 (an hour).
        recover_every: the interval, in seconds, at which the client calls `recover` automatically. After the
            client's first use, the first run starts within one interval, at a random time. If
            ``recover_every`` is None, call `recover` yourself.
        recover_concurrency: the maximum number of ``resolve`` calls that `recover` makes at the same time.
        observers: the functions to call with every event; see `transfer_async._models.events`.
        session: an ``aiohttp.ClientSession`` to use instead of the client's own. The client does not close
            this session. Each request overrides the session's settings for redirects, ``raise_for_status``,
            middlewares and ``ssl``.
        ssl: the TLS context. The default context verifies the service's certificate, even if the connector of
            a ``session`` does not.
        proxy: the address of an HTTP proxy.
        max_response_bytes: the maximum number of bytes read from a response's body, after decompression.
        max_connections: the maximum size of each of the two connection pools, for orders and for other
            requests. If you pass a ``session``, its connection limit applies instead.
        rate: the maximum rate of requests that create an order; see `Rate`. Calls above the rate wait, in
            order of arrival, before any funds are held.
        headers: headers to send with every request, for example an API gateway key or a tenant id. The
            headers' values are kept secret, like the token. Headers that the client sets itself cannot be
            replaced.
        request_id_header: the header in which to send the attempt id of each create-order request, for
            example ``X-Request-Id``. By default, the id is not sent. Errors, events and journal entries
            contain the same id, so you can use it to ask the service about an order whose response never
            arrived.
        response_id_header: the name of the response header that contains the service's own id for a request.
            Errors, events and journal entries contain the service's id as ``request_id``. The specification
            does not define a response header for request ids.
        clock: the source of time, sleep and randomness; for tests.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    _closed = True  # This stays true if the constructor raises an error.

    @hides_arguments
    def __init__(
        self,
        base_url: str,
        token: Token,
        *,
        hooks: Sequence[Hook] = (),
        journal: Journal | None = None,
        scope: str | None = None,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        resolve: Resolver | None = None,
        settle_after: Duration = SETTLE_AFTER,
        abandoned_settle_after: Duration | None = None,
        four_eyes: bool = False,
        lease: Duration = LEASE,
        recover_every: Duration | None = None,
        recover_concurrency: int = RECOVER_CONCURRENCY,
        observers: Sequence[Observer] = (),
        session: aiohttp.ClientSession | None = None,
        ssl: tls.SSLContext | None = None,
        proxy: str | None = None,
        max_response_bytes: int = 1 << 20,
        max_connections: int = 512,
        rate: Rate | None = None,
        headers: Mapping[str, str] | None = None,
        request_id_header: str | None = None,
        response_id_header: str = RESPONSE_ID_HEADER,
        clock: Clock | None = None,
    ) -> None:
        base_url = urls.normalised(base_url)
        times = Times(
            retry=RetryPolicy() if retry is None else retry,
            timeouts=Timeouts() if timeouts is None else timeouts,
            lease=lease,
            settle_after=settle_after,
            recover_every=recover_every,
            clock=Clock() if clock is None else clock,
        )
        limits = Limits(
            max_response_bytes=max_response_bytes,
            max_connections=max_connections,
            recover_concurrency=recover_concurrency,
            rate=rate,
        )
        self._base_url, self._owns_journal = base_url, journal is None
        self._context = ClientCore(
            journal=ScopedJournal(
                MemoryJournal(clock=times.clock) if journal is None else checked_journal(journal),
                base_url if scope is None else checked_scope(scope),
            ),
            hooks=checked_hooks(hooks),
            transport=self._transport_to(
                base_url,
                times,
                limits,
                session=session,
                ssl=ssl,
                proxy=proxy,
                response_id_header=checked_name("response_id_header", response_id_header),
            ),
            tokens=TokenSource(
                token,
                timeout=times.timeouts.hook,
                user_agent=USER_AGENT,
                headers=checked_headers(headers, request_id_header=request_id_header),
            ),
            observers=Observers(observers),
            resolve=None
            if resolve is None
            else checked_async(resolve, "resolve(intent, error)", name="resolve", kind="an async callable"),
            policy=times.retry,
            bucket=TokenBucket(times.retry.budget, attempts=times.retry.attempts),
            timeouts=times.timeouts,
            clock=times.clock,
            settle_after=times.settle_after,
            abandoned_settle_after=checked_abandoned_settle_after(
                abandoned_settle_after, settle_after=times.settle_after
            ),
            lease=times.lease,
            recover_concurrency=recover_concurrency,
            rate_limiter=None if rate is None else RateLimiter(rate, times.clock),
            request_id_header=request_id_header,
        )
        self._prepare(recover_every=times.recover_every, four_eyes=four_eyes)

    def _prepare(self, *, recover_every: float | None, four_eyes: bool) -> None:
        converter.prepare()
        retry.prepare()
        core, self._affinity = self._context, LoopAffinity()
        self._calls = InFlight(core)
        self._requests = OtherRequests(
            transport=core.transport,
            tokens=core.tokens,
            policy=core.policy,
            bucket=core.bucket,
            clock=core.clock,
            observers=core.observers,
        )
        self._recoveries = Recoveries(core, every=recover_every)
        self._operators = Operators(
            core.journal.store,
            core.journal.scope,
            settle_after=core.settle_after,
            four_eyes=four_eyes,
            observers=[core.observers.publish],
            clock=core.clock,
        )
        for hook in core.hooks:
            bind = getattr(hook, "bind", None)
            if callable(bind):
                bind(self)
        self._closed = False

    def _transport_to(
        self,
        base_url: str,
        times: Times,
        limits: Limits,
        *,
        session: aiohttp.ClientSession | None,
        ssl: tls.SSLContext | None,
        proxy: str | None,
        response_id_header: str,
    ) -> Transport:
        """Create the transport, which sends requests to the service. Test subclasses override this method."""
        if ssl is not None and not isinstance(ssl, tls.SSLContext):
            raise ValueError("ssl: must be an ssl.SSLContext; without one, certificates are always verified")
        if session is not None and not isinstance(session, aiohttp.ClientSession):
            raise ValueError("session: must be an aiohttp.ClientSession")
        if session is not None and session.auth is not None:
            raise ValueError(
                "session: must not set auth, because the session's auth would replace the bearer token"
            )
        return Transport(
            base_url,
            session=session,
            ssl=ssl,
            proxy=proxy,
            timeouts=times.timeouts,
            max_response_bytes=limits.max_response_bytes,
            max_connections=limits.max_connections,
            response_id_header=response_id_header,
        )

    @classmethod
    @hides_arguments
    def from_env(cls, **settings: Unpack[ClientSettings]) -> Self:
        """Create a client from environment variables.

        The following variables are required:

        - ``TRANSFER_BASE_URL``: the service's base URL.
        - ``TRANSFER_API_TOKEN``: the bearer token.

        The following variables are optional:

        - ``TRANSFER_JOURNAL``: a path or a ``postgresql://`` address. The journal is closed together with
          the client.
        - ``TRANSFER_SEAL``: the path of a `KeySeal` key file, for encrypting personal data in this journal.
        - ``TRANSFER_PROXY``: the address of a proxy, for ``proxy``.
        - ``TRANSFER_CA``, ``TRANSFER_CLIENT_CERT``, ``TRANSFER_CLIENT_KEY``: the paths of PEM files, for
          ``ssl``.
        - ``TRANSFER_HEADERS``: the path of a file with one header per line, for ``headers``.

        Args:
            settings: additional arguments for `TransferClient`. ``journal``, ``proxy``, ``ssl`` and
                ``headers`` override the corresponding variables.

        Raises:
            ValueError: a variable is missing or invalid; the message names the variable.
        """
        missing = [name for name in ("TRANSFER_BASE_URL", "TRANSFER_API_TOKEN") if not os.environ.get(name)]
        if missing:
            raise ValueError(f"{' and '.join(missing)}: must be set in the environment")
        where, token = os.environ["TRANSFER_BASE_URL"], os.environ["TRANSFER_API_TOKEN"]
        network = NetworkSettings.from_env()
        if settings.get("ssl") is not None:
            network = attrs.evolve(network, ca=None, client_cert=None, client_key=None)
        if settings.get("proxy") is not None:
            network = attrs.evolve(network, proxy=None)
        if settings.get("headers") is not None:
            network = attrs.evolve(network, headers=None)
        settings.update(network.client_settings(VARIABLES))  # type: ignore[typeddict-item] # ssl, proxy, headers
        address = os.environ.get("TRANSFER_JOURNAL")
        if not address or settings.get("journal") is not None:
            return cls(where, token, **settings)
        settings["journal"] = _journal_at(address)
        client = cls(where, token, **settings)
        client._owns_journal = True
        return client

    # --- orders ---------------------------------------------------------------------------------

    async def create_order(
        self,
        order: NewOrder,
        *,
        key: str | None = None,
        beneficiary: PersonName | None = None,
        held: str | None = None,
        send_before: datetime | None = None,
        deadline: datetime | None = None,
        once: bool = False,
    ) -> Order:
        """Create an order, at most once per key (specification 4.1).

        Args:
            order: the order to create.
            key: your own id for the payment, of 1 to 200 printable characters in Unicode NFC, without
                invisible characters or leading or trailing blanks. By default the client generates a key. If
                you might cancel the call, pass your own key.
            beneficiary: the beneficiary's name as the customer typed it, which hooks can check.
            held: the reference of a hold that the bank itself has already placed.
            send_before: an aware time after which the order must not be sent.
            deadline: an aware time after which the caller stops waiting. The deadline may shorten, but never
                extends, the time limits of hooks, retry pauses, ``resolve`` and the request. If the deadline
                passes before the request is sent, nothing is sent, the hooks are undone, and the call raises
                `Expired`. If the deadline passes after the request is sent, the outcome is unknown and the
                hold is kept. Journal writes and undos are not interrupted, so the call may end a little after
                the deadline.
            once: whether all calls with this key share one intent, for example because a message or a line of
                a file may be processed twice. With ``once``, a refusal that the journal has recorded for the
                key is raised again, and nothing is sent. By default, a call after a definite failure starts a
                new intent.

        Returns:
            The order as the service recorded it. If the key already has an order, that order is returned.

        Raises:
            InvalidOrder: an argument is invalid; nothing was claimed, held or sent. ``.problems`` lists every
                invalid field.
            TransferError: any other failure. The error's ``outcome`` is the outcome of this call, and
                ``order_may_exist`` shows whether an order for the key may exist.
        """
        # A local variable would keep the request in memory while the call runs.
        return await self._calls.run(
            self._call(OrderRequest(order, key, beneficiary, held, send_before, deadline), once=once)
        )

    def _call(self, request: OrderRequest, *, once: bool) -> OrderCall:
        refuse_call(call_problems(request), key=request.key)
        self._refuse_unless_open(request.key)
        if self._recoveries.is_due:  # This check saves a function call for each order.
            self._recoveries.begin()
        return new_call(self._context, request, once=once)

    def create_orders(
        self, requests: Requests, *, concurrency: int = 16, once: bool = False
    ) -> AsyncGenerator[OrderResult, None]:
        """Create many orders concurrently, from an input that may be endless.

        Args:
            requests: an iterable or async iterable of `OrderRequest`. The next request is read only when
                fewer than ``concurrency`` orders are in flight.
            concurrency: the maximum number of orders in flight.
            once: see `create_order`.

        Returns:
            An async iterator with one `OrderResult` per request, in order of completion. A failure does not
            stop the other orders. If you leave the loop early, the orders in flight still run to completion.
            To wait for the orders in flight, close the iterator (``contextlib.aclosing``).

        Raises:
            ValueError: ``concurrency`` is not a whole number of at least 1.
            TypeError: ``requests`` cannot be iterated.
        """
        check_count("concurrency", concurrency)

        async def create(request: OrderRequest) -> Order:
            return await self._calls.run(self._call(request, once=once))

        check = partial(check_key, self._context)
        return Batch(create, requests, concurrency=concurrency, check=check).results()

    async def known(self, key: str) -> KeyRecord | None:
        """Return the journal's record of ``key``, or None if the key is unknown.

        Call `known` before you place your own hold for the key.

        Raises:
            InvalidOrder: ``key`` has no record and is not a valid key.
            JournalFailed: the journal could not be read.
        """
        self._refuse_unless_open(key)
        self._recoveries.begin()
        key = to_text(key)
        entry = await self._context.journal.read(key)
        if entry is None:
            refuse_key(key)
            return None
        return record_of(entry)

    async def recover(self) -> RecoveryReport:
        """Finish the work of earlier calls: abandoned claims, orders in doubt, and pending undos.

        A client's first run calls ``resolve`` for every order in doubt. Later runs call ``resolve`` less
        often for orders that have been in doubt for a long time. Pending undos run without waiting for
        ``resolve``.

        Raises:
            JournalFailed: the journal could not be read or written.
            ClientClosed: the client is closed, or was closed before the run ended.
        """
        self._refuse_unless_open()
        self._recoveries.begin()
        return await self._recoveries.run()

    @property
    def retry_budget(self) -> float:
        """The number of tokens left in the `RetryBudget`.

        If too few tokens are left, failed requests are not retried.
        """
        return self._context.bucket.left

    # --- operators ------------------------------------------------------------------------------

    @property
    def operators(self) -> Operators:
        """The `Operators` for the keys in the client's journal and scope.

        The client itself provides methods for the most common operations, such as `resolve`.

        Raises:
            ClientClosed: the client is closed.
        """
        self._refuse_unless_open()
        return self._operators

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """Return every key in doubt, oldest first; see `Operators.in_doubt`."""
        self._refuse_unless_open()
        return await self._operators.in_doubt()

    async def resolve(
        self, key: str, *, order_id: str, by: str, reason: str, undone: bool = False
    ) -> KeyRecord:
        """Record that the order of a key in doubt exists; see `Operators.resolve`."""
        self._refuse_unless_open(key)
        return await self._operators.resolve(key, order_id=order_id, by=by, reason=reason, undone=undone)

    async def refute(self, key: str, *, by: str, reason: str, undone: bool = False) -> KeyRecord:
        """Record that a key in doubt has no order, and that none can appear later; see `Operators.refute`."""
        self._refuse_unless_open(key)
        return await self._operators.refute(key, by=by, reason=reason, undone=undone)

    async def history(self, key: str) -> tuple[HistoryEvent, ...]:
        """Return the history of a key, oldest entry first; see `Operators.history`."""
        self._refuse_unless_open(key)
        return await self._operators.history(key)

    async def prune(self, *, before: datetime) -> int:
        """Delete and count the keys on which work ended before a given time; see `Operators.prune`."""
        self._refuse_unless_open()
        return await self._operators.prune(before=before)

    # --- everything else ------------------------------------------------------------------------

    async def who_am_i(self, *, deadline: datetime | None = None) -> User:
        """Return the account that the token belongs to (specification 4.2).

        Other operations of the service require the account's ``id``.

        Args:
            deadline: an aware time after which the caller stops waiting; see `request`.

        Raises:
            ValueError: ``deadline`` is not an aware time.
            Expired: ``deadline`` passed before anything was sent.
            Unauthorized: the service does not accept the token.
            ServiceFailed: no usable response arrived, even after retries.
            ConnectionFailed: no connection could be made, even after retries.
        """
        user = await self.request("GET", urls.WHO_AM_I, into=User, safe=True, deadline=deadline)
        if user.id is None:
            raise ServiceFailed("the response does not contain the account's id")
        return user

    @overload
    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        into: type[T],
        safe: bool = False,
        deadline: datetime | None = None,
    ) -> T: ...

    @overload
    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        into: None = None,
        safe: bool = False,
        deadline: datetime | None = None,
    ) -> Any: ...

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        into: type[Any] | None = None,
        safe: bool = False,
        deadline: datetime | None = None,
    ) -> Any:
        """Call an operation of the service for which the client has no method (specification 4.3).

        Args:
            method: the HTTP method.
            path: the percent-encoded path. The path begins with ``/`` and is appended to ``base_url``
                unchanged.
            json: the JSON value to send, if any. `Decimal` numbers are sent exactly.
            into: the model to read the response into. By default, the decoded JSON is returned, with exact
                numbers.
            safe: whether the request may be sent more than once; if so, it is retried when its response is
                lost. Only GET and HEAD requests may be ``safe``.
            deadline: an aware time after which the caller stops waiting. The deadline may shorten, but never
                extends, other time limits. If the deadline passes after the request was sent, the result is
                the same as after a timeout.

        Raises:
            ValueError: ``path`` is outside ``base_url`` or is the create-order path, or ``deadline`` is not
                an aware time.
            Expired: ``deadline`` passed before anything was sent.
            Refused: the service refused the request.
            ServiceFailed: a ``safe`` request got no usable response, even after retries.
            OutcomeUnknown: a request that was not ``safe`` may have been processed.
            ConnectionFailed: nothing was sent.
        """
        wanted = ServiceRequest(
            method=checked_method(method, safe=safe),
            path=urls.checked_path(path, below=self._base_url),
            content=encoded(json),
            into=into,
            safe=safe,
            deadline=self._on_clock(deadline),
        )
        task = asyncio.current_task()
        if not (self._calls.runs(task) or self._recoveries.runs(task)):
            self._refuse_unless_open()  # Hooks may send reads even while the client closes.
            self._recoveries.begin()
        return await self._requests.send(wanted)

    def _on_clock(self, deadline: datetime | None) -> float:
        moment = to_moment(deadline)
        if why := moment_problem(moment):
            raise ValueError(f"deadline: {why}")
        return on_clock(self._context.clock, moment)

    def _refuse_unless_open(self, key: str | None = None) -> None:
        if self._closed:
            raise ClientClosed("the client is closed", key=key, order_may_exist=key is not None)
        if why := self._affinity.misuse():
            raise WrongEventLoop(why, key=key, order_may_exist=key is not None)

    # --- life cycle -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the client and its journal. Closing the client does not close a journal that you passed.

        Raises:
            JournalFailed: the journal cannot be opened.
            ClientClosed: the client was closed, or is open in another event loop or process.
        """
        self._refuse_unless_open()
        await self._context.journal.open()
        await self._operators.prepare()
        self._context.transport.open()
        self._recoveries.begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, timeout: Duration = 35.0) -> None:  # noqa: ASYNC109 - the contract's own name
        """Close the client. This method may be called more than once.

        Calls made after `close` raise `ClientClosed`. Running calls and `recover` runs have ``timeout``
        seconds to finish before they are stopped. If a stopped call has sent its request, its order is
        recorded as in doubt. If a stopped call has sent nothing, its hooks are undone and it raises
        `ClientClosed`. An undo that is interrupted stays pending. In a forked process, no connection is
        closed, because the connections belong to the parent process.

        Args:
            timeout: how many seconds to wait for running calls and `recover` runs. The default timeout is
                longer than the default retry deadline.

        Raises:
            WrongEventLoop: the client is in use in another event loop; close it there.
        """
        if self._affinity.is_forked:
            self._closed = True
            return
        if not self._affinity.is_gone:
            await self._finish_calls(timeout)
        else:
            self._closed = True
            await self._close_connections()

    async def _finish_calls(self, timeout: Duration) -> None:  # noqa: ASYNC109 - passed on from `close`
        if why := self._affinity.misuse():
            raise WrongEventLoop(why, order_may_exist=False)
        loop = asyncio.get_running_loop()
        end = loop.time() + duration("timeout", timeout)
        self._closed = True
        try:
            wait = end - loop.time()
            await asyncio.gather(
                self._calls.finish(wait=wait, grace=CLOSING_GRACE),
                self._recoveries.finish(wait=wait, grace=CLOSING_GRACE),
            )
            # Other requests end last, because the hooks of a call may need them.
            await self._requests.finish(wait=max(0.0, end - loop.time()))
        finally:
            self._calls.cut_off()  # Even if this task is cancelled, nothing may be sent later.
            self._recoveries.cut_off()
            self._requests.cut_off()
            self._context.tokens.close()
            await self._close_connections()

    async def _close_connections(self) -> None:
        await self._context.transport.close()
        if self._owns_journal:
            await self._context.journal.store.close()

    def __del__(self) -> None:
        in_use = not self._closed and (self._context.transport.is_open or self._recoveries.begun)
        if in_use and not self._affinity.is_forked:
            self._recoveries.abandon()
            warnings.warn(
                "a TransferClient was never closed: use 'async with TransferClient(...)', "
                "or 'await client.close()'",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


# --- for the package's own workers -------------------------------------------------------------------
# These are functions, because every method of the client is part of its public interface.


def context_of(client: TransferClient) -> ClientCore:
    """Return the journal, scope, hooks and settings that all calls of ``client`` share."""
    return client._context


def worker_call(client: TransferClient, request: OrderRequest) -> OrderCall:
    """Create a worker's ``create_order`` call. Pass the call to `run_call`, then read the call's progress.

    The call uses ``once``, because the broker may deliver the message again.

    Raises:
        InvalidOrder: an argument is invalid; nothing was claimed, held or sent. ``.problems`` lists every
            invalid field.
        ClientClosed: the client is closed, or open in another event loop or process.
    """
    call = client._call(request, once=True)
    call.is_published = True
    return call


async def run_call(client: TransferClient, call: OrderCall) -> Order:
    """Run ``call``, and return its order.

    Raises:
        TransferError: the call ended without an order; see `TransferClient.create_order`.
    """
    return await client._calls.run(call)


def _journal_at(address: str) -> Journal:
    seal = seal_from_env()
    try:
        return journal_at(address, seal=seal)
    except ValueError as error:
        raise ValueError(f"TRANSFER_JOURNAL: {error}") from None


# --- loop affinity -----------------------------------------------------------------------------------
# A client works only in the process and the event loop in which it was first used.
#
# Only that loop watches the client's connections. In another loop they seem dead, and every call would fail
# as if the network were down. A forked process shares the connections with its parent, so either process
# could receive a response.


_FORKED = (
    "the client was used before a fork, and its connections belong to the parent process: create a client in "
    "each process"
)
_OTHER_LOOP = (
    "the client was first used in another event loop: create a client for each "
    "loop and thread (asyncio.run starts a new loop each time), or run the call in the client's own loop "
    "(asyncio.run_coroutine_threadsafe)"
)


class LoopAffinity:
    """Ties a client to the process and event loop in which it is first used."""

    __slots__ = ("_loop", "_process")

    def __init__(self) -> None:
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_forked(self) -> bool:
        """Return whether this process was forked from the client's process."""
        return self._loop is not None and self._process != os.getpid()

    @property
    def is_gone(self) -> bool:
        """Return whether the client's event loop is closed."""
        return self._loop is not None and self._loop.is_closed()

    def misuse(self) -> str | None:
        """Return why the client cannot be used here and what to do, or None if it can be used.

        The first use binds the client to this process and event loop.
        """
        if self._loop is None:
            self._process, self._loop = os.getpid(), asyncio.get_running_loop()
            return None
        if self._process != os.getpid():  # There may be no running loop in this process.
            return _FORKED
        return None if self._loop is asyncio.get_running_loop() else _OTHER_LOOP
