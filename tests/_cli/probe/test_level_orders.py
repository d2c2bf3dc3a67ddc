"""Levels 1 and 2: they respect the cap, send no order twice, and stop after an order that must not exist."""

import asyncio
import gzip
import json
import re
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path

import aiohttp
import pytest
from attrs import evolve

from tests.support.bank import new_order
from tests.support.cases import each
from tests.support.journalling import claim, intent
from transfer_async import SQLiteJournal
from transfer_async._cli.probe_http import Connection, Response, Service, Stopped
from transfer_async._cli.probe_orders import (
    CASES,
    NAMES,
    Cap,
    LevelOrders,
    Plan,
    PlannedOrder,
    Relay,
    locked,
)
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, SeenAnswer, SeenLimits, Status
from transfer_async.sandbox.service import CREATE_ORDER_PATH, message

from .prober import ProbeResult, Watch, probe, probe_run
from .quirks import QUIRKS, Quirk, Quirky, instead, is_create, shown

LIMITS = {"NGN": SeenLimits(least=Decimal(1000), greatest=Decimal(50_000_000))}
PLAN = Plan(order=new_order(), apart=Decimal(1), limits=LIMITS)
MUCH = Decimal(10**12)


def orders_of(plan: Plan) -> dict[str, PlannedOrder]:
    return {case.name: order for case in CASES if (order := plan.planned(case)) is not None}


ALL = orders_of(PLAN)


@pytest.fixture
async def sandbox(watch: Watch):
    async with Sandbox(sleep=watch.sleep) as sandbox:
        yield sandbox


@pytest.fixture
def probing(tmp_path: Path, watch: Watch) -> Callable[..., Awaitable[ProbeResult]]:
    """Return a function that runs the probe against a service, and continues its earlier runs."""
    return lambda service, **settings: probe(service, tmp_path / "a", watch, **settings)


def number_sent(sandbox: Sandbox) -> int:
    return sum((planned.method, planned.path) == ("POST", CREATE_ORDER_PATH) for planned in sandbox.requests)


# --- the plan -----------------------------------------------------------------------------------------


def test_all_orders_differ_except_where_one_repeats_another():
    amounts = [planned.amount for planned in ALL.values() if planned.case.repeats is None]

    assert len(set(amounts)) == len(amounts)
    assert tuple(ALL) == NAMES
    assert len({planned.key for planned in ALL.values()}) == len(ALL)


def test_no_probe_body_exceeds_the_amount_counted_for_it():
    for planned in ALL.values():
        body = planned.body({**json.loads(planned.order.to_json())})
        document = json.loads(body) if body.startswith(b"{") else {}
        assert Decimal(document.get("poster_amount", 0)) <= planned.amount
        assert Decimal(document.get("matcher_amount", 0)) <= planned.order.matcher_amount


def test_amounts_come_as_near_to_the_limits_as_the_rate_allows():
    amounts = {name: planned.amount for name, planned in ALL.items()}

    assert amounts["below-least"] < 1000 <= amounts["least-amount"] < 1000 + Decimal("15.51")
    assert 50_000_000 - Decimal("15.51") < amounts["greatest-amount"] <= 50_000_000
    assert amounts["above-greatest"] > 50_000_000

    # No amount can be less than a minimum of 0.
    limits = {"NGN": SeenLimits(least=Decimal(0), greatest=Decimal(10**6))}
    assert set(ALL) - set(orders_of(evolve(PLAN, limits=limits))) == {"least-amount", "below-least"}


@each("spent", [set(), {"order", "cut-again"}, {"above-greatest", "not-json"}])
@each("levels", [(1,), (2,), (1, 2)])
def test_admitted_orders_keep_to_the_cap_together_with_those_sent(spent, levels):
    sent = [ALL[name] for name in spent]
    wanted = [one for name, one in ALL.items() if one.case.level in levels and name not in spent]
    before = sum((planned.amount for planned in sent), Decimal(0))
    for orders in range(12):
        for amount in (Decimal(0), Decimal(200_000), Decimal(1_000_000), MUCH):
            new = Cap(orders=orders, amount=amount).admitted(wanted, sent)
            assert len(new) <= max(0, orders - len(spent))
            assert not new or before + sum(planned.amount for planned in new) <= amount
            assert all(planned in wanted for planned in new)


# --- a run ----------------------------------------------------------------------------------------------


async def test_later_runs_send_what_the_cap_has_left(sandbox, probing):
    first = await probing(sandbox, levels=(1,), orders=3)
    for cap, sent in (({"orders": 3}, 3), ({"amount": Decimal(1)}, 3), ({"orders": 5}, 5)):
        run = await probing(sandbox, levels=(1,), **cap)
        assert (number_sent(sandbox), run.stopped) == (sent, None)
        assert (run.profile == first.profile) is (sent == 3)


async def test_an_order_to_a_busy_service_is_sent_and_counted_again(sandbox, probing, watch):
    """Without this, the profile says that invalid orders get status 429."""
    for status in (429, 503):
        sandbox.faults.add(Status(status, headers={"Retry-After": "17"}))
    run = await probing(sandbox, levels=(1, 2), orders=12)

    assert shown(run.profile, "not-json", "status", "order") == (400, "none")
    assert shown(run.profile, "turned-away", "status") == (503,)
    assert run.profile.answers["turned-away"].headers["retry-after"] == "17"
    assert watch.seconds == 34.0
    assert number_sent(sandbox) == 12
    assert "  skipped, because they would exceed the cap: cut-again" in run.lines


@pytest.mark.parametrize(("headers", "waited"), [({}, 31.0), ({"Retry-After": "3600"}, 0.0)])
async def test_a_run_stopped_by_a_busy_service_continues_later(sandbox, probing, watch, headers, waited):
    sandbox.faults.add(Status(503, headers=headers), times=6)
    first = await probing(sandbox, levels=(2,), orders=8)
    assert "run the probe again later: it continues where this run stopped" in first.stopped
    assert watch.seconds == waited
    sandbox.faults.clear()

    again = await probing(sandbox, levels=(2,), orders=8)

    assert again.stopped is None
    assert again.profile.answers["order"].order == "new"
    first_amount = next(order.poster_amount for order in sandbox.orders.values())
    assert first_amount != ALL["order"].amount  # An order that may exist is not sent again.


async def test_a_missing_response_stops_each_run_until_the_order_is_sent_twice(sandbox, probing):
    """Without this, a service that is down is sent all orders, and each of them may exist."""
    sandbox.faults.add(CloseAfterProcessing(), times=3)
    stopped = []
    for count in (1, 3, 11):
        run = await probing(sandbox, levels=(1,), orders=12)
        assert number_sent(sandbox) == count
        stopped.append((run.stopped or "").partition(" was sent, but no response arrived")[0])

    assert stopped == ["not-json (the body is not JSON)", "empty-object (the order has no fields)", ""]
    assert run.profile.answers["not-json"].status is None  # Two attempts at "not-json" got no response.
    assert run.profile.answers["empty-object"].status == 422


async def test_a_token_revoked_during_a_run_is_no_answer_to_an_order(sandbox, probing):
    """Without this, the profile says that invalid orders get status 401."""
    sandbox.faults.add(Status(401, body='{"message": "Unauthorized"}'))
    first = await probing(sandbox, levels=(1,), orders=3)
    assert first.stopped.startswith("the service rejected the token")
    assert number_sent(sandbox) == 1
    assert not first.profile.answers

    again = await probing(sandbox, levels=(1,), orders=3)

    assert again.profile.answers["not-json"].status == 400


@pytest.mark.parametrize(
    ("service", "why"),
    [
        ({"token": "another"}, "rejected the token"),
        ({"base_url": "http://127.0.0.1:1"}, "no connection could be opened"),
    ],
)
async def test_no_order_is_sent_with_a_wrong_token_or_base_url(sandbox, tmp_path, watch, service, why):
    """Without this, each failed attempt uses up a part of the cap."""
    run = probe_run(sandbox, tmp_path / "a", watch, lines := [], levels=(1,), orders=3)
    for _ in range(2):
        with pytest.raises(Stopped, match=why):
            await evolve(run, service=evolve(run.service, **service)).run()

    assert number_sent(sandbox) == 0
    assert lines.count("  already sent: 0 orders, 0 NGN") == 2


async def test_a_service_that_goes_down_during_a_run_gets_no_order(sandbox, probing, monkeypatch):
    async def refuse(*_, **__):
        return Response(sent=False)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", refuse)
        patch.setattr(Service, "check", refuse)
        first = await probing(sandbox, levels=(1,), orders=3)
    assert first.stopped.startswith("no connection could be opened")
    assert not first.profile.answers

    again = await probing(sandbox, levels=(1,), orders=3)

    assert (again.stopped, again.profile.answers["not-json"].status) == (None, 400)


def calculating(factor: int) -> Quirk:
    """Return a service that calculates a missing amount with its own exchange rate."""

    def answer(_, call, own):
        document = json.loads(call.body) if call.body and call.body.startswith(b"{") else {}
        if is_create(call) and len(document) > 1 and "poster_amount" not in document:
            rate = Decimal(document["exchange_rate"]) * factor
            amount = str(rate * Decimal(document["matcher_amount"]))
            document |= {"exchange_rate": str(rate), "poster_amount": amount}
            call = evolve(call, body=json.dumps(document).encode())
        return own(call)

    return Quirk(answer=answer)


async def test_an_amount_calculated_by_the_service_counts_as_the_service_says(probing, tmp_path, watch):
    """Without this, the cap could be exceeded tenfold."""
    settings = {"levels": (2,), "amount": Decimal(3_000_000)}
    async with Quirky(calculating(20), sleep=watch.sleep) as service:
        first = await probing(service, **settings)
        before = number_sent(service)
        second = await probing(service, **settings)
        await asyncio.to_thread((tmp_path / "a.json").unlink)
        third = await probing(service, **settings)

    amounts = [order.poster_amount for order in service.orders.values()]
    calculated = "the service calculated larger amounts than the probe sent (without-poster_amount)"
    assert first.stopped.startswith(calculated)
    assert sum(amounts) > 3_000_000
    assert "NGN, more than --most-amount. No further order is sent" in first.stopped
    assert amounts[-1] > 1_500_000  # The order above the cap was the last one sent.
    assert second.stopped == first.stopped
    assert "the response to this order is no longer in the profile" in third.stopped
    assert number_sent(service) == before


Rewrite = Callable[[bytes], tuple[dict[str, str], bytes]]


def rewritten(rewrite: Rewrite) -> Quirk:
    """Return a service whose responses to orders have other headers and another body."""

    def answer(_, call, own):
        reply = own(call)
        if reply.order is None:
            return reply
        headers, body = rewrite(reply.body)
        return evolve(reply, body=body, headers={**reply.headers, **headers})

    return Quirk(answer=answer)


def with_amount(amount: bytes) -> Rewrite:
    return lambda body: ({}, re.sub(rb'("poster_amount": ?)([0-9.]+)', rb"\g<1>" + amount, body))


def compressed(body: bytes) -> tuple[dict[str, str], bytes]:
    return {"Content-Encoding": "gzip"}, gzip.compress(body)


UNREADABLE = "the service responded to the valid order with 200, and the client cannot read the response"


@pytest.mark.parametrize(
    ("rewrite", "why"),
    [
        (with_amount(b"200000"), (UNREADABLE, "poster_amount differs", "Every order would be in doubt")),
        (lambda body: ({"Content-Encoding": "br"}, body), (UNREADABLE, "is not JSON")),
        (compressed, None),
    ],
)
async def test_a_created_order_that_the_client_cannot_read_stops_the_run(probing, watch, rewrite, why):
    """Without this, a profile recommends settings for a service that leaves every order in doubt."""
    async with Quirky(rewritten(rewrite), sleep=watch.sleep) as service:
        run = await probing(service, levels=(2,), orders=3)

    assert (run.stopped is None) == (why is None)
    assert all(part in run.stopped for part in why or ())
    assert run.profile.answers["order"].order == ("unknown" if why else "new")
    assert len(service.orders) == (1 if why else 3)


async def test_an_unrelated_id_in_a_refusal_is_not_taken_for_an_order(probing, watch):
    """Without this, the probe stops at the first refusal that contains, for example, a trace id."""
    refusal = message(422, "No", trace="tx-trace1", errors={"id": "tx-errors1"})
    async with Quirky(Quirk(answer=instead(422, refusal)), sleep=watch.sleep) as service:
        run = await probing(service, levels=(1,), orders=4)

    assert run.stopped is None
    assert run.profile.answers["no-users"].order == "none"


async def test_the_cap_limits_the_orders_and_the_journal_has_the_answers_of_a_lost_profile(
    sandbox, probing, tmp_path
):
    first = await probing(sandbox, levels=(1, 2), orders=12)
    sent = number_sent(sandbox)
    await asyncio.to_thread((tmp_path / "a.json").unlink)
    again = await probing(sandbox, levels=(1, 2), orders=12)

    assert (sent, number_sent(sandbox)) == (12, 12)
    assert "  skipped, because they would exceed the cap: without-poster_username" in first.lines
    assert shown(again.profile, "not-json", "status", "order") == (400, "none")
    assert shown(again.profile, "order", "status", "order") == (200, "new")
    assert shown(again.profile, "cut-after-body", "status", "order") == (None, "unknown")


async def test_a_created_order_that_must_be_refused_stops_this_run_and_later_ones(probing, tmp_path, watch):
    async with Quirky(QUIRKS["creates what must be refused"], sleep=watch.sleep) as service:
        first = await probing(service, levels=(1, 2))
        before = number_sent(service)
        second = await probing(service, levels=(1, 2))
        await asyncio.to_thread((tmp_path / "a.json").unlink)
        third = await probing(service, levels=(1,))

    assert "amounts-disagree" in first.stopped
    assert second.stopped == third.stopped == first.stopped
    assert number_sent(service) == before == 9
    assert (len(service.orders), first.profile.levels) == (1, ())


async def test_a_journal_of_another_plan_is_refused(sandbox, probing):
    await probing(sandbox, levels=(1,), orders=1)

    with pytest.raises(ValueError, match="--journal: contains orders that do not match --order"):
        await probing(sandbox, levels=(1,), order=new_order(poster_country="GH"))
    assert number_sent(sandbox) == 1


async def test_a_run_killed_before_it_sent_keeps_its_key_for_a_while(sandbox, probing, tmp_path, watch):
    run, first = probe_run(sandbox, tmp_path / "a", watch, [], levels=(1,)), ALL["not-json"]
    move = claim(intent=intent(key=first.key, order=first.order, held="h"), hooks=())
    async with SQLiteJournal(run.orders.journal) as journal:
        await journal.move(sandbox.base_url, first.key, move)

    again = await probing(sandbox, levels=(1,))

    assert "not-json: a killed run still holds the key; run the probe again in" in again.stopped
    assert number_sent(sandbox) == 0


async def test_two_probes_cannot_use_one_journal_at_once(sandbox, probing, tmp_path):
    def lock_twice():
        with locked(tmp_path / "a.journal"), pytest.raises(ValueError, match="in use by another probe"):
            locked(tmp_path / "a.journal").__enter__()

    await asyncio.to_thread(lock_twice)
    await probing(sandbox, levels=(1,), orders=1)  # The lock has been released.

    assert number_sent(sandbox) == 1


async def test_nothing_is_sent_if_the_journal_cannot_be_written(sandbox, probing, monkeypatch):
    async def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(SQLiteJournal, "move", full)
    run = await probing(sandbox, levels=(1,))

    assert "not-json was not sent" in run.stopped
    assert number_sent(sandbox) == 0


# --- the relay ------------------------------------------------------------------------------------------


async def test_the_relay_forwards_one_request_each_time_it_is_armed(sandbox, watch):
    service = Service(base_url=sandbox.base_url, token=sandbox.token, timeout=30.0, clock=watch.clock)
    order = ALL["order"]
    headers = {"Authorization": f"Bearer {sandbox.token}", "Content-Type": "application/json"}
    relay = Relay(service, set())
    async with relay.listening() as address, aiohttp.ClientSession() as session:

        async def post(**changes) -> int:
            request = {"data": order.order.to_json(), "headers": headers, **changes}
            async with session.post(address + CREATE_ORDER_PATH, **request) as response:
                return response.status

        unarmed = await post()
        relay.arm(order)
        unauthorized = await post(headers={**headers, "Authorization": "Bearer guessed"})
        relay.arm(order)
        armed, again = await post(), await post()

    assert (unarmed, unauthorized, armed, again) == (404, 404, 200, 404)
    assert number_sent(sandbox) == 1


def test_an_amount_calculated_by_the_service_leaves_less_room_for_others():
    cap = Cap(orders=10, amount=Decimal(1_000_000))
    orders = LevelOrders(plan=PLAN, cap=cap, level=1, sent=[ALL["not-json"]])
    count = len(orders.admit(orders.wanted))
    orders.answered("not-json", SeenAnswer(status=422, amount=Decimal(900_000)))

    assert (count, orders.admit(orders.wanted)) == (5, [])


@each("answer", [SeenAnswer(status=202), SeenAnswer(status=422, order="same"), SeenAnswer(order="new")])
def test_the_probe_stops_if_an_invalid_order_is_not_refused(answer):
    cap = Cap(orders=10, amount=MUCH)
    orders = LevelOrders(plan=PLAN, cap=cap, level=1, sent=[ALL["not-json"]], answers={"not-json": answer})

    with pytest.raises(Stopped, match="should have been refused"):
        orders.check()
