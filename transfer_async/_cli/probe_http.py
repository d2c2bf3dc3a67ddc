"""One connection to a service, used by hand: the client's own pool hides what is to be seen here."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cache
from urllib.parse import urlsplit

import aiohttp
from attrs import field, frozen
from multidict import CIMultiDict

from transfer_async._cli.options import BASE_URL, TOKEN
from transfer_async._converters.converter import read_into
from transfer_async._converters.reader import find_order_id, read_answer
from transfer_async._converters.wire_format import Unreadable, decode
from transfer_async._http.classify import (
    ORDER_ANSWERS,
    READ_ANSWERS,
    WRONG_TOKEN,
    Classification,
    classify_response,
    other_order,
)
from transfer_async._http.retry import RetryPolicy, retry_after
from transfer_async._http.transport import ACCEPTED, BoundedBody, ExchangeResult
from transfer_async._http.urls import WHO_AM_I
from transfer_async._models.requests import NewOrder
from transfer_async._models.responses import User
from transfer_async._support.clock import Clock
from transfer_async.sandbox import SeenAnswer, profile
from transfer_async.sandbox.profile import NOT_KEPT, BodyKind, OrderSeen, rung
from transfer_async.sandbox.validation import decimal_of

LARGEST = 1 << 20
"""Bytes of an answer that are read at most: as many as the client does."""

TURNED_AWAY = (429, 503)
"""Statuses after which the same is asked again, a little later."""


@frozen(kw_only=True)
class Question:
    """A request: its path below the service's address, and its headers beside those that HTTP asks for."""

    method: str
    path: str
    headers: Mapping[str, str] = field(factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


@frozen(kw_only=True)
class RawAnswer:
    """What came back: no status where no head did. It is looked at, and not kept.

    Args:
        status: the status.
        headers: all of them.
        body: decompressed, as the client does it.
        is_sent: false where no connection could be opened: then the service certainly has nothing.
        is_intact: the whole body was read, as far as HTTP can tell.
        is_kept: the connection may carry another request, as far as the answer says.
    """

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    is_sent: bool = True
    is_intact: bool = True
    is_kept: bool = True

    @property
    def evidence(self) -> ExchangeResult:
        """The same, as the client judges it."""
        headers = CIMultiDict(self.headers)
        return ExchangeResult(
            sent=self.is_sent, status=self.status, headers=headers, body=self.body, intact=self.is_intact
        )

    @property
    def is_turned_away(self) -> bool:
        """Whether the service had no time for the request: its answer says nothing of what was asked."""
        return self.status in TURNED_AWAY


@cache
def _verifying() -> ssl.SSLContext:
    """Verifies with the system's certificates, or those that SSL_CERT_FILE names; made once."""
    return ssl.create_default_context()


class OneConnection:
    """One connection, opened by the first question; it is never opened again.

    Args:
        base_url: as `transfer_async._http.urls.normalised` gives it.
        patience: seconds for one whole answer.
    """

    def __init__(self, base_url: str, *, patience: float) -> None:
        parts = urlsplit(base_url)
        self._prefix = parts.path
        self._patience = patience
        host = parts.hostname or ""
        if parts.scheme == "https":
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=patience, context=_verifying()
            )
        else:
            self._http = http.client.HTTPConnection(host, parts.port, timeout=patience)
        self._was_open = False

    async def ask(self, question: Question) -> RawAnswer:
        """Ask, and read the answer; none where the connection is closed or lost, or patience ends."""
        return await self._by_hand(self._ask, question)

    async def send_and_cut(self, question: Question) -> RawAnswer:
        """Send it whole, and close the connection; there is no answer."""
        return await self._by_hand(self._send_and_cut, question)

    @property
    def is_open(self) -> bool:
        """Whether it is there still, with nothing on it that nobody asked for."""
        connection: socket.socket | None = self._http.sock
        if connection is None:
            return False
        connection.settimeout(0)
        try:
            connection.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            connection.settimeout(self._patience)
        return False  # its end, or bytes: whichever, it is not to be used again

    def close(self) -> None:
        """Close it."""
        self._http.close()

    async def _by_hand(self, do: Callable[[Question], RawAnswer], question: Question) -> RawAnswer:
        try:
            async with asyncio.timeout(2 * self._patience):  # each piece of an answer may take `patience`
                return await asyncio.to_thread(do, question)
        except TimeoutError:
            self._interrupt()
            return RawAnswer()
        except asyncio.CancelledError:
            self._interrupt()
            raise

    def _interrupt(self) -> None:
        """Have the thread hear of its end; it closes what it uses."""
        connection: socket.socket | None = self._http.sock
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _ask(self, question: Question) -> RawAnswer:
        if not self._is_connected():
            return RawAnswer(is_sent=False)
        try:
            self._send(question)
            response = self._http.getresponse()
            if not 200 <= response.status <= 599:
                raise http.client.UnknownProtocol(str(response.status))
            body, is_intact = _body(response)
            if not response.isclosed():  # there is more of it than anybody needs
                self._http.close()
            return RawAnswer(
                status=response.status,
                headers=tuple(response.getheaders()),
                body=body,
                is_intact=is_intact,
                is_kept=not response.will_close,
            )
        except (OSError, http.client.HTTPException, ValueError):
            self._http.close()
            return RawAnswer()

    def _is_connected(self) -> bool:
        """Whether there is a connection, or was: it is opened once."""
        if not self._was_open:
            try:
                self._http.connect()
            except OSError:
                self._http.close()
                return False
            self._was_open = True
        return True

    def _send_and_cut(self, question: Question) -> RawAnswer:
        if not self._is_connected():
            return RawAnswer(is_sent=False)
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._send(question)
        self._http.close()
        return RawAnswer()

    def _send(self, question: Question) -> None:
        if self._http.sock is None:
            raise http.client.NotConnected
        self._http.request(
            question.method, self._prefix + question.path, body=question.body, headers=dict(question.headers)
        )


def _body(response: http.client.HTTPResponse) -> tuple[bytes, bool]:
    """As much of a body as the client reads, by the client's own decoder; and whether that is all of it."""
    body = BoundedBody(LARGEST, encoding=response.getheader("Content-Encoding"))
    try:
        try:
            packed, is_cut = response.read(LARGEST + 1), bool(response.length)
        except http.client.IncompleteRead as error:
            packed, is_cut = error.partial, True
        if packed:
            body.take(packed)
        body.end()
    except (OSError, aiohttp.ClientPayloadError):
        return body.content, False
    return body.content, not is_cut


# --- seen --------------------------------------------------------------------------------------------
# From what came back to what may be kept of it: nothing that names a person, a token or a machine.


SHOWN_HEADERS = frozenset({"server", "via", "allow", "retry-after", "connection", "keep-alive", "x-cache"})
"""Headers whose value says how the service, or a proxy before it, works; of all others the name is kept."""

FIELDS = frozenset(
    {
        "code",
        "data",
        "detail",
        "details",
        "error",
        "error_code",
        "errors",
        "fields",
        "id",
        "message",
        "reason",
    }
) | {"request_id", "status", "status_code", "statusCode", "success", "title", "trace_id", "type"}
"""Names of fields that many services answer with: they name nobody."""

_AN_ID = re.compile(r"(^|[-_])(id|ray|trace|traceparent)($|[-_])")
_SHOWABLE = re.compile(r"[\x20-\x7e]{0,200}")
_NAME = re.compile(r"[a-z0-9-]{1,100}")


def seen(raw: RawAnswer, *, seconds: float, found: FoundOrder | None = None) -> SeenAnswer:
    """What is kept of an answer.

    Args:
        raw: it.
        seconds: that it took.
        found: what it says of the order that was asked for; None where none was.
    """
    if raw.status is None:
        return SeenAnswer(order="none" if found is None else "unknown")
    document = _json(raw.body)
    return SeenAnswer(
        status=raw.status,
        body=_kind(raw, document),
        fields=tuple(sorted(FIELDS.intersection(document))) if isinstance(document, dict) else (),
        unauthorized=document == WRONG_TOKEN,
        headers=_headers(raw.headers),
        within=rung(seconds),
        order="none" if found is None else found.says,
        unreadable=None if found is None else found.unreadable,
        amount=None if found is None else found.amount,
    )


@frozen
class FoundOrder:
    """What an answer to an order says of it.

    Args:
        says: see `OrderSeen`.
        order_id: the id of the order, if it names one.
        unreadable: why the client cannot read in it the order that it asked for, where it says yes.
        amount: the largest that it names for the poster, if any.
    """

    says: OrderSeen
    order_id: str | None = None
    unreadable: str | None = None
    amount: Decimal | None = None


def order_in(raw: RawAnswer, known: Collection[str], *, sent: NewOrder | None = None) -> FoundOrder:
    """What the client, by its own reader, makes of an answer to an order.

    Args:
        raw: the answer.
        known: the ids of orders that are known.
        sent: the order that was asked for; None where the body was another on purpose.
    """
    classification = classify_response(raw.evidence, RetryPolicy(), ORDER_ANSWERS)
    order_id, why = find_order_id(raw.body), None
    try:
        answer = read_answer(raw.body)
        order_id, is_order = answer.order.id, True
        if sent is not None and (other := other_order(sent, answer)):
            why = f"it is to another order: {other} differs"
    except Unreadable as error:
        why, is_order = str(error), False
    amount = max(_amounts(_json(raw.body)), default=None)
    if classification is Classification.ANSWERED and why is not None:
        return FoundOrder("unknown", order_id, why, amount)
    # Beside a no, an id may be of anything: only one that is the answer's own, or known, is an order's.
    is_named = is_order or order_id in known or _own_id(raw.body) == order_id is not None
    if classification is Classification.ANSWERED or is_named:
        return FoundOrder("same" if order_id in known else "new", order_id, None, amount)
    is_no = raw.status is not None and 400 <= raw.status <= 499 and raw.status != 408
    return FoundOrder("none" if is_no or classification is Classification.WRONG_TOKEN else "unknown")


def _own_id(body: bytes) -> object:
    document = _json(body)
    return document.get("id") if isinstance(document, dict) else None


def _amounts(tree: object) -> Iterator[Decimal]:
    """All that are called ``poster_amount``, wherever they stand and however they are written."""
    inside: Iterable[object] = ()
    if isinstance(tree, dict):
        inside = tree.values()
        value = tree.get("poster_amount")
        found = Decimal(value) if type(value) is int else decimal_of(value)
        if found is not None:
            yield found
    elif isinstance(tree, list):
        inside = tree
    for item in inside:
        yield from _amounts(item)


def request_ids(answers: Iterable[RawAnswer]) -> tuple[str, ...]:
    """Headers whose name says that they are an id, and whose value was another in each answer."""
    values: dict[str, list[str]] = {}
    for answer in answers:
        for name, value in answer.headers:
            values.setdefault(name.lower(), []).append(value)
    return tuple(
        sorted(
            name
            for name, found in values.items()
            if _NAME.fullmatch(name)
            and _AN_ID.search(name)
            and len(found) > 1
            and len(set(found)) == len(found)
        )
    )


def _headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    names = {name.lower(): value for name, value in headers if _NAME.fullmatch(name.lower())}
    return {
        name: value if name in SHOWN_HEADERS and _SHOWABLE.fullmatch(value) else ""
        for name, value in sorted(names.items())
        if name not in NOT_KEPT
    }


def _json(body: bytes) -> object:
    try:
        return decode(body)
    except Unreadable:
        return None


def _kind(raw: RawAnswer, document: object) -> BodyKind:
    if not raw.body:
        return "empty"
    if document is not None:
        return "json"
    return "html" if raw.body.lstrip()[:1] == b"<" else "text"


# --- service ----------------------------------------------------------------------------------------


LONGEST_WAIT = 120.0
"""Seconds of ``Retry-After`` that are waited for."""

FIRST_WAIT = 1.0
"""Seconds, where an answer does not say how long to wait; each further wait is twice as long."""

AGAIN = 5
"""How often in a row the probe may be turned away."""


class Stopped(Exception):
    """Nothing more is sent; says why."""


@frozen(kw_only=True)
class Service:
    """Where to ask, and how long.

    Args:
        base_url: normalised.
        token: the API token.
        patience: seconds for one answer.
        clock: measures the answers, and waits.
    """

    base_url: str
    token: str = field(repr=False)
    patience: float
    clock: Clock = field(factory=Clock)

    def connection(self) -> OneConnection:
        """A new connection, not yet open."""
        return OneConnection(self.base_url, patience=self.patience)

    async def rest(self, raw: RawAnswer, *, times: int) -> None:
        """Wait as long as an answer asks that turned a request away, the first one or after so many others.

        Raises:
            Stopped: that would be too long, or too often.
        """
        again = "run the probe again later: it goes on where it was"
        if times >= AGAIN:
            raise Stopped(f"the service answered with {raw.status} {AGAIN} times in a row; {again}")
        asked = retry_after(raw.evidence.headers.get("Retry-After"), now=self.clock.utc())
        seconds = FIRST_WAIT * 2.0**times if asked is None else asked
        if seconds > LONGEST_WAIT:
            raise Stopped(f"the service answered with {raw.status}: not before {seconds:,.0f} s; {again}")
        await self.clock.sleep(seconds)

    def question(
        self, method: str, path: str, *, token: str | None = None, body: bytes | None = None
    ) -> Question:
        """A question with the headers that the specification asks for (4.1, 4.2); ``""`` for no token."""
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": ACCEPTED,
            "Authorization": f"Bearer {self.token if token is None else token}",
        }
        if token == "":
            del headers["Authorization"]
        if body is not None:
            headers["Content-Type"] = "application/json"
        return Question(method=method, path=path, headers=headers, body=body)


async def ask(service: Service, question: Question) -> tuple[RawAnswer, SeenAnswer]:
    """Ask on a connection of its own."""
    connection = service.connection()
    began = service.clock.now()
    try:
        raw = await connection.ask(question)
    finally:
        connection.close()
    return raw, seen(raw, seconds=service.clock.now() - began)


async def look(service: Service) -> None:
    """Ask who the caller is, before anything else is asked.

    Raises:
        Stopped: see `run`.
    """
    raw, _ = await answered(service, service.question("GET", WHO_AM_I), {})
    check_who(raw)


async def answered(
    service: Service, question: Question, answers: dict[str, SeenAnswer]
) -> tuple[RawAnswer, SeenAnswer]:
    """Ask until the service has time for it."""
    times = 0
    while True:
        raw, answer = await ask(service, question)
        if not raw.is_turned_away:
            return raw, answer
        answers[profile.TURNED_AWAY] = answer
        await service.rest(raw, times=times)
        times += 1


def check_who(raw: RawAnswer) -> None:
    """Whether the client can use what it is told of who it is: else nothing that is seen is of any use."""
    check_reached(raw)
    if classify_response(raw.evidence, RetryPolicy(), READ_ANSWERS) is not Classification.ANSWERED:
        raise Stopped(
            f"who-am-i was answered with {raw.status}: are {BASE_URL}, and {TOKEN} right? {_NOTHING}"
        )
    try:
        read_into(User, raw.body)
    except Unreadable as why:
        raise Stopped(f"the client cannot read the answer to who-am-i: {why}. {_NOTHING}") from None


def check_reached(raw: RawAnswer) -> None:
    """Whether the service was reached, and knows the token.

    Raises:
        Stopped: it was not, or does not.
    """
    if not raw.is_sent:
        raise Stopped(f"no connection could be opened: is {BASE_URL} right, and the service up? {_NOTHING}")
    if raw.status is None:
        raise Stopped(f"no answer came: is {BASE_URL} right, and the service up? {_NOTHING}")
    if classify_response(raw.evidence, RetryPolicy(), ORDER_ANSWERS) is Classification.WRONG_TOKEN:
        raise Stopped(
            f"the service does not know the token (status {raw.status}): is {TOKEN} right? {_NOTHING}"
        )


_NOTHING = "Nothing of this is in the profile"
