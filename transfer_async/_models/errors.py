"""Every way a call can fail, and what is certain after each.

::

    TransferError
    ├── InvalidOrder (also ValueError)   NOT_SENT   the order contradicts itself or the specification
    ├── PreflightFailed                  NOT_SENT   a hook refused, or broke
    │   ├── HoldFailed                   NOT_SENT   the bank's ``place`` refused, or broke
    │   ├── HoldRequired                 NOT_SENT   neither a hold hook nor ``held=``
    │   └── BeneficiaryNotVerified       NOT_SENT   close match, no match, or not possible
    ├── ConnectionFailed                 NOT_SENT   no byte of the body left, by evidence
    ├── TokenUnavailable                 NOT_SENT   the token callable failed
    ├── Expired                          NOT_SENT   ``send_before`` or the call's ``deadline`` passed first
    ├── Refused                          REFUSED    the service answered no
    │   ├── Unauthorized                 REFUSED    401, or the specification's "Unauthorized"
    │   ├── RateLimited                  REFUSED    429
    │   └── Refuted                      REFUSED    certain after a doubt: no order, none to come
    ├── OutcomeUnknown                   UNKNOWN    the request may have been processed
    │   └── UnreadableOrder              UNKNOWN    a 2xx that is not readably our order
    ├── AlreadyCreated                   CREATED    the order exists; only its id is known here
    ├── KeyConflict                      NOT_SENT   the key is bound to a different order
    ├── KeyBusy                          NOT_SENT   another task or worker is at work on the key
    ├── JournalFailed                    (certain)  the journal could not be read or written
    ├── ClientClosed                     NOT_SENT   the client is closed
    │   └── OpenElsewhere                NOT_SENT   it is another event loop's, or was opened before a fork
    └── ServiceFailed                    NOT_SENT   a read (never an order) got no usable answer

``outcome`` speaks of *this call*; ``order_may_exist`` of *the key*.
Only when ``order_may_exist`` is false may a hold for the key be released.

``str`` and ``repr`` show a status, a request id, a hook's name and our own words: never the
token, a body, the service's message, or anything about a person.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attrs import frozen

from transfer_async._models.base import ByValue

if TYPE_CHECKING:
    from transfer_async._models.responses import Order


class Outcome(enum.Enum):
    """What is certain after a call."""

    NOT_SENT = "not_sent"
    REFUSED = "refused"
    CREATED = "created"
    UNKNOWN = "unknown"


class MatchResult(enum.Enum):
    """The four results of a beneficiary check (the terms of Verification of Payee)."""

    MATCH = "match"
    CLOSE_MATCH = "close_match"
    NO_MATCH = "no_match"
    NOT_POSSIBLE = "not_possible"


class CauseKind(enum.Enum):
    """Why nobody knows whether an order exists."""

    NO_ANSWER = "no_answer"
    """It was sent, and nothing came back."""

    CUT_ANSWER = "cut_answer"
    """The answer began, and broke off."""

    STATUS = "status"
    """The answer's status says nothing of the order: a proxy may have given it."""

    UNREADABLE_ANSWER = "unreadable_answer"
    """A 2xx that is not readably the order: it cannot be read, or it is to another order."""

    SECOND_ANSWER = "second_answer"
    """More than one answer came, or one that nobody had asked for."""

    ABANDONED = "abandoned"
    """The process ended after the mark, and left no word of what it sent."""

    CLOSED = "closed"
    """The client was closed, and waited no longer."""

    TAKEN_BACK = "taken_back"
    """An operator had said that the order exists, and it was taken back."""


@frozen(kw_only=True, eq=False, repr=False)
class Attempt(ByValue):
    """One HTTP attempt of a call, as its errors remember it.

    Args:
        number: 1 for the first.
        seconds: how long the attempt took.
        outcome: what is certain of this attempt alone.
        status: the HTTP status, where a response came.
        error: the class name of what went wrong beneath, where something did.
        request_id: the service's ``X-Request-Id``, where it sent one.
        began: when, in UTC; None in what was recorded before this was kept.
    """

    number: int
    seconds: float
    outcome: Outcome
    status: int | None = None
    error: str | None = None
    request_id: str | None = None
    began: datetime | None = None


def _rebuild(cls: type[TransferError], message: str, state: dict[str, Any]) -> TransferError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class TransferError(Exception):
    """The root of the tree.

    Args:
        message: safe to log.
        outcome: what is certain after this call; each class has its own default.
        order_may_exist: whether an order for the key may exist; true unless known better.
        key: the key of the call.
        attempts: the HTTP attempts made, oldest first.
        receipts: what the hooks handed back, by hook name; ``"held"`` for ``held=``.
    """

    default_outcome: ClassVar[Outcome] = Outcome.NOT_SENT
    default_order_may_exist: ClassVar[bool] = True

    def __init__(
        self,
        message: str = "",
        *,
        outcome: Outcome | None = None,
        order_may_exist: bool | None = None,
        key: str | None = None,
        attempts: Sequence[Attempt] = (),
        receipts: Mapping[str, str | None] | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome: Outcome = self.default_outcome if outcome is None else outcome
        self.order_may_exist: bool = (
            self.default_order_may_exist if order_may_exist is None else order_may_exist
        )
        self.key = key
        self.attempts: tuple[Attempt, ...] = tuple(attempts)
        self.receipts: dict[str, str | None] = dict(receipts or {})

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive BaseException's own way of pickling.
        return _rebuild, (type(self), str(self), self.__dict__.copy())


class InvalidOrder(TransferError, ValueError):
    """The order, or what was said beside it, contradicts itself or the specification.

    Args:
        problems: every fault found, as ``(field, why)``; never a value.
    """

    default_order_may_exist = False

    def __init__(self, problems: Sequence[tuple[str, str]], **common: Any) -> None:
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        super().__init__("; ".join(f"{field}: {why}" for field, why in self.problems), **common)


class PreflightFailed(TransferError):
    """A hook refused, or broke; nothing was sent.

    A hook that raises this itself vouches that it did nothing, and is not undone.

    Args:
        refused: true where the hook said no, false where it broke (the cause is chained).
        hook: the hook's name.
    """

    def __init__(
        self, message: str = "", *, refused: bool = True, hook: str | None = None, **common: Any
    ) -> None:
        super().__init__(message, **common)
        self.refused = refused
        self.hook = hook


class HoldFailed(PreflightFailed):
    """The bank's ``place`` refused, or broke; raised by the bank itself, it says that nothing was placed."""


class HoldRequired(PreflightFailed):
    """The call has neither a hold hook nor ``held=`` (specification 4.1, rule 1)."""


class BeneficiaryNotVerified(PreflightFailed):
    """The beneficiary check did not end in a match.

    Args:
        result: ``CLOSE_MATCH``, ``NO_MATCH`` or ``NOT_POSSIBLE``; the last is not a refusal.
    """

    def __init__(self, message: str = "", *, result: MatchResult, **common: Any) -> None:
        common.setdefault("refused", result is not MatchResult.NOT_POSSIBLE)
        super().__init__(message, **common)
        self.result = result


class ConnectionFailed(TransferError):
    """No byte of the request's body left: DNS, refused, TLS, no free connection, connect timeout."""


class TokenUnavailable(TransferError):
    """The token callable failed, or gave something that is no token."""


Limit = Literal["send_before", "deadline"]
"""What of a call may pass before its request can be sent."""


class Expired(TransferError):
    """``send_before``, or the call's ``deadline``, passed before the request could be sent.

    Args:
        limit: which of the two: ``"send_before"`` is the order's own, ``"deadline"`` this call's alone.
    """

    def __init__(self, text: str = "", *, limit: Limit = "send_before", **common: Any) -> None:
        super().__init__(text, **common)
        self.limit: Limit = limit


class Refused(TransferError):
    """The service answered no; the order does not exist.

    Args:
        status: the HTTP status; ``None`` for ``Refuted``.
        message: the service's own words, where it sent a JSON ``message``; never in ``str``.
        body: the body as received, cut at the client's limit; never in ``str``.
        request_id: the service's ``X-Request-Id``, where it sent one.
        retry_after: seconds the service asked to wait, where it did.
        fields: those of the request that the service named in its ``errors``: names of the specification
            (``external_order.transaction_fee``), none of the service's own words.
    """

    default_outcome = Outcome.REFUSED

    def __init__(
        self,
        text: str = "",
        *,
        status: int | None = None,
        message: str | None = None,
        body: bytes = b"",
        request_id: str | None = None,
        retry_after: float | None = None,
        fields: Sequence[str] = (),
        **common: Any,
    ) -> None:
        super().__init__(text or _answered("the service refused", status, request_id), **common)
        self.fields: tuple[str, ...] = tuple(fields)
        self.status = status
        self.message = message
        self.body = body
        self.request_id = request_id
        self.retry_after = retry_after

    @property
    def is_final(self) -> bool:
        """Whether the same order, asked for again, would be refused again; see `is_final_no`."""
        return is_final_no(type(self).__name__, self.status)


class Unauthorized(Refused):
    """401, or a 2xx or 4xx whose body is the specification's ``{"message": "Unauthorized"}`` (section 7)."""


class RateLimited(Refused):
    """429; ``retry_after`` says how many seconds the service asked to wait."""


class Refuted(Refused):
    """After a doubt it is certain: there is no order, and none can appear; the doubt is chained."""

    def __init__(
        self, text: str = "after a doubt, certain: no order exists, and none can appear", **rest: Any
    ) -> None:
        super().__init__(text, **rest)


class OutcomeUnknown(TransferError):
    """The request may have been processed; keep the hold, and do not send again.

    Args:
        status: the HTTP status, where a response came.
        raw: the bytes of the reply, where one came; never in ``str``.
        request_id: the service's ``X-Request-Id``, where it sent one.
        kind: why it is unknown, where this call has sent it.
    """

    default_outcome = Outcome.UNKNOWN

    def __init__(
        self,
        text: str = "",
        *,
        status: int | None = None,
        raw: bytes | None = None,
        request_id: str | None = None,
        kind: CauseKind | None = None,
        **common: Any,
    ) -> None:
        super().__init__(
            text or _answered("the request may have been processed", status, request_id), **common
        )
        self.status = status
        self.raw = raw
        self.request_id = request_id
        self.kind = kind


class UnreadableOrder(OutcomeUnknown):
    """A 2xx that is not readably our order.

    Args:
        order_id: the order's id, if one could be found in the bytes all the same.
    """

    def __init__(self, text: str = "", *, order_id: str | None = None, **rest: Any) -> None:
        super().__init__(text, **rest)
        self.order_id = order_id


class AlreadyCreated(TransferError):
    """The key's order exists, but only its id is known here."""

    default_outcome = Outcome.CREATED

    def __init__(self, text: str = "the key's order exists already", *, order_id: str, **common: Any) -> None:
        super().__init__(text, **common)
        self.order_id = order_id


class KeyConflict(TransferError):
    """The key is bound to a different order."""


class KeyBusy(TransferError):
    """Another task or worker is at work on the key now.

    Args:
        retry_after: seconds until its lease ends, unless it is renewed.
    """

    def __init__(self, text: str = "", *, retry_after: float | None = None, **common: Any) -> None:
        super().__init__(text or "another task or worker is at work on this key", **common)
        self.retry_after = retry_after


class JournalFailed(TransferError):
    """The journal could not be read or written; the cause is chained.

    Args:
        order: the order, where one was created that the journal could not record.
    """

    def __init__(self, text: str = "", *, order: Order | None = None, **common: Any) -> None:
        super().__init__(text or "the journal could not be read or written", **common)
        self.order = order


class ClientClosed(TransferError):
    """The client is closed, or was closed before this call could send anything."""


class OpenElsewhere(ClientClosed):
    """The client belongs to another event loop, or to the process that this one was forked from."""


class ServiceFailed(TransferError):
    """A read got no usable answer: 5xx, an unreadable reply, or a lost answer, after the retries.

    Args:
        status: the HTTP status, where a response came.
        body: the body as received, cut at the client's limit; never in ``str``.
        request_id: the service's ``X-Request-Id``, where it sent one.
        retry_after: seconds the service asked to wait, where it did.
    """

    default_order_may_exist = False

    def __init__(
        self,
        text: str = "",
        *,
        status: int | None = None,
        body: bytes = b"",
        request_id: str | None = None,
        retry_after: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(text or _answered("no usable answer", status, request_id), **common)
        self.status = status
        self.body = body
        self.request_id = request_id
        self.retry_after = retry_after


_NOT_ABOUT_THE_ORDER = frozenset({401, 404, 405, 408, 425, 429})


def is_final_no(error: str, status: int | None) -> bool:
    """Whether a refusal speaks of the order, not of the token, the address or the load.

    Args:
        error: the name of its class.
        status: the HTTP status; None for `Refuted`.
    """
    if error in (Unauthorized.__name__, RateLimited.__name__):
        return False  # the first may come with any status
    return status is None or (status not in _NOT_ABOUT_THE_ORDER and status < 500)


def is_in_vain(error: object) -> bool:
    """Whether a call certainly sent nothing, for a reason that may be the order's own, and that may pass.

    This alone decides what counts towards parking a message: the journal keeps it of each call that ended,
    and a worker asks it of the call that it has just seen. By class, so that a bank's own kind of one of
    these is what it is derived from.
    """
    if isinstance(error, PreflightFailed):
        return not error.refused  # a hook broke: whoever refuses has answered
    return isinstance(error, ConnectionFailed)


def _answered(what: str, status: int | None, request_id: str | None) -> str:
    told = [f"status {status}"] if status is not None else []
    if request_id is not None:
        told.append(f"request {request_id}")
    return f"{what} ({', '.join(told)})" if told else what
