"""The matcher bot: it matches whatever waits, about every five minutes (specification, sections 1 and 8)."""

from collections.abc import Awaitable, Callable

from transfer_async.sandbox.service import Service

Sleep = Callable[[float], Awaitable[object]]


def match_all(service: Service) -> list[str]:
    """Match every order that is processing; return their ids in the order of creation."""
    waiting = [order.id for order in service.orders.values() if not order.is_matched]
    for order_id in waiting:
        service.match(order_id)
    return waiting


async def run(match: Callable[[], object], *, every: float, sleep: Sleep) -> None:
    """Call `match` every so many seconds until cancelled."""
    while True:
        await sleep(every)
        match()
