"""Every row of the table of dispositions, on every broker, end to end."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.bank import Gate, new_order, other_order, refused_order
from tests.support.ports import held_port
from tests.worker.case import DELAYS, LABELS, command, row_of
from transfer_async import BeneficiaryNotVerified, MatchResult, PreflightFailed, RetryPolicy
from transfer_async._models.errors import ServiceFailed
from transfer_async.journal.transitions import Claim, Create
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, Status
from transfer_async.worker.disposition import RULES, Action

LEASE = 60.0
"""Seconds: however busy the machine, it is not over by the worker's own time."""

# --- how each result arises ---------------------------------------------------------------------------


async def created(case):
    pass


async def already_created(case):
    """Put the key in doubt and have an operator resolve it."""
    await in_doubt(case)
    async with case.client() as client:
        with pytest.raises(Exception, match="processed"):
            await client.create_order(new_order(), key="k")
        await client.resolve("k", order_id=next(iter(case.sandbox.orders)), by="ops", reason="seen")


async def in_doubt(case):
    case.sandbox.faults.add(CloseAfterProcessing())


async def a_bad_token(case):
    case.token = lambda: "run-out"
    case.client_settings["retry"] = RetryPolicy(attempts=2, deadline=1.0)

    async def heal():
        case.token = None

    case.heal = heal


def answered(status, **how):
    async def answer(case):
        case.sandbox.faults.add(Status(status, **how))

    return answer


async def refused(case):
    case.body = command(order=refused_order()).to_json()


def hook_that(error, *, for_ever=False):
    async def make(case):
        errors = [error]

        async def check(intent):
            if errors:
                raise errors[0] if for_ever else errors.pop()

        case.hooks = [check, case.bank.hold]

    return make


async def no_hold(case):
    case.hooks = []


async def too_late(case):
    case.body = command(send_before=datetime(2020, 1, 1, tzinfo=UTC)).to_json()


async def busy(case):
    """Another worker holds the key until this worker's first attempt is rejected.

    By the journal's time, which stands still, their lease has a moment left: for so long it is sent away.
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


async def no_token(case):
    def fail():
        raise OSError

    case.token = fail

    async def heal():
        case.token = None

    case.heal = heal


async def out_of_reach(case):
    """The service is down and starts later."""
    port = case._stack.enter_context(held_port())
    case.base_url = f"http://127.0.0.1:{port}"

    async def heal():
        case.sandbox = Sandbox(port=port, token=case.good_token)
        await case._stack.enter_async_context(case.sandbox)

    case.heal = heal


def journal_down_at(move):
    async def down(case):
        case.journal.fail_on = move

        async def heal():
            case.journal.fail_on = None

        case.heal = heal

    return down


async def not_a_command(case):
    case.body = b'{"version": 1, \xff'


async def another_order(case):
    async with case.client() as client:
        await client.create_order(other_order(), key="k")


async def closed(case):
    run = case.runs[0]
    await run.client.close()

    async def heal():
        run.stopping.set()
        await case.worker()

    case.heal = heal


async def cancelled(case):
    gate = Gate()
    case.bank.on_place = gate

    async def kill():
        await gate.reached.wait()
        case.bank.on_place = None
        await case.runs[0].kill()
        gate.open()
        await case.worker()

    case.beside = asyncio.create_task(kill())


def raised(error):
    async def break_(case):
        client, errors = case.runs[0].client, [error]
        run = client._run

        async def broken(call):
            if errors:
                raise errors.pop()
            return await run(call)

        client._run = broken

    return break_


WAYS = {
    "the order exists": created,
    "the order exists, and its id is known": already_created,
    "in doubt: the journal keeps the key, and nothing is sent again": in_doubt,
    "the service does not accept the token": a_bad_token,
    "the service was not found at this base URL": answered(404),
    "the service was not found at this base URL (again)": answered(405),
    "the service is overloaded and did nothing": answered(429),
    "the service did nothing, but might later": answered(425),
    "the service refused the order for good": refused,
    "the beneficiary could not be looked up": hook_that(
        BeneficiaryNotVerified("", result=MatchResult.NOT_POSSIBLE)
    ),
    "the beneficiary check refused the order": hook_that(
        BeneficiaryNotVerified("", result=MatchResult.NO_MATCH), for_ever=True
    ),
    "no hold: the worker has no hold hook, and the command no `held`": no_hold,
    "a hook refused": hook_that(PreflightFailed("too much"), for_ever=True),
    "a hook failed": hook_that(OSError()),
    "send_before passed before the order could be sent": too_late,
    "another worker processes the key": busy,
    "the token is not available": no_token,
    "the service cannot be reached": out_of_reach,
    "the journal failed before anything was sent": journal_down_at(Claim),
    "the journal failed after the order may have been sent": journal_down_at(Create),
    "the command is not valid": not_a_command,
    "the key is bound to a different order": another_order,
    "the client is closing": closed,
    "the worker is stopping": cancelled,
    "an error that create_order is not known to raise": raised(ServiceFailed()),
    "an error inside the worker": raised(RuntimeError()),
}

AFTERWARDS = {
    closed,
    cancelled,
    WAYS["an error that create_order is not known to raise"],
    WAYS["an error inside the worker"],
}
"""Those that are done to a worker that runs already."""


def test_every_row_has_a_case():
    assert list(WAYS) == LABELS


@pytest.mark.parametrize("label", LABELS)
async def test_each_row_of_the_table_on_a_real_broker(case, label):
    number, way = LABELS.index(label), WAYS[label]
    row = RULES[number]
    if way in AFTERWARDS:
        run = await case.worker()
        await way(case)
    else:
        await way(case)
        run = await case.worker()
    orders_before = len(case.sandbox.orders)

    await case.side.send(case.body, {"x-origin": "a test"})
    first = await case.handled()

    assert row_of(first.result) == number
    assert first.deliveries == 1
    if row.action is Action.ACK:
        await expect_acked(case, first)
    elif row.action is Action.DEAD_LETTER:
        await expect_dead_letter(case, row)
        assert len(case.sandbox.orders) == orders_before
    else:
        await expect_again(case, run, row, first)
    await case.side.gone()
    assert len(case.sandbox.orders) <= max(1, orders_before)


async def expect_acked(case, first):
    """Expect an outcome, and the same one for a redelivery without another request."""
    told = await case.side.outcome()
    assert told["outcome"] == first.handled.outcome.outcome.value
    assert told["key"] == "k"
    assert told.get("order_id") == first.handled.outcome.order_id
    await case.side.gone()


async def expect_dead_letter(case, row):
    body, headers = await case.side.dead_letter()
    assert body == case.body
    assert headers["Transfer-Reason"].startswith(row.reason)
    assert headers["x-origin"] == "a test"
    assert await case.side.published() == 0


async def expect_again(case, run, row, first):
    if not row.ready:
        run.health.checks.clear()  # looks take time, and it may be well again by then
        assert any(row.reason in why for why in await run.health.not_ready())
    second = await case.handled()
    assert second.deliveries > 1 or row.reason == "the worker is stopping"
    if row.action is Action.RETRY:
        assert second.began - first.ended >= first.handled.disposition.after - 0.001
        assert first.handled.disposition.after >= DELAYS.first
    told = await case.side.outcome()
    while told["outcome"] == "unknown" and row.action is Action.RETRY:
        told = await case.side.outcome()
    assert told["outcome"] == "created"  # an order that was not recorded is, when its key comes again
    if not row.ready:
        await run.ready()
