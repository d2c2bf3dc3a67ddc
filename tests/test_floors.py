"""The floors of the package: a file imports from its own package or from a lower floor, never in a circle.

Imports within functions and those for type checkers count, too: whoever reads a file has to know them.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.cases import each

PACKAGE = Path(__file__).parent.parent / "transfer_async"

FLOORS = {
    "__main__": 11,
    "_cli": 10,
    "testing": 9,  # it may use whatever a bank's tests may
    "transfer_async": 8,  # asks `_public` for its names
    "_public": 7,  # the public names
    "integrations": 7,
    "desk": 7,
    "worker": 6,
    "_beneficiary": 6,
    "_client": 5,
    "_pipeline": 4,
    "_http": 3,
    "journal": 3,
    "_converters": 2,
    "_models": 1,
    "_support": 0,
    "_lazy": 0,
    "sandbox": 0,
}
"""By package. The sandbox reads the service's words by itself, so that a wrong reading shows."""

ALSO_BY = {"sandbox": {"_cli", "testing"}}
"""Packages that only these may import, and not whoever stands higher."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes() -> dict[str, list[ast.AST]]:
    """All nodes of each file."""
    return {name: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for name, path in FILES.items()}


def imported_by(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The package's own modules that a file names in an import, wherever in it."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and node.module in FILES:
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module


@functools.cache
def imports() -> dict[str, set[str]]:
    """What each file imports of the package: read when asked for, not whenever tests are collected."""
    return {name: {*imported_by(found)} - {name} for name, found in nodes().items()}


def room_of(module: str) -> str:
    """The package, or the file at the top, that a module stands in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def arrows_that_point_up(graph: dict[str, set[str]]) -> list[str]:
    """Every import of a higher floor, or of another package on the same one, in words."""
    return [
        f"{importer} (floor {FLOORS[here]}) imports {imported} (floor {FLOORS[there]})"
        for importer, found in graph.items()
        for imported in sorted(found)
        if (here := room_of(importer)) != (there := room_of(imported))
        and (FLOORS[there] >= FLOORS[here] or here not in ALSO_BY.get(there, {here}))
    ]


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """One circle of imports, from a file back to itself; empty if there is none."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for imported in sorted(graph[name]):
            if found := search(imported, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := search(name, []))), [])


def test_every_package_has_its_floor():
    assert {room_of(name) for name in FILES} == set(FLOORS)


def test_no_import_points_up():
    assert arrows_that_point_up(imports()) == []


def test_no_imports_go_round_in_circles():
    assert circle_in(imports()) == []


def test_an_upward_import_is_reported_with_both_files():
    graph = {"transfer_async._http.retry": {"transfer_async._pipeline.call"}}

    assert arrows_that_point_up(graph) == [
        "transfer_async._http.retry (floor 3) imports transfer_async._pipeline.call (floor 4)"
    ]


def test_an_import_circle_is_reported_in_full():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_imports_in_functions_and_for_type_checkers_count():
    source = (
        "if TYPE_CHECKING:\n    from transfer_async._client import TransferClient\n"
        "def late():\n    from transfer_async import sandbox\n"
    )

    assert {*imported_by(ast.walk(ast.parse(source)))} == {"transfer_async._client", "transfer_async.sandbox"}


def test_no_two_modules_have_one_name():
    names = [
        name.rpartition(".")[2]
        for name, path in FILES.items()
        if path.name not in ("__init__.py", "_public.py")
    ]

    assert sorted({name for name in names if names.count(name) > 1}) == []


@each("name", [name for name, path in FILES.items() if path.name == "__init__.py"])
def test_every_package_has_a_docstring(name: str):
    doc = ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8")))

    assert doc
    assert doc.splitlines()[0].endswith(".")


# --- asserts ------------------------------------------------------------------------------------


FOR_TYPES = re.compile(r"isinstance\([\w.]+, \w+\)|[\w.]+ is not None")


def is_a_check(node: ast.Assert) -> bool:
    """Whether it is for more than type checkers: ``python -O`` leaves it out."""
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    return not all(FOR_TYPES.fullmatch(ast.unparse(test)) for test in tests)


def test_no_check_of_the_package_is_left_out_by_optimized_python():
    """The contracts are tests, whose asserts pytest keeps."""
    left_out = [
        f"{name}:{node.lineno}"
        for name, found in nodes().items()
        if "_contract" not in name
        for node in found
        if isinstance(node, ast.Assert) and is_a_check(node)
    ]

    assert left_out == []
