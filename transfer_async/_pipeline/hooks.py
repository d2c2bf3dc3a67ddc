"""The hook seam: steps that run before an order is sent, and can be undone. `FundsHold` is one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from transfer_async._models.errors import HoldFailed, PreflightFailed
from transfer_async._models.requests import OrderIntent
from transfer_async._models.texts import REFERENCE, is_clean, is_sendable, to_optional_text
from transfer_async._support.callables import checked_async, refuse_class


@runtime_checkable
class PreflightHook(Protocol):
    """A step before the order is sent.

    Both methods must be idempotent by ``intent.id``, not by key: after a crash or a doubt about
    itself, a hook is asked again. ``undo`` may come more than once, and with nothing to undo.

    A hook that raises `PreflightFailed` in ``before`` vouches that it did nothing. After anything
    else (an error, a time-out, cancellation, a crash) it may have acted, and ``undo(intent, None)``
    is called.
    """

    name: str
    """Unique among a client's hooks, and stable: receipts and owed undos are kept under it."""

    async def before(self, intent: OrderIntent) -> str | None:
        """Act, and return the receipt to be kept; raise to stop the order from being sent."""
        ...

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Take it back: the order certainly does not exist. ``receipt`` is None if none was returned."""
        ...


class FundsHold:
    """The hold on the customer's funds that the service requires before an order (specification 4.1, rule 1).

    Args:
        place: reserves what the order needs and returns the hold's reference; raises `HoldFailed`
            if it knows that nothing was reserved.
        release: lets the reservation go; called with None if ``place`` may have acted but no
            reference came back, and then finds the hold by ``intent.id``, if there is one.
        name: unique among a client's hooks.

    Raises:
        ValueError: ``place`` or ``release`` is not async.
    """

    places_hold = True

    def __init__(
        self,
        place: Callable[[OrderIntent], Awaitable[str]],
        release: Callable[[OrderIntent, str | None], Awaitable[None]],
        *,
        name: str = "funds_hold",
    ) -> None:
        self.name = name
        self._place = checked_async(place, "place(intent)", name="place", kind="an async function")
        self._release = checked_async(
            release, "release(intent, receipt)", name="release", kind="an async function"
        )

    async def before(self, intent: OrderIntent) -> str:
        """Place the hold; its reference is the receipt."""
        return await self._place(intent)

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """Release the hold."""
        await self._release(intent, receipt)


class PlainHook:
    """An ``async def f(intent)`` as a hook that has nothing to undo.

    It lets the order pass by ending, and stops it by raising. What it returns would be neither: a
    ``False`` that somebody means as a no must not pass for a yes.
    """

    nothing_to_undo = True
    """Spares the journal an undo that would do nothing; a hook without it is always undone."""

    def __init__(self, function: Callable[[OrderIntent], Awaitable[None]]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function

    async def before(self, intent: OrderIntent) -> None:
        """Call the function.

        Raises:
            PreflightFailed: it returned something.
        """
        returned: object = await self._function(intent)  # type: ignore[func-returns-value] # or so it says
        if returned is not None:
            raise PreflightFailed(
                f"the hook {self.name!r} returned a {type(returned).__name__}: a plain function raises "
                "PreflightFailed to stop an order, and returns None to let it pass",
                refused=False,
            )

    async def undo(self, intent: OrderIntent, receipt: str | None) -> None:
        """A plain function has nothing to undo."""


Hook = PreflightHook | Callable[[OrderIntent], Awaitable[None]]


def is_hold(hook: PreflightHook) -> bool:
    """Whether ``hook`` places the hold on the customer's funds."""
    return bool(getattr(hook, "places_hold", False))


def checked_hooks(hooks: Sequence[Hook]) -> tuple[PreflightHook, ...]:
    """``hooks`` as hooks, in their order.

    Raises:
        ValueError: one is no hook or not async, a name comes twice, or a hold is not the last or not the
            only one.
    """
    if not isinstance(hooks, Iterable):
        raise ValueError("hooks: must be a sequence of hooks")  # noqa: TRY004 - one kind of error for every wrong setting
    made = tuple(_hook(hook) for hook in hooks)
    names = [hook.name for hook in made]
    if not all(type(name) is str and name and is_clean(name) for name in names):
        raise ValueError("hooks: each needs a name, a plain str")
    if "held" in names:
        raise ValueError("hooks: the name 'held' is kept for the reference given as held=")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"hooks: each needs a name of its own, but {', '.join(sorted(twice))} comes twice")
    if any(is_hold(hook) for hook in made[:-1]):
        raise ValueError(
            "hooks: the hold comes last, and once: funds are not held for an order that a check may refuse"
        )
    return made


def _hook(hook: Hook) -> PreflightHook:
    refuse_class(hook, name="hooks")
    if isinstance(hook, PreflightHook):
        return _checked_hook(hook)
    if not callable(hook):
        raise ValueError(  # noqa: TRY004 - one kind of error for every wrong setting
            f"hooks: a {type(hook).__name__} is neither a hook nor an async function"
        )
    plain = PlainHook(hook)
    written = plain.name if plain.name.isidentifier() else "check"
    checked_async(hook, f"{written}(intent)", name=f"hooks: {plain.name}", kind="an async function")
    return plain


def _checked_hook(hook: PreflightHook) -> PreflightHook:
    for name, signature in (("before", "before(self, intent)"), ("undo", "undo(self, intent, receipt)")):
        checked_async(
            getattr(hook, name), signature, name=f"hooks: {hook.name}.{name}", kind="an async method"
        )
    if is_hold(hook) and getattr(hook, "nothing_to_undo", False):
        raise ValueError(f"hooks: {hook.name}: a hold has something to undo")
    return hook


def checked_receipt(hook: PreflightHook, receipt: object) -> str | None:
    """What a hook returned, if it can be kept.

    Raises:
        HoldFailed: a hold without a reference, which could never be released by it.
        TypeError: something that is no text.
        ValueError: one that is too long to go along with an outcome, or that cannot be written.
    """
    if receipt is not None and not isinstance(receipt, str):
        raise TypeError(f"a hook's receipt is a string or None, not a {type(receipt).__name__}")
    receipt = to_optional_text(receipt)
    if is_hold(hook) and not (receipt or "").strip():
        raise HoldFailed("the hold came back without a reference", refused=False, hook=hook.name)
    if receipt is not None and len(receipt) > REFERENCE:
        raise ValueError(f"a hook's receipt is longer than {REFERENCE:,} characters")
    if receipt is not None and not is_sendable(receipt):
        raise ValueError("a hook's receipt cannot be written as UTF-8")
    return receipt
