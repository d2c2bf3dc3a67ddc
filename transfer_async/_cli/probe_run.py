"""Run the requested levels of the probe, send the requests of level 0, and propose client settings."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import attrs
import msgspec
from attrs import evolve, frozen

from transfer_async._cli.options import journal_named
from transfer_async._cli.output import Say
from transfer_async._cli.probe_http import BUSY, Request, Response, Service, check_user, request_ids
from transfer_async._cli.probe_orders import (
    REFUSALS,
    Cap,
    Ledger,
    LevelOrders,
    Plan,
    locked,
    order_announcement,
    send_orders,
)
from transfer_async._http.classify import (
    ORDER_ANSWERS,
    SERVICE_REFUSALS,
    WRONG_TOKEN,
    Classification,
    classify_response,
)
from transfer_async._http.retry import REFUSED, RetryPolicy
from transfer_async._http.transport import POOL_KEEPALIVE, ExchangeResult, Timeouts
from transfer_async._http.urls import CREATE_ORDER, WHO_AM_I
from transfer_async._models.requests import NewOrder
from transfer_async.sandbox import SeenAnswer, SeenConnection, SeenLimits, ServiceProfile, load_profile
from transfer_async.sandbox import profile as names
from transfer_async.sandbox.profile import IDLE


@frozen(kw_only=True)
class OrderSettings:
    """The settings of levels 1 and 2; see `Plan`, `Cap` and `Ledger`."""

    order: NewOrder
    apart: Decimal
    cap: Cap
    journal: Path


@frozen(kw_only=True)
class ProbeRun:
    """A run of the probe."""

    service: Service
    levels: frozenset[int]  # the levels to run
    limits: ReadLimits  # the limits of level 0
    orders: OrderSettings | None  # the settings of levels 1 and 2; None if neither is run
    path: Path  # the profile's file; an existing profile is extended
    say: Say  # takes a line of output
    confirm: Callable[[str], bool]  # asks a question; returns true for yes

    async def run(self) -> None:
        """Run the levels, save the profile, and print the proposed settings.

        Raises:
            ValueError: an option is invalid, or a level was not confirmed; nothing more was sent.
            OSError: the profile cannot be read or written.
            Stopped: the probe must not send anything more.
        """
        if LEVEL in self.levels:
            await self._run_reads()
        if self.orders is not None:
            with locked(self.orders.journal):
                async with journal_named(str(self.orders.journal)) as journal:
                    ledger = Ledger(journal, scope=self.service.base_url)
                    for level in sorted(self.levels - {LEVEL}):
                        await self._run_orders(self.orders, ledger, level)
        for line in as_lines(proposed(await self._load())):
            self.say(line)
        self.say(f"profile: {self.path}")

    async def _run_reads(self) -> None:
        await self._begin(read_announcement(self.limits))
        seen, before = await read_service(self.service, self.limits), await self._load()
        levels, answers = (*before.levels, LEVEL), {**before.answers, **seen.answers}
        await self._save(evolve(seen, levels=tuple(sorted({*levels})), answers=answers))
        for name, answer in seen.answers.items():
            self.say(f"  {name}: {answer.status or 'no response'}")

    async def _run_orders(self, settings: OrderSettings, ledger: Ledger, level: int) -> None:
        profile, currency = await self._load(), settings.order.poster_currency
        plan = Plan(order=settings.order, apart=settings.apart, limits=profile.limits)
        sent = await ledger.sent(plan)
        sent_names = {item.name for item in sent}
        answers = {
            name: answer
            for name, answer in profile.answers.items()
            if name in sent_names and is_answer(answer)
        }
        recorded = ledger.recorded(item for item in sent if item.name not in answers)
        orders = LevelOrders(plan=plan, cap=settings.cap, level=level, sent=sent, answers=recorded | answers)
        if level != REFUSALS and currency not in profile.limits:
            self.say(
                f"level 2: the limits of {currency} are not tested, because the profile does "
                "not contain them; to record them, run level 0"
            )
        await self._begin(order_announcement(orders))
        await self.service.check()
        if recorded:
            await self._save(evolve(profile, answers={**profile.answers, **recorded}))
        await send_orders(self.service, ledger, orders, keep=self._keep_answer, say=self.say)
        profile = await self._load()
        await self._save(evolve(profile, levels=tuple(sorted({*profile.levels, level}))))

    async def _begin(self, lines: list[str]) -> None:
        for line in lines:
            self.say(line)
        if not await asyncio.to_thread(self.confirm, "begin?"):
            raise ValueError("not confirmed: no further request was sent")

    async def _load(self) -> ServiceProfile:
        try:
            return await asyncio.to_thread(load_profile, self.path)
        except FileNotFoundError:
            return ServiceProfile()

    async def _save(self, profile: ServiceProfile) -> None:
        await asyncio.to_thread(profile.save, self.path)

    async def _keep_answer(self, name: str, answer: SeenAnswer) -> None:
        profile = await self._load()
        await self._save(evolve(profile, answers={**profile.answers, name: answer}))
        self.say(f"  {name}: {answer.status or 'no response'}, order: {answer.order}")


def is_answer(seen: SeenAnswer) -> bool:
    """Return false if a response only reports a busy service or a wrong token."""
    return seen.status not in (*BUSY, 401) and not seen.unauthorized


# --- level 0 -----------------------------------------------------------------------------------------
# Level 0 finds out everything that needs no order.


LEVEL = 0
TIMES = 2  # Each request is sent twice, because a header that is an id has a different value each time.


@frozen(kw_only=True)
class ReadLimits:
    """The limits of level 0: requests on one connection, and seconds to watch an idle connection."""

    requests: int = 20  # maximum requests on one connection
    idle: float = 60.0  # maximum seconds to watch an idle connection

    @property
    def steps(self) -> tuple[float, ...]:
        """The idle times, in seconds, after which the connection is checked."""
        return tuple(step for step in IDLE if step <= self.idle)


def read_announcement(limits: ReadLimits) -> list[str]:
    """Return the lines that announce the requests of level 0."""
    count = TIMES * len(names.READS)
    idle = max(limits.steps, default=0.0)
    return [
        "level 0: reads only; no order, no cost",
        (f"  {count} requests: who-am-i with the right token, a wrong token and no token; an unknown path;"),
        ("    GET on the create-order path; each request is sent twice, each time on a new connection"),
        (
            f"  up to {limits.requests} more requests: who-am-i, repeated on one connection "
            "until the service closes the connection"
        ),
        (f"  1 more request: who-am-i, on a connection that then stays idle for up to {idle:g} s"),
        f"  {count + limits.requests + 1} requests at most",
    ]


async def read_service(service: Service, limits: ReadLimits) -> ServiceProfile:
    """Send the requests of level 0 and return the resulting profile.

    Raises:
        Stopped: the service cannot be reached, rejects the token, or does not respond as the client expects.
    """
    answers: dict[str, SeenAnswer] = {}
    responses: list[Response] = []
    for name, request in _read_requests(service).items():
        for _ in range(TIMES):
            response, answers[name] = await service.ask(request, answers)
            responses.append(response)
            if name == names.WHO_AM_I:
                check_user(response)
    return ServiceProfile(
        answers=answers,
        request_ids=request_ids(responses),
        connection=await _watch_connection(service, limits),
        limits=_currency_limits(responses[0]),
    )


def _read_requests(service: Service) -> Mapping[str, Request]:
    wrong_token = f"probe-{secrets.token_hex(8)}"
    unknown_path = WHO_AM_I.rpartition("/")[0] + "/probe-there-is-no-such-path"
    return {
        names.WHO_AM_I: service.request("GET", WHO_AM_I),
        names.WRONG_TOKEN: service.request("GET", WHO_AM_I, token=wrong_token),
        names.NO_TOKEN: service.request("GET", WHO_AM_I, token=""),
        names.UNKNOWN_PATH: service.request("GET", unknown_path),
        names.WRONG_METHOD: service.request("GET", CREATE_ORDER),
    }


async def _watch_connection(service: Service, limits: ReadLimits) -> SeenConnection:
    request = service.request("GET", WHO_AM_I)
    seen = await _count_requests(service, request, limits.requests)
    open_after, closed_by = 0.0, None
    connection = service.connection()
    try:
        is_kept = (await connection.send(request)).is_kept and seen.requests != 1
        for step in limits.steps if is_kept else ():  # A connection closed at once was not idle.
            await service.clock.sleep(step - open_after)
            if not connection.is_open:
                closed_by = step
                break
            open_after = step
    finally:
        connection.close()
    return evolve(seen, open_after=open_after, closed_by=closed_by)


async def _count_requests(service: Service, request: Request, most: int) -> SeenConnection:
    """Count requests until the service closes the connection, and check if a response announced the close."""
    connection = service.connection()
    try:
        for number in range(1, most + 1):
            response = await connection.send(request)
            if response.status is None:
                return SeenConnection(asked=most, requests=number - 1 or None)
            if not (response.is_kept and connection.is_open):
                return SeenConnection(asked=most, requests=number, announced=not response.is_kept)
            if response.is_busy:  # The service limits requests, not this connection.
                return SeenConnection(asked=number)
    finally:
        connection.close()
    return SeenConnection(asked=most)


def _currency_limits(response: Response) -> dict[str, SeenLimits]:
    try:
        document = json.loads(response.body, parse_float=Decimal, parse_int=Decimal)
        found = {
            currency["currency_code"]: (currency["min_amount"], currency["max_amount"])
            for currency in document["currencies"]
        }
    except (ValueError, TypeError, KeyError, RecursionError, InvalidOperation):
        return {}
    return {
        code: SeenLimits(least=least, greatest=greatest)
        for code, (least, greatest) in found.items()
        if _is_code(code) and _are_amounts((least, greatest))
    }


def _is_code(code: object) -> bool:
    return isinstance(code, str) and 2 <= len(code) <= 10 and code.isascii() and code.isalnum()


def _are_amounts(values: Iterable[object]) -> bool:
    return all(isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 20 for value in values)


# --- proposed settings -------------------------------------------------------------------------------
# The client settings that a profile suggests, each with its reason.


MAX_WAIT = 300.0  # The proposal ignores a longer ``Retry-After`` (seconds).
SLOW = 4.0  # A timeout is this many times the slowest response seen, because some responses are slower.

_DEFAULT = "the default; no response suggests a different value"


@frozen(kw_only=True)
class Proposal:
    """The proposed settings with their reasons, and notes about problems that no setting can solve."""

    retry: RetryPolicy
    timeouts: Timeouts
    reasons: dict[str, str]
    notes: tuple[str, ...] = ()


def proposed(profile: ServiceProfile) -> Proposal:
    """Return the client settings that a profile suggests."""
    base = RetryPolicy()
    refused, refused_reason = _refused(profile)
    timeouts, timeout_reason = _timeouts(profile)
    waits = [wait for wait in map(_retry_after, profile.answers.values()) if wait <= MAX_WAIT]
    wait = max(waits, default=0.0)
    is_long = wait > base.max_delay
    room = max(
        timeouts.total + 5.0 if timeouts != Timeouts() else 0.0, 2 * wait + timeouts.total if wait else 0.0
    )
    policy = evolve(
        base,
        refused=refused,
        max_delay=wait if is_long else base.max_delay,
        deadline=max(base.deadline, room),
    )
    reasons = {
        "attempts": _DEFAULT,
        "first_delay": _DEFAULT,
        "not_processed": 'the default: a probe cannot prove that a status means "not processed"; add 503 '
        "only if the service's operator confirms the meaning in writing",
        "refused": refused_reason,
        "sock_read": timeout_reason,
        "total": timeout_reason,
        "max_delay": f"a response contained Retry-After: {wait:g}"
        if is_long
        else "no response contained a longer Retry-After",
        "deadline": "long enough for two attempts and the delay between them"
        if wait
        else "long enough for a response",
    }
    return Proposal(retry=policy, timeouts=timeouts, reasons=reasons, notes=tuple(_notes(profile)))


def _refused(profile: ServiceProfile) -> tuple[frozenset[int], str]:
    """Return the statuses to count as a refusal, and the reason.

    A status is omitted if a response with that status contained an order.
    """
    with_order = {answer.status for answer in profile.answers.values() if answer.order in ("new", "same")}
    taken = REFUSED & {status for status in with_order if status is not None}
    if not taken:
        return REFUSED, "the default: no response with one of these statuses contained an order"
    shown = ", ".join(map(str, sorted(taken)))
    return (
        REFUSED - taken,
        f"the default except {shown}, because a response with this status contained an order",
    )


def _timeouts(profile: ServiceProfile) -> tuple[Timeouts, str]:
    slowest = max((answer.within or 0.0 for answer in profile.answers.values()), default=0.0)
    sock_read = SLOW * slowest
    if sock_read <= Timeouts().sock_read:
        return Timeouts(), f"all responses arrived within {slowest:g} s"
    reason = (
        f"sock_read is {SLOW:g} times the slowest response ({slowest:g} s); total is 5 s more, for connecting"
    )
    return Timeouts(sock_read=sock_read, total=sock_read + 5.0), reason


def _retry_after(answer: SeenAnswer) -> float:
    try:
        found = Decimal(answer.headers.get("retry-after") or 0)
    except InvalidOperation:  # A date: the profile does not keep the response's time.
        return 0.0
    return float(found) if found.is_finite() and found > 0 else 0.0


def _notes(profile: ServiceProfile) -> Iterator[str]:
    answers, connection = profile.answers, profile.connection
    if connection is not None and connection.closed_by is not None and connection.closed_by <= POOL_KEEPALIVE:
        yield (
            f"the service closes an idle connection within {connection.closed_by:g} s, but "
            f"the client keeps idle connections for {POOL_KEEPALIVE:g} s: expect more "
            "orders in doubt. Pass your own session with a shorter keepalive_timeout"
        )
    if connection is not None and connection.requests is not None and not connection.announced:
        yield (
            f"the service closes a connection after {connection.requests} requests without "
            "announcing this: an order sent at that moment would be in doubt. Ask the "
            "service's operator to send Connection: close in the last response, or pass "
            "your own session with force_close=True"
        )
    wrong = answers.get(names.WRONG_TOKEN)
    if wrong is not None and wrong.status is not None and _judged(wrong) is not Classification.WRONG_TOKEN:
        yield (
            f"the service responds to a wrong token with {wrong.status}, which the client "
            "does not report as a wrong token"
        )
    again = answers.get(names.SAME_AGAIN)
    if again is not None:
        yield _duplicates(again, answers.get(names.CUT_AGAIN))
    unclear = [
        name
        for name in names.MUST_BE_REFUSED
        if (answer := answers.get(name)) is not None
        and answer.order in ("none", "unknown")
        and _judged(answer) not in SERVICE_REFUSALS
    ]
    if unclear:
        named = ", ".join(unclear)
        yield (
            "these invalid orders must be refused, but the responses do not prove a refusal; such orders end "
            f"in doubt: {named}"
        )


def _judged(answer: SeenAnswer) -> Classification:
    """Classify a recorded answer as the client would classify the response to an order."""
    body = (
        msgspec.json.encode(WRONG_TOKEN) if answer.unauthorized else b"{}" if answer.body == "json" else b""
    )
    response = ExchangeResult(sent=True, status=answer.status, body=body, intact=True)
    return classify_response(response, RetryPolicy(), ORDER_ANSWERS)


def _duplicates(again: SeenAnswer, after_cut: SeenAnswer | None) -> str:
    if again.order == "new":
        return "the same body twice created two orders: only the key and the journal prevent duplicates"
    shown = "the first order" if again.order == "same" else str(again.status)
    note = (
        f"the response to the repeated body is {shown}; a body is not an idempotency key, so the "
        "client does not rely on this"
    )
    if after_cut is None or again.order == "unknown":
        return note
    if again.order == "none" and again.status == after_cut.status:
        return (
            f"{note}. The order sent on the closed connection exists, because the repeated order was refused"
        )
    return f"{note}. It is not known whether the order sent on the closed connection exists"


def as_lines(proposal: Proposal) -> Iterator[str]:
    """Yield the proposal as lines: each setting with its reason, and all settings as code."""
    yield "proposed settings, for you to check and apply:"
    groups: tuple[tuple[str, Any, Any], ...] = (
        ("retry", proposal.retry, RetryPolicy()),
        ("timeouts", proposal.timeouts, Timeouts()),
    )
    code = []
    for argument, group, defaults in groups:
        changed = []
        for name in (item.name for item in attrs.fields(type(group))):
            value, default = getattr(group, name), getattr(defaults, name)
            change = "" if value == default else f" (default {_shown(default)})"
            if change:
                changed.append(f"{name}={_shown(value)}")
            if name in proposal.reasons:
                yield f"  {name} = {_shown(value)}{change}: {proposal.reasons[name]}"
        code.append(f"  {argument}={type(group).__name__}({', '.join(changed)}),")
    yield from (f"note: {note}" for note in proposal.notes)
    yield "as code:"
    yield from code


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(map(str, sorted(value)))}}})"
    return f"{value:g}" if isinstance(value, float) else str(value)
