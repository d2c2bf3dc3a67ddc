"""The bearer token (specification section 5): given once, or asked for when it is needed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable

from multidict import CIMultiDict

from transfer_async._http import decoder
from transfer_async._models.causes import bare
from transfer_async._models.errors import TokenUnavailable
from transfer_async._support.callables import checked_async

Token = str | Callable[[], Awaitable[str]]


def checked(token: object) -> str:
    """``token``, if it can stand in a header.

    Raises:
        ValueError: it cannot; the message does not show it.
    """
    if not isinstance(token, str) or not token:
        why = "token: is not a string with something in it"
    elif not token.isascii() or not token.isprintable() or " " in token:
        why = "token: holds a space, a control character or one beyond ASCII"
    else:
        return token
    del token  # tracebacks are drawn with what the variables of their frames hold
    raise ValueError(why)


def _checked_callable(token: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    return checked_async(
        token, "token()", name="token", kind="a string, or an async callable that returns one"
    )


class TokenSource:
    """One token for all callers, renewed once for all of them.

    Args:
        token: the token, or an async callable that returns one.
        timeout: seconds that the callable may take.
        user_agent: goes into the same headers.
    """

    def __init__(self, token: Token, *, timeout: float, user_agent: str) -> None:
        self._ask = None if isinstance(token, str) else _checked_callable(token)
        self._timeout = timeout
        self._user_agent = user_agent
        self._asking: asyncio.Task[CIMultiDict[str]] | None = None
        self._headers = self._headers_for(checked(token)) if isinstance(token, str) else None

    @property
    def renewable(self) -> bool:
        """Whether there is somebody to ask for another token."""
        return self._ask is not None

    @property
    def current(self) -> CIMultiDict[str] | None:
        """The headers of every request, if the token is known already."""
        return self._headers

    async def headers(self, *, instead_of: CIMultiDict[str] | None = None) -> CIMultiDict[str]:
        """The headers of every request, with the token; the very same object as long as the token is.

        Args:
            instead_of: the headers that the service answered with 401; asks for another token
                unless somebody has already.

        Raises:
            TokenUnavailable: the callable failed, took too long, or gave something else.
        """
        if self._headers is not None and self._headers is not instead_of:
            return self._headers
        del instead_of  # the old token would be drawn with a traceback
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._renew())
        asking = self._asking
        try:
            return await asyncio.shield(asking)  # one caller's cancellation is not the others'
        except TokenUnavailable as error:
            # Each call writes its own key on its own error.
            raise copy.copy(error) from error.__cause__
        except asyncio.CancelledError as error:
            caller = asyncio.current_task()
            if not asking.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise TokenUnavailable("the token callable was cancelled") from error

    def distrust(self, headers: CIMultiDict[str] | None) -> None:
        """The service answered ``headers`` with 401: whoever comes next asks for another token first."""
        if self.renewable and self._headers is headers:
            self._headers = None

    def close(self) -> None:
        """Ask no longer: whoever still waits for a token gets none."""
        if self._asking is not None:
            self._asking.cancel()

    async def _renew(self) -> CIMultiDict[str]:
        try:
            if self._ask is None:
                raise ValueError("there is nobody to ask")  # noqa: TRY301 - told like any other failure
            async with asyncio.timeout(self._timeout):
                self._headers = self._headers_for(checked(await self._ask()))
            return self._headers
        except Exception as error:  # noqa: BLE001 - told below, where it is no context of what is raised
            cause = bare(error)
        raise TokenUnavailable(f"the token callable failed ({type(cause).__name__})") from cause

    def _headers_for(self, token: str) -> CIMultiDict[str]:
        return CIMultiDict(
            {
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                "Content-Type": "application/json",
                "Accept-Encoding": decoder.ACCEPTED,
                "User-Agent": self._user_agent,
            }
        )
