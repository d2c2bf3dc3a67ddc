"""Level 0: what can be found out without an order, by asking who the caller is, and by asking wrongly."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation

from attrs import field, frozen

from transfer_async._cli.probe.one_connection import OneConnection, Question, RawAnswer
from transfer_async._cli.probe.seen import request_ids, seen
from transfer_async._http.urls import CREATE_ORDER, WHO_AM_I
from transfer_async._support.clock import Clock
from transfer_async.sandbox import SeenAnswer, SeenConnection, SeenLimits, ServiceProfile, ask_cases
from transfer_async.sandbox.profile import IDLE

LEVEL = 0
TIMES = 2
"""How often each question is asked: what differs between two answers is not the service's habit."""


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

    def question(
        self, method: str, path: str, *, token: str | None = None, body: bytes | None = None
    ) -> Question:
        """A question with the headers that the specification asks for (4.1, 4.2); ``""`` for no token."""
        headers = {
            "Accept": "application/json",
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
    asked = TIMES * len(ask_cases.READS)
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
    """Ask, and say what was seen."""
    answers: dict[str, SeenAnswer] = {}
    raws: list[RawAnswer] = []
    for name, question in _questions(service).items():
        for _ in range(TIMES):
            raw, answers[name] = await ask(service, question)
            raws.append(raw)
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
        ask_cases.WHO_AM_I: service.question("GET", WHO_AM_I),
        ask_cases.WRONG_TOKEN: service.question("GET", WHO_AM_I, token=wrong),
        ask_cases.NO_TOKEN: service.question("GET", WHO_AM_I, token=""),
        ask_cases.UNKNOWN_PATH: service.question("GET", nowhere),
        ask_cases.WRONG_METHOD: service.question("GET", CREATE_ORDER),
    }


async def _connection(service: Service, limits: ReadLimits) -> SeenConnection:
    question = service.question("GET", WHO_AM_I)
    requests = await _requests_on_one(service.connection(), question, limits.requests)
    open_after, closed_by = 0.0, None
    connection = service.connection()
    try:
        await connection.ask(question)
        for step in limits.steps:
            await service.clock.sleep(step - open_after)
            if not connection.is_open:
                closed_by = step
                break
            open_after = step
    finally:
        connection.close()
    return SeenConnection(
        asked=limits.requests, requests=requests, open_after=open_after, closed_by=closed_by
    )


async def _requests_on_one(connection: OneConnection, question: Question, most: int) -> int | None:
    """After how many requests it was closed; None if it was not."""
    try:
        for number in range(1, most + 1):
            raw = await connection.ask(question)
            if raw.status is None:
                return number - 1
            if not connection.is_open:
                return number
    finally:
        connection.close()
    return None


def _limits(raw: RawAnswer) -> dict[str, SeenLimits]:
    """The least and greatest amount of each currency that who-am-i shows."""
    try:
        document = json.loads(raw.body, parse_float=Decimal, parse_int=Decimal)
        currencies = document["currencies"]
        found = {one["currency_code"]: (one["min_amount"], one["max_amount"]) for one in currencies}
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
