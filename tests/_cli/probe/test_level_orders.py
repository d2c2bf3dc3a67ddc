"""Levels 1 and 2: no order beyond the cap, none twice, and none after one that should not have been."""

import asyncio
import json
from decimal import Decimal

import aiohttp
import pytest
from attrs import evolve

from tests.support.bank import new_order
from tests.support.journalling import claim, intent
from tests.support.loop_time import LoopTime
from transfer_async import SQLiteJournal
from transfer_async._cli.probe.level_orders import Spending
from transfer_async._cli.probe.level_reads import Service
from transfer_async._cli.probe.order_plan import NAMES, Cap, admitted, key_of, planned
from transfer_async._cli.probe.relay import Relay
from transfer_async._cli.probe.spending import Ledger, OtherPlan, alone
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, SeenLimits, Status
from transfer_async.sandbox.service import CREATE_ORDER_PATH

from .prober import Watch, made, probed
from .quirks import QUIRKS, Quirky

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
            found = admitted(PLAN, spent, Cap(orders=orders, amount=amount), levels=levels)
            new = [one for one in found if one.name not in spent]
            assert len(new) <= max(0, orders - len(spent))
            assert not new or before + sum(one.amount for one in new) <= amount
            assert {one.level for one in found} <= set(levels)


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


async def test_a_cap_that_was_raised_is_filled_up(sandbox, tmp_path, watch):
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=2)
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=5)

    assert len(sent(sandbox)) == 5


async def test_an_order_in_doubt_and_one_that_was_turned_away_are_spent(sandbox, tmp_path, watch):
    sandbox.faults.add(CloseAfterProcessing(), times=2)
    sandbox.faults.add(Status(429), times=2)
    await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=4)
    run = await probed(sandbox, tmp_path / "a", watch, levels=(1,), orders=4)

    assert len(sent(sandbox)) == 4
    assert [run.profile.answers[name].status for name in NAMES[:4]] == [None, None, 429, 429]


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


async def test_a_service_that_is_not_there_leaves_the_order_spent(sandbox, tmp_path, watch):
    run = made(sandbox, tmp_path / "a", watch, [], levels=(1,), orders=2)
    run = evolve(run, service=evolve(run.service, base_url="http://127.0.0.1:1"))
    await run.run()
    await run.run()

    async with SQLiteJournal(run.orders.journal) as journal:
        spent = await Ledger(journal, scope="http://127.0.0.1:1").spent(PLAN)
    assert spent == {"not-json", "empty-object"}


def test_what_an_earlier_run_has_spent_is_told():
    spending = Spending(
        plan=tuple(PLAN),
        cap=Cap(orders=3, amount=MUCH),
        levels=frozenset({1}),
        spent=frozenset({"not-json", "order"}),
    )

    assert [one.name for one in spending.new] == ["empty-object"]
    assert spending.amount_spent == PLAN[0].amount + next(one.amount for one in PLAN if one.name == "order")
