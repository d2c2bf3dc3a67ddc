"""A small implementation of the transfer order service, for development and tests.

The sandbox follows the specification alone and shares no code with the client, so tests fail if either of
them misinterprets the specification.

    async with Sandbox() as sandbox:
        sandbox.faults.add(CloseAfterProcessing())
        ...  # a client at sandbox.base_url with sandbox.token
        await sandbox.match_now()

To simulate random faults, give each fault the share of orders that it affects. The same seed always produces
the same faults:

    Sandbox(faults={CloseAfterProcessing(): 0.05, Status(429): 0.1}, seed=7)
"""

from transfer_async.sandbox.accounts import (
    DEFAULT_ACCOUNTS,
    Account,
    Accounts,
    CurrencyAccount,
    load_accounts,
)
from transfer_async.sandbox.faults import (
    EVERY_PATH,
    FAULTS,
    AnotherOrder,
    BrokenChunk,
    CloseAfterProcessing,
    CloseBeforeReading,
    CompressedHugeBody,
    Faults,
    GarbageBody,
    HugeBody,
    Redirect,
    ResetAfterProcessing,
    Rule,
    SlowBytes,
    StallAfterProcessing,
    StallBeforeProcessing,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    TruncatedHead,
    UnsolicitedReply,
    WrongTypes,
)
from transfer_async.sandbox.profile import (
    SeenAnswer,
    SeenConnection,
    SeenLimits,
    ServiceProfile,
    load_profile,
)
from transfer_async.sandbox.server import Sandbox
from transfer_async.sandbox.service import Fault, RequestRecord
from transfer_async.sandbox.wire import CreateOrder, Order

__all__ = [
    "DEFAULT_ACCOUNTS",
    "EVERY_PATH",
    "FAULTS",
    "Account",
    "Accounts",
    "AnotherOrder",
    "BrokenChunk",
    "CloseAfterProcessing",
    "CloseBeforeReading",
    "CompressedHugeBody",
    "CreateOrder",
    "CurrencyAccount",
    "Fault",
    "Faults",
    "GarbageBody",
    "HugeBody",
    "Order",
    "Redirect",
    "RequestRecord",
    "ResetAfterProcessing",
    "Rule",
    "Sandbox",
    "SeenAnswer",
    "SeenConnection",
    "SeenLimits",
    "ServiceProfile",
    "SlowBytes",
    "StallAfterProcessing",
    "StallBeforeProcessing",
    "Status",
    "StatusAfterProcessing",
    "TruncatedBody",
    "TruncatedHead",
    "UnsolicitedReply",
    "WrongTypes",
    "load_accounts",
    "load_profile",
]
