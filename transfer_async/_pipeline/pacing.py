"""Waiting for one's turn at the client's rate: before the hold, and again before each request.

An order that cannot have its turn in time is refused at once, as long as nobody's funds are held for it.
"""

from __future__ import annotations

from transfer_async._http.rate import Turnstile
from transfer_async._models.errors import Expired
from transfer_async._models.events import TurnCame
from transfer_async._pipeline.call import Call
from transfer_async._pipeline.context import Context
from transfer_async._pipeline.time_limits import NAMED, limit_passed, patience
from transfer_async._support.deadlines import NEVER


async def wait_for_turn(context: Context, call: Call, turnstile: Turnstile, *, until: float = NEVER) -> None:
    """Wait until the order may go on, but not beyond ``until``, on the client's clock.

    Raises:
        Expired: its turn comes too late, which is said at once where it is known.
        asyncio.CancelledError: the call was abandoned.
    """
    work = call.work
    ahead = turnstile.ahead
    try:
        with call.cancellation.stoppable():
            waited = await turnstile.turn(within=patience(context.clock, work, until))
    except TimeoutError:
        limit = limit_passed(context.clock, work, ahead) or "deadline"
        why = f"{NAMED[limit]} comes before the order's turn: {ahead:.3g} s were to wait at the client's rate"
        raise Expired(why, limit=limit) from None
    if waited:
        context.tell(TurnCame, work, waited=waited)
