"""The beneficiary check: it looks up the payee before the funds are held, and refuses in case of doubt."""

import asyncio
import contextlib
import gc
import logging
import re
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from unittest.mock import AsyncMock

import pytest
from attrs import evolve

from tests.support import samples
from tests.support.bank import World, failure, new_order
from tests.support.cases import each
from transfer_async._beneficiary.verification import BeneficiaryVerification, UserLookup
from transfer_async._http.retry import RetryPolicy
from transfer_async._models.errors import (
    BeneficiaryNotVerified,
    MatchResult,
    Outcome,
    PreflightFailed,
    ServiceFailed,
    TransferError,
)
from transfer_async._models.errors import NotVerifiedReason as Reason
from transfer_async._models.requests import OrderIntent, PersonName
from transfer_async._models.responses import Currency, User
from transfer_async._pipeline.hooks import PreflightHook
from transfer_async.sandbox import Account, GarbageBody, Status

CLOSE, NO, NOT_POSSIBLE = MatchResult.CLOSE_MATCH, MatchResult.NO_MATCH, MatchResult.NOT_POSSIBLE
BEN = PersonName("Ben", "Okri")
USERNAME = "ben.okri@example.com"
DOLLARS = Currency(currency_code="USD", payment_types={"zelle_payment": {"email": USERNAME}})
USER = User(username=USERNAME, firstname="Ben", lastname="Okri", is_active=True, currencies=(DOLLARS,))
INSTANTLY = 1e-9
ONCE = RetryPolicy(attempts=1)


def intent(beneficiary: PersonName | None = BEN, **changes: Any) -> OrderIntent:
    return OrderIntent(id="i", key="k", order=new_order(**changes), beneficiary=beneficiary)


def returning(result: Any) -> Callable[..., Awaitable[Any]]:
    """Return a look-up, or a decision about a name, that returns this value or raises this error."""

    async def call(*_: Any) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    return call


async def forever(*_: Any) -> Any:
    await asyncio.Event().wait()


async def refusal(found: Any, asked: OrderIntent | None = None, **settings: Any) -> BeneficiaryNotVerified:
    """Return the error of a check with this look-up, or whose look-up returns this value or raises it."""
    lookup = found if callable(found) else returning(found)
    check = BeneficiaryVerification(lookup, **settings).before(asked or intent())
    return await failure(check, BeneficiaryNotVerified)


@each("username", [USERNAME, USERNAME.upper()])
async def test_the_orders_beneficiary_is_looked_up_and_the_receipt_says_that_it_matched(
    username: str,
) -> None:
    lookup = AsyncMock(return_value=evolve(USER, username=username))

    assert await BeneficiaryVerification(lookup).before(intent()) == "match"
    lookup.assert_awaited_once_with(USERNAME)


async def test_the_check_is_a_hook_without_an_undo() -> None:
    hook = BeneficiaryVerification(returning(USER), name="payee")

    assert isinstance(hook, PreflightHook)
    assert (hook.name, hook.nothing_to_undo) == ("payee", True)
    for receipt in (None, "match"):
        await hook.undo(intent(), receipt)


# --- failed checks ------------------------------------------------------------------------------

SOMEBODY_ELSE = evolve(USER, lastname="Bello")
CLOSE_TO_BEN = evolve(USER, firstname="B.")


def paid_in(**changes: Any) -> User:
    return evolve(USER, currencies=(evolve(DOLLARS, **changes),))


FAILED_CHECKS: dict[Reason, dict[str, Any]] = {
    Reason.OTHER_NAME: {
        "another first name": evolve(USER, firstname="Tunde"),
        "another last name": SOMEBODY_ELSE,
    },
    Reason.CLOSE_NAME: {"an initial": CLOSE_TO_BEN},
    Reason.DECEPTIVE_NAME: {"a look-alike letter": evolve(USER, firstname="Bеn")},
    Reason.NOT_REGISTERED: {"no account": None},
    Reason.OTHER_USERNAME: {"another username": evolve(USER, username="other@example.com")},
    Reason.NOT_PAYABLE: {
        "no currency": evolve(USER, currencies=()),
        "another currency": paid_in(currency_code="EUR"),
        "no payment type": paid_in(payment_types={}),
    },
    Reason.INACTIVE: {"not active": evolve(USER, is_active=False)},
    Reason.NOT_COMPARABLE: {
        "half a name": evolve(USER, lastname=None),
        "no names": evolve(USER, firstname=None, lastname=None),
        "empty names": evolve(USER, firstname="", lastname=" "),
        "a script that cannot be compared": evolve(USER, firstname="明", lastname="王"),
        "a very long name": evolve(USER, firstname="a" * 100_000),
    },
    Reason.LOOKUP_FAILED: {
        "down": OSError("down"),
        "unreadable": ServiceFailed("unreadable"),
        "an error of a hook's own": PreflightFailed("no"),
    },
    Reason.LOOKUP_UNREADABLE: {
        "not a user": "Ben Okri",
        "an empty answer": User(),
        "no username": evolve(USER, username=None),
        "is_active is not shown": evolve(USER, is_active=None),
        "an unreadable last name": evolve(USER, unread=("$.lastname",)),
        "an unreadable middle name": evolve(USER, unread=("$.middlename",)),
        "unreadable currencies": evolve(USER, currencies=None, unread=("$.currencies",)),
        "unreadable payment types": evolve(
            paid_in(payment_types=None), unread=("$.currencies[0].payment_types",)
        ),
        "a username of another type": evolve(USER, username=5),
        "a name of another type": evolve(USER, firstname=5),
        "a middle name of another type": evolve(USER, middlename=["Chi"]),
        "is_active as a text, which is true in Python": evolve(USER, is_active="false"),
        "is_active as a number": evolve(USER, is_active=1),
        "currencies of another type": evolve(USER, currencies="USD"),
        "a currency of another type": evolve(USER, currencies=("USD",)),
        "a code of another type": paid_in(currency_code=840),
        "payment types as a text": paid_in(payment_types="none"),
    },
}
RESULTS = {
    **dict.fromkeys((Reason.OTHER_NAME, Reason.DECEPTIVE_NAME, Reason.NOT_REGISTERED), NO),
    **dict.fromkeys((Reason.OTHER_USERNAME, Reason.NOT_PAYABLE), NO),
    Reason.CLOSE_NAME: CLOSE,
}


@each(
    ("reason", "found"),
    {case: (reason, found) for reason, cases in FAILED_CHECKS.items() for case, found in cases.items()},
)
async def test_each_failed_check_has_its_reason_and_result(reason: Reason, found: Any) -> None:
    """A bank's own look-up constructs the `User`, so only valid field values may count as a match."""
    error = await refusal(found)

    assert (error.reason, error.result) == (reason, RESULTS.get(reason, NOT_POSSIBLE))
    assert error.refused is (error.result is not NOT_POSSIBLE or reason is Reason.INACTIVE)
    assert error.outcome is Outcome.NOT_SENT
    if isinstance(found, Exception):
        assert error.__cause__ is found


async def _look_up(username: str) -> User | None:
    return None


@wraps(_look_up)
def only_marked_as_async(username: str) -> Any:
    return USER


@each(
    ("found", "asked", "settings", "reason", "cause"),
    {
        "a time-out": (forever, intent(), {"timeout": INSTANTLY}, Reason.LOOKUP_FAILED, TimeoutError),
        "only marked as async": (only_marked_as_async, intent(), {}, Reason.LOOKUP_FAILED, TypeError),
        "a name without a letter": (USER, intent(PersonName("-", ".")), {}, Reason.NOT_COMPARABLE, None),
        **{
            f"no name: {name!r}": (LookupError("looked up"), intent(name), {}, Reason.NO_NAME_GIVEN, None)
            for name in (None, PersonName("", ""), PersonName(" ", "\t"))
        },
        "no client": (UserLookup("/users/{username}"), intent(), {}, Reason.LOOKUP_FAILED, RuntimeError),
    },
)
async def test_a_check_that_cannot_be_made_is_not_possible(
    found: Any, asked: OrderIntent, settings: Any, reason: Reason, cause: type[Exception] | None
) -> None:
    error = await refusal(found, asked, **settings)

    assert (error.result, error.reason) == (NOT_POSSIBLE, reason)
    assert isinstance(error.__cause__, cause or type(None))


@each(("wanted", "found"), samples.TWO_PEOPLE)
async def test_another_persons_account_is_no_match_despite_unicode_folding(wanted: str, found: str) -> None:
    error = await refusal(evolve(USER, username=found), intent(poster_recipient_username=wanted))

    assert error.result is NO


async def test_a_cancellation_is_passed_on() -> None:
    task = asyncio.create_task(BeneficiaryVerification(forever).before(intent()))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@each(
    "currencies",
    {
        "not shown": None,
        "payment types not shown": (evolve(DOLLARS, payment_types=None),),
        "in lower case": (evolve(DOLLARS, currency_code="usd"),),
        "beside one without a code": (evolve(DOLLARS, currency_code=None), DOLLARS),
        "shown twice, payable once": (evolve(DOLLARS, payment_types={}), DOLLARS),
    },
)
async def test_currencies_that_are_not_shown_are_not_checked(currencies: Any) -> None:
    user = evolve(USER, currencies=currencies, unread=("$.currencies[0].symbol",))

    assert await BeneficiaryVerification(returning(user)).before(intent()) == "match"


# --- decisions on a close match and on another name ---------------------------------------------

each_decision = each(
    ("argument", "found", "reason", "receipt"),
    [
        ("accept_close", CLOSE_TO_BEN, Reason.CLOSE_NAME, "close_match"),
        ("accept_mismatch", SOMEBODY_ELSE, Reason.OTHER_NAME, "no_match_accepted"),
    ],
)


@each_decision
async def test_a_decision_may_accept_and_the_receipt_says_so(
    argument: str, found: User, reason: Reason, receipt: str
) -> None:
    accept = AsyncMock(return_value=True)

    check = BeneficiaryVerification(returning(found), **{argument: accept})
    assert await check.before(intent()) == receipt
    accept.assert_awaited_once_with(intent(), found)


@each_decision
@each("answer", [False, None, 1, "no", "yes", [True], OSError("no line to the customer")])
async def test_only_true_accepts(
    argument: str, found: User, reason: Reason, receipt: str, answer: Any
) -> None:
    error = await refusal(found, **{argument: returning(answer)})

    failed = isinstance(answer, Exception)
    assert (error.result, error.refused) == (RESULTS[reason], True)
    assert error.reason is (reason if failed else Reason.DECLINED)
    assert error.__cause__ is (answer if failed else None)


@each(
    ("argument", "found"),
    [
        *(("accept_close", found) for found in (USER, SOMEBODY_ELSE, evolve(CLOSE_TO_BEN, currencies=()))),
        *(
            ("accept_mismatch", found)
            for reason, cases in FAILED_CHECKS.items()
            for found in cases.values()
            if reason is not Reason.OTHER_NAME
        ),
        ("accept_mismatch", USER),
        ("accept_mismatch", evolve(SOMEBODY_ELSE, username="other@example.com")),
        ("accept_mismatch", evolve(SOMEBODY_ELSE, is_active=False)),
        ("accept_mismatch", evolve(SOMEBODY_ELSE, currencies=())),
    ],
)
async def test_only_the_result_of_the_name_alone_can_be_accepted(argument: str, found: Any) -> None:
    accept = AsyncMock(return_value=True)
    with contextlib.suppress(BeneficiaryNotVerified):
        await BeneficiaryVerification(returning(found), **{argument: accept}).before(intent())

    accept.assert_not_awaited()


@pytest.mark.parametrize("accepts", [True, False])
async def test_the_decision_about_a_name_mismatch_is_recorded_in_the_history(
    world: World, accepts: bool
) -> None:
    async with world.client(hooks=verifying(world, accept_mismatch=returning(accepts)), retry=ONCE) as client:
        with contextlib.suppress(BeneficiaryNotVerified):
            await client.create_order(new_order(), key="k", beneficiary=PersonName("Amaka", "Nwosu"))
        steps = {step.move: step.reason for step in await client.operators.history("k")}

    word = {True: "accepted", False: "declined"}[accepts]
    assert steps["mark" if accepts else "free"] == f"beneficiary: no match ({word})"
    assert len(world.sandbox.orders) == accepts


async def test_the_history_says_why_without_a_decision(world: World) -> None:
    async with world.client(hooks=verifying(world), retry=ONCE) as client:
        await failure(client.create_order(new_order(), key="k"), BeneficiaryNotVerified)
        await client.create_order(new_order(), key="k", beneficiary=BEN)
        steps = [(step.move, step.reason) for step in await client.operators.history("k")]

    assert ("free", "beneficiary: not possible (no name given)") in steps
    assert ("mark", None) in steps


@pytest.mark.parametrize("found", [None, OSError(), CLOSE_TO_BEN, evolve(USER, lastname="Secret"), User()])
async def test_no_error_shows_anything_about_a_person(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    error = await refusal(found, intent(PersonName("Ben", "Okri", "Chukwuemeka")))

    words = set(re.findall(r"\w+", f"{error} {error!r} {caplog.text}".casefold()))
    assert not words & {"ben", "okri", "secret", "chukwuemeka", "example"}


@each(
    ("settings", "argument"),
    [
        ({"lookup": "/users"}, "lookup"),
        ({"accept_close": True}, "accept_close"),
        ({"accept_mismatch": True}, "accept_mismatch"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=f"^{argument}: "):
        BeneficiaryVerification(**{"lookup": returning(USER)} | settings)


def test_without_its_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "transfer_async._beneficiary.name_matching", raising=False)
    monkeypatch.delattr("transfer_async._beneficiary.name_matching", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rapidfuzz"]:
        monkeypatch.setitem(sys.modules, name, None)  # so that its import fails

    with pytest.raises(ImportError, match=r"pip install 'transfer_async\[names\]'"):
        BeneficiaryVerification(returning(USER))


# --- the service's own look-up ------------------------------------------------------------------


@each(
    "path",
    [
        *(None, "", "/users", "/users/{name}", "/users/{username}/{username}", "/users/{username}/{id}"),
        *("users/{username}", "//evil.example/{username}", "https://evil.example/{username}"),
        *("/users/../{username}", "/users/{username}#top", "/users and more/{username}"),
    ],
)
def test_a_path_that_is_not_a_safe_template_is_refused(path: Any) -> None:
    with pytest.raises(ValueError, match=r"^path: "):
        UserLookup(path)


def test_the_repr_of_a_look_up_shows_the_path() -> None:
    assert repr(UserLookup("/users/{username}")) == "UserLookup('/users/{username}')"


async def test_a_look_up_belongs_to_one_client(world: World) -> None:
    hook = BeneficiaryVerification(UserLookup(world.sandbox.user_path))

    async with world.client(hooks=[hook, world.bank.hold]) as client:
        hook.bind(client)
        with pytest.raises(ValueError, match="another client"):
            world.made(hooks=[hook, world.bank.hold])


async def test_a_look_up_whose_client_is_gone_may_be_given_to_another(world: World) -> None:
    hook = BeneficiaryVerification(UserLookup(world.sandbox.user_path))
    client = world.made(hooks=[hook, world.bank.hold])
    await client.close()
    del client
    gc.collect()

    async with world.client(hooks=[hook, world.bank.hold]) as client:
        await client.create_order(new_order(), key="k", beneficiary=BEN)

    assert len(world.sandbox.orders) == 1


def verifying(world: World, **settings: Any) -> list[Any]:
    """Return the hooks of a bank that verifies the payee before it places the hold."""
    return [BeneficiaryVerification(UserLookup(world.sandbox.user_path), **settings), world.bank.hold]


@pytest.mark.parametrize(
    ("name", "username", "fault", "settings", "result"),
    [
        pytest.param(BEN, "nobody@example.com", None, {}, NO, id="not registered"),
        pytest.param(PersonName("B", "Okri"), USERNAME, None, {}, CLOSE, id="an initial"),
        pytest.param(PersonName("Noah", "Lind"), "noah.lind@example.com", None, {}, NO, id="not payable"),
        pytest.param(BEN, USERNAME, Status(500), {}, NOT_POSSIBLE, id="a failed request"),
        pytest.param(BEN, USERNAME, GarbageBody(), {}, NOT_POSSIBLE, id="an unreadable answer"),
        pytest.param(BEN, USERNAME, None, {"token": "wrong"}, NOT_POSSIBLE, id="a wrong token"),
    ],
)
async def test_nothing_is_held_or_sent_for_an_unverified_beneficiary(
    world: World, name: PersonName, username: str, fault: Any, settings: Any, result: MatchResult
) -> None:
    if fault is not None:
        world.sandbox.faults.add(fault, path=world.sandbox.user_path.replace("{username}", USERNAME))
    order = new_order(poster_recipient_username=username)
    async with world.client(hooks=verifying(world), retry=ONCE, **settings) as client:
        error = await failure(client.create_order(order, key="k", beneficiary=name), BeneficiaryNotVerified)

    assert (error.result, error.hook, error.order_may_exist) == (result, "beneficiary_verification", False)
    assert isinstance(error.__cause__, TransferError) is (result is NOT_POSSIBLE)
    assert (world.bank.log, len(world.sandbox.orders)) == ([], 0)
    assert not (await world.entry()).pending_undos


async def test_the_username_is_percent_encoded_whole(world: World) -> None:
    username = "a/b?c#d%2e&e+é@example.com"
    ngn = world.sandbox.accounts[USERNAME].currencies
    world.sandbox.accounts.add(Account(username=username, firstname="Ben", lastname="Okri", currencies=ngn))
    lookup = UserLookup(world.sandbox.user_path)
    async with world.client(hooks=[BeneficiaryVerification(lookup), world.bank.hold]):
        found = await lookup(username)

    assert found is not None
    assert found.username == username
    assert world.sandbox.requests[-1].path == lookup._path.replace("{username}", username)  # decoded


@pytest.mark.parametrize("username", ["..", "../orders", "x/../../api"])
async def test_a_username_that_would_change_the_path_is_not_requested(world: World, username: str) -> None:
    lookup = UserLookup(world.sandbox.user_path)

    async with world.client(hooks=[BeneficiaryVerification(lookup), world.bank.hold]):
        with pytest.raises(ValueError, match="path"):
            await lookup(username)

    assert not world.sandbox.requests


async def test_a_customer_is_asked_once_per_intent(world: World) -> None:
    accept_close = AsyncMock(return_value=True)
    async with world.client(hooks=verifying(world, accept_close=accept_close)) as client:
        for _ in range(2):
            await client.create_order(new_order(), key="k", beneficiary=PersonName("B.", "Okri"))

    assert accept_close.await_count == len(world.bank.placed) == len(world.sandbox.orders) == 1
