"""Levels 1 and 2: no order beyond the cap, none twice, and none after one that should not have been."""

import asyncio
import gzip
import json
import re
from decimal import Decimal

import aiohttp
import pytest
from attrs import evolve

from tests.support.bank import new_order
from tests.support.journalling import claim, intent
from tests.support.loop_time import LoopTime
from transfer_async import SQLiteJournal
from transfer_async._cli import probe_http
from transfer_async._cli.probe_http import OneConnection, RawAnswer, Service, Stopped
from transfer_async._cli.probe_orders import (
    NAMES,
    Cap,
    OtherPlan,
    Plan,
    Relay,
    Spending,
    admitted,
    alone,
    key_of,
    planned,
)
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, SeenAnswer, SeenLimits, Status
from transfer_async.sandbox.service import CREATE_ORDER_PATH, message

from .prober import Watch, made, probed
from .quirks import QUIRKS, Quirk, Quirky, instead, is_create

LIMITS = {"NGN": SeenLimits(least=Decimal(1000), greatest=Decimal(50_000_000))}
PLAN = planned(new_order(), apart=Decimal(1), limits=LIMITS)
MUCH = Decimal(10**12)


@pytest.fixture
def watch(loop_time: LoopTime) -> Watch:
    return Watch(loop_time)


@pytest.fixture
async def sandbox(watch: Watch):
    async with Sandbox(sleep=watch.sleep) as sandbox:
        yield sandbox


def sent(sandbox: Sandbox) -> list[str]:
    return [one.path for one in sandbox.requests if one.path == CREATE_ORDER_PATH and one.method == "POST"]


# --- the plan -----------------------------------------------------------------------------------------


def test_no_two_orders_of_a_plan_are_alike_but_those_that_repeat_another():
    amounts = [one.amount for one in PLAN if one.again is None]

    assert len(set(amounts)) == len(amounts)
    assert [one.name for one in PLAN] == list(NAMES)
    assert len({one.key for one in PLAN}) == len(PLAN)


def test_what_is_sent_never_says_more_than_what_is_counted():
    for one in PLAN:
        body = one.body({**json.loads(one.order.to_json())})
        document = json.loads(body) if body.startswith(b"{") else {}
        assert Decimal(document.get("poster_amount", 0)) <= one.amount
        assert Decimal(document.get("matcher_amount", 0)) <= one.order.matcher_amount


def test_limits_are_met_as_nearly_as_the_rate_allows():
    by_name = {one.name: one.amount for one in PLAN}

    assert by_name["below-least"] < 1000 <= by_name["least-amount"] < 1000 + Decimal("15.51")
    assert 50_000_000 - Decimal("15.51") < by_name["greatest-amount"] <= 50_000_000
    assert by_name["above-greatest"] > 50_000_000


def test_limits_that_no_amount_can_be_beyond_are_left_out():
    none = {"NGN": SeenLimits(least=Decimal(0), greatest=Decimal(10**6))}

    names = {one.name for one in planned(new_order(), apart=Decimal(1), limits=none)}

    assert not names & {"least-amount", "below-least"}
    assert names >= {"greatest-amount", "above-greatest"}


@pytest.mark.parametrize("spent", [set(), {"order", "cut-again"}, {"above-greatest", "not-json"}])
@pytest.mark.parametrize("levels", [(1,), (2,), (1, 2)])
def test_what_is_admitted_keeps_to_both_caps_with_what_is_spent(spent: set[str], levels: tuple[int, ...]):
    before = sum((one.amount for one in PLAN if one.name in spent), Decimal(0))
    for orders in range(12):
        for amount in (Decimal(0), Decimal(200_000), Decimal(1_000_000), MUCH):
            wanted = [one for one in PLAN if one.level in levels and one.name not in spent]
            sent = [one for one in PLAN if one.name in spent]
            new = admitted(wanted, sent, Cap(orders=orders, amount=amount))
            assert len(new) <= max(0, orders - len(spent))
            assert not new or before + sum(one.amount for one in new) <= amount
            assert set(new) <= set(wanted)


# --- a run ----------------------------------------------------------------------------------------------


async def test_no_more_orders_are_sent_than_the_cap_has_room_for(sandbox, tmp_path, watch):
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1, 2), orders=12)

    assert len(sent(sandbox)) == 12
    assert "  left out, beyond the cap: without-poster_username" in run.said


async def test_no_more_money_is_sent_than_the_cap_has_room_for(sandbox, tmp_path, watch):
    await probed(sandbox, tmp_path / "a", watch, levels=(2,), amount=Decimal(400_000))

    assert len(sent(sandbox)) == 2
    assert sum(order.poster_amount for order in sandbox.orders.values()) <= 400_000


async def test_a_second_run_sends_nothing_that_the_first_has_sent(sandbox, tmp_path, watch):
    first = await probed(sandbox, tmp_path / "a", watch, levels=(1, 2), orders=12)
    second = await probed(sandbox, tmp_path / "a", watch, levels=(1, 2), orders=12)

    assert len(sent(sandbox)) == 12
    assert second.profile == first.profile


async def test_a_cap_below_what_was_sent_lets_nothing_more_be_sent(sandbox, tmp_path, watch):
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=3)
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1,), amount=Decimal(1))

    assert run.stopped is None
    assert len(sent(sandbox)) == 3


async def test_a_cap_that_was_raised_is_filled_up(sandbox, tmp_path, watch):
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=2)
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=5)

    assert len(sent(sandbox)) == 5


@pytest.mark.parametrize("status", [429, 503])
async def test_what_the_service_has_no_time_for_is_sent_again_later_and_counted_again(
    sandbox, tmp_path, watch, status
):
    """Else a busy service passes for one that answers 429 to bad orders, or the journal is of no more use."""
    sandbox.faults.add(Status(status, headers={"Retry-After": "17"}), times=2)
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1, 2), orders=12)

    answers = run.profile.answers
    assert (answers["not-json"].status, answers["not-json"].order) == (400, "none")
    assert (answers["turned-away"].status, answers["turned-away"].headers["retry-after"]) == (status, "17")
    assert watch.seconds == 34.0
    assert len(sent(sandbox)) == 12
    assert "  left out, beyond the cap: cut-again" in run.said


async def test_what_is_sent_again_takes_the_room_of_the_last(sandbox, tmp_path, watch):
    sandbox.faults.add(Status(429), times=2)
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=9)

    assert len(sent(sandbox)) == 9
    assert run.said.count("  left out, beyond the cap: zero-amount") == 1
    assert run.said.count("  left out, beyond the cap: amounts-disagree") == 1


@pytest.mark.parametrize(("after", "waited"), [({}, 31.0), ({"Retry-After": "3600"}, 0.0)])
async def test_a_service_that_never_has_time_is_left_and_gone_on_with_later(
    sandbox, tmp_path, watch, after, waited
):
    sandbox.faults.add(Status(503, headers=after), times=6)
    first = await probed(sandbox, tmp_path / "a", watch, levels=(2,))
    assert "run the probe again later: it goes on where it was" in first.stopped
    assert watch.seconds == waited
    sandbox.faults.clear()

    again = await probed(sandbox, tmp_path / "a", watch, levels=(2,))

    assert again.stopped is None
    assert again.profile.answers["order"].order == "new"
    amounts = [order.poster_amount for order in sandbox.orders.values()]
    assert amounts[0] != PLAN[NAMES.index("order")].amount  # one that may exist is not repeated


async def test_a_bad_order_that_nobody_answers_is_the_last_until_somebody_has_looked(
    sandbox, tmp_path, watch
):
    """Else a service that is down is sent all orders, and each may exist."""
    sandbox.faults.add(CloseAfterProcessing(), times=3)
    stopped = []
    for count in (1, 3, 11):
        run = await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=12)
        assert len(sent(sandbox)) == count
        stopped.append(run.stopped)

    assert stopped[0].startswith("not-json (its body is no JSON) was sent, and no answer came")
    assert stopped[1].startswith("empty-object (has no fields) was sent, and no answer came")
    assert stopped[2] is None
    assert run.profile.answers["not-json"].status is None  # it was silent twice
    assert run.profile.answers["empty-object"].status == 422


async def test_a_token_that_was_revoked_amid_the_orders_is_no_answer_to_any(sandbox, tmp_path, watch):
    """Else the profile says that bad orders are answered with 401, and the journal that all were sent."""
    sandbox.faults.add(Status(401, body='{"message": "Unauthorized"}'))
    first = await probed(sandbox, tmp_path / "a", watch, levels=(1,))
    assert first.stopped.startswith("the service does not know the token")
    assert len(sent(sandbox)) == 1
    assert not first.profile.answers

    again = await probed(sandbox, tmp_path / "a", watch, levels=(1,))

    assert again.profile.answers["not-json"].status == 400


@pytest.mark.parametrize(
    ("service", "why"),
    [
        ({"token": "another"}, "does not know the token"),
        ({"base_url": "http://127.0.0.1:1"}, "no connection could be opened"),
    ],
)
async def test_no_order_is_spent_on_a_wrong_token_or_address(sandbox, tmp_path, watch, service, why):
    run = made(sandbox, tmp_path / "a", watch, said := [], levels=(1,), orders=4)
    for _ in range(2):
        with pytest.raises(Stopped, match=why):
            await evolve(run, service=evolve(run.service, **service)).run()

    assert sent(sandbox) == []
    assert not await asyncio.to_thread(run.path.exists)
    assert said.count("  spent before: 0 orders, 0 NGN") == 2


async def test_a_service_that_goes_away_amid_the_orders_gets_none(sandbox, tmp_path, watch, monkeypatch):
    async def gone(*_):
        return RawAnswer(is_sent=False)

    with monkeypatch.context() as patch:
        patch.setattr(OneConnection, "ask", gone)
        patch.setattr(probe_http, "look", gone)
        first = await probed(sandbox, tmp_path / "a", watch, levels=(1,))
    assert first.stopped.startswith("no connection could be opened")
    assert not first.profile.answers

    again = await probed(sandbox, tmp_path / "a", watch, levels=(1,))

    assert (again.stopped, again.profile.answers["not-json"].status) == (None, 400)


def works_out(factor: int) -> Quirk:
    """A service that works out the amount where none is sent, at a rate of its own."""

    def answer(_, call, own):
        document = json.loads(call.body) if call.body and call.body.startswith(b"{") else {}
        if is_create(call) and len(document) > 1 and "poster_amount" not in document:
            rate = Decimal(document["exchange_rate"]) * factor
            amount = str(rate * Decimal(document["matcher_amount"]))
            document |= {"exchange_rate": str(rate), "poster_amount": amount}
            call = evolve(call, body=json.dumps(document).encode())
        return own(call)

    return Quirk(answer=answer, shows=lambda _: True)


async def test_an_amount_that_the_service_works_out_itself_counts_as_the_service_says(tmp_path, watch):
    """Else the cap is kept by the probe's own books alone, and is exceeded tenfold."""
    async with Quirky(works_out(20), sleep=watch.sleep) as service:
        first = await probed(service, tmp_path / "a", watch, levels=(2,), amount=Decimal(3_000_000))
        before = len(sent(service))
        second = await probed(service, tmp_path / "a", watch, levels=(2,), amount=Decimal(3_000_000))
        await asyncio.to_thread((tmp_path / "a.json").unlink)
        with pytest.raises(Stopped, match="the profile has lost how it was answered"):
            await made(service, tmp_path / "a", watch, [], levels=(2,), amount=Decimal(3_000_000)).run()

    total = sum(order.poster_amount for order in service.orders.values())
    assert first.stopped.startswith("the service worked out more than was sent (without-poster_amount)")
    assert total > 3_000_000
    assert "NGN, beyond --most-amount. Nothing more is sent" in first.stopped
    assert list(service.orders.values())[-1].poster_amount > 1_500_000  # it was the last
    assert second.stopped == first.stopped
    assert len(sent(service)) == before


async def test_an_amount_that_the_service_works_out_leaves_less_room_for_the_others(tmp_path, watch):
    async with Quirky(works_out(10), sleep=watch.sleep) as service:
        run = await probed(service, tmp_path / "a", watch, levels=(2,), amount=Decimal(5_000_000))

    assert run.stopped is None
    assert sum(order.poster_amount for order in service.orders.values()) <= 5_000_000


def rewritten(change) -> Quirk:
    """A service whose answers to orders are written in another way."""

    def answer(_, call, own):
        reply = own(call)
        if reply.order is None:
            return reply
        headers, body = change(reply.body)
        return evolve(reply, body=body, headers={**reply.headers, **headers})

    return Quirk(answer=answer, shows=lambda _: True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda body: ({}, re.sub(rb'("poster_amount": ?)([0-9.]+)', rb'\1"\2"', body)), "$.poster_amount"),
        (lambda body: ({}, b'{"data": ' + body + b"}"), "is missing"),
        (
            lambda body: ({}, re.sub(rb'("poster_amount": ?)([0-9.]+)', rb"\g<1>200000", body)),
            "poster_amount differs",
        ),
        (lambda body: ({"Content-Encoding": "br"}, body), "is not JSON"),
    ],
)
async def test_a_good_order_that_the_client_could_not_read_is_told(tmp_path, watch, change, why):
    """Else a profile praises a service with which every order of the bank ends in doubt."""
    async with Quirky(rewritten(change), sleep=watch.sleep) as service:
        run = await probed(service, tmp_path / "a", watch, levels=(2,))

    assert "a good order was answered with 200, and the client cannot read the answer" in run.stopped
    assert why in run.stopped
    assert "Every order of a client would end in doubt" in run.stopped
    assert len(service.orders) == 1


async def test_an_answer_that_is_compressed_unasked_is_read_as_the_client_reads_it(tmp_path, watch):
    packed = rewritten(lambda body: ({"Content-Encoding": "gzip"}, gzip.compress(body)))
    async with Quirky(packed, sleep=watch.sleep) as service:
        run = await probed(service, tmp_path / "a", watch, levels=(2,), orders=3)

    assert run.stopped is None
    assert run.profile.answers["order"].order == "new"


async def test_an_id_of_anything_beside_a_no_is_no_order(tmp_path, watch):
    """Else the probe stops at the first refusal that names, say, a trace."""
    no = message(422, "No", trace="tx-trace1", errors={"id": "tx-errors1"})
    async with Quirky(Quirk(answer=instead(422, no), shows=lambda _: True), sleep=watch.sleep) as service:
        run = await probed(service, tmp_path / "a", watch, levels=(1,))

    assert run.stopped is None
    assert run.profile.answers["no-users"].order == "none"


async def test_the_journal_tells_what_the_profile_has_lost(sandbox, tmp_path, watch):
    await probed(sandbox, tmp_path / "a", watch, levels=(1, 2), orders=12)
    await asyncio.to_thread((tmp_path / "a.json").unlink)
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1, 2), orders=12)

    answers = run.profile.answers
    assert len(sent(sandbox)) == 12
    assert (answers["not-json"].status, answers["not-json"].order) == (400, "none")
    assert (answers["order"].status, answers["order"].order) == (200, "new")
    assert (answers["cut-after-body"].status, answers["cut-after-body"].order) == (None, "unknown")


async def test_one_that_is_created_and_had_to_be_refused_stops_this_run_and_all_others(tmp_path, watch):
    async with Quirky(QUIRKS["creates what must be refused"], sleep=watch.sleep) as service:
        first = await probed(service, tmp_path / "a", watch, levels=(1, 2))
        before = len(sent(service))
        second = await probed(service, tmp_path / "a", watch, levels=(1, 2))
        await asyncio.to_thread((tmp_path / "a.json").unlink)
        third = await probed(service, tmp_path / "a", watch, levels=(1,))

    assert "amounts-disagree" in first.stopped
    assert "had to be refused" in first.stopped
    assert second.stopped == third.stopped == first.stopped
    assert len(sent(service)) == before == 9
    assert len(service.orders) == 1
    assert first.profile.levels == ()


async def test_a_yes_without_an_order_stops_it_as_well(sandbox, tmp_path, watch):
    sandbox.faults.add(Status(202, body="{}"))
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1,))

    assert "not-json" in run.stopped
    assert len(sent(sandbox)) == 1


async def test_where_a_good_order_is_not_created_no_further_one_is_sent(sandbox, tmp_path, watch):
    nobody = new_order(poster_recipient_username="nobody@example.com")
    run = await probed(sandbox, tmp_path / "a", watch, levels=(2,), order=nobody)

    assert "a good order was not created" in run.stopped
    assert len(sent(sandbox)) == 1


async def test_a_journal_of_another_plan_is_not_gone_on_with(sandbox, tmp_path, watch):
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=1)

    with pytest.raises(OtherPlan):
        await probed(sandbox, tmp_path / "a", watch, levels=(1,), order=new_order(poster_country="GH"))
    assert len(sent(sandbox)) == 1


async def test_a_run_that_was_killed_before_it_sent_has_its_key_for_a_while(sandbox, tmp_path, watch):
    run, first = made(sandbox, tmp_path / "a", watch, [], levels=(1,)), PLAN[0]
    move = claim(intent=intent(key=first.key, order=first.order, held="h"), hooks=())
    async with SQLiteJournal(run.orders.journal) as journal:
        await journal.move(sandbox.base_url, key_of(first.name), move)

    ended = await probed(sandbox, tmp_path / "a", watch, levels=(1,))

    assert "not-json: a run that was killed has it still; again in" in ended.stopped
    assert sent(sandbox) == []


async def test_two_probes_do_not_share_a_journal_at_one_time(sandbox, tmp_path, watch):
    def held_by_another():
        with alone(tmp_path / "a.journal"), pytest.raises(ValueError, match="another probe is at work"):
            alone(tmp_path / "a.journal").__enter__()

    await asyncio.to_thread(held_by_another)
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=1)  # it was let go

    assert len(sent(sandbox)) == 1


async def test_a_journal_that_does_not_write_lets_nothing_be_sent(sandbox, tmp_path, watch, monkeypatch):
    async def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(SQLiteJournal, "move", full)
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1,))

    assert "not-json was not sent" in run.stopped
    assert sent(sandbox) == []


# --- the relay ------------------------------------------------------------------------------------------


async def test_the_relay_lets_one_request_pass_each_time_that_it_is_armed(sandbox, watch):
    service = Service(base_url=sandbox.base_url, token=sandbox.token, patience=30.0, clock=watch.clock)
    order = next(one for one in PLAN if one.name == "order")
    headers = {"Authorization": f"Bearer {sandbox.token}", "Content-Type": "application/json"}
    async with Relay(service, ()) as relay, aiohttp.ClientSession() as session:

        async def post(**changes) -> int:
            asked = {"data": order.order.to_json(), "headers": headers, **changes}
            async with session.post(relay.base_url + CREATE_ORDER_PATH, **asked) as answer:
                return answer.status

        unarmed = await post()
        relay.arm(order)
        of_a_stranger = await post(headers={**headers, "Authorization": "Bearer guessed"})
        relay.arm(order)
        passed, again = await post(), await post()

    assert (unarmed, of_a_stranger, passed, again) == (404, 404, 200, 404)
    assert len(sent(sandbox)) == 1


def test_what_an_earlier_run_has_spent_is_told():
    sent = [one for one in PLAN if one.name in ("not-json", "order")]
    known = {one.name: SeenAnswer(status=422) for one in sent}
    plan = Plan(order=new_order(), apart=Decimal(1), limits=LIMITS)
    spending = Spending(plan=plan, cap=Cap(orders=3, amount=MUCH), level=1, sent=sent, known=known)

    assert [one.name for one in spending.new] == ["empty-object"]
    assert spending.amount_sent == PLAN[0].amount + next(one.amount for one in PLAN if one.name == "order")
