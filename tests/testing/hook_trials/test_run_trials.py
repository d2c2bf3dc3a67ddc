"""The hook trials: right hooks pass, and each wrong hook is reported with the rule that it breaks."""

import asyncio
import re
import sys
from decimal import Decimal

import pytest

from tests.support.trials import mostly_in_trials
from tests.testing.hook_trials import right_banks, wrong_banks
from tests.testing.hook_trials.right_banks import Bank, CoreSystem, factory_of
from transfer_async.testing import BrokenRule, Holds, HookReport, hook_trials, make_new_order, verify_hooks
from transfer_async.testing import hook_rules as rules
from transfer_async.testing.hook_harness import Cut, Cuttable, HookHarness, RuleBroken, make_bank

NO_PROCESS = (
    "in-memory state of your modules was not tested: no worker could be started in a new process "
    "(ValueError: the factory cannot be imported by name)"
)


def verified(bank, **settings):
    return verify_hooks(lambda: bank, **{"sequences": 0, **settings})


def broken(report):
    return {one.rule.name for one in report.broken}


# --- right and wrong hooks ---------------------------------------------------------------------------


async def test_hooks_on_a_dict_keep_the_rules():
    bank = right_banks.LockingBank()

    report = await verified(bank, sequences=20)

    report.check()
    assert str(report).splitlines()[-1].startswith("all rules kept, in ")
    assert report.notes == (NO_PROCESS,)
    assert not bank.rows


async def test_the_ledger_for_tests_keeps_the_rules():
    holds = Holds()
    (await verified({"hooks": [holds.hook], "held": holds.held}, sequences=5)).check()


@pytest.mark.usefixtures("blocking_bank")
@pytest.mark.parametrize(
    "right",
    mostly_in_trials(right_banks.RIGHT, often=(right_banks.SimpleBank,)),
    ids=lambda kind: kind.__name__,
)
async def test_right_hooks_of_every_style_pass_on_an_account_with_room_for_six_holds(right):
    async with factory_of(right) as factory:
        (await verify_hooks(factory, sequences=5, late=0.01)).check()


@pytest.mark.usefixtures("blocking_bank")
@pytest.mark.parametrize(
    "wrong",
    mostly_in_trials(wrong_banks.WRONG, often=set(wrong_banks.WRONG) - wrong_banks.SLOW),
    ids=lambda kind: kind.__name__,
)
async def test_each_wrong_bank_breaks_exactly_one_rule(wrong):
    rule = wrong_banks.WRONG[wrong]
    patience = 0.2 if rule == "comes-back" else 10.0
    async with factory_of(wrong) as factory:
        report = await verify_hooks(factory, sequences=0, patience=patience, late=0.02)

    assert [one.rule.name for one in report.broken] == [rule]
    with pytest.raises(AssertionError, match="the hooks break 1 rule\n"):
        report.check()


async def test_a_fault_that_needs_three_steps_is_found_and_shortened():
    report = await verified(wrong_banks.KnowsTheLastOne(), sequences=500, seed=3)

    (seen,) = report.broken
    assert (seen.rule.name, seen.trial) == ("asked-again", "a random sequence")
    assert len([step for step in seen.did if step.startswith("place(")]) == 3
    assert str(await verified(wrong_banks.KnowsTheLastOne(), sequences=500, seed=3)) == str(report)


async def test_a_hold_that_arrives_late_is_waited_for():
    """If the bank has no balances, nothing else shows such a hold before the end of all trials."""
    bank = wrong_banks.ArrivesLate()
    bank.delay = 0.002

    assert "too-late" in broken(await verified({"hooks": bank.hooks, "held": bank.held}, late=0.1))


async def test_a_late_hold_is_attributed_to_the_trial_that_requested_it():
    class ArrivesInTheNext(Bank):
        waiting = None

        async def place(self, intent):
            if self.waiting is not None:
                waiting, self.waiting = self.waiting, None
                await super().place(waiting)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.waiting = intent
                raise
            return await super().place(intent)

    (seen,) = (await verified(ArrivesInTheNext())).broken

    assert seen.rule.name == "too-late"
    assert len([step for step in seen.did if step.startswith("place(A), cancelled")]) == 1


async def test_sequences_find_a_shared_hold_and_a_lost_hold_of_another_key():
    class OneForAll(Bank):
        async def held(self, intent_id):
            return [*self.core.holds][:1]

    class LosesThem(Bank):
        async def place(self, intent):
            reference = await super().place(intent)
            if len(self.core.holds) == 3:
                del self.core.holds[next(iter(self.core.holds))]
            return reference

    for bank, rule in ((OneForAll(), "by-intent"), (LosesThem(), "others")):
        harness = HookHarness(await make_bank(lambda made=bank: made), "", patience=10.0, another=None)
        with pytest.raises(RuleBroken) as seen:
            await hook_trials.play(
                harness, [hook_trials.Step(at, undo=False, cut=None, knows=True) for at in (0, 1, 2)]
            )
        assert seen.value.broken.rule.name == rule


async def test_a_hook_with_many_awaits_is_cancelled_only_at_the_first_ones(monkeypatch):
    monkeypatch.setattr(hook_trials, "MAX_AWAITS", 4)

    class Slow(Bank):
        async def release(self, intent, reference):
            await super().release(intent, reference)
            for _ in range(5):
                await asyncio.sleep(0)

    report = await verified(Slow())

    report.check()
    assert report.notes == (
        NO_PROCESS,
        "a hook has more than 4 awaits: it was interrupted only at the first 4",
    )


async def test_a_hook_receives_the_cancellation_at_the_step_that_it_awaits():
    received = []

    async def hook():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            received.append(True)
            raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(Cuttable(hook(), Cut(1, acted=False)))

    assert received


async def test_closing_a_cancellable_hook_runs_its_cleanup():
    """A program may stop in the middle of a trial."""
    ended = []

    async def hook():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    steps = Cuttable(hook(), Cut(9, acted=False)).__await__()
    next(steps)
    steps.close()

    assert ended


# --- the balance ------------------------------------------------------------------------------------

PAID_TWICE = """Without a hold, release moves no money.
  trial  an undo that is repeated
"""


async def test_money_paid_back_twice_is_found_only_by_the_balance():
    """The bank's ``balance`` returns the account objects themselves, not a copy."""
    bank = wrong_banks.PaysBackEachTime()

    report = await verified(bank)
    unseen = await verified({"hooks": bank.hooks, "held": bank.held})

    assert broken(report) == {"paid-back"}
    assert PAID_TWICE in str(report)
    assert "saw    the balance was " in str(report)
    unseen.check()
    assert unseen.notes == ("balances were not checked: the factory has no balance()", NO_PROCESS)


async def test_a_random_sequence_checks_the_balance_that_it_leaves(monkeypatch):
    for trials in ("TRIALS", "CUT_TRIALS"):
        monkeypatch.setattr(hook_trials, trials, {})

    (seen,) = (await verified(wrong_banks.PaysBackEachTime(), sequences=5)).broken

    assert (seen.rule.name, seen.trial) == ("paid-back", "a random sequence")


@pytest.mark.parametrize("balance", [10**30, {"NGN": "1E+30"}, [Decimal(10) ** 27]])
async def test_a_balance_too_large_to_show_a_loss_is_rejected(balance):
    """Decimal rounds off a small change of 10**30, so a bank that pays back too little would pass."""
    bank = Bank()
    with pytest.raises(ValueError, match=r"balance\(\) returned .*: too large .* Use smaller balances"):
        await verified({"hooks": bank.hooks, "held": bank.held, "balance": lambda: balance})


# --- the report -----------------------------------------------------------------------------


async def test_holds_of_a_failed_trial_are_released():
    """Without this, the account would run empty, and later rules would look broken."""
    bank = wrong_banks.ReleasesTheLast()

    assert (broken(await verified(bank)), bank.core.holds) == ({"others"}, {})


async def test_holds_that_cannot_be_released_are_noted_in_the_report():
    class ReleasesNothing(Bank):
        async def release(self, intent, reference):
            await asyncio.sleep(0)

    report = await verified(ReleasesNothing())

    assert broken(report) == {"released"}
    assert any(
        note.startswith("no further trial ran after ") and "the hooks could not release" in note
        for note in report.notes
    )
    assert "place(A) calls your hook for intent A" in str(report)


async def test_an_empty_account_is_reported_only_as_no_room_for_holds():
    bank = Bank()
    bank.core.available = 0

    report = await verified(bank, sequences=100)

    assert broken(report) == {"places"}
    assert "saw    it raised HoldFailed: not enough funds" in str(report)
    assert "funds for six holds" in str(report)


def test_a_broken_rule_without_steps_is_shown():
    rule = BrokenRule(rule=rules.PAID_BACK, trial="a trial", did=(), saw="less")

    assert "  did    nothing\n  saw    less" in str(HookReport(broken=(rule,), tried=1, seed=0))


EXPECTED = """\
BROKEN   release(intent, None) finds the hold by intent.id.
  trial  an undo without a receipt (and 1 more)
  did    place(A) -> 'hold-1'
         release(A, None)
  saw    one hold is placed for A: hold-1
  costs  place was cancelled, so its reference is lost: the customer's money stays held.
  helps  Find the hold by intent.id; the reference only makes the search faster.
"""


async def test_the_report_explains_a_wrong_hook_in_terms_of_the_bank():
    bank = wrong_banks.NeedsTheReference()
    bank.core.available = Decimal("Infinity")

    report = re.sub(r"hold-\d+", "hold-1", str(await verified(bank)))

    assert EXPECTED in report
    assert report.splitlines()[-1].startswith("1 rule broken, in ")


# --- the factory ---------------------------------------------------------------------------


async def test_a_factory_with_a_new_ledger_each_time_is_noted():
    report = await verify_hooks(lambda: Bank(CoreSystem()), sequences=0)

    report.check()
    assert report.notes == ("a restarted worker was not tested: the factory makes an empty ledger each time",)
    assert str(report).startswith("note     a restarted worker was not tested")


async def test_without_hypothesis_only_the_random_sequences_are_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)

    report = await verified(Bank(), sequences=100)

    assert report.notes == (
        NO_PROCESS,
        "no random sequences were tried: pip install 'transfer_async[testing]'",
    )
    assert report.tried > 14


async def test_holds_are_placed_for_the_factorys_order_even_if_its_amount_is_rounded():
    order = make_new_order(matcher_amount="3.33", exchange_rate="1499.83")
    bank, orders = Bank(), set()

    async def look(intent):
        orders.add(intent.order.matcher_amount)

    (await verified({"hooks": [look, *bank.hooks], "held": bank.held, "order": order})).check()

    assert orders == {order.matcher_amount}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([], "must return hooks and held by name"),
        ({"hooks": Bank().hooks}, "must return hooks and held by name"),
        ({"hooks": Bank().hooks, "held": Bank().held, "balance": 100}, "balance must be a callable"),
        ({"hooks": [], "held": Bank().held}, "the last hook must be the one that places the hold"),
        (
            {"hooks": [right_banks.DailyLimit()], "held": Bank().held},
            "the last hook must be the one that places the hold",
        ),
    ],
)
async def test_a_wrong_factory_result_is_rejected_with_what_is_missing(made, why):
    with pytest.raises(ValueError, match=why):
        await verified(made)


async def test_an_error_outside_the_hooks_is_not_a_broken_rule():
    def held(intent_id):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await verified({"hooks": Bank().hooks, "held": held})


async def test_an_error_in_a_sequence_is_not_a_broken_rule(monkeypatch):
    async def fail(harness, model):
        raise ZeroDivisionError

    monkeypatch.setattr(hook_trials, "_look", fail)

    with pytest.raises(ZeroDivisionError):
        await verified(Bank(), sequences=3)
