"""The exceptions that a call can raise, and what each means for the order.

::

    TransferError
    ├── InvalidOrder (also ValueError)   NOT_SENT   the order contradicts itself or the specification
    ├── PreflightFailed                  NOT_SENT   a hook refused the order, or failed
    │   ├── HoldFailed                   NOT_SENT   the bank's ``place`` refused or failed
    │   ├── HoldRequired                 NOT_SENT   neither a hold hook nor ``held=`` was given
    │   └── BeneficiaryNotVerified       NOT_SENT   close match, no match, or not possible
    ├── ConnectionFailed                 NOT_SENT   evidence shows that no byte of the body was sent
    ├── TokenUnavailable                 NOT_SENT   the token callable failed
    ├── Expired                          NOT_SENT   ``send_before`` or the call's ``deadline`` passed first
    ├── Refused                          REFUSED    the service refused the request
    │   ├── Unauthorized                 REFUSED    401, or the specification's "Unauthorized"
    │   ├── RateLimited                  REFUSED    429
    │   └── Refuted                      REFUSED    a doubt ended: no order exists, and none can appear
    ├── OutcomeUnknown                   UNKNOWN    the request may have been processed
    │   └── UnreadableOrder              UNKNOWN    a 2xx response that cannot be read as the order
    ├── AlreadyCreated                   CREATED    the order exists; the client knows only its id
    ├── KeyConflict                      NOT_SENT   the key is bound to a different order
    ├── KeyBusy                          NOT_SENT   another task or worker is using the key
    ├── JournalFailed                    (varies)   the journal could not be read or written
    ├── ClientClosed                     NOT_SENT   the client is closed
    │   └── WrongEventLoop               NOT_SENT   the client belongs to another event loop or process
    └── ServiceFailed                    NOT_SENT   a read (never an order) got no usable response

``outcome`` describes *this call*; ``order_may_exist`` describes *the key*. Release a hold for the key only
when ``order_may_exist`` is false.

``str`` and ``repr`` show a status, a request id, a hook's name and fixed text, but never the token, a body,
the service's message or personal data.
"""

from __future__ import annotations

import enum
import functools
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, TypeVar, cast, get_args

from attrs import frozen

from transfer_async._support.util import ENDS_THE_PROGRAM

if TYPE_CHECKING:
    from transfer_async._models.responses import Order


class Outcome(enum.Enum):
    """The outcome of a call, which states only what is certain about the order."""

    NOT_SENT = "not_sent"
    REFUSED = "refused"
    CREATED = "created"
    UNKNOWN = "unknown"


class MatchResult(enum.Enum):
    """The four results of a beneficiary check, named as in Verification of Payee."""

    MATCH = "match"
    CLOSE_MATCH = "close_match"
    NO_MATCH = "no_match"
    NOT_POSSIBLE = "not_possible"

    @property
    def code(self) -> str:
        """The code in messages of Verification of Payee: ``MTCH``, ``CMTC``, ``NMTC`` or ``NOAP``."""
        codes = {"match": "MTCH", "close_match": "CMTC", "no_match": "NMTC", "not_possible": "NOAP"}
        return codes[self.value]


MISMATCH_ACCEPTED = "no_match_accepted"
"""The receipt of a beneficiary check in which the bank accepted a different name."""

MISMATCH_IN_HISTORY = "beneficiary: no match (accepted)"
"""The line in a key's history for the receipt `MISMATCH_ACCEPTED`."""


class NotVerifiedReason(enum.Enum):
    """The reason why a beneficiary is not verified.

    The description of each reason ends with the result of the check, in brackets.
    """

    OTHER_NAME = "other_name"
    """The account is in a different name (no match)."""

    CLOSE_NAME = "close_name"
    """The names are close, and ``accept_close`` is missing or failed (close match)."""

    DECLINED = "declined"
    """``accept_close`` or ``accept_mismatch`` did not accept the account's name (close match or no match)."""

    DECEPTIVE_NAME = "deceptive_name"
    """A name mixes scripts, or contains a look-alike letter or a character that is not a letter (no match).
    """

    NOT_REGISTERED = "not_registered"
    """The username is not registered (no match)."""

    OTHER_USERNAME = "other_username"
    """The look-up found the account of another username (no match)."""

    NOT_PAYABLE = "not_payable"
    """The account cannot be paid in the order's currency (no match)."""

    INACTIVE = "inactive"
    """The account is closed or suspended (not possible; ``refused`` is true)."""

    NO_NAME_GIVEN = "no_name_given"
    """The call has no name of the beneficiary (not possible)."""

    NOT_COMPARABLE = "not_comparable"
    """The two names cannot be compared, for example because of their scripts (not possible)."""

    LOOKUP_FAILED = "lookup_failed"
    """The look-up failed or timed out (not possible)."""

    LOOKUP_UNREADABLE = "lookup_unreadable"
    """The look-up returned no `User`, or one whose checked fields are missing or invalid (not possible)."""


class CauseKind(enum.Enum):
    """The reason why it is unknown whether an order exists."""

    NO_ANSWER = "no_answer"
    """The request was sent, and no response came."""

    CUT_ANSWER = "cut_answer"
    """The response ended before it was complete."""

    STATUS = "status"
    """The response's status does not show whether the order exists, because a proxy may have sent it."""

    UNREADABLE_ANSWER = "unreadable_answer"
    """A 2xx response cannot be read, or describes another order."""

    SECOND_ANSWER = "second_answer"
    """More than one response arrived, or a response arrived before its request."""

    ABANDONED = "abandoned"
    """The sender recorded that it would send, but reported no result. Its process has ended or hangs."""

    CLOSED = "closed"
    """The client was closed before the response came."""

    TAKEN_BACK = "taken_back"
    """An operator recorded that the order exists, and later withdrew this decision."""

    SUPERSEDED = "superseded"
    """After the doubt ended, the sender or ``resolve`` contradicted its outcome. See `DuplicateSuspected`."""


@frozen(kw_only=True)
class Attempt:
    """One HTTP attempt that was made during a call, as recorded on the call's error.

    Args:
        number: the attempt's position in the call; the first attempt is 1.
        seconds: the duration of the attempt.
        outcome: what the attempt alone proves about the order.
        status: the HTTP status, if a response arrived.
        error: the class name of the underlying error, if there was one.
        request_id: the service's id for the request, or None; see the client's ``response_id_header``.
        began: the start time in UTC; None in records of earlier versions.
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
    """The base class of every error that this package raises for a call.

    Args:
        message: the text of the error, which is safe to log.
        outcome: what is certain about the order after the call. Each error class has its own default outcome.
        order_may_exist: whether an order for the key may exist when the error is delivered.
            ``order_may_exist`` is false only if it is certain that no order exists.
        key: the key of the call.
        attempts: the HTTP attempts made, oldest first.
        receipts: the receipts that the hooks returned, by hook name. The reference passed as ``held`` is
            included under ``"held"``.
        attempt_id: the journal's id for the call's attempt to send the order; None if the call did not begin
            to send the order. The id was sent to the service if the client has a ``request_id_header``.
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
        attempt_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome: Outcome = self.default_outcome if outcome is None else outcome
        self.order_may_exist: bool = (
            self.default_order_may_exist if order_may_exist is None else order_may_exist
        )
        self.key = key
        self.attempts: tuple[Attempt, ...] = tuple(attempts)
        self.receipts: dict[str, str | None] = dict(receipts or {})
        self.attempt_id = attempt_id

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException's own pickling loses keyword-only arguments.
        return _rebuild, (type(self), str(self), self.__dict__.copy())


class InvalidOrder(TransferError, ValueError):
    """The order, or another argument of the call, contradicts itself or the specification.

    Args:
        problems: every problem found, each as a pair of a field and a reason. A reason never contains the
            rejected value.
    """

    default_order_may_exist = False

    def __init__(self, problems: Sequence[tuple[str, str]], **common: Any) -> None:
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        super().__init__("; ".join(f"{field}: {why}" for field, why in self.problems), **common)


class PreflightFailed(TransferError):
    """A hook refused the order, or failed; nothing was sent.

    By raising `PreflightFailed`, a hook guarantees that it changed nothing, so it is not undone.

    Args:
        refused: true if the hook refused the order, false if it failed (the cause is chained).
        hook: the hook's name.
    """

    def __init__(
        self, message: str = "", *, refused: bool = True, hook: str | None = None, **common: Any
    ) -> None:
        super().__init__(message, **common)
        self.refused = refused
        self.hook = hook


class HoldFailed(PreflightFailed):
    """The bank's ``place`` function refused the hold or failed.

    The function may raise `HoldFailed` only if it is certain that no hold exists.
    """


class HoldRequired(PreflightFailed):
    """The call has neither a hold hook nor ``held=`` (specification 4.1, rule 1)."""


class BeneficiaryNotVerified(PreflightFailed):
    """The beneficiary check did not result in a match.

    Args:
        result: ``CLOSE_MATCH``, ``NO_MATCH`` or ``NOT_POSSIBLE``. If the result is ``NOT_POSSIBLE``,
            ``refused`` is true only if the account is inactive. If ``refused`` is false, another attempt may
            succeed.
        reason: why the beneficiary is not verified; None if a bank's own hook gave no reason.
    """

    def __init__(
        self,
        message: str = "",
        *,
        result: MatchResult,
        reason: NotVerifiedReason | None = None,
        **common: Any,
    ) -> None:
        is_final = result is not MatchResult.NOT_POSSIBLE or reason is NotVerifiedReason.INACTIVE
        common.setdefault("refused", is_final)
        super().__init__(message, **common)
        self.result = result
        self.reason = reason


class ConnectionFailed(TransferError):
    """No byte of the request's body was sent.

    For example, DNS or TLS failed, the connection was refused, no connection was free, or connecting timed
    out.
    """


class TokenUnavailable(TransferError):
    """The token callable failed, or returned something that is not a token."""


Limit = Literal["send_before", "deadline"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
"""The two time limits that can pass before a request is sent."""


class Expired(TransferError):
    """``send_before``, or the call's ``deadline``, passed before the request could be sent.

    Args:
        limit: the name of the time limit that passed, ``"send_before"`` or ``"deadline"``.
    """

    def __init__(self, text: str = "", *, limit: Limit = "send_before", **common: Any) -> None:
        super().__init__(text, **common)
        self.limit: Limit = limit


class Refused(TransferError):
    """The service refused the request. The call created no order.

    Args:
        status: the HTTP status; ``None`` for ``Refuted``.
        message: the ``message`` in the service's JSON response, or None; never shown by ``str``.
        body: the body as received, truncated at the client's limit; never shown by ``str``.
        request_id: the service's id for the request, or None; see the client's ``response_id_header``.
        retry_after: the service's ``Retry-After`` header in seconds; None if the response had no such header.
        fields: the request fields listed in the ``errors`` of the service's response. The field names are
            those of the specification, such as ``external_order.transaction_fee``, and never the service's
            own text.
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
        super().__init__(text or _with_facts("the service refused", status, request_id), **common)
        self.fields: tuple[str, ...] = tuple(fields)
        self.status = status
        self.message = message
        self.body = body
        self.request_id = request_id
        self.retry_after = retry_after

    @property
    def is_final(self) -> bool:
        """Return whether the service would refuse the same order again; see `is_final_no`."""
        return is_final_no(type(self).__name__, self.status)


class Unauthorized(Refused):
    """The service did not accept the token (specification 7).

    The response was a 401, or a 2xx or 4xx whose body is exactly ``{"message": "Unauthorized"}``.
    """


class RateLimited(Refused):
    """The service responded with 429.

    ``retry_after`` is the number of seconds to wait, if the service sent one.
    """


class Refuted(Refused):
    """An order in doubt was refuted: it does not exist and cannot appear later.

    The chained cause is the error that reported the doubt.
    """

    def __init__(
        self, text: str = "the doubt was refuted: no order exists, and none can appear later", **rest: Any
    ) -> None:
        super().__init__(text, **rest)


class OutcomeUnknown(TransferError):
    """The request may have been processed. Keep the hold, and do not send the order again.

    Args:
        status: the HTTP status, if a response arrived.
        raw: the bytes of the response, if one arrived; never shown by ``str``.
        request_id: the service's id for the request, or None; see the client's ``response_id_header``.
        kind: why the outcome is unknown, if the call sent the request.
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
            text or _with_facts("the request may have been processed", status, request_id), **common
        )
        self.status = status
        self.raw = raw
        self.request_id = request_id
        self.kind = kind


class UnreadableOrder(OutcomeUnknown):
    """A 2xx response that cannot be read as the order that was sent, or a refusal that contains an order.

    Args:
        order_id: the order's id, if the response's bytes contain one.
    """

    def __init__(self, text: str = "", *, order_id: str | None = None, **rest: Any) -> None:
        super().__init__(text, **rest)
        self.order_id = order_id


class AlreadyCreated(TransferError):
    """The order for the key already exists, but only the order's id is available."""

    default_outcome = Outcome.CREATED

    def __init__(self, text: str = "the key's order already exists", *, order_id: str, **common: Any) -> None:
        super().__init__(text, **common)
        self.order_id = order_id


class KeyConflict(TransferError):
    """The key was already used for a different order."""


class KeyBusy(TransferError):
    """Another task or worker is using the key now.

    Args:
        retry_after: the seconds until the other task or worker loses the key, unless it renews its lease.
    """

    def __init__(self, text: str = "", *, retry_after: float | None = None, **common: Any) -> None:
        super().__init__(text or "another task or worker is using this key", **common)
        self.retry_after = retry_after


class JournalFailed(TransferError):
    """The journal could not be read or written; the cause is chained.

    Args:
        order: the created order if the journal could not record it; otherwise None.
    """

    def __init__(self, text: str = "", *, order: Order | None = None, **common: Any) -> None:
        super().__init__(text or "the journal could not be read or written", **common)
        self.order = order


class ClientClosed(TransferError):
    """The client was closed before the call, or before the call could send its request."""


class WrongEventLoop(ClientClosed):
    """The client belongs to another event loop, or to the process from which this process was forked."""


class ServiceFailed(TransferError):
    """A read request received no usable response after all retries: a 5xx, an unreadable response or none.

    Args:
        status: the HTTP status, if a response arrived.
        body: the body as received, truncated at the client's limit; never shown by ``str``.
        request_id: the service's id for the request, or None; see the client's ``response_id_header``.
        retry_after: the service's ``Retry-After`` header in seconds; None if the response had no such header.
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
        super().__init__(text or _with_facts("no usable response", status, request_id), **common)
        self.status = status
        self.body = body
        self.request_id = request_id
        self.retry_after = retry_after


_NOT_ABOUT_THE_ORDER = frozenset({401, 404, 405, 408, 425, 429})


def is_final_no(error: str, status: int | None) -> bool:
    """Return whether a refusal concerns the order itself, rather than the token, the address or the load.

    Args:
        error: the class name of the refusal.
        status: the HTTP status; None for `Refuted`.
    """
    if error in (Unauthorized.__name__, RateLimited.__name__):
        return False  # Unauthorized may come with any status.
    return status is None or (status not in _NOT_ABOUT_THE_ORDER and status < 500)


def is_in_vain(error: object) -> bool:
    """Return whether nothing was sent because a hook or the connection failed, perhaps only temporarily.

    A worker dead-letters a message after several such failures. A bank's own subclass of an error counts as
    its base class.
    """
    if isinstance(error, PreflightFailed):
        return not error.refused  # A refusal by a hook is final.
    return isinstance(error, ConnectionFailed)


def _with_facts(what: str, status: int | None, request_id: str | None) -> str:
    facts = [f"status {status}"] if status is not None else []
    if request_id is not None:
        facts.append(f"request {request_id}")
    return f"{what} ({', '.join(facts)})" if facts else what


# --- sanitized causes --------------------------------------------------------------------------------
# An underlying error is chained to an error of this package only if it contains no secrets.
#
# An aiohttp error contains its request with the token in a header, or a connection key with a proxy's
# password. An asyncpg error contains the values of a row. Printing such an error, sending it to an error
# tracker or pickling it would leak these secrets. So a safe error of the same class name replaces it.
#
# An error that a bank's hook or callable raises is not changed. But a safe error replaces every error of
# aiohttp or asyncpg in its chain.
#
# A bank's error may be of any class. It may refuse attributes, raise an error when it is read, compared or
# printed, or report a false class. So the code here uses accessors that the class cannot override, or catches
# what the class raises. `name_of`, `is_a`, `text_of` and `sanitize_exception` work for every error and chain.


E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")
T = TypeVar("T")

_DRIVERS = frozenset({"aiohttp", "asyncpg"})

_FACTS: dict[str, tuple[type, ...]] = {
    "status": (int,),
    "errno": (int,),
    "strerror": (str,),
    "sqlstate": (str,),
}

_SAFE_STATES = frozenset({"08", "0A", "25", "3D", "3F", "42", "53", "54", "55", "57", "58"})
"""The SQLSTATE classes of PostgreSQL whose messages never contain row values."""

# These accessors belong to the interpreter and never run code of the error's class.
_name = vars(type)["__name__"].__get__
_module = vars(type)["__module__"].__get__
_mro = vars(type)["__mro__"].__get__
_attributes = vars(BaseException)
_args = _attributes["args"]
_cause = _attributes["__cause__"]
_context = _attributes["__context__"]
_suppress_context = _attributes["__suppress_context__"]
_traceback = _attributes["__traceback__"]
_members = vars(BaseExceptionGroup)["exceptions"].__get__
_message = vars(BaseExceptionGroup)["message"].__get__


class _Replacement:
    """The safe contents of a replacement error: the original class, a text, and selected attributes."""

    kind: type[BaseException]
    safe_text: str
    facts: dict[str, Any]

    __setattr__ = object.__setattr__
    __getattribute__ = object.__getattribute__

    def __str__(self) -> str:
        return self.safe_text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.safe_text!r})" if self.safe_text else f"{type(self).__name__}()"

    def __reduce__(self) -> tuple[Any, ...]:
        return _replacement, (self.kind, self.safe_text, self.facts)


def sanitize_exception(error: BaseException) -> BaseException:
    """Return ``error`` if it contains no secrets, or else a safe error with the same class name.

    The errors in the chain of ``error`` are replaced in the same way.
    """
    found = _reachable(error)
    made: dict[int, BaseException] = {}
    for item in found:
        made[id(item)] = _replacement_of(item) if _may_hold_secrets(item) else _with_safe_members(item, made)
    for item in found:
        cause, context, is_suppressed = _links(item)
        new = made[id(item)]
        _cause.__set__(new, None if cause is None else made[id(cause)])
        _context.__set__(new, None if context is None else made[id(context)])
        _suppress_context.__set__(new, is_suppressed)  # This comes last, because setting a cause changes it.
    return made[id(error)]


def bare_alone(error: BaseException) -> BaseException:
    """Return the sanitized ``error`` without its traceback, whose variables may contain secrets."""
    made = sanitize_exception(error)
    _traceback.__set__(made, None)
    return made


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error that ``error`` was raised from, or None."""
    return cast("BaseException | None", _cause.__get__(error))


def name_of(error: BaseException) -> str:
    """Return the class name of ``error``."""
    return cast("str", _name(type(error)))


def is_a(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Return whether ``error`` is truly an instance of one of ``kinds``, even if its class denies it."""
    return issubclass(type(error), kinds)


def text_of(error: BaseException) -> str:
    """Return the text of ``error``, or an empty string if its class fails to produce one."""
    try:
        return str(str(error))
    except ENDS_THE_PROGRAM:
        raise
    except BaseException:  # noqa: BLE001 - the class may raise anything
        return ""


def safe_line(error: BaseException) -> str:
    """Return the first line of the text of ``error``; empty if its class may put secrets into the text.

    For example, a ``ValueError`` about a malformed address may quote a part of its password.
    """
    is_known = is_a(error, (_Replacement, OSError, sqlite3.Error, TransferError))  # type: ignore[arg-type]
    return text_of(error).partition("\n")[0] if is_known else ""


def _reachable(error: BaseException) -> list[BaseException]:
    """Return ``error`` and every error in its chain and groups; a group comes after its members.

    The function does not use recursion, because a loop that raises within ``except`` can chain thousands of
    errors.
    """
    found: list[BaseException] = []
    seen: set[int] = set()
    left = [(error, False)]
    while left:
        item, members_are_found = left.pop()
        if members_are_found:
            found.append(item)
        elif id(item) not in seen:
            seen.add(id(item))
            left += [(link, False) for link in _links(item)[:2] if link is not None]
            left.append((item, True))
            if is_a(item, BaseExceptionGroup):
                left += [(member, False) for member in _members(item)]
    return found


def _links(error: BaseException) -> tuple[BaseException | None, BaseException | None, bool]:
    """Return the cause of ``error``, its context if not suppressed, and whether the context is suppressed."""
    is_suppressed = bool(_suppress_context.__get__(error))
    return _cause.__get__(error), None if is_suppressed else _context.__get__(error), is_suppressed


def is_ours(error: BaseException) -> bool:
    """Return whether the class of ``error`` is defined in this package; a base class is not enough."""
    return _package(type(error)) == "transfer_async"


def _package(kind: type) -> str:
    module = _module(kind)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _may_hold_secrets(error: BaseException) -> bool:
    return not is_ours(error) and any(_package(kind) in _DRIVERS for kind in _mro(type(error)))


def _with_safe_members(error: BaseException, made: dict[int, BaseException]) -> BaseException:
    """Return ``error``, or a plain group with the same message if one of its members is replaced."""
    if not is_a(error, BaseExceptionGroup):
        return error
    before = _members(error)
    members = [made[id(item)] for item in before]
    if all(new is old for new, old in zip(members, before, strict=True)):
        return error
    return BaseExceptionGroup(_message(error), members)


def _replacement_of(error: BaseException) -> BaseException:
    facts = {name: value for name in _FACTS if (value := _fact(error, name)) is not None}
    return _replacement(type(error), _safe_text(error, facts), facts)


def _fact(error: BaseException, name: str) -> Any:
    try:
        value = getattr(error, name, None)
    except ENDS_THE_PROGRAM:
        raise
    except BaseException:  # noqa: BLE001 - a property of a bank's own class may raise anything
        return None
    return value if type(value) in _FACTS[name] else None


def _safe_text(error: BaseException, facts: dict[str, Any]) -> str:
    if {"errno", "strerror"} <= facts.keys():
        return f"[Errno {facts['errno']}] {facts['strerror']}"
    if "sqlstate" in facts:
        args = _args.__get__(error)
        is_shown = args and type(args[0]) is str and facts["sqlstate"][:2] in _SAFE_STATES
        line = args[0].partition("\n")[0] if is_shown else ""
        return f"{line} (state {facts['sqlstate']})".strip()
    return f"status {facts['status']}" if "status" in facts else ""


def _replacement(kind: type[BaseException], text: str, facts: dict[str, Any]) -> BaseException:
    made = _instance(kind)
    _args.__set__(made, (text,) if text else ())
    for name, value in {"kind": kind, "safe_text": text, "facts": facts, **facts}.items():
        object.__setattr__(made, name, value)
    return made


# Pickles of sanitized errors from earlier versions refer to the function by this name.
_made = _replacement


def _instance(kind: type[BaseException]) -> BaseException:
    """Create an error of ``kind`` or, if that fails, of the nearest base class for which it succeeds."""
    for base in _mro(kind):
        try:
            own = _class_of(base, _name(kind))
            return cast("BaseException", own.__new__(own))
        except ENDS_THE_PROGRAM:
            raise
        except BaseException:  # noqa: BLE001, S112 - the class may raise anything; its base class is next
            continue
    raise AssertionError("every exception class has a base class that can be instantiated")


@functools.cache
def _class_of(base: Any, name: str) -> Any:
    """Create a class called ``name`` for errors that replace an error that may contain secrets.

    The selected attributes take precedence over properties of ``base``.
    """
    facts = {fact: None for fact in _FACTS if any(fact in vars(item) for item in _mro(base))}
    return type(base)(name, (_Replacement, base), facts | {"__module__": __name__})


# --- traceback frames -------------------------------------------------------------------------------
# Some error trackers record the variables of each frame, so frames that may hold secrets are removed.


def without_frames(error: E) -> E:
    """Remove the frames of this package, aiohttp and asyncpg from ``error`` and its chain. Return ``error``.

    The variables of the removed frames contain tokens, passwords and personal data. The frames of a bank's
    own code are kept.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        item = left.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        _traceback.__set__(item, _of_the_bank(_traceback.__get__(item)))
        left += [_cause.__get__(item), _context.__get__(item)]  # The context counts even if it is suppressed.
        if is_a(item, BaseExceptionGroup):
            left += _members(item)
    return error


def _of_the_bank(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("transfer_async", *_DRIVERS):
            kept.append(traceback)
        traceback = traceback.tb_next
    made: TracebackType | None = None
    for item in reversed(kept):
        made = TracebackType(made, item.tb_frame, item.tb_lasti, item.tb_lineno)
    return made


def hides_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap ``function`` so that its errors reveal none of its arguments and variables."""

    @functools.wraps(function)
    def hiding(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            del args, kwargs
            without_frames(error)
            raise

    return hiding


# --- cause of a doubt --------------------------------------------------------------------------------
# For a key in doubt, the journal stores the cause. An operator needs it to resolve the doubt. It contains no
# personal data.


KEPT_ATTEMPTS = 20
"""The maximum number of attempts stored with a doubt. Earlier attempts are not stored."""

_CAUSE_TEXTS = {
    CauseKind.NO_ANSWER: "no response arrived",
    CauseKind.CUT_ANSWER: "the response was cut off",
    CauseKind.STATUS: "the response's status does not show whether the order exists",
    CauseKind.UNREADABLE_ANSWER: "the response cannot be read as this order",
    CauseKind.SECOND_ANSWER: "more than one response arrived",
    CauseKind.ABANDONED: "abandoned: the sender never reported a result; if its process is only suspended, "
    "it may still send the order",
    CauseKind.CLOSED: "the client was closed before the response arrived",
    CauseKind.TAKEN_BACK: "the recorded order id was withdrawn",
    CauseKind.SUPERSEDED: "a report that an order exists or may exist arrived after the doubt had ended",
}


@frozen(kw_only=True)
class Cause:
    """The reason why a key is in doubt.

    Args:
        kind: see `CauseKind`.
        status: the HTTP status of the last response, if one arrived.
        error: the class name of the underlying error, if there was one.
        candidate: the order id found in an unreadable response, if any.
        attempts: the HTTP attempts of the call, oldest first; empty if the process did not report them.
    """

    kind: CauseKind
    status: int | None = None
    error: str | None = None
    candidate: str | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def is_from_sender(self) -> bool:
        """Return whether the sender itself reported the unknown outcome, and so will not send again."""
        return bool(self.attempts)

    @property
    def told(self) -> str:
        """A description of the cause, in one line."""
        facts = [] if self.status is None else [f"status {self.status}"]
        if self.attempts and (last := self.attempts[-1]).request_id is not None:
            facts.append(f"request {last.request_id}")
        if self.error is not None:
            facts.append(self.error)
        words = _CAUSE_TEXTS[self.kind] + (f" ({', '.join(facts)})" if facts else "")
        return words if self.candidate is None else f"{words}; the response contains the id {self.candidate}"
