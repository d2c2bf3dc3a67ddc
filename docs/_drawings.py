"""Two diagrams and a table, generated from the code when the site is built, so that they are up to date.

`layers` draws the packages, each above all packages that it imports. `key-states` draws the states of a key
and the transitions between them. `key-moves` lists these transitions with their reasons.
"""

from __future__ import annotations

import ast
import functools
import html
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import transfer_async
import transfer_async.journal

PACKAGE = Path(transfer_async.__file__).parent

_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
)

# --- the layers ---------------------------------------------------------------------------------

TOP = "transfer_async"
"""The box for the package's own `__init__`, which contains its public names."""


def box_of(path: Path) -> str:
    """Return the box of a file: the subpackage or module directly below the package."""
    first = path.relative_to(PACKAGE).parts[0]
    return TOP if first == "__init__.py" else first.removesuffix(".py")


def imported(path: Path, boxes: set[str]) -> Iterator[str]:
    """Yield the boxes that a file imports from, including imports in functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == TOP:
                yield rest[0] if rest and rest[0] in boxes else TOP


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Return the boxes that each box imports from."""
    files = list(PACKAGE.rglob("*.py"))
    found: dict[str, set[str]] = {box_of(path): set() for path in files}
    for path in files:
        box = box_of(path)
        found[box] |= set(imported(path, set(found))) - {box}
    return found


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return all boxes that can be reached from a box."""
    seen: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - seen
        seen |= new
        left += new
    return seen


def layers() -> list[list[str]]:
    """Return the boxes of each layer, lowest first. Each box is just above all boxes that it imports.

    Boxes that import from one another are in the same layer.
    """
    graph = arrows()
    below = {box: reach(graph, box) for box in graph}
    rooms = {box: frozenset({box} | {one for one in below[box] if box in below[one]}) for box in graph}
    height: dict[frozenset[str], int] = {}

    def stands(room: frozenset[str]) -> int:
        if room not in height:
            others = {rooms[one] for box in room for one in graph[box]} - {room}
            height[room] = 1 + max(map(stands, others), default=-1)
        return height[room]

    made: dict[int, list[str]] = {}
    for room in set(rooms.values()):
        made.setdefault(stands(room), []).extend(room)
    return [sorted(made[layer]) for layer in sorted(made)]


def purpose_of(box: str) -> str:
    """Return the first sentence of the docstring of a package or module."""
    inside = PACKAGE if box == TOP else PACKAGE / box
    path = inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", told.replace("`", ""), maxsplit=1)[0]


_WIDTH, _HIGH, _GAP, _LEFT = 460, 30, 20, 34


def draw_layers() -> str:
    """Return the layers as an SVG, highest first, with an arrow from each box to the boxes that it imports.

    An arrow is omitted if a path through other boxes leads to the same target.
    """
    places, parts, y = {}, [], 4
    stories = layers()
    for number in range(len(stories) - 1, -1, -1):
        begin = y
        for line in _lines(stories[number]):
            x = _LEFT + (_WIDTH - _LEFT - sum(map(_wide, line)) - _GAP * (len(line) - 1)) / 2
            for box in line:
                places[box] = (x + _wide(box) / 2, y)
                x += _wide(box) + _GAP
            y += _HIGH + 6
        middle = (begin + y - 6) / 2 + 5
        parts.append(f'<text class="layer" x="12" y="{middle:g}">{number}</text>')
        y += _GAP
    ways = [_arrow(places[box], places[other], _wide(box)) for box, other in direct()]
    return _svg(
        _HEAD + "".join(ways + [_box(*at, box) for box, at in places.items()] + parts), _WIDTH, y, _LAYERS
    )


_LAYERS = "The layers of the package: every import goes down"


def direct() -> list[tuple[str, str]]:
    """Return the imports that are not also made through a third box."""
    graph = arrows()
    below = {box: reach(graph, box) for box in graph}
    return [
        (box, other)
        for box in sorted(graph)
        for other in sorted(graph[box])
        if not any(other in below[third] for third in graph[box] - {other})
    ]


def _wide(box: str) -> int:
    return 16 + 8 * len(box)


def _lines(boxes: list[str]) -> Iterator[list[str]]:
    """Yield lines with as many boxes as fit into each line."""
    line: list[str] = []
    for box in boxes:
        if line and _LEFT + sum(_wide(one) + _GAP for one in line) + _wide(box) > _WIDTH:
            yield line
            line = []
        line.append(box)
    yield line


def _box(x: float, y: float, box: str) -> str:
    return (
        f'<rect class="box" x="{x - _wide(box) / 2:g}" y="{y}" width="{_wide(box)}" height="{_HIGH}" rx="5"/>'
        f'<text class="code" x="{x:g}" y="{y + 20}">{html.escape(box)}</text>'
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], wide: int) -> str:
    """Return an arrow from the bottom of one box to the top of another; a long arrow goes around boxes."""
    (x1, y1), (x2, y2) = start, end
    way = f"M{x1:g} {y1 + _HIGH:g}L{x2:g} {y2:g}"
    if y2 - y1 > 4 * (_HIGH + _GAP):
        way = f"M{x1 + wide / 2:g} {y1 + _HIGH / 2:g}C{_WIDTH} {y1:g} {_WIDTH} {y2 - _HIGH:g} {x2:g} {y2:g}"
    return f'<path class="way" d="{way}" marker-end="url(#head)"/>'


# --- the states of a key ------------------------------------------------------------------------


def rows() -> tuple[Any, ...]:
    """Return the rows of the journal's state machine, from the module that contains it."""
    package = transfer_async.journal
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        table = getattr(importlib.import_module(module.name), "TRANSITIONS", ())
        if table and all(hasattr(row, "source") and hasattr(row, "to") for row in table):
            return tuple(table)
    raise LookupError("no module of the journal has the TRANSITIONS of its state machine")


def word(state: Any) -> str:
    """Return the name of a state in words."""
    return str(state.value).replace("_", " ")


def ways() -> dict[tuple[str, str], list[str]]:
    """Return the transitions from one state to another."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows():
        if row.source is not row.to:
            moves = found.setdefault((word(row.source), word(row.to)), [])
            name = row.move.__name__
            if name not in moves:
                moves.append(name)
    return found


_AT = {
    "free": (240, 30),
    "claimed": (240, 130),
    "sending": (240, 230),
    "in doubt": (80, 330),
    "created": (380, 330),
}
_BENDS = {  # how far an arrow bends to its right, in pixels; all others are straight
    ("claimed", "free"): 80,
    ("sending", "free"): 205,
    ("in doubt", "free"): -120,
    ("free", "created"): -220,
    ("claimed", "in doubt"): 20,
    ("in doubt", "created"): 40,  # keeps the two arrows between these states apart
    ("created", "in doubt"): 40,
}


def draw_states() -> str:
    """Return the states of a key as an SVG, with the transitions between them."""
    between = ways()
    places = dict(_AT)
    for state in sorted({state for way in between for state in way} - set(places)):
        places[state] = (360, 30 + 100 * (len(places) - len(_AT)))  # a new state is placed at the side
    lines = [_way(places[a], places[b], _BENDS.get((a, b), 0), moves) for (a, b), moves in between.items()]
    boxes = [
        f'<rect class="box" x="{x - 44}" y="{y - 16}" width="88" height="32" rx="16"/>'
        f'<text class="code" x="{x}" y="{y + 5}">{state}</text>'
        for state, (x, y) in places.items()
    ]
    return _svg(_HEAD + "".join(lines + boxes), 460, 380, "The states of a key, and the moves between them")


def _way(start: tuple[int, int], end: tuple[int, int], bend: int, moves: list[str]) -> str:
    (x1, y1), (x2, y2) = start, end
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    right = ((y1 - y2) / length, (x2 - x1) / length)  # y grows downwards
    middle = ((x1 + x2) / 2 + right[0] * bend, (y1 + y2) / 2 + right[1] * bend)
    a, b = _edge(start, middle), _edge(end, middle)
    x, y = ((a[0] + 2 * middle[0] + b[0]) / 4, (a[1] + 2 * middle[1] + b[1]) / 4)
    told = ", ".join(map(_spaced, moves))
    return (
        f'<path class="way" d="M{a[0]:.0f} {a[1]:.0f}Q{middle[0]:.0f} {middle[1]:.0f} {b[0]:.0f} {b[1]:.0f}" '
        f'marker-end="url(#head)"/><text class="move" x="{x:.0f}" y="{y + 4:.0f}">{html.escape(told)}</text>'
    )


def _spaced(name: str) -> str:
    """Return the class name in words: MarkSending is "mark sending"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _edge(centre: tuple[int, int], towards: tuple[float, float]) -> tuple[float, float]:
    """Return the point at which an arrow to ``towards`` leaves the box around ``centre``."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    share = min(46 / abs(dx) if dx else 9e9, 18 / abs(dy) if dy else 9e9)
    return centre[0] + dx * share, centre[1] + dy * share


def _svg(content: str, width: int, height: int, label: str) -> str:
    return (
        f'<figure class="drawn"><svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{html.escape(label)}">{content}</svg></figure>'
    )


# --- directives ---------------------------------------------------------------------------------


class Layers(SphinxDirective):
    """The diagram of the layers, with the purpose of each box."""

    def run(self) -> list[nodes.Node]:
        """Draw the diagram."""
        boxes = [(box, purpose_of(box)) for layer in reversed(layers()) for box in layer]
        table = _table(("package", "purpose"), boxes)
        return [nodes.raw("", draw_layers(), format="html"), table]


class KeyStates(SphinxDirective):
    """The diagram of a key's states."""

    def run(self) -> list[nodes.Node]:
        """Draw the diagram."""
        return [nodes.raw("", draw_states(), format="html")]


class KeyMoves(SphinxDirective):
    """The table of transitions, with their reasons."""

    def run(self) -> list[nodes.Node]:
        """Create the table."""
        told: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for row in rows():
            told.setdefault((row.move.__name__, row.reason), []).append((word(row.source), word(row.to)))
        lines = [(_spaced(move), _from_to(pairs), reason) for (move, reason), pairs in told.items()]
        return [_table(("transition", "from → to", "why"), lines)]


def _from_to(pairs: list[tuple[str, str]]) -> str:
    if all(a == b for a, b in pairs):
        stays = ", ".join(a for a, _ in pairs)
        return "any, stays" if len(pairs) == len(_AT) else f"{stays}, stays"
    return "; ".join(f"{a} → {b}" for a, b in pairs)


def _table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> nodes.table:
    columns = list(head)
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in columns), cols=len(columns))
    group += nodes.thead("", _row(columns))
    group += nodes.tbody("", *(_row(line) for line in lines))
    return nodes.table("", group)


def _row(cells: Iterable[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("layers", Layers)
    app.add_directive("key-states", KeyStates)
    app.add_directive("key-moves", KeyMoves)
    return {"parallel_read_safe": True}
