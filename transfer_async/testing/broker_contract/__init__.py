"""How messages come: whole, to one worker each, and no sooner than they are asked for."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio

from transfer_async import OrderCommand, OrderOutcome, Outcome
from transfer_async.integrations.faststream import Broker
from transfer_async.testing.broker_contract.broker_harness import (
    PATIENCE,
    Crew,
    LineTrial,
    NewLine,
    Taken,
    soon,
)
from transfer_async.testing.broker_contract.killed_worker import (
    PARKING,
    PAUSES,
    POINTS,
    Place,
    put_aside_until_killed,
    work,
)
from transfer_async.testing.makers import make_new_order

__all__ = ["BrokerContract"]

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-origin": "a trial"}


class Delivering:
    """How messages come: whole, to one worker each, and no sooner than they are asked for."""

    async def test_a_message_comes_as_it_was_sent(self, line_trial: LineTrial) -> None:
        """Whatever it is: what cannot be read must be dead-lettered, byte for byte."""
        bodies = {b"{}", b"", b"\xff\x00\r\n" * 40, "ü№".encode(), b"x" * 100_000}
        for body in bodies:
            await line_trial.send(body, HEADERS)
        hand = await line_trial.hand()
        taken = [await hand.take() for _ in bodies]

        assert {item.body for item in taken} == bodies
        assert [HEADERS.items() <= item.headers.items() for item in taken] == [True] * len(bodies)
        assert [item.deliveries for item in taken] == [1] * len(bodies)

    async def test_a_command_that_is_ordered_comes_as_one(self, line_trial: LineTrial) -> None:
        command = OrderCommand(key="k", order=make_new_order())
        async with line_trial.sender() as line:
            await line.order(command, HEADERS)
        taken = await (await line_trial.hand()).take()

        assert OrderCommand.from_json(taken.body) == command
        assert HEADERS.items() <= taken.headers.items()

    async def test_each_message_goes_to_one_of_the_workers(self, line_trial: LineTrial) -> None:
        hands = [await line_trial.hand(), await line_trial.hand()]
        bodies = {b"%d" % number for number in range(6)}
        for body in bodies:
            await line_trial.send(body)
        taken = [await hands[number % 2].take() for number in range(6)]

        assert {item.body for item in taken} == bodies
        assert [item.deliveries for item in taken] == [1] * 6

    async def test_what_was_sent_before_there_was_a_worker_comes(self, line_trial: LineTrial) -> None:
        await line_trial.send(b"early")
        hand = await line_trial.hand()

        assert (await hand.take()).body == b"early"

    async def test_what_nobody_works_on_is_not_fetched(self, line_trial: LineTrial) -> None:
        """It would wait in a worker that is busy, without a sign of life, beside others that are not."""
        bodies = {b"%d" % number for number in range(4)}
        for body in bodies:
            await line_trial.send(body)
        busy, free = await line_trial.hand(), await line_trial.hand()
        taken = [await busy.take(), *[await free.take() for _ in range(3)]]

        assert {item.body for item in taken} == bodies
        assert [item.deliveries for item in taken] == [1] * 4

    async def test_who_waits_in_vain_is_told_so_in_the_end_and_not_at_once(
        self, line_trial: LineTrial
    ) -> None:
        """A worker takes what comes at once for a connection that is closed."""
        lane = await (await line_trial.hand()).lane()
        began = time.monotonic()

        assert await lane.get_one(timeout=0.4) is None
        assert time.monotonic() - began >= 0.2

    async def test_who_stops_waiting_takes_no_message_along(self, line_trial: LineTrial) -> None:
        hand = await line_trial.hand()
        lane = await hand.lane()
        waiting = asyncio.create_task(lane.get_one(timeout=0.4))
        await asyncio.sleep(0)
        await line_trial.send(b"meanwhile")
        waiting.cancel()
        await asyncio.wait([waiting])
        await lane.stop()

        assert (await hand.take()).body == b"meanwhile"

    async def test_what_is_made_again_is_left_as_it_is(self, line_trial: LineTrial) -> None:
        """A worker prepares its line every few seconds."""
        for body in (b"in hand", b"waiting"):
            await line_trial.send(body)
        hand = await line_trial.hand()
        in_hand = await hand.take()
        for _ in range(2):
            await hand.line.prepare()
            await hand.line.prepare(only_to_send=True)
        waiting = await hand.take()
        await in_hand.ack()

        assert {in_hand.body, waiting.body} == {b"in hand", b"waiting"}
        assert waiting.deliveries == 1


# --- answering ---------------------------------------------------------------------------------------
# What is said of a message to its broker: acknowledged, given back, parked, beaten for, or nothing.


REASON = "Transfer-Reason"

CUTS = 12
"""How many answers are cut off: from the first turn of the loop to shortly before their end."""


class Answering:
    """What is said of a message to its broker: acknowledged, given back, parked, beaten for, or nothing."""

    async def test_what_is_acknowledged_never_comes_again(self, line_trial: LineTrial) -> None:
        await line_trial.send(b"done")
        hand = await line_trial.hand()
        await (await hand.take()).ack()

        assert await line_trial.come_again(hand) == []

    async def test_what_nobody_answers_comes_again_whole_and_says_so(self, line_trial: LineTrial) -> None:
        await line_trial.send(b"\xff left", HEADERS)
        hand, other = await line_trial.hand(), await line_trial.hand()
        first = await hand.take()
        second = await other.take()

        assert (first.body, second.body) == (b"\xff left", b"\xff left")
        assert HEADERS.items() <= second.headers.items()
        assert (first.deliveries, second.deliveries) == (1, 2)

    async def test_what_a_worker_has_in_hand_when_it_ends_comes_to_another(
        self, line_trial: LineTrial
    ) -> None:
        await line_trial.send(b"in hand")
        hand = await line_trial.hand()
        await hand.take()
        await hand.go()
        again = await (await line_trial.hand()).take()

        assert (again.body, again.deliveries) == (b"in hand", 2)

    async def test_what_is_given_back_comes_again_whole_and_not_before_its_delay(
        self, line_trial: LineTrial
    ) -> None:
        await line_trial.send(b"\xff later", HEADERS)
        hand = await line_trial.hand()
        first = await hand.take()
        began = time.monotonic()
        await first.retry(0.4)
        second = await hand.take()

        assert time.monotonic() - began >= 0.4
        assert second.body == b"\xff later"
        assert HEADERS.items() <= second.headers.items()
        assert second.deliveries == 2

    async def test_what_waits_out_its_delay_keeps_nothing_back(self, line_trial: LineTrial) -> None:
        await line_trial.send(b"in an hour")
        hand = await line_trial.hand()
        await (await hand.take()).retry(3600.0)
        await line_trial.send(b"now")
        taken = await hand.take()

        assert (taken.body, taken.deliveries) == (b"now", 1)

    async def test_what_is_given_back_waits_at_the_broker_and_not_in_the_worker(
        self, line_trial: LineTrial
    ) -> None:
        await line_trial.send(b"given back")
        hand = await line_trial.hand()
        await (await hand.take()).retry(0.1)
        await hand.go()
        again = await (await line_trial.hand()).take()

        assert (again.body, again.deliveries) == (b"given back", 2)

    async def test_there_is_no_end_of_deliveries_and_each_is_counted(self, line_trial: LineTrial) -> None:
        """When to give up is the journal's to say: a broker that does by itself loses an order."""
        await line_trial.send(b"again and again")
        hand, counted = await line_trial.hand(), []
        for _ in range(8):
            taken = await hand.take()
            counted.append(taken.deliveries)
            await taken.retry(0.0)

        assert counted == [1, 2, 3, 4, 5, 6, 7, 8]

    async def test_what_is_parked_is_put_aside_whole_with_the_reason_and_never_comes_again(
        self, line_trial: LineTrial
    ) -> None:
        await line_trial.send(b"\xff no command", HEADERS)
        hand = await line_trial.hand()
        await (await hand.take()).dead_letter("the command is not valid: $: is not an object")
        parked = await line_trial.parked()

        assert parked.body == b"\xff no command"
        assert HEADERS.items() <= parked.headers.items()
        assert parked.headers[REASON] == "the command is not valid: $: is not an object"
        assert await line_trial.come_again(hand) == []

    @pytest.mark.parametrize("answer", ["park", "retry"])
    async def test_what_is_cut_off_while_it_is_put_aside_or_given_back_is_still_there(
        self, line_trial: LineTrial, answer: str
    ) -> None:
        """In the queue or among the dead letters, or both: an order that is in neither is never paid."""

        def answered(taken: Taken) -> Coroutine[Any, Any, None]:
            return taken.delivery.dead_letter("not valid") if answer == "park" else taken.delivery.retry(0.01)

        await line_trial.send(b"not cut off")
        hand = await line_trial.hand()
        taken, began = await hand.take(), time.monotonic()
        await soon(answered(taken), "the broker took note of an answer")
        took = time.monotonic() - began  # a broker that is far off has done nothing after a few turns
        bodies = [b"cut off after %d of %d" % (part, CUTS) for part in range(CUTS)]
        for part, body in enumerate(bodies):
            await line_trial.send(body)
            taken = await hand.take()  # or one of those before it, which came again
            answering = asyncio.create_task(answered(taken))
            await asyncio.sleep(0)
            await asyncio.wait([answering], timeout=took * part / CUTS)
            answering.cancel()
            await soon(asyncio.wait([answering]), "what was cut off has ended")
        await hand.go()

        assert await line_trial.lost(bodies) == set()

    async def test_whatever_the_reason_a_message_can_be_parked(self, line_trial: LineTrial) -> None:
        """It names a field of the message's, which may be called anything."""
        await line_trial.send(b"odd")
        hand = await line_trial.hand()
        await (await hand.take()).dead_letter("not valid: nä\r\nme\x00: " + "№" * 5000)
        parked = await line_trial.parked()

        assert parked.body == b"odd"
        assert parked.headers[REASON].startswith("not valid: n")

    async def test_beats_keep_a_message_from_coming_to_anybody_else(self, line_trial: LineTrial) -> None:
        await line_trial.send(b"takes long")
        hand = await line_trial.hand()
        taken = await hand.take()
        async with taken.beaten(every=line_trial.settings.ack_wait / 5):
            assert await line_trial.come_again(hand) == []
        await taken.ack()


# --- confirming --------------------------------------------------------------------------------------
# Outcomes are there once they were published; and what the broker did not confirm is an error.


Away = Callable[[], AbstractAsyncContextManager[object]]
"""Takes the broker out of reach, as long as what it gives is open."""

UNKNOWN = OrderOutcome(key="k", intent_id="i", outcome=Outcome.UNKNOWN, order_may_exist=True)
CREATED = OrderOutcome(key="k", intent_id="i", outcome=Outcome.CREATED, order_may_exist=True, order_id="tx-1")
REFUSED = OrderOutcome(key="k", intent_id="i", outcome=Outcome.REFUSED, order_may_exist=True)
FREE = OrderOutcome(key="k", intent_id="i", outcome=Outcome.REFUSED, order_may_exist=False)


def given(broker_away: Away | None) -> Away:
    """How to take the broker away; without it the test is left out, and says why."""
    if broker_away is None:
        pytest.skip("give BrokerContract a fixture broker_away")
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

        assert {(item["outcome"], item["order_may_exist"]) for item in found} == {
            (item.outcome.value, item.order_may_exist) for item in told
        }

    # --- while the broker is away ---------------------------------------------------------------

    async def test_whatever_the_broker_did_not_confirm_is_an_error(
        self, line_trial: LineTrial, broker_away: Away | None
    ) -> None:
        away = given(broker_away)
        for body in (b"done", b"no command"):
            await line_trial.send(body)
        hand = await line_trial.hand()
        taken = {item.body: item for item in [await hand.take(), await hand.take()]}
        async with away():
            wanted = {
                "publish": hand.line.publish(CREATED, {}),
                "send": hand.line.send(line_trial.settings.outcomes, CREATED.to_json(), {}),
                "ack": taken[b"done"].delivery.ack(),
                "park": taken[b"no command"].delivery.dead_letter("not valid"),
                "ping": hand.line.broker.ping(timeout=1.0),  # false will do, too
            }
            everything = asyncio.gather(*wanted.values(), return_exceptions=True)
            ended = await soon(everything, "what cannot be confirmed has ended")
        ends = dict(zip(wanted, ended, strict=True))
        if not isinstance(ends["ping"], Exception) and not ends["ping"]:
            ends["ping"] = ConnectionError()

        assert [name for name, end in ends.items() if not isinstance(end, Exception)] == []
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
        taken = {item.body: item for item in [await hand.take() for _ in range(3)]}
        await taken[b"parked"].dead_letter("not valid")
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


def _telling_of_failures(failed: asyncio.Event) -> Callable[[Broker], None]:
    """Has a line tell when it could not be opened, or was given up meanwhile."""

    def spoil(line: Broker) -> None:
        opened = line.open

        async def open_(*, only_to_send: bool = False) -> None:
            try:
                await opened(only_to_send=only_to_send)
            except BaseException:
                failed.set()
                raise

        line.open = open_  # type: ignore[method-assign] # for this one line

    return spoil


Work = Callable[[Place, Connection], None]
"""What a process of its own does, until it is killed."""


class Killing:
    """Workers in processes of their own are killed, and what they had in hand is carried out by others."""

    kills: int

    async def test_what_a_killed_worker_had_in_hand_is_carried_out_by_another(self, line_crew: Crew) -> None:
        """In the hook; before the outcome is published; before it is acknowledged; given back."""
        if not self.kills:
            pytest.skip("kills = 0")
        wanted = {f"{point}-{number}" for number in range(self.kills) for point in POINTS}
        for number in range(self.kills):
            await _killed(line_crew, [f"{point}-{number}" for point in POINTS])
        await line_crew.worker()
        told: set[str] = set()
        while told != wanted:
            outcome = await line_crew.trial.outcome()
            assert outcome["outcome"] == "created"
            told.add(outcome["key"])

        assert len(line_crew.sandbox.orders) == len(wanted)
        assert min(deliveries for _, deliveries in line_crew.seen) > 1

    async def test_what_a_killed_worker_was_putting_aside_is_still_there(self, line_crew: Crew) -> None:
        """In the queue or among the dead letters, or both: none is acknowledged before its copy is there."""
        if not self.kills:
            pytest.skip("kills = 0")
        place = _picklable(place_of(line_crew, [PARKING]))
        bodies = [b"put aside %d" % number for number in range(len(PAUSES))]
        for body in bodies:
            await line_crew.trial.send(body)
        await asyncio.to_thread(_live_and_die, place, put_aside_until_killed)

        assert await line_crew.trial.lost(bodies) == set()


def counted(crew: Crew) -> list[int]:
    """The deliveries of the one message that was handled, each counted; a busy machine has more of them."""
    deliveries = [number for _, number in crew.seen]
    assert deliveries == sorted(set(deliveries))
    assert deliveries[0] == 1
    return deliveries


def place_of(crew: Crew, keys: Iterable[str]) -> Place:
    """Where a worker of another process works, and the keys that leave it at their points."""
    keys = frozenset(keys)
    return Place(
        new_line=crew.trial.new_line,
        settings=attrs.evolve(crew.trial.settings, concurrency=len(keys)),
        journal=crew.path,
        base_url=crew.sandbox.base_url,
        token=crew.sandbox.token,
        keys=keys,
    )


async def _killed(crew: Crew, keys: list[str]) -> None:
    """Let a worker of its own process come to where each of ``keys`` leaves it, and kill it there."""
    place = _picklable(place_of(crew, keys))
    for key in keys:
        await crew.order(key)
    await asyncio.to_thread(_live_and_die, place, work)


def _picklable(place: Place) -> Place:
    try:
        pickle.dumps(place)
    except Exception as error:
        why = "new_line must give what can be pickled, as a partial of a class can; or say kills = 0"
        raise AssertionError(why) from error
    return place


def _live_and_die(place: Place, do: Work) -> None:
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=do, args=(place, writer), daemon=True)
    process.start()
    writer.close()
    keys = set(place.keys)
    try:
        while keys:
            keys -= {reached_in(reader, keys)}
    finally:
        process.kill()
        process.join()
        process.close()
        reader.close()


def reached_in(reader: Connection, keys: set[str]) -> str:
    """The next of ``keys`` whose point a worker of its own process has come to."""
    if not reader.poll(PATIENCE):
        raise AssertionError(f"a worker has not come to {sorted(keys)} within {PATIENCE:g} s")
    try:
        return str(reader.recv())
    except EOFError:
        raise AssertionError("a worker of its own process ended by itself: see what it wrote") from None


# --- working -----------------------------------------------------------------------------------------
# What workers make of a line: each command is carried out once, and its outcome told, whatever happens.


class Working:
    """What workers make of a line: each command is carried out once, and its outcome told."""

    async def test_a_command_is_carried_out_and_its_outcome_published(self, line_crew: Crew) -> None:
        at_work = await line_crew.worker()
        await line_crew.order("k")
        outcome = await line_crew.trial.outcome()

        assert (outcome["key"], outcome["outcome"]) == ("k", "created")
        assert [outcome["order_id"]] == list(line_crew.sandbox.orders)
        await at_work.is_ready()

    async def test_a_command_that_comes_twice_is_one_order_with_one_outcome(self, line_crew: Crew) -> None:
        await line_crew.worker()
        for _ in range(2):
            await line_crew.order("k")
        told = [await line_crew.trial.outcome()]
        await line_crew.order("another")
        while told[-1]["key"] == "k":
            told.append(await line_crew.trial.outcome())

        assert [item for item in told if item != told[0]] == told[-1:]
        assert len(line_crew.sandbox.orders) == 2

    async def test_a_trace_goes_from_a_message_into_its_outcome(self, line_crew: Crew) -> None:
        seen: list[str] = []

        @contextmanager
        def around(headers: Mapping[str, str]) -> Iterator[None]:
            seen.append(headers["traceparent"])
            yield

        await line_crew.worker(around=around, inject=lambda: {"traceparent": "00-child"})
        await line_crew.order("k", {"traceparent": "00-parent"})
        _, headers = await line_crew.trial.published()

        assert (seen, headers["traceparent"]) == (["00-parent"], "00-child")

    async def test_what_can_never_be_carried_out_is_parked_and_the_next_goes_on(
        self, line_crew: Crew
    ) -> None:
        await line_crew.worker()
        await line_crew.trial.send(b'{"version": 1, \xff')
        await line_crew.order("k")
        parked, outcome = await line_crew.trial.parked(), await line_crew.trial.outcome()

        assert parked.body == b'{"version": 1, \xff'
        assert parked.headers["Transfer-Reason"].startswith("the command is not valid: ")
        assert (outcome["key"], outcome["outcome"]) == ("k", "created")

    async def test_what_could_not_be_carried_out_now_is_tried_again(self, line_crew: Crew) -> None:
        line_crew.bank.breaks = 2
        await line_crew.worker()
        await line_crew.order("k")

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(counted(line_crew)) >= 3

    async def test_a_message_whose_outcome_could_not_be_published_comes_again(self, line_crew: Crew) -> None:
        errors = [OSError("the disk is full")]

        def spoil(line: Broker) -> None:
            publish = line.publish

            async def failing(outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
                if errors:
                    raise errors.pop()
                await publish(outcome, headers)

            line.publish = failing  # type: ignore[method-assign] # for this one line

        await line_crew.worker(spoil=spoil)
        await line_crew.order("k")

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(counted(line_crew)) >= 2
        assert len(line_crew.sandbox.orders) == 1

    async def test_a_hook_that_takes_long_is_not_run_twice(self, line_crew: Crew) -> None:
        line_crew.bank.hold_up()
        await line_crew.worker(lanes=1)
        await line_crew.order("k")
        await line_crew.bank.has_come()
        idle = await line_crew.trial.hand()

        assert await line_crew.trial.come_again(idle) == []
        line_crew.bank.let_through()
        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(line_crew.bank.placed) == 1

    async def test_workers_share_what_is_there(self, line_crew: Crew) -> None:
        """Each has as many in hand as it has lanes, and leaves the others to the others."""
        line_crew.bank.hold_up()
        for number in range(5):
            await line_crew.order(f"k{number}")
        for _ in range(2):
            await line_crew.worker()
            await line_crew.bank.has_come(line_crew.trial.settings.concurrency)
        line_crew.bank.let_through()
        told = [await line_crew.trial.outcome() for _ in range(5)]

        assert {item["key"] for item in told} == {f"k{number}" for number in range(5)}
        assert len(line_crew.sandbox.orders) == 5

    async def test_a_worker_that_is_stopped_finishes_what_it_has_and_leaves_the_rest(
        self, line_crew: Crew
    ) -> None:
        line_crew.bank.hold_up()
        at_work = await line_crew.worker()
        for number in range(3):
            await line_crew.order(f"k{number}")
        await line_crew.bank.has_come(2)
        line_crew.bank.let_through()
        await at_work.stop()
        told = [await line_crew.trial.outcome() for _ in range(2)]
        await line_crew.worker()
        told.append(await line_crew.trial.outcome())

        assert {item["key"] for item in told} == {"k0", "k1", "k2"}
        assert len(line_crew.bank.placed) == 3

    async def test_what_a_worker_had_in_hand_when_it_was_cut_off_comes_to_another(
        self, line_crew: Crew
    ) -> None:
        line_crew.bank.hold_up()
        at_work = await line_crew.worker()
        await line_crew.order("k")
        await line_crew.bank.has_come()
        await at_work.cut_off()
        line_crew.bank.let_through()
        await line_crew.worker()

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert len(line_crew.sandbox.orders) == 1
        assert [key for key, deliveries in line_crew.seen if deliveries > 1]


# --- line suite --------------------------------------------------------------------------------------
# The whole suite: the tests of every part, and the fixtures they take.


@pytest.mark.asyncio
class BrokerContract(Delivering, Answering, Confirming, Working, Killing):
    """What every line must do: subclass it as ``class TestOurLine(BrokerContract):``.

    Give it one fixture, ``new_line``: what makes a line, not opened yet, of the settings it is given. Each is
    another worker's, and all are at one broker. What is published is read by a line of yours, too::

        class TestOurLine(BrokerContract):
            @pytest.fixture
            def new_line(self, broker):
                return partial(OurLine, broker.address)

    A second one, ``broker_away``, takes the broker out of reach: it is stopped and started again, or its
    connections are cut, and it has then what it had before. Without it the tests of that are left out::

            @pytest.fixture
            def broker_away(self, broker):
                @asynccontextmanager
                async def away():
                    await broker.stop()
                    yield
                    await broker.start()

                return away

    It needs pytest and pytest-asyncio, in either of its modes.
    """

    ack_wait: float = 1.0
    """Seconds after which a message that nobody answers comes again; more for a broker that is slower."""

    kills = 1
    """How many workers are killed, in processes of their own; 0 where a line cannot go to another process."""

    @pytest.fixture
    def new_line(self) -> NewLine:
        """Makes a line of the settings it is given, at one broker: yours."""
        raise NotImplementedError("give BrokerContract a fixture new_line")

    @pytest.fixture
    def broker_away(self) -> Away | None:
        """An async context manager, within which the broker is out of reach: yours, if you can."""
        return None

    @pytest_asyncio.fixture
    async def line_trial(self, new_line: NewLine) -> AsyncIterator[LineTrial]:
        """Hands at the line, with subjects of their own."""
        async with LineTrial(new_line, ack_wait=self.ack_wait) as trial:
            yield trial

    @pytest_asyncio.fixture
    async def line_crew(self, line_trial: LineTrial, tmp_path: Path) -> AsyncIterator[Crew]:
        """Workers at the line."""
        async with Crew(line_trial, tmp_path) as crew:
            yield crew
