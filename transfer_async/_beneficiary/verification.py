"""`BeneficiaryVerification`: the hook that verifies the beneficiary before an order is sent.

The hook checks, in this order, that the username is registered, that the account is active, that the
account's name matches the name that the customer typed, and that the account can be paid in the order's
currency. The table in `BeneficiaryVerification` lists the result of each failed check. If a check cannot be
made, the order is not sent.
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
    MISMATCH_ACCEPTED,
    BeneficiaryNotVerified,
    MatchResult,
    Refused,
    TransferError,
    name_of,
    sanitize_exception,
    without_frames,
)
from transfer_async._models.errors import NotVerifiedReason as Reason
from transfer_async._models.requests import OrderIntent, PersonName, ascii_lower
from transfer_async._models.responses import Currency, User
from transfer_async._support.clock import Duration, duration
from transfer_async._support.util import Raised, checked_async, try_call

if TYPE_CHECKING:
    from transfer_async._beneficiary.name_matching import NameMatch
    from transfer_async._client import TransferClient

Lookup = Callable[[str], Awaitable[User | None]]
"""A function that returns the account of a username, or None if the username is not registered."""

Accept = Callable[[OrderIntent, User], Awaitable[bool]]
"""A function that decides on a close match or a different name. Only the return value ``True`` accepts it."""


_NO_MATCH = {
    *(Reason.OTHER_NAME, Reason.DECEPTIVE_NAME, Reason.NOT_PAYABLE),
    *(Reason.NOT_REGISTERED, Reason.OTHER_USERNAME),
}
"""The reasons whose default result is ``NO_MATCH``. The default of all others is ``NOT_POSSIBLE``."""

_CURRENCY_PATH = re.compile(r"\$\.currencies(\[\d+\](\.currency_code|\.payment_types)?)?")


class UserLookup:
    """Looks up a user by username, using the service's user-info operation.

    The specification does not state the path of the user-info operation (section 4.3). Requests use the
    token, retry policy and limits of the client to which the hook belongs. Create a separate look-up for each
    client.

    Args:
        path: the path below the client's ``base_url``. The path must contain the placeholder ``{username}``,
            which is replaced by the percent-encoded username.

    Raises:
        ValueError: the path does not contain ``{username}`` exactly once, or points outside ``base_url``.
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
        """Use ``client`` for all further requests. `TransferClient` calls `bind` when the client is created.

        Raises:
            ValueError: the look-up is already bound to another client.
        """
        if self._bound() not in (None, client):
            raise ValueError("UserLookup: another client already uses it; create one for each client")
        self._client = weakref.ref(client)

    def _bound(self) -> TransferClient | None:
        return None if self._client is None else self._client()

    async def __call__(self, username: str) -> User | None:
        """Return the user with the given username, or None if the service responds with 404.

        Raises:
            RuntimeError: the look-up has not been bound to a client.
            TransferError: the look-up failed; see `TransferClient.request`.
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
                "UserLookup: is not bound to a client: pass it to a BeneficiaryVerification, and pass that "
                "hook to a TransferClient"
            )
        path = self._path.replace("{username}", quote(username, safe=""))
        try:
            return await client.request("GET", path, into=User, safe=True)
        except Refused as error:
            if error.status == 404:
                return None
            raise


class BeneficiaryVerification:
    """A hook that checks that the account belongs to the person whom the customer named.

    ============================================================  ======================================
    result of the checks                                          error's ``result``
    ============================================================  ======================================
    no name was given, or none that can be compared               ``NOT_POSSIBLE``
    the look-up failed, timed out, or returned no `User`          ``NOT_POSSIBLE``, cause chained
    the answer lacks username, names or ``is_active``             ``NOT_POSSIBLE``
    a field that is checked has another type than in `User`       ``NOT_POSSIBLE``
    the username is not registered                                ``NO_MATCH``
    the answer is about another username                          ``NO_MATCH``
    the account is not active                                     ``NOT_POSSIBLE``, ``refused`` is true
    currencies are shown, and the order's is not payable          ``NO_MATCH``
    the names differ, and are not accepted                        ``NO_MATCH``, cause chained
    the names differ, and are accepted                            no error; receipt ``"no_match_accepted"``
    the names are close, and not accepted                         ``CLOSE_MATCH``, cause chained
    the names are close, and accepted                             no error; receipt ``"close_match"``
    the names are the same                                        no error; receipt ``"match"``
    ============================================================  ======================================

    The ``reason`` of `BeneficiaryNotVerified` shows why the check failed, and its ``result.code`` is the
    corresponding code in Verification of Payee.

    An account can be paid in a currency if it lists the currency with at least one payment type. A payment
    type is taken as proof of the valid bank account that rule 2 of specification 4.1 requires. If the look-up
    omits the currencies or a currency's payment types, the hook does not check them; the service checks the
    currency anyway.

    If the result is ``NOT_POSSIBLE`` and the account is active, ``refused`` is false, and a later attempt may
    succeed. The journal stores the hook's receipt, so the customer is not asked again after a redelivery. The
    key's history shows whether a mismatch was accepted, or why the beneficiary was not verified.

    Args:
        lookup: ``async (username) -> User | None``: a `UserLookup`, or the bank's own function.
        accept_close: ``async (intent, user) -> bool``: decides whether to accept a close match. The close
            match is accepted only if the function returns ``True``. The function may show the account's name
            to the customer and ask for confirmation. A close match is refused if ``accept_close`` is None, or
            if the function raises an error or takes longer than ``timeout``.
        accept_mismatch: ``async (intent, user) -> bool``: decides whether to accept an account in a different
            name, after all other checks have succeeded. ``accept_mismatch`` follows the same rules as
            ``accept_close``. ``accept_mismatch`` is not called if a name mixes scripts, or contains
            look-alike letters or characters that are not letters.
        timeout: the time limit for the look-up and, separately, for the decision, in seconds or as a
            timedelta. Set ``timeout`` to less than half of the client's ``Timeouts.hook``, which limits the
            look-up and the decision together.
        name: the hook's name, unique among a client's hooks.

    Raises:
        ImportError: the extra ``names`` is not installed.
        ValueError: an argument is invalid; the message names the argument and the rule.
    """

    nothing_to_undo = True

    def __init__(
        self,
        lookup: Lookup,
        accept_close: Accept | None = None,
        *,
        accept_mismatch: Accept | None = None,
        timeout: Duration = 50.0,
        name: str = "beneficiary_verification",
    ) -> None:
        try:
            from transfer_async._beneficiary import name_matching  # needs the extra ``names``
        except ImportError as error:
            raise ImportError(
                "BeneficiaryVerification compares names with rapidfuzz: pip install 'transfer_async[names]'"
            ) from error
        checked_async(
            lookup,
            "lookup(username)",
            name="lookup",
            kind="an async function that takes a username, or a UserLookup",
        )
        kind = "an async function that takes the intent and the user"
        for argument, accept in (("accept_close", accept_close), ("accept_mismatch", accept_mismatch)):
            if accept is not None:
                checked_async(accept, f"{argument}(intent, user)", name=argument, kind=kind)
        self.name = name
        self._timeout = duration("timeout", timeout)
        if not self._timeout > 0:
            raise ValueError("timeout: must be more than 0 seconds")
        self._lookup = lookup
        self._accept = {MatchResult.CLOSE_MATCH: accept_close, MatchResult.NO_MATCH: accept_mismatch}
        self._match_names = name_matching.match_names

    def bind(self, client: TransferClient) -> None:
        """Pass ``client`` to the look-up's ``bind`` method, if it has one."""
        bind = getattr(self._lookup, "bind", None)
        if callable(bind):
            bind(client)

    async def before(self, intent: OrderIntent) -> str:
        """Verify the beneficiary, and return the receipt; see the table in `BeneficiaryVerification`.

        Raises:
            BeneficiaryNotVerified: the beneficiary is not verified; see the table in
                `BeneficiaryVerification`.
        """
        try:
            return await self._verified(intent)
        except BeneficiaryNotVerified as error:
            without_frames(error)  # The traceback's local variables contain the account that was found.
            raise

    async def _verified(self, intent: OrderIntent) -> str:
        given = intent.beneficiary
        if given is None or not any(part and part.strip() for part in (given.first, given.last)):
            raise _not_verified(Reason.NO_NAME_GIVEN, "the beneficiary's name is missing")
        user = await self._look_up(intent.order.poster_recipient_username)
        _check_account(user, intent.order.poster_recipient_username)
        match = self._compare(given, user)
        if match.result is MatchResult.NO_MATCH and self._accept[match.result] is None:
            raise _not_verified(Reason.OTHER_NAME, match.reason)
        _check_payable(user, intent.order.matcher_currency)
        if match.result is not MatchResult.MATCH:
            await self._ask(match, intent, user)
        return MISMATCH_ACCEPTED if match.result is MatchResult.NO_MATCH else match.result.value

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Do nothing, because the check changed nothing."""

    async def _look_up(self, username: str) -> User:
        user = await _within(self._timeout, self._lookup, username)
        if type(user) is Raised:
            cause = sanitize_exception(user.error)
            why = f"the look-up failed ({name_of(cause)})"
            raise _not_verified(Reason.LOOKUP_FAILED, why) from cause
        if user is None:
            raise _not_verified(Reason.NOT_REGISTERED, "the username is not registered")
        if not isinstance(user, User):
            why = f"the look-up returned a {type(user).__name__}, not a User"
            raise _not_verified(Reason.LOOKUP_UNREADABLE, why)
        return user

    def _compare(self, given: PersonName, user: User) -> NameMatch:
        parts = (user.firstname, user.middlename, user.lastname)
        unread = {"$.firstname", "$.middlename", "$.lastname"} & set(user.unread)
        if unread or not all(_is_text_or_none(part) for part in parts):
            raise _not_verified(Reason.LOOKUP_UNREADABLE, "the account's name cannot be read")
        found = PersonName(first=user.firstname or "", middle=user.middlename, last=user.lastname or "")
        match = self._match_names(given, found)
        if match.is_deceptive:
            raise _not_verified(Reason.DECEPTIVE_NAME, match.reason)
        if match.result is MatchResult.NOT_POSSIBLE:
            raise _not_verified(Reason.NOT_COMPARABLE, match.reason)
        return match

    async def _ask(self, match: NameMatch, intent: OrderIntent, user: User) -> None:
        """Await the bank's function, which decides whether to accept a close match or a different name."""
        reason = Reason.CLOSE_NAME if match.result is MatchResult.CLOSE_MATCH else Reason.OTHER_NAME
        cause = None
        if (accept := self._accept[match.result]) is not None:
            answer = await _within(self._timeout, accept, intent, user)
            if answer is True:
                return
            if type(answer) is Raised:
                cause = sanitize_exception(answer.error)
            else:
                reason = Reason.DECLINED
        raise _not_verified(reason, f"{match.reason}, which was not accepted", match.result) from cause


async def _within(seconds: float, function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    """Return the result of the bank's ``function``; an error or timeout is returned as a `Raised`."""
    try:
        async with asyncio.timeout(seconds):
            return await try_call(function, *args)
    except TimeoutError as error:
        return Raised(error)


def _not_verified(reason: Reason, why: str, result: MatchResult | None = None) -> BeneficiaryNotVerified:
    if result is None:
        result = MatchResult.NO_MATCH if reason in _NO_MATCH else MatchResult.NOT_POSSIBLE
    return BeneficiaryNotVerified(f"the beneficiary is not verified: {why}", result=result, reason=reason)


def _check_account(user: User, username: str) -> None:
    if not user.username or not _is_text_or_none(user.username):
        raise _not_verified(Reason.LOOKUP_UNREADABLE, "the look-up returned an account without a username")
    if ascii_lower(user.username) != ascii_lower(username):
        raise _not_verified(Reason.OTHER_USERNAME, "the look-up returned an account with another username")
    # A bank's own look-up may return the string "false", which counts as true in Python.
    if not isinstance(user.is_active, bool):
        raise _not_verified(
            Reason.LOOKUP_UNREADABLE,
            "the look-up returned an account whose is_active is neither true nor false",
        )
    if not user.is_active:
        raise _not_verified(Reason.INACTIVE, "the account is not active")


def _check_payable(user: User, currency: str) -> None:
    """Check that the account can be paid in ``currency``, unless the look-up omitted the currencies."""
    if any(map(_CURRENCY_PATH.fullmatch, user.unread)) or not _are_currencies(user.currencies):
        raise _not_verified(Reason.LOOKUP_UNREADABLE, "the account's currencies cannot be read")
    if user.currencies is not None and not any(_pays(held, currency) for held in user.currencies):
        raise _not_verified(Reason.NOT_PAYABLE, "the account cannot be paid in the order's currency")


def _pays(held: Currency, currency: str) -> bool:
    shown = held.payment_types is None or len(held.payment_types) > 0
    return shown and ascii_lower(held.currency_code or "") == ascii_lower(currency)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _are_currencies(value: object) -> bool:
    return value is None or (
        isinstance(value, list | tuple)
        and all(
            isinstance(held, Currency)
            and _is_text_or_none(held.currency_code)
            and (held.payment_types is None or isinstance(held.payment_types, Mapping))
            for held in value
        )
    )
