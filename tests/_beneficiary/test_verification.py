"""The beneficiary check: it looks up the payee before the funds are held, and refuses in case of doubt."""

import asyncio
import builtins
import contextlib
import gc
import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any

import pytest
from attrs import evolve

from tests.support import samples
from tests.support.bank import World, failure, new_order, world
from tests.support.cases import each
from transfer_async._beneficiary.verification import BeneficiaryVerification, UserLookup
from transfer_async._http.retry import RetryPolicy
from transfer_async._http.transport import Timeouts
from transfer_async._models.errors import (
    BeneficiaryNotVerified,
    MatchResult,
    Outcome,
    PreflightFailed,
    Refused,
    ServiceFailed,
)
from transfer_async._models.errors import NotVerifiedReason as Reason
from transfer_async._models.requests import OrderIntent, PersonName
from transfer_async._models.responses import Currency, User
from transfer_async._pipeline.hooks import PreflightHook
from transfer_async.sandbox import Account, GarbageBody, Status

MATCH, CLOSE, NO, NOT_POSSIBLE = (
    MatchResult.MATCH,
    MatchResult.CLOSE_MATCH,
    MatchResult.NO_MATCH,
    MatchResult.NOT_POSSIBLE,
)
BEN = PersonName("Ben", "Okri")
USERNAME = "ben.okri@example.com"
DOLLARS = Currency(currency_code="USD", payment_types={"zelle_payment": {"email": USERNAME}})
USER = User(username=USERNAME, firstname="Ben", lastname="Okri", is_active=True, currencies=(DOLLARS,))
INSTANTLY = 1e-9
ONCE = RetryPolicy(attempts=1)


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def intent(beneficiary: PersonName | None = BEN, **changes: Any) -> OrderIntent:
    return OrderIntent(id="i", key="k", order=new_order(**changes), beneficiary=beneficiary)


def finding(found: Any) -> Callable[[str], Awaitable[Any]]:
    """Return a look-up that returns this value or raises this error."""

    async def lookup(username: str) -> Any:
        if isinstance(found, BaseException):
            raise found
        return found

    return lookup


def answering(answer: Any) -> Callable[[OrderIntent, User], Awaitable[Any]]:
    """Return a function that answers every question about a close match with this value or error."""

    async def accept_close(intent: OrderIntent, user: User) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return accept_close


async def forever(*_: Any) -> Any:
    await asyncio.Event().wait()


async def refused(lookup: Any, asked: OrderIntent | None = None, **settings: Any) -> BeneficiaryNotVerified:
    """Return the error of a check that must not end in a match."""
    check = BeneficiaryVerification(lookup, **settings).before(asked or intent())
    return await failure(check, BeneficiaryNotVerified)


async def refusal(found: Any, asked: OrderIntent | None = None, **settings: Any) -> BeneficiaryNotVerified:
    """Return the error of a check whose look-up returns this value or raises this error."""
    return await refused(finding(found), asked, **settings)


# --- a match ------------------------------------------------------------------------------------


@pytest.mark.parametrize("username", [USERNAME, USERNAME.upper()])
async def test_the_orders_beneficiary_is_looked_up_and_the_receipt_says_that_it_matched(
    username: str,
) -> None:
    asked: list[str] = []

    async def lookup(username_: str) -> User:
        asked.append(username_)
        return evolve(USER, username=username)

    assert await BeneficiaryVerification(lookup).before(intent()) == "match"
    assert asked == [USERNAME]


async def test_the_check_is_a_hook_without_an_undo() -> None:
    hook = BeneficiaryVerification(finding(USER), name="payee")

    assert isinstance(hook, PreflightHook)
    assert hook.name == "payee"
    assert hook.nothing_to_undo
    await hook.undo(intent(), None)
    await hook.undo(intent(), "match")


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


@each(("wanted", "found"), samples.TWO_PEOPLE)
async def test_another_persons_account_is_no_match_despite_unicode_folding(wanted: str, found: str) -> None:
    hook = BeneficiaryVerification(finding(evolve(USER, username=found)))
    with pytest.raises(BeneficiaryNotVerified) as caught:
        await hook.before(intent(poster_recipient_username=wanted))

    assert caught.value.result is NO


async def test_the_cause_of_a_failed_look_up_is_chained() -> None:
    down = OSError("down")

    assert (await refusal(down)).__cause__ is down


async def test_a_look_up_that_times_out_makes_the_check_impossible() -> None:
    error = await refused(forever, timeout=INSTANTLY)

    assert error.result is NOT_POSSIBLE
    assert isinstance(error.__cause__, TimeoutError)


async def test_a_look_up_only_marked_as_async_makes_the_check_impossible() -> None:
    async def look_up(username: str) -> User | None:
        return None

    @wraps(look_up)
    def decorated(username: str) -> Any:
        return USER

    assert (await refused(decorated)).result is NOT_POSSIBLE


async def test_a_name_without_a_letter_makes_the_check_impossible() -> None:
    assert (await refusal(USER, intent(PersonName("-", ".")))).result is NOT_POSSIBLE


@pytest.mark.parametrize("beneficiary", [None, PersonName("", ""), PersonName(" ", "\t")])
async def test_without_a_name_the_check_is_impossible_and_no_look_up_runs(
    beneficiary: PersonName | None,
) -> None:
    error = await refusal(LookupError("somebody was looked up"), intent(beneficiary))

    assert (error.result, error.reason) == (NOT_POSSIBLE, Reason.NO_NAME_GIVEN)
    assert error.__cause__ is None


async def test_a_cancellation_is_passed_on() -> None:
    task = asyncio.create_task(BeneficiaryVerification(forever).before(intent()))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


# --- currencies ---------------------------------------------------------------------------------


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

    assert await BeneficiaryVerification(finding(user)).before(intent()) == "match"


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
    asked: list[tuple[OrderIntent, User]] = []

    async def accept(intent: OrderIntent, user: User) -> bool:
        asked.append((intent, user))
        return True

    assert await BeneficiaryVerification(finding(found), **{argument: accept}).before(intent()) == receipt
    assert asked == [(intent(), found)]


@each_decision
@each("answer", [False, None, 1, "no", "yes", [True], OSError("no line to the customer")])
async def test_only_true_accepts(
    argument: str, found: User, reason: Reason, receipt: str, answer: Any
) -> None:
    error = await refusal(found, **{argument: answering(answer)})

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
    asked: list[User] = []

    async def accept(intent: OrderIntent, user: User) -> bool:
        asked.append(user)
        return True

    with contextlib.suppress(BeneficiaryNotVerified):
        await BeneficiaryVerification(finding(found), **{argument: accept}).before(intent())

    assert asked == []


@pytest.mark.parametrize("accepts", [True, False])
async def test_the_decision_about_a_name_mismatch_is_recorded_in_the_history(w: World, accepts: bool) -> None:
    async with w.client(hooks=verifying(w, accept_mismatch=answering(accepts)), retry=ONCE) as client:
        with contextlib.suppress(BeneficiaryNotVerified):
            await client.create_order(new_order(), key="k", beneficiary=PersonName("Amaka", "Nwosu"))
        steps = {step.move: step.reason for step in await client.operators.history("k")}

    word = {True: "accepted", False: "declined"}[accepts]
    assert steps["mark" if accepts else "free"] == f"beneficiary: no match ({word})"
    assert len(w.sandbox.orders) == accepts


async def test_the_history_says_why_without_a_decision(w: World) -> None:
    async with w.client(hooks=verifying(w), retry=ONCE) as client:
        await failure(client.create_order(new_order(), key="k"), BeneficiaryNotVerified)
        await client.create_order(new_order(), key="k", beneficiary=BEN)
        steps = [(step.move, step.reason) for step in await client.operators.history("k")]

    assert ("free", "beneficiary: not possible (no name given)") in steps
    assert ("mark", None) in steps


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [None, OSError(), CLOSE_TO_BEN, evolve(USER, lastname="Secret"), User()])
async def test_no_error_shows_anything_about_a_person(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    error = await refusal(found, intent(PersonName("Ben", "Okri", "Chukwuemeka")))

    words = set(re.findall(r"\w+", f"{error} {error!r} {caplog.text}".casefold()))
    assert not words & {"ben", "okri", "secret", "chukwuemeka", "example"}


# --- settings -----------------------------------------------------------------------------------


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
        BeneficiaryVerification(**{"lookup": finding(USER)} | settings)


def test_without_its_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "transfer_async._beneficiary.name_matching", raising=False)
    monkeypatch.delattr("transfer_async._beneficiary.name_matching", raising=False)
    whole_import = builtins.__import__

    def without_rapidfuzz(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("rapidfuzz"):
            raise ImportError(name)
        return whole_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rapidfuzz)

    with pytest.raises(ImportError, match=r"pip install 'transfer_async\[names\]'"):
        BeneficiaryVerification(finding(USER))


# --- the service's own look-up ------------------------------------------------------------------


@each(
    "path",
    [
        None,
        "",
        "/users",
        "/users/{name}",
        "/users/{username}/{username}",
        "/users/{username}/{id}",
        "users/{username}",
        "//evil.example/{username}",
        "https://evil.example/{username}",
        "/users/../{username}",
        "/users/{username}#top",
        "/users and more/{username}",
    ],
)
def test_a_path_that_is_not_a_safe_template_is_refused(path: Any) -> None:
    with pytest.raises(ValueError, match=r"^path: "):
        UserLookup(path)


def test_the_repr_of_a_look_up_shows_the_path() -> None:
    assert repr(UserLookup("/users/{username}")) == "UserLookup('/users/{username}')"


async def test_a_look_up_without_a_client_raises() -> None:
    error = await refused(UserLookup("/users/{username}"))

    assert error.result is NOT_POSSIBLE
    assert "pass it to a BeneficiaryVerification" in str(error.__cause__)


async def test_a_look_up_belongs_to_one_client(w: World) -> None:
    hook = BeneficiaryVerification(UserLookup(w.sandbox.user_path))

    async with w.client(hooks=[hook, w.bank.hold]) as client:
        hook.bind(client)
        with pytest.raises(ValueError, match="another client"):
            w.made(hooks=[hook, w.bank.hold])


async def test_a_look_up_whose_client_is_gone_may_be_given_to_another(w: World) -> None:
    hook = BeneficiaryVerification(UserLookup(w.sandbox.user_path))
    client = w.made(hooks=[hook, w.bank.hold])
    await client.close()
    del client
    gc.collect()

    async with w.client(hooks=[hook, w.bank.hold]) as client:
        await client.create_order(new_order(), key="k", beneficiary=BEN)

    assert len(w.sandbox.orders) == 1


def verifying(w: World, **settings: Any) -> list[Any]:
    """Return the hooks of a bank that verifies the payee before it places the hold."""
    return [BeneficiaryVerification(UserLookup(w.sandbox.user_path), **settings), w.bank.hold]


async def refused_by(
    w: World, name: PersonName | None, order: Any, **settings: Any
) -> BeneficiaryNotVerified:
    async with w.client(hooks=verifying(w), retry=ONCE, **settings) as client:
        return await failure(client.create_order(order, key="k", beneficiary=name), BeneficiaryNotVerified)


@pytest.mark.parametrize(
    ("name", "username", "result"),
    [
        pytest.param(BEN, "nobody@example.com", NO, id="not registered"),
        pytest.param(PersonName("B", "Okri"), USERNAME, CLOSE, id="an initial"),
        pytest.param(PersonName("Noah", "Lind"), "noah.lind@example.com", NO, id="not payable"),
    ],
)
async def test_nothing_is_held_or_sent_for_an_unverified_beneficiary(
    w: World, name: PersonName | None, username: str, result: MatchResult
) -> None:
    error = await refused_by(w, name, new_order(poster_recipient_username=username))

    assert (error.result, error.hook, error.order_may_exist) == (result, "beneficiary_verification", False)
    assert (w.bank.log, len(w.sandbox.orders)) == ([], 0)
    assert not (await w.entry()).pending_undos


@pytest.mark.parametrize("fault", [Status(500), GarbageBody()])
async def test_a_failed_request_of_the_look_up_makes_the_check_impossible(w: World, fault: Any) -> None:
    w.sandbox.faults.add(fault, path=w.sandbox.user_path.replace("{username}", USERNAME))

    error = await refused_by(w, BEN, new_order())

    assert error.result is NOT_POSSIBLE
    assert error.__cause__ is not None
    assert (w.bank.log, len(w.sandbox.orders)) == ([], 0)


async def test_a_wrong_token_makes_the_check_impossible_rather_than_no_match(w: World) -> None:
    error = await refused_by(w, BEN, new_order(), token="wrong")

    assert error.result is NOT_POSSIBLE
    assert isinstance(error.__cause__, Refused)


async def test_the_username_is_percent_encoded_whole(w: World) -> None:
    username = "a/b?c#d%2e&e+é@example.com"
    ngn = w.sandbox.accounts[USERNAME].currencies
    w.sandbox.accounts.add(Account(username=username, firstname="Ben", lastname="Okri", currencies=ngn))

    lookup = UserLookup(w.sandbox.user_path)
    async with w.client(hooks=[BeneficiaryVerification(lookup), w.bank.hold]):
        found = await lookup(username)

    assert found is not None
    assert found.username == username
    assert w.sandbox.requests[-1].path == w.sandbox.user_path.replace("{username}", username)  # decoded


@pytest.mark.parametrize("username", ["..", "../orders", "x/../../api"])
async def test_a_username_that_would_change_the_path_is_not_requested(w: World, username: str) -> None:
    lookup = UserLookup(w.sandbox.user_path)

    async with w.client(hooks=[BeneficiaryVerification(lookup), w.bank.hold]):
        with pytest.raises(ValueError, match="path"):
            await lookup(username)

    assert not w.sandbox.requests


async def test_a_customer_is_asked_once_per_intent(w: World) -> None:
    asked: list[str] = []

    async def accept_close(intent: OrderIntent, user: User) -> bool:
        asked.append(intent.id)
        return True

    async with w.client(hooks=verifying(w, accept_close=accept_close)) as client:
        for _ in range(2):
            await client.create_order(new_order(), key="k", beneficiary=PersonName("B.", "Okri"))

    assert len(asked) == len(w.bank.placed) == len(w.sandbox.orders) == 1


async def test_a_shorter_hook_timeout_ends_the_beneficiary_look_up(w: World) -> None:
    hooks = [BeneficiaryVerification(forever), w.bank.hold]

    async with w.client(hooks=hooks, timeouts=Timeouts(hook=INSTANTLY)) as client:
        caught = await failure(client.create_order(new_order(), key="k", beneficiary=BEN), PreflightFailed)

    assert (caught.refused, caught.order_may_exist) == (False, False)
    assert (w.bank.log, len(w.sandbox.orders)) == ([], 0)
