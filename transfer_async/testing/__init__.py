"""What a bank's own tests take: a sandbox for every kind of test, time in their hands, and what to assert."""

from transfer_async.testing.assertions import (
    HasOrders,
    assert_hold_kept,
    assert_hold_released,
    assert_no_order,
    assert_one_order,
)
from transfer_async.testing.client_protocol import AnyClient
from transfer_async.testing.each_fault import EACH_FAULT
from transfer_async.testing.fake_client import FakeClient
from transfer_async.testing.holds import Held, Holds
from transfer_async.testing.hook_trials.rules import BrokenRule, HookReport, HookRule
from transfer_async.testing.hook_trials.run_trials import verify_hooks
from transfer_async.testing.makers import make_intent, make_new_order, make_order, make_user
from transfer_async.testing.manual_clock import ManualClock
from transfer_async.testing.running_sandbox import RunningSandbox

__all__ = [
    "EACH_FAULT",
    "AnyClient",
    "BrokenRule",
    "FakeClient",
    "HasOrders",
    "Held",
    "Holds",
    "HookReport",
    "HookRule",
    "ManualClock",
    "RunningSandbox",
    "assert_hold_kept",
    "assert_hold_released",
    "assert_no_order",
    "assert_one_order",
    "make_intent",
    "make_new_order",
    "make_order",
    "make_user",
    "verify_hooks",
]
