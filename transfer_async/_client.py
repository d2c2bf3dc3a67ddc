"""The session manager that callers hold: it checks what they say, carries their calls, closes in order."""

from __future__ import annotations

import asyncio
import os
import ssl as tls
import warnings
from collections.abc import AsyncGenerator, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

import aiohttp

from transfer_async._converters import converter
from transfer_async._http import fetch, retry, urls
from transfer_async._http.bearer import Token, TokenSource
from transfer_async._http.rate import Rate
from transfer_async._http.retry import RetryPolicy
from transfer_async._http.transport import Timeouts, Transport
from transfer_async._models import keys, texts
from transfer_async._models.errors import ClientClosed, OpenElsewhere, ServiceFailed
from transfer_async._models.events import Observer, Observers
from transfer_async._models.requests import (
    NewOrder,
    OrderIntent,
    OrderRequest,
    PersonName,
    call_problems,
    moment_problem,
    refuse_call,
)
from transfer_async._models.responses import Order, User
from transfer_async._pipeline import settings
from transfer_async._pipeline.batch import Batch, OrderResult, Requests
from transfer_async._pipeline.call import Call, InFlight, fresh_id
from transfer_async._pipeline.cancellation import Cancellation
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.create_order import create_order
from transfer_async._pipeline.hooks import Hook, checked_hooks
from transfer_async._pipeline.key_views import Doubt
from transfer_async._pipeline.operators import Operators
from transfer_async._pipeline.recovery import RecoveryReport
from transfer_async._pipeline.recovery_runs import Recoveries
from transfer_async._pipeline.resolution import Resolver
from transfer_async._pipeline.settings import ClientSettings
from transfer_async._pipeline.work import Work
from transfer_async._support.clock import Clock, Duration, duration
from transfer_async._support.deadlines import NEVER, on_clock
from transfer_async._support.loop_affinity import Home
from transfer_async._support.validators import check_count
from transfer_async.journal.address import journal_at, seal_from_env
from transfer_async.journal.entries import Step
from transfer_async.journal.memory import MemoryJournal
from transfer_async.journal.protocol import Journal, KeyRecord, checked_journal, record_of

T = TypeVar("T")

CLOSING_GRACE = 5.0
"""Seconds that what was cut off by ``close`` gets to write down where it stands."""


class TransferClient:
    """A client of the transfer order service, for one base address and one account.

    Use it as ``async with TransferClient(...) as client:``, or ``await client.close()`` yourself.
    It may be shared by any number of tasks of one event loop: the one that it is first used in.

    Args:
        base_url: scheme, host and optional path prefix; https, unless the host is loopback.
        token: the bearer token, or an async callable that returns one; it is called at first
            use and again after a 401, once for all calls.
        hooks: run in this order before each order is sent; the hold is the last.
        journal: where keys and outcomes are recorded; a `MemoryJournal` of its own by default.
        scope: names the service in the journal; the normalised ``base_url`` by default.
        retry: see `RetryPolicy`.
        timeouts: see `Timeouts`.
        resolve: the bank's own means to learn what became of an order in doubt: an async callable
            of the intent and the `OutcomeUnknown`; returns the `Order`, its id, `NO_ORDER`, or None.
        settle_after: seconds after the last possible send before `NO_ORDER` is believed.
        four_eyes: the scope is to demand, of every `Operators` and from now on, that what one person
            decides is approved by another; see `Operators`. ``resolve`` is no person, and asks nobody.
        lease: seconds that a worker's claim outlives its last sign of life; at least 1.5 times
            the retry deadline, and an hour at most.
        recover_every: seconds between two runs of `recover` that the client makes by itself, from its
            first use on; the first comes after a random share of them. None: whoever holds it calls it.
        observers: called with every event; see `transfer_async._models.events`.
        session: an ``aiohttp.ClientSession`` to use instead of its own; never closed, and its
            redirects, ``raise_for_status``, middlewares and ``ssl`` are overridden for each request.
        ssl: the TLS context; the default one verifies the service's certificate, also where a
            borrowed session's connector would not.
        proxy: the address of an HTTP proxy.
        max_response_bytes: how much of an answer's body, decompressed, is read at most.
        max_connections: how many connections the pool for orders, and the one for everything
            else, may each hold at once; a borrowed session brings its own limit.
        rate: how often a request to create an order leaves at most; see `Rate`. Orders wait for their turn
            in the order in which they came, before their hold.
        clock: time, waiting and chance; for tests.

    Raises:
        ValueError: names the argument and the rule.
    """

    _closed = True  # until the constructor has come to its end

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
        settle_after: Duration = 300.0,
        four_eyes: bool = False,
        lease: Duration = 60.0,
        recover_every: Duration | None = None,
        observers: Sequence[Observer] = (),
        session: aiohttp.ClientSession | None = None,
        ssl: tls.SSLContext | None = None,
        proxy: str | None = None,
        max_response_bytes: int = 1 << 20,
        max_connections: int = 512,
        rate: Rate | None = None,
        clock: Clock | None = None,
    ) -> None:
        base_url = urls.normalised(base_url)
        times = settings.Times(
            retry=RetryPolicy() if retry is None else retry,
            timeouts=Timeouts() if timeouts is None else timeouts,
            lease=lease,
            settle_after=settle_after,
            recover_every=recover_every,
            clock=Clock() if clock is None else clock,
        )
        limits = settings.Limits(
            max_response_bytes=max_response_bytes, max_connections=max_connections, rate=rate
        )
        self._base_url, self._owns_journal = base_url, journal is None
        self._context = settings.context(
            times,
            limits,
            scope=base_url if scope is None else texts.checked_scope(scope),
            journal=MemoryJournal(clock=times.clock) if journal is None else checked_journal(journal),
            hooks=checked_hooks(hooks),
            transport=self._transport_to(base_url, times, limits, session=session, ssl=ssl, proxy=proxy),
            tokens=TokenSource(token, timeout=times.timeouts.hook, user_agent=settings.USER_AGENT),
            observers=Observers(observers),
            resolve=resolve,
        )
        self._prepare(recover_every=times.recover_every, four_eyes=four_eyes)

    def _prepare(self, *, recover_every: float | None, four_eyes: bool) -> None:
        converter.prepare()
        retry.prepare()
        self._home = Home()
        self._calls = InFlight(partial(create_order, self._context))
        self._reads = fetch.UnderWay()
        self._recoveries = Recoveries(self._context, every=recover_every)
        self._operators = Operators(
            self._context.journal.store,
            self._context.journal.scope,
            settle_after=self._context.settle_after,
            four_eyes=four_eyes,
            observers=[self._context.observers.tell],
            clock=self._context.clock,
        )
        for hook in self._context.hooks:
            bind = getattr(hook, "bind", None)
            if callable(bind):
                bind(self)
        self._closed = False

    def _transport_to(
        self, base_url: str, times: settings.Times, limits: settings.Limits, **options: Any
    ) -> Transport:
        """The way to the service; a client for tests has one of its own."""
        return settings.transport(base_url, times, limits, **options)

    @classmethod
    def from_env(cls, **settings: Unpack[ClientSettings]) -> Self:
        """Make a client from ``TRANSFER_BASE_URL``, ``TRANSFER_API_TOKEN`` and, if set, ``TRANSFER_JOURNAL``.

        The journal is a path, or a ``postgresql://`` address; it is the client's own, and closed with it.
        ``TRANSFER_SEAL`` may name the file of a `KeySeal`'s keys, which seal what it stores of persons.

        Args:
            settings: everything else, as the constructor takes it.

        Raises:
            ValueError: a variable is missing, or names no journal that could be used.
        """
        missing = [name for name in ("TRANSFER_BASE_URL", "TRANSFER_API_TOKEN") if not os.environ.get(name)]
        if missing:
            raise ValueError(f"{' and '.join(missing)}: must be set in the environment")
        where, token = os.environ["TRANSFER_BASE_URL"], os.environ["TRANSFER_API_TOKEN"]
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
        """Create one order, at most once for its key (specification 4.1).

        Args:
            order: what to create.
            key: the caller's own id for it, 1 to 200 printable characters in Unicode's NFC, none of
                them unseen, and no blank at either end; the client makes one
                otherwise. Whoever may cancel the call passes one.
            beneficiary: who the customer says the beneficiary is, for the hooks.
            held: the reference of a hold that the bank has placed itself.
            send_before: an aware time after which it must not be sent.
            deadline: an aware time after which the caller waits no longer. It only shortens: hooks, pauses,
                ``resolve``, and the request itself. What it ends before the request was handed over is
                never sent (`Expired`), and undone; what it ends later is unknown, and the hold is kept.
                A write of the journal and an undo are not cut off, so the call may end a little later.
            once: this is the same wish whenever it comes (a message, a line of a file): if the service
                has refused it before, that refusal is raised again, without a request. Otherwise a
                call after a certain no is a new wish.

        Returns:
            The order as the service recorded it; the same one again for a key that has it already.

        Raises:
            InvalidOrder: nothing was claimed, held or sent; names every field at fault.
            TransferError: see `transfer_async._models.errors`; ``outcome`` and ``order_may_exist`` say
                what is certain.
        """
        # No name for what it hands on: a name would keep it for as long as the order is on its way.
        return await self._carry(
            self._call(OrderRequest(order, key, beneficiary, held, send_before, deadline), once=once)
        )

    def _call(self, request: OrderRequest, *, once: bool) -> Call:
        key = request.key
        refuse_call(
            call_problems(
                order=request.order,
                key=key,
                beneficiary=request.beneficiary,
                held=request.held,
                send_before=request.send_before,
                deadline=request.deadline,
            ),
            key=key,
        )
        self._refuse_unless_open(key)
        intent_id = fresh_id()
        intent = OrderIntent(
            id=intent_id,
            key=intent_id if key is None else key,
            order=request.order,
            beneficiary=request.beneficiary,
            held=request.held,
            send_before=request.send_before,
        )
        clock, moment = self._context.clock, request.deadline
        deadline = NEVER if moment is None else on_clock(clock, moment)
        return Call(
            client_made=key is None,
            once=once,
            work=Work(intent=intent, began=clock.now(), deadline=deadline),
            cancellation=Cancellation(),
        )

    def _carry(self, call: Call) -> Coroutine[Any, Any, Order]:
        self._recoveries.begin()
        return self._calls.carry(call)

    def create_orders(
        self, requests: Requests, *, concurrency: int = 16, once: bool = False
    ) -> AsyncGenerator[OrderResult, None]:
        """Create many orders, some at a time, from an input that may be endless.

        Args:
            requests: an iterable or async iterable of `OrderRequest`; the next is taken only when
                there is room for it.
            concurrency: how many orders are in flight at most.
            once: as for `create_order`.

        Returns:
            An async iterator of one `OrderResult` each, in order of completion; a failure never
            stops the others. Leaving the loop early lets what is in flight come to its end: close
            the iterator (``contextlib.aclosing``) to wait for that.

        Raises:
            ValueError: ``concurrency`` is not a whole number, 1 or more.
            TypeError: ``requests`` cannot be iterated.
        """
        check_count("concurrency", concurrency)

        async def create(request: OrderRequest) -> Order:
            return await self._carry(self._call(request, once=once))

        return Batch(create, requests, concurrency=concurrency).results()

    async def known(self, key: str) -> KeyRecord | None:
        """What is on record of ``key``: ask before you place a hold of your own for it.

        Raises:
            InvalidOrder: nothing is, and it cannot be a key.
            JournalFailed: the journal could not be read.
        """
        self._refuse_unless_open(key)
        self._recoveries.begin()
        key = texts.to_text(key)
        entry = await self._context.journal.read(key)
        if entry is None:
            keys.refuse(key)
            return None
        return record_of(entry)

    async def recover(self) -> RecoveryReport:
        """Work off what is left over: abandoned claims, doubts, and undos that are owed.

        Raises:
            JournalFailed: the journal could not be read or written.
            ClientClosed: the client is closed, or was, and would not wait for the end.
        """
        self._refuse_unless_open()
        self._recoveries.begin()
        return await self._recoveries.run()

    @property
    def retry_budget(self) -> float:
        """What is left of the `RetryBudget`, in tokens; with too few of them nothing is sent again."""
        return self._context.bucket.left

    # --- operators ------------------------------------------------------------------------------

    @property
    def operators(self) -> Operators:
        """All that people can do with the journal; the methods below are the best-known of it.

        Raises:
            ClientClosed: the client is closed.
        """
        self._refuse_unless_open()
        return self._operators

    async def in_doubt(self) -> tuple[Doubt, ...]:
        """Every key in doubt, oldest first; see `Operators.in_doubt`."""
        self._refuse_unless_open()
        return await self._operators.in_doubt()

    async def resolve(
        self, key: str, *, order_id: str, by: str, reason: str, undone: bool = False
    ) -> KeyRecord:
        """Write down that the order of a doubt exists; see `Operators.resolve`."""
        self._refuse_unless_open(key)
        return await self._operators.resolve(key, order_id=order_id, by=by, reason=reason, undone=undone)

    async def refute(self, key: str, *, by: str, reason: str, undone: bool = False) -> KeyRecord:
        """Write down that the order of a doubt is not, and cannot be any more; see `Operators.refute`."""
        self._refuse_unless_open(key)
        return await self._operators.refute(key, by=by, reason=reason, undone=undone)

    async def history(self, key: str) -> tuple[Step, ...]:
        """Every move of the key that is remembered, oldest first; see `Operators.history`."""
        self._refuse_unless_open(key)
        return await self._operators.history(key)

    async def prune(self, *, before: datetime) -> int:
        """Forget keys that ended before then, and say how many; see `Operators.prune`."""
        self._refuse_unless_open()
        return await self._operators.prune(before=before)

    # --- everything else ------------------------------------------------------------------------

    async def who_am_i(self, *, deadline: datetime | None = None) -> User:
        """The account behind the token (specification 4.2); its ``id`` is needed in later steps.

        Args:
            deadline: an aware time after which the caller waits no longer; see `request`.

        Raises:
            ValueError: ``deadline`` is no such time.
            Expired: it passed before anything was sent.
            Unauthorized: the token is not (or no longer) good.
            ServiceFailed: no usable answer, after the retries.
            ConnectionFailed: no connection, after the retries.
        """
        user = await self.request("GET", urls.WHO_AM_I, into=User, safe=True, deadline=deadline)
        if user.id is None:
            raise ServiceFailed("the answer does not say who the caller is")
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
        """Call another of the service's operations, which the specification does not show (section 4.3).

        Args:
            method: the HTTP method.
            path: begins with ``/``, percent-encoded, appended to ``base_url`` as it is.
            json: what to send, if anything; numbers as `Decimal` are sent exactly.
            into: the model to read the answer into; decoded JSON, exact, by default.
            safe: for GET and HEAD: doing it twice does no harm, so lost answers are retried.
            deadline: an aware time after which the caller waits no longer; it only shortens. A request
                that it ends once it was sent ends as any that is not answered in time.

        Raises:
            ValueError: the path leads elsewhere, or to create-order; or ``deadline`` is no such time.
            Expired: ``deadline`` passed before anything was sent.
            Refused: the service answered no.
            ServiceFailed: with ``safe``: no usable answer, after the retries.
            OutcomeUnknown: without ``safe``: it may have been processed.
            ConnectionFailed: nothing was sent.
        """
        wanted = fetch.Wanted(
            method=fetch.checked_method(method, safe=safe),
            path=urls.checked_path(path, below=self._base_url),
            content=fetch.encoded(json),
            into=into,
            safe=safe,
            deadline=self._on_clock(deadline),
        )
        task = asyncio.current_task()
        if not (self._calls.carries(task) or self._recoveries.carries(task)):
            self._refuse_unless_open()  # a hook may look something up to the end
            self._recoveries.begin()
        with self._reads:
            return await fetch.fetch(self._context, wanted, cut=lambda: self._reads.cut)

    def _on_clock(self, deadline: datetime | None) -> float:
        moment = texts.to_moment(deadline)
        if why := moment_problem(moment):
            raise ValueError(f"deadline: {why}")
        return on_clock(self._context.clock, moment)

    def _refuse_unless_open(self, key: str | None = None) -> None:
        if self._closed:
            raise ClientClosed("the client is closed", key=key, order_may_exist=key is not None)
        if why := self._home.elsewhere():
            raise OpenElsewhere(why, key=key, order_may_exist=key is not None)

    # --- life cycle -----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the client, and its journal, if it is not open yet: one that it was given stays open after it.

        Raises:
            JournalFailed: the journal cannot be opened.
            ClientClosed: it was closed, or is open elsewhere.
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
        """Close the client; may be called again.

        New calls are refused; what is in flight is waited for, then cut off: what was sent is recorded
        as in doubt, what was not is undone and ends as `ClientClosed`. So are the runs of `recover`:
        an undo that is cut off stays owed. In a forked process there is nothing to close: what the client
        holds is its parent's.

        Args:
            timeout: seconds to wait for what is in flight; longer than the retry deadline by default.

        Raises:
            OpenElsewhere: it is in use in another event loop, and must be closed there.
        """
        if self._home.is_forked:
            self._closed = True
            return
        if not self._home.is_gone:
            await self._wind_up(timeout)
        else:
            self._closed = True
            await self._let_go()

    async def _wind_up(self, timeout: Duration) -> None:  # noqa: ASYNC109 - of `close`
        if why := self._home.elsewhere():
            raise OpenElsewhere(why, order_may_exist=False)
        loop = asyncio.get_running_loop()
        end = loop.time() + duration("timeout", timeout)
        self._closed = True
        try:
            patience = end - loop.time()
            await asyncio.gather(
                self._calls.finish(patience=patience, grace=CLOSING_GRACE),
                self._recoveries.finish(patience=patience, grace=CLOSING_GRACE),
            )
            # Only now: a call's hook may still have had something to look up.
            await self._reads.finish(patience=max(0.0, end - loop.time()))
        finally:
            self._calls.cut_off()  # whoever cancels this does not wait, and nothing is sent behind its back
            self._recoveries.cut_off()
            self._reads.cut = True
            self._context.tokens.close()
            await self._let_go()

    async def _let_go(self) -> None:
        await self._context.transport.close()
        if self._owns_journal:
            await self._context.journal.store.close()

    def __del__(self) -> None:
        in_use = not self._closed and (self._context.transport.is_open or self._recoveries.begun)
        if in_use and not self._home.is_forked:
            self._recoveries.abandon()
            warnings.warn(
                "a TransferClient was never closed: use 'async with TransferClient(...)', "
                "or 'await client.close()'",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )


# --- for the package's own workers: functions, for a client's methods are a promise to everybody ---


def context_of(client: TransferClient) -> Context:
    """The parts of ``client``: its journal, its scope, its hooks."""
    return client._context


def new_call(client: TransferClient, request: OrderRequest, *, once: bool) -> Call:
    """A call of ``create_order`` that `carry` runs, and that knows afterwards what was done.

    Raises:
        InvalidOrder: nothing was claimed, held or sent; names every field at fault.
        ClientClosed: the client is closed, or open elsewhere.
    """
    return client._call(request, once=once)


async def carry(client: TransferClient, call: Call) -> Order:
    """Run ``call`` to its end.

    Raises:
        TransferError: as `TransferClient.create_order` does.
    """
    return await client._carry(call)


def _journal_at(address: str) -> Journal:
    seal = seal_from_env()
    try:
        return journal_at(address, seal=seal)
    except ValueError as error:
        raise ValueError(f"TRANSFER_JOURNAL: {error}") from None
