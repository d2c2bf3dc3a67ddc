"""What a profile says for the client's settings: each value with its reason; a person applies them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

import attrs
from attrs import field, frozen

from transfer_async._http.retry import REFUSED, RetryPolicy
from transfer_async._http.transport import POOL_KEEPALIVE, Timeouts
from transfer_async.sandbox import SeenAnswer, ServiceProfile, ask_cases

LONGEST_WAIT = 300.0
"""Seconds of ``Retry-After`` that are made room for; who asks for more is not waited for."""

SLOW = 4.0
"""A time-out is so many times what was seen: what is rare is slower than what was seen a few times."""


@frozen(kw_only=True)
class Proposal:
    """Settings, and why.

    Args:
        retry: the policy.
        timeouts: the times of one exchange.
        reasons: of each value, by ``policy.name`` or ``timeouts.name``.
        notes: what the profile says that no setting mends.
    """

    retry: RetryPolicy
    timeouts: Timeouts
    reasons: dict[str, str]
    notes: tuple[str, ...] = field(default=())


def proposed(profile: ServiceProfile) -> Proposal:
    """What a profile says for the client's settings."""
    base, times = RetryPolicy(), Timeouts()
    reasons = {
        "attempts": "nothing was seen that speaks against the default",
        "first_delay": "nothing was seen that speaks against the default",
        "not_processed": "the default: that a status promises that nothing was done, no probe can find out; "
        "add 503 only if the service's operator says so in writing",
    }
    refused, reasons["refused"] = _refused(profile)
    sock_read, total, reasons["sock_read"] = _times(profile, times)
    reasons["total"] = reasons["sock_read"]
    wait = _longest_retry_after(profile)
    max_delay, reasons["max_delay"] = base.max_delay, "no answer asked to wait for longer"
    if wait > base.max_delay:
        max_delay, reasons["max_delay"] = wait, f"an answer asked to wait for {wait:g} s (Retry-After)"
    deadline = max(
        base.deadline, total + 5.0 if total > times.total else 0.0, 2 * wait + total if wait else 0.0
    )
    reasons["deadline"] = (
        "room for two attempts, and for the wait between them" if wait else "room for an answer"
    )
    policy = attrs.evolve(base, refused=refused, max_delay=max_delay, deadline=deadline)
    timeouts = attrs.evolve(times, sock_read=sock_read, total=total)
    return Proposal(retry=policy, timeouts=timeouts, reasons=reasons, notes=tuple(_notes(profile)))


def _refused(profile: ServiceProfile) -> tuple[frozenset[int], str]:
    """The statuses that say no: never one that was seen on an order that exists."""
    with_order = {one.status for one in profile.answers.values() if one.order in ("new", "same")}
    taken = REFUSED & {status for status in with_order if status is not None}
    if taken:
        shown = ", ".join(map(str, sorted(taken)))
        return REFUSED - taken, f"without {shown}: seen on an answer that names an order, so it is no no"
    return REFUSED, "the default: none of these was seen on an answer that names an order"


def _times(profile: ServiceProfile, times: Timeouts) -> tuple[float, float, str]:
    slowest = max((one.within or 0.0 for one in profile.answers.values()), default=0.0)
    if SLOW * slowest <= times.sock_read:
        return times.sock_read, times.total, f"all answers came within {slowest:g} s"
    sock_read = SLOW * slowest
    return (
        sock_read,
        sock_read + 5.0,
        f"an answer took up to {slowest:g} s: {SLOW:g} times that, and 5 s to connect",
    )


def _longest_retry_after(profile: ServiceProfile) -> float:
    asked = [_seconds(one) for one in profile.answers.values()]
    return max((one for one in asked if one <= LONGEST_WAIT), default=0.0)


def _seconds(answer: SeenAnswer) -> float:
    try:
        found = Decimal(answer.headers.get("retry-after") or 0)
    except InvalidOperation:  # a date: how long that was is not kept
        return 0.0
    return float(found) if found.is_finite() and found > 0 else 0.0


def _notes(profile: ServiceProfile) -> Iterator[str]:
    answers, connection = profile.answers, profile.connection
    if connection is not None and connection.closed_by is not None and connection.closed_by <= POOL_KEEPALIVE:
        yield (
            f"an idle connection is closed within {connection.closed_by:g} s, and the client keeps one for "
            f"{POOL_KEEPALIVE:g} s: expect more doubts than elsewhere; give it a session of your own with a "
            "shorter keepalive_timeout"
        )
    wrong = answers.get(ask_cases.WRONG_TOKEN)
    if wrong is not None and wrong.status is not None and not _is_unauthorized(wrong):
        yield f"a wrong token is answered with {wrong.status}, which the client takes for another trouble"
    again = answers.get(ask_cases.SAME_AGAIN)
    if again is not None:
        yield _duplicates(again, answers.get(ask_cases.CUT_AGAIN))
    unclear = [name for name in ask_cases.MUST_BE_REFUSED if _is_unclear(answers.get(name))]
    if unclear:
        yield f"refused without a certain no, so that they end in doubt: {', '.join(unclear)}"


def _is_unauthorized(answer: SeenAnswer) -> bool:
    return answer.status == 401 or (answer.unauthorized and (answer.status or 0) // 100 in (2, 4))


def _is_unclear(answer: SeenAnswer | None) -> bool:
    return answer is not None and answer.order in ("none", "unknown") and answer.status not in REFUSED


def _duplicates(again: SeenAnswer, after_cut: SeenAnswer | None) -> str:
    if again.order == "new":
        return "the same body twice made two orders: only the key and the journal stand between them"
    told = "is answered with the first order" if again.order == "same" else f"is answered with {again.status}"
    what = f"the same body a second time {told}; it is no idempotency key, and the client does not rely on it"
    if after_cut is None or again.order == "unknown":
        return what
    if again.order == "none" and again.status == after_cut.status:
        return f"{what}. A connection cut after the body: the order exists, for its repetition was refused"
    return f"{what}. A connection cut after the body: whether the order existed is unknown"


# --- as words ---------------------------------------------------------------------------------------


def as_lines(proposal: Proposal) -> Iterator[str]:
    """The proposal as a table of settings, and as code."""
    yield "proposed settings, for you to judge and to apply:"
    for name, default, value in _values(proposal):
        change = "" if value == default else f" (default {_shown(default)})"
        yield f"  {name} = {_shown(value)}{change}: {proposal.reasons[name]}"
    yield from (f"note: {note}" for note in proposal.notes)
    yield "as code:"
    yield f"  retry={_code(proposal.retry, RetryPolicy())},"
    yield f"  timeouts={_code(proposal.timeouts, Timeouts())},"


def _values(proposal: Proposal) -> Iterator[tuple[str, object, object]]:
    for made, default in ((proposal.retry, RetryPolicy()), (proposal.timeouts, Timeouts())):
        for one in attrs.fields(type(made)):
            if one.name in proposal.reasons:
                yield one.name, getattr(default, one.name), getattr(made, one.name)


def _code(made: RetryPolicy | Timeouts, default: RetryPolicy | Timeouts) -> str:
    changed = [
        f"{one.name}={_shown(getattr(made, one.name))}"
        for one in attrs.fields(type(made))
        if getattr(made, one.name) != getattr(default, one.name)
    ]
    return f"{type(made).__name__}({', '.join(changed)})"


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(map(str, sorted(value)))}}})"
    return f"{value:g}" if isinstance(value, float) else str(value)
