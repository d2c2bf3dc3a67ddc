"""One of each fault, as the marker ``transfer_faults`` plays them: quick, and each with a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from transfer_async.sandbox import (
    FAULTS,
    AnotherOrder,
    CloseAfterProcessing,
    CloseBeforeReading,
    CompressedHugeBody,
    Fault,
    GarbageBody,
    HugeBody,
    Redirect,
    ResetAfterProcessing,
    SlowBytes,
    Status,
    StatusAfterProcessing,
    TruncatedBody,
    TruncatedHead,
    UnsolicitedReply,
    WrongTypes,
)

_TOO_MUCH = 3 << 20  # bytes: more than a client reads by default

EACH_FAULT: Mapping[str, Fault] = MappingProxyType(
    {
        "close-before-reading": CloseBeforeReading(),
        "close-after-processing": CloseAfterProcessing(),
        "reset-after-processing": ResetAfterProcessing(),
        "status-401": Status(401),
        "status-422": Status(422),
        "status-429": Status(429),
        "status-500": Status(500),
        "status-503": Status(503),
        "status-503-after-processing": StatusAfterProcessing(503),
        "redirect": Redirect(),
        "truncated-head": TruncatedHead(),
        "truncated-body": TruncatedBody(),
        "garbage-body": GarbageBody(),
        "wrong-types": WrongTypes(),
        "another-order": AnotherOrder(),
        "slow-bytes": SlowBytes(delay=0.0, size=1024),
        "huge-body": HugeBody(_TOO_MUCH),
        "compressed-huge-body": CompressedHugeBody(_TOO_MUCH),
        "unsolicited-reply": UnsolicitedReply(),
    }
)
"""By name: every fault of the sandbox that comes to its end by itself.

The stalls, and ``broken-chunk``, may last as long as the client's own time-outs: name them
(``transfer_faults("stall-after-processing")``), and give the client short ones.
"""


def named_faults(wanted: Iterable[str | Fault]) -> dict[str, Fault]:
    """The faults that a marker names, in its order; all of `EACH_FAULT` if it names none.

    Args:
        wanted: names of `EACH_FAULT` or of the sandbox's ``FAULTS``, or faults.

    Raises:
        ValueError: there is no fault of such a name.
    """
    found = dict(map(_with_name, wanted))
    return found or dict(EACH_FAULT)


def _with_name(wanted: str | Fault) -> tuple[str, Fault]:
    if isinstance(wanted, Fault):
        return repr(wanted), wanted
    if wanted in EACH_FAULT:
        return wanted, EACH_FAULT[wanted]
    if wanted in FAULTS and wanted not in (Status.name, StatusAfterProcessing.name):
        return wanted, FAULTS[wanted]()
    raise ValueError(f"there is no fault {wanted!r}; there are {', '.join((*EACH_FAULT, *FAULTS))}")
