"""Hooks: steps, such as `FundsHold`, that run before an order is sent and can be undone."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from transfer_async._models.errors import (
    BeneficiaryNotVerified,
    HoldFailed,
    HoldRequired,
    MatchResult,
    NotVerifiedReason,
    Outcome,
    PreflightFailed,
    is_a,
    text_of,
)
from transfer_async._models.requests import LONGEST_REFERENCE, OrderIntent, is_clean, is_sendable, to_text
from transfer_async._support.util import checked_async, must_propagate, refuse_class


@runtime_checkable
class PreflightHook(Protocol):
    """A step that runs before an order is sent and can be undone.

    A hook may be called again after a crash, so both methods must be idempotent by ``intent.id``, not by key.
    ``undo`` may be called more than once, and may be called when there is nothing to undo. A hook whose
    ``before`` raises `PreflightFailed` must not have changed anything. After any other error, a timeout, a
    cancellation or a crash, the hook may have acted; ``undo(intent, None)`` is then called if it is certain
    that the order does not exist.
    """

    name: str
    """The hook's name, unique among a client's hooks. The journal stores receipts and undos under it."""

    async def before(self, intent: OrderIntent) -> str | None:
        """Run the step, and return a receipt for the journal, or None. Raise an error to reject the order."""
        ...

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Undo the step. `undo` is called only if it is certain that the order does not exist.

        Args:
            intent: the intent of the order.
            receipt: the receipt that ``before`` returned, or None.
        """
        ...


USUAL_HOLD = "funds_hold"
"""The default name of a `FundsHold`."""


class FundsHold:
    """A hook that places the hold required by the service before each order (specification 4.1, rule 1).

    Args:
        place: an async function that takes the intent, holds the customer's funds, and returns the hold's
            reference. ``place`` must raise `HoldFailed` if it is certain that no hold was placed.
        release: an async function that takes the intent and the reference, and releases the hold. The
            reference is None if ``place`` did not return; in that case, find the hold by ``intent.id``.
        name: the hook's name, unique among a client's hooks.

    Raises:
        ValueError: ``place`` or ``release`` is not async.
    """

    places_hold = True

    def __init__(
        self,
        place: Callable[[OrderIntent], Awaitable[str]],
        release: Callable[[OrderIntent, str | None], Awaitable[None]],
        *,
        name: str = USUAL_HOLD,
    ) -> None:
        self.name = name
        self._place = checked_async(place, "place(intent)", name="place", kind="an async function")
        self._release = checked_async(
            release, "release(intent, receipt)", name="release", kind="an async function"
        )

    async def before(self, intent: OrderIntent) -> str:
        """Place the hold, and return its reference as the receipt."""
        return await self._place(intent)

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Release the hold."""
        await self._release(intent, receipt)


class PlainHook:
    """A hook made from a plain function ``async def f(intent)``.

    A plain function must not have effects that have to be undone.

    The function returns None to accept the order, and raises an error to reject it. Returning any other value
    is an error, because ``False`` may be meant to reject the order.
    """

    nothing_to_undo = True
    """This hook never has to be undone. A hook without this attribute is undone if the order fails."""

    def __init__(self, function: Callable[[OrderIntent], Awaitable[None]]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function

    async def before(self, intent: OrderIntent) -> None:
        """Call the function.

        Raises:
            PreflightFailed: the function returned a value other than None.
        """
        returned: object = await self._function(intent)  # type: ignore[func-returns-value]
        if returned is not None:
            raise PreflightFailed(
                f"the hook {self.name!r} returned a {type(returned).__name__}: a hook function must "
                "return None, or raise PreflightFailed if the order must not be sent",
                refused=False,
            )

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Do nothing, because a plain function needs no undo."""


Hook = PreflightHook | Callable[[OrderIntent], Awaitable[None]]


def is_hold(hook: PreflightHook) -> bool:
    """Return whether ``hook`` places a hold on the customer's funds."""
    return bool(getattr(hook, "places_hold", False))


def checked_hooks(hooks: Sequence[Hook]) -> tuple[PreflightHook, ...]:
    """Check ``hooks``, wrap plain functions, and return all hooks in order.

    Raises:
        ValueError: a hook is invalid or not async, two hooks have the same name, or a hold is not the last
            hook.
    """
    if not isinstance(hooks, Iterable):
        raise ValueError("hooks: must be a sequence of hooks")  # noqa: TRY004 - one kind of error for every wrong setting
    checked = tuple(_hook(hook) for hook in hooks)
    names = [hook.name for hook in checked]
    if not all(type(name) is str and name and is_clean(name) for name in names):
        raise ValueError("hooks: each hook needs a name: a non-empty str without control characters")
    if "held" in names:
        raise ValueError("hooks: the name 'held' is reserved for the reference given as held=")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"hooks: names must be unique; used more than once: {', '.join(sorted(twice))}")
    if any(is_hold(hook) for hook in checked[:-1]):
        raise ValueError(
            "hooks: pass at most one hold hook, and pass it last: funds must not be held for an order that a "
            "check may still refuse"
        )
    return checked


def _hook(hook: Hook) -> PreflightHook:
    refuse_class(hook, name="hooks")
    if isinstance(hook, PreflightHook):
        for name, signature in (("before", "before(self, intent)"), ("undo", "undo(self, intent, receipt)")):
            checked_async(
                getattr(hook, name), signature, name=f"hooks: {hook.name}.{name}", kind="an async method"
            )
        if is_hold(hook) and getattr(hook, "nothing_to_undo", False):
            raise ValueError(f"hooks: {hook.name}: a hold hook needs an undo: do not set nothing_to_undo")
        return hook
    if not callable(hook):
        raise ValueError(  # noqa: TRY004 - one kind of error for every wrong setting
            f"hooks: a {type(hook).__name__} is neither a hook nor an async function"
        )
    plain = PlainHook(hook)
    written = plain.name if plain.name.isidentifier() else "check"
    checked_async(hook, f"{written}(intent)", name=f"hooks: {plain.name}", kind="an async function")
    return plain


def checked_receipt(hook: PreflightHook, receipt: object) -> str | None:
    """Return the receipt of ``hook`` as a plain string or None.

    Raises:
        HoldFailed: a hold hook did not return the reference that is needed to release the hold.
        TypeError: the receipt is neither a string nor None.
        ValueError: the receipt is longer than 10,000 characters, or cannot be encoded as UTF-8.
    """
    if receipt is not None and not isinstance(receipt, str):
        raise TypeError(f"a hook's receipt must be a string or None, not a {type(receipt).__name__}")
    text = None if receipt is None else to_text(receipt)
    if not (text or "").strip() and is_hold(hook):
        raise HoldFailed(
            "the hold hook returned no reference: return a string", refused=False, hook=hook.name
        )
    if text is None:
        return None
    if len(text) > LONGEST_REFERENCE:
        raise ValueError(f"a hook's receipt is longer than {LONGEST_REFERENCE:,} characters")
    if not is_sendable(text):
        raise ValueError("a hook's receipt cannot be encoded as UTF-8")
    return text


# --- errors of hooks ---------------------------------------------------------------------------------
# Each call raises its own error object, whatever its hook raised.


def broken_hook(hook: PreflightHook, why: str) -> PreflightFailed:
    """Create the error for a call whose ``hook`` failed without raising a `PreflightFailed`."""
    kind = HoldFailed if is_hold(hook) else PreflightFailed
    return kind(why, refused=False, hook=hook.name)


def own_copy(error: PreflightFailed, hook: PreflightHook) -> PreflightFailed:
    """Return a copy of a hook's ``error``, as a `HoldFailed` if a hold hook raised a plain `PreflightFailed`.

    A hook may raise the same error object in many calls, so that object must not be changed. If the error's
    class prevents copying the error, or using the copy, return one of this package's errors instead.
    """
    try:
        if not (is_hold(hook) and type(error) is PreflightFailed):
            return _completed(copy.copy(error), _default_error(error), hook)
        return HoldFailed(text_of(error), refused=error.refused, hook=hook.name)
    except BaseException as failed:
        if must_propagate(failed):
            raise
    own = _default_error(error)
    own.hook = hook.name
    return own


def _default_error(error: PreflightFailed) -> PreflightFailed:
    """Create a default error of the class in this package that is closest to the class of ``error``."""
    if is_a(error, BeneficiaryNotVerified):
        return BeneficiaryNotVerified(text_of(error), result=MatchResult.NOT_POSSIBLE)
    kind = next(kind for kind in (HoldFailed, HoldRequired, PreflightFailed) if is_a(error, kind))
    return kind(text_of(error))


def _completed(own: PreflightFailed, default: PreflightFailed, hook: PreflightHook) -> PreflightFailed:
    """Fill in all attributes of ``own`` that the call or the journal needs, and return ``own``.

    Raises:
        Exception: the class of ``own`` prevents setting an attribute, or an attribute has the wrong type.
    """
    for name, value in vars(default).items():
        given = getattr(own, name, value)
        setattr(own, name, given)
        if getattr(own, name) is not given:
            raise AttributeError(name)
    own.outcome, own.hook = Outcome.NOT_SENT, hook.name
    if type(own.refused) is not bool or type(getattr(own, "result", MatchResult.MATCH)) is not MatchResult:
        raise TypeError
    if type(getattr(own, "reason", None)) not in (NotVerifiedReason, type(None)):
        raise TypeError
    return own
