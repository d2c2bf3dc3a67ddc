"""How messages come: whole, to one worker each, and no sooner than they are asked for."""

from __future__ import annotations

import asyncio
import time

from transfer_async import OrderCommand
from transfer_async.testing.line_contract.line_trial import LineTrial
from transfer_async.testing.makers import make_new_order

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-origin": "a trial"}


class Delivering:
    """How messages come: whole, to one worker each, and no sooner than they are asked for."""

    async def test_a_message_comes_as_it_was_sent(self, line_trial: LineTrial) -> None:
        """Whatever it is: what cannot be read must be parked, byte for byte."""
        bodies = {b"{}", b"", b"\xff\x00\r\n" * 40, "ü№".encode(), b"x" * 100_000}
        for body in bodies:
            await line_trial.send(body, HEADERS)
        hand = await line_trial.hand()
        taken = [await hand.take() for _ in bodies]

        assert {one.body for one in taken} == bodies
        assert [HEADERS.items() <= one.headers.items() for one in taken] == [True] * len(bodies)
        assert [one.deliveries for one in taken] == [1] * len(bodies)

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

        assert {one.body for one in taken} == bodies
        assert [one.deliveries for one in taken] == [1] * 6

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

        assert {one.body for one in taken} == bodies
        assert [one.deliveries for one in taken] == [1] * 4

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
