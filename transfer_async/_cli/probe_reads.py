"""Level 0: what can be found out without an order, by asking who the caller is, and by asking wrongly."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation

from attrs import evolve, field, frozen

from transfer_async._cli.options import BASE_URL, TOKEN
from transfer_async._cli.raw_http import OneConnection, Question, RawAnswer, request_ids, seen
from transfer_async._converters.converter import read_into
from transfer_async._converters.wire_format import Unreadable
from transfer_async._http.classify import ORDER_ANSWERS, READ_ANSWERS, Classification, classify_response
from transfer_async._http.retry import RetryPolicy, retry_after
from transfer_async._http.transport import ACCEPTED
from transfer_async._http.urls import CREATE_ORDER, WHO_AM_I
from transfer_async._models.responses import User
from transfer_async._support.clock import Clock
from transfer_async.sandbox import SeenAnswer, SeenConnection, SeenLimits, ServiceProfile, profile
from transfer_async.sandbox.profile import IDLE

LEVEL = 0
TIMES = 2
"""How often each question is asked: what differs between two answers is not the service's habit."""


LONGEST_WAIT = 120.0
"""Seconds of ``Retry-After`` that are waited for."""

FIRST_WAIT = 1.0
"""Seconds, where an answer does not say how long to wait; each further wait is twice as long."""

AGAIN = 5
"""How often in a row the probe may be turned away."""


class Stopped(Exception):
    """Nothing more is sent; says why."""


@frozen(kw_only=True)
class Service:
    """Where to ask, and how long.

    Args:
        base_url: normalised.
        token: the API token.
        patience: seconds for one answer.
        clock: measures the answers, and waits.
    """

    base_url: str
    token: str = field(repr=False)
    patience: float
    clock: Clock = field(factory=Clock)

    def connection(self) -> OneConnection:
        """A new connection, not yet open."""
        return OneConnection(self.base_url, patience=self.patience)

    async def rest(self, raw: RawAnswer, *, times: int) -> None:
        """Wait as long as an answer asks that turned a request away, the first one or after so many others.

        Raises:
            Stopped: that would be too long, or too often.
        """
        again = "run the probe again later: it goes on where it was"
        if times >= AGAIN:
            raise Stopped(f"the service answered with {raw.status} {AGAIN} times in a row; {again}")
        asked = retry_after(raw.evidence.headers.get("Retry-After"), now=self.clock.utc())
        seconds = FIRST_WAIT * 2.0**times if asked is None else asked
        if seconds > LONGEST_WAIT:
            raise Stopped(f"the service answered with {raw.status}: not before {seconds:,.0f} s; {again}")
        await self.clock.sleep(seconds)

    def question(
        self, method: str, path: str, *, token: str | None = None, body: bytes | None = None
    ) -> Question:
        """A question with the headers that the specification asks for (4.1, 4.2); ``""`` for no token."""
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": ACCEPTED,
            "Authorization": f"Bearer {self.token if token is None else token}",
        }
        if token == "":
            del headers["Authorization"]
        if body is not None:
            headers["Content-Type"] = "application/json"
        return Question(method=method, path=path, headers=headers, body=body)


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
            raw, answers[name] = await _answered(service, question, answers)
            raws.append(raw)
            if name == profile.WHO_AM_I:
                _check_who(raw)
    return ServiceProfile(
        levels=(LEVEL,),
        answers=answers,
        request_ids=request_ids(raws),
        connection=await _connection(service, limits),
        limits=_limits(raws[0]),
    )


async def ask(service: Service, question: Question) -> tuple[RawAnswer, SeenAnswer]:
    """Ask on a connection of its own."""
    connection = service.connection()
    began = service.clock.now()
    try:
        raw = await connection.ask(question)
    finally:
        connection.close()
    return raw, seen(raw, seconds=service.clock.now() - began)


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


async def look(service: Service) -> None:
    """Ask who the caller is, before anything else is asked.

    Raises:
        Stopped: see `run`.
    """
    raw, _ = await _answered(service, service.question("GET", WHO_AM_I), {})
    _check_who(raw)


async def _answered(
    service: Service, question: Question, answers: dict[str, SeenAnswer]
) -> tuple[RawAnswer, SeenAnswer]:
    """Ask until the service has time for it."""
    times = 0
    while True:
        raw, answer = await ask(service, question)
        if not raw.is_turned_away:
            return raw, answer
        answers[profile.TURNED_AWAY] = answer
        await service.rest(raw, times=times)
        times += 1


def _check_who(raw: RawAnswer) -> None:
    """Whether the client can use what it is told of who it is: else nothing that is seen is of any use."""
    check_reached(raw)
    if classify_response(raw.evidence, RetryPolicy(), READ_ANSWERS) is not Classification.ANSWERED:
        raise Stopped(
            f"who-am-i was answered with {raw.status}: are {BASE_URL}, and {TOKEN} right? {_NOTHING}"
        )
    try:
        read_into(User, raw.body)
    except Unreadable as why:
        raise Stopped(f"the client cannot read the answer to who-am-i: {why}. {_NOTHING}") from None


def check_reached(raw: RawAnswer) -> None:
    """Whether the service was reached, and knows the token.

    Raises:
        Stopped: it was not, or does not.
    """
    if not raw.is_sent:
        raise Stopped(f"no connection could be opened: is {BASE_URL} right, and the service up? {_NOTHING}")
    if raw.status is None:
        raise Stopped(f"no answer came: is {BASE_URL} right, and the service up? {_NOTHING}")
    if classify_response(raw.evidence, RetryPolicy(), ORDER_ANSWERS) is Classification.WRONG_TOKEN:
        raise Stopped(
            f"the service does not know the token (status {raw.status}): is {TOKEN} right? {_NOTHING}"
        )


_NOTHING = "Nothing of this is in the profile"


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
