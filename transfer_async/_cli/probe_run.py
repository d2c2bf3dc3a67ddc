"""One run of the probe: the levels that were asked for, level 0 itself, and the settings it proposes."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path

import attrs
import msgspec
from attrs import evolve, field, frozen

from transfer_async._cli import probe_http, probe_orders
from transfer_async._cli.options import journal_named
from transfer_async._cli.output import Say
from transfer_async._cli.probe_http import (
    TURNED_AWAY,
    Question,
    RawAnswer,
    Service,
    answered,
    check_who,
    request_ids,
)
from transfer_async._cli.probe_orders import REFUSALS, Cap, Ledger, Plan, Spending, alone
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
from transfer_async.sandbox import (
    SeenAnswer,
    SeenConnection,
    SeenLimits,
    ServiceProfile,
    load_profile,
    profile,
)
from transfer_async.sandbox import profile as ask_cases
from transfer_async.sandbox.profile import IDLE


class Declined(Exception):
    """A person did not say yes."""


@frozen(kw_only=True)
class OrderSettings:
    """What levels 1 and 2 need.

    Args:
        order: a good one.
        apart: see `order_plan.planned`.
        cap: see `order_plan.Cap`.
        journal: the file in which each order is counted before it is sent.
    """

    order: NewOrder
    apart: Decimal
    cap: Cap
    journal: Path


@frozen(kw_only=True)
class ProbeRun:
    """One run.

    Args:
        service: where to.
        levels: which.
        limits: of level 0.
        orders: of levels 1 and 2; None where neither is asked for.
        path: of the profile; an earlier one is gone on with.
        say: takes lines.
        agreed: asks whether to begin; true for yes.
    """

    service: Service
    levels: frozenset[int]
    limits: ReadLimits
    orders: OrderSettings | None
    path: Path
    say: Say
    agreed: Callable[[str], bool]

    async def run(self) -> None:
        """Do it, and tell what it says for the client's settings.

        Raises:
            ValueError: an option is no good; nothing more was sent.
            OSError: the profile cannot be read, or not be written.
            Declined: a person did not say yes.
            level_reads.Stopped: nothing more is sent.
        """
        if LEVEL in self.levels:
            await self._begin(announced(self.limits))
            await self._read()
        if self.orders is not None:
            async with _ledger(self.orders.journal, self.service.base_url) as ledger:
                for level in sorted(self.levels - {LEVEL}):
                    await self._order(self.orders, ledger, level)
        for line in as_lines(proposed(await self._known())):
            self.say(line)
        self.say(f"profile: {self.path}")

    async def _read(self) -> None:
        seen, before = await run(self.service, self.limits), await self._known()
        answers = {**before.answers, **seen.answers}
        await self._keep(attrs.evolve(seen, levels=before.levels, answers=answers))
        for name, answer in seen.answers.items():
            self.say(f"  {name}: {answer.status or 'no answer'}")
        await self._done(LEVEL)

    async def _order(self, orders: OrderSettings, ledger: Ledger, level: int) -> None:
        profile = await self._known()
        plan = Plan(order=orders.order, apart=orders.apart, limits=profile.limits)
        sent = await ledger.sent(plan)
        names = {item.name for item in sent}
        told = {name: one for name, one in profile.answers.items() if name in names and is_answer(one)}
        recorded = await ledger.recorded(item for item in sent if item.name not in told)
        spending = Spending(plan=plan, cap=orders.cap, level=level, sent=sent, known=recorded | told)
        if level != REFUSALS and orders.order.poster_currency not in profile.limits:
            self.say(
                "level 2: who-am-i, asked by level 0, shows no limits of the poster's currency: none is tried"
            )
        await self._begin(probe_orders.announced(spending))
        await probe_http.look(self.service)  # orders for a wrong address or token would be spent in vain
        if recorded:
            await self._keep(attrs.evolve(profile, answers={**profile.answers, **recorded}))
        await probe_orders.run(self.service, ledger, spending, keep=self._keep_answer, say=self.say)
        await self._done(level)

    async def _begin(self, lines: list[str]) -> None:
        for line in lines:
            self.say(line)
        if not await asyncio.to_thread(self.agreed, "begin?"):
            raise Declined("nobody said yes; nothing more was sent")

    # --- the profile ----------------------------------------------------------------------------

    async def _known(self) -> ServiceProfile:
        try:
            return await asyncio.to_thread(load_profile, self.path)
        except FileNotFoundError:
            return ServiceProfile()

    async def _keep(self, profile: ServiceProfile) -> None:
        await asyncio.to_thread(profile.save, self.path)

    async def _keep_answer(self, name: str, answer: SeenAnswer) -> None:
        profile = await self._known()
        await self._keep(attrs.evolve(profile, answers={**profile.answers, name: answer}))
        self.say(f"  {name}: {answer.status or 'no answer'}, order: {answer.order}")

    async def _done(self, level: int) -> None:
        profile = await self._known()
        await self._keep(attrs.evolve(profile, levels=tuple(sorted({*profile.levels, level}))))


def is_answer(seen: SeenAnswer) -> bool:
    """Whether what an earlier run wrote down is an answer, and not that the service had no time for one."""
    return seen.status not in (*TURNED_AWAY, 401) and not seen.unauthorized


@asynccontextmanager
async def _ledger(path: Path, base_url: str) -> AsyncIterator[Ledger]:
    with alone(path):
        async with journal_named(str(path)) as journal:  # sealed, where the environment says so
            yield Ledger(journal, scope=base_url)


# --- level 0 ------------------------------------------------------------------------------------------


LEVEL = 0
TIMES = 2
"""How often each question is asked: what differs between two answers is not the service's habit."""


@frozen(kw_only=True)
class ReadLimits:
    """How far level 0 goes.

    Args:
        requests: on one connection, at most.
        idle: seconds for which an idle connection is watched, at most.
    """

    requests: int = 20
    idle: float = 60.0

    @property
    def steps(self) -> tuple[float, ...]:
        """After how many seconds of idleness the connection is looked at."""
        return tuple(step for step in IDLE if step <= self.idle)


def announced(limits: ReadLimits) -> list[str]:
    """What level 0 will do, in full."""
    asked = TIMES * len(profile.READS)
    waited = max(limits.steps, default=0.0)
    return [
        "level 0: reads only; no order, and it costs nothing",
        f"  {asked} requests: who am I, with the token, with a wrong one and with none; a path that is not",
        "    there; GET where an order is created; each of them twice, on connections of their own",
        f"  up to {limits.requests} more: who am I, again and again on one connection, until it is closed",
        f"  1 more: who am I, on a connection that is then left alone for up to {waited:g} s",
        f"  {asked + limits.requests + 1} requests at most",
    ]


async def run(service: Service, limits: ReadLimits) -> ServiceProfile:
    """Ask, and say what was seen.

    Raises:
        Stopped: the service is not there, does not know the token, or is no service as the client knows it.
    """
    answers: dict[str, SeenAnswer] = {}
    raws: list[RawAnswer] = []
    for name, question in _questions(service).items():
        for _ in range(TIMES):
            raw, answers[name] = await answered(service, question, answers)
            raws.append(raw)
            if name == profile.WHO_AM_I:
                check_who(raw)
    return ServiceProfile(
        levels=(LEVEL,),
        answers=answers,
        request_ids=request_ids(raws),
        connection=await _connection(service, limits),
        limits=_limits(raws[0]),
    )


def _questions(service: Service) -> Mapping[str, Question]:
    wrong = f"probe-{secrets.token_hex(8)}"
    nowhere = WHO_AM_I.rpartition("/")[0] + "/probe-there-is-no-such-path"
    return {
        profile.WHO_AM_I: service.question("GET", WHO_AM_I),
        profile.WRONG_TOKEN: service.question("GET", WHO_AM_I, token=wrong),
        profile.NO_TOKEN: service.question("GET", WHO_AM_I, token=""),
        profile.UNKNOWN_PATH: service.question("GET", nowhere),
        profile.WRONG_METHOD: service.question("GET", CREATE_ORDER),
    }


async def _connection(service: Service, limits: ReadLimits) -> SeenConnection:
    question = service.question("GET", WHO_AM_I)
    seen = await _requests_on_one(service, question, limits.requests)
    open_after, closed_by = 0.0, None
    connection = service.connection()
    try:
        is_kept = (await connection.ask(question)).is_kept and seen.requests != 1
        for step in limits.steps if is_kept else ():  # what is closed at once is not closed for its idleness
            await service.clock.sleep(step - open_after)
            if not connection.is_open:
                closed_by = step
                break
            open_after = step
    finally:
        connection.close()
    return evolve(seen, open_after=open_after, closed_by=closed_by)


async def _requests_on_one(service: Service, question: Question, most: int) -> SeenConnection:
    """After how many requests a connection was closed, if it was, and whether that was announced."""
    connection = service.connection()
    try:
        for number in range(1, most + 1):
            raw = await connection.ask(question)
            if raw.status is None:
                return SeenConnection(asked=most, requests=number - 1 or None)
            if not (raw.is_kept and connection.is_open):
                return SeenConnection(asked=most, requests=number, announced=not raw.is_kept)
            if raw.is_turned_away:  # a limit of requests, and none of the connection
                return SeenConnection(asked=number)
    finally:
        connection.close()
    return SeenConnection(asked=most)


def _limits(raw: RawAnswer) -> dict[str, SeenLimits]:
    """The least and greatest amount of each currency that who-am-i shows."""
    try:
        document = json.loads(raw.body, parse_float=Decimal, parse_int=Decimal)
        currencies = document["currencies"]
        found = {
            currency["currency_code"]: (currency["min_amount"], currency["max_amount"])
            for currency in currencies
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
# What a profile says for the client's settings: each value with its reason; a person applies them.


LONGEST_RETRY_AFTER = 300.0
"""Seconds of ``Retry-After`` that are made room for; who asks for more is not waited for."""

SLOW = 4.0
"""A time-out is so many times what was seen: what is rare is slower than what was seen a few times."""


@frozen(kw_only=True)
class Proposal:
    """Settings, and why.

    Args:
        retry: the policy.
        timeouts: the times of one exchange.
        reasons: of each value, by ``policy.name`` or ``timeouts.name``.
        notes: what the profile says that no setting mends.
    """

    retry: RetryPolicy
    timeouts: Timeouts
    reasons: dict[str, str]
    notes: tuple[str, ...] = field(default=())


def proposed(profile: ServiceProfile) -> Proposal:
    """What a profile says for the client's settings."""
    base, times = RetryPolicy(), Timeouts()
    reasons = {
        "attempts": "nothing was seen that speaks against the default",
        "first_delay": "nothing was seen that speaks against the default",
        "not_processed": "the default: that a status promises that nothing was done, no probe can find out; "
        "add 503 only if the service's operator says so in writing",
    }
    refused, reasons["refused"] = _refused(profile)
    sock_read, total, reasons["sock_read"] = _times(profile, times)
    reasons["total"] = reasons["sock_read"]
    wait = _longest_retry_after(profile)
    max_delay, reasons["max_delay"] = base.max_delay, "no answer asked to wait for longer"
    if wait > base.max_delay:
        max_delay, reasons["max_delay"] = wait, f"an answer asked to wait for {wait:g} s (Retry-After)"
    deadline = max(
        base.deadline, total + 5.0 if total > times.total else 0.0, 2 * wait + total if wait else 0.0
    )
    reasons["deadline"] = (
        "room for two attempts, and for the wait between them" if wait else "room for an answer"
    )
    policy = attrs.evolve(base, refused=refused, max_delay=max_delay, deadline=deadline)
    timeouts = attrs.evolve(times, sock_read=sock_read, total=total)
    return Proposal(retry=policy, timeouts=timeouts, reasons=reasons, notes=tuple(_notes(profile)))


def _refused(profile: ServiceProfile) -> tuple[frozenset[int], str]:
    """The statuses that say no: never one that was seen on an order that exists."""
    with_order = {answer.status for answer in profile.answers.values() if answer.order in ("new", "same")}
    taken = REFUSED & {status for status in with_order if status is not None}
    if taken:
        shown = ", ".join(map(str, sorted(taken)))
        return REFUSED - taken, f"without {shown}: seen on an answer that names an order, so it is no no"
    return REFUSED, "the default: none of these was seen on an answer that names an order"


def _times(profile: ServiceProfile, times: Timeouts) -> tuple[float, float, str]:
    slowest = max((answer.within or 0.0 for answer in profile.answers.values()), default=0.0)
    if SLOW * slowest <= times.sock_read:
        return times.sock_read, times.total, f"all answers came within {slowest:g} s"
    sock_read = SLOW * slowest
    return (
        sock_read,
        sock_read + 5.0,
        f"an answer took up to {slowest:g} s: {SLOW:g} times that, and 5 s to connect",
    )


def _longest_retry_after(profile: ServiceProfile) -> float:
    asked = [_seconds(answer) for answer in profile.answers.values()]
    return max((item for item in asked if item <= LONGEST_RETRY_AFTER), default=0.0)


def _seconds(answer: SeenAnswer) -> float:
    try:
        found = Decimal(answer.headers.get("retry-after") or 0)
    except InvalidOperation:  # a date: how long that was is not kept
        return 0.0
    return float(found) if found.is_finite() and found > 0 else 0.0


def _notes(profile: ServiceProfile) -> Iterator[str]:
    answers, connection = profile.answers, profile.connection
    if connection is not None and connection.closed_by is not None and connection.closed_by <= POOL_KEEPALIVE:
        yield (
            f"an idle connection is closed within {connection.closed_by:g} s, and the client keeps one for "
            f"{POOL_KEEPALIVE:g} s: expect more doubts than elsewhere; give it a session of your own with a "
            "shorter keepalive_timeout"
        )
    if connection is not None and connection.requests is not None and not connection.announced:
        yield (
            f"a connection is closed after {connection.requests} requests, and no answer says so: an order "
            "that is sent just then ends in doubt. Ask the service's operator to send Connection: close with "
            "the last answer; or give the client a session of your own with force_close=True"
        )
    wrong = answers.get(ask_cases.WRONG_TOKEN)
    if wrong is not None and wrong.status is not None and _judged(wrong) is not Classification.WRONG_TOKEN:
        yield f"a wrong token is answered with {wrong.status}, which the client takes for another trouble"
    again = answers.get(ask_cases.SAME_AGAIN)
    if again is not None:
        yield _duplicates(again, answers.get(ask_cases.CUT_AGAIN))
    unclear = [name for name in ask_cases.MUST_BE_REFUSED if _is_unclear(answers.get(name))]
    if unclear:
        yield f"refused without a certain no, so that they end in doubt: {', '.join(unclear)}"


def _judged(answer: SeenAnswer) -> Classification:
    """What the client makes of an answer to an order."""
    body = (
        msgspec.json.encode(WRONG_TOKEN) if answer.unauthorized else b"{}" if answer.body == "json" else b""
    )
    evidence = ExchangeResult(sent=True, status=answer.status, body=body, intact=True)
    return classify_response(evidence, RetryPolicy(), ORDER_ANSWERS)


def _is_unclear(answer: SeenAnswer | None) -> bool:
    return (
        answer is not None and answer.order in ("none", "unknown") and _judged(answer) not in SERVICE_REFUSALS
    )


def _duplicates(again: SeenAnswer, after_cut: SeenAnswer | None) -> str:
    if again.order == "new":
        return "the same body twice made two orders: only the key and the journal stand between them"
    told = "is answered with the first order" if again.order == "same" else f"is answered with {again.status}"
    what = f"the same body a second time {told}; it is no idempotency key, and the client does not rely on it"
    if after_cut is None or again.order == "unknown":
        return what
    if again.order == "none" and again.status == after_cut.status:
        return f"{what}. A connection cut after the body: the order exists, for its repetition was refused"
    return f"{what}. A connection cut after the body: whether the order existed is unknown"


# --- as words ---------------------------------------------------------------------------------------


def as_lines(proposal: Proposal) -> Iterator[str]:
    """The proposal as a table of settings, and as code."""
    yield "proposed settings, for you to judge and to apply:"
    for name, default, value in _values(proposal):
        change = "" if value == default else f" (default {_shown(default)})"
        yield f"  {name} = {_shown(value)}{change}: {proposal.reasons[name]}"
    yield from (f"note: {note}" for note in proposal.notes)
    yield "as code:"
    yield f"  retry={_code(proposal.retry, RetryPolicy())},"
    yield f"  timeouts={_code(proposal.timeouts, Timeouts())},"


def _values(proposal: Proposal) -> Iterator[tuple[str, object, object]]:
    for made, default in ((proposal.retry, RetryPolicy()), (proposal.timeouts, Timeouts())):
        for item in attrs.fields(type(made)):
            if item.name in proposal.reasons:
                yield item.name, getattr(default, item.name), getattr(made, item.name)


def _code(made: RetryPolicy | Timeouts, default: RetryPolicy | Timeouts) -> str:
    changed = [
        f"{item.name}={_shown(getattr(made, item.name))}"
        for item in attrs.fields(type(made))
        if getattr(made, item.name) != getattr(default, item.name)
    ]
    return f"{type(made).__name__}({', '.join(changed)})"


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(map(str, sorted(value)))}}})"
    return f"{value:g}" if isinstance(value, float) else str(value)
