"""Breadth-first exploration of `World` to a given depth. It visits each state once, and shows the steps
that lead to a broken invariant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import field, frozen
from msgspec.structs import replace

from tests.interleavings.world import Book, Broken, State, World

Came = dict[State, tuple[State | None, tuple[str, ...]]]


@frozen(kw_only=True)
class Explored:
    """The result of an exploration.

    Args:
        states: the number of distinct states.
        transitions: the number of steps made.
        depth: the number of steps of the longest path that was followed.
        complete: whether no state is left beyond that depth.
        broken: the invariant that does not hold; None if all do.
        way: the steps that lead to the broken invariant.
        world: the world that was explored.
        came: for each state, the previous state and the steps from there.
    """

    states: int
    transitions: int
    depth: int
    complete: bool
    world: World = field(repr=False)
    came: Came = field(repr=False)
    broken: str | None = None
    way: tuple[str, ...] = ()


def _worker(number: int, *steps: str) -> tuple[str, ...]:
    return tuple(f"worker {number}: {step}" for step in steps)


_STOPPED = _worker(1, "claim", "hold the funds", "mark", "last check")
_DOUBTED = (*_STOPPED, *_worker(1, "send", "receives nothing", "in doubt"))
_REFUTED = ("operator: looks at a doubt", "operator: refute")
_WRONGLY_REFUTED = (
    *_STOPPED,
    "tick",
    "tick",
    "tick",
    "operator: looks at a sender",
    "operator: expire",
    "tick",
)
_WRONGLY_REFUTED = (*_WRONGLY_REFUTED, "operator: refute")
_OLD = (*_worker(0, "claim", "hold the funds"), "tick", "tick", "tick", "tick")
_CALL = ("hold the funds", "mark", "last check", "send")
_LOOKED_AT = ("worker 1: claim", "recovery: finds a claim")
OPENINGS: dict[str, tuple[str, ...]] = {
    "nothing has happened": (),
    "a doubt is asked about": _DOUBTED,
    "an outcome was published as unknown, and its end is not": (
        *(*_DOUBTED, *_worker(1, "resolve does not know", "publish unknown"), "tick", "tick"),
        *_REFUTED,
    ),
    "a sender is stopped, and a recovery has put its key in doubt": (
        *(*_STOPPED, "tick", "tick", "recovery: finds a sender", "recovery: expire"),
    ),
    "a recovery asks, and a person refutes meanwhile": (
        *(*_STOPPED, "tick", "tick", "recovery: finds a sender", "recovery: expire", "recovery: attend"),
        *("tick", "tick", *_REFUTED),
    ),
    "a sender is stopped beyond every wait, and a person has refuted its doubt": _WRONGLY_REFUTED,
    "the same, and another call has the key as the sender reports": (
        *(*_WRONGLY_REFUTED, *_worker(0, "claim"), *_worker(1, "send", "receives nothing", "superseded")),
    ),
    "the same, and the sender receives its order": (
        *(*_WRONGLY_REFUTED, *_worker(1, "send"), "service creates order 1"),
        *_worker(1, "receives the order"),
    ),
    "the same, and another call's order is on record": (
        *(*_WRONGLY_REFUTED, *_worker(0, "claim", *_CALL)),
        *("service creates order 0", *_worker(0, "receives the order", "deliver the order")),
    ),
    "a recovery looks at a sender whose answer is there": (
        *(*_STOPPED, *_worker(1, "send"), "service creates order 1", "tick", "tick"),
        "recovery: finds a sender",
    ),
    "a claim is too old for another worker to continue it": _OLD,
    "the same, its worker is dead, and the next call cannot undo it": (
        *(
            *_OLD,
            "worker 0 dies",
            *_worker(1, "claim", "undo earlier", "undo fails", "hold the funds", "mark", "last check"),
        ),
    ),
    "the same, and a recovery looks at the next call's claim": (*_OLD, *_LOOKED_AT),
    "the same, and that call is about to send": (
        *(*_OLD, *_LOOKED_AT),
        *_worker(1, "undo earlier", "undo", "mark undone", "hold the funds", "mark", "last check"),
    ),
}
"""Paths into rare situations, each explored as deep as the initial state."""
IN_OPENINGS = 3
"""The number of failures that an opening may contain, in addition to those that are explored after it."""


def explore(*, depth: int, crashes: int = 1, ways: Iterable[tuple[str, ...]] = OPENINGS.values()) -> Explored:
    """Explore every interleaving of at most ``depth`` steps after each of ``ways``.

    Args:
        depth: the number of steps.
        crashes: how often a worker, a recovery or an undo may fail on one path.
        ways: the names of steps from the beginning; one that a wrong rule forbids is left out.
    """
    world = World(Book())
    came: Came = {}
    transitions, at = 0, 0
    name, state = "?", State(crashes=crashes)
    found: dict[str, Any] = {}
    try:
        for way in ways:
            if (opened := _opened(world, crashes, way)) is not None:
                came.setdefault(opened, (None, way))
        level = list(came)
        while level and at < depth:
            following: list[State] = []
            for state in level:
                for name, after in world.steps(state):
                    transitions += 1
                    if after not in came:
                        came[after] = (state, (name,))
                        following.append(after)
                        world.check(after)
            level, at = following, at + 1
    except Broken as broken:
        found = {"broken": str(broken), "way": (*way_to(came, state), f"the step after {name}")}
    return Explored(
        states=len(came),
        transitions=transitions,
        depth=at,
        complete=not found and not level,
        world=world,
        came=came,
        **found,
    )


def _opened(world: World, crashes: int, way: tuple[str, ...]) -> State | None:
    state = State(crashes=crashes + IN_OPENINGS)
    for wanted in way:
        after = dict(world.steps(state)).get(wanted)
        if after is None:
            return None
        world.check(after)
        state = after
    return replace(state, crashes=crashes)


def way_to(came: Came, state: State | None) -> tuple[str, ...]:
    """Return the names of the steps that lead to ``state``."""
    names: list[str] = []
    while state in came:
        state, steps = came[state]
        names[:0] = steps
    return tuple(names)
