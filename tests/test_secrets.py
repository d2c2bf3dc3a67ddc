"""No secret appears in an error, its chained errors, its pickle, or a log line."""

import asyncio
import base64
import gc
import importlib
import io
import logging
import pickle
import pkgutil
import re
import sqlite3
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import attrs
import pytest
from attrs import define
from rich.pretty import pretty_repr

import transfer_async
from tests.faults.servers import Connection, Script, foreign_reply, head, http, replies, serving, then_closes
from tests.support import samples
from tests.support.bank import SpiedJournal, new_order
from tests.support.cases import each
from tests.support.journalling import claim
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async import (
    BeneficiaryVerification,
    FundsHold,
    MemoryJournal,
    Order,
    OrderCommand,
    PersonName,
    PostgresJournal,
    RetryPolicy,
    SQLiteJournal,
    Timeouts,
    TransferClient,
    UserLookup,
    log_events,
)
from transfer_async._models import errors as causes
from transfer_async._models.errors import TransferError
from transfer_async.journal import KeySeal, sqlite, transitions
from transfer_async.journal.transitions import Claim

TOKEN = "cr3dential-of-the-bank"
PASSWORD = "cr3dential-of-the-proxy"
PROXY = f"http://cr3dential-user:{PASSWORD}@127.0.0.1:1"
HEADERS = {"X-Gateway-Key": "cr3dential-of-the-gateway"}
BASIC = base64.b64encode(f"cr3dential-user:{PASSWORD}".encode()).decode()
CREDENTIALS = ("cr3dential", BASIC)
"""Secrets that must never appear anywhere."""
SECRETS = (*CREDENTIALS, "s3cr3t")
"""Personal data and the service's texts. They may appear only where an error's docstring says so."""
WORDS = b'{"message": "s3cr3t words", "bvn": "s3cr3t"}'
DOCUMENTED = {"body", "raw", "message", "receipts", "order", "key"}
AMOUNT = "77123456789.01"
KEY = b"cr3dential"
DSN = "postgresql://bank:cr3dential@127.0.0.1:1/x"

ORDER = new_order(
    poster_username="ada.s3cr3t@example.com",
    poster_recipient_username="ben.s3cr3t@example.com",
    poster_amount=AMOUNT,
    matcher_amount=AMOUNT,
    exchange_rate=1,
)
BEN = PersonName("s3cr3tben", "s3cr3tokri")
ONCE = RetryPolicy(attempts=1)

# --- where a secret could come out ----------------------------------------------------------------


def chain(error: BaseException) -> Iterator[BaseException]:
    """Return ``error`` and all chained errors, suppressed or not."""
    seen, left = set(), [error]
    while left:
        if (one := left.pop()) is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def shown(error: BaseException) -> Iterator[tuple[str, str]]:
    """Return every readable part of an error, with its content."""
    own = {name: value for name, value in vars(error).items() if name not in DOCUMENTED}
    yield "str", str(error)
    yield "repr", repr(error)
    yield "args", repr(error.args)
    yield "vars", repr(own)
    yield "vars of its values", repr([getattr(value, "__dict__", value) for value in own.values()])
    yield "traceback", "".join(traceback.format_exception(error))
    if not isinstance(error, TransferError):
        yield "pickle", pickled(error)


def drawn(error: BaseException, *packages: str) -> list[str]:
    """Return all variables in the frames of these packages, as rich and other tools show them."""
    return [
        f"{one.__class__.__name__} {frame.f_code.co_qualname}: {name} = {text}"
        for one in chain(error)
        for frame, _ in traceback.walk_tb(one.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in ("transfer_async", *packages)
        for name, value in frame.f_locals.items()
        for text in (repr(value), pretty_repr(value))
    ]


def drawn_credentials(error: BaseException) -> list[str]:
    return [text for text in drawn(error, "asyncpg", "aiohttp") if "cr3dential" in text]


def pickled(error: BaseException) -> str:
    """Return the pickle of an error, if it can be pickled."""
    try:
        return pickle.dumps(error).decode("latin-1")
    except (TypeError, AttributeError, pickle.PicklingError):
        return ""


def leaks(error: BaseException) -> list[str]:
    """Return the places where a secret appears."""
    found = [
        f"{type(one).__name__}: {place}: {text[:300]}"
        for one in chain(error)
        for place, text in shown(one)
        if any(secret in text for secret in SECRETS)
    ]
    for one in chain(error):
        everything = f"{vars(one)!r} {pickled(one)}"
        found += [f"{type(one).__name__}: {secret}" for secret in CREDENTIALS if secret in everything]
    return found


# --- what can go wrong ----------------------------------------------------------------------------


@define
class Bank:
    """A bank whose client knows all secrets."""

    async def place(self, _: Any) -> str:
        return "s3cr3t-hold"

    async def release(self, _: Any, __: str | None) -> None:
        raise OSError("s3cr3t-release")

    async def resolve(self, _: Any, __: Any) -> Any:
        raise OSError("s3cr3t: the back office is closed")

    @asynccontextmanager
    async def client(self, url: str, **settings: Any) -> AsyncIterator[TransferClient]:
        made: dict[str, Any] = {"retry": ONCE, "observers": [log_events], "headers": HEADERS} | settings
        made.setdefault("resolve", self.resolve)
        hooks = [*made.pop("hooks", ()), FundsHold(self.place, self.release)]
        async with TransferClient(url, made.pop("token", TOKEN), hooks=hooks, **made) as client:
            yield client

    async def order(self, url: str, **settings: Any) -> BaseException:
        async with self.client(url, **settings) as client:
            return await failure(client.create_order(ORDER, key="k", beneficiary=BEN))

    async def read(self, url: str, **settings: Any) -> BaseException:
        async with self.client(url, **settings) as client:
            return await failure(client.request("GET", "/users/s3cr3t", into=_Quote, safe=True))


async def failure(work: Awaitable[object]) -> BaseException:
    (error,) = await asyncio.gather(work, return_exceptions=True)
    assert isinstance(error, TransferError), error
    return error


def at(url: str, **settings: Any) -> Callable[[Bank], AsyncIterator[BaseException]]:
    """Return a function that yields the errors of an order and a read at an address."""

    async def errors(bank: Bank) -> AsyncIterator[BaseException]:
        yield await bank.order(url, **settings)
        yield await bank.read(url, **settings)

    return errors


def behind(script: Script, **settings: Any) -> Callable[[Bank], AsyncIterator[BaseException]]:
    """Return a function that yields the errors of an order and a read with a server that runs ``script``."""

    async def errors(bank: Bank) -> AsyncIterator[BaseException]:
        async with serving(script) as server:
            async for error in at(server.url, **settings)(bank):
                yield error

    return errors


class _NoNames(aiohttp.abc.AbstractResolver):
    async def resolve(self, *_: object, **__: object) -> Any:
        raise OSError(None, "DNS lookup failed")

    async def close(self) -> None:
        """Do nothing."""


async def no_name(bank: Bank) -> AsyncIterator[BaseException]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=_NoNames())) as session:
        yield await bank.order("https://service.invalid", session=session)


async def no_tls(bank: Bank) -> AsyncIterator[BaseException]:
    async def speak(connection: Connection) -> None:
        connection.send(http(400, WORDS))

    async with serving(speak) as server:
        yield await bank.order(server.url.replace("http:", "https:"))


def proxied(script: Script, scheme: str) -> Callable[[Bank], AsyncIterator[BaseException]]:
    """Return a function that yields errors with a proxy that requires a password."""

    async def errors(bank: Bank) -> AsyncIterator[BaseException]:
        async with serving(script) as server:
            address = server.url.replace("://", f"://cr3dential-user:{PASSWORD}@")
            async for error in at(f"{scheme}://127.0.0.1:1", proxy=address)(bank):
                yield error
            assert server.heads[0].headers["proxy-authorization"] == f"Basic {BASIC}"

    return errors


async def undos_that_fail(bank: Bank) -> AsyncIterator[BaseException]:
    async with serving(replies(http(422, WORDS))) as server, bank.client(server.url) as client:
        yield await failure(client.create_order(ORDER, key="k"))
        await client.recover()


async def the_banks_own_requests(bank: Bank) -> AsyncIterator[BaseException]:
    """Yield the errors of a hook, a look-up and a token callable that make their own HTTP requests."""

    async def ask(*_: Any) -> Any:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            await session.get(f"{server.url}/s3cr3t", raise_for_status=True)

    async def ask_in_vain(*_: Any) -> Any:
        try:
            await ask()
        except aiohttp.ClientError as error:
            raise RuntimeError("the back office is down") from error

    async def ask_twice(*_: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask())

    async with serving(replies(http(403, WORDS))) as server:
        for asking in (ask, ask_in_vain, ask_twice):
            yield await bank.order(server.url, token=asking)
            yield await bank.read(server.url, token=asking)
            yield await bank.order(server.url, hooks=[asking])
            yield await bank.order(server.url, hooks=[BeneficiaryVerification(asking)])
        yield await bank.order(server.url, hooks=[BeneficiaryVerification(UserLookup("/users/{username}"))])


async def tokens(bank: Bank) -> AsyncIterator[BaseException]:
    """Yield the errors of callables that return an invalid token, and no other token after a 401."""

    async def with_its_line_end() -> str:
        return f"{TOKEN}\n"

    asked: list[int] = []

    async def one_only() -> str:
        asked.append(1)
        if len(asked) % 2 == 0:
            raise OSError
        return TOKEN

    async with serving(replies(http(401, b'{"message": "Unauthorized"}'))) as server:
        for token in (with_its_line_end, one_only):
            async for error in at(server.url, token=token, retry=RetryPolicy(attempts=2))(bank):
                yield error


async def the_journal(bank: Bank) -> AsyncIterator[BaseException]:
    """Yield errors of a database that contain the values of a row and of an address."""
    duplicate = {"C": "23505", "M": 'duplicate key "s3cr3t"', "D": "Key (key)=(s3cr3t) exists", "S": "ERROR"}
    denied = {"C": "28P01", "M": 'password authentication failed for user "cr3dential"', "S": "FATAL"}
    for fields in (duplicate, denied):
        for move in (Claim, transitions.MarkSending, transitions.Create):
            journal = SpiedJournal(MemoryJournal())
            journal.fail_on, journal.error = move, asyncpg.exceptions.PostgresError.new(fields)
            async with serving(_answers) as server:
                yield await bank.order(server.url, journal=journal)
    down = PostgresJournal(DSN, timeout=MUST_RUN_OUT)
    client = TransferClient("http://127.0.0.1:1", TOKEN, journal=down)
    yield await failure(client.__aenter__())
    await client.close()


async def _answers(connection: Connection) -> None:
    while request := await connection.request():
        answer = samples.order_json(**{name: request.order[name] for name in ("poster_currency",)})
        connection.send(http(200, samples.encode(answer)))


async def unreadable(_: Bank) -> AsyncIterator[BaseException]:
    raw = samples.encode(samples.order_json())
    for wrong in (
        raw.replace(b'"is_matched":0', b'"is_matched":"s3cr3t"'),
        raw.replace(b'"poster_amount":1250', b'"poster_amount":"s3cr3t"'),
        raw[:-1] + b',"s3cr3t":1,"id":"s3cr3t"}',
        raw[:-1] + b',"s3cr3t',
        b'{"id": "tx-1", "s3cr3t": s3cr3t}',
    ):
        assert wrong != raw
        for read in (Order.from_json, OrderCommand.from_json):
            with pytest.raises(TransferError) as caught:
                read(wrong)
            yield caught.value


@define
class _Quote:
    """A bank's class whose errors contain the refused value."""

    bvn: str = ""

    def __attrs_post_init__(self) -> None:
        raise ValueError(f"s3cr3t: {self.bvn}")


GARBAGE = head(200, {"X-S3cr3t": "s3cr3t\x00"})
BROKEN: dict[str, Callable[[Bank], AsyncIterator[BaseException]]] = {
    "nobody listens": at("http://127.0.0.1:1"),
    "no name": no_name,
    "no TLS": no_tls,
    "garbage in the head": behind(then_closes(GARBAGE)),
    "a head too long": behind(then_closes(head(200, {"X-Long": "s3cr3t" * 9000}))),
    "no HTTP": behind(then_closes(b"s3cr3t\r\n\r\n")),
    "closed": behind(then_closes()),
    "half a head": behind(then_closes(b"HTTP/1.1 200 s3cr3t\r\nX: s3cr3t")),
    "a cut body": behind(then_closes(head(200, {"Content-Length": "99"}) + WORDS)),
    "a broken chunk": behind(
        then_closes(head(200, {"Transfer-Encoding": "chunked"}) + b"s3cr3t\r\n"),
        timeouts=Timeouts(total=MUST_RUN_OUT),
    ),
    "an unasked encoding": behind(replies(http(200, WORDS, headers={"Content-Encoding": "s3cr3t"}))),
    "no answer": behind(Connection.gone_after_request, timeouts=Timeouts(sock_read=MUST_RUN_OUT)),
    "no answer in all": behind(Connection.gone_after_request, timeouts=Timeouts(total=MUST_RUN_OUT)),
    "an answer that is none": behind(replies(http(200, WORDS))),
    "another's order": behind(replies(foreign_reply())),
    "a wrong token": behind(replies(http(401, WORDS))),
    "a refusal": behind(replies(http(422, WORDS, headers={"X-Request-Id": "r-7"}))),
    "a redirect": behind(replies(http(302, WORDS, headers={"Location": "http://s3cr3t"}))),
    "trouble": behind(replies(http(503, WORDS))),
    "a proxy that refuses to connect": proxied(replies(http(403, WORDS)), "https"),
    "a proxy that asks again": proxied(replies(http(407, WORDS)), "https"),
    "a proxy that answers garbage": proxied(then_closes(GARBAGE), "https"),
    "a proxy without TLS": proxied(then_closes(GARBAGE), "http"),
    "no proxy": at("https://service.invalid", proxy=PROXY),
    "undos that fail": undos_that_fail,
    "the bank's own requests": the_banks_own_requests,
    "tokens": tokens,
    "the journal": the_journal,
    "what cannot be read": unreadable,
}


async def test_no_secret_is_in_any_error_or_log(caplog: pytest.LogCaptureFixture):
    """Without this, the token in an error's ``request_info`` reaches every error tracker of a bank."""
    caplog.set_level(logging.DEBUG)
    for name, broken in BROKEN.items():
        errors = [error async for error in broken(Bank())]
        assert errors, name
        assert not [(name, leak) for error in errors for leak in leaks(error)]
        for error in errors:
            twin = pickle.loads(pickle.dumps(error))
            assert (type(twin), str(twin), vars(twin).keys()) == (type(error), str(error), vars(error).keys())
    del errors, error, twin
    gc.collect()  # asyncio and aiohttp log objects that were not closed
    assert {"AttemptFailed", "OrderInDoubt", "UndoPending"} <= {
        one.message.split()[0] for one in caplog.records
    }
    assert not [
        text for text in map(_logged_text, caplog.records) if any(one in text for one in (*SECRETS, AMOUNT))
    ]


@pytest.mark.parametrize(
    "name", ["a refusal", "no answer", "the bank's own requests", "tokens", "the journal"]
)
async def test_no_token_or_configured_header_is_in_any_frame_of_an_error(name: str):
    texts = [text async for error in BROKEN[name](Bank()) for text in drawn(error)]

    assert any("ClaimedKey" in text for text in texts)
    assert not [text for text in texts if "cr3dential" in text]


# --- frames, drawn with their variables -----------------------------------------------------------


def wrong(**settings: Any) -> Callable[[pytest.MonkeyPatch, Path], Any]:
    """Return a function that creates a client with a wrong setting and a valid token."""

    def make(_: pytest.MonkeyPatch, __: Path) -> Any:
        return TransferClient(**{"base_url": "https://host", "token": TOKEN, "headers": HEADERS, **settings})

    return make


def from_env(**variables: str) -> Callable[[pytest.MonkeyPatch, Path], Any]:
    def make(patch: pytest.MonkeyPatch, path: Path) -> Any:
        keys = path / "keys"
        keys.write_text('{"current": "a", "keys": {"a": "cr3dentialcr3dential"}}', encoding="utf-8")
        good = {"TRANSFER_BASE_URL": "https://host", "TRANSFER_API_TOKEN": TOKEN}
        for name, value in (good | variables).items():
            patch.setenv(name, str(keys) if name == "TRANSFER_SEAL" else value)
        return TransferClient.from_env()

    return make


def dsn(text: str, **settings: Any) -> Callable[[pytest.MonkeyPatch, Path], Any]:
    return lambda _, __: PostgresJournal(text, **settings)


ODD_LOGINS = ("bank:cr3dential@host", "bank:cr3dential/1@host", "bank:1/cr3dential@host", "[cr3dential")
MISTAKES: dict[str, Callable[[pytest.MonkeyPatch, Path], Any]] = {
    "a token with a line's end": wrong(token=f"{TOKEN}\n"),
    "a token with a blank": wrong(token=f"Bearer {TOKEN}"),
    "a token beyond ASCII": wrong(token=f"{TOKEN}é"),
    "a token of bytes": wrong(token=TOKEN.encode()),
    "no https": wrong(base_url="http://host"),
    **{f"a login in the address: {login}": wrong(base_url=f"https://{login}") for login in ODD_LOGINS},
    "no duration": wrong(settle_after="soon"),
    "no journal": wrong(journal=5),
    "no proxy": wrong(proxy=f"{TOKEN}:8080"),
    "a proxy with a path": wrong(proxy=PROXY.replace("-of", "/of")),
    "a proxy with a fragment": wrong(proxy=PROXY.replace("-of", "#of")),
    "a proxy with a line's end": wrong(proxy=f"{PROXY}\n"),
    "a setting that there is not": wrong(lase=5),
    "no scope": wrong(scope=""),
    "a header with a line's end": wrong(headers={"X-Gateway-Key": "cr3dential\n"}),
    "a header of bytes": wrong(headers={"X-Gateway-Key": b"cr3dential"}),
    "a header beyond ASCII": wrong(headers={"X-Gateway-Key": "cr3dentiäl-cr3dential"}),
    "a header that the client sets": wrong(headers={"Authorization": "Bearer cr3dential"}),
    "a header twice": wrong(headers={**HEADERS, "x-gateway-key": "cr3dential"}),
    "a header's name that is none": wrong(headers={"cr3dential of the gateway": "X-Gateway-Key"}),
    "headers that are no mapping": wrong(headers=["X-Gateway-Key: cr3dential"]),
    "no header for the request id": wrong(request_id_header="Authorization"),
    "the environment's token": from_env(TRANSFER_API_TOKEN=f"{TOKEN}\n"),
    "the environment's address": from_env(TRANSFER_BASE_URL="http://host"),
    "the environment's journal": from_env(TRANSFER_JOURNAL="postgresql://bank:cr3dential/1@host/x"),
    "the environment's seal": from_env(TRANSFER_SEAL="keys", TRANSFER_JOURNAL="x"),
    "a password with a slash": dsn("postgresql://bank:cr3dential/1@host/x"),
    **{
        f"a database at {scheme}{login}": dsn(f"{scheme}{login.replace('@', '@b@')}/x")
        for scheme, login in product(("postgresql://", "postgres:/"), ODD_LOGINS)
    },
    "a schema that is none": dsn(DSN, schema="A b"),
    "no timeout": dsn(DSN, timeout=0),
    "a seal that is none": dsn(DSN, seal=5),
    "keys that are too short": lambda _, __: KeySeal({"a": KEY}, current="a"),
    "another current key": lambda _, __: KeySeal({"a": KEY * 3 + b"22"}, current="b"),
}


@each("mistake", MISTAKES)
def test_an_invalid_setting_leaves_no_secret_in_any_frame(mistake: Any):
    """Without this, an error tracker shows a token that was read with its line break from a file."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as path:
        with pytest.raises((ValueError, TypeError)) as caught:
            mistake(patch, Path(path))

        assert leaks(caught.value) == drawn_credentials(caught.value) == []


async def test_a_database_that_cannot_be_reached_leaves_no_password_in_any_frame():
    down = PostgresJournal(DSN, timeout=MUST_RUN_OUT)
    for use in (down.__aenter__, down.now, down.planned_upgrade, lambda: down.move("s", "k", claim())):
        (error,) = await asyncio.gather(use(), return_exceptions=True)

        assert isinstance(error, BaseException)
        assert drawn_credentials(error) == []


async def test_no_body_and_no_other_customer_is_in_any_frame_of_an_error():
    people = {"user": "0ther-ada@example.com", "postersBeneficiary": "0ther-ben@example.com"}
    theirs = samples.order_json(**{role: {"username": name} for role, name in people.items()})
    for script in (
        replies(http(200, samples.encode(theirs))),
        replies(http(200, samples.encode(theirs)[:-9])),
        *(
            replies(http(200, b"s3cr3t" * 99, headers={"Content-Encoding": encoding}))
            for encoding in ("gzip", "deflate", "s3cr3t")
        ),
        then_closes(head(200, {"Content-Length": "99"}) + WORDS),
        then_closes(head(200, {"Transfer-Encoding": "chunked"}) + b"s3cr3t\r\n"),
    ):
        async with serving(script) as server:
            for error in (
                await Bank().order(server.url, timeouts=Timeouts(total=MUST_RUN_OUT)),
                await Bank().read(server.url),
            ):
                texts = drawn(error, "asyncpg", "aiohttp")
                assert [text for text in texts if "0ther-" in text or "s3cr3ts3cr3t" in text] == []


@each(
    "found",
    [
        {"lastname": "S3cr3tlast"},
        {"username": "s3cr3tname@example.com", "firstname": "Ben"},
        {"lastname": 5},
        {"lastname": None, "is_active": 0},
        {"firstname": "Ben", "lastname": "Okry S3cr3tname"},
    ],
)
async def test_no_looked_up_person_is_in_any_frame_of_an_error(found: dict[str, Any]):
    user = {"username": "ben.okri@example.com", "firstname": "S3cr3tname", "lastname": "Okri", "is_active": 1}
    async with serving(replies(http(200, samples.encode(user | found)))) as server:
        hooks = [BeneficiaryVerification(UserLookup("/users/{username}"))]
        async with Bank().client(server.url, hooks=hooks) as client:
            ben = PersonName("Ben", "Okri")
            error = await failure(client.create_order(new_order(), key="k", beneficiary=ben))

    assert [text for text in drawn(error, "asyncpg", "aiohttp") if "s3cr3t" in text.lower()] == []


async def test_the_username_of_a_look_up_is_in_no_frame_of_its_error():
    look_up = UserLookup("/users/{username}")
    hooks = [BeneficiaryVerification(look_up)]
    async with serving(replies(http(422, WORDS))) as server, Bank().client(server.url, hooks=hooks):
        error = await failure(look_up("s3cr3t-ben@example.com"))

    assert [text for text in drawn(error, "asyncpg", "aiohttp") if "s3cr3t-ben" in text] == []


async def test_no_row_is_in_any_frame_of_a_stores_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "_ADD", f"INSERT INTO nowhere VALUES ({', '.join('?' * 10)})")
    async with SQLiteJournal(tmp_path / "journal") as journal:
        error = await Bank().order("http://127.0.0.1:1", journal=journal)

    assert isinstance(error.__cause__, sqlite3.OperationalError)
    assert not [text for text in drawn(error) if "s3cr3t" in text]


def _logged_text(record: logging.LogRecord) -> str:
    output = io.StringIO()
    traceback.print_exception(record.exc_info[1] if record.exc_info else None, file=output)
    return f"{record.getMessage()} {vars(record)!r} {output.getvalue()}"


strict = pytest.mark.skipif(
    aiohttp.__version__ < "3.14", reason="an older aiohttp takes such a head, and makes no error of it"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("garbage in the head", marks=strict),
        *("a proxy that refuses to connect", "the bank's own requests", "the journal"),
    ],
)
async def test_a_cause_that_is_chained_unchanged_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    """A planted fault: if errors of aiohttp and asyncpg are not replaced, the test above must fail."""
    monkeypatch.setattr(causes, "_may_hold_secrets", lambda _: False)

    assert any([leaks(error) async for error in BROKEN[name](Bank())])


# --- what is shown of an object -----------------------------------------------------------------------

CLASSES = [
    kind
    for module in pkgutil.walk_packages(transfer_async.__path__, "transfer_async.")
    if not re.search(r"__main__|\.(sandbox|testing)\b", module.name)  # these packages contain no real orders
    for kind in vars(importlib.import_module(module.name)).values()
    if isinstance(kind, type)
    and kind.__module__ == module.name
    and (attrs.has(kind) or hasattr(kind, "__struct_fields__"))
    and not hasattr(kind, "__post_init__")  # such a class does not accept arbitrary texts
]


def _field_names(kind: Any) -> tuple[str, ...]:
    return (
        kind.__struct_fields__ if hasattr(kind, "__struct_fields__") else [a.name for a in attrs.fields(kind)]
    )


def _filled(kind: Any) -> Any:
    """Return an object in which every field contains its own name."""
    made = {name: f"<{name}>" for name in _field_names(kind)}
    if hasattr(kind, "__struct_fields__"):
        return kind(**made)
    one = object.__new__(kind)
    for name, value in made.items():
        object.__setattr__(one, name, value)
    return one


@each("kind", CLASSES)
def test_rich_shows_no_more_of_an_object_than_its_repr(kind: type):
    """Some users show every traceback with rich, which reads an object's fields itself."""
    one = _filled(kind)
    shown = [
        [name for name in _field_names(kind) if f"<{name}>" in text] for text in (repr(one), pretty_repr(one))
    ]

    assert shown[1] == shown[0]


@each(
    ("name", "hidden"),
    {
        "Entry": {"reply", "quarantined"},
        "Create": {"reply"},
        "Resolve": {"reply"},
        "Unread": {"kept"},
        "EntryRow": {"body", "intent", "reply"},
        "_StoredIntent": {"order", "beneficiary"},
        "_Persons": {"order", "beneficiary"},
        "_StoredUndo": {"intent"},
        "_Body": {"quarantined"},
        "NewOrder": {"poster_username", "poster_recipient_username"},
        "ExchangeResult": {"body"},
    }.items(),
)
def test_stored_or_received_data_is_not_shown(name: str, hidden: set[str]):
    kinds = [kind for kind in CLASSES if kind.__name__ == name]

    assert kinds
    for kind in kinds:
        one = _filled(kind)
        assert [field for field in sorted(hidden) if f"<{field}>" in repr(one) + pretty_repr(one)] == []
