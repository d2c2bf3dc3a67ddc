"""The bearer token: all callers share it, it is fetched once for all of them, and it is never shown."""

import asyncio
import gc
from functools import wraps

import pytest

from tests.support.bank import turns
from tests.support.cases import each
from tests.support.loop_time import MUST_RUN_OUT
from transfer_async import TokenUnavailable
from transfer_async._http.request import TokenSource, checked

WRONG = [
    *("s3cr3t token", " s3cr3t", "s3cr3t\n", "s3cr3t\r\nX: y", "s3cr\x003t", "s3cr\x7f3t", "s3cr3t-ü"),
    *("s3cr3t\u2028", "", None, b"s3cr3t", 5, object(), ["s3cr3t"]),
]


def source(token, *, timeout=60.0):
    return TokenSource(token, timeout=timeout, user_agent="agent/1")


class Issuer:
    """Issues ``token-1``, ``token-2``, … while its gate is open, and raises ``error`` if set."""

    def __init__(self):
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = None

    async def __call__(self):
        self.calls += 1
        number = self.calls
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return f"token-{number}"

    async def meets(self, tokens, callers, **how):
        """Let this many callers wait for one token. Return the headers or the error of each."""
        self.gate.clear()
        waiting = [asyncio.create_task(tokens.headers(**how)) for _ in range(callers)]
        await turns(3)
        self.gate.set()
        return await asyncio.gather(*waiting, return_exceptions=True)


@pytest.fixture
async def issuer():
    return Issuer()


# --- what is a token ----------------------------------------------------------------------------


@each("token", ["t", "eyJhbGciOi.eyJzdWIi.SflKxw-_", "a+b/c==", "~!#$%&'*"])
def test_a_token_is_printable_ascii_without_spaces(token):
    assert checked(token) == token


@each("token", WRONG)
@each("read", [checked, source])
def test_an_invalid_token_is_refused_without_being_shown(token, read):
    with pytest.raises(ValueError, match=r"^token: ") as caught:
        read(token)

    assert "s3cr" not in str(caught.value)


async def test_a_refused_fixed_token_is_used_again_and_cannot_be_renewed():
    tokens = source("t")
    headers = await tokens.headers()
    tokens.distrust(headers)

    assert not tokens.renewable
    assert tokens.current is headers
    with pytest.raises(TokenUnavailable):
        await tokens.headers(instead_of=headers)


# --- asking and renewing ------------------------------------------------------------------------


async def test_the_callable_runs_at_first_use_and_its_token_is_reused(issuer):
    tokens = source(issuer)
    assert issuer.calls == 0

    headers = await tokens.headers()

    assert tokens.renewable
    assert headers["Authorization"] == "Bearer token-1"
    assert await tokens.headers() is headers
    assert issuer.calls == 1


async def test_the_callable_runs_once_for_all_callers_and_once_for_all_refused_calls(issuer):
    tokens = source(issuer)
    old = await issuer.meets(tokens, 20)
    new = await issuer.meets(tokens, 20, instead_of=old[0])

    assert issuer.calls == 2
    assert all(headers is old[0] for headers in old)
    assert {headers["Authorization"] for headers in new} == {"Bearer token-2"}


async def test_a_refused_token_is_not_used_for_the_next_call(issuer):
    tokens = source(issuer)
    old = await tokens.headers()
    tokens.distrust(old)

    assert tokens.current is None
    new = await tokens.headers()
    assert new["Authorization"] == "Bearer token-2"
    tokens.distrust(old)  # a late caller reports the old token
    assert tokens.current is new


# --- failing ------------------------------------------------------------------------------------


async def test_each_caller_gets_its_own_error_and_the_next_caller_retries_the_callable(issuer):
    tokens = source(issuer)
    issuer.error = cause = OSError("s3cr3t")
    errors = await issuer.meets(tokens, 3)
    issuer.error = None

    assert [type(error) for error in errors] == [TokenUnavailable] * 3
    assert len({id(error) for error in errors}) == 3
    assert all(error.__cause__ is cause for error in errors)
    assert str(errors[0]) == "the token callable failed (OSError)"
    assert (await tokens.headers())["Authorization"] == "Bearer token-2"


@each("token", WRONG)
async def test_a_callable_that_returns_no_token_fails(token):
    async def ask():
        return token

    with pytest.raises(TokenUnavailable) as caught:
        await source(ask).headers()

    assert isinstance(caught.value.__cause__, ValueError)
    assert "s3cr" not in f"{caught.value} {caught.value.__cause__}"


async def test_a_sync_hanging_or_self_cancelling_callable_raises_token_unavailable(issuer):
    @wraps(issuer)
    def plain():
        return "abc"

    async def cancels():
        raise asyncio.CancelledError

    issuer.gate.clear()
    for ask, cause in ((plain, TypeError), (issuer, TimeoutError), (cancels, asyncio.CancelledError)):
        with pytest.raises(TokenUnavailable, match=cause.__name__) as caught:
            await source(ask, timeout=MUST_RUN_OUT).headers()

        assert isinstance(caught.value.__cause__, cause)


# --- cancelling ---------------------------------------------------------------------------------


async def test_a_cancelled_caller_does_not_cancel_the_others(issuer):
    issuer.gate.clear()
    tokens = source(issuer)
    first, second = asyncio.create_task(tokens.headers()), asyncio.create_task(tokens.headers())
    await turns(3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    issuer.gate.set()

    assert (await second)["Authorization"] == "Bearer token-1"
    assert issuer.calls == 1


async def test_a_failure_after_all_callers_are_cancelled_leaves_no_warning(issuer):
    issuer.gate.clear()
    issuer.error = OSError("s3cr3t")
    tokens = source(issuer)
    heard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: heard.append(about))
    only = asyncio.create_task(tokens.headers())
    await turns(3)
    only.cancel()
    await turns(2)
    issuer.gate.set()
    await turns(5)
    del tokens, only
    gc.collect()

    assert heard == []


async def test_a_cancelled_caller_is_cancelled_although_the_callable_is_too(issuer):
    issuer.gate.clear()
    for number in range(3):
        tokens = source(issuer)
        waiting = asyncio.create_task(tokens.headers())
        await turns(2)
        tokens.close()
        await turns(number)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_cancellation_that_no_task_has_recorded_is_no_failure_of_the_callable(issuer):
    issuer.gate.clear()
    tokens = source(issuer)
    waiting = tokens.headers()
    waiting.send(None)
    with pytest.raises(asyncio.CancelledError):
        waiting.throw(asyncio.CancelledError())
    tokens.close()
    await turns(2)


async def test_closing_cancels_the_token_callable(issuer):
    issuer.gate.clear()
    tokens = source(issuer)
    waiting = asyncio.create_task(tokens.headers())
    await turns(3)
    tokens.close()

    with pytest.raises(TokenUnavailable):
        await waiting
