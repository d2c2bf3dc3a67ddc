"""What workers make of a line: each command is carried out once, and its outcome told, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from transfer_async import OrderOutcome
from transfer_async.integrations.faststream import Line
from transfer_async.testing.line_contract.crew import Crew


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

        assert [one for one in told if one != told[0]] == told[-1:]
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
        assert line_crew.seen == [("k", 1), ("k", 2), ("k", 3)]

    async def test_a_message_whose_outcome_could_not_be_published_comes_again(self, line_crew: Crew) -> None:
        errors = [OSError("the disk is full")]

        def spoil(line: Line) -> None:
            publish = line.publish

            async def failing(outcome: OrderOutcome, headers: Mapping[str, str]) -> None:
                if errors:
                    raise errors.pop()
                await publish(outcome, headers)

            line.publish = failing  # type: ignore[method-assign] # for this one line

        await line_crew.worker(spoil=spoil)
        await line_crew.order("k")

        assert (await line_crew.trial.outcome())["outcome"] == "created"
        assert line_crew.seen == [("k", 1), ("k", 2)]
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

        assert {one["key"] for one in told} == {f"k{number}" for number in range(5)}
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

        assert {one["key"] for one in told} == {"k0", "k1", "k2"}
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
