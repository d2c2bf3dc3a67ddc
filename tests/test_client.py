"""The client: its settings, its requests, and how it closes."""

import asyncio
import gc
import inspect
import ssl
import warnings
from datetime import datetime, timedelta
from itertools import product
from typing import Any, get_type_hints
from unittest.mock import AsyncMock

import aiohttp
import pytest
from msgspec.structs import replace

from tests.support.answering import answering
from tests.support.bank import NOON, SpiedJournal, World, failure, new_order, refused_order
from tests.support.cases import each
from transfer_async import (
    AlreadyCreated,
    ClientClosed,
    FundsHold,
    HoldFailed,
    InvalidOrder,
    MemoryJournal,
    NewOrder,
    OrderRequest,
    Outcome,
    Rate,
    Refused,
    Resolved,
    RetryBudget,
    RetryPolicy,
    ServiceFailed,
    SQLiteJournal,
    Timeouts,
    TransferClient,
    Unauthorized,
)
from transfer_async._http.urls import WHO_AM_I
from transfer_async._models.errors import JournalFailed
from transfer_async._pipeline.call import ClientSettings
from transfer_async.journal import journal_at, transitions
from transfer_async.sandbox import CloseAfterProcessing, Status

BASE = "https://bank.example"


@pytest.fixture
async def service():
    async with answering() as made:
        yield made


async def sanctions(_):
    """A hook."""


HOLD = FundsHold(AsyncMock(), AsyncMock())


@each(
    "settings",
    [
        *({"lease": 45}, {"lease": timedelta(minutes=2)}, {"lease": 3.0, "retry": RetryPolicy(deadline=2)}),
        *({"settle_after": 0}, {"settle_after": timedelta(hours=1)}, {"recover_every": None}),
        *({"abandoned_settle_after": 300.0}, {"abandoned_settle_after": timedelta(days=7)}),
        {"settle_after": timedelta(days=2), "abandoned_settle_after": None},
        *({"recover_every": 0.1}, {"recover_every": timedelta(minutes=1)}, {"hooks": [sanctions, HOLD]}),
        *({"hooks": (HOLD,)}, {"observers": [print]}, {"scope": "live"}, {"journal": MemoryJournal()}),
        *({"ssl": ssl.create_default_context()}, {"proxy": "http://localhost:3128"}),
        {"max_response_bytes": 1, "max_connections": 1, "recover_concurrency": 1},
        *({"rate": None}, {"rate": Rate(0.5)}, {"timeouts": Timeouts(total=1), "retry": RetryPolicy()}),
    ],
)
async def test_valid_settings_are_accepted_even_outside_a_loop(settings):
    client = await asyncio.to_thread(TransferClient, BASE, "s3cr3t", **settings)

    assert "s3cr3t" not in repr(client)


LEASE = r"must be finite and at least 1\.5 times the retry deadline, 45 s"
NO_DURATION = "is not a number of seconds or a timedelta"
COUNT = "must be a whole number, 1 or more"
FINITE = "must be finite and more than 0 seconds, or None"
SEQUENCE = "must be a sequence of callables"
TEXT = "must be a non-empty string without control characters"
WRONG_SETTINGS = [
    *(("lease", wrong, LEASE) for wrong in (44.9, timedelta(seconds=44), 0, float("inf"))),
    ("lease", 3601, "must not be more than 3600 s, because a dead worker's key stays claimed"),
    ("lease", timedelta(days=1), "must not be more than 3600 s"),
    *(("lease", wrong, NO_DURATION) for wrong in ("60", None)),
    ("settle_after", -1, "must be 0 seconds or more"),
    *(("settle_after", wrong, NO_DURATION) for wrong in ("300", float("nan"))),
    ("abandoned_settle_after", 299.9, r"must be at least settle_after \(300 seconds"),
    *(("abandoned_settle_after", wrong, NO_DURATION) for wrong in ("86400", float("nan"))),
    *(("recover_every", wrong, FINITE) for wrong in (0, -1, float("inf"))),
    ("recover_every", "60", NO_DURATION),
    *(("ssl", wrong, r"must be an ssl\.SSLContext") for wrong in (False, True)),
    *(("scope", wrong, TEXT) for wrong in ("", 5)),
    *(("max_response_bytes", wrong, COUNT) for wrong in (0, 1e6, True)),
    *(("max_connections", wrong, COUNT) for wrong in (0, None)),
    ("recover_concurrency", 0, COUNT),
    ("rate", 5.0, "must be a Rate"),
    *(("retry", wrong, "must be a RetryPolicy") for wrong in (RetryBudget(), 4)),
    *(("timeouts", wrong, "must be a Timeouts") for wrong in (RetryPolicy(), 25)),
    ("clock", datetime.now, "must be a Clock"),
    ("session", "session", r"must be an aiohttp\.ClientSession"),
    ("resolve", "resolve", "must be an async callable"),
    *(("observers", wrong, SEQUENCE) for wrong in (print, [None], 5)),
    ("observers", [sanctions], "must be plain functions"),
    ("hooks", ["sanctions"], "a str is neither a hook nor an async function"),
    ("hooks", HOLD, "must be a sequence of hooks"),
    ("base_url", "http://bank.example", "must be https"),
    ("token", "s3cr3t\n", ""),
]


@each(("name", "wrong", "rule"), WRONG_SETTINGS)
async def test_an_invalid_setting_is_refused_by_name_and_rule(name, wrong, rule):
    with pytest.raises(ValueError, match=rf"^{name}: {rule}"):
        TransferClient(**{"base_url": BASE, "token": "abc"} | {name: wrong})


@each(
    ("settings", "rule"),
    [
        ({"lease": 60, "retry": RetryPolicy(deadline=41)}, r"lease: .* at least 1\.5 times .* 61\.5 s"),
        (
            {"abandoned_settle_after": 86_400, "settle_after": 86_401},
            r"abandoned_settle_after: must be at least settle_after \(86401",
        ),
    ],
)
async def test_a_setting_that_contradicts_another_is_refused(settings, rule):
    with pytest.raises(ValueError, match=f"^{rule}"):
        TransferClient(BASE, "abc", **settings)


async def test_a_session_with_its_own_auth_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        session = aiohttp.ClientSession(auth=aiohttp.BasicAuth("me", "s3cr3t"))
    async with session:
        with pytest.raises(ValueError, match=r"^session: must not set auth") as caught:
            TransferClient(BASE, "abc", session=session)

    assert "s3cr3t" not in str(caught.value)


def test_from_env_has_the_types_of_the_constructor():
    constructor = get_type_hints(TransferClient.__init__)

    assert get_type_hints(ClientSettings) == {
        name: constructor[name]
        for name, parameter in inspect.signature(TransferClient).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


# --- from the environment -----------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("TRANSFER_BASE_URL", BASE)
    monkeypatch.setenv("TRANSFER_API_TOKEN", "abc")
    monkeypatch.delenv("TRANSFER_JOURNAL", raising=False)
    return monkeypatch


async def test_the_environment_has_the_address_and_the_token(environment, service):
    environment.setenv("TRANSFER_BASE_URL", service.base_url)
    environment.setenv("TRANSFER_API_TOKEN", "from-env")
    async with TransferClient.from_env() as client:
        await client.request("GET", "/a")

    assert service.came[0].headers["Authorization"] == "Bearer from-env"


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ({}, "TRANSFER_BASE_URL and TRANSFER_API_TOKEN"),
        ({"TRANSFER_BASE_URL": BASE}, "TRANSFER_API_TOKEN"),
        ({"TRANSFER_API_TOKEN": "s3cr3t"}, "TRANSFER_BASE_URL"),
        ({"TRANSFER_BASE_URL": BASE, "TRANSFER_API_TOKEN": ""}, "TRANSFER_API_TOKEN"),
    ],
)
async def test_each_missing_variable_is_named(environment, there, missing):
    for name in {"TRANSFER_BASE_URL", "TRANSFER_API_TOKEN"} - set(there):
        environment.delenv(name)
    for name, value in there.items():
        environment.setenv(name, value)

    with pytest.raises(ValueError, match=rf"^{missing}: must be set in the environment$"):
        TransferClient.from_env()


@each("settings", [{}, {"journal": None}])
async def test_the_environments_journal_belongs_to_the_client(environment, tmp_path, settings):
    opened: list[SpiedJournal] = []

    def spied(address, *, seal):
        opened.append(SpiedJournal(journal_at(address, seal=seal)))
        return opened[-1]

    environment.setattr("transfer_async._client.journal_at", spied)
    environment.setenv("TRANSFER_JOURNAL", str(tmp_path / "journal.db"))
    async with TransferClient.from_env(**settings) as client:
        assert await client.known("k") is None
    unused = TransferClient.from_env()
    await unused.close()

    for spied_journal in opened:
        await spied_journal.journal.close()  # the spy only counts

    assert await asyncio.to_thread((tmp_path / "journal.db").is_file)
    assert opened[0].closed == 1


async def test_a_journal_that_cannot_be_opened_raises_when_the_client_is_entered(environment, tmp_path):
    """Without this, the error appears with the first payment, hours after the deployment."""
    environment.setenv("TRANSFER_JOURNAL", str(tmp_path / "nowhere" / "journal.db"))
    client = TransferClient.from_env()
    with pytest.raises(JournalFailed, match=r"could not be opened \(FileNotFoundError\)"):
        async with client:
            pytest.fail("it was entered")
    await asyncio.to_thread((tmp_path / "nowhere").mkdir)
    async with client:
        assert await client.known("k") is None


async def test_a_journal_that_is_given_is_opened_and_stays_open(tmp_path):
    journal = SQLiteJournal(tmp_path / "journal.db")
    async with TransferClient(BASE, "abc", journal=journal), TransferClient(BASE, "abc", journal=journal):
        there = await asyncio.to_thread((tmp_path / "journal.db").is_file)
    found = await journal.read(BASE, "k")
    await journal.close()

    assert (there, found) == (True, None)


async def test_a_journal_of_the_banks_own_needs_no_open_method(world):
    class Plain:
        durable = False

        def __init__(self, journal):
            for name in ("now", "move", "read", "work"):
                setattr(self, name, getattr(journal, name))

    order = await world.create(journal=Plain(world.journal))

    assert order.id in world.sandbox.orders


@each("journal", ["mysql://db/journal", " ", "redis://here"])
async def test_an_invalid_journal_address_is_not_silently_ignored(environment, journal):
    environment.setenv("TRANSFER_JOURNAL", journal)

    with pytest.raises(ValueError, match=r"^TRANSFER_JOURNAL: "):
        TransferClient.from_env()


async def test_from_env_of_a_subclass_returns_the_subclass(environment):
    class Mine(TransferClient):
        pass

    assert type(Mine.from_env()) is Mine


async def test_a_wrong_token_is_unauthorized_whatever_the_status(world: World):
    world.sandbox.faults.add(Status(200, body='{"message": "Unauthorized"}'), path=WHO_AM_I)
    async with world.client(token="wrong") as client:
        errors = [await failure(client.who_am_i()) for _ in range(2)]

    assert [(type(error), error.status) for error in errors] == [(Unauthorized, 200), (Unauthorized, 401)]
    for error in errors:
        details = (error.message, error.outcome, error.order_may_exist)
        assert details == ("Unauthorized", Outcome.REFUSED, False)
    assert len(world.sandbox.requests) == 2


@each("body", ["[]", "5", "", "<html>", '{"id": "usr-1"', "{}", '{"id": 5}', '{"message": "no"}'])
async def test_a_who_am_i_answer_without_an_id_fails(world: World, body):
    world.sandbox.faults.add(Status(200, body=body), path=WHO_AM_I)
    async with world.client() as client:
        error = await failure(client.who_am_i(), ServiceFailed)

    assert error.order_may_exist is False


async def test_who_am_i_matches_the_specification_and_ignores_an_unreadable_field(service):
    service.answer(body=b'{"id": "usr-1", "is_active": "yes"}')
    async with TransferClient(service.base_url, "abc") as client:
        me = await client.who_am_i()

    (came,) = service.came
    agent = came.headers["User-Agent"]
    assert (me.id, me.is_active, me.unread) == ("usr-1", None, ("$.is_active",))
    assert (came.method, came.target, came.body) == ("GET", "/api/api/v1/user/who-am-i", b"")
    assert agent.startswith("transfer_async")
    assert dict(came.headers) == {
        "Host": service.base_url.removeprefix("http://"),
        "Authorization": "Bearer abc",
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": agent,
    }


async def test_all_faults_of_the_arguments_are_raised_at_once_and_nothing_happens(world: World):
    async with world.client() as client:
        error = await failure(
            client.create_order(
                {"poster_amount": 1},
                key="",
                beneficiary="Ben Okri",
                held=" ",
                send_before=datetime(2024, 5, 6),  # noqa: DTZ001 - a naive one is the fault
                deadline=5.0,
            )
        )

    assert type(error) is InvalidOrder
    wrong = ["order", "key", "beneficiary", "held", "send_before", "deadline"]
    assert [field for field, _ in error.problems] == wrong
    assert error.order_may_exist is True
    assert (world.bank.log, world.journal.moves, list(world.sandbox.requests)) == ([], [], [])


async def test_a_stored_reply_that_is_no_longer_readable_is_returned_by_its_id(world: World):
    """Without this, a bank that checks before it places a hold sees a doubt although its order exists."""
    async with world.client() as client:
        order = await client.create_order(new_order(), key="k")
        memory = world.journal.journal
        memory._entries = {at: replace(entry, reply=b'{"id": 1}') for at, entry in memory._entries.items()}
        known = await client.known("k")
        again = await failure(client.create_order(new_order(), key="k"))

    assert (known.state.value, known.order, known.order_id) == ("created", None, order.id)
    assert (type(again), again.order_id) == (AlreadyCreated, order.id)


async def test_a_free_key_shows_whether_it_was_refused_or_never_sent(world: World):
    """Without this, a bank that checks first places another hold for a refused order."""
    await world.fails(Refused, refused_order(), key="refused")
    world.bank.place_error = HoldFailed("no funds")
    await world.fails(HoldFailed, key="unsent")
    world.bank.place_error = None
    await world.create(key="created")
    await world.in_doubt("doubt")
    await world.crash(transitions.MarkSending, key="at work")
    async with world.client() as client:
        ends = [await client.known(key) for key in ("refused", "unsent", "created", "doubt", "at work")]

    known = [record.last_outcome for record in ends if record is not None]
    assert known == [Outcome.REFUSED, Outcome.NOT_SENT, Outcome.CREATED, Outcome.UNKNOWN, None]


# --- operators ----------------------------------------------------------------------------------


async def test_an_operator_may_resolve_a_doubt_through_the_client(world: World):
    world.sandbox.faults.add(CloseAfterProcessing())
    async with world.client() as client:
        await failure(client.create_order(new_order(), key="k"))
        (doubt,) = await client.in_doubt()
        (order_id,) = world.sandbox.orders
        record = await client.resolve(doubt.key, order_id=order_id, by="ada", reason="seen")
        steps = await client.history("k")
        again = await failure(client.create_order(new_order(), key="k"))
        world.time.pass_(86_401.0)
        forgotten = await client.prune(before=NOON + timedelta(seconds=0.5))

    assert record.order_id == order_id
    assert [step.by for step in steps] == [None, None, None, "ada"]
    assert (type(again), again.order_id) == (AlreadyCreated, order_id)
    assert [event.order_id for event in world.events_of(Resolved)] == [order_id]
    assert forgotten == 1


async def test_a_refutation_uses_the_clients_settle_after(world: World):
    world.sandbox.faults.add(CloseAfterProcessing())
    async with world.client(settle_after=10) as client:
        await failure(client.create_order(new_order(), key="k"))
        with pytest.raises(ValueError, match=r"try again in 10 s$"):
            await client.refute("k", by="ada", reason="sure")
        world.time.pass_(10.0)
        await client.refute("k", by="ada", reason="sure")
        report = await client.recover()

    assert report.released == 1
    assert not world.bank.open


# --- life cycle ---------------------------------------------------------------------------------


async def create_orders(client):
    async for result in client.create_orders([OrderRequest(new_order())]):
        raise result.error


CALLS = {
    "who_am_i": lambda client: client.who_am_i(),
    "request": lambda client: client.request("GET", "/a"),
    "create_order": lambda client: client.create_order(new_order()),
    "create_orders": create_orders,
    "known": lambda client: client.known("k"),
    "recover": lambda client: client.recover(),
    "in_doubt": lambda client: client.in_doubt(),
    "resolve": lambda client: client.resolve("k", order_id="tx-1", by="ada", reason="seen"),
    "refute": lambda client: client.refute("k", by="ada", reason="sure"),
    "history": lambda client: client.history("k"),
    "prune": lambda client: client.prune(before=NOON),
    "async with": lambda client: client.__aenter__(),
}


@each("call", CALLS)
async def test_after_closing_every_call_is_refused(service, call):
    async with TransferClient(service.base_url, "abc") as client:
        pass
    error = await failure(call(client), ClientClosed)

    assert error.outcome is Outcome.NOT_SENT
    assert error.order_may_exist is (error.key is not None)
    assert service.came == []


async def test_an_invalid_timeout_does_not_close_the_client(service):
    async with TransferClient(service.base_url, "abc") as client:
        with pytest.raises(ValueError, match=r"^timeout: is not a number of seconds"):
            await client.close(timeout="soon")

        await client.request("GET", "/a")


async def collected(live):
    """Return the warnings about objects that ``live`` did not close."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    gc.collect()  # collect unclosed objects of other tests before recording warnings
    messages = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        await live()
        gc.collect()
        while heard:  # each warning refers to its object, which may refer to other unclosed objects
            messages += [str(one.message) for one in heard if issubclass(one.category, ResourceWarning)]
            heard.clear()
            gc.collect()
    return messages


async def test_a_client_left_open_warns_with_the_remedy():
    async def leave_open():
        await TransferClient(BASE, "abc").__aenter__()

    heard = await collected(leave_open)

    assert (
        "a TransferClient was never closed: use 'async with TransferClient(...)', or 'await client.close()'"
    ) in heard


async def test_an_unclosed_client_with_recovery_warns_too_and_stops():
    client = TransferClient(BASE, "abc", recover_every=60)
    await client.known("k")
    background = client._recoveries._background
    with pytest.warns(ResourceWarning, match="was never closed"):
        client.__del__()
    await asyncio.wait([background])
    await client.close()

    assert background.cancelled()


async def test_a_closed_unused_or_invalid_client_does_not_warn(service):
    async def leave_nothing():
        async with TransferClient(service.base_url, "abc") as client:
            await client.request("GET", "/a")
        TransferClient(BASE, "abc")
        with pytest.raises(ValueError, match=r"^lease: "):
            TransferClient(BASE, "abc", lease=1)

    assert await collected(leave_nothing) == []


@each(
    ("order", "beside"),
    [
        *product([None, {}, {"poster_amount": "1"}, "order", 7, object(), NewOrder, []], [{}, {"held": ""}]),
        *product([new_order()], [{"held": ""}, {"beneficiary": "Ben"}]),
    ],
)
async def test_an_invalid_call_never_releases_the_hold_of_a_created_key(
    world: World, order: Any, beside: dict[str, str]
):
    async with world.client() as client:
        await client.create_order(new_order(), key="k")
        error = await failure(client.create_order(order, key="k", **beside), InvalidOrder)
        request = OrderRequest(order, key="k", **beside)
        (result,) = [one async for one in client.create_orders([request])]

    for one in (error, result.error):
        assert (type(one), one.key, one.order_may_exist) == (InvalidOrder, "k", True)


@each("key", ["", " k", "k" * 201, "k\x00", 7, b"k"])
async def test_a_key_refused_here_may_have_an_order_elsewhere(service, key: Any):
    """Another version, or a Python with another version of Unicode, may have accepted the key."""
    async with TransferClient(service.base_url, "abc") as client:
        error = await failure(client.create_order(new_order(), key=key))

    assert (type(error), error.order_may_exist) == (InvalidOrder, True)


@each("fields", [{"order": None}, {"order": {}}, {"held": ""}])
async def test_a_fault_of_a_call_without_a_key_means_that_no_order_can_exist(service, fields):
    async with TransferClient(service.base_url, "abc") as client:
        error = await failure(client.create_order(**{"order": new_order(), **fields}))

    assert (type(error), error.order_may_exist) == (InvalidOrder, False)


async def test_create_order_cannot_be_reached_through_a_prefix_of_the_base_address(service):
    async with TransferClient(service.base_url + "/api", "abc") as client:
        with pytest.raises(ValueError, match="to create orders, call create_order"):
            await client.request("POST", "/api/v1/order/create", json={})
