"""The layers of the package: a module imports only its own package or lower layers, and never in a cycle.

Imports within functions and for type checkers count, too.
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.cases import each

PACKAGE = Path(__file__).parent.parent / "transfer_async"

LAYERS = {
    "__main__": 11,
    "_cli": 10,
    "testing": 9,  # this package may use all public packages
    "transfer_async": 8,  # this package imports its names from `_public`
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
"""The layer of each package. The sandbox's own parser exposes parsing errors of the package."""

ALSO_BY = {"sandbox": {"_cli", "testing"}}
"""Packages that only these packages may import, although other packages are in higher layers."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes() -> dict[str, list[ast.AST]]:
    """Return the imports and the asserts of each module.

    The rest of the syntax trees is not kept, because every later garbage collection would traverse it.
    """
    kept = (ast.Import, ast.ImportFrom, ast.Assert)
    trees = {name: ast.walk(ast.parse(path.read_text("utf-8"))) for name, path in FILES.items()}
    return {name: [node for node in tree if isinstance(node, kept)] for name, tree in trees.items()}


def imported_by(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules of the package that a file imports."""
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
    """Return the modules of the package that each module imports."""
    return {name: {*imported_by(found)} - {name} for name, found in nodes().items()}


def package_of(module: str) -> str:
    """Return the package of a module, or the module itself at the top level."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def upward_imports(graph: dict[str, set[str]]) -> list[str]:
    """Return a line for each import of a higher layer or of another package in the same layer."""
    return [
        f"{importer} (layer {LAYERS[here]}) imports {imported} (layer {LAYERS[there]})"
        for importer, found in graph.items()
        for imported in sorted(found)
        if (here := package_of(importer)) != (there := package_of(imported))
        and (LAYERS[there] >= LAYERS[here] or here not in ALSO_BY.get(there, {here}))
    ]


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return one cycle of imports that starts and ends with the same module; empty if there is none."""
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


def test_every_package_has_a_layer():
    assert {package_of(name) for name in FILES} == set(LAYERS)


def test_no_import_points_up():
    assert upward_imports(imports()) == []


def test_no_imports_form_a_cycle():
    assert cycle_in(imports()) == []


def test_an_upward_import_and_a_cycle_are_reported_with_their_modules():
    upward = {"transfer_async._http.retry": {"transfer_async._pipeline.call"}}

    assert upward_imports(upward) == [
        "transfer_async._http.retry (layer 3) imports transfer_async._pipeline.call (layer 4)"
    ]
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_imports_in_functions_and_for_type_checkers_count():
    source = (
        "if TYPE_CHECKING:\n    from transfer_async._client import TransferClient\n"
        "def late():\n    from transfer_async import sandbox\n"
    )

    assert {*imported_by(ast.walk(ast.parse(source)))} == {"transfer_async._client", "transfer_async.sandbox"}


@each("root", ["transfer_async", "benchmarks"])
def test_no_two_modules_have_one_name(root: str):
    names = Counter(path.stem for path in (PACKAGE.parent / root).rglob("*.py"))

    assert {name for name, count in names.items() if count > 1} <= {"__init__", "__main__", "_public"}


def test_every_package_has_a_docstring():
    packages = {name: path for name, path in FILES.items() if path.name == "__init__.py"}
    docs = {name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for name, path in packages.items()}

    assert [name for name, doc in docs.items() if not (doc and doc.splitlines()[0].endswith("."))] == []


FOR_TYPES = re.compile(r"isinstance\([\w.]+, \w+\)|[\w.]+ is not None")


def is_a_check(node: ast.Assert) -> bool:
    """Return whether an assert checks something at runtime, which ``python -O`` would skip."""
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    return not all(FOR_TYPES.fullmatch(ast.unparse(test)) for test in tests)


def test_no_check_of_the_package_is_left_out_by_optimized_python():
    """The contract tests are excluded, because pytest keeps their asserts."""
    left_out = [
        f"{name}:{node.lineno}"
        for name, found in nodes().items()
        if "_contract" not in name
        for node in found
        if isinstance(node, ast.Assert) and is_a_check(node)
    ]

    assert left_out == []
