"""One message of each kind of disposition, end to end on a real broker."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.bank import Gate, new_order
from tests.worker.case import DELAYS
from tests.worker.sides import on_nats
from transfer_async import RetryPolicy
from transfer_async.journal.transitions import Create
from transfer_async.sandbox import CloseAfterProcessing
from transfer_async.worker.handler import Action

LEASE = 60.0
"""The lease in seconds: so long that none expires by itself on a slow machine."""

# --- how each result arises ---------------------------------------------------------------------------


async def created(case):
    pass


async def in_doubt(case):
    case.sandbox.faults.add(CloseAfterProcessing())


async def bad_token(case):
    case.token = lambda: "run-out"
    case.client_settings["retry"] = RetryPolicy(attempts=2, deadline=1.0)

    async def heal():
        case.token = None

    case.heal = heal


async def failing_hook(case):
    errors = [OSError()]

    async def check(intent):
        if errors:
            raise errors.pop()

    case.hooks = [check, case.bank.hold]


async def busy_key(case):
    """Let another worker hold the key until this worker's first attempt is rejected.

    The journal's clock stands still just before the end of the other worker's lease.
    """
    gate = Gate()
    case.bank.on_place = gate
    case.client_settings["lease"] = LEASE
    case.utc = datetime.now(UTC)
    client = case.client()
    other = await gate.catches(client.create_order(new_order(), key="k"))
    case.utc += timedelta(seconds=LEASE - 0.1)

    async def heal():
        gate.open()
        await other
        await client.close()

    case.heal = heal


async def failing_journal(case):
    case.journal.fail_on = Create

    async def heal():
        case.journal.fail_on = None

    case.heal = heal


ROWS = [
    (created, Action.ACK, "the order exists"),
    (in_doubt, Action.ACK, "in doubt: the journal keeps the key, and nothing is sent again"),
    (bad_token, Action.RETRY, "the service does not accept the token"),
    (failing_hook, Action.RETRY, "a hook failed"),
    (busy_key, Action.RETRY, "another worker is processing the key"),
    (failing_journal, Action.LEAVE, "the journal failed after the order may have been sent"),
]


@pytest.mark.parametrize(
    ("arrange", "action", "reason"), ROWS, ids=lambda value: getattr(value, "__name__", "")
)
@on_nats
async def test_a_message_is_acknowledged_or_redelivered_by_its_result(case, arrange, action, reason):
    await arrange(case)
    run = await case.worker()
    await case.side.send(case.body)
    first = await case.handled()

    what = first.handled.disposition
    assert (what.action, what.reason, first.deliveries) == (action, reason, 1)
    if action is not Action.ACK:
        if not what.ready:
            run.health.checks.clear()  # on a slow machine, the checks would last until the next attempt
            assert any(reason in why for why in await run.health.not_ready())
        second = await case.handled()
        assert second.deliveries > 1
        if action is Action.RETRY:
            assert second.began - first.ended >= what.after - 0.001
            assert what.after >= DELAYS.first
    outcome = await case.side.outcome()
    assert outcome["outcome"] == ("unknown" if arrange is in_doubt else "created")
    if not what.ready:
        await run.ready()
    await case.side.gone()
    assert len(case.sandbox.orders) == 1


@on_nats
async def test_a_message_that_is_no_command_is_dead_lettered_with_the_reason(case, worker):
    await case.side.send(b'{"version": 1, \xff', {"x-origin": "a test"})

    body, headers = await case.side.dead_letter()
    assert body == b'{"version": 1, \xff'
    assert headers["Transfer-Reason"].startswith("the command is not valid")
    assert headers["x-origin"] == "a test"
    await case.side.gone()
    assert await case.side.published() == 0


@on_nats
async def test_the_message_of_a_cancelled_worker_is_carried_out_by_another(case):
    gate = Gate()
    case.bank.on_place = gate
    run = await case.worker()
    await case.side.send(case.body)
    await gate.reached.wait()
    case.bank.on_place = None

    await run.kill()
    assert isinstance((await case.handled()).result, asyncio.CancelledError)
    gate.open()
    await case.worker()

    assert (await case.side.outcome())["outcome"] == "created"
    await case.side.gone()
    assert len(case.sandbox.orders) == 1
