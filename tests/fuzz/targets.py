"""The fuzz targets. Each takes bytes, and raises `Finding` or any other error if a promise is broken.

The first byte of an input chooses the target; the rest is the response that the target reads.
"""

import copy
import pickle
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs

from transfer_async._converters import converter
from transfer_async._converters.wire_format import Unreadable
from transfer_async._http import classify
from transfer_async._http.retry import RetryPolicy
from transfer_async._http.transport import ExchangeResult
from transfer_async._models import responses
from transfer_async._models.errors import ServiceFailed, TransferError, UnreadableOrder

NOW = datetime(2024, 5, 6, 12, tzinfo=UTC)
POLICY = RetryPolicy()
SECONDS = 3.0  # the CPU seconds for one input of at most `LARGEST` bytes, with instrumentation
LARGEST = 32 * 1024
SECRET = "S3CRET-of-a-person"  # no error shows this text, wherever a response contains it


class Finding(AssertionError):
    """A promise was broken."""


@attrs.frozen
class Amounts:
    """A caller's own model for `read_into`."""

    poster_amount: Decimal
    is_matched: bool
    user: dict[str, Any] = attrs.field(factory=dict)
    names: tuple[str, ...] = ()


READ_INTO: tuple[Any, ...] = (
    None,
    *(responses.Order, responses.User, responses.ExternalOrder, responses.ExternalUser, responses.Currency),
    *(responses.UserOption, Amounts, dict[str, Decimal], list[Amounts], int, str, Decimal, datetime),
)


def check(data: bytes) -> None:
    """Run the target that the input chooses."""
    if not data:
        return
    began = time.process_time()
    TARGETS[data[0] % len(TARGETS)](data[1:])
    spent = time.process_time() - began
    if spent > SECONDS:
        raise Finding(f"{len(data)} bytes took {spent:.1f} s")


# --- the targets ----------------------------------------------------------------------------------


def read_answer(raw: bytes) -> None:
    """A response can be read, or `Unreadable` contains the JSON path."""
    try:
        answer = converter.read_answer(raw)
    except Unreadable as error:
        promise("S3CRET" not in str(error), "an error shows a value")
        return
    for name in (answer.poster_username, answer.beneficiary_username):
        promise(name is None or type(name) is str, "a username is no text")


def read_order(raw: bytes) -> None:
    """Every part of an order can be accessed, encoded, compared, copied and pickled, or it is unreadable."""
    try:
        order = responses.Order.from_json(raw)
    except UnreadableOrder as error:
        look_at_error(error)
        return
    look_at(order)
    look_at(order.state)
    again = responses.Order.from_json(order.to_json())
    promise(again == order, "an order is another once written and read")
    promise(again.to_json() == order.to_json(), "an order is written otherwise the second time")
    promise(pickle.loads(pickle.dumps(order)) == order, "an order is another once pickled")
    promise(copy.deepcopy(order) == order, "an order is another once copied")
    hash(order)


def read_user(raw: bytes) -> None:
    """Every part of a user can be accessed and encoded, or the user is unreadable."""
    try:
        user = responses.User.from_json(raw)
    except ServiceFailed as error:
        look_at_error(error)
        return
    look_at(user)
    promise(responses.User.from_json(user.to_json()) == user, "a user is another once written and read")


def read_into(raw: bytes) -> None:
    """The first byte chooses the type to read into. The value is read, or `Unreadable` is raised."""
    if not raw:
        return
    into = READ_INTO[raw[0] % len(READ_INTO)]
    try:
        value = converter.read_into(into, raw[1:])
    except Unreadable as error:
        promise("S3CRET" not in str(error), "an error shows a value")
        return
    look_at(value)
    converter.encode(value)


def judge(raw: bytes) -> None:
    """Any evidence has a classification, and an error of the package that can be shown and pickled."""
    evidence = read_evidence(raw)
    for table in (classify.ORDER_ANSWERS, classify.READ_ANSWERS):
        verdict = classify.classify_response(evidence, POLICY, table)
        promise(isinstance(verdict, classify.Classification), "no verdict")
        for verdict in classify.Classification:
            for reading in (False, True):
                error = classify.error_of(verdict, evidence, now=NOW, reading=reading)
                look_at_error(error, shown=evidence.request_id or "")
    look_at(evidence.request_id)


TARGETS: tuple[Callable[[bytes], None], ...] = (read_answer, read_order, read_user, read_into, judge)


# --- what they share ------------------------------------------------------------------------------

_ERRORS = (None, ConnectionResetError("reset"), TimeoutError(), ValueError(SECRET))
_HEADERS = ("Retry-After", "X-Request-Id", "Content-Type")


def read_evidence(raw: bytes) -> ExchangeResult:
    """Return evidence made from bytes: flags, status, a header's length, the header, the body."""
    head, rest = raw[:4].ljust(4, b"\0"), raw[4:]
    flags, length = head[0], head[3]
    header, body = rest[:length].decode("latin-1"), rest[length:]
    return ExchangeResult(
        sent=bool(flags & 1),
        status=int.from_bytes(head[1:3]) if flags & 2 else None,
        headers={_HEADERS[(flags >> 5) % len(_HEADERS)]: header},
        body=body,
        intact=bool(flags & 4),
        error=_ERRORS[(flags >> 3) & 3],
    )


def promise(kept: bool, otherwise: str) -> None:
    """Raise a `Finding` if ``kept`` is false."""
    if not kept:
        raise Finding(otherwise)


def look_at_error(error: TransferError, *, shown: str = "") -> None:
    """Check that an error can be shown and pickled, and contains no secret except in ``shown``."""
    promise(isinstance(error, TransferError), f"{type(error).__name__} is none of our errors")
    for text in (str(error), repr(error)):
        promise("S3CRET" not in text or "S3CRET" in shown, "an error shows a secret")
    again = pickle.loads(pickle.dumps(error))
    promise(type(again) is type(error) and str(again) == str(error), "an error is another once pickled")
    promise(str(copy.copy(error)) == str(error), "an error is another once copied")


def look_at(value: Any) -> None:
    """Access every attribute, key and element recursively. Times must be in UTC, and numbers finite."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        repr(one)
        if isinstance(one, Decimal):
            promise(one.is_finite(), "a number is not finite")
        elif isinstance(one, datetime):
            promise(one.utcoffset() is not None, "a time is not aware")
        waiting += _inside(one)


def _inside(value: Any) -> Iterator[Any]:
    if attrs.has(type(value)):
        yield from (getattr(value, attribute.name) for attribute in attrs.fields(type(value)))
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
