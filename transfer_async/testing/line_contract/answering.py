"""What is said of a message to its broker: acknowledged, given back, parked, beaten for, or nothing."""

from __future__ import annotations

import asyncio
import time

from transfer_async.testing.line_contract.delivering import HEADERS
from transfer_async.testing.line_contract.line_trial import LineTrial, soon

REASON = "Transfer-Reason"

TICKS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)
"""Turns of the loop after which the putting aside of a message is cut off."""


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
        await (await hand.take()).park("the command is not valid: $: is not an object")
        parked = await line_trial.parked()

        assert parked.body == b"\xff no command"
        assert HEADERS.items() <= parked.headers.items()
        assert parked.headers[REASON] == "the command is not valid: $: is not an object"
        assert await line_trial.come_again(hand) == []

    async def test_what_is_cut_off_while_it_is_put_aside_is_still_there(self, line_trial: LineTrial) -> None:
        """In the queue or among the parked, or both: an order that is in neither is never paid."""
        bodies = {b"cut off after %d" % ticks: ticks for ticks in TICKS}
        hand = await line_trial.hand()
        for body, ticks in bodies.items():
            await line_trial.send(body)
            taken = await hand.take()  # or one of those before it, which came again
            parking = asyncio.create_task(taken.delivery.park("not valid"))
            for _ in range(ticks):
                await asyncio.sleep(0)
            parking.cancel()
            await soon(asyncio.wait([parking]), "what was cut off has ended")
        await hand.go()

        assert await line_trial.lost(bodies) == set()

    async def test_whatever_the_reason_a_message_can_be_parked(self, line_trial: LineTrial) -> None:
        """It names a field of the message's, which may be called anything."""
        await line_trial.send(b"odd")
        hand = await line_trial.hand()
        await (await hand.take()).park("not valid: nä\r\nme\x00: " + "№" * 5000)
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
