import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from tests.support.bank import Gate, World, failure, new_order, turns
from tests.support.loop_time import LoopTime
from transfer_async import JournalFailed, KeyBusy, KeyState, Timeouts, TransferError
from transfer_async._pipeline.create_order import LeaseKeeper
from transfer_async.journal import transitions


class Renewals:
    """A ``renew`` function that counts its calls and lets a test wait for them."""

    def __init__(self, *, enough: int = 3, error: Exception | None = None) -> None:
        self.made = 0
        self._enough, self._error = enough, error
        self.done = asyncio.Event()

    async def __call__(self) -> None:
        self.made += 1
        if self.made >= self._enough:
            self.done.set()
            if self._error is not None:
                raise self._error
        await asyncio.sleep(0)


async def test_a_quick_block_is_never_renewed():
    renewals = Renewals()
    with LeaseKeeper(renewals, every=60.0):
        pass
    await turns(5)

    assert renewals.made == 0


@pytest.mark.parametrize("error", [None, LookupError()], ids=["ends", "fails"])
async def test_a_long_block_is_renewed_repeatedly_until_it_ends(error: Exception | None):
    renewals = Renewals()
    with suppress(LookupError), LeaseKeeper(renewals, every=0.0):
        await renewals.done.wait()
        if error is not None:
            raise error
    made = renewals.made
    await turns(5)

    assert renewals.made == made >= 3


async def test_renewing_continues_after_a_temporary_journal_failure():
    renewals = Renewals(error=JournalFailed())
    with LeaseKeeper(renewals, every=0.0):
        await renewals.done.wait()
        await turns(20)

    assert renewals.made > 3


async def test_a_lost_lease_ends_the_renewing_but_not_the_block(caplog: pytest.LogCaptureFixture):
    renewals = Renewals(error=KeyBusy())
    with caplog.at_level(logging.WARNING, "transfer_async"), LeaseKeeper(renewals, every=0.0):
        await renewals.done.wait()
        await turns(5)

    assert renewals.made == 3
    assert "(KeyBusy)" in caplog.text


async def test_a_claims_lease_is_renewed_while_a_hook_runs(world: World, loop_time: LoopTime):
    world.bank.on_placed = gate = Gate()
    async with world.client() as client:
        call = await gate.catches(client.create_order(new_order(), key="k"))
        world.time.pass_(30.0)
        await loop_time.pass_(30.0)
        world.time.pass_(31.0)  # the lease of the claim is over, but not the renewed one
        world.bank.on_placed = None
        await failure(client.create_order(new_order(), key="k"), KeyBusy)
        gate.open()
        await call

    entry = await world.entry()
    assert (entry.state, entry.epoch) == (KeyState.CREATED, 1)


async def test_a_claim_is_renewed_while_waiting_for_the_token(world: World, loop_time: LoopTime):
    gate = Gate()

    async def token() -> str:
        await gate()
        return world.sandbox.token

    async with world.client(token=token, timeouts=Timeouts(hook=600.0)) as client:
        call = await gate.catches(client.create_order(new_order(), key="k"))
        world.time.pass_(30.0)
        await loop_time.pass_(30.0)
        world.time.pass_(31.0)  # the lease of the claim is over, but not the renewed one
        second: Any
        (second,) = await asyncio.gather(world.create(), return_exceptions=True)
        gate.open()
        await call

    assert isinstance(second, KeyBusy)
    entry = await world.entry()
    assert (entry.state, entry.epoch) == (KeyState.CREATED, 1)


async def test_a_renewal_in_flight_does_not_lose_a_later_receipt(world: World):
    await world.crash(transitions.MarkSending)
    entry = await world.entry()
    for receipts in ({"a": "1", "b": "2"}, {"a": "1"}):  # the older receipts are written last
        await world.move(
            transitions.RenewLease(
                intent_id=entry.intent_id, epoch=entry.epoch, lease=60.0, receipts=receipts
            )
        )

    assert (await world.entry()).receipts == {"a": "1", "b": "2"}


async def test_a_worker_that_lost_its_claim_in_a_hook_without_a_receipt_places_no_hold(world: World):
    check: Any = world.bank.step("check")
    hooks = [check, world.bank.hold]

    async def pass_(_: object) -> None:
        """Return no receipt."""

    async def sleep_while_another_call_runs(_: object) -> None:
        check.before = pass_
        world.time.pass_(61)
        await world.create(hooks=hooks)

    check.before = sleep_while_another_call_runs
    error = await world.fails(TransferError, hooks=hooks)

    assert error.order_may_exist
    assert len(world.bank.placed) == 1
