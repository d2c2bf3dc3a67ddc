"""Outcomes are there once they were published; and what the broker did not confirm is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from transfer_async import OrderOutcome, Outcome
from transfer_async.integrations.faststream import Line
from transfer_async.testing.line_contract.crew import Crew
from transfer_async.testing.line_contract.delivering import HEADERS
from transfer_async.testing.line_contract.line_trial import LineTrial, soon

Away = Callable[[], AbstractAsyncContextManager[object]]
"""Takes the broker out of reach, as long as what it gives is open."""

UNKNOWN = OrderOutcome(key="k", intent_id="i", outcome=Outcome.UNKNOWN, order_may_exist=True)
CREATED = OrderOutcome(key="k", intent_id="i", outcome=Outcome.CREATED, order_may_exist=True, order_id="tx-1")
REFUSED = OrderOutcome(key="k", intent_id="i", outcome=Outcome.REFUSED, order_may_exist=True)
FREE = OrderOutcome(key="k", intent_id="i", outcome=Outcome.REFUSED, order_may_exist=False)


def given(broker_away: Away | None) -> Away:
    """How to take the broker away; without it the test is left out, and says why."""
    if broker_away is None:
        pytest.skip("give LineContract a fixture broker_away")
    return broker_away


class Confirming:
    """Outcomes are there once they were published; and what the broker did not confirm is an error."""

    async def test_an_outcome_that_was_published_is_there_with_its_headers(
        self, line_trial: LineTrial
    ) -> None:
        hand = await line_trial.hand()
        await hand.line.publish(CREATED, HEADERS)
        await hand.go()
        tree, headers = await line_trial.published()

        assert (tree["key"], tree["outcome"], tree["order_id"]) == ("k", "created", "tx-1")
        assert HEADERS.items() <= headers.items()

    async def test_an_outcome_that_says_more_of_an_intent_is_not_taken_for_the_one_before(
        self, line_trial: LineTrial
    ) -> None:
        hand = await line_trial.hand()
        told = (UNKNOWN, CREATED, REFUSED, FREE)
        for outcome in told:
            await hand.line.publish(outcome, {})
        found = [await line_trial.outcome() for _ in told]

        assert {(one["outcome"], one["order_may_exist"]) for one in found} == {
            (one.outcome.value, one.order_may_exist) for one in told
        }

    # --- while the broker is away ---------------------------------------------------------------

    async def test_whatever_the_broker_did_not_confirm_is_an_error(
        self, line_trial: LineTrial, broker_away: Away | None
    ) -> None:
        away = given(broker_away)
        for body in (b"done", b"no command"):
            await line_trial.send(body)
        hand = await line_trial.hand()
        taken = {one.body: one for one in [await hand.take(), await hand.take()]}
        async with away():
            wanted = {
                "publish": hand.line.publish(CREATED, {}),
                "send": hand.line.send(line_trial.settings.outcomes, CREATED.to_json(), {}),
                "ack": taken[b"done"].delivery.ack(),
                "park": taken[b"no command"].delivery.park("not valid"),
            }
            everything = asyncio.gather(*wanted.values(), return_exceptions=True)
            ended = await soon(everything, "what cannot be confirmed has ended")
        confirmed = [name for name, end in zip(wanted, ended, strict=True) if not isinstance(end, Exception)]

        assert confirmed == []
        other = await line_trial.hand()
        while (await other.take()).body != b"no command":
            pass

    async def test_what_the_broker_has_confirmed_is_there_when_it_is_back(
        self, line_trial: LineTrial, broker_away: Away | None
    ) -> None:
        away = given(broker_away)
        hand = await line_trial.hand()
        for body in (b"parked", b"given back", b"left"):
            await line_trial.send(body)
        taken = {one.body: one for one in [await hand.take() for _ in range(3)]}
        await taken[b"parked"].park("not valid")
        await taken[b"given back"].retry(0.1)
        await hand.line.publish(CREATED, {})
        await line_trial.send(b"waiting")
        await hand.go()
        async with away():
            pass
        other = await line_trial.hand()
        there = {(await other.take()).body for _ in range(3)}

        assert there == {b"given back", b"left", b"waiting"}
        assert (await line_trial.parked()).body == b"parked"
        assert (await line_trial.outcome())["order_id"] == "tx-1"

    async def test_a_broker_that_goes_and_comes_back_under_a_worker_loses_nothing(
        self, line_crew: Crew, broker_away: Away | None
    ) -> None:
        away, trial, bank = given(broker_away), line_crew.trial, line_crew.bank
        at_work = await line_crew.worker()
        await line_crew.order("before")
        keys = {outcome["key"] for outcome in [await trial.outcome()]}
        bank.hold_up()
        for number in range(4):
            await line_crew.order(f"k{number}")
        await bank.has_come(3)
        await trial.forget_readers()
        async with away():
            bank.let_through()
            await at_work.is_ready(so=False)
        while len(keys) < 5:
            outcome = await trial.outcome()
            assert outcome["outcome"] == "created"
            keys.add(outcome["key"])

        assert keys == {"before", "k0", "k1", "k2", "k3"}
        assert len(line_crew.sandbox.orders) == 5
        await at_work.is_ready()

    async def test_a_broker_that_is_not_there_at_first_is_waited_for(
        self, line_crew: Crew, broker_away: Away | None
    ) -> None:
        away, failed = given(broker_away), asyncio.Event()
        async with away():
            await line_crew.worker(spoil=_telling_of_failures(failed), is_awaited=False)
            await soon(failed.wait(), "the line could not be opened")
        await line_crew.order("k")

        assert (await line_crew.trial.outcome())["outcome"] == "created"


def _telling_of_failures(failed: asyncio.Event) -> Callable[[Line], None]:
    """Has a line tell when it could not be opened, or was given up meanwhile."""

    def spoil(line: Line) -> None:
        opened = line.open

        async def open_(*, only_to_send: bool = False) -> None:
            try:
                await opened(only_to_send=only_to_send)
            except BaseException:
                failed.set()
                raise

        line.open = open_  # type: ignore[method-assign] # for this one line

    return spoil
