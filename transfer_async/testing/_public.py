"""The public names of `transfer_async.testing`, imported from the modules that define them.

The names are in a separate module so that pytest can start without importing them. See
`transfer_async._lazy`.
"""

from transfer_async.testing.assertions import (
    HasOrders,
    Held,
    Holds,
    ManualClock,
    assert_hold_kept,
    assert_hold_released,
    assert_no_order,
    assert_one_order,
    assert_one_payment,
    make_intent,
    make_new_order,
    make_order,
    make_user,
)
from transfer_async.testing.fake_client import EACH_FAULT, AnyClient, FakeClient, RunningSandbox
from transfer_async.testing.hook_rules import BrokenRule, HookReport, HookRule
from transfer_async.testing.hook_trials import verify_hooks

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
    "assert_one_payment",
    "make_intent",
    "make_new_order",
    "make_order",
    "make_user",
    "verify_hooks",
]
