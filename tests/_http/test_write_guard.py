"""The last check before a request's first byte, on sockets that are ready, closed, or have unread bytes."""

from __future__ import annotations

import asyncio
import copy
import fcntl
import resource
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError
from attrs import define, field

from tests.support.cases import each
from transfer_async._http import write_guard
from transfer_async._http.write_guard import (
    ConnectionStale,
    ConnectionState,
    GuardedBody,
    NeverTwice,
    SessionBody,
    SessionRequest,
    TooLate,
)

BODY = b'{"poster_amount": "1250.00"}'


@define(eq=False, slots=False)
class Protocol:
    """The part of aiohttp's protocol that the guard uses."""

    should_close: bool = False


@define
class Connection:
    """A connection as the guard sees it: a transport, a protocol, and a writer that records."""

    socket: Any
    far: Any
    tls: bool = False
    closing: bool = False
    protocol: Protocol = field(factory=Protocol)
    written: list[bytes] = field(factory=list)
    at_write: Callable[[], None] = lambda: None
    lost: bool = False

    @property
    def transport(self) -> Any:
        return None if self.lost else self

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self.socket, "sslcontext": object() if self.tls else None}[name]

    async def write(self, data: bytes) -> None:
        self.at_write()
        self.written.append(data)


@pytest.fixture
def connection() -> Iterator[Connection]:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        yield Connection(near, far)


def body(in_time: Callable[[], bool] = lambda: True) -> GuardedBody:
    return GuardedBody(BODY, in_time=in_time)


async def refusal(guarded: GuardedBody, connection: Connection) -> type[aiohttp.ClientError] | None:
    """Write a body to a connection. Return the class of the guard's error, or None if it is written."""
    try:
        await SessionBody(guarded).write_with_length(connection, len(BODY))
    except aiohttp.ClientConnectionError as error:
        return type(error)
    return None


# --- a body -------------------------------------------------------------------------------------


async def test_a_body_counts_as_handed_over_before_its_first_byte_and_if_writing_fails(
    connection: Connection,
):
    guarded = body()
    states: list[bool] = []

    def break_off() -> None:
        states.append(guarded.handed_over)
        raise ConnectionResetError

    connection.at_write = break_off
    with pytest.raises(ConnectionResetError):
        await refusal(guarded, connection)

    assert [*states, guarded.handed_over] == [True, True]


async def test_a_body_is_handed_over_at_most_once(connection: Connection):
    guarded = body()

    assert await refusal(guarded, connection) is None
    assert await refusal(guarded, connection) is NeverTwice
    assert connection.written == [BODY]


async def test_a_body_given_up_during_the_check_is_never_written(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
):
    guarded = body()

    async def given_up_meanwhile(*_: object) -> bool:
        guarded.spent = True
        return False

    monkeypatch.setattr(write_guard, "_is_stale", given_up_meanwhile)

    assert await refusal(guarded, connection) is NeverTwice
    assert (connection.written, guarded.handed_over) == ([], False)


async def test_the_time_is_read_after_the_check_and_a_body_that_is_too_late_is_not_written(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    async def look(*_: object) -> bool:
        asked.append("look")
        return False

    def is_in_time() -> bool:
        asked.append("time")
        return False

    monkeypatch.setattr(write_guard, "_is_stale", look)
    guarded = body(is_in_time)

    assert await refusal(guarded, connection) is TooLate
    assert asked == ["look", "time"]
    assert (connection.written, guarded.late, guarded.handed_over) == ([], True, False)


def test_copying_a_body_returns_the_same_body():
    data = SessionBody(body())

    assert copy.deepcopy({"data": data})["data"] is data


# --- the look -----------------------------------------------------------------------------------


def close_ours(connection: Connection) -> None:
    connection.closing = True


def mark(connection: Connection) -> None:
    connection.protocol.should_close = True


def say_something(connection: Connection) -> None:
    connection.far.send(b"H")


SPOILS: dict[str, Callable[[Connection], Any]] = {
    "lost": lambda connection: setattr(connection, "lost", True),
    "closed by us": close_ours,
    "marked": mark,
    "closed by them": lambda connection: connection.far.close(),
    "half closed by them": lambda connection: connection.far.shutdown(socket.SHUT_WR),
    "with bytes in it": say_something,
    "with a response that is not trusted yet": lambda connection: ConnectionState().take(
        None, connection.protocol
    ),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
async def test_a_stale_connection_is_not_written_to(connection: Connection, spoil: Callable[..., Any]):
    guarded = body()
    spoil(connection)

    assert await refusal(guarded, connection) is ConnectionStale
    assert (connection.written, guarded.stale, guarded.handed_over) == ([], True, False)


async def test_a_body_rejected_by_a_stale_connection_can_still_be_sent(connection: Connection):
    guarded = body()
    say_something(connection)

    assert await refusal(guarded, connection) is ConnectionStale
    connection.socket.recv(100)
    assert await refusal(guarded, connection) is None
    assert guarded.handed_over
    assert connection.written == [BODY]


async def test_a_transport_without_a_socket_is_trusted(connection: Connection):
    connection.socket = None

    assert await refusal(body(), connection) is None
    assert connection.written == [BODY]


async def test_readable_tls_data_is_processed_first(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    connection.tls = True
    results: list[bool] = []

    def readable_once(_: object) -> bool:
        results.append(not results)
        return results[-1]

    monkeypatch.setattr(write_guard, "_is_readable", readable_once)

    assert await refusal(body(), connection) is None
    assert results == [True, False]
    assert connection.written == [BODY]


@pytest.mark.parametrize("found", [say_something, mark, close_ours])
async def test_a_tls_connection_that_stays_readable_or_has_a_pending_answer_or_end_is_not_trusted(
    connection: Connection, found: Callable[[Connection], None], monkeypatch: pytest.MonkeyPatch
):
    connection.tls = True
    results: list[bool] = []

    def readable(_: object) -> bool:
        found(connection)
        results.append(found is say_something or not results)  # Only a whole answer is read meanwhile.
        return results[-1]

    monkeypatch.setattr(write_guard, "_is_readable", readable)

    assert await refusal(body(), connection) is ConnectionStale
    assert connection.written == []


@pytest.mark.skipif(  # the system sets this limit
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3000, reason="so many files may not be open here"
)
@pytest.mark.parametrize("has_poll", [True, False])
def test_a_connection_is_checked_also_without_poll_and_with_a_descriptor_above_1023(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, has_poll: bool
):
    if not has_poll:
        monkeypatch.delattr(select, "poll")
    lowest = 2000 if has_poll else 0
    with socket.socket(fileno=fcntl.fcntl(connection.socket.fileno(), fcntl.F_DUPFD, lowest)) as ours:
        before = write_guard._is_readable(ours)
        say_something(connection)
        after = write_guard._is_readable(ours)

    assert (before, after) == (False, True)


# --- every other request ------------------------------------------------------------------------


class Request:
    """The part of aiohttp's request object that the guard wraps."""

    headers: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.sent_on: list[Connection] = []

    async def send(self, connection: Connection) -> None:
        self.sent_on.append(connection)


async def go(guard: GuardedBody, request: Any, *connections: Connection) -> None:
    """Act like aiohttp: run the middleware, then call ``send`` for each connection that it tries."""

    async def handler(wrapped: Any) -> Any:
        for connection in connections:
            await wrapped.send(connection)

    await SessionRequest(guard)(request, handler)


async def test_a_request_is_sent_at_most_once(connection: Connection):
    guard, request = body(), Request()
    with pytest.raises(NeverTwice):
        await go(guard, request, connection, connection)

    assert guard.handed_over
    assert request.sent_on == [connection]


async def test_a_request_is_not_sent_on_a_stale_connection(connection: Connection):
    guard, request = body(), Request()
    mark(connection)
    with pytest.raises(ConnectionStale):
        await go(guard, request, connection)

    assert (guard.stale, guard.handed_over, request.sent_on) == (True, False, [])


@each("kind", [ConnectionStale, NeverTwice, TooLate, write_guard.AnsweredEarly])
def test_aiohttp_does_not_retry_after_an_error_of_the_guards(kind: type[aiohttp.ClientConnectionError]):
    assert not issubclass(kind, (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError))


# --- after a response -----------------------------------------------------------------------------


def parser(*, ends: Callable[[], object] = lambda: None, lines: tuple[bytes, ...] = ()) -> Any:
    return SimpleNamespace(feed_eof=ends, _lines=lines)


def broken() -> object:
    raise ValueError


def changed(**members: Any) -> Any:
    return SimpleNamespace(**{**vars(READ), **members})


READ = SimpleNamespace(_buffer=[], _tail=b"", exception=lambda: None, _parser=parser())
UNREADABLE = HttpProcessingError(message="not HTTP")
LOST, LOST_AMID_A_HEAD = aiohttp.ServerDisconnectedError(), aiohttp.ServerDisconnectedError("")
LOST_AMID_A_HEAD.message = object()  # type: ignore[assignment] # aiohttp puts the head here


@each(
    ("protocol", "is_amid"),
    [
        (READ, False),
        (changed(_buffer=["head"]), True),
        (changed(_tail=b"H"), True),
        (changed(exception=lambda: UNREADABLE), True),
        (changed(_parser=parser(ends=lambda: "head")), True),
        (changed(_parser=parser(lines=(b"HTTP/1.1",))), True),  # aiohttp's pure-Python parser
        (changed(_parser=parser(ends=broken)), True),
        (changed(_parser=None, exception=lambda: LOST), False),
        (changed(_parser=None, exception=lambda: LOST_AMID_A_HEAD), True),
        # An unknown version of aiohttp.
        (SimpleNamespace(_buffer=[], _tail=b"", exception=lambda: None), True),
        (SimpleNamespace(exception=lambda: None, _parser=parser()), True),
    ],
)
def test_a_connection_with_part_of_another_message_is_detected(protocol: Any, is_amid: bool):
    assert write_guard._is_amid_another(protocol) is is_amid


def test_a_connection_may_be_taken_again_only_once_its_response_is_trusted():
    protocol, state = changed(), ConnectionState()
    steps = [ConnectionState.may_take(protocol)]
    state.take(SimpleNamespace(), protocol)
    steps.append(ConnectionState.may_take(protocol))
    state.trust()
    steps.append(ConnectionState.may_take(protocol))

    assert steps == [True, False, True]


def test_a_connection_on_which_a_message_began_while_idle_is_not_taken():
    """aiohttp replaces the parser for the next request, so the new parser does not show this."""
    protocol, state = changed(_parser=parser(lines=(b"HTTP/1.1 422",))), ConnectionState()
    state.take(SimpleNamespace(), protocol)
    state.trust()
    protocol._parser = parser()

    assert not ConnectionState.may_take(protocol)


@each("used_by", ["nobody", "the client", "other code"])
def test_a_distrusted_connection_is_closed_unless_another_request_uses_it(used_by: str):
    closed: list[bool] = []
    protocol, state = changed(close=lambda: closed.append(True)), ConnectionState()
    state.take(SimpleNamespace(), protocol)
    state.trust()
    if used_by == "the client":
        ConnectionState().take(SimpleNamespace(), protocol)
    if used_by == "other code":  # through a borrowed session
        protocol._parser = parser()
    state.distrust()

    assert not state.trusted
    assert closed == ([True] if used_by == "nobody" else [])


async def test_bytes_for_another_request_on_the_connection_do_not_follow_the_response():
    """Without this, a refused order goes into doubt when another order gets its response."""
    protocol, state = changed(_tail=b"H"), ConnectionState()
    state.take(SimpleNamespace(), protocol)
    ConnectionState().take(SimpleNamespace(), protocol)

    assert state.is_quiet()
    assert await state.is_alone(whole=True)


async def test_a_connection_lost_after_its_response_has_no_other_response():
    protocol, state = changed(_parser=None, exception=lambda: LOST), ConnectionState()
    state.take(SimpleNamespace(get_extra_info=lambda _: None, is_closing=lambda: True), protocol)

    assert state.is_quiet()
    assert await state.is_alone(whole=True)


@each(("over_tls", "waiting", "is_quiet"), [(0, 0, True), (0, 1, False), (1, 100, True), (1, 101, False)])
def test_only_over_tls_an_alert_may_wait_behind_a_response(over_tls: int, waiting: int, is_quiet: bool):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_guard, "_bytes_waiting", lambda *_: waiting)
        state = ConnectionState()
        context = object() if over_tls else None
        state.take(SimpleNamespace(get_extra_info=lambda _: context), changed())

        assert state.is_quiet() is is_quiet


@each(
    ("waiting", "is_closing", "is_decrypted", "is_alone"),
    [(0, False, False, True), (50, False, False, False), (50, True, False, True), (50, False, True, True)],
)
async def test_a_tls_connection_with_undecrypted_bytes_is_not_trusted(
    waiting: int, is_closing: bool, is_decrypted: bool, is_alone: bool
):
    left = [waiting]
    if is_decrypted:  # in the next iteration of the event loop
        asyncio.get_running_loop().call_soon(left.clear)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_guard, "_bytes_waiting", lambda *_: sum(left))
        patch.setattr(write_guard, "_unacknowledged", lambda _: 0)
        state, tls = ConnectionState(), object()
        transport = SimpleNamespace(get_extra_info=lambda _: tls, is_closing=lambda: is_closing)
        state.take(transport, changed())

        assert await state.is_alone(whole=True) is is_alone
