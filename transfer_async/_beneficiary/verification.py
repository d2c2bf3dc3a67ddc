"""`BeneficiaryVerification`: the hook that verifies the beneficiary before an order is sent.

It makes four checks, in this order. The username is registered. The account is active. Its name is the one
that the customer typed. It can be paid in the order's currency. The table in `BeneficiaryVerification` shows
the results. If a check is not possible, the order is not sent.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from transfer_async._http import urls
from transfer_async._models.errors import (
    BeneficiaryNotVerified,
    MatchResult,
    Refused,
    TransferError,
    name_of,
    sanitize_exception,
    without_frames,
)
from transfer_async._models.requests import OrderIntent, PersonName, ascii_lower
from transfer_async._models.responses import Currency, User
from transfer_async._support.clock import Duration, duration
from transfer_async._support.util import Raised, checked_async, try_call

if TYPE_CHECKING:
    from transfer_async._client import TransferClient

Lookup = Callable[[str], Awaitable[User | None]]
"""A function that returns the account of a username, or None if the username is not registered."""

AcceptClose = Callable[[OrderIntent, User], Awaitable[bool]]
"""A function that decides on a close match, for example by asking the customer. Only ``True`` accepts."""


_CURRENCY_PATH = re.compile(r"\$\.currencies(\[\d+\](\.currency_code|\.payment_types)?)?")


class UserLookup:
    """The service's user-info look-up by username.

    The specification does not show the path of this look-up (section 4.3). The requests use the token,
    retries and limits of the client whose hook uses this look-up. Create one look-up for each client.

    Args:
        path: the path below the client's ``base_url``. It contains the placeholder ``{username}`` once, for
            the percent-encoded username.

    Raises:
        ValueError: the path does not contain ``{username}`` exactly once, or leaves ``base_url``.
    """

    def __init__(self, path: str) -> None:
        head, *tail = path.split("{username}") if isinstance(path, str) else ("",)
        if len(tail) != 1 or set(head + tail[0]) & set("{}"):
            raise ValueError("path: must contain {username} once, and no other braces")
        urls.checked_path(f"{head}username{tail[0]}")
        self._path = path
        # A weak reference, because the client already references its hooks.
        self._client: weakref.ref[TransferClient] | None = None

    def __repr__(self) -> str:
        return f"UserLookup({self._path!r})"

    def bind(self, client: TransferClient) -> None:
        """Send requests through ``client`` from now on. The client calls this method.

        Raises:
            ValueError: the look-up is already bound to another client.
        """
        if self._bound() not in (None, client):
            raise ValueError("UserLookup: is used by another client already; create one for each client")
        self._client = weakref.ref(client)

    def _bound(self) -> TransferClient | None:
        return None if self._client is None else self._client()

    async def __call__(self, username: str) -> User | None:
        """Return the user with this username, or None if the service responds with 404.

        Raises:
            RuntimeError: the look-up is not part of a client's hook.
            TransferError: the look-up failed for another reason; see `TransferClient.request`.
        """
        try:
            return await self._found(username)
        except (RuntimeError, TransferError) as error:
            del username
            without_frames(error)  # The traceback's local variables contain the username.
            raise

    async def _found(self, username: str) -> User | None:
        client = self._bound()
        if client is None:
            raise RuntimeError(
                "UserLookup: has no client: pass it to a BeneficiaryVerification, and that to a "
                "TransferClient as one of its hooks"
            )
        path = self._path.replace("{username}", quote(username, safe=""))
        try:
            return await client.request("GET", path, into=User, safe=True)
        except Refused as error:
            if error.status == 404:
                return None
            raise


class BeneficiaryVerification:
    """A hook that allows an order only if the account belongs to the person that the customer named.

    ============================================================  ================================
    result of the checks                                          error's ``result``
    ============================================================  ================================
    no name was given, or none that can be compared               ``NOT_POSSIBLE``
    the look-up failed, timed out, or returned no `User`          ``NOT_POSSIBLE``, cause chained
    the answer lacks username, names or ``is_active``             ``NOT_POSSIBLE``
    a field that is checked has another type than in `User`       ``NOT_POSSIBLE``
    the username is not registered                                ``NO_MATCH``
    the answer is about another username                          ``NO_MATCH``
    the account is not active                                     ``NO_MATCH``
    currencies are shown, and the order's is not payable          ``NO_MATCH``
    the names differ                                              ``NO_MATCH``
    the names are close, and not accepted                         ``CLOSE_MATCH``, cause chained
    the names are close, and accepted                             no error; receipt ``"close_match"``
    the names are the same                                        no error; receipt ``"match"``
    ============================================================  ================================

    A currency is payable if the account shows it with at least one payment type. This payment type is the
    valid bank account that the beneficiary needs (specification 4.1, rule 2). If the look-up returns no
    currencies or no payment types, the hook skips this check, and the service makes it.

    With ``NOT_POSSIBLE``, the error's ``refused`` is false, because a later attempt may succeed. The journal
    records the receipt, so a redelivery does not ask the customer again.

    Args:
        lookup: ``async (username) -> User | None``; a `UserLookup`, or the bank's own.
        accept_close: ``async (intent, user) -> bool``: decides on a close match. Only ``True`` accepts it.
            The function may show the account's name to the customer and ask. A close match is refused if
            there is no such function, if it raises an error, or if it takes longer than ``timeout``.
        timeout: the maximum duration of the look-up, and of ``accept_close``, in seconds or as a timedelta.
            Choose less than half of the client's ``Timeouts.hook``, which limits both together.
        name: the hook's name, unique among a client's hooks.

    Raises:
        ImportError: the extra ``names`` is not installed.
        ValueError: an argument is invalid. The message names the argument and the rule.
    """

    nothing_to_undo = True

    def __init__(
        self,
        lookup: Lookup,
        accept_close: AcceptClose | None = None,
        *,
        timeout: Duration = 50.0,
        name: str = "beneficiary_verification",
    ) -> None:
        try:
            from transfer_async._beneficiary import name_matching  # needs an extra
        except ImportError as error:
            raise ImportError(
                "BeneficiaryVerification compares names with rapidfuzz: pip install 'transfer_async[names]'"
            ) from error
        checked_async(
            lookup,
            "lookup(username)",
            name="lookup",
            kind="an async function of a username, or a UserLookup",
        )
        if accept_close is not None:
            checked_async(
                accept_close,
                "accept_close(intent, user)",
                name="accept_close",
                kind="an async function of the intent and the user",
            )
        self.name = name
        self._timeout = duration("timeout", timeout)
        if not self._timeout > 0:
            raise ValueError("timeout: must be more than 0 seconds")
        self._lookup = lookup
        self._accept_close = accept_close
        self._match_names = name_matching.match_names

    def bind(self, client: TransferClient) -> None:
        """Pass ``client`` to the look-up's ``bind`` method, if there is one. The client calls this method."""
        bind = getattr(self._lookup, "bind", None)
        if callable(bind):
            bind(client)

    async def before(self, intent: OrderIntent) -> str:
        """Verify the beneficiary, and return the receipt ``"match"`` or ``"close_match"``.

        Raises:
            BeneficiaryNotVerified: the beneficiary is not verified; see the table of the class.
        """
        try:
            return await self._verified(intent)
        except BeneficiaryNotVerified as error:
            without_frames(error)  # The traceback's local variables contain the account that was found.
            raise

    async def _verified(self, intent: OrderIntent) -> str:
        given = intent.beneficiary
        if given is None or not any(part and part.strip() for part in (given.first, given.last)):
            raise _not(MatchResult.NOT_POSSIBLE, "the beneficiary's name is missing")
        user = await self._look_up(intent.order.poster_recipient_username)
        _check_account(user, intent.order.poster_recipient_username)
        result = self._compare(given, user)
        _check_payable(user, intent.order.matcher_currency)
        if result is MatchResult.CLOSE_MATCH:
            await self._ask(intent, user)
        return result.value

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Do nothing: a check changes nothing that could be undone."""

    async def _look_up(self, username: str) -> User:
        user = await _within(self._timeout, self._lookup, username)
        if type(user) is Raised:
            cause = sanitize_exception(user.error)
            why = f"the look-up failed ({name_of(cause)})"
            raise _not(MatchResult.NOT_POSSIBLE, why) from cause
        if user is None:
            raise _not(MatchResult.NO_MATCH, "the username is not registered")
        if not isinstance(user, User):
            why = f"the look-up returned a {type(user).__name__}, not a User"
            raise _not(MatchResult.NOT_POSSIBLE, why)
        return user

    def _compare(self, given: PersonName, user: User) -> MatchResult:
        parts = (user.firstname, user.middlename, user.lastname)
        unread = {"$.firstname", "$.middlename", "$.lastname"} & set(user.unread)
        if unread or not all(_is_text_or_none(part) for part in parts):
            raise _not(MatchResult.NOT_POSSIBLE, "the account's name cannot be read")
        found = PersonName(first=user.firstname or "", middle=user.middlename, last=user.lastname or "")
        match = self._match_names(given, found)
        if match.result in (MatchResult.MATCH, MatchResult.CLOSE_MATCH):
            return match.result
        raise _not(match.result, match.reason)

    async def _ask(self, intent: OrderIntent, user: User) -> None:
        answer: object = None
        if self._accept_close is not None:
            answer = await _within(self._timeout, self._accept_close, intent, user)
        if answer is True:
            return
        cause = sanitize_exception(answer.error) if type(answer) is Raised else None
        raise _not(MatchResult.CLOSE_MATCH, "the names are close, but this was not accepted") from cause


async def _within(seconds: float, function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    """Return the result or the error of the bank's ``function``, or a `TimeoutError` after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await try_call(function, *args)
    except TimeoutError as error:
        return Raised(error)


def _not(result: MatchResult, why: str) -> BeneficiaryNotVerified:
    return BeneficiaryNotVerified(f"the beneficiary is not verified: {why}", result=result)


def _check_account(user: User, username: str) -> None:
    """Check that ``user`` is the active account of ``username``."""
    if not user.username or not _is_text_or_none(user.username):
        raise _not(MatchResult.NOT_POSSIBLE, "the look-up returned an account without a username")
    if ascii_lower(user.username) != ascii_lower(username):
        raise _not(MatchResult.NO_MATCH, "the look-up returned the account of another username")
    if not isinstance(
        user.is_active, bool
    ):  # A bank's own look-up may return the string "false", which counts as true in Python.
        raise _not(MatchResult.NOT_POSSIBLE, "the look-up returned no is_active, true or false")
    if not user.is_active:
        raise _not(MatchResult.NO_MATCH, "the account is not active")


def _check_payable(user: User, currency: str) -> None:
    """Check that the account can be paid in ``currency``, if the look-up returned currencies."""
    if any(map(_CURRENCY_PATH.fullmatch, user.unread)) or not _are_currencies(user.currencies):
        raise _not(MatchResult.NOT_POSSIBLE, "the account's currencies cannot be read")
    if user.currencies is not None and not any(_pays(held, currency) for held in user.currencies):
        raise _not(MatchResult.NO_MATCH, "the account cannot be paid in the order's currency")


def _pays(held: Currency, currency: str) -> bool:
    shown = held.payment_types is None or len(held.payment_types) > 0
    return shown and ascii_lower(held.currency_code or "") == ascii_lower(currency)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _are_currencies(value: object) -> bool:
    """Return whether the currencies of a bank's own `User` are None or have the right types."""
    return value is None or (
        isinstance(value, list | tuple)
        and all(
            isinstance(held, Currency)
            and _is_text_or_none(held.currency_code)
            and (held.payment_types is None or isinstance(held.payment_types, Mapping))
            for held in value
        )
    )
